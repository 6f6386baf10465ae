package router_test

import (
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The bounds of a merge come from a router that does not know the collection's new shard key yet: chunks of the new key with the same values used to be merged.
func TestMergesOfAFormerShardKey(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"m": 1}}`)
	merge := func(field string) error {
		low, high := bsonDoc(t, bson.D{{Key: field, Value: bson.MinKey{}}}), bsonDoc(t, bson.D{{Key: field, Value: bson.MaxKey{}}})
		_, err := cluster.Run(t.Context(), c.confP, msg.Doc(&msg.CommitChunksMerge{NS: "db.c", Range: msg.Range{Min: low, Max: high}}))
		return err
	}
	c.run("db", `{"insert": "c", "documents": [{"_id": 1, "m": 1, "n": 9}, {"_id": 2, "m": 2, "n": 8}, {"_id": 3, "m": 3, "n": 7}]}`)
	c.run("admin", `{"reshardCollection": "db.c", "key": {"n": 1}, "numInitialChunks": 1, "forceRedistribution": true, "shardDistribution": [{"shard": "shard0"}]}`)
	c.run("admin", `{"split": "db.c", "middle": {"n": 8}}`)
	if err := merge("m"); mongoerr.CodeOf(err) != mongoerr.StaleEpoch {
		t.Errorf("bounds of the former key: %v", err)
	}
	chunks := len(c.all("config", `{"find": "chunks", "filter": {"min.n": {"$exists": true}}}`))
	if err := merge("n"); err != nil || chunks != 2 {
		t.Errorf("%d chunks, and bounds of the new key: %v", chunks, err)
	}
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"n": 1, "m": 1}, "name": "nm"}]}`)
	c.run("admin", `{"split": "db.c", "middle": {"n": 8}}`)
	c.run("admin", `{"refineCollectionShardKey": "db.c", "key": {"n": 1, "m": 1}}`)
	if err := merge("n"); mongoerr.CodeOf(err) != mongoerr.StaleEpoch {
		t.Errorf("bounds from before the key was refined: %v", err)
	}
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
}

// A range is computed by the shard key that a collection has, and the collection gets another one before the donor begins, or the chunk is split: the chunk got a
// bound with the field of the former key.
func TestRangesOfAFormerShardKey(t *testing.T) {
	for _, change := range []string{
		`{"reshardCollection": "db.c", "key": {"n": 1}, "numInitialChunks": 1, "forceRedistribution": true, "shardDistribution": [{"shard": "shard0"}]}`,
		`{"refineCollectionShardKey": "db.c", "key": {"m": 1, "n": 1}}`,
	} {
		var hold atomic.Bool
		came, free := make(chan struct{}), make(chan struct{})
		c := newWatchedCluster(t, 2, func(_ string, m *wire.Message) error {
			if string(m.CommandName()) == "_shardsvrMoveRange" && hold.CompareAndSwap(true, false) {
				close(came)
				<-free
			}
			return nil
		})
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.run("admin", `{"shardCollection": "db.c", "key": {"m": 1}}`)
		c.run("db", `{"insert": "c", "documents": [{"_id": 1, "m": 1, "n": 9}, {"_id": 2, "m": 2, "n": 8}, {"_id": 3, "m": 3, "n": 7}]}`)
		c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"m": 1, "n": 1}, "name": "mn"}]}`)
		hold.Store(true)
		other, moved := c.through(), make(chan bson.M, 1)
		go func() {
			moved <- other.raw("admin", `{"moveRange": "db.c", "min": {"m": {"$minKey": 1}}, "toShard": "shard1"}`)
		}()
		<-came
		c.run("admin", change)
		close(free)
		<-moved // the router may try again by the new key
		low, high := bsonDoc(t, bson.D{{Key: "m", Value: bson.MinKey{}}}), bsonDoc(t, bson.D{{Key: "m", Value: bson.MaxKey{}}})
		split := &msg.CommitChunkSplit{NS: "db.c", Range: msg.Range{Min: low, Max: high}, Points: [][]byte{bsonDoc(t, bson.D{{Key: "m", Value: int32(2)}})}}
		if _, err := cluster.Run(t.Context(), c.confP, msg.Doc(split)); mongoerr.CodeOf(err) != mongoerr.StaleEpoch && mongoerr.CodeOf(err) != mongoerr.BadValue {
			t.Errorf("%s: a split: %v", change, err)
		}
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		c.expect(c.run("db", `{"count": "c", "query": {}}`)["n"], `3`)
	}
}
