package extsort

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

type rec struct{ k, v string }

func sortAll(t testing.TB, o Options, in []rec) ([]rec, Stats) {
	t.Helper()
	s := New(o)
	for _, r := range in {
		if err := s.Add([]byte(r.k), []byte(r.v)); err != nil {
			t.Fatal(err)
		}
	}
	it, err := s.Sort()
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	var out []rec
	for {
		k, v, ok, err := it.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return out, s.Stats()
		}
		out = append(out, rec{string(k), string(v)})
	}
}

func TestSort(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var in []rec
	for i := range 20000 {
		in = append(in, rec{fmt.Sprintf("%0*d", 1+r.IntN(12), r.IntN(3000)), fmt.Sprint(i)})
	}
	want := slices.Clone(in)
	slices.SortStableFunc(want, func(a, b rec) int { return bytes.Compare([]byte(a.k), []byte(b.k)) })
	reverse := func(a, b []byte) int { return bytes.Compare(b, a) }
	back := slices.Clone(in)
	slices.SortStableFunc(back, func(a, b rec) int { return reverse([]byte(a.k), []byte(b.k)) })
	dir := t.TempDir()
	for _, c := range []struct {
		name   string
		o      Options
		want   []rec
		spills bool
	}{
		{"in memory", Options{}, want, false},
		{"few runs on disk", Options{Memory: 200 << 10, Store: Dir(dir)}, want, true},
		{"many runs, two passes", Options{Memory: 8 << 10, Store: Memory{}}, want, true},
		{"other order", Options{Memory: 50 << 10, Store: Memory{}, Compare: reverse}, back, true},
		{"limit", Options{Limit: 100, Memory: 20 << 10}, want[:100], false},
		{"limit of one", Options{Limit: 1}, want[:1], false},
		{"large limit spills", Options{Limit: 15000, Memory: 100 << 10, Store: Memory{}}, want[:15000], true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, st := sortAll(t, c.o, in)
			if !slices.Equal(got, c.want) {
				t.Errorf("wrong order (%d records, want %d)", len(got), len(c.want))
			}
			if (st.Spills > 0) != c.spills {
				t.Errorf("%d spills", st.Spills)
			}
		})
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%d files left behind", len(left))
	}
}

func TestNoStore(t *testing.T) {
	s := New(Options{Memory: 100})
	var err error
	for range 10 {
		if err = s.Add(make([]byte, 30), nil); err != nil {
			break
		}
	}
	if err != ErrMemory {
		t.Errorf("got %v", err)
	}
}

func BenchmarkSort(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	const n = 100000
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = binary.BigEndian.AppendUint64([]byte{0x2C}, r.Uint64())
	}
	val := make([]byte, 100)
	for _, c := range []struct {
		name string
		o    Options
	}{{"memory", Options{}}, {"spilled", Options{Memory: 2 << 20, Store: Memory{}}}, {"top100", Options{Limit: 100}}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				s := New(c.o)
				for _, k := range keys {
					s.Add(k, val)
				}
				it, _ := s.Sort()
				for {
					if _, _, ok, _ := it.Next(); !ok {
						break
					}
				}
				it.Close()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/record")
		})
	}
}
