package router_test

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A shard leaves the cluster, and stops, after a DDL has listed the shards: the operation ends without it.
func TestShardLeavesDuringDDL(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ db, cmd, phase, now string }{
		{"db", `{"drop": "c"}`, "dropCollection", ""}, {"admin", `{"renameCollection": "db.c", "to": "db.d"}`, "renameMetadata", "d"}, {"db", `{"dropDatabase": 1}`, "dropDatabase", ""},
		{"db", `{"dropDatabase": 1}`, "releaseCriticalSection", ""}, {"admin", `{"shardCollection": "db.new", "key": {"k": 1}}`, "exitCriticalSection", "c"},
		{"admin", `{"refineCollectionShardKey": "db.c", "key": {"k": 1, "g": 1}}`, "releaseCritSec", "c"},
	} {
		c := newTestCluster(t, 3)
		w := c.interposed("shard2")
		c.configThrough(func(_ string, to cluster.Peer) cluster.Peer { return to }) // its connections are those of before
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
		c.run("admin", `{"split": "db.c", "middle": {"k": 0}}`)
		c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1", "_waitForDelete": true}`)
		c.insertKeys("c", 1, 10)
		c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "g": 1}, "name": "kg"}]}`)
		reached, release := c.hangAt("shard0", x.phase)
		answer, other := make(chan bson.M, 1), c.through()
		go func() { answer <- c.raw(x.db, x.cmd) }()
		reached()
		c.until("shard2 is removed", func() bool { return other.run("admin", `{"removeShard": "shard2"}`)["state"] == "completed" })
		w.through(func(context.Context, string, func() ([]byte, error)) ([]byte, error) {
			return nil, mongoerr.New(mongoerr.HostUnreachable, "the shard has left")
		})
		release()
		if m := <-answer; m["ok"] != 1.0 {
			t.Errorf("%s: %v", x.cmd, m)
		}
		if x.now != "" {
			c.expect(c.counted(x.now, 1), `10`)
		}
		c.run("admin", `{"enableSharding": "db"}`)
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	}
}

// A critical section that began with a late message, of a shard that has since left the cluster, is ended by the operations that wait for it.
func TestSectionOfAShardThatHasLeft(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for _, cmd := range []string{`{"insert": "c", "documents": [{"_id": 1}], "maxTimeMS": 100000}`, `{"drop": "c", "maxTimeMS": 100000}`} {
		late := &msg.ParticipantBlock{NS: "db.c", Type: msg.BlockReadsAndWrites, Command: "dropCollection", Owner: "gone", ID: cluster.NewUUID()}
		if _, err := cluster.Run(t.Context(), c.shards["shard0"], msg.Doc(late)); err != nil {
			t.Fatal(err)
		}
		if m := c.raw("db", cmd); m["ok"] != 1.0 {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	c.leftOver()
}

// A shard that leaves the cluster during a DDL, which ends without it, and is added again, takes chunks at once: it used to hold the critical section until it looked, by itself, whether anybody
// else did. The section of a run that goes on stays.
func TestSectionsOfAShardThatIsAddedAgain(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	w := c.interposed("shard2")
	c.configThrough(func(_ string, to cluster.Peer) cluster.Peer { return to }) // its connections are those of before
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	s := c.server["shard2"]
	sections := func() any {
		return c.admin(s.Peer(), bson.D{{Key: "count", Value: "collection_critical_sections"}, {Key: "$db", Value: "config"}})["n"]
	}
	for _, goesOn := range []bool{false, true} {
		c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
		reached, release := c.hangAt("shard0", "dropCollection")
		other := c.through()
		answer := other.later("db", `{"drop": "c"}`)
		reached()
		c.until("shard2 is removed", func() bool { return other.run("admin", `{"removeShard": "shard2"}`)["state"] == "completed" })
		if !goesOn {
			w.through(func(context.Context, string, func() ([]byte, error)) ([]byte, error) {
				return nil, mongoerr.New(mongoerr.HostUnreachable, "the shard has left")
			})
			release()
			if m := <-answer; m["ok"] != 1.0 {
				t.Fatalf("%v", m)
			}
		}
		if n := sections(); n != int32(1) {
			t.Fatalf("the shard had %v sections when it left", n)
		}
		w.by.Store(nil)
		c.join("shard2", "shard2:27018", s)
		if n := sections(); n != map[bool]int32{false: 0, true: 1}[goesOn] {
			t.Errorf("the run goes on: %v; the shard has %v sections when it is added", goesOn, n)
		}
		if goesOn {
			release()
			if m := <-answer; m["ok"] != 1.0 {
				t.Fatalf("%v", m)
			}
		}
		c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
		c.insertKeys("c", 1, 10)
		c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard2", "_waitForDelete": true}`)
		c.expect(c.counted("c", 1), `10`)
		c.leftOver()
		c.run("db", `{"drop": "c"}`)
	}
}

// A shard takes and gives chunks of a collection although it has a critical section of its name that no run holds. It refused them until it asked by itself whether anybody did: a shard that is killed
// after a DDL has lost the end of its section.
func TestChunksMoveAtOnceDespiteSectionsThatNobodyHolds(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for _, at := range []string{"shard0", "shard1"} {
		c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
		left := &msg.ParticipantBlock{NS: "db.c", Type: msg.BlockReadsAndWrites, Command: "shardCollection", Owner: "shard0", ID: cluster.NewUUID(), At: 1}
		if _, err := cluster.Run(t.Context(), c.shards[at], msg.Doc(left)); err != nil {
			t.Fatal(err)
		}
		if m := c.raw("admin", `{"moveChunk": "db.c", "find": {"k": 1}, "to": "shard1"}`); m["ok"] != 1.0 {
			t.Errorf("%s has a section that nobody holds: %v", at, m)
		}
		c.run("db", `{"drop": "c"}`)
	}
	c.leftOver()
}
