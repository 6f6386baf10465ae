package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The critical section of a DDL survives the primary that entered it: it used to be in memory only, so that after a step-down of the
// shard operations ran while the DDL went on. It is ended by the message of the run that holds it, by no other's, and when no run
// holds it.
func TestSectionsOutliveTheirPrimary(t *testing.T) {
	c := newTestCluster(t, 1)
	c.run("admin", `{"enableSharding": "db"}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	id, other := cluster.NewUUID(), cluster.NewUUID()
	block := func(kind string, id [16]byte) error {
		_, err := cluster.Run(t.Context(), c.shards["shard0"], msg.Doc(&msg.ParticipantBlock{NS: "db.c", Type: kind, Command: "drop", Owner: cluster.ConfigShardID, ID: id}))
		return err
	}
	for range 2 {
		if err := block(msg.BlockReadsAndWrites, id); err != nil {
			t.Fatal(err)
		}
	}
	stored := func(n int) {
		t.Helper()
		m := c.admin(c.shards["shard0"], bson.D{{Key: "count", Value: "collection_critical_sections"}, {Key: "$db", Value: "config"}})
		if m["n"] != int32(n) {
			t.Errorf("%v sections are stored, want %d", m["n"], n)
		}
	}
	stored(1)
	c.restart("shard0")
	closed := func(want bool) {
		t.Helper()
		m := c.raw("db", `{"find": "c", "maxTimeMS": 100}`)
		if got := m["code"] == int32(mongoerr.MaxTimeMSExpired); got != want {
			t.Errorf("an operation on the collection returns %v", m)
		}
	}
	closed(true)
	if err := block(msg.Unblock, other); err != nil {
		t.Fatal(err)
	}
	closed(true)
	stored(1)
	if err := block(msg.Unblock, id); err != nil {
		t.Fatal(err)
	}
	closed(false)
	stored(0)
	// A section entered after the end of its run: no run holds it.
	if err := block(msg.BlockReadsAndWrites, id); err != nil {
		t.Fatal(err)
	}
	c.run("db", `{"find": "c", "maxTimeMS": 100000}`)
	stored(0)
	if err := block(msg.BlockWrites, id); err != nil {
		t.Fatal(err)
	}
	if err := block(msg.BlockWrites, other); err != nil {
		t.Fatal(fmt.Errorf("a section without a holder was in the way: %w", err))
	}
	c.run("db", `{"insert": "c", "documents": [{"_id": 2}], "maxTimeMS": 100000}`)
}
