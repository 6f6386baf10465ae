package jsonschema

import "github.com/shoaldb/shoal/wire/mongoerr"

// Schema is a compiled schema.
type Schema struct{ raw []byte }

// Compile parses a schema.
func Compile(doc []byte) (*Schema, error) {
	return nil, mongoerr.New(mongoerr.NotImplemented, "$jsonSchema is not implemented yet")
}

// Match reports whether a document satisfies the schema.
func (s *Schema) Match(doc []byte) bool { return false }

// Document is the schema as written.
func (s *Schema) Document() []byte { return s.raw }
