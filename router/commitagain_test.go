package router_test

import (
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

const bumpOne = `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`

// A retried commit also asked the participants that had only read. One that had been restarted after the commit did not
// know the transaction, and the reply was 251 with TransientTransactionError: drivers ran the committed transaction a
// second time.
func TestCommitSentAgainAsksTheShardThatWrote(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	c.txn([]txnStep{
		{1, true, "d", readC, 0, "cursor", both},
		{1, false, "d", bumpOne, 0, "n", "1"},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
	})
	c.restart("shard0")
	c.txn([]txnStep{
		{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{2, true, "d", readC, 0, "", ""}, // no shard wrote
		{2, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
	})
	c.restart("shard0")
	c.restart("shard1")
	c.txn([]txnStep{{2, false, "admin", `{"commitTransaction": 1}`, 0, "", ""}})
	c.expect(c.all("d", readC), `[{"_id":-1,"x":0},{"_id":1,"x":1}]`)
}

// A participant that lost the transaction before its commit ends it: nothing is written, and the shard that wrote
// releases its documents at once.
func TestReaderThatLostTheTransactionEndsIt(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	c.txn([]txnStep{
		{1, true, "d", readC, 0, "cursor", both},
		{1, false, "d", bumpOne, 0, "n", "1"},
	})
	c.restart("shard0")
	c.txn([]txnStep{
		{1, false, "admin", `{"commitTransaction": 1}`, mongoerr.NoSuchTransaction, "", ""},
		{0, false, "d", strings.Replace(bumpOne, `"$inc": {"x": 1}`, `"$inc": {"x": 7}`, 1)[:len(bumpOne)-1] + `, "maxTimeMS": 5000}`, 0, "n", "1"},
		{1, false, "admin", `{"commitTransaction": 1}`, mongoerr.NoSuchTransaction, "", ""},
	})
	c.expect(c.all("d", readC), `[{"_id":-1,"x":0},{"_id":1,"x":7}]`)
}

// The coordinator of a two-phase commit was the first participant, even if that one had only read: after a restart
// it answered a retried commit as if there had been none.
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
	c.restart("shard0")
	c.txn([]txnStep{{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""}})
	// Nor does a participant whose writes changed nothing.
	c.txn([]txnStep{
		{2, true, "d", `{"update": "c", "updates": [{"q": {"_id": 8}, "u": {"$set": {"x": 1}}}]}`, 0, "n", "0"},
		{2, false, "d", `{"insert": "c", "documents": [{"_id": 107}]}`, 0, "n", "1"},
		{2, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
	})
	c.restart("shard1")
	c.txn([]txnStep{{2, false, "admin", `{"commitTransaction": 1}`, 0, "", ""}})
	// A participant that lost the transaction before any participant prepared does not leave it open on the others.
	c.txn([]txnStep{{3, true, "d", `{"insert": "c", "documents": [{"_id": 6}, {"_id": 106}]}`, 0, "n", "2"}})
	c.restart("shard1")
	c.txn([]txnStep{
		{3, false, "admin", `{"commitTransaction": 1}`, mongoerr.NoSuchTransaction, "", ""},
		{0, false, "d", `{"insert": "c", "documents": [{"_id": 6}, {"_id": 106}], "maxTimeMS": 5000}`, 0, "n", "2"},
	})
}

// A router that asked the shard of the recovery token for the outcome of a transaction replied with an empty token. Drivers
// use the newest one, so that after this router had ended the next one to which they sent the commit reported 251 with
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

// awaitingMembers is the connection to a shard on which a commit with w: 3 waits for a member that is down.
type awaitingMembers struct {
	cluster.Peer
	waits   chan struct{} // receives a value for each commit that waits
	resumed chan struct{}
}

func (p awaitingMembers) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	var cmd bson.M
	if err := bson.Unmarshal(m.Body, &cmd); err != nil {
		return dst, err
	}
	wc, _ := cmd["writeConcern"].(bson.D)
	if (cmd["commitTransaction"] != nil || cmd["coordinateCommitTransaction"] != nil) && get(wc, "w") == int32(3) {
		p.waits <- struct{}{}
		<-p.resumed
	}
	return p.Peer.Call(ctx, m, dst)
}

// A commit that waits for members beyond the majority kept the router's session busy: the same commit, retried with
// another concern, waited for the member that was down, and so did the session's next transaction.
func TestCommitsThatWaitForMembersLetGoOfTheirSession(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	at := awaitingMembers{waits: make(chan struct{}), resumed: make(chan struct{})}
	for id := range c.shards {
		c.between(id, func(to cluster.Peer) cluster.Peer { return awaitingMembers{to, at.waits, at.resumed} })
	}
	through := c.through()
	for n, steps := range [][]string{
		{`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`},                  // one shard
		{`{"find": "c"}`, `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`}, // another has read
		{`{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"x": 1}}, "multi": true}]}`},           // both write
		{`{"find": "c"}`}, // no shard writes
	} {
		w := through.txnClient(n)
		for i, cmd := range steps {
			if m, code := w.do("d", cmd, i == 0); code != 0 {
				t.Fatal(m)
			}
		}
		answer := make(chan bson.M, 1)
		go func() {
			m, _ := w.do("admin", `{"commitTransaction": 1, "writeConcern": {"w": 3, "wtimeout": 60000}}`, false)
			answer <- m
		}()
		<-at.waits
		again := *w
		if m, code := again.do("admin", `{"commitTransaction": 1, "writeConcern": {"w": "majority"}, "maxTimeMS": 100000}`, false); code != 0 {
			t.Errorf("%d: sent again: %v", n, m)
		}
		if m, code := again.do("admin", `{"abortTransaction": 1, "maxTimeMS": 100000}`, false); code != int32(mongoerr.TransactionCommitted) {
			t.Errorf("%d: aborted: %v", n, m)
		}
		if m, code := again.do("d", `{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"x": 0}}, "multi": true}], "maxTimeMS": 100000}`, true); code != 0 {
			t.Errorf("%d: the next transaction: %v", n, m)
		}
		if m, code := again.do("admin", `{"abortTransaction": 1}`, false); code != 0 {
			t.Errorf("%d: %v", n, m)
		}
		for done := false; !done; {
			select {
			case <-at.waits: // the other shard, where both have read
			case at.resumed <- struct{}{}:
			case m := <-answer:
				done = true
				// The sets have one member each, and some shards do not know the transaction any more.
				if e, _ := m["writeConcernError"].(bson.D); m["ok"] != 1.0 || e == nil || get(e, "code") != int32(mongoerr.UnsatisfiableWriteConcern) && get(e, "code") != int32(mongoerr.WriteConcernTimeout) {
					t.Errorf("%d: the commit: %v", n, m)
				}
			}
		}
	}
	c.expect(c.all("d", readC), `[{"_id":-1,"x":1},{"_id":1,"x":3}]`)
}
