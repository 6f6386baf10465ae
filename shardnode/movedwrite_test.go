package shardnode

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ofChild adds to a command the session of an internal transaction for the given write of the tests' usual session.
func ofChild(cmd string, number, child int) string {
	id := fmt.Sprintf(`"==", "subType": "04"}}, "txnNumber": {"$numberLong": "%d"}, "txnUUID": {"$binary": {"base64": "AAAAAAAAQACAAAAAAAA%cAQ==", "subType": "04"}}}`, number, 'A'+child)
	return strings.Replace(cmd, testLSID, strings.TrimSuffix(testLSID, `==", "subType": "04"}}}`)+id[1:], 1)
}

// The statement of a client's session that an internal transaction executes is known to be executed once the
// transaction has committed, also after an election or a restart, but not while it is open or after it has ended
// otherwise.
func TestInternalTransactionsCarryOutRetryableWrites(t *testing.T) {
	n := newTestNode(t)
	n.cl.Internal = true // a router
	write := func(number int) string {
		return inSession(`{"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"x": 10}}, "upsert": true, "new": true}`, number)
	}
	flush := func() {
		for range 3 {
			if err := n.srv.Node.txns.FlushRetries(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		n.forgetSessions()
	}
	restore := func() {
		n.srv.Node.txns.AbortTxns() // as on a member that steps down
		n.forgetSessions()
		if err := n.srv.Node.txns.RestorePrepared(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	commit := func(c func(string, bool) string) { n.ok("admin", c(`{"commitTransaction": 1}`, false)) }
	for i, tc := range []struct {
		name string
		end  func(c func(string, bool) string)
		done bool
	}{
		{"committed", commit, true},
		{"committed, after an election", func(c func(string, bool) string) { commit(c); n.forgetSessions() }, true},
		{"committed and written down", func(c func(string, bool) string) { commit(c); flush() }, true},
		{"prepared, restored and committed", func(c func(string, bool) string) {
			n.ok("admin", c(`{"prepareTransaction": 1}`, false))
			restore()
			n.ok("admin", c(`{"commitTransaction": 1, "commitTimestamp": {"$timestamp": {"t": 1, "i": 1}}}`, false))
		}, true},
		{"aborted", func(c func(string, bool) string) { n.ok("admin", c(`{"abortTransaction": 1}`, false)) }, false},
		{"left open", func(func(string, bool) string) {}, false},
	} {
		number := i + 1
		child := func(cmd string, start bool) string { return ofChild(inTxn(cmd, 0, start), number, i) }
		n.ok("d", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`)
		n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}]}`)
		n.ok("d", child(`{"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}`, true))
		n.ok("d", child(`{"_shardsvrNoteMovedWrite": 1, "statement": 0, "image": {"_id": 1, "x": 7}, "imageKind": "postImage"}`, false))
		tc.end(child)
		want := `{ lastErrorObject: { n: 1, updatedExisting: true }, value: { _id: 1, x: 10 } }`
		if tc.done {
			want = `{ lastErrorObject: { n: 1, updatedExisting: true }, value: { _id: 1, x: 7 }, retriedStmtId: 0 }`
			executed := n.ok("admin", fmt.Sprintf(`{"_shardsvrStatementExecuted": 1, "session": %s, "number": {"$numberLong": "%d"}, "statement": 0}`, strings.TrimPrefix(testLSID, `"lsid": `), number))
			if got := shown(t, executed, "executed"); got != "{ executed: true }" {
				t.Errorf("%s: %s", tc.name, got)
			}
		}
		if got := shown(t, n.ok("d", write(number)), "lastErrorObject", "value", "retriedStmtId"); got != want {
			t.Errorf("%s: %s, want %s", tc.name, got, want)
		}
		if !tc.done {
			if got := n.code("admin", child(`{"commitTransaction": 1}`, false)); got != int32(mongoerr.NoSuchTransaction) {
				t.Errorf("%s: it commits after the retry, with code %d", tc.name, got)
			}
		}
	}
	again := ofChild(inTxn(`{"find": "c"}`, 0, true), 5, 20)
	if got := n.code("d", again); got != int32(mongoerr.TransactionTooOld) {
		t.Errorf("a transaction for a write that the session has gone on from: code %d", got)
	}
	late := func(cmd string, start bool) string { return ofChild(inTxn(cmd, 0, start), 6, 21) }
	n.ok("d", late(`{"find": "c"}`, true))
	if got := n.code("d", late(`{"_shardsvrNoteMovedWrite": 1, "statement": 0}`, false)); got != int32(mongoerr.IncompleteTransactionHistory) {
		t.Errorf("a transaction for a statement that was executed: code %d", got)
	}
}
