package router_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
)

// tell sends a shard a command as another node.
func (c *testCluster) tell(shard, cmd string) error {
	c.t.Helper()
	var doc bson.D
	if err := bson.UnmarshalExtJSON([]byte(cmd), false, &doc); err != nil {
		c.t.Fatal(err)
	}
	raw, err := bson.Marshal(doc)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	_, err = cluster.Run(ctx, c.shards[shard], raw)
	return err
}

// A vote is durable, but the coordinator's list of participants, and its own shard's vote, were lost with that shard, and the
// commit is not retried: the participant asks, and aborts. The request also aborts the open part of the transaction on the
// coordinator's shard. While the coordinator has a document, the participant waits.
func TestVoteWithoutACoordinator(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	c.txn([]txnStep{
		{1, true, "d", `{"update": "c", "updates": [{"q": {"_id": -1}, "u": {"$inc": {"x": 1}}}]}`, 0, "n", "1"},
		{1, false, "d", bumpOne, 0, "n", "1"},
	})
	of := txnLSID + `, "txnNumber": {"$numberLong": "1"}, "autocommit": false, "$db": "admin"`
	noUser := `, "uid": {"$binary": {"base64": "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", "subType": "00"}}}`
	id := fmt.Sprintf(`{"_id": {%s, "txnNumber": {"$numberLong": "1"}}, "participants": ["shard0", "shard1"]}`, strings.TrimSuffix(txnLSID, "}")+noUser)
	if err := c.tell("shard0", fmt.Sprintf(`{"insert": "transaction_coordinators", "documents": [%s], "$db": "config"}`, id)); err != nil {
		t.Fatal(err)
	}
	if err := c.tell("shard1", `{"prepareTransaction": 1, "coordinatorId": "shard0", `+of+`}`); err != nil {
		t.Fatal(err)
	}
	plain := func(id, ms int) bson.M {
		return c.as(command.NewClient(2, "test", "test", nil), "d", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d}, "u": {"$inc": {"x": 10}}}], "maxTimeMS": %d}`, id, ms))
	}
	if r := plain(1, 6000); r["ok"] == 1.0 {
		t.Errorf("the vote did not hold while there was a coordinator: %v", r)
	}
	if err := c.tell("shard0", `{"delete": "transaction_coordinators", "deletes": [{"q": {}, "limit": 0}], "$db": "config"}`); err != nil {
		t.Fatal(err)
	}
	for _, id := range []int{1, -1} {
		if r := plain(id, 20000); r["ok"] != 1.0 {
			t.Errorf("%d: %v", id, r)
		}
	}
	if err := c.tell("shard1", `{"commitTransaction": 1, "commitTimestamp": {"$timestamp": {"t": 9, "i": 9}}, `+of+`}`); err == nil {
		t.Error("the transaction has not ended")
	}
}

// The coordinator's own shard has its vote, but its list of participants was lost with an earlier primary, and the commit is not retried:
// nobody can have decided, and all participants abort. The shard used to wait for a coordinator that it never had.
func TestOwnVoteWithoutAList(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	c.txn([]txnStep{
		{1, true, "d", `{"update": "c", "updates": [{"q": {"_id": -1}, "u": {"$inc": {"x": 1}}}]}`, 0, "n", "1"},
		{1, false, "d", bumpOne, 0, "n", "1"},
	})
	of := txnLSID + `, "txnNumber": {"$numberLong": "1"}, "autocommit": false, "$db": "admin"`
	for _, shard := range []string{"shard0", "shard1"} {
		if err := c.tell(shard, `{"prepareTransaction": 1, "coordinatorId": "shard0", `+of+`}`); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []int{-1, 1} {
		r := c.as(command.NewClient(2, "test", "test", nil), "d", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d}, "u": {"$inc": {"x": 10}}}], "maxTimeMS": 100000}`, id))
		if r["ok"] != 1.0 {
			t.Errorf("%d: %v", id, r)
		}
	}
	if r := c.as(command.NewClient(2, "test", "test", nil), "admin", fmt.Sprintf(`{"commitTransaction": 1, %s, "txnNumber": {"$numberLong": "1"}, "autocommit": false}`, txnLSID)); r["ok"] == 1.0 {
		t.Error("the transaction committed after it had been aborted")
	}
}
