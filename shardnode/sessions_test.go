package shardnode

import (
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

// The sessions collection has the used sessions, and a TTL index; ended sessions are removed, and their transactions end.
func TestSessionsCollection(t *testing.T) {
	n := newTestNode(t)
	in := func(cmd string) string { return cmd[:len(cmd)-1] + ", " + testLSID + "}" }
	n.ok("d", in(`{"insert": "c", "documents": [{"_id": 1}]}`))
	n.ok("admin", `{"refreshLogicalSessionCacheNow": 1}`)
	stored := func() int {
		t.Helper()
		return len(n.first("config", `{"aggregate": "system.sessions", "pipeline": [{"$listSessions": {}}], "cursor": {}}`))
	}
	if got := stored(); got != 1 {
		t.Errorf("%d stored sessions, want 1", got)
	}
	if got := n.first("config", `{"aggregate": "system.sessions", "pipeline": [{"$listSessions": {"users": [{"user": "u", "db": "d"}]}}], "cursor": {}}`); len(got) != 0 {
		t.Errorf("sessions of a user that is not there: %v", got)
	}
	indexes := strings.Join(n.first("config", `{"listIndexes": "system.sessions"}`), " ")
	if !strings.Contains(indexes, `name: "lsidTTLIndex", expireAfterSeconds: 1800`) {
		t.Errorf("indexes: %s", indexes)
	}
	n.ok("d", inTxn(`{"insert": "c", "documents": [{"_id": 2}]}`, 1, true))
	n.ok("d", strings.Replace(in(`{"endSessions": []}`), "[]", "["+testLSID[len(`"lsid": `):]+"]", 1))
	if open := n.srv.Node.txns.Counters().Open.Load(); open != 0 {
		t.Errorf("%d open transactions after endSessions", open)
	}
	n.ok("admin", `{"refreshLogicalSessionCacheNow": 1}`)
	if got := stored(); got != 0 {
		t.Errorf("%d stored sessions after endSessions, want 0", got)
	}
}

// The history of a session's writes used to expire by idle time alone. It is kept for as long as the sessions collection has
// the session, which another node may renew, and for TransactionRecordMinimumLifetimeMinutes.
func TestReapAsksTheSessionsCollection(t *testing.T) {
	n := newTestNode(t)
	write := `{"insert": "c", "documents": [{"_id": 1}], ` + testLSID + `, "txnNumber": {"$numberLong": "1"}}`
	n.ok("d", write)
	n.ok("admin", `{"refreshLogicalSessionCacheNow": 1}`)
	node := n.srv.Node
	kept := func() int { return len(n.sessionHistory()) }
	reap := func() { n.ok("admin", `{"reapLogicalSessionCacheNow": 1}`) }
	reap()
	if kept() != 1 {
		t.Fatal("the session was forgotten at once")
	}
	node.Params.Store("TransactionRecordMinimumLifetimeMinutes", value.NewInt32(0)) // idle for long enough at once
	reap()
	if kept() != 1 {
		t.Error("a session that the collection knows was forgotten")
	}
	n.ok("config", `{"delete": "system.sessions", "deletes": [{"q": {}, "limit": 0}]}`)
	reap()
	if kept() != 0 {
		t.Error("a session that the collection does not know was kept")
	}
	if got := n.first("config", `{"find": "transactions"}`); len(got) != 0 {
		t.Errorf("config.transactions: %v", got)
	}
}

// TransactionRecordMinimumLifetimeMinutes keeps the history of writes of sessions that no collection knows any more.
func TestTransactionRecordMinimumLifetimeMinutes(t *testing.T) {
	for minutes, want := range map[int32]int{30: 1, 0: 0} { // idle for long enough at once
		n := newTestNode(t)
		n.srv.Node.Params.Store("TransactionRecordMinimumLifetimeMinutes", value.NewInt32(minutes))
		n.ok("d", `{"insert": "c", "documents": [{"_id": 1}], `+testLSID+`, "txnNumber": {"$numberLong": "1"}}`)
		n.ok("config", `{"delete": "system.sessions", "deletes": [{"q": {}, "limit": 0}]}`)
		n.ok("admin", `{"reapLogicalSessionCacheNow": 1}`)
		if kept := len(n.sessionHistory()); kept != want {
			t.Errorf("%d minutes: the history of %d sessions is kept, want %d", minutes, kept, want)
		}
	}
}
