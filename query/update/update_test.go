package update

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func show(b []byte) string { return bson.Raw(b).String() }

func outcome(err error) string {
	e := mongoerr.From(err)
	return fmt.Sprintf("error %d: %s\n", e.Code, e.Message)
}

// TestUpdates runs testdata/*: each case consists of lines "name value", at least doc and u; the output is the new
// document and its oplog delta, or the error. Every delta is also applied to the old document.
func TestUpdates(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			in := map[string]string{}
			for _, line := range strings.Split(d.Input, "\n") {
				name, v, _ := strings.Cut(line, " ")
				in[name] = v
			}
			return runCase(t, d.Cmd, in)
		})
	})
}

func runCase(t *testing.T, cmd string, in map[string]string) string {
	var opts Options
	if af, ok := in["filters"]; ok {
		opts.HasFilters = true
		opts.ArrayFilters = value.Values(value.Lookup(valuetest.Doc(t, `{"f":`+af+`}`), "f").Doc())
	}
	u, err := Compile(value.Lookup(valuetest.Doc(t, `{"u":`+in["u"]+`}`), "u").Clone(), opts)
	if err != nil {
		return outcome(err)
	}
	ctx := &Context{Positional: -1, NowMS: 1700000000000, ClusterTime: 1700000000<<32 | 1}
	if p, ok := in["positional"]; ok {
		fmt.Sscan(p, &ctx.Positional)
	}
	if cmd == "upsert" {
		doc, err := u.NewUpsertDocument(valuetest.Doc(t, in["q"]), ctx, func() value.Value { return value.NewString("new") })
		if err != nil {
			return outcome(err)
		}
		return show(doc) + "\n"
	}
	ctx.Doc = valuetest.Doc(t, in["doc"])
	doc, changed, err := u.Apply(ctx)
	if err != nil {
		return outcome(err)
	}
	if !changed {
		return "unchanged\n"
	}
	diff, ok := Diff(ctx.Doc, doc)
	again, err := ApplyDiff(ctx.Doc, diff)
	if err != nil || string(again) != string(doc) {
		t.Fatalf("delta %s gives %s (%v), want %s", show(diff), show(again), err, show(doc))
	}
	twice, err := ApplyDiff(again, diff)
	if err != nil || string(twice) != string(doc) {
		t.Fatalf("delta %s applied twice gives %s (%v), want %s", show(diff), show(twice), err, show(doc))
	}
	out := show(doc) + "\n"
	if ok {
		out += "delta " + show(diff) + "\n"
	}
	return out
}

func TestMayTouch(t *testing.T) {
	u, err := Compile(value.NewDocument(valuetest.Doc(t, `{"$set": {"a.b": 1, "c.3.d": 1, "e.$[].f": 1}}`)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		"a": true, "a.b": true, "a.b.c": true, "a.c": false, "ab": false, "c": true, "c.d": true, "c.e": false, "e.f": true, "e.g": false,
	} {
		if got := u.MayTouch(path); got != want {
			t.Errorf("MayTouch(%s) = %v", path, got)
		}
	}
}

func benchApply(b *testing.B, u string) {
	up, err := Compile(value.NewDocument(valuetest.Doc(b, u)), Options{})
	if err != nil {
		b.Fatal(err)
	}
	doc := value.Doc(value.F("_id", value.NewInt32(1)), value.F("a", value.NewInt32(1)),
		value.F("name", value.NewString("somebody")), value.F("pad", value.NewString(strings.Repeat("x", 250))))
	ctx := &Context{Doc: doc, Positional: -1, Buf: make([]byte, 0, 1024)}
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		if _, _, err := up.Apply(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSetTopLevel(b *testing.B) { benchApply(b, `{"$set": {"a": 7}}`) }
func BenchmarkIncTopLevel(b *testing.B) { benchApply(b, `{"$inc": {"a": 1}}`) }
func BenchmarkSetNewField(b *testing.B) { benchApply(b, `{"$set": {"z": 7}}`) }
func BenchmarkDiff(b *testing.B) {
	old := valuetest.Doc(b, `{"_id": 1, "a": 1, "b": {"c": 1, "d": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}, "e": [1, 2, 3]}`)
	now := valuetest.Doc(b, `{"_id": 1, "a": 2, "b": {"c": 2, "d": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}, "e": [1, 2, 3, 4]}`)
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		Diff(old, now)
	}
}
