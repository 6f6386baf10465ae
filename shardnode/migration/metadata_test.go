package migration

import (
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

// tableOf returns a routing table of n chunks {_id: i} on one shard, the last of them on another if two are given.
func tableOf(t testing.TB, n int, shards ...string) *cluster.ChunkMap {
	t.Helper()
	key, err := cluster.ParseShardKey(value.Doc(value.F("_id", value.NewInt32(1))))
	if err != nil {
		t.Fatal(err)
	}
	bound := func(i int) []byte {
		v := value.NewInt32(int32(i))
		switch i {
		case 0:
			v = value.Value{T: value.MinKey}
		case n:
			v = value.Value{T: value.MaxKey}
		}
		return value.Doc(value.F("_id", v))
	}
	var generation cluster.ChunkVersion
	chunks := make([]*cluster.Chunk, n)
	for i := range chunks {
		chunks[i] = &cluster.Chunk{Min: bound(i), Max: bound(i + 1), Shard: shards[0], Version: generation.WithCombined(uint64(1<<32 + i))}
	}
	chunks[n-1].Shard = shards[len(shards)-1]
	m, err := cluster.NewChunkMap([16]byte{1}, key, false, generation, chunks)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The cost of a read's use of the routing table does not grow with the number of chunks. A list of all of a shard's chunks
// used to be made for every read, before the check whether more than one shard has any.
func TestOwnershipFilterDoesNotListChunks(t *testing.T) {
	s := &ShardState{ID: "a"}
	for _, shards := range [][]string{{"a"}, {"a", "b"}} {
		var allocs []float64
		for _, n := range []int{10, 10_000} {
			m := tableOf(t, n, shards...)
			allocs = append(allocs, testing.AllocsPerRun(100, func() { s.filter(m) }))
		}
		if allocs[1] > allocs[0] {
			t.Errorf("shards %v: a filter over 10 chunks allocates %v times, one over 10,000 chunks %v times", shards, allocs[0], allocs[1])
		}
	}
	if s.filter(tableOf(t, 10, "b")) == nil {
		t.Error("a shard that owns nothing of a collection does not filter it")
	}
}

func BenchmarkOwnershipFilter(b *testing.B) {
	s, m := &ShardState{ID: "a"}, tableOf(b, 100_000, "a", "b")
	b.ReportAllocs()
	for b.Loop() {
		s.filter(m)
	}
}

// A recipient is satisfied when few changes are outstanding (maxCatchUpPercentageBeforeBlockingWrites, which had no
// effect): a migration never completed beside writers that did not pause.
func TestRecipientIsContentWithFewChanges(t *testing.T) {
	r := &recipient{m: &Manager{Config: Config{Params: cluster.NewParams()}}}
	r.mu.docs = 1000
	if !r.fewLeft(100) || r.fewLeft(101) {
		t.Error("10 % of 1000 documents are not 100")
	}
	r.m.Params.Store("maxCatchUpPercentageBeforeBlockingWrites", value.NewInt32(0))
	if r.fewLeft(1) {
		t.Error("a change is left at 0 %")
	}
}
