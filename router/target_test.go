package router

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/targeting"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

// readTable builds a placement from lines "{bound} shard", each chunk beginning at its bound; the first begins at MinKey.
func readTable(t *testing.T, key, text string) *cluster.CollectionInfo {
	t.Helper()
	k, err := cluster.ParseShardKey(valuetest.Doc(t, key))
	if err != nil {
		t.Fatal(err)
	}
	gen := cluster.ChunkVersion{Major: 1, Epoch: cluster.Epoch{1}, Timestamp: 1}
	var chunks []*cluster.Chunk
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		at := strings.LastIndexByte(line, ' ')
		min := k.GlobalMin()
		if b := line[:at]; b != "min" {
			if min, err = k.NormalizeBound(valuetest.Doc(t, b)); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(chunks); n > 0 {
			chunks[n-1].Max = min
		}
		chunks = append(chunks, &cluster.Chunk{Min: min, Max: k.GlobalMax(), Shard: line[at+1:], Version: gen.WithCombined(gen.Combined() + uint64(len(chunks)))})
	}
	m, err := cluster.NewChunkMap([16]byte{1}, k, false, gen, chunks)
	if err != nil {
		t.Fatal(err)
	}
	return &cluster.CollectionInfo{NS: "db.c", DB: &cluster.DatabaseInfo{Name: "db", Primary: "s0"}, Map: m}
}

func TestTargeting(t *testing.T) {
	var info *cluster.CollectionInfo
	datadriven.RunTest(t, "testdata/targeting", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "table":
			key, rest, _ := strings.Cut(d.Input, "\n")
			info = readTable(t, key, rest)
			return ""
		case "filter", "filter-collated":
			var out []string
			for _, line := range strings.Split(d.Input, "\n") {
				f := valuetest.Doc(t, line)
				exact := ""
				if _, ok := targeting.ExactKey(info.Map.Key, f, d.Cmd == "filter-collated"); ok {
					exact = " exact"
				}
				shards, err := target(info, f, d.Cmd == "filter-collated")
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, fmt.Sprintf("%s -> %s%s", line, strings.Join(shards, " "), exact))
			}
			return strings.Join(out, "\n") + "\n"
		case "insert":
			var out []string
			for _, line := range strings.Split(d.Input, "\n") {
				a, err := aimInsert(info, valuetest.Doc(t, line))
				if err != nil {
					out = append(out, line+" -> "+err.Error())
				} else {
					out = append(out, line+" -> "+a.shards[0])
				}
			}
			return strings.Join(out, "\n") + "\n"
		}
		return "unknown command\n"
	})
}

func BenchmarkTargetEquality(b *testing.B) {
	key, _ := cluster.ParseShardKey(value.Doc(value.F("k", value.NewInt32(1))))
	gen := cluster.ChunkVersion{Major: 1, Epoch: cluster.Epoch{1}, Timestamp: 1}
	mid := value.Doc(value.F("k", value.NewInt32(0)))
	m, err := cluster.NewChunkMap([16]byte{}, key, false, gen, []*cluster.Chunk{
		{Min: key.GlobalMin(), Max: mid, Shard: "a", Version: gen}, {Min: mid, Max: key.GlobalMax(), Shard: "b", Version: gen.IncMinor()},
	})
	if err != nil {
		b.Fatal(err)
	}
	info := &cluster.CollectionInfo{Map: m}
	f := value.Doc(value.F("k", value.NewInt32(7)))
	b.ReportAllocs()
	for b.Loop() {
		target(info, f, false)
	}
}
