package namespace

import (
	"bytes"

	"github.com/shoaldb/shoal/query/value"
)

// optionOrder is the order in which a collection's options are kept and shown.
var optionOrder = []string{
	"capped", "size", "max", "temp", "recordIdsReplicated", "changeStreamPreAndPostImages", "storageEngine", "validator",
	"validationLevel", "validationAction", "indexOptionDefaults", "viewOn", "pipeline", "collation", "clusteredIndex",
	"expireAfterSeconds", "timeseries", "encryptedFields",
}

// Options are a collection's options on the way to or from their document.
type Options map[string]value.Value

// OptionsOf reads the document of a catalog entry.
func OptionsOf(doc []byte) Options {
	o := Options{}
	for k, v := range value.Elements(doc) {
		o[k] = v
	}
	return o
}

// Set puts an option in; a Missing value takes it out.
func (o Options) Set(name string, v value.Value) {
	if v.IsMissing() {
		delete(o, name)
		return
	}
	o[name] = v
}

// Doc returns the options' document, nil if there are none.
func (o Options) Doc() []byte {
	if len(o) == 0 {
		return nil
	}
	dst, m := value.Begin(nil)
	for _, k := range optionOrder {
		dst = value.Append(dst, k, o[k])
	}
	return value.End(dst, m)
}

// SameOptions compares two documents of options as creating a collection twice does.
func SameOptions(a, b []byte) bool {
	x, y := OptionsOf(a), OptionsOf(b)
	for _, o := range []Options{x, y} {
		delete(o, "temp")
		if v, ok := o["collation"]; ok && value.Lookup(v.Doc(), "locale").Str() == "simple" {
			delete(o, "collation")
		}
	}
	return bytes.Equal(x.Doc(), y.Doc())
}

// EmptyDoc is true for an argument that is not there or is a document without fields.
func EmptyDoc(v value.Value) bool { return len(v.Doc()) <= 5 }
