package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The critical section of a DDL survives the primary that entered it: it used to be in memory only, so that after a step-down of the
// shard operations ran while the DDL went on. It is ended by the message of the run that holds it, by no other's, and when no run
// holds it.
func TestSectionsOutliveTheirPrimary(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	other := cluster.NewUUID()
	block := func(kind string, id [16]byte) error {
		_, err := cluster.Run(t.Context(), c.shards["shard1"], msg.Doc(&msg.ParticipantBlock{NS: "db.c", Type: kind, Command: "drop", Owner: cluster.ConfigShardID, ID: id}))
		return err
	}
	stored := func(n int) {
		t.Helper()
		m := c.admin(c.shards["shard1"], bson.D{{Key: "count", Value: "collection_critical_sections"}, {Key: "$db", Value: "config"}})
		if m["n"] != int32(n) {
			t.Errorf("%v sections are stored, want %d", m["n"], n)
		}
	}
	closed := func() {
		t.Helper()
		_, err := cluster.Run(t.Context(), c.shards["shard1"], value.Doc(value.F("delete", value.NewString("c")), value.F("deletes", value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(
			value.F("q", value.NewDocument(value.Doc())), value.F("limit", value.NewInt32(0))))))), value.F("maxTimeMS", value.NewInt32(100)), value.F("shardVersion", value.NewDocument(cluster.Ignored.Doc())), value.F("$db", value.NewString("db"))))
		if mongoerr.CodeOf(err) != mongoerr.MaxTimeMSExpired {
			t.Errorf("an operation on the collection returns %v", err)
		}
	}
	reached, release := c.hangAt("shard0", "dropCollection")
	dropped := c.later("db", `{"drop": "c"}`)
	reached()
	stored(1)
	c.restart("shard1")
	closed()
	if err := block(msg.Unblock, other); err != nil {
		t.Fatal(err)
	}
	closed()
	stored(1)
	release()
	if m := <-dropped; m["ok"] != 1.0 {
		t.Errorf("%v", m)
	}
	c.leftOver()
	// A section entered after the end of its run: no run holds it.
	if err := block(msg.BlockReadsAndWrites, other); err != nil {
		t.Fatal(err)
	}
	c.shardedAs("c", 1, 10)
	c.expect(c.counted("c", 1), `10`)
	c.leftOver()
	if err := block(msg.BlockWrites, other); err != nil {
		t.Fatal(err)
	}
	if err := block(msg.BlockWrites, cluster.NewUUID()); err != nil {
		t.Fatal(fmt.Errorf("a section without a holder was in the way: %w", err))
	}
	c.run("db", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}], "maxTimeMS": 100000}`)
	c.leftOver()
}
