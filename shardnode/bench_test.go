package shardnode

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
)

// smallDocument is a document of 200 bytes, like the load generator's.
func smallDocument(i int, r *rand.Rand) []byte {
	var id [12]byte
	binary.BigEndian.PutUint64(id[4:], uint64(i))
	pad := make([]byte, 65)
	for k := range pad {
		pad[k] = "abcdefghijklmnopqrstuvwxyz0123456789"[r.IntN(36)]
	}
	return value.Doc(
		value.F("_id", value.NewObjectID(id)), value.F("k", value.NewInt32(int32(i))), value.F("grp", value.NewInt32(int32(i*7919%100))),
		value.F("n", value.NewInt32(r.Int32N(1000))), value.F("val", value.NewDouble(r.Float64()*1e6)),
		value.F("ts", value.NewDateTime(1767225600000+int64(i)*1000)), value.F("name", value.NewString(fmt.Sprintf("name-%010d", i))),
		value.F("act", value.NewBool(i%2 == 0)), value.F("pad", value.NewString(string(pad))))
}

// fillSmall inserts n small documents into d.c.
func (n *testNode) fillSmall(count int) {
	n.t.Helper()
	n.ok("d", `{"create": "c"}`)
	e := n.srv.Node.Engine
	c := e.Catalog().Lookup("d.c")
	r := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < count; {
		var docs [][]byte
		for ; len(docs) < 1000 && i < count; i++ {
			docs = append(docs, smallDocument(i, r))
		}
		u := e.NewUnitOfWork(nil)
		if _, err := u.InsertMany(c, docs, storage.NoInfo); err != nil {
			n.t.Fatal(err)
		}
		if _, err := e.Commit(context.Background(), u, false); err != nil {
			n.t.Fatal(err)
		}
	}
}

// Aggregate commands over a million documents of 200 bytes in memory, on one core, from the command's bytes to its reply's.
func BenchmarkAggregateMillion(b *testing.B) {
	const docs = 1_000_000
	n := newTestNode(b)
	n.fillSmall(docs)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, c := range []struct{ name, pipeline string }{
		{"match", `{"$match": {"n": {"$lt": 10}}}, {"$count": "n"}`},
		{"group", `{"$group": {"_id": "$grp", "sum": {"$sum": "$n"}, "avg": {"$avg": "$val"}}}`},
		{"match_group", `{"$match": {"n": {"$lt": 500}}}, {"$group": {"_id": "$grp", "sum": {"$sum": "$n"}, "avg": {"$avg": "$val"}}}`},
	} {
		b.Run("stages="+c.name, func(b *testing.B) {
			cmd := `{"aggregate": "c", "pipeline": [` + c.pipeline + `], "cursor": {}}`
			for b.Loop() {
				if r := n.first("d", cmd); len(r) == 0 || strings.Contains(cmd, "$group") && len(r) != 100 {
					b.Fatal(len(r))
				}
			}
			b.ReportMetric(docs*float64(b.N)/b.Elapsed().Seconds(), "docs/s")
		})
	}
}
