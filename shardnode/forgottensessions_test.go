package shardnode

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Sessions whose records a client deletes from config.transactions, or drops with it, are forgotten: their statements run again when
// they are sent again, and their open transactions have ended. Other sessions continue.
func TestDeletedSessionRecordsAreForgotten(t *testing.T) {
	for _, c := range []struct {
		how, cmd string
		others   bool // are forgotten too
	}{
		{"one record", `{"delete": "transactions", "deletes": [{"q": {"_id.id": {"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAQ==", "subType": "04"}}}, "limit": 1}]}`, false},
		{"all records", `{"delete": "transactions", "deletes": [{"q": {}, "limit": 0}]}`, true},
		{"the collection", `{"drop": "transactions"}`, true},
	} {
		for _, elected := range []bool{false, true} {
			t.Run(fmt.Sprint(c.how, ", elected ", elected), func(t *testing.T) {
				n := newTestNode(t)
				n.ok("d", `{"insert": "c", "documents": [{"_id": 0, "x": 0}]}`)
				add := inSession(`{"update": "c", "updates": [{"q": {"_id": 0}, "u": {"$inc": {"x": 1}}}]}`, 5)
				x := func() string { return fmt.Sprint(n.first("d", `{"find": "c", "projection": {"_id": 0}}`)) }
				n.ok("d", add)
				n.ok("d", otherSession(add))
				n.ok("d", add)
				before := x()
				if before != "[{ x: 2 }]" {
					t.Fatalf("two statements, one of them twice: %s", before)
				}
				n.ok("config", c.cmd)
				if elected {
					n.forgetSessions()
				}
				n.ok("d", add)
				n.ok("d", otherSession(add))
				want := "[{ x: 3 }]"
				if c.others {
					want = "[{ x: 4 }]"
				}
				if got := x(); got != want {
					t.Errorf("after the deletion both were sent again: %s, want %s", got, want)
				}
				n.ok("d", add)
				if got := x(); got != want {
					t.Errorf("and the statement is known again: %s, want %s", got, want)
				}

				in := inSession(`{"insert": "c", "documents": [{"_id": 1}], "startTransaction": true, "autocommit": false}`, 6)
				n.ok("d", in)
				n.ok("config", c.cmd)
				if code := n.code("admin", inSession(`{"commitTransaction": 1, "autocommit": false}`, 6)); code != int32(mongoerr.NoSuchTransaction) {
					t.Errorf("commit of a transaction that was open: %v", code)
				}
			})
		}
	}
}

// A deletion is refused on a session, which would delete its own history.
func TestSessionsDeleteNoRecords(t *testing.T) {
	n := newTestNode(t)
	for _, cmd := range []string{`{"delete": "transactions", "deletes": [{"q": {}, "limit": 0}]}`, `{"drop": "transactions"}`} {
		if code := n.code("config", cmd[:len(cmd)-1]+", "+testLSID+"}"); code != 40528 {
			t.Errorf("%s: %v", cmd, code)
		}
	}
}

// The record of a transaction that has voted to commit stays until that is decided.
func TestPreparedTransactionsKeepTheirRecords(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 0}]}`)
	n.ok("d", inTxn(`{"insert": "c", "documents": [{"_id": 1}]}`, 1, true))
	n.ok("admin", inTxn(`{"prepareTransaction": 1}`, 1, false))
	for _, cmd := range []string{`{"delete": "transactions", "deletes": [{"q": {}, "limit": 0}]}`, `{"drop": "transactions"}`} {
		reply := fmt.Sprint(n.do("config", cmd))
		if !strings.Contains(reply, "267") {
			t.Errorf("%s: %s", cmd, reply)
		}
	}
	n.ok("admin", inTxn(`{"abortTransaction": 1}`, 1, false))
	n.ok("config", `{"drop": "transactions"}`)
}
