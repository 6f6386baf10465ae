package router_test

import (
	"context"
	"strings"
	"testing"
)

// A shard other than the coordinating one has no majority: DDL of sharded collections returns at its wtimeout, and continues when there is one. It used to wait
// until then, and so did other DDL of the same name: a second dropDatabase for the critical section of the first, others for its locks.
func TestDDLBesideAShardWithoutAMajority(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	x := c.addSet("shardx")
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	both := func(name string) {
		c.run("admin", `{"shardCollection": "d.`+name+`", "key": {"_id": 1}}`)
		c.run("admin", `{"split": "d.`+name+`", "middle": {"_id": 0}}`)
		c.run("admin", `{"moveChunk": "d.`+name+`", "find": {"_id": 1}, "to": "shardx", "_waitForDelete": true}`)
		c.run("d", `{"insert": "`+name+`", "documents": [{"_id": -1, "a": 1}, {"_id": 1, "a": 1}]}`)
	}
	for _, step := range []struct{ db, cmd, on string }{
		{"d", `{"collMod": "c", "validator": {"a": 1}}`, "c"},
		{"d", `{"dropIndexes": "c", "index": "a"}`, "c"},
		{"admin", `{"refineCollectionShardKey": "d.c", "key": {"_id": 1, "a": 1}}`, "c"},
		{"admin", `{"renameCollection": "d.c", "to": "d.renamed"}`, "c"},
		{"d", `{"drop": "c"}`, "c"},
		{"admin", `{"movePrimary": "d", "to": "shardx"}`, "c"},
		{"d", `{"dropDatabase": 1}`, "c"},
	} {
		both(step.on)
		c.run("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"_id": 1, "a": 1}, "name": "ia"}]}`)
		x.cut.Store(true)
		for range 2 { // the second one joins the first
			if m := c.timedOut(step.db, step.cmd); m["ok"] == 1.0 {
				t.Errorf("%s: %v", step.cmd, m)
			}
		}
		behind := []string{`{"convertToCapped": "` + step.on + `", "size": 4096}`} // they wait for its locks
		if !strings.HasPrefix(step.cmd, `{"dropIndexes"`) {                        // which does not exclude create
			behind = append(behind, `{"create": "`+step.on+`", "capped": true, "size": 4096}`)
		}
		for _, cmd := range behind {
			if m := c.timedOut("d", cmd); m["ok"] == 1.0 {
				t.Errorf("%s after %s: %v", cmd, step.cmd, m)
			}
		}
		x.cut.Store(false)
		c.until("the set is writable", func() bool { return x.servers["shardx:27018"].Repl.Writable() })
		c.leftOver()
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		c.run("admin", `{"enableSharding": "d"}`)
		c.raw("admin", `{"movePrimary": "d", "to": "shard0"}`)
		for _, left := range []string{"c", "renamed"} {
			c.run("d", `{"drop": "`+left+`"}`)
		}
	}
}

// A wtimeout ends no operation, however long it takes, while all nodes have their majorities: a shard that does not reply is asked whether it has one.
func TestSlowDDLWithAWtimeout(t *testing.T) {
	c := newTestCluster(t, 2)
	w, asked, answered := c.interposed("shard1"), make(chan struct{}, 10), make(chan struct{})
	w.through(func(ctx context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		switch name {
		case "_holdsCriticalSection":
			reply, err := call()
			asked <- struct{}{}
			return reply, err
		case "_shardsvrDropCollectionParticipant":
			for range 2 {
				select {
				case <-asked:
				case <-answered: // which is the error: it must not hang as well
				}
			}
		}
		return call()
	})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	if m := c.raw("db", `{"drop": "c", "writeConcern": {"w": "majority", "wtimeout": 20}}`); m["ok"] != 1.0 {
		t.Error(m)
	}
	close(answered)
	c.leftOver()
}
