package router_test

import (
	"testing"

	"github.com/shoaldb/shoal/cluster"
)

// Two messages of a dropDatabase arrive when its sections have ended, and the run has not: the database was made again meanwhile, and was dropped on the shard that they reach.
func TestTwoLateMessagesBeforeTheEnd(t *testing.T) {
	c := newTestCluster(t, 2)
	w := &delayedPeer{}
	c.between("shard1", func(to cluster.Peer) cluster.Peer {
		w.Peer = to
		return w
	})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 40)
	w.commands = map[string]bool{"_shardsvrParticipantBlock": true, "_shardsvrDropDatabaseParticipant": true}
	reached, release := c.hangAt("shard0", "done")
	first := c.later("db", `{"dropDatabase": 1}`)
	reached()
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
	c.shardedAs("c", 2, 40)
	if len(w.kept) != 2 {
		t.Fatalf("%d messages are late", len(w.kept))
	}
	for i, late := range w.kept {
		if _, err := cluster.Run(t.Context(), w.Peer, late); (err == nil) != (i == 0) {
			t.Errorf("the late message %d: %v", i, err)
		}
	}
	release()
	if m := <-first; m["ok"] != 1.0 {
		t.Error(m)
	}
	c.expect(c.counted("c", 2), `40`)
}
