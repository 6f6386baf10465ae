package router_test

import (
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A running two-phase commit, and those that have ended, are reported; the client gets its reply at the right step.
func TestCoordinatorsTellHowFarTheyAre(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	write := func(w *txnClient) {
		t.Helper()
		for i, id := range []int{-1, 1} {
			if m, code := w.do("d", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d}, "u": {"$inc": {"x": 1}}}]}`, id), i == 0); code != 0 {
				t.Fatal(m)
			}
		}
	}
	status := func(shard, section, field string) string {
		m := c.admin(c.shards[shard], bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}})
		return show(fieldAt(m, section+"."+field))
	}
	rows := func() (whole, action string) {
		for _, row := range c.all("admin", `{"aggregate": 1, "pipeline": [{"$currentOp": {"allUsers": true}}, {"$match": {"twoPhaseCommitCoordinator": {"$exists": true}}},
			{"$project": {"desc": 1, "state": "$twoPhaseCommitCoordinator.state", "decision": {"$ifNull": ["$twoPhaseCommitCoordinator.decision.decision", ""]}, "action": {"$ifNull": ["$twoPhaseCommitCoordinator.action", ""]}}}], "cursor": {}}`) {
			switch get(row, "desc") {
			case "transaction coordinator":
				whole = fmt.Sprint(get(row, "state"), " ", get(row, "decision"))
			case "TransactionCoordinator":
				action = get(row, "action").(string)
			}
		}
		return whole, action
	}
	w := c.txnClient(1)
	for _, at := range []struct{ point, state, action, step string }{
		{"hangBeforeSendingPrepare", "writingParticipantList ", "writingParticipantList", "writingParticipantList"},
		{"hangBeforeWritingDecision", "waitingForVotes ", "sendingPrepare", "waitingForVotes"},
		{"hangBeforeSendingCommit", "writingDecision commit", "writingDecision", "writingDecision"},
	} {
		write(w)
		entered := c.point("shard0", at.point, true)
		done := make(chan bson.M, 1)
		go func() {
			m, _ := w.do("admin", `{"commitTransaction": 1}`, false)
			done <- m
		}()
		entered()
		if state, action := rows(); state != at.state || action != at.action {
			t.Errorf("%s: %s, %s", at.point, state, action)
		}
		if got := status("shard0", "twoPhaseCommitCoordinator", "currentInSteps."+at.step); got != "1" {
			t.Errorf("%s: %s coordinators in the step", at.point, got)
		}
		c.point("shard0", at.point, false)
		if m := <-done; m["ok"] != 1.0 {
			t.Fatal(m)
		}
	}
	for field, want := range map[string]string{"totalCreated": "3", "totalStartedTwoPhaseCommit": "3", "totalCommittedTwoPhaseCommit": "3", "totalAbortedTwoPhaseCommit": "0"} {
		if got := status("shard0", "twoPhaseCommitCoordinator", field); got != want {
			t.Errorf("%s: %s, want %s", field, got, want)
		}
	}
	for field, want := range map[string]string{"totalPrepared": "3", "totalPreparedThenCommitted": "3", "totalPreparedThenAborted": "0", "currentPrepared": "0", "currentActive": "0"} {
		if got := status("shard1", "transactions", field); got != want {
			t.Errorf("%s: %s, want %s", field, got, want)
		}
	}

	// The client gets its reply once the decision is stored. Causally later reads wait for the participants, and so does the
	// session's next transaction.
	c.admin(c.shards["shard0"], bson.D{{Key: "setParameter", Value: 1}, {Key: "coordinateCommitReturnImmediatelyAfterPersistingDecision", Value: true}, {Key: "$db", Value: "admin"}})
	write(w)
	c.point("shard0", "hangBeforeSendingCommit", true)
	m, _ := w.do("admin", `{"commitTransaction": 1}`, false)
	if m["ok"] != 1.0 {
		t.Fatal(m)
	}
	after := m["operationTime"].(bson.Timestamp)
	answers := make(chan bson.M, 2)
	go func() {
		answers <- c.through().raw("d", fmt.Sprintf(`{"find": "c", "filter": {"_id": 1}, "readConcern": {"level": "majority", "afterClusterTime": {"$timestamp": {"t": %d, "i": %d}}}}`, after.T, after.I))
	}()
	go func() {
		m, _ := w.do("d", `{"find": "c", "filter": {"_id": 1}}`, true)
		answers <- m
	}()
	select {
	case m := <-answers:
		t.Errorf("answered before the participants have committed: %v", m)
	case <-time.After(50 * time.Millisecond):
	}
	c.point("shard0", "hangBeforeSendingCommit", false)
	for range 2 {
		if m := <-answers; show(fieldAt(m, "cursor.firstBatch")) != `[{"_id":1,"x":4}]` {
			t.Errorf("%v", m)
		}
	}
}
