package projection

import (
	"testing"

	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

const sample = `{"_id":1,"a":{"b":1,"c":[1,2,3]},"d":[{"x":1,"y":1},5,{"x":2},[{"x":3,"y":3}]],"e":"s","f":null}`

func find(t *testing.T, spec, filter string) (*Projection, error) {
	t.Helper()
	var m *match.Matcher
	if filter != "" {
		var err error
		if m, err = match.Compile(valuetest.Doc(t, filter), nil); err != nil {
			t.Fatal(err)
		}
	}
	return Compile(valuetest.Doc(t, spec), &Options{Filter: m})
}

func TestFind(t *testing.T) {
	for _, c := range []struct{ spec, doc, want string }{
		{`{}`, sample, sample},
		{`{"e":1}`, sample, `{"_id":1,"e":"s"}`},
		{`{"e":1,"_id":0}`, sample, `{"e":"s"}`},
		{`{"_id":1}`, sample, `{"_id":1}`},
		{`{"_id":0}`, `{"_id":1,"a":2}`, `{"a":2}`},
		{`{"a":0,"_id":1}`, `{"_id":1,"a":2,"b":3}`, `{"_id":1,"b":3}`},
		{`{"f":1,"e":1}`, sample, `{"_id":1,"e":"s","f":null}`},
		{`{"a.b":1}`, sample, `{"_id":1,"a":{"b":1}}`},
		{`{"a":{"b":1}}`, sample, `{"_id":1,"a":{"b":1}}`},
		{`{"a":{"b":0},"d":0,"e":0}`, sample, `{"_id":1,"a":{"c":[1,2,3]},"f":null}`},
		{`{"d.x":1}`, sample, `{"_id":1,"d":[{"x":1},{"x":2},[{"x":3}]]}`},
		{`{"d.x":0,"a":0}`, sample, `{"_id":1,"d":[{"y":1},5,{},[{"y":3}]],"e":"s","f":null}`},
		{`{"e.z":1}`, sample, `{"_id":1}`},
		{`{"e.z":0,"d":0,"a":0}`, sample, `{"_id":1,"e":"s","f":null}`},
		{`{"missing":1}`, sample, `{"_id":1}`},
		{`{"g":"$e","e":1}`, sample, `{"_id":1,"e":"s","g":"s"}`},
		{`{"e":"new"}`, sample, `{"_id":1,"e":"new"}`},
		{`{"a.z":"$e","_id":0}`, sample, `{"a":{"z":"s"}}`},
		{`{"d.z":"$e","_id":0}`, sample, `{"d":[{"z":"s"},{"z":"s"},{"z":"s"},[{"z":"s"}]]}`},
		{`{"n.m":"$e","_id":0}`, sample, `{"n":{"m":"s"}}`},
		{`{"a.b":1,"a.z":"$e","_id":0}`, sample, `{"a":{"b":1,"z":"s"}}`},
		{`{"a.c":{"$slice":2},"d":0,"e":0,"f":0}`, sample, `{"_id":1,"a":{"b":1,"c":[1,2]}}`},
		{`{"a.c":{"$slice":-1},"_id":1}`, sample, `{"_id":1,"a":{"c":[3]}}`},
		{`{"a.c":{"$slice":[1,1]},"_id":1}`, sample, `{"_id":1,"a":{"c":[2]}}`},
		{`{"a.c":{"$slice":[-5,2]},"_id":1}`, sample, `{"_id":1,"a":{"c":[1,2]}}`},
		{`{"e":{"$slice":1},"_id":1}`, sample, `{"_id":1,"e":"s"}`},
		{`{"d":{"$elemMatch":{"x":2}}}`, sample, `{"_id":1,"d":[{"x":2}]}`},
		{`{"d":{"$elemMatch":{"$gt":4}},"e":1}`, sample, `{"_id":1,"e":"s","d":[5]}`},
		{`{"d":{"$elemMatch":{"x":9}}}`, sample, `{"_id":1}`},
		{`{"d":{"$elemMatch":{"x":2}},"a":0}`, sample, `{"_id":1,"d":[{"x":2}],"e":"s","f":null}`},
	} {
		p, err := find(t, c.spec, "")
		if err != nil {
			t.Errorf("%s: %v", c.spec, err)
			continue
		}
		out, err := p.Apply([]byte("kept"), valuetest.Doc(t, c.doc), nil)
		if err != nil || string(out[:4]) != "kept" {
			t.Errorf("%s: %v", c.spec, err)
			continue
		}
		want := valuetest.JSON(t, valuetest.Doc(t, c.want))
		if got := valuetest.JSON(t, out[4:]); got != want {
			t.Errorf("%s\n got %s\nwant %s", c.spec, got, want)
		}
	}
}

func TestPositional(t *testing.T) {
	for _, c := range []struct {
		spec, filter, doc, want string
		code                    mongoerr.Code
	}{
		{`{"a.$":1}`, `{"a":{"$gt":1}}`, `{"_id":1,"a":[1,2,3],"b":1}`, `{"_id":1,"a":[2]}`, 0},
		{`{"a.b.$":1}`, `{"a.b":2}`, `{"a":{"b":[1,2]}}`, `{"a":{"b":[2]}}`, 0},
		{`{"a.$":1}`, `{"a.b":2}`, `{"a":[{"b":1},{"b":2}]}`, `{"a":[{"b":2}]}`, 0},
		{`{"a.$":1}`, `{"b":1}`, `{"a":[1],"b":1}`, ``, 51246},
		{`{"b.$":1}`, `{"a":2}`, `{"a":[1,2],"b":[1]}`, ``, 51247},
		{`{"b.$":1}`, `{"a":2}`, `{"a":[1,2],"b":7}`, `{"b":7}`, 0},
	} {
		p, err := find(t, c.spec, c.filter)
		if err != nil {
			t.Fatal(err)
		}
		out, err := p.Apply(nil, valuetest.Doc(t, c.doc), nil)
		if mongoerr.CodeOf(err) != c.code {
			t.Errorf("%s: %v", c.spec, err)
		} else if err == nil && valuetest.JSON(t, out) != c.want {
			t.Errorf("%s: got %s, want %s", c.spec, valuetest.JSON(t, out), c.want)
		}
	}
}

func TestFindErrors(t *testing.T) {
	for _, c := range []struct {
		spec string
		code mongoerr.Code
	}{
		{`{"a":1,"b":0}`, 31254}, {`{"a":0,"b":1}`, 31253}, {`{"a":0,"b":"x"}`, 31310}, {`{"a":0,"b":{"$add":[1]}}`, 31252},
		{`{"a.b":1,"a":1}`, 31250}, {`{"a":1,"a.b":1}`, 31249}, {`{"a":{}}`, 51270}, {`{"":1}`, 40352}, {`{"a.":1}`, 40353},
		{`{"a..b":1}`, 15998}, {`{"$a":1}`, 16410}, {`{"a":{"$bogus":1}}`, 31325}, {`{"a":{"$add":[1],"b":1}}`, 16410},
		{`{"a.$.b":1}`, 31394}, {`{"a.$":1,"b.$":1}`, 31276}, {`{"a.$":{"$slice":1}}`, 31271}, {`{"a.$":"x"}`, 31308}, {`{"a.$":0}`, 31395},
		{`{"a":{"$elemMatch":1}}`, 31274}, {`{"a.b":{"$elemMatch":{}}}`, 31275}, {`{"a.$":1,"b":{"$elemMatch":{}}}`, 31255},
		{`{"b":{"$elemMatch":{}},"a.$":1}`, 31256}, {`{"a":{"$elemMatch":{"b":{"$near":[0,0]}}}}`, 5626500}, {`{"a":{"$elemMatch":{"$jsonSchema":{}}}}`, mongoerr.QueryFeatureNotAllowed},
		{`{"a.$":1,"a.b":1}`, 31249}, {`{"a.$.b.$":1}`, 31394},
	} {
		if _, err := find(t, c.spec, ""); mongoerr.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want %d", c.spec, err, c.code)
		}
	}
}

func TestMessagesOfPaths(t *testing.T) {
	for spec, want := range map[string]string{
		`{"a":1,"a.b":1}`:         "Path collision at a.b remaining portion b",
		`{"foo.c":1,"foo.c.d":1}`: "Path collision at foo.c.d remaining portion c.d", // of the whole path, wherever it collides
		`{"v":{}}`:                "An empty sub-projection is not a valid value. Found empty object at path",
	} {
		if _, err := find(t, spec, ""); err == nil || mongoerr.From(err).Message != want {
			t.Errorf("%s: %v, want %s", spec, err, want)
		}
	}
}

func TestStages(t *testing.T) {
	for _, c := range []struct {
		stage     Stage
		arg, want string
		code      mongoerr.Code
	}{
		{Project, `{"s":{"e":1,"n":{"$literal":1}}}`, `{"_id":1,"e":"s","n":1}`, 0},
		{Project, `{"s":{"_id":null,"e":1}}`, `{"e":"s","_id":null}`, 0},
		{Project, `{"s":{"_id":"$$REMOVE"}}`, `{}`, 0},
		{Project, `{"s":{}}`, ``, 51272},
		{Project, `{"s":1}`, ``, 15969},
		{Project, `{"s":{"a.$":1}}`, ``, 31324},
		{AddFields, `{"s":{"e":2,"n":3}}`, `{"_id":1,"a":{"b":1,"c":[1,2,3]},"e":2,"n":3}`, 0},
		{Set, `{"s":{"a":{"z":1}}}`, `{"_id":1,"a":{"b":1,"c":[1,2,3],"z":1},"e":"s"}`, 0},
		{Set, `{"s":{"a":{}}}`, `{"_id":1,"a":{},"e":"s"}`, 0},
		{Set, `{"s":{"e":"$$REMOVE"}}`, `{"_id":1,"a":{"b":1,"c":[1,2,3]}}`, 0},
		{Set, `{"s":{"e":"$_id","_id":"$e"}}`, `{"_id":"s","a":{"b":1,"c":[1,2,3]},"e":1}`, 0},
		{Set, `{"s":{"a":1,"a.b":1}}`, ``, 40176},
		{Set, `{"s":{"a":{"b.c":1}}}`, ``, 40183},
		{Set, `{"s":{"a":{"$add":[1],"$b":1}}}`, ``, 40181},
		{Set, `{"s":[1]}`, ``, 40272},
		{Unset, `{"s":"a.b"}`, `{"_id":1,"a":{"c":[1,2,3]},"e":"s"}`, 0},
		{Unset, `{"s":["a","e"]}`, `{"_id":1}`, 0},
		{Unset, `{"s":[]}`, ``, 31119},
		{Unset, `{"s":[1]}`, ``, 31120},
		{Unset, `{"s":1}`, ``, 31002},
		{Unset, `{"s":["a","a"]}`, ``, 31250},
	} {
		arg := value.Lookup(valuetest.Doc(t, c.arg), "s")
		p, err := CompileStage(c.stage, arg, nil)
		if mongoerr.CodeOf(err) != c.code {
			t.Errorf("%s %s: %v, want %d", c.stage, c.arg, err, c.code)
		}
		if err != nil {
			continue
		}
		out, err := p.Apply(nil, valuetest.Doc(t, `{"_id":1,"a":{"b":1,"c":[1,2,3]},"e":"s"}`), nil)
		if err != nil || valuetest.JSON(t, out) != c.want {
			t.Errorf("%s %s: got %s, want %s (%v)", c.stage, c.arg, valuetest.JSON(t, out), c.want, err)
		}
	}
}

// A projection of more fields than fit in a word of bits works like one of few.
func TestManyFields(t *testing.T) {
	var spec, doc []value.Field
	for i := 0; i < 200; i++ {
		name := string(rune('a'+i%26)) + string(rune('a'+i/26))
		doc = append(doc, value.F(name, value.NewInt32(int32(i))))
		if i%2 == 0 {
			spec = append(spec, value.F(name, value.NewInt32(1)))
		} else {
			spec = append(spec, value.F(name, value.NewString("$aa")))
		}
	}
	p, err := Compile(value.Doc(spec...), nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.Apply(nil, value.Doc(doc...), nil)
	if err != nil || value.Count(out) != 200 || value.Lookup(out, "ba").Int32() != 0 {
		t.Errorf("%d fields, %v", value.Count(out), err)
	}
}

func TestMeta(t *testing.T) {
	p, err := find(t, `{"score":{"$meta":"textScore"},"a":0}`, "")
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.Apply(nil, valuetest.Doc(t, `{"a":1,"b":2}`), &Meta{TextScore: value.NewDouble(1.5)})
	if err != nil || valuetest.JSON(t, out) != `{"b":2,"score":1.5}` {
		t.Errorf("%s %v", valuetest.JSON(t, out), err)
	}
	if m := p.Metas(); len(m) != 1 || m[0] != "textScore" {
		t.Errorf("metas %v", m)
	}
}

func TestDeps(t *testing.T) {
	for _, c := range []struct {
		spec  string
		whole bool
		paths int
	}{
		{`{"a":1,"b.c":1,"_id":0}`, false, 2}, {`{"a":1}`, false, 2}, {`{"a":0}`, true, 0}, {`{"a":"$b","_id":0}`, false, 1}, {`{"a":"$$ROOT"}`, true, 1},
	} {
		p, err := find(t, c.spec, "")
		if err != nil {
			t.Fatal(err)
		}
		if paths, whole := p.Deps(); whole != c.whole || len(paths) != c.paths {
			t.Errorf("%s: %v %v", c.spec, paths, whole)
		}
	}
}

func BenchmarkApply(b *testing.B) {
	doc := value.Doc(value.F("_id", value.NewInt32(1)), value.F("name", value.NewString("some name of a customer")), value.F("qty", value.NewInt32(42)),
		value.F("price", value.NewDouble(1.5)), value.F("status", value.NewString("A")), value.F("address", value.NewDocument(value.Doc(value.F("city", value.NewString("Berlin")), value.F("zip", value.NewString("10115"))))),
		value.F("tags", value.NewArray(value.ArrayOf(value.NewString("red"), value.NewString("blue")))), value.F("notes", value.NewString("a somewhat longer text that nobody asks for in these queries, or hardly anybody does")))
	one := value.NewInt32(1)
	for _, c := range []struct {
		name string
		spec []byte
	}{
		{"include", value.Doc(value.F("qty", one), value.F("status", one))},
		{"exclude", value.Doc(value.F("notes", value.NewInt32(0)))},
		{"nested", value.Doc(value.F("address.city", one))},
		{"computed", value.Doc(value.F("n", value.NewString("$name")))},
	} {
		p, err := Compile(c.spec, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			var out []byte
			for i := 0; i < b.N; i++ {
				out, _ = p.Apply(out[:0], doc, nil)
			}
		})
	}
}
