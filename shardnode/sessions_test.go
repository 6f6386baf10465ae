package shardnode

import (
	"strings"
	"testing"
)

// The sessions collection has what was used, with the index that reaps it; ended sessions leave it, and their transactions
// end.
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
	if open := n.srv.Node.txns.open.Load(); open != 0 {
		t.Errorf("%d open transactions after endSessions", open)
	}
	n.ok("admin", `{"refreshLogicalSessionCacheNow": 1}`)
	if got := stored(); got != 0 {
		t.Errorf("%d stored sessions after endSessions, want 0", got)
	}
}
