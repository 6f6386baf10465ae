package router_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

const txnLSID = `"lsid": {"id": {"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAQ==", "subType": "04"}}}`

// txnStep is a command of a transaction (number 0: outside of it), its error code, and what its reply shows.
type txnStep struct {
	number int
	start  bool
	db     string
	cmd    string
	code   mongoerr.Code
	field  string
	want   string
}

func (c *testCluster) txn(steps []txnStep) {
	c.t.Helper()
	for _, s := range steps {
		cmd := s.cmd
		if s.number > 0 {
			begin := ""
			if s.start {
				begin = `, "startTransaction": true`
			}
			cmd = fmt.Sprintf(`%s, %s, "txnNumber": {"$numberLong": "%d"}, "autocommit": false%s}`, cmd[:len(cmd)-1], txnLSID, s.number, begin)
		}
		r := c.raw(s.db, cmd)
		code, _ := r["code"].(int32)
		if code != int32(s.code) || int32(s.code) == 0 && r["writeErrors"] != nil {
			c.t.Errorf("%s: code %d (%v), want %d", cmd, code, r, int32(s.code))
			continue
		}
		if s.field != "" {
			v := r[s.field]
			if s.field == "cursor" {
				v = get(v, "firstBatch")
			}
			if got := show(v); got != s.want {
				c.t.Errorf("%s: %s is %s, want %s", cmd, s.field, got, s.want)
			}
		}
	}
}

const readC = `{"find": "c", "sort": {"_id": 1}}`

// A transaction on one shard: own view, commit, the token, abort.
func TestTransactionOnOneShard(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	c.txn([]txnStep{
		{1, true, "d", `{"insert": "c", "documents": [{"_id": 2}]}`, 0, "recoveryToken", `{"recoveryShardId":"shard0"}`},
		{1, false, "d", readC, 0, "cursor", `[{"_id":1},{"_id":2}]`},
		{0, false, "d", readC, 0, "cursor", `[{"_id":1}]`},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{0, false, "d", readC, 0, "cursor", `[{"_id":1},{"_id":2}]`},
		{2, true, "d", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`, 0, "n", "2"},
		{2, false, "admin", `{"abortTransaction": 1}`, 0, "", ""},
		{2, false, "d", readC, mongoerr.NoSuchTransaction, "", ""},
		{0, false, "d", readC, 0, "cursor", `[{"_id":1},{"_id":2}]`},
		{1, false, "d", readC, mongoerr.TransactionTooOld, "", ""},
		{3, true, "d", `{"count": "c"}`, mongoerr.OperationNotSupportedInTransaction, "", ""},
	})
}

// shardedTxnColl creates d.c with negative _ids on shard0 and the others on shard1, some documents on both.
func (c *testCluster) shardedTxnColl() {
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"_id": 1}}`)
	c.run("admin", `{"split": "d.c", "middle": {"_id": 0}}`)
	c.run("admin", `{"moveChunk": "d.c", "find": {"_id": 1}, "to": "shard1"}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": -1, "x": 0}, {"_id": 1, "x": 0}]}`)
}

const both = `[{"_id":-1,"x":0},{"_id":1,"x":0}]`

// Transactions over two shards: they see their own writes on both, others see all of them or none.
func TestTransactionOnTwoShards(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	c.txn([]txnStep{
		// only reads
		{1, true, "d", readC, 0, "cursor", both},
		{0, false, "d", `{"insert": "c", "documents": [{"_id": -2}, {"_id": 2}]}`, 0, "", ""},
		{1, false, "d", readC, 0, "cursor", both},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{0, false, "d", `{"delete": "c", "deletes": [{"q": {"_id": {"$in": [-2, 2]}}, "limit": 0}]}`, 0, "", ""},
		// one writer
		{2, true, "d", readC, 0, "recoveryToken", `{}`},
		{2, false, "d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 0}}}]}`, 0, "recoveryToken", `{}`}, // changes nothing
		{2, false, "d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`, 0, "recoveryToken", `{"recoveryShardId":"shard1"}`},
		{2, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{0, false, "d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": -1}}}]}`, 0, "", ""},
		// two writers
		{3, true, "d", `{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"x": 1}}, "multi": true}]}`, 0, "n", "2"},
		{3, false, "d", `{"insert": "c", "documents": [{"_id": -3}, {"_id": 3}]}`, 0, "n", "2"},
		{3, false, "d", readC, 0, "cursor", `[{"_id":-3},{"_id":-1,"x":1},{"_id":1,"x":1},{"_id":3}]`},
		{0, false, "d", readC, 0, "cursor", both},
		{3, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{3, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{0, false, "d", readC, 0, "cursor", `[{"_id":-3},{"_id":-1,"x":1},{"_id":1,"x":1},{"_id":3}]`},
		// a failed statement aborts it everywhere
		{4, true, "d", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`, 0, "n", "4"},
		{4, false, "d", `{"find": "c", "filter": {"$bad": 1}}`, mongoerr.BadValue, "", ""},
		{4, false, "admin", `{"commitTransaction": 1}`, mongoerr.NoSuchTransaction, "", ""},
		{5, true, "d", `{"update": "c", "updates": [{"q": {"_id": -1}, "u": {"$set": {"x": 2}}}]}`, 0, "", ""},
		{0, false, "d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 7}}}]}`, 0, "", ""},
		{5, false, "admin", `{"abortTransaction": 1}`, 0, "", ""},
		{0, false, "d", readC, 0, "cursor", `[{"_id":-3},{"_id":-1,"x":1},{"_id":1,"x":7},{"_id":3}]`},
	})
}

// A retryable write that was executed before its chunk moved is known to the chunk's new owner.
func TestRetriesAfterAMigration(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	session := func(cmd string, number int) string {
		return fmt.Sprintf(`%s, %s, "txnNumber": {"$numberLong": "%d"}}`, cmd[:len(cmd)-1], strings.Replace(txnLSID, "AAAAAQ==", fmt.Sprintf("AAAA%cQ==", 'A'+number), 1), number)
	}
	writes := []struct{ cmd, field, want, again string }{
		{session(`{"insert": "c", "documents": [{"_id": 5}, {"_id": -5}, {"_id": 6}]}`, 1), "n", "3", "[0,2,1]"},
		{session(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`, 2), "nModified", "1", "[0]"},
		{session(`{"update": "c", "updates": [{"q": {"_id": 7}, "u": {"$inc": {"x": 1}}, "upsert": true}]}`, 3), "upserted", `[{"index":0,"_id":7}]`, "[0]"},
		{session(`{"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"x": 1}}, "new": true}`, 4), "value", `{"_id":1,"x":2}`, ""},
		{session(`{"delete": "c", "deletes": [{"q": {"_id": 6}, "limit": 1}]}`, 5), "n", "1", "[0]"},
	}
	run := func(again bool) {
		t.Helper()
		for _, w := range writes {
			r := c.run("d", w.cmd)
			if got := show(r[w.field]); got != w.want {
				t.Errorf("%s: %s is %s, want %s", w.cmd, w.field, got, w.want)
			}
			if got := show(r["retriedStmtIds"]); again && w.again != "" && got != w.again && got != "[0,1,2]" && got != "[1,0,2]" {
				t.Errorf("%s: retried statements %s, want %s", w.cmd, got, w.again)
			}
		}
	}
	run(false)
	want := show(get(c.run("d", readC)["cursor"], "firstBatch"))
	for _, to := range []string{"shard0", "shard1"} {
		c.run("admin", fmt.Sprintf(`{"moveChunk": "d.c", "find": {"_id": 1}, "to": "%s"}`, to))
		run(true)
		if got := show(get(c.run("d", readC)["cursor"], "firstBatch")); got != want {
			t.Errorf("after the move to %s: %s, want %s", to, got, want)
		}
	}
}

// The first arrays in an indexed field, written on two shards in one transaction, are no catalog change.
func TestTransactionsWriteFirstArrays(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	c.run("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`)
	c.txn([]txnStep{
		{1, true, "d", `{"insert": "c", "documents": [{"_id": -5, "a": [1, 2]}, {"_id": 5, "a": [2, 3]}]}`, 0, "n", "2"},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{0, false, "d", `{"find": "c", "filter": {"a": 2}, "sort": {"_id": 1}, "hint": "a"}`, 0, "cursor", `[{"_id":-5,"a":[1,2]},{"_id":5,"a":[2,3]}]`},
	})
}

// create of an existing collection, sharded or not, is an error in a transaction and aborts it.
func TestCreateOfAnExistingCollectionInATransaction(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	c.run("d", `{"create": "plain"}`)
	c.txn([]txnStep{
		{1, true, "d", `{"create": "c"}`, mongoerr.NamespaceExists, "", ""},
		{1, false, "admin", `{"commitTransaction": 1}`, mongoerr.NoSuchTransaction, "", ""},
		{2, true, "d", `{"insert": "c", "documents": [{"_id": 7}]}`, 0, "", ""},
		{2, false, "d", `{"create": "plain"}`, mongoerr.NamespaceExists, "", ""},
		{2, false, "admin", `{"commitTransaction": 1}`, mongoerr.NoSuchTransaction, "", ""},
		{3, true, "d", `{"create": "new"}`, 0, "", ""},
		{3, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{0, false, "d", `{"create": "new"}`, 0, "", ""},
	})
}

// killAllSessions and similar commands on a router used to end only what that router had begun: a transaction begun through
// another one stayed open on the shards, and held its documents.
func TestKilledSessionsOfAnotherRouter(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	other := c.through()
	w := c.txnClient(1)
	id := strings.TrimPrefix(w.lsid, `"lsid": `)
	for _, kill := range []string{`{"killAllSessions": []}`, `{"killSessions": [` + id + `]}`, `{"killAllSessionsByPattern": [{` + w.lsid + `}]}`, `{"killSessions": []}`} {
		if m, code := w.do("d", `{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"x": 1}}, "multi": true}]}`, true); code != 0 {
			t.Fatalf("%s: %v", kill, m)
		}
		other.run("admin", kill)
		if m := c.raw("d", `{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"y": 1}}, "multi": true}], "maxTimeMS": 5000}`); m["n"] != int32(2) {
			t.Fatalf("%s: the documents of the transaction are held: %v", kill, m)
		}
		if m, code := w.do("admin", `{"commitTransaction": 1}`, false); code != int32(mongoerr.NoSuchTransaction) {
			t.Errorf("%s: the transaction's commit: %v", kill, m)
		}
	}
}

// A statement on a database that does not exist goes to a shard that the transaction has already. It went to the first one in the list, which refuses it (246) if it has joined after the time of the
// transaction's snapshot.
func TestTransactionReadsNoDatabaseOnAShardThatJoined(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	w := c.txnClient(0)
	if m, code := w.do("db", `{"find": "c"}`, true); code != 0 {
		t.Fatal(m)
	}
	c.addedAgain("a-first", "setx")
	if err := c.r.Registry.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, code := w.do("none", `{"find": "c"}`, false)
	if code != 0 {
		t.Fatalf("answered %v", m)
	}
	c.expect(get(m["cursor"], "firstBatch"), `[]`)
	if m, code := w.do("admin", `{"commitTransaction": 1}`, false); code != 0 {
		t.Errorf("the commit is answered %v", m)
	}
}
