package shardnode

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/storage/lock"
)

// inTxn adds a session and a transaction to a command; the first command of one starts it.
func inTxn(cmd string, number int, start bool) string {
	begin := ""
	if start {
		begin = `, "startTransaction": true`
	}
	return fmt.Sprintf(`%s, %s, "txnNumber": {"$numberLong": "%d"}, "autocommit": false%s}`, cmd[:len(cmd)-1], testLSID, number, begin)
}

// txnStep is a command of a transaction (number 0: outside of it), its error code, and for reads what they return.
type txnStep struct {
	number int
	start  bool
	db     string
	cmd    string
	code   int32
	finds  string
}

func runTxn(t *testing.T, n *testNode, steps []txnStep) {
	t.Helper()
	for _, s := range steps {
		cmd := s.cmd
		if s.number > 0 {
			cmd = inTxn(cmd, s.number, s.start)
		}
		r := n.do(s.db, cmd)
		code, _ := r["code"].(int32)
		if code != s.code {
			t.Errorf("%s: code %d (%v), want %d", cmd, code, r["errmsg"], s.code)
		}
		if s.finds == "" {
			continue
		}
		if got := shown(t, r, "cursor"); got != "{ cursor: { firstBatch: "+s.finds+", id: 0, ns: \"d.c\" } }" {
			t.Errorf("%s: %s, want %s", cmd, got, s.finds)
		}
	}
}

const readAll = `{"find": "c"}`

func TestTransactionSeesItsOwnWrites(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 1}]}`)
	runTxn(t, n, []txnStep{
		{1, true, "d", `{"insert": "c", "documents": [{"_id": 2}]}`, 0, ""},
		{1, false, "d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`, 0, ""},
		{1, false, "d", readAll, 0, `[ { _id: 1, x: 2 }, { _id: 2 } ]`},
		{0, false, "d", readAll, 0, `[ { _id: 1, x: 1 } ]`},
		{1, false, "d", `{"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 0}]}`, 0, ""},
		{1, false, "d", readAll, 0, `[ { _id: 1, x: 2 } ]`},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, ""},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, ""}, // sent again
		{0, false, "d", readAll, 0, `[ { _id: 1, x: 2 } ]`},
		{1, false, "d", readAll, 256, ""},
		{2, true, "d", `{"insert": "c", "documents": [{"_id": 9}]}`, 0, ""},
		{2, false, "admin", `{"abortTransaction": 1}`, 0, ""},
		{2, false, "admin", `{"commitTransaction": 1}`, 251, ""},
		{0, false, "d", readAll, 0, `[ { _id: 1, x: 2 } ]`},
		{1, true, "d", readAll, 225, ""},
		{2, true, "d", readAll, 50911, ""},
	})
}

// A transaction's own statements see what it has written: an index that it made multikey is read as one, and a multi-document
// statement does not update again what it has moved ahead of itself.
func TestTransactionReadsItsOwnIndexKeys(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x_1"}]}`)
	n.ok("d", `{"insert": "c", "documents": `+manyDocs(1200)+`}`)
	n.ok("d", inTxn(`{"insert": "c", "documents": [{"_id": -1, "x": [-1, -9]}]}`, 1, true))
	if got := fmt.Sprint(n.first("d", inTxn(`{"find": "c", "filter": {"x": {"$gt": -2, "$lt": -8}}, "hint": "x_1"}`, 1, false))); got != "[{ _id: -1, x: [ -1, -9 ] }]" {
		t.Errorf("by the index: %s", got)
	}
	r := n.ok("d", inTxn(`{"update": "c", "updates": [{"q": {"x": {"$gte": 0}}, "u": {"$inc": {"x": 1}}, "multi": true, "hint": "x_1"}]}`, 1, false))
	if r["nModified"] != int32(1200) {
		t.Errorf("1200 documents: %v", r)
	}
	n.ok("admin", inTxn(`{"commitTransaction": 1}`, 1, false))
	if got := len(n.first("d", `{"find": "c", "filter": {"x": 1}, "batchSize": 2000}`)); got != 1200 {
		t.Errorf("%d documents were changed once", got)
	}
}

func TestTransactionReadsItsMoment(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	runTxn(t, n, []txnStep{
		{1, true, "d", readAll, 0, `[ { _id: 1 } ]`},
		{0, false, "d", `{"insert": "c", "documents": [{"_id": 2}]}`, 0, ""},
		{1, false, "d", readAll, 0, `[ { _id: 1 } ]`},
		// what others changed since the transaction began is a conflict, which aborts it
		{0, false, "d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}]}`, 0, ""},
		{1, false, "d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 2}}}]}`, 112, ""},
		{1, false, "d", readAll, 251, ""},
	})
	if r := n.do("d", inTxn(readAll, 1, false)); shown(t, r, "errorLabels") != `{ errorLabels: [ "TransientTransactionError" ] }` {
		t.Errorf("%v", r)
	}
}

func TestTransactionMakesCollections(t *testing.T) {
	n := newTestNode(t)
	runTxn(t, n, []txnStep{
		{1, true, "d", `{"insert": "c", "documents": [{"_id": 1}]}`, 0, ""},
		{1, false, "d", `{"insert": "c", "documents": [{"_id": 2}]}`, 0, ""},
		{1, false, "d", readAll, 0, `[ { _id: 1 }, { _id: 2 } ]`},
		{0, false, "d", readAll, 0, `[ ]`},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, ""},
		{0, false, "d", readAll, 0, `[ { _id: 1 }, { _id: 2 } ]`},
	})
}

func TestTransactionMakesIndexes(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "old", "documents": [{"_id": 1}]}`)
	index := func(coll string) string {
		return fmt.Sprintf(`{"createIndexes": "%s", "indexes": [{"key": {"x": 1}, "name": "x_1"}]}`, coll)
	}
	runTxn(t, n, []txnStep{
		{1, true, "d", `{"create": "c"}`, 0, ""},
		{1, false, "d", index("c"), 0, ""},
		{1, false, "d", `{"insert": "c", "documents": [{"_id": 1, "x": 1}]}`, 0, ""},
		{1, false, "d", `{"find": "c", "filter": {"x": 1}, "hint": "x_1"}`, 0, `[ { _id: 1, x: 1 } ]`},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, ""},
		{0, false, "d", `{"find": "c", "filter": {"x": 1}, "hint": "x_1"}`, 0, `[ { _id: 1, x: 1 } ]`},
		{2, true, "d", index("old"), 263, ""},
		{3, true, "d", `{"create": "v", "viewOn": "c", "pipeline": []}`, 263, ""},
	})
}

// A catalog change waits for the transactions that wrote to its collection; a transaction does not write to a collection
// that changed after its start, and waits for locks only briefly.
func TestTransactionsAndCatalogChanges(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	runTxn(t, n, []txnStep{
		{1, true, "d", readAll, 0, ""},
		{0, false, "d", `{"drop": "c"}`, 0, ""},
		{1, false, "d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}]}`, 112, ""},
		{2, true, "d", `{"insert": "c", "documents": [{"_id": 1}]}`, 0, ""},
		{0, false, "d", `{"collMod": "c", "maxTimeMS": 20}`, 50, ""},
		{2, false, "admin", `{"commitTransaction": 1}`, 0, ""},
		{0, false, "d", readAll, 0, `[ { _id: 1 } ]`},
	})
	unlock, err := n.srv.Node.locks.Collection(n.srv.Service.Background(t.Context(), &command.Client{InProcess: true}), "d.c", lock.X)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	runTxn(t, n, []txnStep{{3, true, "d", `{"insert": "c", "documents": [{"_id": 2}]}`, 24, ""}})
}

func TestTransactionRefuses(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "capped", "capped": true, "size": 4096}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	for i, tc := range []struct {
		db, cmd string
		code    int32
	}{
		{"d", `{"count": "c"}`, 263},
		{"d", `{"insert": "capped", "documents": [{}]}`, 263},
		{"d", `{"aggregate": "c", "pipeline": [{"$out": "o"}], "cursor": {}}`, 263},
		{"local", `{"find": "c"}`, 263},
		{"d", `{"insert": "c", "documents": [{}], "writeConcern": {"w": 1}}`, 72},
		{"admin", `{"commitTransaction": 1}`, 0},
	} {
		if got := n.code(tc.db, inTxn(tc.cmd, i+1, true)); got != tc.code {
			t.Errorf("%s: code %d, want %d", tc.cmd, got, tc.code)
		}
	}
	// a statement that fails aborts the transaction
	if r := n.ok("d", inTxn(`{"insert": "c", "documents": [{"_id": 5}, {"_id": 1}, {"_id": 6}]}`, 20, true)); r["writeErrors"] == nil {
		t.Errorf("%v", r)
	}
	if got := n.code("admin", inTxn(`{"commitTransaction": 1}`, 20, false)); got != 251 {
		t.Errorf("commit after a failure: code %d", got)
	}
	if got := n.first("d", `{"find": "c"}`); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

// A retryable write with a newer number, killSessions, and the time limit end a transaction that was left open.
func TestAbandonedTransactionsEnd(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	n.ok("d", inTxn(`{"insert": "c", "documents": [{"_id": 2}]}`, 1, true))
	n.ok("d", inSession(`{"insert": "c", "documents": [{"_id": 2}]}`, 2))
	n.ok("d", inTxn(`{"insert": "c", "documents": [{"_id": 3}]}`, 3, true))
	n.ok("d", `{"killAllSessions": []}`)
	if got := n.code("d", inTxn(readAll, 3, false)); got != 251 {
		t.Errorf("after killAllSessions: code %d", got)
	}
	if open := n.srv.Node.txns.Counters().Open.Load(); open != 0 {
		t.Errorf("%d open transactions", open)
	}
}

// An open transaction is shown among the operations, and a command running in it can be killed, which ends it.
func TestTransactionsAreShown(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", inTxn(`{"insert": "c", "documents": [{"_id": 1}]}`, 1, true))
	idle := `{"aggregate": 1, "pipeline": [{"$currentOp": {}}, {"$match": {"type": "idleSession"}}, {"$project": {"_id": 0, "n": "$transaction.parameters.txnNumber", "locks": 1}}], "cursor": {}}`
	got := n.first("admin", idle)
	if len(got) != 1 || !strings.Contains(got[0], `Collection: "w"`) || !strings.Contains(got[0], "n: 1") {
		t.Errorf("%v", got)
	}
	if got := n.code("d", inTxn(`{"find": "c", "filter": {"$where": "while (true) {}"}, "maxTimeMS": 30}`, 1, false)); got != 50 {
		t.Errorf("a command over its time: code %d", got)
	}
	if got := n.code("admin", inTxn(`{"commitTransaction": 1}`, 1, false)); got != 251 {
		t.Errorf("the commit after it: code %d", got)
	}
	if got := n.first("admin", idle); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// A cursor of a transaction belongs to it, and ends with it.
func TestTransactionCursors(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}]}`)
	id := cursorID(t, n.ok("d", inTxn(`{"find": "c", "batchSize": 1}`, 1, true)))
	more := fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c", "batchSize": 1}`, id)
	if got := n.code("d", more); got != 50740 {
		t.Errorf("outside: code %d", got)
	}
	n.ok("d", inTxn(more, 1, false))
	n.ok("admin", inTxn(`{"commitTransaction": 1}`, 1, false))
	if got := n.code("d", more); got != 43 {
		t.Errorf("after the commit: code %d", got)
	}
}

// create of an existing collection succeeded in a transaction, where it is an error that aborts, whatever its options.
func TestCreateOfAnExistingCollectionInATransaction(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "c"}`)
	n.ok("d", `{"create": "v", "viewOn": "c"}`)
	runTxn(t, n, []txnStep{
		{1, true, "d", `{"insert": "c", "documents": [{"_id": 1}]}`, 0, ""},
		{1, false, "d", `{"create": "c"}`, 48, ""},
		{1, false, "admin", `{"commitTransaction": 1}`, 251, ""},
		{2, true, "d", `{"create": "v"}`, 48, ""},
		{2, false, "admin", `{"commitTransaction": 1}`, 251, ""},
		{3, true, "d", `{"create": "new"}`, 0, ""},
		{3, false, "d", `{"create": "new"}`, 48, ""},
		{3, false, "admin", `{"commitTransaction": 1}`, 251, ""},
		{4, true, "d", `{"insert": "new", "documents": [{"_id": 1}]}`, 0, ""},
		{4, false, "d", `{"create": "new"}`, 48, ""},
		{4, false, "admin", `{"abortTransaction": 1}`, 251, ""},
		{5, true, "d", `{"create": "new"}`, 0, ""},
		{5, false, "admin", `{"commitTransaction": 1}`, 0, ""},
		{0, false, "d", `{"create": "new"}`, 0, ""},
		{0, false, "d", readAll, 0, `[ ]`},
	})
}

// Transactions had no size limit. There is a documented one, with an error code of its own.
func TestTransactionTooLarge(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "c"}`)
	n.ok("admin", `{"setParameter": 1, "transactionSizeLimitBytes": 10000}`)
	pad := strings.Repeat("x", 4000)
	insert := func(id int) string {
		return fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "pad": "%s"}]}`, id, pad)
	}
	runTxn(t, n, []txnStep{
		{1, true, "d", insert(1), 0, ""},
		{1, false, "d", insert(2), 0, ""},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, ""},
		{2, true, "d", insert(3), 0, ""},
		{2, false, "d", insert(4), 0, ""},
		{2, false, "d", insert(5), 0, ""},
		{2, false, "admin", `{"commitTransaction": 1}`, 257, ""},
		{3, true, "d", insert(3), 0, ""},
		{3, false, "d", insert(4), 0, ""},
		{3, false, "d", insert(5), 0, ""},
	})
	if r := n.do("d", inTxn(insert(6), 3, false)); !strings.Contains(fmt.Sprint(r["writeErrors"]), `"code":{"$numberInt":"257"}`) {
		t.Errorf("an insert beyond the limit: %v", r["writeErrors"])
	}
	runTxn(t, n, []txnStep{{3, false, "admin", `{"commitTransaction": 1}`, 251, ""}})
	n.ok("admin", `{"setParameter": 1, "transactionSizeLimitBytes": 20000}`)
	runTxn(t, n, []txnStep{
		{4, true, "d", insert(3), 0, ""}, {4, false, "d", insert(4), 0, ""}, {4, false, "d", insert(5), 0, ""},
		{4, false, "admin", `{"commitTransaction": 1}`, 0, ""},
	})
}
