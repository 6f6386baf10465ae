package namespace

import (
	"strings"

	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
)

// BucketKeyPattern translates a key pattern on measurements to one on buckets: a field of measurements
// becomes the bucket's bounds of that field, the MetaField the bucket's meta.
func BucketKeyPattern(ts *SeriesOptions, key []byte) []byte {
	var f []value.Field
	for k, v := range value.Elements(key) {
		if rest, ok := strings.CutPrefix(k, ts.MetaField); ok && ts.MetaField != "" && (rest == "" || rest[0] == '.') {
			f = append(f, value.F("meta"+rest, v))
			continue
		}
		switch {
		case v.T == value.String && v.Str() == "2dsphere":
			f = append(f, value.F("data."+k, value.NewString("2dsphere_bucket")))
		case v.T.Numeric() && v.AsFloat64() < 0:
			f = append(f, value.F("control.max."+k, v), value.F("control.min."+k, v))
		default:
			f = append(f, value.F("control.min."+k, v), value.F("control.max."+k, v))
		}
	}
	return value.Doc(f...)
}

// BucketIndexSpec translates an index on measurements to the index that is kept on buckets; the client's
// specification is kept in it as originalSpec.
func BucketIndexSpec(ts *SeriesOptions, user []byte) []byte {
	d := IndexDocOf(user)
	d.Set("key", value.NewDocument(BucketKeyPattern(ts, value.Lookup(user, "key").Doc())))
	if p := value.Lookup(user, "partialFilterExpression"); !p.IsMissing() {
		d.Set("partialFilterExpression", value.Value{}) // measurements of one bucket differ: every bucket is indexed
		if t := (&Series{Placing: timeseries.Placing{Fields: timeseries.NewFields(ts.TimeField, ts.MetaField)}}); ts.OnlyMeta(p) {
			if f, err := t.MetaFilter(p.Doc()); err == nil { // all measurements of a bucket have its meta
				d.Set("partialFilterExpression", value.NewDocument(f))
			}
		}
	}
	d.Set("originalSpec", value.NewDocument(user))
	return d.Doc()
}

// UserIndexSpec returns the reverse of BucketIndexSpec.
func UserIndexSpec(ts *SeriesOptions, spec []byte) []byte {
	if o := value.Lookup(spec, "originalSpec"); o.T == value.Document {
		d := IndexDocOf(o.Doc())
		d.Set("hidden", value.Lookup(spec, "hidden"))
		return d.Doc()
	}
	var f []value.Field
	for k, v := range value.Elements(value.Lookup(spec, "key").Doc()) {
		switch name, isMin := strings.CutPrefix(k, "control.min."); {
		case isMin:
			f = append(f, value.F(name, v))
		case strings.HasPrefix(k, "control.max."):
		default:
			f = append(f, value.F(ts.MetaField+strings.TrimPrefix(k, "meta"), v))
		}
	}
	d := IndexDocOf(spec)
	d.Set("key", value.NewDocument(value.Doc(f...)))
	return d.Doc()
}

// OnlyMeta reports whether there is a filter that reads only the MetaField.
func (t *SeriesOptions) OnlyMeta(filter value.Value) bool {
	for k, v := range value.Elements(filter.Doc()) {
		if k == "$and" || k == "$or" {
			for _, e := range value.Values(v.Doc()) {
				if !t.OnlyMeta(e) {
					return false
				}
			}
			continue
		}
		rest, ok := strings.CutPrefix(k, t.MetaField)
		if !ok || t.MetaField == "" || rest != "" && rest[0] != '.' {
			return false
		}
	}
	return !EmptyDoc(filter)
}

// IndexDoc is an index's specification while it is changed; the order of its fields is kept.
type IndexDoc struct{ fields []value.Field }

func IndexDocOf(raw []byte) *IndexDoc {
	d := &IndexDoc{}
	for k, v := range value.Elements(raw) {
		d.fields = append(d.fields, value.F(k, v))
	}
	return d
}

func (d *IndexDoc) Set(name string, v value.Value) {
	for i := range d.fields {
		if d.fields[i].Key == name {
			d.fields[i].Val = v
			return
		}
	}
	d.fields = append(d.fields, value.F(name, v))
}

// Flag sets an option that is omitted if it is false.
func (d *IndexDoc) Flag(name string, on bool) {
	if on {
		d.Set(name, value.NewBool(true))
	} else {
		d.Set(name, value.Value{})
	}
}

func (d *IndexDoc) Doc() []byte { return value.Doc(d.fields...) }
