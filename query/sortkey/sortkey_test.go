package sortkey

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func TestKey(t *testing.T) {
	for _, c := range []struct{ spec, doc, want string }{
		{`{"a": 1}`, `{"a": 5}`, `{"k": [5]}`},
		{`{"a": 1}`, `{}`, `{"k": [null]}`},
		{`{"a": 1}`, `{"a": [3, 1, 2]}`, `{"k": [1]}`},
		{`{"a": -1}`, `{"a": [3, 1, 2]}`, `{"k": [3]}`},
		{`{"a": 1}`, `{"a": []}`, `{"k": [{"$undefined": true}]}`},
		{`{"a.b": 1}`, `{"a": [{"b": 4}, {"b": 2}, {}]}`, `{"k": [null]}`},
		{`{"a.b": -1}`, `{"a": [{"b": 4}, {"b": 2}]}`, `{"k": [4]}`},
		{`{"a.1": 1}`, `{"a": [7, 8]}`, `{"k": [8]}`},
		{`{"a": 1, "b": -1}`, `{"a": 1, "b": [2, 9]}`, `{"k": [1, 9]}`},
		// Both parts of a key come from one element.
		{`{"a.b": 1, "a.c": 1}`, `{"a": [{"b": 1, "c": 5}, {"b": 2, "c": 0}]}`, `{"k": [1, 5]}`},
		{`{"a.b": -1, "a.c": 1}`, `{"a": [{"b": 1, "c": 5}, {"b": 2, "c": 7}]}`, `{"k": [2, 7]}`},
	} {
		p, err := Parse(valuetest.Doc(t, c.spec), nil)
		if err != nil {
			t.Fatal(err)
		}
		key, err := p.Key(nil, valuetest.Doc(t, c.doc), nil)
		if err != nil {
			t.Errorf("%s of %s: %v", c.spec, c.doc, err)
			continue
		}
		got := value.Doc(value.F("k", value.NewArray(value.ArrayOf(key...))))
		if string(got) != string(valuetest.Doc(t, c.want)) {
			t.Errorf("%s of %s: %s, want %s", c.spec, c.doc, bson.Raw(got), c.want)
		}
	}
}

func TestErrors(t *testing.T) {
	for spec, code := range map[string]mongoerr.Code{
		`{}`: 15976, `{"a": 2}`: 15975, `{"a": "x"}`: 15974, `{"": 1}`: 40352, `{"a.": 1}`: 40353, `{"$a": 1}`: 16410,
		`{"a": {"$x": 1}}`: 17312, `{"a": {"$meta": "x"}}`: 31138,
	} {
		if _, err := Parse(valuetest.Doc(t, spec), nil); mongoerr.CodeOf(err) != code {
			t.Errorf("%s: %v, want code %d", spec, err, code)
		}
	}
	p, _ := Parse(valuetest.Doc(t, `{"a": 1, "b": 1}`), nil)
	if _, err := p.Key(nil, valuetest.Doc(t, `{"a": [1], "b": [2]}`), nil); mongoerr.CodeOf(err) != mongoerr.BadValue {
		t.Errorf("parallel arrays: %v", err)
	}
}

func BenchmarkKey(b *testing.B) {
	p, _ := Parse(valuetest.Doc(b, `{"a": 1, "b": -1}`), nil)
	d := valuetest.Doc(b, `{"_id": 1, "x": "text", "a": 5, "b": "y"}`)
	var key []value.Value
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		key, _ = p.Key(key[:0], d, nil)
	}
}

func TestRandomOrder(t *testing.T) {
	p, err := Parse(valuetest.Doc(t, `{"x": {"$meta": "randVal"}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[float64]bool{}
	for range 20 {
		key, _ := p.Key(nil, valuetest.Doc(t, `{}`), nil)
		seen[key[0].AsFloat64()] = true
	}
	if len(seen) < 10 {
		t.Errorf("20 keys of a random order have %d values", len(seen))
	}
}
