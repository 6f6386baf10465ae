package router_test

import (
	"context"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A statement that was sent after its transaction's commit failed on the shards, and the router aborted the transaction
// on all of them: those that had voted discarded what the coordinator then decided to commit, and a commit that was sent
// again was denied, with TransientTransactionError.
func TestStatementsBehindACommitDoNotAbortIt(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	c.txn([]txnStep{{1, true, "d", `{"insert": "c", "documents": [{"_id": -5}, {"_id": 5}]}`, 0, "n", "2"}})
	entered := c.point("shard0", "hangBeforeWritingDecision", true)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		body, _ := bson.Marshal(doc(t, `{"commitTransaction": 1, `+txnLSID+`, "txnNumber": {"$numberLong": "1"}, "autocommit": false, "$db": "admin"}`))
		c.router.Run(ctx, c.client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil)
	}()
	entered()
	leave()
	<-left
	c.txn([]txnStep{
		{1, false, "d", readC, mongoerr.TransactionCommitted, "", ""},
		{1, false, "d", `{"insert": "other", "documents": [{}]}`, mongoerr.TransactionCommitted, "", ""},
		{1, false, "admin", `{"abortTransaction": 1}`, mongoerr.TransactionCommitted, "", ""},
	})
	c.point("shard0", "hangBeforeWritingDecision", false)
	c.txn([]txnStep{
		{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{0, false, "d", `{"find": "c", "filter": {"x": null}, "sort": {"_id": 1}}`, 0, "cursor", `[{"_id":-5},{"_id":5}]`},
		{1, false, "d", readC, mongoerr.TransactionCommitted, "", ""},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
	})
}

// The shard that knows the outcome of a transaction answered that it had been aborted, with TransientTransactionError,
// once the session had begun another one, even though it had committed.
func TestOutcomeOfATransactionBeforeTheNewestIsUnknown(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	for i, next := range []string{`, "startTransaction": true, "autocommit": false}`, `}`} {
		n := 1 + 2*i
		c.txn([]txnStep{
			{n, true, "d", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d}, {"_id": %d}]}`, -5-i, 5+i), 0, "n", "2"},
			{n, false, "admin", `{"commitTransaction": 1}`, 0, "recoveryToken", `{"recoveryShardId":"shard0"}`},
		})
		c.run("d", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": -1}, "u": {"$inc": {"x": 1}}}], %s, "txnNumber": {"$numberLong": "%d"}%s`, txnLSID, n+1, next))
		c.until("the coordinator of the commit has forgotten it", func() bool {
			left := c.admin(c.shards["shard0"], bson.D{{Key: "find", Value: "transaction_coordinators"}, {Key: "$db", Value: "config"}})
			return len(get(left["cursor"], "firstBatch").(bson.A)) == 0
		})
		c.through().txn([]txnStep{{n, false, "admin", `{"commitTransaction": 1, "recoveryToken": {"recoveryShardId": "shard0"}}`, mongoerr.TransactionTooOld, "errorLabels", "null"}})
		if next != `}` {
			c.txn([]txnStep{{n + 1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""}})
		}
	}
}

// A router that was only asked for the outcome of a transaction that another one began has nothing to abort, whatever the outcome was: abortTransaction
// reported that the transaction had been committed, even if no node knew it.
func TestAbortBehindTheCommitOfAnUnknownTransaction(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	c.txn([]txnStep{
		{1, true, "d", `{"insert": "c", "documents": [{"_id": -5}, {"_id": 5}]}`, 0, "n", "2"},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, "recoveryToken", `{"recoveryShardId":"shard0"}`},
	})
	known := c.through()
	known.txn([]txnStep{
		{1, false, "admin", `{"commitTransaction": 1, "recoveryToken": {"recoveryShardId": "shard0"}}`, 0, "", ""},
		{1, false, "admin", `{"abortTransaction": 1}`, mongoerr.NoSuchTransaction, "", ""},
		{1, false, "admin", `{"commitTransaction": 1, "recoveryToken": {"recoveryShardId": "shard0"}}`, 0, "", ""},
		{2, false, "admin", `{"commitTransaction": 1}`, mongoerr.NoSuchTransaction, "", ""},
		{2, false, "admin", `{"abortTransaction": 1}`, mongoerr.NoSuchTransaction, "", ""},
	})
	c.txn([]txnStep{{1, false, "admin", `{"abortTransaction": 1}`, mongoerr.TransactionCommitted, "", ""}})
}
