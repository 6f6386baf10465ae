package router_test

import (
	"context"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A drop or rename of a sharded collection on two shards waits for five syncs, one after the other: the state document with the coordinator's critical section, the
// other shard's section, the catalog, the other shard's part, and the coordinator's own part with the end of the run. What is written as a client's commands are (the
// shards' parts of a drop) is not held up here, nor counted.
func TestSyncsOfShardedDDL(t *testing.T) {
	wrong := ""
	for range 4 { // a node's own work may write at the same time, which is counted, too
		if wrong = countSyncsOfDDL(t); wrong == "" {
			return
		}
	}
	t.Error(wrong)
}

// countSyncsOfDDL returns what is unexpected of the syncs that a rename and a drop wait for on a new cluster, "" for nothing.
func countSyncsOfDDL(t *testing.T) (wrong string) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
	c.shardedAs("first", 1, 4)
	c.run("db", `{"drop": "first"}`) // creates the collections of coordinators
	c.shardedAs("c", 1, 4)
	disk := &syncs{open: make(chan struct{})}
	for _, n := range []string{"shard0", "shard1"} {
		n := c.server[n].Node
		n.Set, n.Docs.Set = slowDisk{n.Set, disk}, slowDisk{n.Docs.Set, disk}
	}
	n := c.conf.Node
	n.Set, n.Docs.Set = slowDisk{n.Set, disk}, slowDisk{n.Docs.Set, disk}
	for _, x := range []struct {
		db, cmd string
		syncs   []int
	}{{"admin", `{"renameCollection": "db.c", "to": "db.d"}`, []int{1, 1, 1, 1, 1}}, {"db", `{"drop": "d"}`, []int{1, 1, 1}}} {
		answer := make(chan bson.M, 1)
		go func() { answer <- c.raw(x.db, x.cmd) }()
		for i, want := range x.syncs {
			c.until(fmt.Sprintf("%s: %d writes wait for sync %d", x.cmd, want, i+1), func() bool { return disk.count() >= want || len(answer) == 1 })
			if n := disk.count(); n != want {
				wrong = fmt.Sprintf("%s: %d writes wait for sync %d, not %d", x.cmd, n, i+1, want)
			}
			disk.complete()
		}
		c.until(x.cmd+" ends", func() bool {
			if n := disk.count(); n > 0 {
				wrong = fmt.Sprintf("%s: %d more syncs", x.cmd, n)
				disk.complete()
			}
			return len(answer) == 1
		})
		if r := <-answer; r["ok"] != 1.0 {
			t.Error(r)
		}
	}
	return wrong
}

// A shard's reply in the last phase of a drop or rename is lost, after it has left its critical section and, on the coordinator's shard, the run has ended in the
// same unit of work: asked again, it finds its part done.
func TestLostRepliesOfTheLastPhase(t *testing.T) {
	for _, shard := range []string{"shard0", "shard1"} {
		c := newTestCluster(t, 2)
		w, lost := c.interposed(shard), map[string]int{}
		w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
			reply, err := call()
			if (name == "_shardsvrDropCollectionParticipant" || name == "_shardsvrRenameCollectionParticipant") && err == nil {
				if lost[name]++; lost[name] == 1 {
					return nil, mongoerr.New(mongoerr.HostUnreachable, "the reply is lost")
				}
			}
			return reply, err
		})
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
		c.shardedAs("c", 1, 10)
		c.run("admin", `{"renameCollection": "db.c", "to": "db.d"}`)
		c.leftOver()
		c.expect(c.counted("d", 1), `10`)
		c.expect(c.counted("c", 1), `0`)
		c.run("db", `{"drop": "d"}`)
		c.leftOver()
		c.expect(c.counted("d", 1), `0`)
		for name, n := range lost {
			if n < 2 {
				t.Errorf("%s: %s was not sent again", shard, name)
			}
		}
		if len(lost) != 2 {
			t.Errorf("%s: %v", shard, lost)
		}
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
	}
}
