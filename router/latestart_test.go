package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A primary is paused before it sends the recipient the request to begin. Its successor abandons the migration and moves the
// same range by another one; then the first request arrives. The recipient used to delete the range, which it owned by then, in
// order to receive it, and took part in no other migration until its primary changed.
func TestMigrationThatBeginsLate(t *testing.T) {
	c := newTestCluster(t, 2)
	c.twoHalves()
	c.run("d", `{"insert": "c", "documents": [{"_id": 5}, {"_id": 6}]}`)
	c.move("shard1")
	want := show(c.all("d", `{"find": "c", "sort": {"_id": 1}}`))
	coll := c.all("config", `{"find": "collections", "filter": {"_id": "d.c"}}`)[0]
	bound := func(v any) []byte {
		b, err := bson.Marshal(bson.D{{Key: "_id", Value: v}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	start := &msg.RecvChunkStart{Migration: msg.Migration{NS: "d.c", ID: cluster.NewUUID()}, From: "shard0", To: "shard1", ShardKey: bound(int32(1))}
	start.Min, start.Max = bound(int32(0)), bound(bson.MaxKey{})
	copy(start.UUID[:], get(coll, "uuid").(bson.Binary).Data)
	if _, err := cluster.Run(t.Context(), c.shards["shard1"], msg.Doc(start)); err != nil {
		t.Fatal(err)
	}
	c.until("the recipient forgets the migration", func() bool {
		return c.raw("admin", `{"moveChunk": "d.c", "find": {"_id": -1}, "to": "shard1"}`)["ok"] == 1.0
	})
	if got := show(c.all("d", `{"find": "c", "sort": {"_id": 1}}`)); got != want {
		t.Errorf("the collection has %s, before %s", got, want)
	}
	if n := c.rangeDeletions("shard1"); n != 0 {
		t.Errorf("%d range deletions are left", n)
	}
}

// The request arrives while the donor still owns the range: the recipient begins nothing, and expects no outcome.
func TestMigrationThatNobodyKnows(t *testing.T) {
	c := newTestCluster(t, 2)
	c.twoHalves()
	coll := c.all("config", `{"find": "collections", "filter": {"_id": "d.c"}}`)[0]
	uuid := get(coll, "uuid").(bson.Binary)
	id := cluster.NewUUID()
	// As left by a recipient's earlier primary that had begun when the donor reported the outcome.
	c.admin(c.shards["shard1"], bson.D{{Key: "insert", Value: "rangeDeletions"}, {Key: "documents", Value: bson.A{bson.D{
		{Key: "_id", Value: bson.Binary{Subtype: 4, Data: id[:]}}, {Key: "nss", Value: "d.c"}, {Key: "collectionUuid", Value: uuid}, {Key: "donorShardId", Value: "shard0"},
		{Key: "numOrphanDocs", Value: int64(0)}, {Key: "range", Value: bson.D{{Key: "min", Value: bson.D{{Key: "_id", Value: int32(0)}}}, {Key: "max", Value: bson.D{{Key: "_id", Value: bson.MaxKey{}}}}}},
		{Key: "whenToClean", Value: "now"}, {Key: "keyPattern", Value: bson.D{{Key: "_id", Value: int32(1)}}}, {Key: "pending", Value: true},
	}}}, {Key: "$db", Value: "config"}})
	c.restart("shard1")
	c.until("the range deletion is decided and done", func() bool { return c.rangeDeletions("shard1") == 0 })
	if m := c.raw("admin", `{"moveChunk": "d.c", "find": {"_id": 1}, "to": "shard1"}`); m["ok"] != 1.0 {
		t.Errorf("the range does not move: %v", m)
	}
}

// The config server plans a move, and the collection is resharded before the donor reads the request: the bounds are those of another shard key. The donor
// compared them with its chunks value by value, and the move was committed as a chunk that begins with one key's field and ends with the other's.
func TestMoveThatWasPlannedBeforeAResharding(t *testing.T) {
	c := newTestCluster(t, 2)
	c.twoHalves()
	before := get(c.all("config", `{"find": "collections", "filter": {"_id": "d.c"}}`)[0], "lastmodEpoch").(bson.ObjectID)
	c.run("admin", `{"reshardCollection": "d.c", "key": {"n": 1}, "numInitialChunks": 1}`)
	bound, err := bson.Marshal(bson.D{{Key: "_id", Value: bson.D{}}})
	if err != nil {
		t.Fatal(err)
	}
	owner := get(c.all("config", `{"find": "chunks", "filter": {"min.n": {"$exists": true}}}`)[0], "shard").(string)
	other := map[string]string{"shard0": "shard1", "shard1": "shard0"}[owner]
	late := &msg.ShardMoveRange{Move: msg.Move{NS: "d.c", To: other, Min: bound}, Epoch: before}
	if _, err := cluster.Run(t.Context(), c.shards[owner], msg.Doc(late)); mongoerr.CodeOf(err) != mongoerr.StaleEpoch {
		t.Errorf("the reply to the late request is %v", err)
	}
	if bad := c.all("admin", `{"checkMetadataConsistency": 1}`); len(bad) != 0 {
		t.Errorf("inconsistent: %s", show(bad))
	}
}
