// Package jsonschema compiles $jsonSchema documents and validates raw documents against them.
package jsonschema
