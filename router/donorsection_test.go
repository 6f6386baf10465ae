package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
)

// A donor shows in currentOp how long its critical section has lasted, and how many writes and reads have met it. It used to show neither.
func TestDonorCountsWhatItsSectionBlocks(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.config.Points = c.points["config"]
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.insertKeys("c", 1, 10)
	donor := func() bson.M {
		t.Helper()
		for _, d := range c.currentOps(`{}`, `{"desc": {"$regex": "^ReshardingDonor"}}`, `{"_id": 0, "desc": 0}`) {
			return decode(t, mustBSON(t, d.(bson.D)))
		}
		return bson.M{}
	}
	reached, release := c.hangOn("shard1", "reshardingPauseRecipientAtState", "state", "cloning")
	atCommit, commit := c.hangOn("config", "reshardingPauseCoordinatorAtState", "state", "committing")
	moved := c.later("admin", `{"moveCollection": "db.c", "toShard": "shard1"}`)
	reached()
	shows := func(writes, reads int64) {
		t.Helper()
		await.State(t, fmt.Sprintf("%d writes and %d reads are counted", writes, reads), func() (string, bool) {
			m := donor()
			return fmt.Sprint(m), m["countWritesDuringCriticalSection"] == writes && m["countReadsDuringCriticalSection"] == reads
		})
	}
	c.run("db", `{"insert": "c", "documents": [{"_id": 100, "k": 100}]}`)
	shows(0, 0)
	if since := donor()["totalCriticalSectionTimeElapsedSecs"]; since != int64(0) {
		t.Errorf("without a section it has lasted %v", since)
	}
	if state := donor()["donorState"]; state != "donating-initial-data" {
		t.Errorf("during the clone the donor's state is %v", state)
	}
	release()
	atCommit()
	if state := donor()["donorState"]; state != "blocking-writes" {
		t.Errorf("in the section the donor's state is %v", state)
	}
	var replies []<-chan bson.M
	for i := range 3 {
		replies = append(replies, c.later("db", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "k": 1}]}`, 200+i)))
	}
	replies = append(replies, c.later("db", `{"update": "c", "updates": [{"q": {"k": 1}, "u": {"$set": {"x": 1}}}]}`), c.later("db", `{"find": "c"}`), c.later("db", `{"count": "c"}`))
	shows(4, 2)
	await.State(t, "the section has a time", func() (string, bool) {
		m := donor()
		n, _ := m["totalCriticalSectionTimeElapsedSecs"].(int64)
		return fmt.Sprint(m), n > 0
	})
	commit()
	for _, r := range append(replies, moved) {
		if m := <-r; m["ok"] != 1.0 {
			t.Errorf("answered %v", m)
		}
	}
	c.expect(len(c.all("db", `{"find": "c", "filter": {"_id": {"$gte": 200}}}`)), `3`)
}
