package indexkey

import (
	"math"
	"strconv"

	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Context has what the validity of a specification depends on besides its content.
type Context struct {
	// DefaultCollation is the collection's; indexes that name none inherit it. Nil for simple.
	DefaultCollation []byte
	// Quote makes an error name the specification that it is about, as createIndexes does for each element of its list.
	Quote bool
}

// optionKind is the type that an option's value must have.
type optionKind uint8

const (
	document optionKind = iota + 1
	text
	boolean // bool only
	boolish // bool or any number
	number
	anything // checked where it is used
	ignored  // accepted from old clients and dropped
)

// options are the fields an index specification may have.
var options = map[string]optionKind{
	"key": document, "name": text, "v": number, "unique": boolish, "sparse": boolish, "hidden": boolean, "prepareUnique": boolish,
	"background": boolish, "expireAfterSeconds": anything, "partialFilterExpression": document, "collation": document,
	"wildcardProjection": document, "storageEngine": document, "weights": anything, "default_language": text, "language_override": text,
	"textIndexVersion": number, "2dsphereIndexVersion": number, "bits": number, "min": number, "max": number,
	"coarsestIndexedLevel": number, "finestIndexedLevel": number, "bucketSize": number, "ns": ignored, "dropDups": ignored,
	"clustered": boolish,
}

// idOptions are those that an index on {_id: 1} may have.
var idOptions = map[string]bool{"key": true, "name": true, "v": true, "ns": true, "collation": true, "clustered": true, "background": true}

func cannot(format string, args ...any) error {
	return mongoerr.Newf(mongoerr.CannotCreateIndex, format, args...)
}

// ValidateSpec checks one specification of createIndexes and returns its normalised form.
func ValidateSpec(raw []byte, ctx Context) (*Spec, error) {
	spec, err := readSpec(raw)
	if err != nil {
		return nil, ctx.quote(raw, err)
	}
	if err := checkID(spec, raw); err != nil {
		return nil, err
	}
	if spec.Name == "" {
		return nil, ctx.quote(versioned(raw), cannot("index name cannot be empty"))
	}
	for _, check := range []func(*Spec, []byte) error{checkKinds, checkTTL} {
		if err := check(spec, raw); err != nil {
			return nil, err
		}
	}
	if err := checkPartial(spec, raw); err != nil {
		return nil, ctx.quote(versioned(raw), err)
	}
	for _, check := range []func(*Spec, []byte) error{checkWildcard, checkText, checkGeo} {
		if err := check(spec, raw); err != nil {
			return nil, err
		}
	}
	coll, err := effectiveCollation(spec, ctx)
	if err != nil {
		return nil, err
	}
	return normalise(spec, raw, coll)
}

// readSpec checks the fields of a specification one by one, and the key pattern.
func readSpec(raw []byte) (*Spec, error) {
	if err := checkOptions(raw); err != nil {
		return nil, err
	}
	key := value.Lookup(raw, "key")
	if key.T == value.Missing {
		return nil, mongoerr.New(mongoerr.FailedToParse, "The 'key' field is a required property of an index specification")
	}
	if err := checkKeyPattern(key.Doc()); err != nil {
		return nil, err
	}
	if value.Lookup(raw, "name").T == value.Missing {
		return nil, mongoerr.New(mongoerr.FailedToParse, "The 'name' field is a required property of an index specification")
	}
	spec, _ := ParseSpec(raw)
	return spec, checkVersion(spec, raw)
}

// quote puts the specification before an error about it.
func (c Context) quote(raw []byte, err error) error {
	if !c.Quote || mongoerr.CodeOf(err) == tooManyFields {
		return err
	}
	return mongoerr.From(err).Prefix("Error in specification " + bsontext.Doc(raw) + " :: caused by :: ")
}

// versioned returns the specification with the version that it gets when it names none, as the errors of later checks show it.
func versioned(raw []byte) []byte {
	if value.Lookup(raw, "v").T != value.Missing {
		return raw
	}
	var fields []value.Field
	for k, v := range value.Elements(raw) {
		fields = append(fields, value.F(k, v))
	}
	return value.Doc(append(fields, value.F("v", value.NewInt32(2)))...)
}

func checkOptions(raw []byte) error {
	for k, v := range value.Elements(raw) {
		kind, ok := options[k]
		if !ok {
			return mongoerr.Newf(mongoerr.InvalidIndexSpecificationOption,
				"The field '%s' is not valid for an index specification. Specification: %s", k, bsontext.Doc(raw))
		}
		want, good := "", true
		switch kind {
		case document:
			want, good = "an object", v.T == value.Document
		case text:
			want, good = "a string", v.T == value.String
		case boolean:
			want, good = "a boolean", v.T == value.Boolean
		case boolish:
			if v.T != value.Boolean && !v.T.Numeric() { // the quotation mark is not closed on the real server either
				return mongoerr.Newf(mongoerr.TypeMismatch, "The field '%s has value %s, which is not convertible to bool", k, k+": "+bsontext.Value(v))
			}
		case number:
			want, good = "a number", v.T.Numeric()
		}
		if !good {
			return mongoerr.Newf(mongoerr.TypeMismatch, "The field '%s' must be %s, but got %s", k, want, v.T.Name())
		}
		if k == "collation" && value.Count(v.Doc()) == 0 {
			return mongoerr.New(mongoerr.BadValue, "The field 'collation' cannot be an empty object.")
		}
	}
	return nil
}

// checkID restricts an index on _id to its few options.
func checkID(s *Spec, raw []byte) error {
	if len(s.Fields) == 1 && s.Fields[0].Path == "_id" && s.Fields[0].Kind == BTree && !s.IsID {
		return mongoerr.Newf(mongoerr.BadValue, "The field 'key' for an _id index must be {_id: 1}, but got %s", bsontext.Doc(s.KeyPattern))
	}
	if !s.IsID {
		if s.Name == "_id_" {
			return mongoerr.Newf(mongoerr.BadValue,
				"The index name '_id_' is reserved for the _id index, which must have key pattern {_id: 1}, found key: %s", bsontext.Doc(s.KeyPattern))
		}
		return nil
	}
	for k := range value.Elements(raw) {
		if !idOptions[k] {
			return mongoerr.Newf(mongoerr.InvalidIndexSpecificationOption,
				"The field '%s' is not valid for an _id index specification. Specification: %s", k, bsontext.Doc(versioned(raw)))
		}
	}
	return nil
}

func checkVersion(s *Spec, raw []byte) error {
	v := value.Lookup(raw, "v")
	if v.T == value.Missing {
		return nil
	}
	n, ok := v.AsInt64()
	if !ok || n != int64(int32(n)) {
		return mongoerr.Newf(mongoerr.BadValue, "Index version must be representable as a 32-bit integer, but got %s", bsontext.Value(v))
	}
	if n != 2 && (n != 1 || s.Kind == Wildcard || s.Collation != nil) {
		return cannot("Invalid index specification %s; cannot create an index with v=%d", bsontext.Doc(raw), n)
	}
	return nil
}

// checkKinds rejects options that do not apply to the kind of index.
func checkKinds(s *Spec, raw []byte) error {
	if s.Kind == Hashed && s.Unique {
		return mongoerr.New(16764, "Currently hashed indexes cannot guarantee uniqueness. Use a regular index.")
	}
	if s.Kind == Wildcard {
		for _, o := range []string{"sparse", "unique", "expireAfterSeconds", "prepareUnique"} {
			if v := value.Lookup(raw, o); v.T != value.Missing && (o == "expireAfterSeconds" || v.Truthy()) {
				return cannot("Index type 'wildcard' does not support the '%s' option", o)
			}
		}
	}
	if s.Kind != Wildcard && s.WildcardProjection != nil {
		return mongoerr.New(mongoerr.BadValue, "The field 'wildcardProjection' is only allowed in an 'wildcard' index")
	}
	if s.Kind != Text && value.Lookup(raw, "weights").T != value.Missing {
		return cannot("the field 'weights' can only be specified with text indexes")
	}
	return nil
}

func checkTTL(s *Spec, raw []byte) error {
	v := s.ExpireAfterSeconds
	if v.T == value.Missing {
		return nil
	}
	const option = "TTL index 'expireAfterSeconds' option"
	why := ""
	switch f := v.AsFloat64(); {
	case !v.T.Numeric():
		why = option + " must be numeric, but received a type of '" + v.T.Name() // the quotation mark is not closed on the real server either
	case f != f:
		why = option + " must not be NaN"
	case f < 0:
		why = option + " cannot be less than 0"
	case f > math.MaxInt32:
		why = "TTL index 'expireAfterSeconds' must be within the range of a 32-bit integer"
	case len(s.Fields) != 1:
		return cannot("TTL indexes are single-field indexes, compound indexes do not support TTL. Index spec: %s", bsontext.Doc(raw))
	default:
		return nil
	}
	return cannot(". Index spec: %s :: caused by :: %s", bsontext.Doc(raw), why)
}

// effectiveCollation returns the complete collation of an index, nil for simple.
func effectiveCollation(s *Spec, ctx Context) ([]byte, error) {
	coll := ctx.DefaultCollation
	if s.Collation != nil {
		c, err := collation.Parse(s.Collation)
		if err != nil {
			return nil, err
		}
		coll = nil
		if c != nil {
			coll = c.Document()
		}
	}
	if coll != nil && s.Kind == Text {
		return nil, cannot("text indexes only support the simple binary collation. Index spec: %s", bsontext.Doc(s.Raw))
	}
	if coll != nil && s.Kind == Geo2D {
		return nil, cannot("2d indexes only support the simple binary collation. Index spec: %s", bsontext.Doc(s.Raw))
	}
	return coll, nil
}

// normalise writes the specification as listIndexes shows it and parses the result.
func normalise(s *Spec, raw, coll []byte) (*Spec, error) {
	name := s.Name
	if s.IsID {
		name = "_id_"
	}
	version := value.NewInt32(2)
	if v, ok := value.Lookup(raw, "v").AsInt64(); ok {
		version = value.NewInt32(int32(v))
	}
	dst, mark := value.Begin(nil)
	dst = value.Append(dst, "v", version)
	dst = value.Append(dst, "key", value.NewDocument(storedKey(s)))
	dst = value.Append(dst, "name", value.NewString(name))
	for k, v := range value.Elements(raw) {
		switch options[k] {
		case boolean, boolish:
			if k == "hidden" && !v.Truthy() {
				continue
			}
			v = value.NewBool(v.Truthy())
		case ignored:
			continue
		}
		switch k {
		case "v", "key", "name", "collation", "weights", "default_language", "language_override", "textIndexVersion", "2dsphereIndexVersion":
			continue
		case "expireAfterSeconds":
			v = value.NewInt32(int32(v.AsFloat64()))
		case "bits":
			v = value.NewInt32(int32(v.AsFloat64()))
		}
		dst = value.Append(dst, k, v)
	}
	switch s.Kind {
	case Text:
		dst = appendTextOptions(dst, s, raw)
	case Sphere:
		version := value.Lookup(raw, "2dsphereIndexVersion")
		if version.T == value.Missing {
			version = value.NewInt32(3)
		}
		dst = value.Append(dst, "2dsphereIndexVersion", version)
	}
	if coll != nil {
		dst = value.Append(dst, "collation", value.NewDocument(coll))
	}
	return ParseSpec(value.End(dst, mark))
}

// DefaultName returns the name that drivers give an index on a key pattern: a_1_b_-1.
func DefaultName(key []byte) string {
	var b []byte
	for k, v := range value.Elements(key) {
		if b != nil {
			b = append(b, '_')
		}
		b = append(append(b, k...), '_')
		switch {
		case v.T == value.String:
			b = append(b, v.Bytes()...)
		case v.T.Numeric():
			b = strconv.AppendInt(b, int64(v.AsFloat64()), 10)
		}
	}
	return string(b)
}
