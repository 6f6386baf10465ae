package cluster

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/shoaldb/shoal/query/value"
)

// bound reads "min", "max" or a number as a bound of the key {k: 1}.
func bound(s string) value.Value {
	switch s {
	case "min":
		return value.NewMinKey()
	case "max":
		return value.NewMaxKey()
	}
	n, _ := strconv.ParseInt(s, 10, 64)
	return value.NewInt64(n)
}

func boundDoc(s string) []byte { return value.Doc(value.F("k", bound(s))) }

func boundString(v value.Value) string {
	switch v.T {
	case value.MinKey:
		return "min"
	case value.MaxKey:
		return "max"
	}
	return strconv.FormatInt(v.Int64(), 10)
}

// readChunks reads lines "lo hi shard major|minor".
func readChunks(t *testing.T, text string) []*Chunk {
	var out []*Chunk
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		f := strings.Fields(line)
		if len(f) != 4 {
			t.Fatalf("a chunk is lo hi shard major|minor, got %q", line)
		}
		var c Chunk
		c.Min, c.Max, c.Shard = boundDoc(f[0]), boundDoc(f[1]), f[2]
		c.Version = cv(0, 0, 1, 5)
		if _, err := fmt.Sscanf(f[3], "%d|%d", &c.Version.Major, &c.Version.Minor); err != nil {
			t.Fatal(err)
		}
		out = append(out, &c)
	}
	return out
}

func printMap(m *ChunkMap) string {
	var b strings.Builder
	for i := 0; i < m.Len(); i++ {
		c := m.Chunk(i)
		lo, hi := c.Bounds()
		fmt.Fprintf(&b, "%s %s %s %d|%d\n", boundString(lo[0]), boundString(hi[0]), c.Shard, c.Version.Major, c.Version.Minor)
	}
	fmt.Fprintf(&b, "collection %d|%d", m.Version().Major, m.Version().Minor)
	for _, s := range m.Shards() {
		fmt.Fprintf(&b, " %s %d|%d", s, m.ShardVersion(s).Major, m.ShardVersion(s).Minor)
	}
	return b.String() + "\n"
}

func TestChunkMap(t *testing.T) {
	key, err := ParseShardKey(value.Doc(value.F("k", value.NewInt32(1))))
	if err != nil {
		t.Fatal(err)
	}
	var m *ChunkMap
	datadriven.RunTest(t, "testdata/chunkmap", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "new":
			n, err := NewChunkMap([16]byte{1}, key, false, cv(0, 0, 1, 5), readChunks(t, d.Input))
			if err != nil {
				return err.Error() + "\n"
			}
			m = n
			return printMap(m)
		case "update":
			old := printMap(m)
			n, err := m.Update(readChunks(t, d.Input))
			if printMap(m) != old {
				t.Errorf("%s: the old map changed", d.Pos)
			}
			if err != nil {
				return err.Error() + "\n"
			}
			m = n
			return printMap(m)
		case "find":
			var out []string
			for _, k := range strings.Fields(d.Input) {
				out = append(out, k+" "+m.Find([]value.Value{bound(k)}).Shard)
			}
			return strings.Join(out, "\n") + "\n"
		case "range":
			f := strings.Fields(d.Input)
			set := map[string]struct{}{}
			m.ShardsFor(KeyRange{Low: []value.Value{bound(f[0])}, High: []value.Value{bound(f[1])}, HighIncl: len(f) > 2}, set)
			var out []string
			for s := range set {
				out = append(out, s)
			}
			sort.Strings(out)
			return strings.Join(out, " ") + "\n"
		}
		return "unknown command\n"
	})
}

func TestUpdateOfAnotherEpochIsRefused(t *testing.T) {
	key, _ := ParseShardKey(value.Doc(value.F("k", value.NewInt32(1))))
	m, err := NewChunkMap([16]byte{1}, key, false, cv(0, 0, 1, 5), readChunks(t, "min max s0 1|0"))
	if err != nil {
		t.Fatal(err)
	}
	c := readChunks(t, "min max s1 2|0")
	c[0].Version.Epoch = Epoch{9}
	if _, err := m.Update(c); err == nil {
		t.Fatal("a chunk of another epoch was accepted")
	}
}

func BenchmarkChunkMapFind(b *testing.B) {
	key, _ := ParseShardKey(value.Doc(value.F("k", value.NewInt32(1))))
	const n = 10000
	chunks := make([]*Chunk, n)
	for i := range chunks {
		lo, hi := strconv.Itoa(i), strconv.Itoa(i+1)
		if i == 0 {
			lo = "min"
		}
		if i == n-1 {
			hi = "max"
		}
		chunks[i] = &Chunk{Min: boundDoc(lo), Max: boundDoc(hi), Shard: "s" + strconv.Itoa(i%7), Version: cv(1, uint32(i), 1, 5)}
	}
	m, err := NewChunkMap([16]byte{1}, key, false, cv(0, 0, 1, 5), chunks)
	if err != nil {
		b.Fatal(err)
	}
	k := []value.Value{value.NewInt64(0)}
	for i := 0; b.Loop(); i++ {
		k[0] = value.NewInt64(int64(i % n))
		m.Find(k)
	}
}
