package shardnode

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
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
	code   mongoerr.Code
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
		if code != int32(s.code) {
			t.Errorf("%s: code %d (%v), want %d", cmd, code, r["errmsg"], int32(s.code))
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
		{1, false, "d", readAll, mongoerr.TransactionCommitted, ""},
		{2, true, "d", `{"insert": "c", "documents": [{"_id": 9}]}`, 0, ""},
		{2, false, "admin", `{"abortTransaction": 1}`, 0, ""},
		{2, false, "admin", `{"commitTransaction": 1}`, mongoerr.NoSuchTransaction, ""},
		{0, false, "d", readAll, 0, `[ { _id: 1, x: 2 } ]`},
		{1, true, "d", readAll, mongoerr.TransactionTooOld, ""},
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
		{1, false, "d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 2}}}]}`, mongoerr.WriteConflict, ""},
		{1, false, "d", readAll, mongoerr.NoSuchTransaction, ""},
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
		{2, true, "d", index("old"), mongoerr.OperationNotSupportedInTransaction, ""},
		{3, true, "d", `{"create": "v", "viewOn": "c", "pipeline": []}`, mongoerr.OperationNotSupportedInTransaction, ""},
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
		{1, false, "d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}]}`, mongoerr.WriteConflict, ""},
		{2, true, "d", `{"insert": "c", "documents": [{"_id": 1}]}`, 0, ""},
		{0, false, "d", `{"collMod": "c", "maxTimeMS": 20}`, mongoerr.MaxTimeMSExpired, ""},
		{2, false, "admin", `{"commitTransaction": 1}`, 0, ""},
		{0, false, "d", readAll, 0, `[ { _id: 1 } ]`},
	})
	unlock, err := n.srv.Node.locks.Collection(n.srv.Service.Background(t.Context(), &command.Client{InProcess: true}), "d.c", lock.X)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	runTxn(t, n, []txnStep{{3, true, "d", `{"insert": "c", "documents": [{"_id": 2}]}`, mongoerr.LockTimeout, ""}})
}

func TestTransactionRefuses(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "capped", "capped": true, "size": 4096}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	for i, tc := range []struct {
		db, cmd string
		code    mongoerr.Code
	}{
		{"d", `{"count": "c"}`, mongoerr.OperationNotSupportedInTransaction},
		{"d", `{"insert": "capped", "documents": [{}]}`, mongoerr.OperationNotSupportedInTransaction},
		{"d", `{"aggregate": "c", "pipeline": [{"$out": "o"}], "cursor": {}}`, mongoerr.OperationNotSupportedInTransaction},
		{"local", `{"find": "c"}`, mongoerr.OperationNotSupportedInTransaction},
		{"d", `{"insert": "c", "documents": [{}], "writeConcern": {"w": 1}}`, mongoerr.InvalidOptions},
		{"admin", `{"commitTransaction": 1}`, 0},
	} {
		if got := n.code(tc.db, inTxn(tc.cmd, i+1, true)); got != int32(tc.code) {
			t.Errorf("%s: code %d, want %d", tc.cmd, got, int32(tc.code))
		}
	}
	// a statement that fails aborts the transaction
	if r := n.ok("d", inTxn(`{"insert": "c", "documents": [{"_id": 5}, {"_id": 1}, {"_id": 6}]}`, 20, true)); r["writeErrors"] == nil {
		t.Errorf("%v", r)
	}
	if got := n.code("admin", inTxn(`{"commitTransaction": 1}`, 20, false)); got != int32(mongoerr.NoSuchTransaction) {
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
	if got := n.code("d", inTxn(readAll, 3, false)); got != int32(mongoerr.NoSuchTransaction) {
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
	if got := n.code("d", inTxn(`{"find": "c", "filter": {"$where": "while (true) {}"}, "maxTimeMS": 30}`, 1, false)); got != int32(mongoerr.MaxTimeMSExpired) {
		t.Errorf("a command over its time: code %d", got)
	}
	if got := n.code("admin", inTxn(`{"commitTransaction": 1}`, 1, false)); got != int32(mongoerr.NoSuchTransaction) {
		t.Errorf("the commit after it: code %d", got)
	}
	if got := n.first("admin", idle); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// A running operation is shown with its transaction, its plan, and the locks that it holds or waits for.
func TestRunningOperationsAreShown(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1}]}`)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`)
	n.ok("d", inTxn(`{"insert": "c", "documents": [{"_id": 2}]}`, 1, true))
	field := func(doc any, name string) any {
		d, _ := doc.(bson.D)
		for _, e := range d {
			if e.Key == name {
				return e.Value
			}
		}
		return nil
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		n.do("d", inTxn(`{"find": "c", "filter": {"a": 1, "$where": "while (true) {}"}, "comment": "read"}`, 1, false))
	})
	running := func(comment string) (op bson.M) {
		t.Helper()
		await.True(t, comment+" runs", func() bool {
			list := n.ok("admin", `{"aggregate": 1, "pipeline": [{"$currentOp": {}}, {"$match": {"command.comment": "`+comment+`"}}], "cursor": {}}`)["cursor"]
			batch := field(list, "firstBatch").(bson.A)
			if len(batch) == 0 {
				return false
			}
			op = bson.M{}
			for _, e := range batch[0].(bson.D) {
				op[e.Key] = e.Value
			}
			return true
		})
		return op
	}
	var op bson.M
	await.True(t, "the plan is shown", func() bool { op = running("read"); return op["planSummary"] != nil })
	txn := op["transaction"]
	open, _ := field(txn, "timeOpenMicros").(int64)
	active, _ := field(txn, "timeActiveMicros").(int64)
	if ran, _ := op["microsecs_running"].(int64); active < ran || open < active || field(txn, "timeInactiveMicros") != open-active {
		t.Errorf("open %d µs, active %d, while the command ran for %d: %v", open, active, ran, txn)
	}
	if op["planSummary"] != "IXSCAN { a: 1 }" || op["queryShapeHash"] == nil || txn == nil || field(field(txn, "parameters"), "txnNumber") != int64(1) ||
		field(txn, "readTimestamp") == nil || field(txn, "expiryTime") == nil || op["killPending"] != nil {
		t.Errorf("the read: %v", op)
	}
	wg.Go(func() { n.do("d", `{"drop": "c", "comment": "drop"}`) })
	await.True(t, "the drop waits", func() bool { op = running("drop"); return op["waitingForLock"] == true })
	if locks := op["locks"]; field(locks, "Global") != "w" || op["transaction"] != nil {
		t.Errorf("the drop: %v", op)
	}
	n.ok("admin", fmt.Sprintf(`{"killOp": 1, "op": %v}`, running("read")["opid"]))
	wg.Wait()
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
	if got := n.code("d", more); got != int32(mongoerr.CursorNotFound) {
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
		{1, false, "d", `{"create": "c"}`, mongoerr.NamespaceExists, ""},
		{1, false, "admin", `{"commitTransaction": 1}`, mongoerr.NoSuchTransaction, ""},
		{2, true, "d", `{"create": "v"}`, mongoerr.NamespaceExists, ""},
		{2, false, "admin", `{"commitTransaction": 1}`, mongoerr.NoSuchTransaction, ""},
		{3, true, "d", `{"create": "new"}`, 0, ""},
		{3, false, "d", `{"create": "new"}`, mongoerr.NamespaceExists, ""},
		{3, false, "admin", `{"commitTransaction": 1}`, mongoerr.NoSuchTransaction, ""},
		{4, true, "d", `{"insert": "new", "documents": [{"_id": 1}]}`, 0, ""},
		{4, false, "d", `{"create": "new"}`, mongoerr.NamespaceExists, ""},
		{4, false, "admin", `{"abortTransaction": 1}`, mongoerr.NoSuchTransaction, ""},
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
		{2, false, "admin", `{"commitTransaction": 1}`, mongoerr.TransactionTooLarge, ""},
		{3, true, "d", insert(3), 0, ""},
		{3, false, "d", insert(4), 0, ""},
		{3, false, "d", insert(5), 0, ""},
	})
	if r := n.do("d", inTxn(insert(6), 3, false)); !strings.Contains(fmt.Sprint(r["writeErrors"]), `"code":{"$numberInt":"257"}`) {
		t.Errorf("an insert beyond the limit: %v", r["writeErrors"])
	}
	runTxn(t, n, []txnStep{{3, false, "admin", `{"commitTransaction": 1}`, mongoerr.NoSuchTransaction, ""}})
	n.ok("admin", `{"setParameter": 1, "transactionSizeLimitBytes": 20000}`)
	runTxn(t, n, []txnStep{
		{4, true, "d", insert(3), 0, ""}, {4, false, "d", insert(4), 0, ""}, {4, false, "d", insert(5), 0, ""},
		{4, false, "admin", `{"commitTransaction": 1}`, 0, ""},
	})
}

// Options of a transaction's start and of read concerns that do not go together are refused; a statement is not run as a plain one.
func TestOptionsThatDoNotGoTogether(t *testing.T) {
	n := newTestNode(t)
	for _, c := range []struct{ cmd, want string }{
		{`{"insert": "c", "documents": [{}], ` + testLSID + `, "txnNumber": {"$numberLong": "1"}, "startTransaction": true}`, "'startTransaction' field requires 'autocommit' field to also be specified"},
		{`{"find": "c", ` + testLSID + `, "txnNumber": {"$numberLong": "1"}, "autocommit": false, "startTransaction": false}`, "Specifying startTransaction=false is not allowed."},
		{`{"find": "c", "readConcern": {"level": "available", "afterClusterTime": {"$timestamp": {"t": 1, "i": 1}}}}`, "afterClusterTime field can be set only if level is equal to local, majority, or snapshot"},
		{`{"find": "c", "readConcern": {"level": "linearizable", "afterClusterTime": {"$timestamp": {"t": 1, "i": 1}}}}`, "afterClusterTime field can be set only if level is equal to local, majority, or snapshot"},
	} {
		if r := n.do("d", c.cmd); r["code"] != int32(mongoerr.InvalidOptions) || r["errmsg"] != c.want {
			t.Errorf("%s: %v, want %q", c.cmd, r, c.want)
		}
	}
}

// A statement of a transaction that would create a database whose name differs from another's only in case fails, whatever it is and whenever the other was created. It succeeded, and the commit
// failed.
func TestTransactionsCreateNoDatabaseThatDiffersInCase(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	number := 0
	for _, cmd := range []string{
		`{"insert": "c", "documents": [{"_id": 1}]}`,
		`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 1}}, "upsert": true}]}`,
		`{"findAndModify": "c", "query": {"_id": 1}, "update": {"$set": {"a": 1}}, "upsert": true}`,
		`{"create": "c"}`,
		`{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}`,
	} {
		created, own := fmt.Sprintf("e%d", number), fmt.Sprintf("f%d", number)
		refused := func(db string, start bool) {
			t.Helper()
			r := n.do(db, inTxn(cmd, number, start))
			code, _ := r["code"].(int32)
			if errs, ok := r["writeErrors"].(bson.A); ok {
				raw, _ := bson.Marshal(errs[0])
				code = bson.Raw(raw).Lookup("code").Int32()
			}
			if code != int32(mongoerr.DatabaseDifferCase) {
				t.Errorf("%s in %s: %v", cmd, db, r)
			}
		}
		number++
		refused("D", true)
		number++
		runTxn(t, n, []txnStep{{number: number, start: true, db: "d", cmd: `{"insert": "c", "documents": [{}]}`}, {db: created, cmd: `{"create": "other"}`}})
		refused(strings.ToUpper(created), false)
		number++
		runTxn(t, n, []txnStep{{number: number, start: true, db: own, cmd: `{"create": "other"}`}})
		refused(strings.ToUpper(own), false)
	}
}
