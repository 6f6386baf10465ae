package match

import (
	"math/rand"
	"sort"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// cases hold a filter, documents it matches and documents it does not, each list separated by " ; ".
var cases = []struct{ filter, yes, no string }{
	// Equality, null and missing.
	{`{"a":1}`, `{"a":1} ; {"a":1.0} ; {"a":{"$numberDecimal":"1.0"}} ; {"a":[0,1]}`, `{} ; {"a":2} ; {"a":"1"} ; {"a":[[1]]} ; {"a":true}`},
	{`{"a":null}`, `{} ; {"a":null} ; {"a":[1,null]}`, `{"a":1} ; {"a":[]} ; {"a":[1]} ; {"a":{"$undefined":true}}`},
	{`{"a":[1,2]}`, `{"a":[1,2]} ; {"a":[[1,2],3]}`, `{"a":[2,1]} ; {"a":[1,2,3]} ; {"a":1}`},
	{`{"a":{"b":1}}`, `{"a":{"b":1}} ; {"a":[{"b":1}]}`, `{"a":{"b":1,"c":2}} ; {"a":{"c":1}}`},
	{`{"a":{"$ne":1}}`, `{} ; {"a":2} ; {"a":[2,3]}`, `{"a":1} ; {"a":[1,2]}`},
	{`{"":1}`, `{"":1}`, `{"a":1}`},
	{`{"a":{"$id":1}}`, `{"a":{"$id":1}}`, `{"a":1}`},
	// Ordering: only within the same class of types.
	{`{"a":{"$gt":5}}`, `{"a":6} ; {"a":[1,7]} ; {"a":5.5}`, `{"a":5} ; {"a":"6"} ; {} ; {"a":{"$date":"2024-01-01T00:00:00Z"}} ; {"a":{"$numberDouble":"NaN"}}`},
	{`{"a":{"$lt":5}}`, `{"a":4}`, `{"a":{"$numberDouble":"NaN"}} ; {} ; {"a":null}`},
	{`{"a":{"$gte":{"$numberDouble":"NaN"}}}`, `{"a":{"$numberDouble":"NaN"}} ; {"a":{"$numberDecimal":"NaN"}}`, `{"a":1}`},
	{`{"a":{"$gte":null}}`, `{} ; {"a":null}`, `{"a":1}`},
	{`{"a":{"$gt":null}}`, ``, `{} ; {"a":null} ; {"a":1}`},
	{`{"a":{"$gt":{"$minKey":1}}}`, `{"a":1} ; {"a":"x"} ; {"a":{"$maxKey":1}}`, `{"a":{"$minKey":1}}`},
	{`{"a":{"$gt":{"$maxKey":1}}}`, ``, `{"a":1} ; {"a":{"$maxKey":1}}`},
	{`{"a":{"$lt":{"$maxKey":1}}}`, `{"a":1} ; {}`, `{"a":{"$maxKey":1}}`},
	{`{"a":{"$lt":[2]}}`, `{"a":[1,5]} ; {"a":[[1]]}`, `{"a":[3]} ; {"a":1}`},
	{`{"a":{"$gt":1,"$lt":3}}`, `{"a":2} ; {"a":[0,5]}`, `{"a":3} ; {"a":[0]}`},
	// $in.
	{`{"a":{"$in":[1,"x",null]}}`, `{"a":1} ; {"a":"x"} ; {} ; {"a":[9,"x"]}`, `{"a":2} ; {"a":[]}`},
	{`{"a":{"$in":[{"$regularExpression":{"pattern":"^x","options":""}},5]}}`, `{"a":"xy"} ; {"a":5}`, `{"a":"yx"} ; {"a":1}`},
	{`{"a":{"$in":[]}}`, ``, `{} ; {"a":1}`},
	{`{"a":{"$nin":[1,2]}}`, `{} ; {"a":3} ; {"a":[]}`, `{"a":1} ; {"a":[3,2]}`},
	{`{"a":{"$in":[[1,2]]}}`, `{"a":[1,2]} ; {"a":[[1,2]]}`, `{"a":1}`},
	{`{"a":{"$in":[1,2,3,4,5,6,7,8]}}`, `{"a":8} ; {"a":{"$numberLong":"3"}} ; {"a":4.0}`, `{"a":9} ; {"a":"1"}`},
	// Paths.
	{`{"a.b":1}`, `{"a":{"b":1}} ; {"a":[{"b":2},{"b":1}]} ; {"a":{"b":[0,1]}}`, `{"a":1} ; {"a":[[{"b":1}]]} ; {"a.b":1}`},
	{`{"a.b":null}`, `{} ; {"a":{}} ; {"a":5} ; {"a":[{"c":1}]} ; {"a":[{"b":1},{}]}`, `{"a":{"b":1}} ; {"a":[]} ; {"a":[1,2]} ; {"a":[{"b":1}]}`},
	{`{"a.0":1}`, `{"a":[1,2]} ; {"a":{"0":1}} ; {"a":[{"0":1}]}`, `{"a":[2,1]} ; {"a":[[1]]} ; {"a":1}`},
	{`{"a.1.b":2}`, `{"a":[{"b":1},{"b":2}]} ; {"a":{"1":{"b":2}}}`, `{"a":[{"b":2},{"b":1}]}`},
	{`{"a.0.0":1}`, `{"a":[[1]]}`, `{"a":[1]}`},
	{`{"a.00":1}`, `{"a":{"00":1}}`, `{"a":[1]}`},
	{`{"a.b":{"$exists":false}}`, `{} ; {"a":1} ; {"a":[]} ; {"a":[1]}`, `{"a":{"b":null}} ; {"a":[{},{"b":1}]}`},
	// $exists, $type, $size.
	{`{"a":{"$exists":true}}`, `{"a":null} ; {"a":[]}`, `{} ; {"b":1}`},
	{`{"a":{"$type":"string"}}`, `{"a":"x"} ; {"a":[1,"x"]}`, `{"a":1} ; {}`},
	{`{"a":{"$type":"array"}}`, `{"a":[]} ; {"a":[1]}`, `{"a":1}`},
	{`{"a":{"$type":"number"}}`, `{"a":1} ; {"a":1.5} ; {"a":{"$numberLong":"1"}} ; {"a":{"$numberDecimal":"1"}}`, `{"a":"1"}`},
	{`{"a":{"$type":[2,"null",-1]}}`, `{"a":"x"} ; {"a":null} ; {"a":{"$minKey":1}}`, `{} ; {"a":1}`},
	{`{"a":{"$size":2}}`, `{"a":[1,2]} ; {"a":[[],[]]}`, `{"a":[[1,2]]} ; {"a":2} ; {}`},
	{`{"a.b":{"$size":1}}`, `{"a":{"b":[1]}} ; {"a":[{"b":[1]}]}`, `{"a":[{"b":1}]}`},
	// $mod.
	{`{"a":{"$mod":[4,1]}}`, `{"a":5} ; {"a":5.9} ; {"a":[2,9]}`, `{"a":4} ; {"a":-5} ; {"a":"5"} ; {"a":{"$numberDouble":"Infinity"}}`},
	{`{"a":{"$mod":[-1,0]}}`, `{"a":{"$numberLong":"-9223372036854775808"}}`, `{"a":"x"}`},
	// Regular expressions.
	{`{"a":{"$regex":"^ab","$options":"i"}}`, `{"a":"ABc"} ; {"a":["x","abx"]}`, `{"a":"xab"} ; {"a":1} ; {}`},
	{`{"a":{"$regularExpression":{"pattern":"b$","options":""}}}`, `{"a":"ab"} ; {"a":"ab\n"} ; {"a":{"$regularExpression":{"pattern":"b$","options":""}}}`, `{"a":"ba"} ; {"a":{"$regularExpression":{"pattern":"b$","options":"i"}}}`},
	{`{"a":{"$not":{"$regularExpression":{"pattern":"b","options":""}}}}`, `{"a":"a"} ; {}`, `{"a":"b"}`},
	// Logic.
	{`{"$or":[{"a":1},{"b":1}]}`, `{"a":1} ; {"b":1}`, `{"a":2}`},
	{`{"$nor":[{"a":1},{"b":1}]}`, `{} ; {"a":2}`, `{"a":1} ; {"b":1}`},
	{`{"$and":[{"a":1},{"a":2}]}`, `{"a":[1,2]}`, `{"a":1}`},
	{`{"a":{"$not":{"$gt":1,"$lt":5}}}`, `{"a":7} ; {}`, `{"a":3} ; {"a":[0,9]}`},
	{`{"a":{"$not":{"$not":{"$gt":1}}}}`, `{"a":2}`, `{"a":1} ; {}`},
	{`{"$or":[{}]}`, `{} ; {"a":1}`, ``},
	{`{"$alwaysTrue":1,"$comment":"why"}`, `{}`, ``},
	{`{"$alwaysFalse":1}`, ``, `{}`},
	// $all and $elemMatch.
	{`{"a":{"$all":[1,2]}}`, `{"a":[2,1,3]}`, `{"a":[1]} ; {"a":1}`},
	{`{"a":{"$all":[[1,2]]}}`, `{"a":[1,2]} ; {"a":[[1,2]]}`, `{"a":[1]}`},
	{`{"a":{"$all":[]}}`, ``, `{"a":[]} ; {}`},
	{`{"a":{"$all":[null]}}`, `{} ; {"a":null} ; {"a":[null]}`, `{"a":[1]}`},
	{`{"a":{"$elemMatch":{"$gt":1,"$lt":5}}}`, `{"a":[0,3]}`, `{"a":[0,9]} ; {"a":3} ; {"a":[[3]]}`},
	{`{"a":{"$elemMatch":{"b":1,"c":2}}}`, `{"a":[{"b":1,"c":2}]}`, `{"a":[{"b":1},{"c":2}]} ; {"a":{"b":1,"c":2}}`},
	{`{"a":{"$elemMatch":{"$or":[{"b":1},{"b":2}]}}}`, `{"a":[{"b":2}]}`, `{"a":[{"b":3}]}`},
	{`{"a":{"$elemMatch":{"0":1}}}`, `{"a":[[1]]}`, `{"a":[1]}`},
	{`{"a":{"$elemMatch":{}}}`, `{"a":[{}]} ; {"a":[[]]}`, `{"a":[]} ; {"a":[1]}`},
	{`{"a":{"$elemMatch":{"$elemMatch":{"$gt":1}}}}`, `{"a":[[2]]}`, `{"a":[2]}`},
	{`{"a":{"$elemMatch":{"$not":{"$gt":1}}}}`, `{"a":[1]}`, `{"a":[2]} ; {"a":[]} ; {}`},
	{`{"a":{"$all":[{"$elemMatch":{"$gt":1}},{"$elemMatch":{"$lt":0}}]}}`, `{"a":[2,-1]}`, `{"a":[2]}`},
	// Bits.
	{`{"a":{"$bitsAllSet":5}}`, `{"a":7} ; {"a":5.0} ; {"a":{"$binary":{"base64":"BQ==","subType":"00"}}}`, `{"a":4} ; {"a":5.5} ; {"a":"5"}`},
	{`{"a":{"$bitsAnyClear":[0,2]}}`, `{"a":4}`, `{"a":5}`},
	{`{"a":{"$bitsAllSet":[200]}}`, `{"a":-1}`, `{"a":1}`},
	{`{"a":{"$bitsAllClear":[1,64]}}`, `{"a":5}`, `{"a":2} ; {"a":-8}`},
	// $expr and $jsonSchema.
	{`{"$expr":{"$gt":["$a","$b"]}}`, `{"a":2,"b":1}`, `{"a":1,"b":1}`},
	{`{"$jsonSchema":{"required":["a"],"properties":{"a":{"minimum":3}}}}`, `{"a":3} ; {"a":"x"}`, `{"a":2} ; {}`},
}

func split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, " ; ")
}

func TestMatch(t *testing.T) {
	for _, c := range cases {
		m, err := Compile(valuetest.Doc(t, c.filter), nil)
		if err != nil {
			t.Errorf("%s: %v", c.filter, err)
			continue
		}
		// What explain prints, parsed again, means the same.
		again, err := Compile(m.Serialize(), nil)
		if err != nil && !strings.Contains(c.filter, "$expr") {
			t.Errorf("%s: serialised %s: %v", c.filter, value.ShowDoc(m.Serialize()), err)
			continue
		}
		check := func(doc string, want bool) {
			t.Helper()
			raw := valuetest.Doc(t, doc)
			if got, err := m.Match(raw); got != want || err != nil {
				t.Errorf("%s on %s: %v, %v", c.filter, doc, got, err)
			}
			if got, err := again.Match(raw); got != want || err != nil {
				t.Errorf("%s, serialised %s, on %s: %v, %v", c.filter, value.ShowDoc(m.Serialize()), doc, got, err)
			}
		}
		for _, d := range split(c.yes) {
			check(d, true)
		}
		for _, d := range split(c.no) {
			check(d, false)
		}
	}
}

// What an expression requires of a field is true of each document of which the expression is true and, of documents without arrays, of no others.
func TestDerivedComparisons(t *testing.T) {
	values := []string{`1`, `5`, `5.0`, `9`, `null`, `"a"`, `"b"`, `{"x":1}`, `{"$minKey":1}`, `{"$maxKey":1}`, `true`, `{"$numberDouble":"NaN"}`, `[]`, `[5]`, `{"$undefined":true}`}
	docs := []string{`{}`, `{"f":7}`, `{"f":[{"g":5}]}`}
	for _, v := range values {
		docs = append(docs, `{"f":`+v+`}`, `{"f":{"g":`+v+`}}`)
	}
	for _, path := range []string{"f", "f.g"} {
		for _, op := range []string{"$eq", "$gt", "$gte", "$lt", "$lte"} {
			for _, v := range values {
				filter := valuetest.Doc(t, `{"$expr":{"`+op+`":["$`+path+`",{"$literal":`+v+`}]}}`)
				m, err := Compile(filter, &Options{Derive: true})
				if err != nil {
					t.Fatal(err)
				}
				if m.Root().Kind != And {
					if !strings.HasPrefix(v, "[") && !strings.Contains(v, "undefined") {
						t.Errorf("nothing is derived from %s", value.ShowDoc(filter))
					}
					continue
				}
				alone, whole := m.Sub(m.Root().Children[0]), m.Sub(m.Root().Children[1])
				for _, d := range docs {
					doc := valuetest.Doc(t, d)
					is, err := alone.Match(doc)
					required, err2 := whole.Match(doc)
					if err != nil || err2 != nil {
						t.Fatal(err, err2)
					}
					if is && !required || required && !is && !strings.Contains(d, "[") {
						t.Errorf("%s of %s: %t, and what is derived is %t", value.ShowDoc(filter), d, is, required)
					}
				}
			}
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		filter string
		code   mongoerr.Code
		msg    string
	}{
		{`{"$foo":1}`, mongoerr.BadValue, "unknown top level operator: $foo. If you have a field name that starts with a '$' symbol, consider using $getField or $setField."},
		{`{"a":{"$foo":1}}`, mongoerr.BadValue, "unknown operator: $foo"},
		{`{"a":{"$gt":1,"b":1}}`, mongoerr.BadValue, "unknown operator: b"},
		{`{"$and":1}`, mongoerr.BadValue, "$and must be an array"},
		{`{"$or":[]}`, mongoerr.BadValue, "$and/$or/$nor must be a nonempty array"},
		{`{"$nor":[1]}`, mongoerr.BadValue, "$or/$and/$nor entries need to be full objects"},
		{`{"a":{"$in":1}}`, mongoerr.BadValue, "$in needs an array"},
		{`{"a":{"$nin":[{"$gt":1}]}}`, mongoerr.BadValue, "cannot nest $ under $nin"},
		{`{"a":{"$not":1}}`, mongoerr.BadValue, "$not needs a regex or a document"},
		{`{"a":{"$not":{}}}`, mongoerr.BadValue, "$not cannot be empty"},
		{`{"a":{"$gt":{"$regularExpression":{"pattern":"a","options":""}}}}`, mongoerr.BadValue, "Can't have RegEx as arg to predicate over field 'a'."},
		{`{"a":{"$ne":{"$regularExpression":{"pattern":"a","options":""}}}}`, mongoerr.BadValue, "Can't have regex as arg to $ne."},
		{`{"a":{"$mod":[0,1]}}`, mongoerr.BadValue, "divisor cannot be 0"},
		{`{"a":{"$mod":[1]}}`, mongoerr.BadValue, "malformed mod, not enough elements"},
		{`{"a":{"$size":-1}}`, mongoerr.BadValue, "Failed to parse $size. Expected a non-negative number in: $size: -1"},
		{`{"a":{"$type":"foo"}}`, mongoerr.BadValue, "Unknown type name alias: foo"},
		{`{"a":{"$type":true}}`, mongoerr.TypeMismatch, "type must be represented as a number or a string"},
		{`{"a":{"$type":[]}}`, mongoerr.FailedToParse, "a must match at least one type"},
		{`{"a":{"$regex":1}}`, mongoerr.BadValue, "$regex has to be a string"},
		{`{"a":{"$options":"i"}}`, mongoerr.BadValue, "$options needs a $regex"},
		{`{"a":{"$regex":"["}}`, 51091, "Regular expression is invalid: missing terminating ] for character class"},
		{`{"a":{"$regex":"a","$options":"g"}}`, 51108, "invalid flag in regex options: g"},
		{`{"a":{"$elemMatch":1}}`, mongoerr.BadValue, "$elemMatch needs an Object"},
		{`{"a":{"$all":1}}`, mongoerr.BadValue, "$all needs an array"},
		{`{"a":{"$all":[{"$gt":1}]}}`, mongoerr.BadValue, "no $ expressions in $all"},
		{`{"a":{"$bitsAllSet":"x"}}`, mongoerr.BadValue, "a takes an Array, a number, or a BinData but received: $bitsAllSet: \"x\""},
		{`{"a":{"$bitsAllSet":-1}}`, mongoerr.FailedToParse, "Expected a non-negative number in: $bitsAllSet: -1"},
		{`{"a":{"$bitsAnyClear":1.5}}`, mongoerr.FailedToParse, "Expected an integer: $bitsAnyClear: 1.5"},
		{`{"a":{"$bitsAnyClear":{"$numberDouble":"NaN"}}}`, mongoerr.FailedToParse, "Expected an integer, but found NaN in: $bitsAnyClear: nan"},
		{`{"a":{"$bitsAnySet":1e20}}`, mongoerr.FailedToParse, "Cannot represent as a 64-bit integer: $bitsAnySet: 1e+20"},
		{`{"a":{"$bitsAllClear":{"$numberDecimal":"1.5"}}}`, mongoerr.FailedToParse, "Cannot represent as a 64-bit integer: $bitsAllClear: 1.5"},
		{`{"a":{"$elemMatch":{"$expr":1}}}`, mongoerr.BadValue, "unknown operator: $expr"},
		{`{"a":{"$elemMatch":{"b":1,"$expr":1}}}`, mongoerr.BadValue, "$expr can only be applied to the top-level document"},
		{`{"a":{"$near":[0,0],"$eq":1}}`, 34413, "invalid argument in geo near query: $eq"},
		{`{"$or":[{"a":{"$near":[0,0]}},{"b":1}]}`, mongoerr.BadValue, "geo $near must be top-level expr"},
		{`{"a":{"$near":[0,0]},"b":{"$near":[0,0]}}`, mongoerr.BadValue, "Too many geoNear expressions"},
		{`{"a":{"$geoWithin":{"$box":[[0,0],[1,1]]},"$eq":1}}`, mongoerr.BadValue, "can't parse extra field: $eq: 1"},
		{`{"$sampleRate":2}`, mongoerr.BadValue, "numeric argument to $sampleRate must be in [0, 1]"},
	} {
		_, err := Compile(valuetest.Doc(t, c.filter), nil)
		if e := mongoerr.From(err); e == nil || e.Code != c.code || e.Message != c.msg {
			t.Errorf("%s: %v, want %d %s", c.filter, err, c.code, c.msg)
		}
	}
}

func TestSerialize(t *testing.T) {
	for _, c := range [][2]string{
		{`{}`, `{}`},
		{`{"a":1}`, `{"a":{"$eq":1}}`},
		{`{"b":1,"a":{"$gt":1,"$lt":5}}`, `{"$and":[{"b":{"$eq":1}},{"a":{"$lt":5}},{"a":{"$gt":1}}]}`},
		{`{"a":{"$ne":1}}`, `{"a":{"$not":{"$eq":1}}}`},
		{`{"a":{"$in":[3,1,1]}}`, `{"a":{"$in":[1,3]}}`},
		{`{"a":{"$in":[1]}}`, `{"a":{"$eq":1}}`},
		{`{"a":{"$nin":[1,2]}}`, `{"a":{"$not":{"$in":[1,2]}}}`},
		{`{"$or":[{"a":1},{"a":2}]}`, `{"a":{"$in":[1,2]}}`},
		{`{"$or":[{"a":1},{"b":2},{"a":3}]}`, `{"$or":[{"b":{"$eq":2}},{"a":{"$in":[1,3]}}]}`},
		{`{"$and":[{"$and":[{"a":1}]},{"b":1}]}`, `{"$and":[{"a":{"$eq":1}},{"b":{"$eq":1}}]}`},
		{`{"$and":[{"a":1},{"a":1}]}`, `{"a":{"$eq":1}}`},
		{`{"a":{"$exists":false}}`, `{"a":{"$not":{"$exists":true}}}`},
		{`{"a":{"$type":"string"}}`, `{"a":{"$type":[2]}}`},
		{`{"a":{"$elemMatch":{"b":1}}}`, `{"a":{"$elemMatch":{"b":{"$eq":1}}}}`},
		{`{"a":{"$elemMatch":{"$gt":1,"$lt":5}}}`, `{"a":{"$elemMatch":{"$lt":5,"$gt":1}}}`},
		{`{"$nor":[{"a":1}]}`, `{"a":{"$not":{"$eq":1}}}`},
		{`{"$nor":[{"a":1},{"b":1}]}`, `{"$nor":[{"a":{"$eq":1}},{"b":{"$eq":1}}]}`},
		{`{"a":{"$regularExpression":{"pattern":"x","options":"i"}}}`, `{"a":{"$regex":"x","$options":"i"}}`},
		{`{"a":1,"b":{"$in":[]}}`, `{"$alwaysFalse":1}`},
		{`{"a":{"$not":{"$gt":1,"$lt":5}}}`, `{"a":{"$not":{"$lt":5,"$gt":1}}}`},
	} {
		m, err := Compile(valuetest.Doc(t, c[0]), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := valuetest.JSON(t, m.Serialize()); got != c[1] {
			t.Errorf("%s\n got %s\nwant %s", c[0], got, c[1])
		}
	}
}

func TestDetail(t *testing.T) {
	for _, c := range []struct {
		filter, doc string
		index       int
	}{
		{`{"a":{"$gt":1}}`, `{"a":[0,2]}`, 1},
		{`{"a":2}`, `{"a":2}`, -1},
		{`{"a.b":5}`, `{"a":[{"b":1},{"b":[4,5]}]}`, 1},
		{`{"a":{"$elemMatch":{"b":5}}}`, `{"a":[{"b":1},{"b":5}]}`, 1},
		{`{"a":1,"b":2}`, `{"a":[0,1],"b":[2]}`, 0},
		{`{"$or":[{"a":2},{"b":1}]}`, `{"a":[1,2]}`, -1},
		{`{"a":{"$ne":9}}`, `{"a":[1,2]}`, -1},
		{`{"a.1":2}`, `{"a":[1,2]}`, -1},
		{`{"a.0.b":2}`, `{"a":[{"b":[1,2]}]}`, 1},
	} {
		m, err := Compile(valuetest.Doc(t, c.filter), nil)
		if err != nil {
			t.Fatal(err)
		}
		var d Detail
		if ok, err := m.MatchDetail(valuetest.Doc(t, c.doc), &d); !ok || err != nil || d.ArrayIndex != c.index {
			t.Errorf("%s on %s: %v %v index %d, want %d", c.filter, c.doc, ok, err, d.ArrayIndex, c.index)
		}
	}
}

func TestCollation(t *testing.T) {
	spec, err := collation.Parse(valuetest.Doc(t, `{"locale":"en","strength":2}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		filter, doc string
		want        bool
	}{
		{`{"a":"X"}`, `{"a":"x"}`, true},
		{`{"a":{"$in":["Y","X","x"]}}`, `{"a":"x"}`, true},
		{`{"a":{"$in":["A","b","C","d","E"]}}`, `{"a":"c"}`, true},
		{`{"$or":[{"a":"B"},{"a":"a"},{"a":"C"}]}`, `{"a":"A"}`, true},
		{`{"a":{"b":"X"}}`, `{"a":{"b":"x"}}`, true},
		{`{"a":{"$gt":"B"}}`, `{"a":"a"}`, false},
		{`{"a":{"$regularExpression":{"pattern":"X","options":""}}}`, `{"a":"x"}`, false},
		{`{"$expr":{"$eq":["$a","X"]}}`, `{"a":"x"}`, true},
		{`{"$expr":{"$in":["$a",["X","Y"]]}}`, `{"a":"x"}`, false}, // a filter without collation is derived from it
		{`{"$expr":{"$and":[{"$in":["$a",["X"]]}]}}`, `{"a":"x"}`, false},
		{`{"$expr":{"$in":["$a",["x","Y"]]}}`, `{"a":"x"}`, true},
		{`{"$expr":{"$in":["x","$a"]}}`, `{"a":["X"]}`, true},
		{`{"$expr":{"$not":[{"$in":["$a",["X"]]}]}}`, `{"a":"x"}`, false},
	} {
		m, err := Compile(valuetest.Doc(t, c.filter), &Options{Collator: spec.Collator()})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := m.Match(valuetest.Doc(t, c.doc)); got != c.want || err != nil {
			t.Errorf("%s on %s: %v %v", c.filter, c.doc, got, err)
		}
	}
}

func TestVariables(t *testing.T) {
	scope := expr.NewScope(&expr.Env{})
	id := scope.Define("limit")
	m, err := Compile(valuetest.Doc(t, `{"$expr":{"$gt":["$a","$$limit"]}}`), &Options{Expr: scope})
	if err != nil {
		t.Fatal(err)
	}
	if m.Stateless() {
		t.Error("a filter with $expr has a frame")
	}
	for limit, want := range map[int32]bool{1: true, 5: false} {
		m.Frame().SetVar(id, value.NewInt32(limit))
		if got, err := m.Match(valuetest.Doc(t, `{"a":3}`)); got != want || err != nil {
			t.Errorf("limit %d: %v %v", limit, got, err)
		}
	}
}

func TestMatchValue(t *testing.T) {
	m, err := CompileOperators(valuetest.Doc(t, `{"$gte":3,"$lt":6}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range map[int32]bool{2: false, 3: true, 6: false} {
		if got, _ := m.MatchValue(value.NewInt32(i)); got != want {
			t.Errorf("%d: %v", i, got)
		}
	}
	m, err = Compile(valuetest.Doc(t, `{"b":1,"c":{"$gt":1}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := m.MatchValue(value.NewDocument(valuetest.Doc(t, `{"b":1,"c":2}`))); !got {
		t.Error("a document as value")
	}
}

func TestSampleRate(t *testing.T) {
	m, err := Compile(valuetest.Doc(t, `{"$sampleRate":0.5}`), &Options{Rand: func() float64 { return 0.4 }})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := m.Match(value.Doc()); !got {
		t.Error("0.4 is below the rate")
	}
}

// Matching plain comparisons does not allocate.
func TestNoAllocations(t *testing.T) {
	m, err := Compile(valuetest.Doc(t, `{"a":{"$gte":1},"b.c":"x","$or":[{"d":1},{"e":{"$in":[1,2,3]}}]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	doc := valuetest.Doc(t, `{"a":2,"b":[{"c":"y"},{"c":"x"}],"e":3}`)
	if n := testing.AllocsPerRun(100, func() {
		if ok, _ := m.Match(doc); !ok {
			t.Fatal("no match")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestExplain(t *testing.T) {
	for _, c := range [][3]string{
		{`{"a":{"$gte":5}}`, `{"a":3}`, `{"operatorName":"$gte","specifiedAs":{"a":{"$gte":5}},"reason":"comparison failed","consideredValue":3}`},
		{`{"a":{"$gte":5}}`, `{}`, `{"operatorName":"$gte","specifiedAs":{"a":{"$gte":5}},"reason":"field was missing"}`},
		{`{"a":1,"b":{"$exists":true}}`, `{"a":1}`, `{"operatorName":"$and","clausesNotSatisfied":[{"index":1,"details":{"operatorName":"$exists","specifiedAs":{"b":{"$exists":true}},"reason":"path does not exist"}}]}`},
		{`{"a":{"$ne":1}}`, `{"a":1}`, `{"operatorName":"$ne","specifiedAs":{"a":{"$ne":1}},"reason":"comparison succeeded","consideredValue":1}`},
		{`{"a":1}`, `{"a":2}`, `{"operatorName":"$eq","specifiedAs":{"a":1},"reason":"comparison failed","consideredValue":2}`},
		{`{"a":{"$in":["b","a"]}}`, `{"a":2}`, `{"operatorName":"$in","specifiedAs":{"a":{"$in":["b","a"]}},"reason":"no matching value found in array","consideredValue":2}`},
		{`{"a":{"$nin":["b",2]}}`, `{"a":2}`, `{"operatorName":"$nin","specifiedAs":{"a":{"$nin":["b",2]}},"reason":"matching value found in array","consideredValue":2}`},
		{`{"$expr":{"$gt":["$a",1]}}`, `{"a":1}`, `{"operatorName":"$expr","specifiedAs":{"$expr":{"$gt":["$a",1]}},"reason":"expression did not match","expressionResult":false}`},
	} {
		m, err := Compile(valuetest.Doc(t, c[0]), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := valuetest.JSON(t, m.Explain(valuetest.Doc(t, c[1]))); got != c[2] {
			t.Errorf("\n got %s\nwant %s", got, c[2])
		}
	}
}

// Random filters of known operators and odd operands never make the compiler, the matcher or the printer panic.
func TestRandomFilters(t *testing.T) {
	r := rand.New(rand.NewSource(5))
	var ops []string
	for op := range operators {
		ops = append(ops, op)
	}
	sort.Strings(ops)
	ops = append(ops, "$and", "$or", "$nor", "$expr", "$jsonSchema", "a", "b", "a.b", "0", "", "a.0", "$comment")
	var gen func(depth int) value.Value
	gen = func(depth int) value.Value {
		switch k := r.Intn(10); {
		case k < 4 && depth > 0:
			var fs []value.Field
			for n := r.Intn(3); n >= 0; n-- {
				fs = append(fs, value.F(ops[r.Intn(len(ops))], gen(depth-1)))
			}
			return value.NewDocument(value.Doc(fs...))
		case k < 6 && depth > 0:
			var vs []value.Value
			for n := r.Intn(3); n > 0; n-- {
				vs = append(vs, gen(depth-1))
			}
			return value.NewArray(value.ArrayOf(vs...))
		}
		return []value.Value{value.NewInt32(1), value.NewNull(), value.NewString("a"), value.NewDouble(0.5), value.NewRegex("a", ""), value.NewBool(true),
			value.NewUndefined(), value.NewMinKey(), value.NewBinary(0, []byte{1})}[r.Intn(9)]
	}
	compiled := 0
	for i := 0; i < 60000; i++ {
		f := gen(4)
		if f.T != value.Document {
			continue
		}
		m, err := Compile(f.Doc(), nil)
		if err != nil {
			continue
		}
		compiled++
		m.Serialize()
		for n := 0; n < 3; n++ {
			if d := gen(3); d.T == value.Document {
				m.Match(d.Doc())
				m.Explain(d.Doc())
			}
		}
	}
	if compiled < 1000 {
		t.Errorf("only %d filters compiled", compiled)
	}
}
