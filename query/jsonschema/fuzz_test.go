package jsonschema

import (
	"testing"

	"github.com/shoaldb/shoal/query/value/valuetest"
)

// FuzzSchema: no schema may do worse than fail, and every document that it rejects has an explanation.
func FuzzSchema(f *testing.F) {
	names := []string{"type", "bsonType", "properties", "patternProperties", "additionalProperties", "required", "items", "additionalItems", "minItems", "maxItems", "uniqueItems", "minimum",
		"maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern", "enum", "not", "allOf", "anyOf", "oneOf", "dependencies", "minProperties",
		"maxProperties", "title", "description", "encrypt", "encryptMetadata", "$ref", "default", "format", "a", "b"}
	f.Fuzz(func(t *testing.T, in []byte) {
		s, err := Compile(valuetest.NewGenerator(in, names).Doc())
		if err != nil {
			return
		}
		for _, d := range valuetest.Subjects() {
			if !matches(s, d) {
				s.Explain(d)
			}
		}
	})
}
