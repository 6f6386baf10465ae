package shardnode

import (
	"strings"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A time series collection is what the real server makes of it: measurements live in system.buckets.<name>, clustered by
// a bucket id, and <name> is a view that unpacks them.

const bucketsPrefix = "system.buckets."

// bucketsOf is the namespace that holds the buckets of a time series collection.
func bucketsOf(ns string) string {
	return catalog.DBOf(ns) + "." + bucketsPrefix + catalog.CollOf(ns)
}

func isBuckets(ns string) bool { return strings.HasPrefix(catalog.CollOf(ns), bucketsPrefix) }

// refuseBuckets refuses the name of a time series' buckets to a collection that is made without the series.
func refuseBuckets(ns string) error {
	if isBuckets(ns) {
		return mongoerr.Newf(mongoerr.IllegalOperation, "Creation of a timeseries bucket collection without timeseries options is not allowed: %s", ns)
	}
	return nil
}

// timeseriesOf finds the buckets of a time series collection; nil where ns is none.
func timeseriesOf(cat *catalog.Snapshot, ns string) *catalog.Collection {
	if cat.Lookup(ns) != nil {
		return nil
	}
	return cat.Lookup(bucketsOf(ns))
}

const maxBucketSpan = 31536000 // a year

// granularities gives the span of a bucket in seconds and, for collMod, their order.
var granularities = []struct {
	name string
	span int64
}{{"seconds", 3600}, {"minutes", 86400}, {"hours", 2592000}}

func granularitySpan(name string) (rank int, span int64) {
	for i, g := range granularities {
		if g.name == name {
			return i, g.span
		}
	}
	return -1, 0
}

// tsOptions are the timeseries options of create, checked.
type tsOptions struct {
	timeField, metaField string
	granularity          string // empty where the buckets' span is given instead
	span, rounding       int64  // rounding is 0 with a granularity
}

// doc is the options as listCollections shows them.
func (t *tsOptions) doc() []byte {
	dst, m := value.Begin(nil)
	dst = value.Append(dst, "timeField", value.NewString(t.timeField))
	if t.metaField != "" {
		dst = value.Append(dst, "metaField", value.NewString(t.metaField))
	}
	if t.granularity != "" {
		dst = value.Append(dst, "granularity", value.NewString(t.granularity))
	}
	if t.rounding != 0 {
		dst = value.Append(dst, "bucketRoundingSeconds", value.NewInt32(int32(t.rounding)))
	}
	dst = value.Append(dst, "bucketMaxSpanSeconds", value.NewInt32(int32(t.span)))
	return value.End(dst, m)
}

// tsOptionsOf reads what doc wrote.
func tsOptionsOf(doc []byte) *tsOptions {
	return &tsOptions{
		timeField: value.Lookup(doc, "timeField").Str(), metaField: value.Lookup(doc, "metaField").Str(),
		granularity: value.Lookup(doc, "granularity").Str(),
		span:        value.SafeInt64(value.Lookup(doc, "bucketMaxSpanSeconds")), rounding: value.SafeInt64(value.Lookup(doc, "bucketRoundingSeconds")),
	}
}

var tsFields = []command.Field{
	command.Req("timeField", command.TString), command.Opt("metaField", command.TString), command.Opt("granularity", command.TString),
	command.Opt("bucketRoundingSeconds", command.TNumber), command.Opt("bucketMaxSpanSeconds", command.TNumber),
}

func badOption(format string, args ...any) error {
	return mongoerr.Newf(mongoerr.InvalidOptions, format, args...)
}

// parseTimeseries checks create's timeseries argument.
func parseTimeseries(doc []byte) (*tsOptions, error) {
	f, err := parseFields("create.timeseries", doc, tsFields)
	if err != nil {
		return nil, err
	}
	t := &tsOptions{timeField: f[0].Str(), metaField: f[1].Str(), granularity: f[2].Str()}
	if err := t.checkNames(); err != nil {
		return nil, err
	}
	if err := oneOf("create.timeseries.granularity", f[2], "seconds", "minutes", "hours"); err != nil {
		return nil, err
	}
	rounding, span := f[3], f[4]
	for i, v := range []value.Value{rounding, span} {
		if v.IsMissing() {
			continue
		}
		if _, err := inRange("create.timeseries."+tsFields[3+i].Name, v, 1, maxBucketSpan); err != nil {
			return nil, err
		}
	}
	return t, t.setSpan(rounding, span)
}

func (t *tsOptions) checkNames() error {
	for _, n := range []string{t.timeField, t.metaField} {
		if strings.IndexByte(n, 0) >= 0 {
			return mongoerr.New(mongoerr.BadValue, "time-series field names must not contain embedded null bytes")
		}
	}
	switch {
	case strings.Contains(t.timeField, "."):
		return badOption("'timeField' must be a top-level field")
	case strings.Contains(t.metaField, "."):
		return badOption("'metaField' must be a top-level field")
	case t.metaField == "_id":
		return badOption("'metaField' cannot be \"_id\"")
	case t.metaField != "" && t.metaField == t.timeField:
		return badOption("'metaField' cannot be the same as 'timeField'")
	}
	return nil
}

// setSpan works out how long a bucket spans.
func (t *tsOptions) setSpan(rounding, span value.Value) error {
	if t.granularity != "" {
		_, implied := granularitySpan(t.granularity)
		if !rounding.IsMissing() {
			return badOption("Timeseries 'granularity' is not allowed to be set when 'bucketRoundingSeconds' is set")
		}
		if !span.IsMissing() && value.SafeInt64(span) != implied {
			return badOption("Timeseries 'bucketMaxSpanSeconds' is not configurable to a value other than the default of %d for the provided granularity", implied)
		}
		t.span = implied
		return nil
	}
	if rounding.IsMissing() && span.IsMissing() {
		t.granularity, t.span = "seconds", granularities[0].span
		return nil
	}
	if rounding.IsMissing() != span.IsMissing() || value.SafeInt64(rounding) != value.SafeInt64(span) {
		return badOption("Timeseries 'bucketMaxSpanSeconds' and 'bucketRoundingSeconds' must be set to the same value")
	}
	t.rounding, t.span = value.SafeInt64(rounding), value.SafeInt64(span)
	return nil
}

// unpackStage is the pipeline of the view that shows measurements.
func (t *tsOptions) unpackStage() []byte {
	fields := []value.Field{value.F("timeField", value.NewString(t.timeField))}
	if t.metaField != "" {
		fields = append(fields, value.F("metaField", value.NewString(t.metaField)))
	}
	fields = append(fields, value.F("bucketMaxSpanSeconds", value.NewInt32(int32(t.span))))
	stage := value.Doc(value.F("$_internalUnpackBucket", value.NewDocument(value.Doc(fields...))))
	return value.ArrayOf(value.NewDocument(stage))
}

// bucketValidator is the schema of a bucket document.
func (t *tsOptions) bucketValidator() []byte {
	str := func(s string) value.Value { return value.NewString(s) }
	doc := func(f ...value.Field) value.Value { return value.NewDocument(value.Doc(f...)) }
	typed := func(s string) value.Value { return doc(value.F("bsonType", str(s))) }
	bounds := doc(value.F("bsonType", str("object")), value.F("required", value.NewArray(value.ArrayOf(str(t.timeField)))),
		value.F("properties", doc(value.F(t.timeField, typed("date")))))
	control := doc(
		value.F("bsonType", str("object")), value.F("required", value.NewArray(value.ArrayOf(str("version"), str("min"), str("max")))),
		value.F("properties", doc(value.F("version", typed("number")), value.F("min", bounds), value.F("max", bounds),
			value.F("closed", typed("bool")), value.F("count", doc(value.F("bsonType", str("number")), value.F("minimum", value.NewInt32(1)))))),
		value.F("additionalProperties", value.NewBool(false)))
	props := []value.Field{value.F("_id", typed("objectId")), value.F("control", control), value.F("data", typed("object"))}
	if t.metaField != "" {
		props = append(props, value.F("meta", doc()))
	}
	return value.Doc(value.F("$jsonSchema", doc(
		value.F("bsonType", str("object")), value.F("required", value.NewArray(value.ArrayOf(str("_id"), str("control"), str("data")))),
		value.F("properties", doc(props...)), value.F("additionalProperties", value.NewBool(false)))))
}

// defaultIndex is the index that a collection with a metaField is born with, nil without.
func (t *tsOptions) defaultIndex() []byte {
	if t.metaField == "" {
		return nil
	}
	one := value.NewInt32(1)
	return value.Doc(value.F("v", value.NewInt32(2)),
		value.F("key", value.NewDocument(value.Doc(value.F("meta", one), value.F("control.min."+t.timeField, one), value.F("control.max."+t.timeField, one)))),
		value.F("name", value.NewString(t.metaField+"_1_"+t.timeField+"_1")))
}
