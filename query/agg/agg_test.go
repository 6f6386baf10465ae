package agg

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sort"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// memHost holds collections in memory.
type memHost struct {
	colls map[string][][]byte
	views map[string]view

	indexed bool
}

type view struct {
	on       string
	pipeline []value.Value
}

func (h *memHost) Resolve(ctx context.Context, ns Namespace) (Namespace, []value.Value, error) {
	v, ok := h.views[ns.Coll]
	if !ok {
		return ns, nil, nil
	}
	on, p, err := h.Resolve(ctx, Namespace{ns.DB, v.on})
	return on, append(append([]value.Value(nil), p...), v.pipeline...), err
}

func (h *memHost) Find(ctx context.Context, ns Namespace, q Query) (Source, error) {
	var stages []value.Value
	if q.Filter != nil {
		stages = append(stages, doc(f("$match", value.NewDocument(q.Filter))))
	}
	if q.Sort != nil {
		stages = append(stages, doc(f("$sort", value.NewDocument(q.Sort))))
	}
	if q.Skip > 0 {
		stages = append(stages, doc(f("$skip", value.NewInt64(q.Skip))))
	}
	if q.Limit > 0 {
		stages = append(stages, doc(f("$limit", value.NewInt64(q.Limit))))
	}
	p, err := ParseStages(stages, &Options{NS: ns, Host: h})
	if err != nil {
		return nil, err
	}
	return p.Run(NewSliceSource(h.colls[ns.Coll]))
}

// Indexed determines whether joins by fields use queries or a hash table; TestJoinTable compares the two.
func (h *memHost) Indexed(Namespace, string, []byte) bool { return h.indexed }

func (h *memHost) Info(context.Context, Namespace, string, value.Value) (Source, error) {
	return NewSliceSource(nil), nil
}

func (h *memHost) Writer(_ context.Context, w WriteSpec) (Writer, error) {
	return &memWriter{h: h, w: w}, nil
}

func (h *memHost) Spill() Spiller { return memSpiller{} }

type memWriter struct {
	h    *memHost
	w    WriteSpec
	docs [][]byte
}

func (w *memWriter) Write(_ context.Context, d []byte, let []value.Value) error {
	w.docs = append(w.docs, append([]byte(nil), d...))
	return nil
}
func (w *memWriter) Commit(context.Context) error { w.h.colls[w.w.NS.Coll] = w.docs; return nil }
func (w *memWriter) Abort(context.Context)        {}

type memSpiller struct{}

func (memSpiller) Create() (SpillFile, error) { return &memFile{}, nil }

type memFile struct{ bytes.Buffer }

func (m *memFile) Reader() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(m.Bytes())), nil
}
func (m *memFile) Close() error { return nil }

// run is one way to run a pipeline.
type run func(p value.Value, h *memHost, o Options) ([][]byte, error)

func whole(p value.Value, h *memHost, o Options) ([][]byte, error) {
	pipe, err := Parse(p, &o)
	if err != nil {
		return nil, err
	}
	src, err := pipe.Run(NewSliceSource(h.colls["c"]))
	if err != nil {
		return nil, err
	}
	return Drain(context.Background(), src)
}

// pushed optimises, and has the host run what it can.
func pushed(p value.Value, h *memHost, o Options) ([][]byte, error) {
	pipe, err := Parse(p, &o)
	if err != nil {
		return nil, err
	}
	src, err := (&exec{opts: &o, host: h}).open(context.Background(), pipe, o.NS)
	if err != nil {
		return nil, err
	}
	return Drain(context.Background(), src)
}

// sharded runs the shard part on every third document each, from its serialised form, and merges.
func sharded(p value.Value, h *memHost, o Options) ([][]byte, error) {
	pipe, err := Parse(p, &o)
	if err != nil {
		return nil, err
	}
	pipe.Optimize()
	split := pipe.Split()
	var all [][]byte
	for shard := 0; shard < 3; shard++ {
		local := &memHost{colls: map[string][][]byte{}, views: h.views}
		for i, d := range h.colls["c"] {
			if i%3 == shard {
				local.colls["c"] = append(local.colls["c"], d)
			}
		}
		part := o
		part.FromRouter = true
		docs, err := whole(split.Shard.Wire(), local, part)
		if err != nil {
			return nil, err
		}
		all = append(all, docs...)
	}
	if split.MergeSort != nil {
		st, err := Parse(array(doc(f("$sort", value.NewDocument(split.MergeSort)))), &o)
		if err != nil {
			return nil, err
		}
		src, _ := st.Run(NewSliceSource(all))
		if all, err = Drain(context.Background(), src); err != nil {
			return nil, err
		}
	}
	if split.Merge == nil {
		return all, nil
	}
	src, err := split.Merge.Run(NewSliceSource(all))
	if err != nil {
		return nil, err
	}
	return Drain(context.Background(), src)
}

// spilling runs with so little memory that every stage that can spill does.
func spilling(p value.Value, h *memHost, o Options) ([][]byte, error) {
	o.MemoryLimit, o.AllowDiskUse = 200, true
	return whole(p, h, o)
}

func outcome(docs [][]byte, err error, ordered bool) string {
	if err != nil {
		e := mongoerr.From(err)
		return fmt.Sprintf("error %d: %s\n", e.Code, e.Message)
	}
	lines := make([]string, len(docs))
	for i, d := range docs {
		lines[i] = bson.Raw(d).String()
	}
	if !ordered {
		sort.Strings(lines)
	}
	if len(lines) == 0 {
		return "nothing\n"
	}
	return strings.Join(lines, "\n") + "\n"
}

// TestPipelines runs testdata/*. "docs" loads a collection, "view" defines one; "agg" runs a pipeline over c in every
// mode, and all must agree: as written; optimised and pushed down; split over three shards and merged; spilling. The
// argument any means that the order of the result is not defined; memory, that one of its stages cannot spill; only, that
// the modes may differ.
func TestPipelines(t *testing.T) {
	ways := map[string]run{"whole": whole, "pushed": pushed, "sharded": sharded, "spilling": spilling}
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		h := &memHost{colls: map[string][][]byte{}, views: map[string]view{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "docs":
				var docs [][]byte
				for _, line := range strings.Split(d.Input, "\n") {
					docs = append(docs, valuetest.Value(t, line).Doc())
				}
				h.colls[d.CmdArgs[0].Key] = docs
				return ""
			case "view":
				h.views[d.CmdArgs[0].Key] = view{d.CmdArgs[1].Key, value.Values(valuetest.Value(t, d.Input).Doc())}
				return ""
			}
			pipeline := valuetest.Value(t, d.Input)
			o := Options{NS: Namespace{"db", "c"}, Host: h}
			docs, err := whole(pipeline, h, o)
			if d.Cmd == "explain" {
				p, err := Parse(pipeline, &o)
				if err != nil {
					return outcome(nil, err, true)
				}
				p.Optimize()
				var out [][]byte
				for _, s := range value.Values(p.Serialize().Doc()) {
					out = append(out, s.Doc())
				}
				return outcome(out, nil, true)
			}
			ordered := !d.HasArg("any")
			want := outcome(docs, err, ordered)
			for name, way := range ways {
				if d.HasArg("only") || name == "spilling" && d.HasArg("memory") {
					continue
				}
				docs, err := way(pipeline, h, o)
				if got := outcome(docs, err, ordered && name != "spilling" || ordered && !strings.Contains(d.Input, "$group")); got != want && name != "spilling" {
					t.Errorf("%s: %s gives\n%s\nnot\n%s", d.Pos, name, got, want)
				} else if name == "spilling" && outcome(docs, err, false) != outcomeSorted(want) {
					t.Errorf("%s: spilling gives\n%s\nnot\n%s", d.Pos, got, want)
				}
			}
			return want
		})
	})
}

func outcomeSorted(s string) string {
	lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	sort.Strings(lines)
	return strings.Join(lines, "\n") + "\n"
}

// TestJoinTable joins values of all kinds by a hash table and by queries; both must agree.
func TestJoinTable(t *testing.T) {
	var docs [][]byte
	for i, v := range []string{`1`, `1.0`, `"a"`, `null`, `[1, "a"]`, `[]`, `[[1]]`, `{"b": 1}`, `{"b": [1, 2]}`, `[{"b": 1}, {"c": 2}]`, `[{"b": null}, 5]`,
		`{"b": null}`, `{"c": 1}`, `[[{"b": 1}]]`, `{"0": {"b": 3}}`} {
		docs = append(docs, value.Doc(f("_id", value.NewInt32(int32(i))), f("a", valuetest.Value(t, v))))
	}
	docs = append(docs, value.Doc(f("_id", value.NewInt32(99))))
	h := &memHost{colls: map[string][][]byte{"c": docs, "o": docs}}
	for _, paths := range [][2]string{{"a", "a"}, {"a.b", "a.b"}, {"a", "a.b"}, {"a.b", "a"}, {"a.0", "a"}, {"a", "a.0.b"}} {
		p := array(doc(f("$lookup", doc(f("from", str("o")), f("localField", str(paths[0])), f("foreignField", str(paths[1])), f("as", str("x"))))))
		var got [2]string
		for i := range got {
			h.indexed = i == 1
			docs, err := whole(p, h, Options{NS: Namespace{"db", "c"}, Host: h})
			got[i] = outcome(docs, err, true)
		}
		if got[0] != got[1] {
			t.Errorf("%v: a table gives\n%s\nqueries give\n%s", paths, got[0], got[1])
		}
	}
}
