package jsonschema

import (
	"math"

	"github.com/shoaldb/shoal/query/regex"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxDepth limits the nesting of schemas.
const maxDepth = 150

// keyword reads one keyword of a schema.
type keyword func(p *parser, s *Schema, name string, v value.Value) error

var keywords map[string]keyword

func init() {
	keywords = map[string]keyword{
		"title": ignoreText, "description": ignoreText,
		"type": readType, "bsonType": readType, "enum": readEnum,
		"minimum": readMinimum, "maximum": readMaximum, "exclusiveMinimum": readExclusive, "exclusiveMaximum": readExclusive,
		"multipleOf": readMultipleOf,
		"minLength":  readSize, "maxLength": readSize, "pattern": readPattern,
		"minItems": readSize, "maxItems": readSize, "uniqueItems": readUnique, "items": readItems, "additionalItems": readAdditionalItems,
		"minProperties": readSize, "maxProperties": readSize, "required": readRequired, "properties": readProperties,
		"patternProperties": readPatterns, "additionalProperties": readAdditionalProperties, "dependencies": readDependencies,
		"allOf": readSchemas, "anyOf": readSchemas, "oneOf": readSchemas, "not": readNot,
		"encrypt": readEncrypt, "encryptMetadata": readEncryptMetadata,
	}
}

// unsupported are keywords of the draft that the server refuses.
var unsupported = map[string]bool{"$ref": true, "$schema": true, "default": true, "definitions": true, "format": true, "id": true}

type parser struct{ depth int }

// Compile parses a schema.
func Compile(doc []byte) (*Schema, error) {
	return (&parser{}).schema(append([]byte(nil), doc...))
}

func failed(format string, args ...any) error {
	return mongoerr.Newf(mongoerr.FailedToParse, format, args...)
}

func mistyped(name, want string) error {
	return mongoerr.Newf(mongoerr.TypeMismatch, "$jsonSchema keyword '%s' must be %s", name, want)
}

func (p *parser) schema(doc []byte) (*Schema, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, mongoerr.Newf(mongoerr.Overflow, "Maximum depth of nested $jsonSchema exceeded: %d", maxDepth)
	}
	defer func() { p.depth-- }()
	s := &Schema{raw: doc}
	s.text.min, s.text.max, s.array.min, s.array.max, s.object.min, s.object.max = -1, -1, -1, -1, -1, -1
	seen := map[string]bool{}
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		name := string(k)
		read, known := keywords[name]
		switch {
		case unsupported[name]:
			return nil, failed("$jsonSchema keyword '%s' is not currently supported", name)
		case !known:
			return nil, failed("Unknown $jsonSchema keyword: %s", name)
		case seen[name]:
			return nil, failed("Duplicate $jsonSchema keyword: %s", name)
		}
		seen[name] = true
		if err := read(p, s, name, v); err != nil {
			return nil, err
		}
	}
	return s, together(s, seen)
}

// together checks keywords that need or exclude each other.
func together(s *Schema, seen map[string]bool) error {
	switch {
	case seen["type"] && seen["bsonType"]:
		return failed("Cannot specify both $jsonSchema keywords 'type' and 'bsonType'")
	case seen["exclusiveMinimum"] && !seen["minimum"]:
		return failed("$jsonSchema keyword 'minimum' must be a present if exclusiveMinimum is present")
	case seen["exclusiveMaximum"] && !seen["maximum"]:
		return failed("$jsonSchema keyword 'maximum' must be a present if exclusiveMaximum is present")
	case s.encrypted && (seen["type"] || seen["bsonType"]):
		return failed("$jsonSchema keyword 'encrypt' cannot be used in conjunction with 'type' or 'bsonType'")
	}
	s.hasNums = seen["minimum"] || seen["maximum"] || seen["multipleOf"]
	return nil
}

func ignoreText(_ *parser, _ *Schema, name string, v value.Value) error {
	if v.T != value.String {
		return mistyped(name, "of type string")
	}
	return nil
}

// jsonTypes are the names that "type" accepts.
var jsonTypes = map[string]value.Type{
	"object": value.Document, "array": value.Array, "boolean": value.Boolean, "string": value.String, "null": value.Null,
}

func readType(_ *parser, s *Schema, name string, v value.Value) error {
	set := &value.TypeSet{}
	s.types, s.typeKeyword, s.typeArg = set, name, v
	if v.T == value.String {
		return addType(set, name, v)
	}
	if v.T != value.Array {
		return mistyped(name, "either a string or an array of strings")
	}
	vs := value.Values(v.Doc())
	if len(vs) == 0 {
		return failed("$jsonSchema keyword '%s' must name at least one type", name)
	}
	for i, e := range vs {
		if e.T != value.String {
			return mistyped(name, "either a string or an array of strings")
		}
		for _, before := range vs[:i] {
			if value.Equal(before, e) {
				return failed("$jsonSchema keyword '%s' has duplicate value: %s", name, e.Str())
			}
		}
		if err := addType(set, name, e); err != nil {
			return err
		}
	}
	return nil
}

func addType(set *value.TypeSet, keyword string, v value.Value) error {
	name := v.Str()
	if name == "integer" {
		return failed("$jsonSchema type 'integer' is not currently supported.")
	}
	if name == "number" {
		set.AddNumber()
		return nil
	}
	t, ok := jsonTypes[name], false
	if keyword == "bsonType" {
		t, ok = value.TypeByName(name)
	} else {
		_, ok = jsonTypes[name]
	}
	if !ok {
		return mongoerr.Newf(mongoerr.BadValue, "Unknown type name alias: %s", name)
	}
	set.Add(t)
	return nil
}

func readEnum(_ *parser, s *Schema, name string, v value.Value) error {
	if v.T != value.Array {
		return mistyped(name, "an array")
	}
	s.enum = value.Values(v.Doc())
	if len(s.enum) == 0 {
		return failed("$jsonSchema keyword 'enum' cannot be an empty array")
	}
	for i, e := range s.enum {
		if contains(s.enum[:i], e) {
			return failed("$jsonSchema keyword 'enum' array cannot contain duplicate values.")
		}
	}
	return nil
}

func readMinimum(_ *parser, s *Schema, name string, v value.Value) error {
	s.number.minimum = v
	return numeric(name, v)
}

func readMaximum(_ *parser, s *Schema, name string, v value.Value) error {
	s.number.maximum = v
	return numeric(name, v)
}

func numeric(name string, v value.Value) error {
	if !v.T.Numeric() {
		return mistyped(name, "a number")
	}
	return nil
}

func readExclusive(_ *parser, s *Schema, name string, v value.Value) error {
	if v.T != value.Boolean {
		return mistyped(name, "a boolean")
	}
	if name == "exclusiveMinimum" {
		s.number.exclusiveMin = v.Bool()
	} else {
		s.number.exclusiveMax = v.Bool()
	}
	return nil
}

func readMultipleOf(_ *parser, s *Schema, name string, v value.Value) error {
	if err := numeric(name, v); err != nil {
		return err
	}
	c, e, ok := decimalParts(v)
	if !ok || c.Sign() <= 0 {
		return failed("$jsonSchema keyword 'multipleOf' must have a positive value")
	}
	s.number.multipleOf, s.number.multipleC, s.number.multipleE = v, c, e
	return nil
}

func readSize(_ *parser, s *Schema, name string, v value.Value) error {
	if !v.T.Numeric() {
		return failed("Expected a number in: %s", value.ShowElement(name, v))
	}
	n, ok := v.AsInt64()
	switch {
	case !ok:
		return failed("Expected an integer: %s", value.ShowElement(name, v))
	case n < 0:
		return failed("Expected a non-negative number in: %s", value.ShowElement(name, v))
	}
	n = min(n, math.MaxInt64)
	switch name {
	case "minLength":
		s.text.min = n
	case "maxLength":
		s.text.max = n
	case "minItems":
		s.array.min = n
	case "maxItems":
		s.array.max = n
	case "minProperties":
		s.object.min = n
	case "maxProperties":
		s.object.max = n
	}
	return nil
}

func readPattern(_ *parser, s *Schema, name string, v value.Value) (err error) {
	if v.T != value.String {
		return mistyped(name, "a string")
	}
	if s.text.pattern, err = regex.Compile(v.Str(), ""); err != nil {
		return mongoerr.New(51091, err.Error())
	}
	return nil
}

func readUnique(_ *parser, s *Schema, name string, v value.Value) error {
	if v.T != value.Boolean {
		return mistyped(name, "a boolean")
	}
	s.array.unique = v.Bool()
	return nil
}

func readItems(p *parser, s *Schema, name string, v value.Value) (err error) {
	switch v.T {
	case value.Document:
		s.array.items, err = p.schema(v.Doc())
		return err
	case value.Array:
		s.array.isTuple = true
		for i, e := range value.Values(v.Doc()) {
			if e.T != value.Document {
				return mongoerr.Newf(mongoerr.TypeMismatch, "$jsonSchema keyword 'items' requires that each element of the array is an object, but found a %s at index %d", e.T.Name(), i)
			}
			sub, err := p.schema(e.Doc())
			if err != nil {
				return err
			}
			s.array.tuple = append(s.array.tuple, sub)
		}
		return nil
	}
	return mistyped(name, "an array or an object")
}

func readAdditionalItems(p *parser, s *Schema, name string, v value.Value) (err error) {
	s.array.hasAdditional = true
	s.array.additional, s.array.noAdditional, err = p.additional(name, v)
	return err
}

func readAdditionalProperties(p *parser, s *Schema, name string, v value.Value) (err error) {
	s.object.hasAdditional = true
	s.object.additional, s.object.noAdditional, err = p.additional(name, v)
	return err
}

// additional reads true, false or a schema.
func (p *parser) additional(name string, v value.Value) (s *Schema, none bool, err error) {
	switch v.T {
	case value.Boolean:
		return nil, !v.Bool(), nil
	case value.Document:
		s, err = p.schema(v.Doc())
		return s, false, err
	}
	return nil, false, mistyped(name, "either an object or a boolean")
}

func readRequired(_ *parser, s *Schema, name string, v value.Value) (err error) {
	s.object.required, err = names(name, v)
	return err
}

// names reads a non-empty array of distinct strings.
func names(keyword string, v value.Value) (out []string, err error) {
	if v.T != value.Array {
		return nil, mistyped(keyword, "an array")
	}
	seen := map[string]bool{}
	for _, e := range value.Values(v.Doc()) {
		if e.T != value.String {
			return nil, mongoerr.Newf(mongoerr.TypeMismatch, "$jsonSchema keyword '%s' must be an array of strings, but found an element of type: %s", keyword, e.T.Name())
		}
		if seen[e.Str()] {
			return nil, failed("$jsonSchema keyword '%s' array cannot contain duplicate values", keyword)
		}
		seen[e.Str()] = true
		out = append(out, e.Str())
	}
	if len(out) == 0 {
		return nil, failed("$jsonSchema keyword '%s' cannot be an empty array", keyword)
	}
	return out, nil
}

func readProperties(p *parser, s *Schema, name string, v value.Value) error {
	if v.T != value.Document {
		return mistyped(name, "an object")
	}
	s.object.byName = map[string]*Schema{}
	for it := value.Walk(v.Doc()); ; {
		k, e, ok := it.Next()
		if !ok {
			return nil
		}
		if e.T != value.Document {
			return mongoerr.Newf(mongoerr.TypeMismatch, "Nested schema for $jsonSchema property '%s' must be an object", k)
		}
		sub, err := p.schema(e.Doc())
		if err != nil {
			return err
		}
		s.object.properties = append(s.object.properties, property{string(k), sub})
		s.object.byName[string(k)] = sub
	}
}

func readPatterns(p *parser, s *Schema, name string, v value.Value) error {
	if v.T != value.Document {
		return mistyped(name, "an object")
	}
	for it := value.Walk(v.Doc()); ; {
		k, e, ok := it.Next()
		if !ok {
			return nil
		}
		if e.T != value.Document {
			return mongoerr.Newf(mongoerr.TypeMismatch, "$jsonSchema keyword 'patternProperties' has property '%s' which is not an object", k)
		}
		re, err := regex.Compile(string(k), "")
		if err != nil {
			return mongoerr.Newf(mongoerr.BadValue, "$jsonSchema keyword 'patternProperties' has an invalid regular expression '%s': %s", k, err)
		}
		sub, err := p.schema(e.Doc())
		if err != nil {
			return err
		}
		s.object.patterns = append(s.object.patterns, pattern{re, sub})
	}
}

func readDependencies(p *parser, s *Schema, name string, v value.Value) error {
	if v.T != value.Document {
		return mistyped(name, "an object")
	}
	for it := value.Walk(v.Doc()); ; {
		k, e, ok := it.Next()
		if !ok {
			return nil
		}
		d := dependency{name: string(k)}
		var err error
		switch e.T {
		case value.Document:
			d.schema, err = p.schema(e.Doc())
		case value.Array:
			d.fields, err = names(name, e)
		default:
			err = mongoerr.Newf(mongoerr.TypeMismatch, "$jsonSchema keyword 'dependencies' requires that each dependency is either an object or an array, but found property '%s' of type %s", k, e.T.Name())
		}
		if err != nil {
			return err
		}
		s.object.dependencies = append(s.object.dependencies, d)
	}
}

func readSchemas(p *parser, s *Schema, name string, v value.Value) error {
	if v.T != value.Array {
		return mistyped(name, "an array")
	}
	list := []*Schema{}
	for _, e := range value.Values(v.Doc()) {
		if e.T != value.Document {
			return mongoerr.Newf(mongoerr.TypeMismatch, "$jsonSchema keyword '%s' must be an array of objects, but found an element of type %s", name, e.T.Name())
		}
		sub, err := p.schema(e.Doc())
		if err != nil {
			return err
		}
		list = append(list, sub)
	}
	if len(list) == 0 {
		return mongoerr.Newf(mongoerr.BadValue, "$jsonSchema keyword '%s' must be a nonempty array", name)
	}
	switch name {
	case "allOf":
		s.allOf = list
	case "anyOf":
		s.anyOf = list
	default:
		s.oneOf = list
	}
	return nil
}

func readNot(p *parser, s *Schema, name string, v value.Value) (err error) {
	if v.T != value.Document {
		return mistyped(name, "an object")
	}
	s.not, err = p.schema(v.Doc())
	return err
}

func readEncrypt(_ *parser, s *Schema, name string, v value.Value) error {
	if v.T != value.Document {
		return mistyped(name, "an object")
	}
	s.encrypted = true
	return nil
}

func readEncryptMetadata(_ *parser, _ *Schema, name string, v value.Value) error {
	if v.T != value.Document {
		return mistyped(name, "an object")
	}
	if value.Count(v.Doc()) == 0 {
		return failed("$jsonSchema keyword 'encryptMetadata' cannot be empty")
	}
	return nil
}
