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
	out, entry := show(doc)+"\n", u.OplogEntry(ctx, doc)
	if entry == nil {
		return out
	}
	diff := applyTwice(t, ctx.Doc, entry, doc)
	return out + "delta " + show(diff) + "\n"
}

// applyTwice checks that an oplog entry makes want of old, and of what it has made already, and returns its delta.
func applyTwice(t *testing.T, old, entry, want []byte) (diff []byte) {
	t.Helper()
	diff = value.Lookup(entry, "diff").Doc()
	if err := bson.Raw(entry).Validate(); err != nil || value.Lookup(entry, "$v").Int32() != 2 || diff == nil {
		t.Fatalf("the entry is %s (%v)", show(entry), err)
	}
	again, err := ApplyDiff(old, diff)
	if err != nil || string(again) != string(want) {
		t.Fatalf("delta %s makes %s (%v) of %s, want %s", show(diff), show(again), err, show(old), show(want))
	}
	twice, err := ApplyDiff(again, diff)
	if err != nil || string(twice) != string(want) {
		t.Fatalf("delta %s applied twice makes %s (%v), want %s", show(diff), show(twice), err, show(want))
	}
	return diff
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

// BenchmarkLogged applies updates to a document of 300 bytes and makes their oplog entries.
func BenchmarkLogged(b *testing.B) {
	pad := strings.Repeat("x", 250)
	for _, c := range []struct{ name, doc, u string }{
		{"set", `{"_id": 1, "a": 1, "pad": "` + pad + `"}`, `{"$set": {"a": 7}}`},
		{"setNew", `{"_id": 1, "a": 1, "pad": "` + pad + `"}`, `{"$set": {"z": 7}}`},
		{"setThree", `{"_id": 1, "a": 1, "b": 2, "c": {"d": 3}, "pad": "` + pad + `"}`, `{"$set": {"c.d": 7, "b": 8, "a": 9}}`},
		{"inc", `{"_id": 1, "a": 1, "pad": "` + pad + `"}`, `{"$inc": {"a": 1}}`},
		{"unset", `{"_id": 1, "a": 1, "pad": "` + pad + `"}`, `{"$unset": {"a": 1}}`},
		{"push", `{"_id": 1, "a": [1, 2, 3, 4, 5], "pad": "` + pad + `"}`, `{"$push": {"a": 7}}`},
		{"pushSlice", `{"_id": 1, "a": [1, 2, 3, 4, 5], "pad": "` + pad + `"}`, `{"$push": {"a": {"$each": [7], "$slice": -5}}}`},
		{"pop", `{"_id": 1, "a": [1, 2, 3, 4, 5], "pad": "` + pad + `"}`, `{"$pop": {"a": 1}}`},
		{"setElement", `{"_id": 1, "a": [1, 2, 3, 4, 5], "pad": "` + pad + `"}`, `{"$set": {"a.3": 9}}`},
		{"all", `{"_id": 1, "a": [1, 2, 3, 4, 5], "pad": "` + pad + `"}`, `{"$inc": {"a.$[]": 1}}`},
	} {
		b.Run("update="+c.name, func(b *testing.B) {
			up, err := Compile(value.NewDocument(valuetest.Doc(b, c.u)), Options{})
			if err != nil {
				b.Fatal(err)
			}
			doc := valuetest.Doc(b, c.doc)
			b.ReportAllocs()
			for b.Loop() {
				ctx := &Context{Doc: doc, Positional: -1}
				now, _, err := up.Apply(ctx)
				if err != nil || up.OplogEntry(ctx, now) == nil {
					b.Fatal(err)
				}
			}
		})
	}
}
