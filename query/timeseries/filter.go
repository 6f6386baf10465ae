package timeseries

import (
	"math"
	"strings"

	"github.com/shoaldb/shoal/query/value"
)

// BucketFilter returns a filter on buckets that every bucket with a match of a measurements' filter satisfies: the
// conditions on the metaField, and bounds of the time. It is nil if the filter has neither. spanMS is the maximum
// time span of a bucket.
func BucketFilter(f Fields, spanMS int64, filter []byte) []byte {
	b := bounds{f: f, span: spanMS}
	return b.of(filter)
}

// ShardFilter is BucketFilter for choosing the shards that may have such buckets: it also bounds from below the minimum time of a
// bucket, which may be a part of the shard key.
func ShardFilter(f Fields, spanMS int64, filter []byte) []byte {
	b := bounds{f: f, span: spanMS, both: true}
	return b.of(filter)
}

// Residual returns what a filter on measurements asks besides what BucketFilter has decided for a whole bucket: all
// measurements of a bucket have its meta. It is nil if nothing is left.
func Residual(f Fields, filter []byte) []byte {
	out, m := value.Begin(nil)
	left := false
	for k, v := range value.Elements(filter) {
		switch {
		case f.ofMeta(k):
			continue
		case k == "$and" && v.T == value.Array:
			var rest []value.Value
			for _, e := range value.Values(v.Doc()) {
				if r := Residual(f, e.Doc()); r != nil {
					rest = append(rest, value.NewDocument(r))
				}
			}
			if len(rest) == 0 {
				continue
			}
			v = value.NewArray(value.ArrayOf(rest...))
		}
		out, left = value.Append(out, k, v), true
	}
	if !left {
		return nil
	}
	return value.End(out, m)
}

// ofMeta reports whether a path is the metaField's, or within it.
func (f Fields) ofMeta(path string) bool {
	return f.Meta != "" && (path == f.Meta || strings.HasPrefix(path, f.Meta+"."))
}

func (b *bounds) of(filter []byte) []byte {
	b.conjunct(filter)
	if len(b.terms) == 0 {
		return nil
	}
	return value.Doc(value.F("$and", value.NewArray(value.ArrayOf(b.terms...))))
}

// bounds collects the terms of a bucket filter.
type bounds struct {
	f     Fields
	span  int64
	both  bool // bound control.min of the time from below
	terms []value.Value
}

func (b *bounds) add(path string, v value.Value) {
	b.terms = append(b.terms, value.NewDocument(value.Doc(value.F(path, v))))
}

func (b *bounds) conjunct(filter []byte) {
	for k, v := range value.Elements(filter) {
		switch {
		case k == "$and" && v.T == value.Array:
			for _, e := range value.Values(v.Doc()) {
				b.conjunct(e.Doc())
			}
		case b.f.ofMeta(k):
			b.add("meta"+k[len(b.f.Meta):], v)
		case k == b.f.Time && v.T == value.DateTime:
			b.time("$eq", v)
		case k == b.f.Time && v.T == value.Document:
			for op, arg := range value.Elements(v.Doc()) {
				if arg.T == value.DateTime {
					b.time(op, arg)
				}
			}
		}
	}
}

// time adds bounds of control.min, control.max and _id, which begins with the seconds of control.min.
func (b *bounds) time(op string, t value.Value) {
	lo, hi := "control.min."+b.f.Time, "control.max."+b.f.Time
	compare := func(path, op string, v value.Value) { b.add(path, value.NewDocument(value.Doc(value.F(op, v)))) }
	var first, last [12]byte
	for i := range last {
		last[i] = 0xff
	}
	if op == "$gt" || op == "$gte" || op == "$eq" {
		compare(hi, "$gte", t)
		compare("_id", "$gte", NewID(t.DateTime()-b.span-1000, first))
		if b.both && t.DateTime() >= math.MinInt64+b.span {
			compare(lo, "$gte", value.NewDateTime(t.DateTime()-b.span))
		}
	}
	if op == "$lt" || op == "$lte" || op == "$eq" {
		compare(lo, "$lte", t)
		compare("_id", "$lte", NewID(t.DateTime(), last))
	}
}
