package collation

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Spec is a validated collation. The zero Spec is the simple collation: bytes.
type Spec struct {
	Locale string
}

// Parse validates a collation document. An empty document and {locale: "simple"} give the simple collation (nil).
func Parse(doc []byte) (*Spec, error) {
	return nil, mongoerr.New(mongoerr.NotImplemented, "collations are not implemented yet")
}

// Document is the full form of the specification; nil for the simple collation.
func (s *Spec) Document() []byte { return nil }

// Collator gives the order; nil for the simple collation.
func (s *Spec) Collator() value.Collator { return nil }

// Equal reports whether two specifications are the same collation; nil stands for simple.
func (s *Spec) Equal(t *Spec) bool { return s == t || s != nil && t != nil && *s == *t }
