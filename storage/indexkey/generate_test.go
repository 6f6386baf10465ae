package indexkey

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/storage/keystring"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func spec(t testing.TB, js string) *Spec {
	t.Helper()
	s, err := ParseSpec(valuetest.Doc(t, js))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// show prints a document's keys and its multikey masks.
func show(t testing.TB, s *Spec, g *Generator, doc string) string {
	var set KeySet
	if err := g.Keys(valuetest.Doc(t, doc), &set); err != nil {
		return fmt.Sprintf("%d %s", mongoerr.CodeOf(err), mongoerr.From(err).Message)
	}
	var out []string
	for i := range set.Len() {
		vs, ok := keystring.Decode(set.Key(i), set.TypeBits(i), s.Ordering(), s.KeyFields())
		if !ok {
			t.Fatalf("key %x does not decode", set.Key(i))
		}
		var parts []string
		for _, v := range vs {
			parts = append(parts, bsontext.Value(v))
		}
		out = append(out, strings.Join(parts, ","))
	}
	line := strings.Join(out, " | ")
	if set.IsMultikey() {
		line += fmt.Sprintf(" multikey %v", set.Multikey)
	}
	return line
}

func TestKeys(t *testing.T) {
	for _, c := range []struct{ spec, doc, want string }{
		{`{"key":{"a":1}}`, `{"a":5}`, `5`},
		{`{"key":{"a":1}}`, `{}`, `null`},
		{`{"key":{"a":1}}`, `{"a":null}`, `null`},
		{`{"key":{"a":1}}`, `{"a":[]}`, `undefined multikey [1]`},
		{`{"key":{"a":1}}`, `{"a":[1]}`, `1 multikey [1]`},
		{`{"key":{"a":1}}`, `{"a":[3,1,3,2]}`, `1 | 2 | 3 multikey [1]`},
		{`{"key":{"a":-1}}`, `{"a":[3,1,2]}`, `3 | 2 | 1 multikey [1]`},
		{`{"key":{"a":1}}`, `{"a":[[1,2],[]]}`, `[] | [ 1, 2 ] multikey [1]`},
		{`{"key":{"a":1}}`, `{"a":{"b":1}}`, `{ b: 1 }`},
		{`{"key":{"a":1,"b":-1}}`, `{"a":1,"b":"x"}`, `1,"x"`},
		{`{"key":{"a":1,"b":-1}}`, `{"a":[1,2],"b":"x"}`, `1,"x" | 2,"x" multikey [1 0]`},
		{`{"key":{"a":1,"b":1}}`, `{"a":[1,2],"b":[3]}`, `171 cannot index parallel arrays [b] [a]`},
		{`{"key":{"a":1,"b":1}}`, `{"a":[],"b":[]}`, `171 cannot index parallel arrays [b] [a]`},
		{`{"key":{"a.b":1}}`, `{"a":{"b":1}}`, `1`},
		{`{"key":{"a.b":1}}`, `{"a":1}`, `null`},
		{`{"key":{"a.b":1}}`, `{"a":[{"b":1},{"b":2},{},3]}`, `null | 1 | 2 multikey [1]`},
		{`{"key":{"a.b":1}}`, `{"a":[]}`, `null multikey [1]`},
		{`{"key":{"a.b":1}}`, `{"a":[{"b":[1,2]}]}`, `1 | 2 multikey [3]`},
		{`{"key":{"a.b":1}}`, `{"a":[{"b":[]}]}`, `undefined multikey [3]`},
		{`{"key":{"a.b":1}}`, `{"a":[[{"b":1}]]}`, `null multikey [1]`},
		{`{"key":{"a.b":1,"a.c":1}}`, `{"a":[{"b":1,"c":2},{"b":3}]}`, `1,2 | 3,null multikey [1 1]`},
		{`{"key":{"a.b":1,"a.c":1}}`, `{"a":[{"b":[1],"c":[2]}]}`, `171 cannot index parallel arrays [c] [b]`},
		{`{"key":{"a":1,"a.b":1}}`, `{"a":[{"b":1}]}`, `{ b: 1 },1 multikey [1 1]`},
		{`{"key":{"a.0":1}}`, `{"a":[5,6]}`, `5`},
		{`{"key":{"a.0":1}}`, `{"a":[[5,6]]}`, `[ 5, 6 ]`},
		{`{"key":{"a.0.b":1}}`, `{"a":[{"b":1},{"b":2}]}`, `1`},
		{`{"key":{"a.7":1}}`, `{"a":[5,6]}`, `null multikey [1]`},
		{`{"key":{"a.0":1}}`, `{"a":[{"0":1}]}`, `16746 Ambiguous field name found in array (do not use numeric field names in embedded elements in an array), field: '0' for array: [ { 0: 1 } ]`},
		{`{"key":{"a":1},"sparse":true}`, `{"b":1}`, ``},
		{`{"key":{"a":1},"sparse":true}`, `{"a":null}`, `null`},
		{`{"key":{"a":1},"sparse":true}`, `{"a":[]}`, `undefined multikey [1]`},
		{`{"key":{"a":1,"b":1},"sparse":true}`, `{"b":1}`, `null,1`},
		{`{"key":{"a.b":1},"sparse":true}`, `{"a":[1,2]}`, ` multikey [1]`},
		{`{"key":{"a":"hashed"}}`, `{"a":1}`, `5902408780260971510`},
		{`{"key":{"a":"hashed"}}`, `{"a":[1]}`, `16766 hashed indexes do not currently support array values. Found array at path: a`},
		{`{"key":{"b":1,"a":"hashed"}}`, `{"a":1.5,"b":[1,2]}`, `1,5902408780260971510 | 2,5902408780260971510 multikey [1 0]`},
		{`{"key":{"a":"hashed"},"sparse":true}`, `{}`, ``},
		{`{"key":{"$**":1}}`, `{"_id":1,"a":1,"b":{"c":"x","d":{}}}`, `"a",1 | "b.c","x" | "b.d",{}`},
		{`{"key":{"$**":1}}`, `{"a":[1,{"b":2},[3],[]]}`, `"a",1 | "a",[] | "a",[ 3 ] | "a.b",2 multikey [1]`},
		{`{"key":{"$**":1}}`, `{"a":[]}`, `"a",undefined multikey [1]`},
		{`{"key":{"$**":1}}`, `{"_id":1}`, ``},
		{`{"key":{"a.$**":1}}`, `{"a":{"b":1},"ab":2}`, `"a.b",1`},
		{`{"key":{"a.$**":1}}`, `{"a":7}`, `"a",7`},
		{`{"key":{"$**":1},"wildcardProjection":{"a":1,"b.c":1}}`, `{"a":{"x":1},"b":{"c":2,"d":3},"e":4}`, `"a.x",1 | "b.c",2`},
		{`{"key":{"$**":1},"wildcardProjection":{"a":0}}`, `{"a":{"x":1},"b":2}`, `"b",2`},
		{`{"key":{"$**":1},"wildcardProjection":{"_id":1,"a":0}}`, `{"_id":9,"a":1,"b":2}`, `"_id",9 | "b",2`},
		{`{"key":{"z":1,"$**":-1},"wildcardProjection":{"z":0}}`, `{"z":5,"a":1,"b":2}`, `5,"a",1 | 5,"b",2`},
		{`{"key":{"z":1,"$**":1},"wildcardProjection":{"z":0}}`, `{"z":5}`, `5,MinKey,MinKey`},
		{`{"key":{"$**":1,"z":1},"wildcardProjection":{"z":0}}`, `{"a":1}`, `"a",1,null`},
		{`{"key":{"z":1,"$**":1},"wildcardProjection":{"z":0}}`, `{"z":[1],"a":1}`, `7246301 Non-wildcard field of compound wildcard index cannot be multikey`},
	} {
		s := spec(t, c.spec)
		g, err := NewGenerator(s, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := show(t, s, g, c.doc); got != c.want {
			t.Errorf("%s of %s:\n got %s\nwant %s", c.spec, c.doc, got, c.want)
		}
	}
}

func TestFilterAndDiff(t *testing.T) {
	s := spec(t, `{"key":{"a":1}}`)
	g, _ := NewGenerator(s, Options{Filter: func(doc []byte) (bool, error) { return value.Lookup(doc, "keep").Truthy(), nil }})
	if got := show(t, s, g, `{"a":1}`) + show(t, s, g, `{"a":1,"keep":true}`); got != "1" {
		t.Errorf("filtered: %q", got)
	}
	g, _ = NewGenerator(s, Options{})
	var before, after KeySet
	if err := g.Keys(valuetest.Doc(t, `{"a":[1,2,3]}`), &before); err != nil {
		t.Fatal(err)
	}
	if err := g.Keys(valuetest.Doc(t, `{"a":[2,{"$numberDouble":"3"},4]}`), &after); err != nil {
		t.Fatal(err)
	}
	var log []string
	note := func(what string) func(k, tb []byte) {
		return func(k, tb []byte) {
			vs, _ := keystring.Decode(k, tb, 0, 1)
			log = append(log, what+vs[0].T.Name()+bsontext.Value(vs[0]))
		}
	}
	Diff(&before, &after, note("-"), note("+"))
	if got := strings.Join(log, " "); !strings.HasPrefix(got, "-int1 -int3 +double3") || !strings.HasSuffix(got, "+int4") {
		t.Errorf("diff: %s", got)
	}
}

func BenchmarkKeys(b *testing.B) {
	doc := valuetest.Doc(b, `{"_id":{"$oid":"0123456789abcdef01234567"},"name":"some customer","a":5,"b":{"c":7},"tags":["x","y","z"]}`)
	for _, c := range []struct{ name, spec string }{
		{"id", `{"key":{"_id":1}}`}, {"compound", `{"key":{"name":1,"a":-1}}`}, {"dotted", `{"key":{"b.c":1}}`}, {"multikey", `{"key":{"tags":1}}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			g, _ := NewGenerator(spec(b, c.spec), Options{})
			var set KeySet
			for b.Loop() {
				if err := g.Keys(doc, &set); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
