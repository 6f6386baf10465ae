package namespace

import (
	"strings"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Time series collections are stored as on the real server: measurements are in system.buckets.<name>, clustered by a
// bucket id, and <name> is a view that unpacks them.

// IsBuckets reports whether a namespace is that of a time series' buckets.
func IsBuckets(ns string) bool {
	return strings.HasPrefix(catalog.CollOf(ns), timeseries.BucketsPrefix)
}

// RefuseBuckets refuses to create a collection under the name of a time series' buckets without the series.
func RefuseBuckets(ns string) error {
	if IsBuckets(ns) {
		return mongoerr.Newf(mongoerr.IllegalOperation, "Creation of a timeseries bucket collection without timeseries options is not allowed: %s", ns)
	}
	return nil
}

// Buckets finds the buckets of a time series collection; nil if ns is not one.
func Buckets(cat *catalog.Snapshot, ns string) *catalog.Collection {
	if cat.Lookup(ns) != nil {
		return nil
	}
	return cat.Lookup(timeseries.BucketsOf(ns))
}

const MaxBucketSpan = 31536000 // a year

// granularities lists the span of a bucket in seconds by granularity, in the order that collMod allows.
var granularities = []struct {
	name string
	span int64
}{{"seconds", 3600}, {"minutes", 86400}, {"hours", 2592000}}

func GranularitySpan(name string) (rank int, span int64) {
	for i, g := range granularities {
		if g.name == name {
			return i, g.span
		}
	}
	return -1, 0
}

// SeriesOptions are the timeseries options of create, checked.
type SeriesOptions struct {
	TimeField, MetaField string
	Granularity          string // empty if the buckets' span is given instead
	Span, Rounding       int64  // rounding is 0 with a granularity
}

// Doc returns the options as listCollections shows them.
func (t *SeriesOptions) Doc() []byte {
	dst, m := value.Begin(nil)
	dst = value.Append(dst, "timeField", value.NewString(t.TimeField))
	if t.MetaField != "" {
		dst = value.Append(dst, "metaField", value.NewString(t.MetaField))
	}
	if t.Granularity != "" {
		dst = value.Append(dst, "granularity", value.NewString(t.Granularity))
	}
	if t.Rounding != 0 {
		dst = value.Append(dst, "bucketRoundingSeconds", value.NewInt32(int32(t.Rounding)))
	}
	dst = value.Append(dst, "bucketMaxSpanSeconds", value.NewInt32(int32(t.Span)))
	return value.End(dst, m)
}

// SeriesOptionsOf parses a document that Doc returned.
func SeriesOptionsOf(doc []byte) *SeriesOptions {
	return &SeriesOptions{
		TimeField: value.Lookup(doc, "timeField").Str(), MetaField: value.Lookup(doc, "metaField").Str(),
		Granularity: value.Lookup(doc, "granularity").Str(),
		Span:        value.SafeInt64(value.Lookup(doc, "bucketMaxSpanSeconds")), Rounding: value.SafeInt64(value.Lookup(doc, "bucketRoundingSeconds")),
	}
}

var SeriesFields = []command.Field{
	command.Req("timeField", command.TString), command.Opt("metaField", command.TString), command.Opt("granularity", command.TString),
	command.Opt("bucketRoundingSeconds", command.TNumber), command.Opt("bucketMaxSpanSeconds", command.TNumber),
}

// ParseTimeseries checks create's timeseries argument.
func ParseTimeseries(doc []byte) (*SeriesOptions, error) {
	f, err := command.ParseFields("create.timeseries", doc, SeriesFields)
	if err != nil {
		return nil, err
	}
	t := &SeriesOptions{TimeField: f[0].Str(), MetaField: f[1].Str(), Granularity: f[2].Str()}
	if err := t.checkNames(); err != nil {
		return nil, err
	}
	if err := command.OneOf("create.timeseries.granularity", f[2], "seconds", "minutes", "hours"); err != nil {
		return nil, err
	}
	rounding, span := f[3], f[4]
	for i, v := range []value.Value{rounding, span} {
		if v.IsMissing() {
			continue
		}
		if _, err := command.InRange(SeriesFields[3+i].Name, v, 1, MaxBucketSpan); err != nil {
			return nil, err
		}
	}
	return t, t.SetSpan(rounding, span)
}

func (t *SeriesOptions) checkNames() error {
	for _, n := range []string{t.TimeField, t.MetaField} {
		if strings.IndexByte(n, 0) >= 0 {
			return mongoerr.New(mongoerr.BadValue, "time-series field names must not contain embedded null bytes")
		}
	}
	switch {
	case strings.Contains(t.TimeField, "."):
		return command.BadOption("'timeField' must be a top-level field")
	case strings.Contains(t.MetaField, "."):
		return command.BadOption("'metaField' must be a top-level field")
	case t.MetaField == "_id":
		return command.BadOption("'metaField' cannot be \"_id\"")
	case t.MetaField != "" && t.MetaField == t.TimeField:
		return command.BadOption("'metaField' cannot be the same as 'timeField'")
	}
	return nil
}

// SetSpan determines the time span of a bucket.
func (t *SeriesOptions) SetSpan(rounding, span value.Value) error {
	if t.Granularity != "" {
		_, implied := GranularitySpan(t.Granularity)
		if !rounding.IsMissing() {
			return command.BadOption("Timeseries 'granularity' is not allowed to be set when 'bucketRoundingSeconds' is set")
		}
		if !span.IsMissing() && value.SafeInt64(span) != implied {
			return command.BadOption("Timeseries 'bucketMaxSpanSeconds' is not configurable to a value other than the default of %d for the provided granularity", implied)
		}
		t.Span = implied
		return nil
	}
	if rounding.IsMissing() && span.IsMissing() {
		t.Granularity, t.Span = "seconds", granularities[0].span
		return nil
	}
	if rounding.IsMissing() != span.IsMissing() || value.SafeInt64(rounding) != value.SafeInt64(span) {
		return command.BadOption("Timeseries 'bucketMaxSpanSeconds' and 'bucketRoundingSeconds' must be set to the same value")
	}
	t.Rounding, t.Span = value.SafeInt64(rounding), value.SafeInt64(span)
	return nil
}

// UnpackStage returns the pipeline of the view that shows measurements.
func (t *SeriesOptions) UnpackStage() []byte {
	fields := []value.Field{value.F("timeField", value.NewString(t.TimeField))}
	if t.MetaField != "" {
		fields = append(fields, value.F("metaField", value.NewString(t.MetaField)))
	}
	fields = append(fields, value.F("bucketMaxSpanSeconds", value.NewInt32(int32(t.Span))))
	stage := value.Doc(value.F("$_internalUnpackBucket", value.NewDocument(value.Doc(fields...))))
	return value.ArrayOf(value.NewDocument(stage))
}

// bucketValidator returns the schema of a bucket document.
func (t *SeriesOptions) bucketValidator() []byte {
	str := func(s string) value.Value { return value.NewString(s) }
	doc := func(f ...value.Field) value.Value { return value.NewDocument(value.Doc(f...)) }
	typed := func(s string) value.Value { return doc(value.F("bsonType", str(s))) }
	bounds := doc(value.F("bsonType", str("object")), value.F("required", value.NewArray(value.ArrayOf(str(t.TimeField)))),
		value.F("properties", doc(value.F(t.TimeField, typed("date")))))
	control := doc(
		value.F("bsonType", str("object")), value.F("required", value.NewArray(value.ArrayOf(str("version"), str("min"), str("max")))),
		value.F("properties", doc(value.F("version", typed("number")), value.F("min", bounds), value.F("max", bounds),
			value.F("closed", typed("bool")), value.F("count", doc(value.F("bsonType", str("number")), value.F("minimum", value.NewInt32(1)))))),
		value.F("additionalProperties", value.NewBool(false)))
	props := []value.Field{value.F("_id", typed("objectId")), value.F("control", control), value.F("data", typed("object"))}
	if t.MetaField != "" {
		props = append(props, value.F("meta", doc()))
	}
	return value.Doc(value.F("$jsonSchema", doc(
		value.F("bsonType", str("object")), value.F("required", value.NewArray(value.ArrayOf(str("_id"), str("control"), str("data")))),
		value.F("properties", doc(props...)), value.F("additionalProperties", value.NewBool(false)))))
}

// DefaultIndex returns the index that a collection with a MetaField is created with, nil without one.
func (t *SeriesOptions) DefaultIndex() []byte {
	if t.MetaField == "" {
		return nil
	}
	one := value.NewInt32(1)
	return value.Doc(value.F("v", value.NewInt32(2)),
		value.F("key", value.NewDocument(value.Doc(value.F("meta", one), value.F("control.min."+t.TimeField, one), value.F("control.max."+t.TimeField, one)))),
		value.F("name", value.NewString(t.MetaField+"_1_"+t.TimeField+"_1")))
}

// StoredOptions completes the options of the collection that holds the buckets.
func (t *SeriesOptions) StoredOptions(o Options) []byte {
	o.Set("clusteredIndex", value.NewBool(true))
	o.Set("validator", value.NewDocument(t.bucketValidator()))
	o.Set("validationLevel", value.NewString("strict"))
	o.Set("validationAction", value.NewString("error"))
	o.Set("timeseries", value.NewDocument(t.Doc()))
	return o.Doc()
}

// Series is a time series collection as writes see it.
type Series struct {
	Buckets *catalog.Collection
	Options *SeriesOptions
	timeseries.Placing
}

// SeriesOf finds the time series collection with the name of a write's target; nil if ns is not one.
func SeriesOf(cat *catalog.Snapshot, ns string) *Series {
	b := Buckets(cat, ns)
	if b == nil {
		return nil
	}
	return SeriesIn(b)
}

// SeriesIn returns the time series collection whose buckets are in a collection.
func SeriesIn(b *catalog.Collection) *Series {
	t := SeriesOptionsOf(value.Lookup(b.Options, "timeseries").Doc())
	return &Series{b, t, timeseries.NewPlacing(timeseries.NewFields(t.TimeField, t.MetaField), t.Granularity, t.Span, t.Rounding)}
}

// MetaPath translates a path of measurements to one of buckets; ok is false if it is not within the MetaField.
func (s *Series) MetaPath(path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, s.Fields.Meta)
	return "meta" + rest, ok && (rest == "" || rest[0] == '.')
}

// MetaFilter translates a filter on measurements to one on buckets.
func (s *Series) MetaFilter(filter []byte) ([]byte, error) {
	dst, m := value.Begin(nil)
	for k, v := range value.Elements(filter) {
		switch k {
		case "$and", "$or", "$nor":
			var all []value.Value
			for _, e := range value.Values(v.Doc()) {
				sub, err := s.MetaFilter(e.Doc())
				if err != nil {
					return nil, err
				}
				all = append(all, value.NewDocument(sub))
			}
			dst = value.Append(dst, k, value.NewArray(value.ArrayOf(all...)))
		case "$comment":
			dst = value.Append(dst, k, v)
		default:
			path, ok := s.MetaPath(k)
			if !ok {
				return nil, command.BadOption("Cannot perform an update on a time-series collection when querying on a field that is not the metaField '%s'", s.Fields.Meta)
			}
			dst = value.Append(dst, path, v)
		}
	}
	return value.End(dst, m), nil
}
