package router_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// allocatedBy inserts n documents of a kilobyte in one ordered batch and returns how many bytes were allocated meanwhile.
func (c *testCluster) allocatedBy(t *testing.T, from, n int) uint64 {
	t.Helper()
	filler := value.NewBinary(0, make([]byte, 1000))
	var docs []byte
	for i := range n {
		docs = append(docs, value.Doc(value.F("_id", value.NewInt32(int32(from+i))), value.F("f", filler))...)
	}
	body := value.Doc(value.F("insert", value.NewString("c")), value.F("$db", value.NewString("db")))
	m := &wire.Message{OpCode: wire.OpMsg, Body: body, Seqs: []wire.Sequence{{ID: "documents", Docs: docs}}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	reply := c.router.Run(context.Background(), c.client, m, nil)
	runtime.ReadMemStats(&after)
	c.expect(decode(t, reply)["n"], show(int32(n)))
	return after.TotalAlloc - before.TotalAlloc
}

// Each statement of an ordered batch on a sharded collection used to copy all statements before it: 20,000 small documents in one
// insert took half a minute.
func TestOrderedBatchesCostWhatTheyHold(t *testing.T) {
	c := newTestCluster(t, 1)
	c.run("admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`)
	c.allocatedBy(t, -100, 100) // what the first insert allocates once
	few, many := c.allocatedBy(t, 0, 500), c.allocatedBy(t, 1000, 4000)
	t.Logf("%d bytes for 500 documents, %d for 4000", few, many)
	if many > 16*few {
		t.Errorf("8 times the documents allocated %.1f times as much", float64(many)/float64(few))
	}
}
