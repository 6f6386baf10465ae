package indexkey

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/keystring"
)

// Options is what a generator needs beyond the specification, which is pure data.
type Options struct {
	// Filter is the compiled partialFilterExpression; documents it refuses have no keys. Nil takes all.
	Filter func(doc []byte) (bool, error)
	// Collator is made from the specification's collation; nil compares strings bytewise.
	Collator value.Collator
}

// Generator makes the keys of documents in one index. It holds no state of a document and may be shared.
type Generator struct {
	spec *Spec
	opts Options
	ord  keystring.Ordering
}

// NewGenerator compiles a specification.
func NewGenerator(spec *Spec, opts Options) (*Generator, error) {
	return &Generator{spec: spec, opts: opts, ord: spec.Ordering()}, nil
}

// Keys replaces the content of dst by the keys of doc.
func (g *Generator) Keys(doc []byte, dst *KeySet) error {
	dst.Reset()
	for _, f := range g.spec.Fields {
		v := value.Lookup(doc, f.Path)
		if v.T == value.Missing {
			v = value.NewNull()
		}
		key, tb := keystring.Append(nil, nil, v, f.Desc, g.opts.Collator)
		dst.add(key, tb)
	}
	return nil
}
