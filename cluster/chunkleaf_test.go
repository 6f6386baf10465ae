package cluster

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// manyChunks makes n chunks over some shards, every bound a multiple of ten.
func manyChunks(n, shards int) []*Chunk {
	out := make([]*Chunk, n)
	names := make([]string, shards)
	for i := range names {
		names[i] = "s" + strconv.Itoa(i)
	}
	next := value.Doc(value.F("k", value.NewMinKey()))
	for i := range out {
		end := value.Doc(value.F("k", value.NewInt64(int64(i+1)*10)))
		if i == n-1 {
			end = value.Doc(value.F("k", value.NewMaxKey()))
		}
		out[i] = &Chunk{Min: next, Max: end, Shard: names[i%shards], Version: cv(1, uint32(i), 1, 5), OnSince: 7}
		next = end
	}
	return out
}

func tableOf(t testing.TB, chunks []*Chunk) *ChunkMap {
	t.Helper()
	key, err := ParseShardKey(value.Doc(value.F("k", value.NewInt32(1))))
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewChunkMap([16]byte{1}, key, false, cv(0, 0, 1, 5), chunks)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// sameTables compares the results of every method of two tables.
func sameTables(t *testing.T, what string, got, want *ChunkMap) {
	t.Helper()
	if got.Len() != want.Len() || got.Version() != want.Version() || !slices.Equal(got.Shards(), want.Shards()) {
		t.Fatalf("%s: %d chunks, %s, %v; want %d, %s, %v", what, got.Len(), got.Version(), got.Shards(), want.Len(), want.Version(), want.Shards())
	}
	for _, s := range want.Shards() {
		if got.ShardVersion(s) != want.ShardVersion(s) || got.Arrived(s) != want.Arrived(s) || got.CountOf(s) != want.CountOf(s) {
			t.Fatalf("%s: %s: %s since %d with %d, want %s since %d with %d", what, s, got.ShardVersion(s), got.Arrived(s), got.CountOf(s),
				want.ShardVersion(s), want.Arrived(s), want.CountOf(s))
		}
	}
	have := slices.Collect(got.All())
	for i, c := range slices.Collect(want.All()) {
		g := have[i]
		if !bytes.Equal(g.Min, c.Min) || !bytes.Equal(g.Max, c.Max) || g.Shard != c.Shard || g.Version != c.Version || g.OnSince != c.OnSince ||
			g.Jumbo != c.Jumbo || !slices.Equal(g.Past, c.Past) {
			t.Fatalf("%s: chunk %d is %+v, want %+v", what, i, g, c)
		}
	}
	for _, at := range []uint64{1, 7, 20, 60} {
		if g, w := got.At(at).Shards(), want.At(at).Shards(); !slices.Equal(g, w) {
			t.Fatalf("%s: at %d: %v, want %v", what, at, g, w)
		}
	}
}

// A table updated by splits, merges and moves one by one equals, after each, a table built from all chunks at that point;
// earlier tables do not change.
func TestUpdatesOfATableOfManyLeaves(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	const shards = 9
	m := tableOf(t, manyChunks(3000, shards))
	first := tableOf(t, manyChunks(3000, shards))
	kept := m
	key := func(n int64) []byte { return value.Doc(value.F("k", value.NewInt64(n))) }
	clock := uint64(10)
	for step := range 400 {
		all := slices.Collect(m.All())
		v := m.Version()
		var changed []*Chunk
		for range 1 + r.IntN(3) {
			i := r.IntN(len(all))
			c := *all[i]
			c.minV, c.maxV = nil, nil
			clock++
			switch r.IntN(4) {
			case 0: // a split, if there is room
				lo, hi := value.Values(c.Min)[0], value.Values(c.Max)[0]
				a, ok := lo.AsInt64()
				b, ok2 := hi.AsInt64()
				if !ok || !ok2 || b-a < 2 {
					continue
				}
				v = v.IncMinor()
				left, right := c, c
				left.Max, left.Version = key((a+b)/2), v
				v = v.IncMinor()
				right.Min, right.Version = key((a+b)/2), v
				changed = append(changed, &left, &right)
			case 1: // a merge of many
				j := min(len(all)-1, i+r.IntN(400))
				v = v.IncMinor()
				c.Max, c.Version, c.Past = all[j].Max, v, nil
				changed = append(changed, &c)
			default: // a move, sometimes of all chunks of a shard
				to := "s" + strconv.Itoa(r.IntN(shards+3))
				v = v.IncMajor()
				c.Past = append([]Owner{{c.OnSince, c.Shard}}, c.Past...)
				c.Shard, c.OnSince, c.Version, c.Jumbo = to, clock, v, r.IntN(5) == 0
				changed = append(changed, &c)
			}
		}
		if len(changed) == 0 {
			continue
		}
		next, err := m.Update(changed)
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		model := all
		for _, c := range all {
			c.decode()
		}
		model = overlay(model, changed)
		sameTables(t, fmt.Sprintf("step %d", step), next, tableOf(t, model))
		for range 20 {
			k := []value.Value{value.NewInt64(r.Int64N(30_000))}
			var want *Chunk
			for _, c := range model {
				if c.Contains(k) {
					want = c
				}
			}
			if got := next.Find(k); got.Shard != want.Shard || !bytes.Equal(got.Min, want.Min) {
				t.Fatalf("step %d: %v is in %+v, want %+v", step, k, got, want)
			}
			below := next.FindBelow(k)
			if lo, hi := below.Bounds(); CompareKeys(lo, k) >= 0 || CompareKeys(hi, k) < 0 {
				t.Fatalf("step %d: below %v: %s", step, k, value.ShowDoc(below.Min))
			}
			end := []value.Value{value.NewInt64(k[0].Int64() + r.Int64N(5000))}
			got, all := map[string]struct{}{}, map[string]struct{}{}
			if err := next.ShardsFor(KeyRange{Low: k, High: end, HighIncl: true}, got); err != nil {
				t.Fatal(err)
			}
			for _, c := range model {
				if lo, hi := c.Bounds(); CompareKeys(lo, end) <= 0 && CompareKeys(hi, k) > 0 {
					all[c.Shard] = struct{}{}
				}
			}
			if len(got) != len(all) {
				t.Fatalf("step %d: [%v, %v] is on %v, want %v", step, k, end, got, all)
			}
		}
		m = next
	}
	sameTables(t, "the first table", kept, first)
}

// The costs of a table depend on what changed: the figures in docs/performance.md.
func BenchmarkChunkMap(b *testing.B) {
	for _, n := range []int{1_000, 100_000, 1_000_000} {
		chunks := manyChunks(n, 100)
		b.Run(fmt.Sprintf("load/%d", n), func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			var m *ChunkMap
			for b.Loop() {
				for _, c := range chunks {
					c.minV, c.maxV = nil, nil
				}
				m = tableOf(b, chunks)
			}
			for _, c := range chunks {
				c.minV, c.maxV = nil, nil
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(n), "bytes/chunk")
			runtime.KeepAlive(m)
		})
		m := tableOf(b, chunks)
		keys := make([][]value.Value, 4096)
		r := rand.New(rand.NewPCG(1, 2))
		for i := range keys {
			keys[i] = []value.Value{value.NewInt64(r.Int64N(int64(n) * 10))}
		}
		b.Run(fmt.Sprintf("point/%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				m.Find(keys[i%len(keys)])
			}
		})
		b.Run(fmt.Sprintf("owns/%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				_, _ = m.Owns("s1", keys[i%len(keys)])
			}
		})
		b.Run(fmt.Sprintf("split/%d", n), func(b *testing.B) {
			c := *m.Find(keys[0])
			v := m.Version()
			left, right := c, c
			at := value.Doc(value.F("k", value.NewInt64(keys[0][0].Int64()/10*10+5)))
			left.Max, left.Version = at, v.IncMinor()
			right.Min, right.Version = at, v.IncMinor().IncMinor()
			for b.Loop() {
				left.minV, right.minV = nil, nil
				if _, err := m.Update([]*Chunk{&left, &right}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The costs of a refresh after one split and of targeting a point do not grow with the number of chunks.
func TestCostsDoNotGoWithTheNumberOfChunks(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a table of a million chunks")
	}
	cost := func(n int) (refresh, point time.Duration) {
		m := tableOf(t, manyChunks(n, 100))
		k := []value.Value{value.NewInt64(int64(n) * 5)}
		c := *m.Find(k)
		c.Version = m.Version().IncMinor()
		refresh, point = time.Hour, time.Hour
		for range 20 { // the best of several: the machine has other work
			began := time.Now()
			c.minV, c.maxV = nil, nil
			if _, err := m.Update([]*Chunk{&c}); err != nil {
				t.Fatal(err)
			}
			refresh = min(refresh, time.Since(began))
			began = time.Now()
			for range 100 {
				m.Find(k)
			}
			point = min(point, time.Since(began)/100)
		}
		return refresh, point
	}
	refresh, point := cost(1_000_000)
	t.Logf("a refresh takes %s, a point %s", refresh, point)
	if refresh > time.Millisecond || point > 2*time.Microsecond {
		t.Errorf("a refresh takes %s, a point %s", refresh, point)
	}
}

// A scan of a sharded collection asks for the owner of each document.
func TestOwnersTakeNoMemory(t *testing.T) {
	m := tableOf(t, manyChunks(1000, 100))
	for _, v := range []value.Value{value.NewInt64(-5), value.NewInt64(math.MinInt64), value.NewString("x"), value.NewDouble(1.5), value.NewObjectID([12]byte{1})} {
		key := []value.Value{v}
		if n := testing.AllocsPerRun(1000, func() { _, _ = m.Owns("s1", key) }); n >= 1 {
			t.Errorf("the owner of a key of type %v takes %v allocations", v.T, n)
		}
	}
}

func TestPlaceOfIntegersOfAllTypes(t *testing.T) {
	m := tableOf(t, manyChunks(1000, 100))
	for _, i := range []int64{math.MinInt64, math.MinInt64 + 1, -1 << 40, -1, 0, 1, 9, 10, 4321, 1 << 40, math.MaxInt64} {
		at, j, ok := m.find(appendKey(nil, []value.Value{value.NewInt64(i)}))
		l, k := m.place([]value.Value{value.NewInt64(i)})
		if ok && (l != m.leaves[at] || j != k) {
			t.Errorf("%d is in chunk %d instead of %d", i, k, j)
		}
		if o, n := m.place([]value.Value{value.NewDouble(float64(i))}); i>>53 == 0 && (o != l || n != k) {
			t.Errorf("%d as a double is in chunk %d instead of %d", i, n, k)
		}
	}
}
