package agg

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/expr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

// fileSpiller spills to files, which take no memory.
type fileSpiller struct {
	dir string
	n   int
}

func (s *fileSpiller) Create() (SpillFile, error) {
	s.n++
	f, err := os.Create(filepath.Join(s.dir, fmt.Sprint(s.n)))
	return diskFile{f}, err
}

type diskFile struct{ *os.File }

func (f diskFile) Reader() (io.ReadCloser, error) { return os.Open(f.Name()) }

type fileHost struct {
	memHost
	spiller *fileSpiller
}

func (h *fileHost) Spill() Spiller { return h.spiller }

// manyDocs yields documents {t, p, pad} by descending t.
type manyDocs struct {
	left int
	pad  value.Value
}

func (m *manyDocs) Close() {}

func (m *manyDocs) Next(context.Context) (Doc, bool, error) {
	if m.left == 0 {
		return Doc{}, false, nil
	}
	m.left--
	return Doc{Raw: value.Doc(value.F("t", value.NewInt32(int32(m.left*2))), value.F("p", value.NewInt32(int32(m.left%3))), value.F("pad", m.pad))}, true, nil
}

// $densify held its whole input in memory, whatever its limit was.
func TestDensifySpills(t *testing.T) {
	const docs, size, limit = 40_000, 2_000, 4 << 20 // 80 MB
	for _, arg := range []string{
		`{"field": "t", "range": {"step": 1, "bounds": "full"}}`,
		`{"field": "t", "range": {"step": 1, "bounds": [0, 100000]}}`,
		`{"field": "t", "partitionByFields": ["p"], "range": {"step": 1, "bounds": "partition"}}`,
		`{"field": "t", "partitionByFields": ["p"], "range": {"step": 2, "bounds": "full"}}`,
	} {
		h := &fileHost{spiller: &fileSpiller{dir: t.TempDir()}}
		pipe, err := Parse(valuetest.Value(t, `[{"$densify": `+arg+`}]`), &Options{NS: Namespace{"db", "c"}, Host: h, AllowDiskUse: true, MemoryLimit: limit})
		if err != nil {
			t.Fatal(err)
		}
		before := liveHeap()
		src, err := pipe.Run(&manyDocs{left: docs, pad: value.NewString(strings.Repeat("x", size))})
		if err != nil {
			t.Fatal(err)
		}
		n, peak := 0, uint64(0)
		for {
			_, ok, err := src.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			if n++; n%10_000 == 1 {
				peak = max(peak, liveHeap())
			}
		}
		src.Close()
		if n < 2*docs-2 {
			t.Errorf("%s: %d documents", arg, n)
		}
		if h.spiller.n == 0 || peak > before+4*limit {
			t.Errorf("%s: %d files, and %d MB of %d in memory", arg, h.spiller.n, (peak-before)>>20, docs*size>>20)
		}
	}
}

func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// The densifier returns what a simple one does that has all documents in memory.
func TestDensifyAgainstAModel(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 7))
		var docs [][]byte
		for i := range r.IntN(12) {
			fs := []value.Field{value.F("_id", value.NewInt32(int32(i)))}
			if r.IntN(8) > 0 {
				fs = append(fs, value.F("t", value.NewInt32(int32(r.IntN(20)))))
			}
			if r.IntN(8) > 0 {
				fs = append(fs, value.F("p", value.NewInt32(int32(r.IntN(3)))))
			}
			docs = append(docs, value.Doc(fs...))
		}
		step, parted, bounds := 1+r.IntN(4), r.IntN(2) == 0, []string{"full", "partition", "explicit"}[r.IntN(3)]
		lo := r.IntN(10)
		hi := lo + r.IntN(15)
		parted = parted || bounds == "partition"
		arg := fmt.Sprintf(`{"field": "t", "range": {"step": %d, "bounds": "%s"}`, step, bounds)
		if bounds == "explicit" {
			arg = fmt.Sprintf(`{"field": "t", "range": {"step": %d, "bounds": [%d, %d]}`, step, lo, hi)
		}
		if parted {
			arg += `, "partitionByFields": ["p"]`
		}
		for _, limit := range []int64{0, 2_000} {
			pipe, err := Parse(valuetest.Value(t, `[{"$densify": `+arg+`}}]`), &Options{NS: Namespace{"db", "c"}, Host: &memHost{}, AllowDiskUse: true, MemoryLimit: limit})
			if err != nil {
				t.Fatal(err)
			}
			src, err := pipe.Run(NewSliceSource(docs))
			if err != nil {
				t.Fatal(err)
			}
			got, err := Drain(t.Context(), src)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			want := modelDensify(docs, int64(step), int64(lo), int64(hi), bounds, parted)
			if !slices.EqualFunc(got, want, bytes.Equal) {
				t.Fatalf("seed %d: %s of\n%sgives\n%snot\n%s", seed, arg, outcome(docs, nil, true), outcome(got, nil, true), outcome(want, nil, true))
			}
		}
	}
}

func modelDensify(docs [][]byte, step, lo, hi int64, bounds string, parted bool) (out [][]byte) {
	at := func(d []byte) value.Value { return value.Lookup(d, "t") }
	part := func(d []byte) value.Value {
		if !parted {
			return value.Value{}
		}
		return value.Lookup(d, "p")
	}
	sorted := slices.Clone(docs)
	slices.SortStableFunc(sorted, func(a, b []byte) int {
		if c := value.Compare(part(a), part(b)); bounds == "partition" && c != 0 {
			return c
		}
		return value.Compare(at(a), at(b))
	})
	var parts []value.Value
	groups := map[string][][]byte{}
	var valued [][]byte
	for _, d := range sorted {
		if at(d).IsNullish() {
			out = append(out, d)
			continue
		}
		k := value.Show(part(d))
		if groups[k] == nil {
			parts = append(parts, part(d))
		}
		groups[k] = append(groups[k], d)
		valued = append(valued, d)
	}
	if len(parts) == 0 && bounds == "explicit" && !parted {
		parts = append(parts, value.Value{})
	}
	var made [][]byte
	for _, p := range parts {
		group := groups[value.Show(p)]
		has := map[int64]bool{}
		for _, d := range group {
			n, _ := at(d).AsInt64()
			has[n] = true
		}
		from, to := lo, hi-1
		ends := valued
		if bounds == "partition" {
			ends = group
		}
		if bounds != "explicit" {
			from, _ = at(ends[0]).AsInt64()
			to, _ = at(ends[len(ends)-1]).AsInt64()
		}
		all := slices.Clone(group)
		for v := from; v <= to; v += step {
			if has[v] {
				continue
			}
			var fs []value.Field
			if p.T != value.Missing {
				fs = append(fs, value.F("p", p))
			}
			all = append(all, value.Doc(append(fs, value.F("t", value.NewInt32(int32(v))))...))
		}
		slices.SortStableFunc(all, func(a, b []byte) int { return value.Compare(at(a), at(b)) })
		made = append(made, all...)
	}
	if bounds != "partition" {
		slices.SortStableFunc(made, func(a, b []byte) int { return value.Compare(at(a), at(b)) })
	}
	return append(out, made...)
}

// Under a collation the documents of one partition may have different values of its fields: a generated document has those of the document that follows.
func TestDensifiedPartitionsUnderACollation(t *testing.T) {
	h := &fileHost{spiller: &fileSpiller{dir: t.TempDir()}}
	spec, err := collation.Parse(valuetest.Value(t, `{"locale": "en", "strength": 1}`).Doc())
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := Parse(valuetest.Value(t, `[{"$densify": {"field": "v", "partitionByFields": ["p"], "range": {"step": 5, "bounds": "partition"}}}]`),
		&Options{NS: Namespace{"db", "c"}, Host: h, MemoryLimit: 1 << 20, Scope: expr.NewScope(&expr.Env{Collator: spec.Collator()})})
	if err != nil {
		t.Fatal(err)
	}
	var docs [][]byte
	for _, d := range []string{`{"p": "apple", "v": 0}`, `{"p": "Apple", "v": 10}`, `{"p": "APPLE", "v": 15}`, `{"p": "pear", "v": 0}`, `{"p": "pear", "v": 10}`} {
		docs = append(docs, valuetest.Value(t, d).Doc())
	}
	src, err := pipe.Run(NewSliceSource(docs))
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	got := ""
	for {
		d, ok, err := src.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		got += value.Lookup(d.Raw, "p").Str() + " "
	}
	if want := "apple Apple Apple APPLE pear pear pear "; got != want {
		t.Errorf("partitions %s, want %s", got, want)
	}
}
