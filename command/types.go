package command

import "github.com/shoaldb/shoal/query/value"

// Accepts reports whether a value of type vt is in t; documents inside arguments are checked with it.
func (t Types) Accepts(vt value.Type) bool { return t.accepts(vt) }
