package router_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire"
)

const bumpOne = `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`

// A commit that is sent again asked the participants that had only read as well. One that had been restarted after the
// commit knew nothing of the transaction, and the answer was 251 with TransientTransactionError: drivers ran the committed
// transaction a second time.
func TestCommitSentAgainAsksTheShardThatWrote(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	c.txn([]txnStep{
		{1, true, "d", readC, 0, "cursor", both},
		{1, false, "d", bumpOne, 0, "n", "1"},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
	})
	c.anew("shard0")
	c.txn([]txnStep{
		{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{2, true, "d", readC, 0, "", ""}, // nobody wrote
		{2, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
	})
	c.anew("shard0")
	c.anew("shard1")
	c.txn([]txnStep{{2, false, "admin", `{"commitTransaction": 1}`, 0, "", ""}})
	c.expect(c.all("d", readC), `[{"_id":-1,"x":0},{"_id":1,"x":1}]`)
}

// A participant that lost the transaction before its commit ends it: nothing is written, and the shard that wrote lets go
// of its documents at once.
func TestReaderThatLostTheTransactionEndsIt(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	c.txn([]txnStep{
		{1, true, "d", readC, 0, "cursor", both},
		{1, false, "d", bumpOne, 0, "n", "1"},
	})
	c.anew("shard0")
	c.txn([]txnStep{
		{1, false, "admin", `{"commitTransaction": 1}`, 251, "", ""},
		{0, false, "d", strings.Replace(bumpOne, `"$inc": {"x": 1}`, `"$inc": {"x": 7}`, 1)[:len(bumpOne)-1] + `, "maxTimeMS": 5000}`, 0, "n", "1"},
		{1, false, "admin", `{"commitTransaction": 1}`, 251, "", ""},
	})
	c.expect(c.all("d", readC), `[{"_id":-1,"x":0},{"_id":1,"x":7}]`)
}

// The coordinator of a two-phase commit was the first participant, though that one had only read: after a restart it
// answered a commit that was sent again as if there had been none.
func TestCoordinatorIsAShardThatWrote(t *testing.T) {
	c := newTestCluster(t, 3)
	c.shardedTxnColl()
	c.run("admin", `{"split": "d.c", "middle": {"_id": 100}}`)
	c.run("admin", `{"moveChunk": "d.c", "find": {"_id": 100}, "to": "shard2"}`)
	c.txn([]txnStep{
		{1, true, "d", `{"find": "c", "filter": {"_id": -1}}`, 0, "", ""},
		{1, false, "d", `{"insert": "c", "documents": [{"_id": 5}, {"_id": 105}]}`, 0, "n", "2"},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
	})
	c.anew("shard0")
	c.txn([]txnStep{{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""}})
	// Neither does one that had nothing to change in the end.
	c.txn([]txnStep{
		{2, true, "d", `{"update": "c", "updates": [{"q": {"_id": 8}, "u": {"$set": {"x": 1}}}]}`, 0, "n", "0"},
		{2, false, "d", `{"insert": "c", "documents": [{"_id": 107}]}`, 0, "n", "1"},
		{2, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
	})
	c.anew("shard1")
	c.txn([]txnStep{{2, false, "admin", `{"commitTransaction": 1}`, 0, "", ""}})
	// One that has lost it before anyone promised anything does not leave it open with the others.
	c.txn([]txnStep{{3, true, "d", `{"insert": "c", "documents": [{"_id": 6}, {"_id": 106}]}`, 0, "n", "2"}})
	c.anew("shard1")
	c.txn([]txnStep{
		{3, false, "admin", `{"commitTransaction": 1}`, 251, "", ""},
		{0, false, "d", `{"insert": "c", "documents": [{"_id": 6}, {"_id": 106}], "maxTimeMS": 5000}`, 0, "n", "2"},
	})
}

// A router that asked the shard of the recovery token what became of a transaction answered with an empty token. Drivers go by
// the newest, so that the next router to which they sent the commit, after this one had ended, denied it: 251 with
// TransientTransactionError.
func TestCommitSentToAnotherRouterKeepsItsToken(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	c.txn([]txnStep{
		{1, true, "d", readC, 0, "cursor", both},
		{1, false, "d", bumpOne, 0, "recoveryToken", `{"recoveryShardId":"shard1"}`},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
	})
	token := any(bson.D{{Key: "recoveryShardId", Value: "shard1"}})
	for range 3 {
		cmd := append(doc(t, `{"commitTransaction": 1, `+txnLSID+`, "txnNumber": {"$numberLong": "1"}, "autocommit": false}`),
			bson.E{Key: "recoveryToken", Value: token}, bson.E{Key: "$db", Value: "admin"})
		body, _ := bson.Marshal(cmd)
		m := decode(t, c.secondRouter().Run(t.Context(), c.client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil))
		if token = m["recoveryToken"]; m["ok"] != 1.0 || show(token) != `{"recoveryShardId":"shard1"}` {
			t.Fatalf("a commit that another router began: %v", m)
		}
	}
}
