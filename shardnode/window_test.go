package shardnode

import "testing"

// minSnapshotHistoryWindowInSeconds was stored but had no effect.
func TestHistoryWindowFollowsItsParameter(t *testing.T) {
	n := newTestNode(t)
	n.ok("admin", `{"setParameter": 1, "minSnapshotHistoryWindowInSeconds": 7}`)
	if w := n.srv.Engine.HistoryWindow().Seconds(); w != 7 {
		t.Errorf("a window of %v s", w)
	}
}
