package timeseries

import "github.com/shoaldb/shoal/query/value"

// Placing determines the bucket that a new measurement begins. The shard key of a sharded time series collection consists of fields of
// buckets, so routers need it as well as shards.
type Placing struct {
	Fields
	SpanMS  int64 // the maximum time span of a bucket
	RoundMS int64 // the minimum time of a bucket is rounded down to a multiple of this
}

// NewPlacing returns the Placing of a collection with the given options; roundingSeconds is 0 if there is a granularity.
func NewPlacing(f Fields, granularity string, spanSeconds, roundingSeconds int64) Placing {
	p := Placing{f, spanSeconds * 1000, 60_000}
	switch {
	case roundingSeconds > 0:
		p.RoundMS = roundingSeconds * 1000
	case granularity == "minutes":
		p.RoundMS = 3600_000
	case granularity == "hours":
		p.RoundMS = 86400_000
	}
	return p
}

// ParsePlacing reads the Placing from a collection's stored time series options.
func ParsePlacing(options []byte) Placing {
	at := func(name string) value.Value { return value.Lookup(options, name) }
	return NewPlacing(NewFields(at("timeField").Str(), at("metaField").Str()), at("granularity").Str(),
		value.SafeInt64(at("bucketMaxSpanSeconds")), value.SafeInt64(at("bucketRoundingSeconds")))
}

// Round returns the minimum time of the bucket that a measurement at ms begins.
func (p *Placing) Round(ms int64) int64 {
	down := ms - ms%p.RoundMS
	if down > ms {
		down -= p.RoundMS
	}
	return down
}

// Head returns the fields of a measurement's bucket that a shard key may name: the meta, and the minimum time of the bucket that the
// measurement begins.
func (p *Placing) Head(doc []byte) []byte {
	var f []value.Field
	if p.Meta != "" {
		if meta := value.Lookup(doc, p.Meta); !meta.IsMissing() {
			f = append(f, value.F("meta", NormalMeta(meta)))
		}
	}
	if t := value.Lookup(doc, p.Time); t.T == value.DateTime {
		min := value.Doc(value.F(p.Time, value.NewDateTime(p.Round(t.DateTime()))))
		f = append(f, value.F("control", value.NewDocument(value.Doc(value.F("min", value.NewDocument(min))))))
	}
	return value.Doc(f...)
}
