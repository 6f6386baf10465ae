package router_test

import (
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A recipient of a resharding that has finished does not look at its donors again. If another one could not be reached to finish, and
// writes cannot be blocked at once when that is repeated, no writer is let through meanwhile.
func TestReshardKeepsWritesBlocked(t *testing.T) {
	var finished, refused, committing, unblocked atomic.Bool
	c := newWatchedCluster(t, 2, func(shard string, m *wire.Message) error {
		switch string(m.CommandName()) {
		case "_shardsvrReshardingRecipientFinish":
			if shard == "shard1" && finished.CompareAndSwap(false, true) {
				return mongoerr.New(mongoerr.HostUnreachable, "not now")
			}
		case "_shardsvrRenameCollectionParticipant":
			committing.Store(true)
		case "_shardsvrParticipantBlock":
			switch kind := value.Lookup(m.Body, "blockType").Str(); {
			case kind == msg.BlockWrites && shard == "shard1" && finished.Load() && refused.CompareAndSwap(false, true):
				return mongoerr.New(mongoerr.LockTimeout, "not now, either")
			case kind == msg.Unblock && finished.Load() && !committing.Load():
				unblocked.Store(true)
			}
		}
		return nil
	})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	c.run("admin", `{"reshardCollection": "db.c", "key": {"k": "hashed"}, "numInitialChunks": 4, "forceRedistribution": true}`)
	if !finished.Load() || !refused.Load() || unblocked.Load() {
		t.Errorf("finish was refused: %v, the block: %v, and writers were let through: %v", finished.Load(), refused.Load(), unblocked.Load())
	}
	c.expect(c.counted("c", 1), `10`)
}

// Of two messages of a run about a section, the later decision counts, whichever arrives first.
func TestLateMessagesOfASection(t *testing.T) {
	c := newTestCluster(t, 1)
	c.run("admin", `{"enableSharding": "db"}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	id := cluster.NewUUID()
	block := func(kind string, at uint64) error {
		_, err := cluster.Run(t.Context(), c.shards["shard0"], msg.Doc(&msg.ParticipantBlock{NS: "db.c", Type: kind, Command: "reshardCollection", Owner: cluster.ConfigShardID, ID: id, At: at}))
		return err
	}
	for i, x := range []struct {
		kind string
		at   uint64
		code mongoerr.Code
		held int32
	}{
		{msg.BlockWrites, 20, mongoerr.OK, 1},
		{msg.Unblock, 10, mongoerr.OK, 1},
		{msg.BlockWrites, 10, mongoerr.ConflictingOperationInProgress, 1},
		{msg.BlockReadsAndWrites, 20, mongoerr.OK, 1},
		{msg.Unblock, 30, mongoerr.OK, 0},
	} {
		if err := block(x.kind, x.at); mongoerr.CodeOf(err) != x.code {
			t.Errorf("step %d: %v", i, err)
		}
		m := c.admin(c.shards["shard0"], bson.D{{Key: "count", Value: "collection_critical_sections"}, {Key: "$db", Value: "config"}})
		if m["n"] != x.held {
			t.Errorf("step %d: %v sections are stored, want %d", i, m["n"], x.held)
		}
	}
}
