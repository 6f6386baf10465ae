package cluster

import (
	"fmt"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func owned(h ...Owner) *Chunk {
	return &Chunk{Shard: h[0].Shard, OnSince: h[0].ValidAfter, Past: h[1:]}
}

func TestHistoriesOfMergedChunks(t *testing.T) {
	for _, tc := range []struct {
		name string
		of   []*Chunk
		want string
	}{
		{"alike", []*Chunk{owned(Owner{9, "a"}, Owner{3, "b"}), owned(Owner{9, "a"}, Owner{3, "b"})}, "[{9 a} {3 b}]"},
		{"one came later", []*Chunk{owned(Owner{9, "a"}, Owner{3, "b"}), owned(Owner{5, "a"}, Owner{3, "b"})}, "[{9 a}]"},
		{"one was elsewhere", []*Chunk{owned(Owner{9, "a"}, Owner{3, "b"}), owned(Owner{9, "a"}, Owner{3, "c"})}, "[{9 a}]"},
		{"one remembers less", []*Chunk{owned(Owner{9, "a"}, Owner{3, "b"}, Owner{1, "a"}), owned(Owner{9, "a"}, Owner{4, "b"})}, "[{9 a} {4 b}]"},
		{"three", []*Chunk{owned(Owner{2, "a"}), owned(Owner{2, "a"}), owned(Owner{7, "a"}, Owner{2, "b"})}, "[{7 a}]"},
	} {
		if got := fmt.Sprint(MergeHistories(tc.of)); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

// Entries from before the window are removed; the owner at its beginning stays.
func TestHistoriesAreCut(t *testing.T) {
	h := []Owner{{9, "a"}, {7, "b"}, {4, "c"}, {2, "d"}}
	for oldest, want := range map[uint64]string{0: "[{9 a} {7 b} {4 c} {2 d}]", 2: "[{9 a} {7 b} {4 c} {2 d}]", 3: "[{9 a} {7 b} {4 c} {2 d}]",
		4: "[{9 a} {7 b} {4 c}]", 8: "[{9 a} {7 b}]", 9: "[{9 a}]", 100: "[{9 a}]"} {
		if got := fmt.Sprint(TrimHistory(h, oldest)); got != want {
			t.Errorf("cut at %d: %s, want %s", oldest, got, want)
		}
	}
}

func TestTablesOfThePast(t *testing.T) {
	m, err := NewChunkMap([16]byte{1}, mustKey(t), false, cv(0, 0, 1, 5), []*Chunk{
		{Min: boundDoc("min"), Max: boundDoc("0"), Shard: "a", Version: cv(2, 1, 1, 5), OnSince: 1},
		{Min: boundDoc("0"), Max: boundDoc("10"), Shard: "b", Version: cv(2, 0, 1, 5), OnSince: 8, Past: []Owner{{5, "c"}, {1, "a"}}},
		{Min: boundDoc("10"), Max: boundDoc("max"), Shard: "b", Version: cv(1, 9, 1, 5), OnSince: 6},
	})
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[uint64]string{0: "[a b] b b", 9: "[a b] b b", 8: "[a b] b b", 7: "[a b c] c b", 5: "[a c] c ?", 2: "[a] a ?"} {
		past := m.At(at)
		got := fmt.Sprint(past.Shards())
		for _, key := range []string{"3", "30"} {
			owner, err := past.OwnerOf(past.Find([]value.Value{bound(key)}))
			if mongoerr.CodeOf(err) == mongoerr.StaleChunkHistory {
				owner = "?"
			} else if err != nil {
				t.Fatal(err)
			}
			got += " " + owner
		}
		if got != want {
			t.Errorf("at %d: %s, want %s", at, got, want)
		}
		set := map[string]struct{}{}
		err := past.ShardsFor(KeyRange{Low: []value.Value{bound("min")}, High: []value.Value{bound("max")}, HighIncl: true}, set)
		if unknown := at == 5 || at == 2; (mongoerr.CodeOf(err) == mongoerr.StaleChunkHistory) != unknown {
			t.Errorf("all at %d: %v, %v", at, set, err)
		}
	}
	if m.At(8) != m {
		t.Error("a table is copied although nothing has changed since")
	}
}

func mustKey(t *testing.T) *ShardKeyPattern {
	t.Helper()
	k, err := ParseShardKey(value.Doc(value.F("k", value.NewInt32(1))))
	if err != nil {
		t.Fatal(err)
	}
	return k
}
