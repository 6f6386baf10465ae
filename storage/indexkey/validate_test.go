package indexkey

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func TestValidateRefuses(t *testing.T) {
	for _, c := range []struct {
		spec string
		code mongoerr.Code
		msg  string // not compared where empty
	}{
		{`{"key":{"a":1}}`, mongoerr.FailedToParse, "The 'name' field is a required property of an index specification"},
		{`{"name":"x"}`, mongoerr.FailedToParse, "The 'key' field is a required property of an index specification"},
		{`{"key":{},"name":"x"}`, mongoerr.CannotCreateIndex, "Index keys cannot be empty."},
		{`{"key":{"a":1},"name":""}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":1},"name":5}`, mongoerr.TypeMismatch, "The field 'name' must be a string, but got int"},
		{`{"key":5,"name":"x"}`, mongoerr.TypeMismatch, "The field 'key' must be an object, but got int"},
		{`{"key":{"a":1},"name":"x","unknownOption":true}`, mongoerr.InvalidIndexSpecificationOption,
			`The field 'unknownOption' is not valid for an index specification. Specification: { key: { a: 1 }, name: "x", unknownOption: true }`},
		{`{"key":{"a":0},"name":"x"}`, mongoerr.CannotCreateIndex, "Values in the index key pattern cannot be 0."},
		{`{"key":{"a":{"$numberDouble":"NaN"}},"name":"x"}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":null},"name":"x"}`, mongoerr.CannotCreateIndex, "Values in v:2 index key pattern cannot be of type null. Only numbers > 0, numbers < 0, and strings are allowed."},
		{`{"key":{"a":"abc"},"name":"x"}`, mongoerr.CannotCreateIndex, "Unknown index plugin 'abc'"},
		{`{"key":{"a":"wildcard"},"name":"x"}`, 7246202, ""},
		{`{"key":{"a":"hashed","b":"hashed"},"name":"x"}`, 31303, ""},
		{`{"key":{"a":"hashed"},"name":"x","unique":true}`, 16764, "Currently hashed indexes cannot guarantee uniqueness. Use a regular index."},
		{`{"key":{"$a":1},"name":"x"}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a..b":1},"name":"x"}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"":1},"name":"x"}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"$**.a":1},"name":"x"}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a.$**.$**":1},"name":"x"}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"$**":"2d"},"name":"x"}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"$**":"wildcard"},"name":"x"}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"$**":1,"sub.$**":1},"name":"x"}`, 7246201, ""},
		{`{"key":{"$**":1,"a":1},"name":"x"}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"$**":1},"name":"x","unique":true}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"$**":1},"name":"x","expireAfterSeconds":3}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"$**":1},"name":"x","v":1}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"$**":1},"name":"x","wildcardProjection":{}}`, mongoerr.FailedToParse, ""},
		{`{"key":{"s.$**":1},"name":"x","wildcardProjection":{"a":1}}`, mongoerr.FailedToParse, ""},
		{`{"key":{"a":1},"name":"x","wildcardProjection":{"a":1}}`, mongoerr.BadValue, ""},
		{`{"key":{"$**":1},"name":"x","wildcardProjection":{"a":1,"b":0}}`, 31254, ""},
		{`{"key":{"$**":1},"name":"x","wildcardProjection":{"a":{"b":1,"c":0}}}`, 31254, ""},
		{`{"key":{"$**":1},"name":"x","wildcardProjection":{"a":1,"a.b":0}}`, 31249, ""},
		{`{"key":{"$**":1},"name":"x","wildcardProjection":{"a":"1"}}`, 51271, ""},
		{`{"key":{"a":1,"$**":1},"name":"x","wildcardProjection":{"b":0}}`, 7246209, ""},
		{`{"key":{"_id":-1},"name":"x"}`, mongoerr.BadValue, "The field 'key' for an _id index must be {_id: 1}, but got { _id: -1 }"},
		{`{"key":{"a":1},"name":"_id_"}`, mongoerr.BadValue, ""},
		{`{"key":{"_id":1},"name":"x","expireAfterSeconds":3}`, mongoerr.InvalidIndexSpecificationOption, ""},
		{`{"key":{"_id":1},"name":"x","hidden":true}`, mongoerr.InvalidIndexSpecificationOption, ""},
		{`{"key":{"a":1},"name":"x","hidden":1}`, mongoerr.TypeMismatch, ""},
		{`{"key":{"a":1},"name":"x","unique":"yes"}`, mongoerr.TypeMismatch, ""},
		{`{"key":{"a":1},"name":"x","expireAfterSeconds":"3"}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":1},"name":"x","expireAfterSeconds":null}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":1},"name":"x","expireAfterSeconds":-1}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":1},"name":"x","expireAfterSeconds":2147483648}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":1,"b":1},"name":"x","expireAfterSeconds":3}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":1},"name":"x","sparse":true,"partialFilterExpression":{"a":1}}`, mongoerr.CannotCreateIndex, `cannot mix "partialFilterExpression" and "sparse" options`},
		{`{"key":{"a":1},"name":"x","partialFilterExpression":{"$expr":true}}`, mongoerr.QueryFeatureNotAllowed, ""},
		{`{"key":{"a":1},"name":"x","partialFilterExpression":{"$where":"1"}}`, mongoerr.BadValue, ""},
		{`{"key":{"a":1},"name":"x","partialFilterExpression":{"a":{"$ne":5}}}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":1},"name":"x","partialFilterExpression":{"a":{"$regex":"^t"}}}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":1},"name":"x","partialFilterExpression":{"a":{"$exists":false}}}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":1},"name":"x","partialFilterExpression":{"$and":[]}}`, mongoerr.BadValue, ""},
		{`{"key":{"a":1},"name":"x","partialFilterExpression":{"a":{"$elemMatch":{"x":1}}}}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":1},"name":"x","collation":{}}`, mongoerr.BadValue, ""},
		{`{"key":{"a":1},"name":"x","collation":"en"}`, mongoerr.TypeMismatch, ""},
		{`{"key":{"a":1},"name":"x","weights":{"a":1}}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":"text","b":1,"c":"text"},"name":"x"}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":"text","l":"2dsphere"},"name":"x"}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":"text"},"name":"x","weights":{"a":0}}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":"text"},"name":"x","default_language":"klingon"}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":"text"},"name":"x","language_override":""}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":"text"},"name":"x","textIndexVersion":4}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":"2dsphere"},"name":"x","2dsphereIndexVersion":0}`, mongoerr.CannotCreateIndex, ""},
		{`{"key":{"a":"2d"},"name":"x","bits":33}`, mongoerr.InvalidOptions, ""},
		{`{"key":{"a":"2d"},"name":"x","min":10,"max":10}`, mongoerr.InvalidOptions, ""},
	} {
		_, err := ValidateSpec(valuetest.Doc(t, c.spec), Context{})
		if mongoerr.CodeOf(err) != c.code || c.msg != "" && mongoerr.From(err).Message != c.msg {
			t.Errorf("%s: %v, want %d %s", c.spec, err, c.code, c.msg)
		}
	}
}

func TestNormalise(t *testing.T) {
	for spec, want := range map[string]string{
		`{"name":"x","key":{"a":1},"sparse":1,"hidden":false,"background":true}`: `{ v: 2, key: { a: 1 }, name: "x", sparse: true, background: true }`,
		`{"name":"_id_1","key":{"_id":1}}`:                                       `{ v: 2, key: { _id: 1 }, name: "_id_" }`,
		`{"name":"x","key":{"a":1},"expireAfterSeconds":{"$numberLong":"60"}}`:   `{ v: 2, key: { a: 1 }, name: "x", expireAfterSeconds: 60 }`,
		`{"name":"x","key":{"b":1,"t":"text","u":"text"},"weights":{"t":3}}`: `{ v: 2, key: { b: 1, _fts: "text", _ftsx: 1 }, name: "x", ` +
			`weights: { t: 3, u: 1 }, default_language: "english", language_override: "language", textIndexVersion: 3 }`,
		`{"name":"x","key":{"a":1},"partialFilterExpression":{"$or":[{"a":{"$gt":5}},{"b":{"$in":[1,2]}},{"c":{"$exists":true}}]}}`: `{ v: 2, key: { a: 1 }, name: "x", ` +
			`partialFilterExpression: { $or: [ { a: { $gt: 5 } }, { b: { $in: [ 1, 2 ] } }, { c: { $exists: true } } ] } }`,
		`{"name":"x","key":{"p":"2dsphere"}}`:                `{ v: 2, key: { p: "2dsphere" }, name: "x", 2dsphereIndexVersion: 3 }`,
		`{"name":"x","key":{"p":"2d"},"min":-1,"bits":20.0}`: `{ v: 2, key: { p: "2d" }, name: "x", min: -1, bits: 20 }`,
	} {
		s, err := ValidateSpec(valuetest.Doc(t, spec), Context{})
		if err != nil {
			t.Errorf("%s: %v", spec, err)
		} else if got := bsontext.Doc(s.Raw); got != want {
			t.Errorf("%s:\n got %s\nwant %s", spec, got, want)
		}
	}
}

func TestConflict(t *testing.T) {
	for _, c := range []struct {
		have, want string
		exists     bool
		code       mongoerr.Code
	}{
		{`{"key":{"a":1},"name":"a_1"}`, `{"key":{"a":1.0},"name":"a_1"}`, true, 0},
		{`{"key":{"a":1},"name":"a_1"}`, `{"key":{"a":1},"name":"other"}`, false, mongoerr.IndexOptionsConflict},
		{`{"key":{"a":1},"name":"a_1"}`, `{"key":{"b":1},"name":"a_1"}`, false, mongoerr.IndexKeySpecsConflict},
		{`{"key":{"a":1},"name":"a_1"}`, `{"key":{"a":-1},"name":"a_1"}`, false, mongoerr.IndexKeySpecsConflict},
		{`{"key":{"a":1},"name":"a_1"}`, `{"key":{"a":-1},"name":"a_-1"}`, false, 0},
		{`{"key":{"a":1},"name":"a_1"}`, `{"key":{"a":1},"name":"a_1","unique":true}`, false, mongoerr.IndexKeySpecsConflict},
		{`{"key":{"a":1},"name":"a_1"}`, `{"key":{"a":1},"name":"u","unique":true}`, false, 0},
		{`{"key":{"a":1},"name":"a_1"}`, `{"key":{"a":1},"name":"a_1","hidden":true}`, false, mongoerr.IndexOptionsConflict},
		{`{"key":{"a":1},"name":"a_1"}`, `{"key":{"a":1},"name":"t","expireAfterSeconds":3}`, false, mongoerr.IndexOptionsConflict},
		{`{"key":{"a":"text"},"name":"t"}`, `{"key":{"b":"text"},"name":"t"}`, false, mongoerr.IndexOptionsConflict},
		{`{"key":{"a":"text"},"name":"t"}`, `{"key":{"a":"text"},"name":"t"}`, true, 0},
		{`{"key":{"a":1},"name":"x","partialFilterExpression":{"a":1,"b":2}}`, `{"key":{"a":1},"name":"x","partialFilterExpression":{"$and":[{"b":2},{"a":1}]}}`, true, 0},
		{`{"key":{"_id":1},"name":"_id_"}`, `{"key":{"_id":1},"name":"mine"}`, true, 0},
		{`{"key":{"a":1,"$**":1},"name":"x","wildcardProjection":{"a":0}}`, `{"key":{"a":1,"$**":1},"name":"y","wildcardProjection":{"a":0}}`, false, mongoerr.IndexOptionsConflict},
	} {
		have, err := ValidateSpec(valuetest.Doc(t, c.have), Context{})
		if err != nil {
			t.Fatal(err)
		}
		want, err := ValidateSpec(valuetest.Doc(t, c.want), Context{})
		if err != nil {
			t.Fatal(err)
		}
		exists, err := Conflict(want, []*Spec{have})
		if exists != c.exists || mongoerr.CodeOf(err) != c.code {
			t.Errorf("%s beside %s: %v %v", c.want, c.have, exists, err)
		}
	}
}

// TestConflictsAreShownAsCatalogued checks the order of a specification in the error about it.
func TestConflictsAreShownAsCatalogued(t *testing.T) {
	var specs []*Spec
	for _, raw := range []string{`{"key":{"a":1},"name":"a_1","unique":true}`, `{"key":{"a":1},"name":"a_1","unique":true,"sparse":true}`} {
		s, err := ValidateSpec(valuetest.Doc(t, raw), Context{})
		if err != nil {
			t.Fatal(err)
		}
		specs = append(specs, s)
	}
	_, err := Conflict(specs[1], specs[:1])
	want := `Requested index: { v: 2, unique: true, key: { a: 1 }, name: "a_1", sparse: true }, existing index: { v: 2, unique: true, key: { a: 1 }, name: "a_1" }`
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v\nwant %s", err, want)
	}
}

func TestDefaultName(t *testing.T) {
	if got := DefaultName(valuetest.Doc(t, `{"a":1,"b.c":-1.0,"d":"hashed"}`)); got != "a_1_b.c_-1_d_hashed" {
		t.Error(got)
	}
}

// TestErrorsQuoteTheSpecification checks the errors of createIndexes: which of them begin with the specification, and whether
// it has its version by then.
func TestErrorsQuoteTheSpecification(t *testing.T) {
	var many []string
	for i := range maxKeyFields + 1 {
		many = append(many, fmt.Sprintf(`"f%d":1`, i))
	}
	for _, c := range []struct {
		spec string
		code mongoerr.Code
		msg  string
	}{
		{`{"name":"x"}`, mongoerr.FailedToParse, `Error in specification { name: "x" } :: caused by :: The 'key' field is a required property of an index specification`},
		{`{"key":{"a":1}}`, mongoerr.FailedToParse, `Error in specification { key: { a: 1 } } :: caused by :: The 'name' field is a required property of an index specification`},
		{`{"key":{},"name":"x"}`, mongoerr.CannotCreateIndex, `Error in specification { key: {}, name: "x" } :: caused by :: Index keys cannot be empty.`},
		{`{"key":{"a":0},"name":"x"}`, mongoerr.CannotCreateIndex, `Error in specification { key: { a: 0 }, name: "x" } :: caused by :: Values in the index key pattern cannot be 0.`},
		{`{"key":{"a":"abc"},"name":"x"}`, mongoerr.CannotCreateIndex, `Error in specification { key: { a: "abc" }, name: "x" } :: caused by :: Unknown index plugin 'abc'`},
		{`{"key":null,"name":"i"}`, mongoerr.TypeMismatch, `Error in specification { key: null, name: "i" } :: caused by :: The field 'key' must be an object, but got null`},
		{`{"key":{"v":1},"name":"u","unique":{}}`, mongoerr.TypeMismatch, `Error in specification { key: { v: 1 }, name: "u", unique: {} } :: caused by :: The field 'unique has value unique: {}, which is not convertible to bool`},
		{`{"key":{"a":1},"name":"x","odd":1}`, mongoerr.InvalidIndexSpecificationOption,
			`Error in specification { key: { a: 1 }, name: "x", odd: 1 } :: caused by :: The field 'odd' is not valid for an index specification. Specification: { key: { a: 1 }, name: "x", odd: 1 }`},
		{`{"key":{"a":1},"name":"x","v":3}`, mongoerr.CannotCreateIndex,
			`Error in specification { key: { a: 1 }, name: "x", v: 3 } :: caused by :: Invalid index specification { key: { a: 1 }, name: "x", v: 3 }; cannot create an index with v=3`},
		{`{"key":{"v":-1},"name":""}`, mongoerr.CannotCreateIndex, `Error in specification { key: { v: -1 }, name: "", v: 2 } :: caused by :: index name cannot be empty`},
		{`{"key":{"a":1},"name":"x","sparse":true,"partialFilterExpression":{"a":1}}`, mongoerr.CannotCreateIndex,
			`Error in specification { key: { a: 1 }, name: "x", sparse: true, partialFilterExpression: { a: 1 }, v: 2 } :: caused by :: cannot mix "partialFilterExpression" and "sparse" options`},
		{`{"key":{"_id":-1},"name":"x"}`, mongoerr.BadValue, "The field 'key' for an _id index must be {_id: 1}, but got { _id: -1 }"},
		{`{"key":{"_id":1},"name":"_id_","unique":true}`, mongoerr.InvalidIndexSpecificationOption,
			`The field 'unique' is not valid for an _id index specification. Specification: { key: { _id: 1 }, name: "_id_", unique: true, v: 2 }`},
		{`{"key":{"a":1},"name":"x","expireAfterSeconds":-1}`, mongoerr.CannotCreateIndex,
			`. Index spec: { key: { a: 1 }, name: "x", expireAfterSeconds: -1 } :: caused by :: TTL index 'expireAfterSeconds' option cannot be less than 0`},
		{`{"key":{"a":1},"name":"x","expireAfterSeconds":"3"}`, mongoerr.CannotCreateIndex,
			`. Index spec: { key: { a: 1 }, name: "x", expireAfterSeconds: "3" } :: caused by :: TTL index 'expireAfterSeconds' option must be numeric, but received a type of 'string`},
		{`{"key":{"a":1,"b":1},"name":"x","expireAfterSeconds":3}`, mongoerr.CannotCreateIndex,
			`TTL indexes are single-field indexes, compound indexes do not support TTL. Index spec: { key: { a: 1, b: 1 }, name: "x", expireAfterSeconds: 3 }`},
		{`{"key":{` + strings.Join(many, ",") + `},"name":"x"}`, tooManyFields, "too many compound keys"},
	} {
		_, err := ValidateSpec(valuetest.Doc(t, c.spec), Context{Quote: true})
		if e := mongoerr.From(err); err == nil || e.Code != c.code || e.Message != c.msg {
			t.Errorf("%s\n got %v\nwant %v %s", c.spec, err, c.code, c.msg)
		}
	}
}
