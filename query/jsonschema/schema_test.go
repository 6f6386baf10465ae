package jsonschema

import (
	"testing"

	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		schema, doc string
		want        bool
	}{
		{`{}`, `{"a":1}`, true},
		{`{"required":["a"]}`, `{"a":null}`, true}, {`{"required":["a"]}`, `{}`, false},
		{`{"properties":{"a":{"bsonType":"int"}}}`, `{"a":1}`, true}, {`{"properties":{"a":{"bsonType":"int"}}}`, `{"a":1.5}`, false},
		{`{"properties":{"a":{"bsonType":"int"}}}`, `{}`, true}, {`{"properties":{"a":{"type":"number"}}}`, `{"a":1.5}`, true},
		{`{"properties":{"a":{"bsonType":["int","null"]}}}`, `{"a":null}`, true},
		{`{"properties":{"a":{"minimum":3,"exclusiveMinimum":true}}}`, `{"a":3}`, false}, {`{"properties":{"a":{"minimum":3}}}`, `{"a":"x"}`, true},
		{`{"properties":{"a":{"maximum":3}}}`, `{"a":{"$numberDouble":"NaN"}}`, false},
		{`{"properties":{"a":{"multipleOf":0.1}}}`, `{"a":0.3}`, true}, {`{"properties":{"a":{"multipleOf":0.1}}}`, `{"a":0.35}`, false},
		{`{"properties":{"a":{"multipleOf":5}}}`, `{"a":{"$numberDecimal":"1E+30"}}`, true},
		{`{"properties":{"a":{"minLength":2}}}`, `{"a":"é"}`, false}, {`{"properties":{"a":{"maxLength":1}}}`, `{"a":"é"}`, true},
		{`{"properties":{"a":{"pattern":"^x"}}}`, `{"a":"yx"}`, false}, {`{"properties":{"a":{"enum":[1,"x",{"p":1,"q":2}]}}}`, `{"a":{"q":2,"p":1}}`, true},
		{`{"properties":{"a":{"enum":[1]}}}`, `{"a":1.0}`, true}, {`{"properties":{"a":{"uniqueItems":true}}}`, `{"a":[1,1.0]}`, false},
		{`{"properties":{"a":{"items":{"minimum":2}}}}`, `{"a":[2,3]}`, true}, {`{"properties":{"a":{"items":{"minimum":2}}}}`, `{"a":[1]}`, false},
		{`{"properties":{"a":{"items":[{"bsonType":"int"}],"additionalItems":false}}}`, `{"a":[1,2]}`, false},
		{`{"properties":{"a":{"items":[{"bsonType":"int"}],"additionalItems":{"bsonType":"string"}}}}`, `{"a":[1,"x"]}`, true},
		{`{"properties":{"a":{}},"additionalProperties":false}`, `{"a":1,"b":1}`, false},
		{`{"patternProperties":{"^s_":{"bsonType":"string"}},"additionalProperties":false}`, `{"s_a":"x"}`, true},
		{`{"patternProperties":{"^s_":{"bsonType":"string"}}}`, `{"s_a":1}`, false},
		{`{"minProperties":2}`, `{"a":1}`, false}, {`{"maxProperties":1}`, `{"a":1}`, true},
		{`{"dependencies":{"a":["b"]}}`, `{"a":1}`, false}, {`{"dependencies":{"a":{"required":["b"]}}}`, `{"a":1,"b":1}`, true},
		{`{"allOf":[{"required":["a"]},{"required":["b"]}]}`, `{"a":1}`, false}, {`{"anyOf":[{"required":["a"]},{"required":["b"]}]}`, `{"a":1}`, true},
		{`{"oneOf":[{"required":["a"]},{"required":["b"]}]}`, `{"a":1,"b":1}`, false}, {`{"not":{"required":["a"]}}`, `{"a":1}`, false},
		{`{"enum":[{"a":1,"b":2}]}`, `{"b":2,"a":1}`, true},
	} {
		s, err := Compile(valuetest.Doc(t, c.schema))
		if err != nil {
			t.Errorf("%s: %v", c.schema, err)
			continue
		}
		doc := valuetest.Doc(t, c.doc)
		if got := matches(s, doc); got != c.want {
			t.Errorf("%s on %s: %v", c.schema, c.doc, got)
		}
		if got := s.Explain(doc) == nil; got != c.want {
			t.Errorf("%s on %s: explained %v", c.schema, c.doc, got)
		}
	}
}

func TestErrors(t *testing.T) {
	for schema, code := range map[string]mongoerr.Code{
		`{"foo":1}`: mongoerr.FailedToParse, `{"format":"x"}`: mongoerr.FailedToParse, `{"required":[]}`: mongoerr.FailedToParse, `{"required":[1]}`: mongoerr.TypeMismatch, `{"required":["a","a"]}`: mongoerr.FailedToParse,
		`{"bsonType":"x"}`: mongoerr.BadValue, `{"bsonType":"integer"}`: mongoerr.FailedToParse, `{"type":"int"}`: mongoerr.BadValue, `{"type":"object","bsonType":"object"}`: mongoerr.FailedToParse, `{"minLength":1.5}`: mongoerr.FailedToParse,
		`{"minLength":-1}`: mongoerr.FailedToParse, `{"multipleOf":0}`: mongoerr.FailedToParse, `{"pattern":"["}`: 51091, `{"patternProperties":{"[":{}}}`: mongoerr.BadValue, `{"exclusiveMinimum":true}`: mongoerr.FailedToParse,
		`{"enum":[]}`: mongoerr.FailedToParse, `{"enum":[1,1.0]}`: mongoerr.FailedToParse, `{"allOf":[]}`: mongoerr.BadValue, `{"allOf":[1]}`: mongoerr.TypeMismatch, `{"properties":{"a":1}}`: mongoerr.TypeMismatch, `{"dependencies":{"a":1}}`: mongoerr.TypeMismatch, `{"not":1}`: mongoerr.TypeMismatch,
	} {
		if _, err := Compile(valuetest.Doc(t, schema)); mongoerr.CodeOf(err) != code {
			t.Errorf("%s: %v, want %d", schema, err, code)
		}
	}
}

func TestExplain(t *testing.T) {
	s, err := Compile(valuetest.Doc(t, `{"bsonType":"object","title":"T","required":["name","qty"],"properties":{"qty":{"bsonType":"int","minimum":1,"description":"count"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"operatorName":"$jsonSchema","title":"T","schemaRulesNotSatisfied":[` +
		`{"operatorName":"properties","propertiesNotSatisfied":[{"propertyName":"qty","description":"count","details":[` +
		`{"operatorName":"bsonType","specifiedAs":{"bsonType":"int"},"reason":"type did not match","consideredValue":0.5,"consideredType":"double"},` +
		`{"operatorName":"minimum","specifiedAs":{"minimum":1},"reason":"comparison failed","consideredValue":0.5}]}]},` +
		`{"operatorName":"required","specifiedAs":{"required":["name","qty"]},"missingProperties":["name"]}]}`
	if got := valuetest.JSON(t, s.Explain(valuetest.Doc(t, `{"qty":0.5}`))); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}

func matches(s *Schema, doc []byte) bool {
	ok, _ := s.Match(doc, nil)
	return ok
}
