package namespace

import (
	"bytes"

	"github.com/shoaldb/shoal/query/value"
)

// optionOrder is the order in which a collection's options are stored and shown.
var optionOrder = []string{
	"capped", "size", "max", "temp", "recordIdsReplicated", "changeStreamPreAndPostImages", "storageEngine", "validator",
	"validationLevel", "validationAction", "indexOptionDefaults", "viewOn", "pipeline", "collation", "clusteredIndex",
	"expireAfterSeconds", "timeseries", "encryptedFields",
}

// Options are a collection's options, to be read from or made into their document.
type Options map[string]value.Value

// OptionsOf reads the document of a catalog entry.
func OptionsOf(doc []byte) Options {
	o := Options{}
	for k, v := range value.Elements(doc) {
		o[k] = v
	}
	return o
}

// Set sets an option; a Missing value removes it.
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

// SameOptions compares two documents of options as create does for a collection that exists.
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

// EmptyDoc reports whether an argument is missing or a document without fields.
func EmptyDoc(v value.Value) bool { return len(v.Doc()) <= 5 }
