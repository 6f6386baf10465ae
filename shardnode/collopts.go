package shardnode

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

// collOptions are a collection's options on the way to or from their document.
type collOptions map[string]value.Value

// optionsOf reads the document of a catalog entry.
func optionsOf(doc []byte) collOptions {
	o := collOptions{}
	for k, v := range value.Elements(doc) {
		o[k] = v
	}
	return o
}

// set puts an option in; a Missing value takes it out.
func (o collOptions) set(name string, v value.Value) {
	if v.IsMissing() {
		delete(o, name)
		return
	}
	o[name] = v
}

// doc is the options' document, nil where there are none.
func (o collOptions) doc() []byte {
	if len(o) == 0 {
		return nil
	}
	dst, m := value.Begin(nil)
	for _, k := range optionOrder {
		dst = value.Append(dst, k, o[k])
	}
	return value.End(dst, m)
}

// sameOptionDocs compares two documents of options as creating a collection twice does.
func sameOptionDocs(a, b []byte) bool {
	x, y := optionsOf(a), optionsOf(b)
	for _, o := range []collOptions{x, y} {
		delete(o, "temp")
		if v, ok := o["collation"]; ok && value.Lookup(v.Doc(), "locale").Str() == "simple" {
			delete(o, "collation")
		}
	}
	return bytes.Equal(x.doc(), y.doc())
}

// emptyDoc is true for an argument that is not there or is a document without fields.
func emptyDoc(v value.Value) bool { return len(v.Doc()) <= 5 }
