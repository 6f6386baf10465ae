package timeseries

import "github.com/shoaldb/shoal/query/value"

// Schema holds the kinds of the fields of a bucket's measurements. The real server begins a new bucket where a field of a
// measurement is of another kind (number, string, array …) than the same field of those before it, so that control.min and
// control.max bound all values of the field. The zero Schema has no fields.
type Schema struct {
	fields map[string]*kindOf
}

// kindOf describes one field of a Schema.
type kindOf struct {
	t      value.Type         // a type of the kind
	fields map[string]*kindOf // of a document by name, of an array by index
}

// Takes adds the fields of a measurement, unless one is of another kind than the Schema's.
func (s *Schema) Takes(f Fields, doc []byte) bool {
	for k, v := range value.Elements(doc) {
		if (f.Meta == "" || k != f.Meta) && !s.fields[k].fits(v) {
			return false
		}
	}
	for k, v := range value.Elements(doc) {
		if f.Meta == "" || k != f.Meta {
			s.fields = put(s.fields, k, v)
		}
	}
	return true
}

func (k *kindOf) fits(v value.Value) bool {
	if k == nil {
		return true
	}
	if !value.SameKind(k.t, v.T) {
		return false
	}
	if v.T == value.Document || v.T == value.Array {
		for name, inner := range value.Elements(v.Doc()) {
			if !k.fields[name].fits(inner) {
				return false
			}
		}
	}
	return true
}

func put(fields map[string]*kindOf, name string, v value.Value) map[string]*kindOf {
	k := fields[name]
	if k == nil {
		k = &kindOf{t: v.T}
		if fields == nil {
			fields = map[string]*kindOf{}
		}
		fields[name] = k
	}
	if v.T == value.Document || v.T == value.Array {
		for inner, v := range value.Elements(v.Doc()) {
			k.fields = put(k.fields, inner, v)
		}
	}
	return fields
}

// SchemaOf returns the Schema of a bucket from its control document. ok is false if a field's values are of different kinds.
func SchemaOf(bucket []byte) (s Schema, ok bool) {
	control := value.Lookup(bucket, "control").Doc()
	for _, bound := range []string{"min", "max"} {
		if !s.Takes(Fields{}, value.Lookup(control, bound).Doc()) {
			return s, false
		}
	}
	return s, true
}
