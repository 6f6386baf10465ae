package router_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A coordinator that could not store its decision ended, and left every participant prepared until the commit was retried.
func TestCoordinatorWhoseDecisionFailsGoesOn(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	c.txn([]txnStep{
		{1, true, "d", `{"update": "c", "updates": [{"q": {"_id": -1}, "u": {"$inc": {"x": 1}}}]}`, 0, "n", "1"},
		{1, false, "d", bumpOne, 0, "n", "1"},
	})
	entered := c.point("shard0", "hangBeforeWritingDecision", true)
	committed := make(chan bson.M)
	go func() {
		committed <- c.as(command.NewClient(2, "test", "test", nil), "admin", fmt.Sprintf(`{"commitTransaction": 1, %s, "txnNumber": {"$numberLong": "1"}, "autocommit": false}`, txnLSID))
	}()
	entered()
	var left atomic.Int32
	left.Store(3)
	c.interceptDocs("shard0", func(u *storage.UnitOfWork, commit func() (storage.Timestamp, error)) (storage.Timestamp, error) {
		if left.Add(-1) >= 0 {
			u.Rollback()
			return 0, mongoerr.New(mongoerr.OutOfDiskSpace, "no space")
		}
		return commit()
	})
	c.point("shard0", "hangBeforeWritingDecision", false)
	if r := <-committed; r["ok"] != 1.0 {
		t.Errorf("the commit: %v", r)
	}
	if left.Load() >= 0 {
		t.Error("the decision met no full disk")
	}
	c.expect(c.all("d", readC), `[{"_id":-1,"x":1},{"_id":1,"x":1}]`)
}

// A participant that is no longer a shard of the cluster was asked for its vote forever.
func TestCoordinatorOfAShardThatIsGone(t *testing.T) {
	c := newTestCluster(t, 1)
	c.run("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	c.txn([]txnStep{{1, true, "d", `{"insert": "c", "documents": [{"_id": 2}]}`, 0, "n", "1"}})
	var cmd bson.D
	if err := bson.UnmarshalExtJSON([]byte(fmt.Sprintf(`{"coordinateCommitTransaction": 1, "participants": [{"shardId": "shard0"}, {"shardId": "gone"}], %s,
		"txnNumber": {"$numberLong": "1"}, "autocommit": false, "$db": "admin"}`, txnLSID)), false, &cmd); err != nil {
		t.Fatal(err)
	}
	raw, err := bson.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if _, err := cluster.Run(ctx, c.shards["shard0"], raw); mongoerr.CodeOf(err) != mongoerr.ShardNotFound {
		t.Errorf("%v, want that the shard is not found", err)
	}
	c.run("d", `{"insert": "c", "documents": [{"_id": 2}], "maxTimeMS": 5000}`)
}
