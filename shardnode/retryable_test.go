package shardnode

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

const testLSID = `"lsid": {"id": {"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAQ==", "subType": "04"}}}`

// inSession adds a session and a transaction number to a command.
func inSession(cmd string, number int) string {
	return fmt.Sprintf(`%s, %s, "txnNumber": {"$numberLong": "%d"}}`, cmd[:len(cmd)-1], testLSID, number)
}

// otherSession adds to a command another session than the tests' usual one.
func otherSession(cmd string) string {
	return strings.Replace(cmd, "AAAAAAAAQACAAAAAAAAAAQ==", "AAAAAAAAQACAAAAAAAAAAg==", 1)
}

// Each statement runs once, whatever is retried; the reply is the first one's, and lists the retried statements.
func TestRetriedStatementsRunOnce(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}, {"_id": 2}]}`)
	fields := []string{"n", "nModified", "upserted", "lastErrorObject", "value", "retriedStmtIds", "retriedStmtId"}
	for i, tc := range []struct{ cmd, want, again string }{
		{`{"insert": "c", "documents": [{"_id": 10}, {"_id": 11}]}`, `{ n: 2 }`, `{ n: 2, retriedStmtIds: [ 0, 1 ] }`},
		{
			`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`,
			`{ n: 1, nModified: 1 }`, `{ n: 1, nModified: 1, retriedStmtIds: [ 0 ] }`,
		},
		{
			`{"update": "c", "updates": [{"q": {"_id": 7}, "u": {"$inc": {"x": 1}}, "upsert": true}]}`,
			`{ n: 1, nModified: 0, upserted: [ { index: 0, _id: 7 } ] }`,
			`{ n: 1, nModified: 0, upserted: [ { index: 0, _id: 7 } ], retriedStmtIds: [ 0 ] }`,
		},
		{`{"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}]}`, `{ n: 1 }`, `{ n: 1, retriedStmtIds: [ 0 ] }`},
		{
			`{"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"x": 1}}, "new": true}`,
			`{ lastErrorObject: { n: 1, updatedExisting: true }, value: { _id: 1, x: 2 } }`,
			`{ lastErrorObject: { n: 1, updatedExisting: true }, value: { _id: 1, x: 2 }, retriedStmtId: 0 }`,
		},
	} {
		cmd := inSession(tc.cmd, i+1)
		for k, want := range []string{tc.want, tc.again, tc.again} {
			if got := shown(t, n.ok("d", cmd), fields...); got != want {
				t.Errorf("%s, time %d: %s, want %s", tc.cmd, k+1, got, want)
			}
		}
	}
	if got := n.code("d", inSession(`{"insert": "c", "documents": [{"_id": 10}]}`, 1)); got != int32(mongoerr.TransactionTooOld) {
		t.Errorf("an older number: code %d, want 225", got)
	}
}

func TestRetriedWritesRefuse(t *testing.T) {
	n := newTestNode(t)
	runSteps(t, n, []step{
		{inSession(`{"update": "c", "updates": [{"q": {}, "u": {"$set": {"x": 1}}, "multi": true}]}`, 1), mongoerr.InvalidOptions},
		{inSession(`{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`, 2), mongoerr.InvalidOptions},
		{inSession(`{"find": "c"}`, 3), mongoerr.NotARetryableWriteCommand},
		{`{"insert": "c", "documents": [{"_id": 1}], "txnNumber": {"$numberLong": "1"}}`, mongoerr.InvalidOptions},
	})
}

// A retried batch continues after the statements that were executed, in order.
func TestRetryOfAPartOfABatch(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", inSession(`{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]}`, 1))
	r := n.ok("d", inSession(`{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}, {"_id": 4}]}`, 1))
	if shown(t, r, "n", "retriedStmtIds") != "{ n: 4, retriedStmtIds: [ 0, 1 ] }" {
		t.Errorf("%v", r)
	}
	if got := n.first("d", `{"find": "c"}`); len(got) != 4 {
		t.Errorf("%v", got)
	}
}

// forgetSessions drops what the node keeps of sessions in memory, as a restart or an election does.
func (n *testNode) forgetSessions() {
	n.t.Helper()
	if err := n.srv.Node.txns.LoadRetries(); err != nil {
		n.t.Fatal(err)
	}
}

// Oplog entries of one transaction number are chained; those of findAndModify refer to the image that they stored. An insert of several
// documents is one entry with a statement for each.
func TestOplogOfRetryableWrites(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", inSession(`{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]}`, 1))
	n.ok("d", inSession(`{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}]}`, 1))
	n.ok("d", inSession(`{"findAndModify": "c", "query": {"_id": 1}, "update": {"$set": {"x": 1}}, "new": true}`, 2))
	entries := n.first("local", `{"aggregate": "oplog.rs", "cursor": {}, "pipeline": [{"$match": {"txnNumber": {"$exists": true}}}, {"$sort": {"ts": -1}},
		{"$lookup": {"from": "oplog.rs", "localField": "prevOpTime.ts", "foreignField": "ts", "as": "before"}},
		{"$project": {"_id": 0, "txnNumber": 1, "stmtId": 1, "needsRetryImage": 1, "multiOpType": 1, "of": "$o.applyOps.stmtId", "before": "$before.o.applyOps.stmtId", "t": "$prevOpTime.t"}}]}`)
	want := []string{
		`{ txnNumber: 2, stmtId: 0, needsRetryImage: "postImage", before: [ ], t: -1 }`,
		`{ txnNumber: 1, stmtId: 2, before: [ [ 0, 1 ] ], t: 1 }`,
		`{ txnNumber: 1, multiOpType: 1, of: [ 0, 1 ], before: [ ], t: -1 }`,
	}
	if !slices.Equal(entries, want) {
		t.Errorf("%v, want %v", entries, want)
	}
	n.forgetSessions()
	again := n.ok("d", inSession(`{"findAndModify": "c", "query": {"_id": 1}, "update": {"$set": {"x": 1}}, "new": true}`, 2))
	if got := shown(t, again, "value", "retriedStmtId"); got != "{ value: { _id: 1, x: 1 }, retriedStmtId: 0 }" {
		t.Errorf("the image after an election: %s", got)
	}
}

// flush stores the table, and the time up to which it is complete.
func (n *testNode) flush() {
	n.t.Helper()
	for range 3 {
		if err := n.srv.Node.txns.FlushRetries(context.Background()); err != nil {
			n.t.Fatal(err)
		}
	}
}

// outgrowOplog writes several times the oplog's size and truncates it as far as it may be.
func (n *testNode) outgrowOplog() {
	n.t.Helper()
	for range 8 {
		n.ok("d", `{"insert": "big", "documents": [{"b": "`+strings.Repeat("x", 900_000)+`"}]}`)
	}
	if err := n.srv.Engine.TruncateOplog(); err != nil {
		n.t.Fatal(err)
	}
}

const (
	raiseX   = `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`
	raiseY   = `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"y": 1}}}]}`
	commitIt = `{"commitTransaction": 1}`
)

// raise executes a retryable write in one session and a transaction in another.
func (n *testNode) raise(number int) {
	n.t.Helper()
	n.ok("d", inSession(raiseX, number))
	n.ok("d", otherSession(inTxn(raiseY, number, true)))
	n.ok("admin", otherSession(inTxn(commitIt, number, false)))
}

// The oplog was truncated past what was stored of the sessions once it was several times as large as it may be: after a crash
// or an election a write that was sent again ran twice, and a committed transaction was denied.
func TestOplogIsNotTruncatedPastWhatIsStoredOfSessions(t *testing.T) {
	m := newTestMembers(t, 300*time.Millisecond)
	n := m.primary()
	for _, x := range m.nodes {
		x.srv.Engine.SetOplogSize(1 << 20)
	}
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0, "y": 0}]}`)
	n.raise(1)
	n.flush()
	n.raise(2)
	n.outgrowOplog()
	n.ok("admin", `{"replSetStepDown": 60, "secondaryCatchUpPeriodSecs": 10, "force": true}`)
	for old := n; n == old; {
		n = m.primary()
	}
	if r := n.ok("d", inSession(raiseX, 2)); r["retriedStmtIds"] == nil {
		t.Errorf("the write sent again: %v", r)
	}
	n.ok("admin", otherSession(inTxn(commitIt, 2, false)))
	if got := n.first("d", `{"find": "c"}`); fmt.Sprint(got) != "[{ _id: 1, x: 2, y: 2 }]" {
		t.Errorf("%v", got)
	}
	n.flush()
	if err := n.srv.Engine.TruncateOplog(); err != nil || n.srv.Engine.OplogTooLarge() {
		t.Errorf("the oplog is too large, although the sessions are stored: %v", err)
	}
}

// withHole makes a node that has lost a part of the oplog with number 2 of two sessions, of which number 1 is stored.
func withHole(t *testing.T) *testNode {
	n := newTestNode(t)
	n.srv.Engine.SetOplogSize(1 << 20)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0, "y": 0}]}`)
	n.raise(1)
	n.flush()
	docs := n.srv.Node.Docs
	var stored [][]byte
	keep := func(doc []byte) error { stored = append(stored, doc); return nil }
	if err := docs.Each(txn.TransactionsNS, keep); err != nil || len(stored) != 2 {
		t.Fatalf("%d records: %v", len(stored), err)
	}
	progress, err := docs.Get(txn.RetryProgressNS, txn.RetryProgressID)
	if err != nil {
		t.Fatal(err)
	}
	n.raise(2)
	lost := n.srv.Engine.Visible()
	n.flush()
	n.outgrowOplog()
	if cut, err := n.srv.Engine.OplogCut(); err != nil || cut < lost {
		t.Fatalf("truncated up to %v, want %v: %v", cut, lost, err)
	}
	for _, doc := range stored {
		if err := docs.Put(t.Context(), txn.TransactionsNS, doc); err != nil {
			t.Fatal(err)
		}
	}
	if err := docs.Put(t.Context(), txn.RetryProgressNS, progress); err != nil {
		t.Fatal(err)
	}
	n.forgetSessions()
	return n
}

// In a session whose record was older than a hole in the oplog, the first number that arrived was executed, although it may have
// been executed in the hole; a transaction's commit was denied. After the second restart the hole was forgotten.
func TestNumbersLostInAHoleAreRefused(t *testing.T) {
	for _, restarts := range []int{0, 1} {
		n := withHole(t)
		for range restarts {
			n.flush()
			n.forgetSessions()
		}
		runSteps(t, n, []step{
			{inSession(`{"update": "c", "updates": [{"q": {"_id": 1, "x": 1}, "u": {"$set": {"x": 2}}}]}`, 2), mongoerr.IncompleteTransactionHistory},
			{inSession(raiseX, 2), mongoerr.IncompleteTransactionHistory},
			{inSession(raiseX, 3), 0},
			{inSession(raiseX, 4), 0},
		})
		if got := n.code("admin", otherSession(inTxn(commitIt, 2, false))); got != int32(mongoerr.IncompleteTransactionHistory) {
			t.Errorf("after %d restarts, a commit of an unknown transaction: code %d", restarts, got)
		}
		n.ok("d", otherSession(inTxn(raiseY, 3, true)))
		n.ok("admin", otherSession(inTxn(commitIt, 3, false)))
		n.forgetSessions()
		for _, again := range []string{inSession(raiseX, 4), inSession(raiseX, 5)} { // what was written since is complete
			n.ok("d", again)
		}
		n.ok("admin", otherSession(inTxn(commitIt, 3, false)))
		if got := n.first("d", `{"find": "c"}`); fmt.Sprint(got) != "[{ _id: 1, x: 5, y: 3 }]" {
			t.Errorf("after %d restarts: %v", restarts, got)
		}
	}
}

// sessionHistory reads the node's history of sessions, as another shard adopts it.
func (n *testNode) sessionHistory() (out []value.Value) {
	n.t.Helper()
	node := n.srv.Node
	next := node.txns.HistoryOf(func(e *storage.OplogEntry) ([]byte, bool) { return e.O2, true }, node.Engine.Published())
	for more := true; more; {
		part, _, again, err := next(1 << 20)
		if err != nil {
			n.t.Fatal(err)
		}
		for _, e := range part {
			out = append(out, value.NewDocument(e))
		}
		more = again
	}
	return out
}

// Numbers that a donor of chunks may have lost are sent to the recipient, which executed them again.
func TestHolesGoWithAChunk(t *testing.T) {
	donor, n := withHole(t), newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 2}]}`)
	if err := n.srv.Node.txns.Adopt(t.Context(), donor.sessionHistory()); err != nil {
		t.Fatal(err)
	}
	n.forgetSessions()
	runSteps(t, n, []step{
		{inSession(raiseX, 2), mongoerr.IncompleteTransactionHistory},
		{inSession(raiseX, 3), 0},
		{strings.Replace(inSession(raiseX, 1), "AAAAAAAAAQ==", "AAAAAAAAAw==", 1), mongoerr.IncompleteTransactionHistory},
	})
}

// The commit of a transaction that was read from the oplog, and not stored yet, was not stored at all if its session had begun
// another by the next flush.
func TestCommitsReadFromTheOplogAreStored(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "y": 0}]}`)
	n.ok("d", otherSession(inTxn(raiseY, 5, true)))
	n.ok("admin", otherSession(inTxn(commitIt, 5, false)))
	n.forgetSessions()
	n.ok("d", otherSession(inTxn(raiseY, 6, true)))
	n.flush()
	n.srv.Node.txns.AbortTxns()
	n.forgetSessions()
	n.ok("admin", otherSession(inTxn(commitIt, 5, false)))
}

// Executed statements are known after a restart, from the flushed table and from the oplog after it.
func TestRetriesSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	open := func() *testNode {
		srv, err := Open(Config{Dir: dir, SetName: "rs", Host: "test:27017", Info: &command.Info{Host: "test"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := srv.Initiate(context.Background()); err != nil {
			t.Fatal(err)
		}
		return &testNode{t: t, srv: srv, cl: command.NewClient(1, "test:1", "test:27017", nil)}
	}
	for i, flush := range []bool{true, false} {
		written := inSession(`{"insert": "c", "documents": [{"_id": 1, "x": 0}]}`, 4+2*i)
		logged := inSession(`{"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"x": 1}}}`, 5+2*i)
		n := open()
		n.ok("d", `{"drop": "c"}`)
		n.ok("d", written)
		if flush {
			for range 2 {
				if err := n.srv.Node.txns.FlushRetries(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
		}
		n.ok("d", logged)
		n.ok("d", otherSession(inTxn(`{"insert": "t", "documents": [{}]}`, 1+len(n.first("d", `{"find": "t"}`)), true)))
		last := len(n.first("d", `{"find": "t"}`)) + 1
		n.ok("admin", otherSession(inTxn(`{"commitTransaction": 1}`, last, false)))
		if err := n.srv.Close(); err != nil {
			t.Fatal(err)
		}
		n = open()
		n.ok("admin", otherSession(inTxn(`{"commitTransaction": 1}`, last, false)))
		r := n.ok("d", logged)
		if shown(t, r, "retriedStmtId", "value") != "{ retriedStmtId: 0, value: { _id: 1, x: 0 } }" {
			t.Errorf("flush %v: %v", flush, r)
		}
		if got := n.code("d", written); got != int32(mongoerr.TransactionTooOld) {
			t.Errorf("flush %v: older number: code %d", flush, got)
		}
		if got := n.first("d", `{"find": "c"}`); len(got) != 1 || got[0] != "{ _id: 1, x: 1 }" {
			t.Errorf("flush %v: %v", flush, got)
		}
		if err := n.srv.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A session's history is flushed while one of its commands is still running, however long that takes.
func TestSessionsAtWorkAreWrittenDown(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", inSession(`{"insert": "c", "documents": [{"_id": 1, "x": 0}]}`, 1))
	raise := inSession(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`, 2)
	n.ok("d", raise)
	var sessions []*txn.Session
	n.srv.Node.txns.EachIdle(func(_ cluster.LogicalSessionID, s *txn.Session) { sessions = append(sessions, s) })
	for _, s := range sessions {
		if _, err := s.Take(t.Context()); err != nil { // its command is still running
			t.Fatal(err)
		}
	}
	n.ok("d", `{"insert": "c", "documents": [{"_id": 2}]}`)
	var at []storage.Timestamp
	for range 6 {
		if err := n.srv.Node.txns.FlushRetries(context.Background()); err != nil {
			t.Fatal(err)
		}
		at = append(at, n.srv.Node.Engine.Visible())
	}
	if at[5] != at[3] {
		t.Error("an idle node goes on writing")
	}
	n.forgetSessions()
	n.ok("d", raise)
	if got := n.first("d", `{"find": "c", "filter": {"_id": 1}}`); len(got) != 1 || got[0] != "{ _id: 1, x: 1 }" {
		t.Errorf("executed again: %v", got)
	}
}

// A write that waits for a member that is down kept its session busy, and the table's flush skipped it while it advanced
// the time up to which the table is complete: after an election the write ran again, and a committed transaction was
// denied.
func TestWritesThatWaitForTheirConcernAreWrittenDown(t *testing.T) {
	m := newTestMembers(t, time.Minute)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}, {"_id": 2, "x": 0}]}`)
	all := func(cmd string) string { return cmd[:len(cmd)-1] + `, "writeConcern": {"w": 3}}` }
	raise := inSession(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`, 1)
	commit := otherSession(inTxn(`{"commitTransaction": 1}`, 1, false))
	n.ok("d", otherSession(inTxn(`{"update": "c", "updates": [{"q": {"_id": 2}, "u": {"$inc": {"x": 1}}}]}`, 1, true)))
	back := m.down(n)
	var waiting sync.WaitGroup
	for cmd, db := range map[string]string{all(raise): "d", all(commit): "admin"} {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			other := &testNode{t: t, srv: n.srv, cl: command.NewClient(2, "test:2", "test:27017", nil)}
			if r := other.do(db, cmd); r["ok"] != 1.0 {
				t.Errorf("%s: %v", cmd, r)
			}
		}()
	}
	const want = "[{ _id: 1, x: 1 } { _id: 2, x: 1 }]"
	await.State(t, "both are written", func() (string, bool) {
		got := fmt.Sprint(n.first("d", `{"find": "c"}`))
		return got, got == want
	})
	for range 3 {
		if err := n.srv.Node.txns.FlushRetries(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	n.forgetSessions()
	if r := n.ok("d", raise); r["retriedStmtIds"] == nil {
		t.Errorf("the write sent again: %v", r)
	}
	n.ok("admin", commit)
	if got := fmt.Sprint(n.first("d", `{"find": "c"}`)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	back()
	waiting.Wait()
}

// A session that continued with a number under which it wrote nothing forgot what it had executed before, while the flush
// advanced the time up to which the table is complete: a late retry of the preceding number ran again after an election, and a
// committed transaction was denied.
func TestNumbersWithoutWritesKeepTheHistoryBefore(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}, {"_id": 2, "x": 0}]}`)
	raise := inSession(`{"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"x": 1}}, "new": true}`, 5)
	commit := otherSession(inTxn(`{"commitTransaction": 1}`, 5, false))
	n.ok("d", raise)
	n.ok("d", inSession(`{"update": "c", "updates": [{"q": {"_id": 3}, "u": {"$inc": {"x": 1}}}]}`, 6))
	n.ok("d", otherSession(inTxn(`{"update": "c", "updates": [{"q": {"_id": 2}, "u": {"$inc": {"x": 1}}}]}`, 5, true)))
	n.ok("admin", commit)
	n.ok("d", otherSession(inTxn(`{"insert": "c", "documents": [{"_id": 4}]}`, 6, true)))
	if got := n.code("d", raise); got != int32(mongoerr.TransactionTooOld) {
		t.Errorf("an older number: code %d, want 225", got)
	}
	for range 3 {
		if err := n.srv.Node.txns.FlushRetries(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	n.srv.Node.txns.AbortTxns()
	n.forgetSessions()
	if r := n.ok("d", raise); r["retriedStmtId"] != int32(0) {
		t.Errorf("the write sent again: %v", r)
	}
	n.ok("admin", commit)
	if got, want := fmt.Sprint(n.first("d", `{"find": "c"}`)), "[{ _id: 1, x: 1 } { _id: 2, x: 1 }]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A write or a commit that waits for a member that is down kept its collection and its session locked: catalog changes and
// migrations waited with it, and so did the same commit, retried with a concern that could be satisfied.
func TestWaitingForMembersHoldsNoLocks(t *testing.T) {
	m := newTestMembers(t, time.Minute)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}, {"_id": 2, "x": 0}]}`)
	n.ok("d", `{"create": "t"}`)
	all := func(cmd string) string { return cmd[:len(cmd)-1] + `, "writeConcern": {"w": 3}}` }
	raise := inSession(`{"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"x": 1}}, "new": true}`, 1)
	commit := otherSession(inTxn(`{"commitTransaction": 1}`, 1, false))
	n.ok("d", otherSession(inTxn(`{"insert": "t", "documents": [{"_id": 2}]}`, 1, true)))
	back := m.down(n)
	var waiting sync.WaitGroup
	for cmd, db := range map[string]string{all(raise): "d", all(commit): "admin", all(`{"insert": "c", "documents": [{"_id": 3}]}`): "d",
		all(`{"create": "made"}`): "d", all(`{"createIndexes": "e", "indexes": [{"key": {"x": 1}, "name": "x"}]}`): "d"} {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			other := &testNode{t: t, srv: n.srv, cl: command.NewClient(2, "test:2", "test:27017", nil)}
			if r := other.do(db, cmd); r["ok"] != 1.0 || r["writeConcernError"] != nil {
				t.Errorf("%s: %v", cmd, r)
			}
		}()
	}
	await.State(t, "all is written", func() ([4]int, bool) {
		got := [4]int{len(n.first("d", `{"find": "c"}`)), len(n.first("d", `{"find": "c", "filter": {"x": 1}}`)), len(n.first("d", `{"find": "t"}`)),
			len(n.first("d", `{"listCollections": 1, "filter": {"name": {"$in": ["made", "e"]}}}`))}
		return got, got == [4]int{3, 1, 1, 2}
	})
	soon := func(cmd string) string { return cmd[:len(cmd)-1] + `, "maxTimeMS": 5000}` }
	for _, c := range []struct{ db, cmd string }{
		{"d", `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}], "commitQuorum": "majority"}`},
		{"d", raise},
		{"d", inSession(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`, 2)},
		{"admin", commit[:len(commit)-1] + `, "writeConcern": {"w": "majority"}}`},
		{"d", otherSession(inTxn(`{"insert": "t", "documents": [{"_id": 3}]}`, 2, true))},
		{"d", `{"drop": "c"}`},
		{"d", `{"insert": "made", "documents": [{"_id": 1}]}`},
		{"d", `{"insert": "e", "documents": [{"_id": 1}]}`},
	} {
		if r := n.do(c.db, soon(c.cmd)); r["ok"] != 1.0 || c.cmd == raise && r["retriedStmtId"] == nil {
			t.Errorf("%s: %v", c.cmd, r)
		}
	}
	back()
	waiting.Wait()
}

// If a part of the oplog was truncated before the table was flushed, only the sessions in the table were known to be
// incomplete: a retried write of any other session ran twice.
func TestSessionsLostWithTheOplogAreIncomplete(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}]}`)
	before := value.Doc(value.F("_id", txn.RetryProgressID), value.F("ts", storage.Timestamp(1).Value()))
	if err := n.srv.Node.Docs.Put(context.Background(), txn.RetryProgressNS, before); err != nil {
		t.Fatal(err)
	}
	n.forgetSessions()
	raise := `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`
	runSteps(t, n, []step{
		{inSession(raise, 5), mongoerr.IncompleteTransactionHistory},
		{inSession(raise, 6), 0},
	})
	if got := n.code("admin", otherSession(inTxn(`{"commitTransaction": 1}`, 3, false))); got != int32(mongoerr.IncompleteTransactionHistory) {
		t.Errorf("a commit of a session that is not known: code %d", got)
	}
	n.ok("d", otherSession(inTxn(`{"insert": "c", "documents": [{"_id": 2}]}`, 4, true)))
	n.ok("admin", otherSession(inTxn(`{"commitTransaction": 1}`, 4, false)))
}

// The _ids that a command has upserted are part of its session's history. The record of a history larger than a document could not
// be read, and its oplog entry stopped every reader of the oplog.
func TestHistoryLargerThanADocument(t *testing.T) {
	n := newTestNode(t)
	const docs, size = 20, 1 << 20
	upsert := func(number int) string {
		var list []string
		for i := range docs {
			list = append(list, fmt.Sprintf(`{"q": {"_id": "%02d%s"}, "u": {"$inc": {"x": 1}}, "upsert": true}`, i, strings.Repeat("x", size)))
		}
		return inSession(`{"update": "c", "updates": [`+strings.Join(list, ",")+`]}`, number)
	}
	again := func(when string) {
		t.Helper()
		r := n.ok("d", upsert(1))
		up, _ := r["upserted"].(bson.A)
		if retried, _ := r["retriedStmtIds"].(bson.A); r["n"] != int32(docs) || len(up) != docs || len(retried) != docs {
			t.Fatalf("sent again %s: n is %v, %d upserted, %d retried", when, r["n"], len(up), len(retried))
		}
		for i, u := range up {
			if id, _ := asM(u)["_id"].(string); len(id) != size+2 || id[:2] != fmt.Sprintf("%02d", i) {
				t.Fatalf("sent again %s: the _id of statement %d is %.5s", when, i, id)
			}
		}
	}
	flush := func() (continuations int) {
		t.Helper()
		if err := n.srv.Node.txns.FlushRetries(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(n.first("config", `{"find": "system.retryableStatements", "projection": {"_id": 1}, "singleBatch": true}`))
	}
	n.ok("d", upsert(1))
	if got := flush(); got < 4 || got > docs {
		t.Errorf("%d MB of statements are continued in %d documents", docs*size>>20, got)
	}
	for _, coll := range []string{"config transactions", "local oplog.rs"} {
		db, name, _ := strings.Cut(coll, " ")
		for _, size := range n.first(db, fmt.Sprintf(`{"aggregate": %q, "pipeline": [{"$project": {"n": {"$bsonSize": "$$ROOT"}, "_id": 0}}, {"$match": {"n": {"$gt": 16793600}}}], "cursor": {}}`, name)) {
			t.Errorf("%s has a document of this size: %s", coll, size)
		}
	}
	again("at once")
	n.forgetSessions()
	again("after an election")
	n.ok("d", inSession(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}, "upsert": true}]}`, 2))
	if got := flush(); got != 1 {
		t.Errorf("%d documents are stored of one statement", got)
	}
	n.forgetSessions()
	if r := n.ok("d", inSession(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}, "upsert": true}]}`, 2)); shown(t, r, "retriedStmtIds") != "{ retriedStmtIds: [ 0 ] }" {
		t.Errorf("%v", r)
	}
	n.ok("d", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`)
	n.ok("d", upsert(3))
	if got := flush(); got < 4 || got > docs {
		t.Errorf("%d MB of statements are then continued in %d documents", docs*size>>20, got)
	}
	n.ok("d", inSession(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}, "upsert": true}]}`, 4))
	if got := flush(); got != 1 {
		t.Errorf("%d documents are stored of one statement, without an election before", got)
	}
	if got := len(n.first("local", `{"find": "oplog.rs", "filter": {"$or": [{"ns": "config.system.retryableStatements"}, {"o.create": "system.retryableStatements"}]}, "singleBatch": true}`)); got > 0 {
		t.Errorf("the oplog has %d entries of the documents with the statements", got)
	}
}
