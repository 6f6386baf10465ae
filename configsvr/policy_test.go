package configsvr

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

const mb = 1 << 20

func keyOf(n int) []byte { return value.Doc(fld("k", value.NewInt32(int32(n)))) }

// spread creates a table of chunks [0,1), [1,2) … with one owner each; the first and the last extend to the ends of the key space.
func spread(t testing.TB, owners []string, jumbo ...int) *cluster.ChunkMap {
	t.Helper()
	key, err := cluster.ParseShardKey(value.Doc(fld("k", value.NewInt32(1))))
	if err != nil {
		t.Fatal(err)
	}
	gen := cluster.ChunkVersion{Timestamp: 1}
	chunks := make([]*cluster.Chunk, len(owners))
	for i, s := range owners {
		c := &cluster.Chunk{Min: keyOf(i), Max: keyOf(i + 1), Shard: s, Version: gen.WithCombined(1<<32 | uint64(i))}
		if i == 0 {
			c.Min = key.GlobalMin()
		}
		if i == len(owners)-1 {
			c.Max = key.GlobalMax()
		}
		chunks[i] = c
	}
	for _, i := range jumbo {
		chunks[i].Jumbo = true
	}
	m, err := cluster.NewChunkMap([16]byte{1}, key, false, gen, chunks)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func shardsOf(n int, draining ...int) []*cluster.Shard {
	var out []*cluster.Shard
	for i := range n {
		out = append(out, &cluster.Shard{ID: fmt.Sprintf("s%d", i)})
	}
	for _, i := range draining {
		out[i].Draining = true
	}
	return out
}

func show(moves []move) string {
	out := ""
	for _, mv := range moves {
		out += fmt.Sprintf("%s: %s %s>%s; ", mv.why, value.ShowDoc(mv.min), mv.from, mv.to)
	}
	return out
}

func TestPlansOfTheBalancer(t *testing.T) {
	sizes := func(mbs ...int64) map[string]int64 {
		out := make(map[string]int64)
		for i, n := range mbs {
			if n >= 0 {
				out[fmt.Sprintf("s%d", i)] = n * mb
			}
		}
		return out
	}
	zone := func(lo, hi int, name string) zoneRange { return zoneRange{keyOf(lo), keyOf(hi), name} }
	tagged := func(shards []*cluster.Shard, at int, zone string) []*cluster.Shard {
		shards[at].Tags = append(shards[at].Tags, zone)
		return shards
	}
	for _, c := range []struct {
		name   string
		owners []string
		jumbo  []int
		shards []*cluster.Shard
		zones  []zoneRange
		size   map[string]int64
		busy   string
		want   string
	}{
		{name: "less than three chunks apart", owners: []string{"s0"}, shards: shardsOf(2), size: sizes(2, 0)},
		{name: "one chunk alone", owners: []string{"s0"}, shards: shardsOf(2), size: sizes(9, 0), want: `size: { k: MinKey } s0>s1; `},
		{name: "pairs that share no shard", owners: []string{"s0", "s1", "s2", "s3"}, shards: shardsOf(4), size: sizes(20, 15, 3, 1),
			want: `size: { k: MinKey } s0>s3; size: { k: 1 } s1>s2; `},
		{name: "a busy shard", owners: []string{"s0", "s1", "s2", "s3"}, shards: shardsOf(4), size: sizes(20, 15, 3, 1), busy: "s0",
			want: `size: { k: 1 } s1>s3; `},
		{name: "a shard that did not tell", owners: []string{"s0", "s1", "s2"}, shards: shardsOf(3), size: sizes(20, 1, -1),
			want: `size: { k: MinKey } s0>s1; `},
		{name: "jumbo", owners: []string{"s0", "s0", "s1"}, jumbo: []int{0}, shards: shardsOf(2), size: sizes(20, 1), want: `size: { k: 1 } s0>s1; `},
		{name: "all jumbo", owners: []string{"s0", "s1"}, jumbo: []int{0, 1}, shards: shardsOf(2), size: sizes(20, 1)},
		{name: "draining before balance", owners: []string{"s0", "s1", "s2"}, shards: shardsOf(3, 1), size: sizes(20, 1, 0),
			want: `draining: { k: 1 } s1>s2; `},
		{name: "two draining", owners: []string{"s0", "s1", "s2", "s3"}, shards: shardsOf(4, 0, 1), size: sizes(5, 4, 3, 2),
			want: `draining: { k: MinKey } s0>s3; draining: { k: 1 } s1>s2; `},
		{name: "empty and draining", owners: []string{"s0", "s1"}, shards: shardsOf(2, 0), size: sizes(0, 0), want: `draining: { k: MinKey } s0>s1; `},
		{name: "outside its zone", owners: []string{"s0", "s0", "s1"}, shards: tagged(shardsOf(3), 1, "z"), zones: []zoneRange{zone(1, 2, "z")}, size: sizes(1, 1, 1),
			want: `zone: { k: 1 } s0>s1; `},
		{name: "a zone over a bound is not moved", owners: []string{"s0", "s0"}, shards: tagged(shardsOf(2), 1, "z"), zones: []zoneRange{zone(1, 2, "z")}, size: sizes(1, 1)},
		{name: "balance within a zone", owners: []string{"s0", "s1", "s1"}, shards: tagged(tagged(shardsOf(4), 1, "z"), 2, "z"),
			zones: []zoneRange{{keyOf(1), value.Doc(fld("k", value.NewMaxKey())), "z"}}, size: sizes(0, 30, 1, 0), want: `size: { k: 1 } s1>s2; `},
		{name: "both above the mean", owners: []string{"s0", "s1", "s2"}, shards: shardsOf(3), size: sizes(20, 16, 0), busy: "s2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &distribution{ns: "d.c", table: spread(t, c.owners, c.jumbo...), shards: c.shards, zones: c.zones, size: c.size, unit: mb}
			busy := make(map[string]bool)
			if c.busy != "" {
				busy[c.busy] = true
			}
			if got := show(d.plan(busy)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestChunksOverZonesAreSplit(t *testing.T) {
	d := &distribution{table: spread(t, []string{"s0", "s1"}), zones: []zoneRange{
		{keyOf(-9), keyOf(-5), "a"}, {keyOf(-5), keyOf(1), "b"}, {keyOf(7), value.Doc(fld("k", value.NewMaxKey())), "c"}}}
	got := ""
	for _, z := range d.zoneSplits() {
		got += value.ShowDoc(z.chunk.Min) + ":"
		for _, p := range z.points {
			got += " " + value.ShowDoc(p)
		}
		got += "; "
	}
	if want := "{ k: MinKey }: { k: -9 } { k: -5 }; { k: 1 }: { k: 7 }; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A thousand shards with a million chunks are balanced: no round takes long to plan, every move reduces the difference between
// two shards, and no chunk moves twice.
func TestBalancerSimulation(t *testing.T) {
	nShards, nChunks := 1000, 1_000_000
	if testing.Short() {
		nShards, nChunks = 40, 4_000
	}
	shards := shardsOf(nShards)
	rnd := rand.New(rand.NewPCG(1, 2))
	owners := make([]string, nChunks)
	size := make(map[string]int64, nShards)
	for _, s := range shards {
		size[s.ID] = 0
	}
	for i := range owners { // a tenth of the shards have nearly all chunks
		at := rnd.IntN(nShards)
		if i%20 != 0 {
			at = rnd.IntN(nShards / 10)
		}
		owners[i] = shards[at].ID
		size[owners[i]] += mb
	}
	table := spread(t, owners)
	twice := make(map[string]bool)
	var longest time.Duration
	best := time.Hour // the machine has other work
	rounds, moves := 0, 0
	for ; ; rounds++ {
		d := &distribution{ns: "d.c", table: table, shards: shards, size: size, unit: mb}
		began := time.Now()
		plan := d.plan(make(map[string]bool))
		longest, best = max(longest, time.Since(began)), min(best, time.Since(began))
		if len(plan) == 0 || rounds == 60 && !testing.Short() {
			break
		}
		var changed []*cluster.Chunk
		v := table.Version().IncMajor()
		for _, mv := range plan {
			if size[mv.from]-size[mv.to] < imbalance*mb || twice[string(mv.min)] {
				t.Fatalf("round %d: a useless move of %s: %d and %d", rounds, value.ShowDoc(mv.min), size[mv.from], size[mv.to])
			}
			twice[string(mv.min)] = true
			size[mv.from] -= mb
			size[mv.to] += mb
			c := *table.Find(value.Values(mv.min))
			c.Shard, c.Version = mv.to, v
			changed = append(changed, &c)
			v = v.IncMinor()
			moves++
		}
		var err error
		if table, err = table.Update(changed); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d rounds, %d moves, the longest plan took %s", rounds, moves, longest)
	if best > time.Second {
		t.Errorf("a plan took %s", best)
	}
	if testing.Short() { // to its end
		low, high := int64(1)<<60, int64(0)
		for _, n := range size {
			low, high = min(low, n), max(high, n)
		}
		if high-low >= imbalance*mb {
			t.Errorf("shards with %d to %d MB", low/mb, high/mb)
		}
	}
}
