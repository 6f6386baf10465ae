package agg

import (
	"context"

	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	register("$_internalUnpackBucket", rules{internal: true, notInFacet: true}, one(parseUnpack))
}

// unpackStage is $_internalUnpackBucket, which turns the buckets of a time series collection into its measurements.
type unpackStage struct {
	fields timeseries.Fields
	spec   value.Value
	spanMS int64
	narrow bool // a filter of buckets has been inserted before it
}

func parseUnpack(_ *Options, v value.Value) (*unpackStage, error) {
	if v.T != value.Document {
		return nil, mongoerr.Newf(5346500, "$_internalUnpackBucket specification must be an object, got: %s", v.T.Name())
	}
	s := &unpackStage{spec: v}
	for k, e := range value.Elements(v.Doc()) {
		switch k {
		case "timeField", "metaField":
			if e.T != value.String {
				return nil, mongoerr.Newf(5346504, "%s field must be a string, got: %s", k, e.T.Name())
			}
			if k == "timeField" {
				s.fields.Time = e.Str()
			} else {
				s.fields.Meta = e.Str()
			}
		case "bucketMaxSpanSeconds":
			n, ok := e.AsInt64()
			if !ok || n <= 0 {
				return nil, mongoerr.New(5510600, "bucketMaxSpanSeconds field must be a positive integer")
			}
			s.spanMS = n * 1000
		default:
			return nil, mongoerr.Newf(5346506, "unrecognized parameter to $_internalUnpackBucket: %s", k)
		}
	}
	if s.fields = timeseries.NewFields(s.fields.Time, s.fields.Meta); s.fields.Time == "" {
		return nil, mongoerr.New(5346508, "$_internalUnpackBucket stage requires a timeField parameter")
	}
	if s.spanMS == 0 {
		return nil, mongoerr.New(5510602, "$_internalUnpackBucket requires 'bucketMaxSpanSeconds'")
	}
	return s, nil
}

func (s *unpackStage) halves() halves { return halves{streams: true} }

func (s *unpackStage) Name() string      { return "$_internalUnpackBucket" }
func (s *unpackStage) Spec() value.Value { return s.spec }

func (s *unpackStage) open(_ *exec, src Source) (Source, error) {
	return &unpackSource{Source: src, s: s}, nil
}

type unpackSource struct {
	Source
	s    *unpackStage
	r    timeseries.Reader
	open bool
}

func (u *unpackSource) Next(ctx context.Context) (Doc, bool, error) {
	for {
		if u.open {
			if doc, ok := u.r.Next(); ok {
				return Doc{Raw: doc}, true, nil
			}
			u.open = false
		}
		d, ok, err := u.Source.Next(ctx)
		if err != nil || !ok {
			return d, ok, err
		}
		u.r.Reset(u.s.fields, d.Raw)
		u.open = true
	}
}

// matchBuckets moves the conditions on time and meta of a $match after the unpacking before it, as a filter of buckets.
// Those on meta need not be checked again.
func matchBuckets(p *Pipeline, i int) bool {
	u, m, ok := two[*unpackStage, *matchStage](p, i)
	if !ok || u.narrow {
		return false
	}
	filter := timeseries.BucketFilter(u.fields, u.spanMS, m.filter)
	if filter == nil {
		return false
	}
	before, err := newMatch(p.opts, filter)
	if err != nil {
		return false
	}
	narrow := *u
	narrow.narrow = true
	rest := timeseries.Residual(u.fields, m.filter)
	if rest == nil {
		p.replace(i, 2, before, &narrow)
		return true
	}
	after, err := newMatch(p.opts, rest)
	if err != nil {
		return false
	}
	p.replace(i, 2, before, &narrow, after)
	return true
}
