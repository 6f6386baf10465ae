package catalog

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
)

func testCollection(ns string, n int) *Collection {
	c := &Collection{NS: ns}
	binary.BigEndian.PutUint64(c.UUID[4:], uint64(n))
	return c
}

// Random changes compared with a map: each earlier catalog stays unchanged while others are derived from it and read.
func TestCatalogsAreImmutable(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	type version struct {
		cat  *Snapshot
		want map[string]*Collection
	}
	all := []version{{Empty(), map[string]*Collection{}}}
	for i := range 2000 {
		from := all[max(0, len(all)-1-rnd.IntN(3))]
		next := version{from.cat, maps.Clone(from.want)}
		ns := fmt.Sprintf("%s.c%d", []string{"a", "a-b", "b", "ab"}[rnd.IntN(4)], rnd.IntN(30))
		if old := from.want[ns]; old != nil && rnd.IntN(2) == 0 {
			next.cat = from.cat.Without(old)
			delete(next.want, ns)
		} else {
			c := testCollection(ns, i+1)
			next.cat = from.cat.With(old, c)
			next.want[ns] = c
		}
		all = append(all, next)
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := w; i < len(all); i += 4 {
				compare(t, all[i].cat, all[i].want)
				all[i].cat.With(nil, testCollection("x.y", 1<<30))
			}
		})
	}
	wg.Wait()
}

func compare(t *testing.T, s *Snapshot, want map[string]*Collection) {
	dbs := map[string]bool{}
	for ns, c := range want {
		dbs[c.DB()] = true
		if s.Lookup(ns) != c || s.LookupUUID(c.UUID) != c {
			t.Errorf("%s is not found", ns)
		}
	}
	var names []string
	for _, c := range s.All() {
		names = append(names, c.NS)
	}
	sorted := slices.SortedFunc(maps.Keys(want), func(x, y string) int {
		if d := slices.Compare([]string{DBOf(x)}, []string{DBOf(y)}); d != 0 {
			return d
		}
		return slices.Compare([]string{x}, []string{y})
	})
	if !slices.Equal(names, sorted) || s.Len() != len(want) {
		t.Errorf("the catalog lists %d: %v, want %v", s.Len(), names, sorted)
	}
	if got := s.Databases(); !slices.Equal(got, slices.Sorted(maps.Keys(dbs))) {
		t.Errorf("databases %v", got)
	}
	if s.HasDatabase("a") != dbs["a"] || s.HasDatabase("") || s.HasDatabase("c") {
		t.Error("HasDatabase is wrong")
	}
}

// Every change copied the maps of its database, and history keeps every catalog of the last minutes: 2,500 collections cost 276 MB.
func TestHistoryOfManyCollectionsIsSmall(t *testing.T) {
	const collections = 2500
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var made []*Collection
	for i := range collections {
		made = append(made, testCollection(fmt.Sprintf("db.c%d", i), i))
	}
	before := heap()
	history := []*Snapshot{Empty()}
	for _, c := range made {
		history = append(history, history[len(history)-1].With(nil, c))
	}
	if per := int(heap()-before) / collections; per > 8<<10 {
		t.Errorf("each change of the catalog keeps %d bytes", per)
	} else {
		t.Logf("each change of the catalog keeps %d bytes", per)
	}
	if history[collections].Len() != collections {
		t.Error("collections are missing")
	}
	runtime.KeepAlive(made)
}

func BenchmarkLookup(b *testing.B) {
	s := Empty()
	for i := range 2500 {
		s = s.With(nil, testCollection(fmt.Sprintf("db.collection%d", i), i))
	}
	for b.Loop() {
		if s.Lookup("db.collection1234") == nil {
			b.Fatal("it is not there")
		}
	}
}
