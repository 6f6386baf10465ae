package router_test

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ddlCommands are DDL commands that the primary shard of a database coordinates, in an order in which all of them have something to do.
var ddlCommands = []struct{ db, cmd string }{
	{"db", `{"create": "new"`}, {"admin", `{"shardCollection": "db.s", "key": {"k": 1}`}, {"db", `{"collMod": "s", "validationLevel": "moderate"`},
	{"db", `{"dropIndexes": "s", "index": "x"`}, {"admin", `{"refineCollectionShardKey": "db.s", "key": {"k": 1, "y": 1}`},
	{"admin", `{"renameCollection": "db.new", "to": "db.renamed"`}, {"db", `{"convertToCapped": "renamed", "size": 4096`},
	{"admin", `{"moveCollection": "db.renamed", "toShard": "shard1"`}, {"admin", `{"movePrimary": "db", "to": "shard1"`},
	{"db", `{"drop": "s"`}, {"db", `{"dropDatabase": 1`},
}

// A router replaces the write concern of DDL by majority (manual: create, drop, renameCollection …): a number that no set can satisfy is no error of some of them and
// not of others. createIndexes passes the client's own on.
func TestDDLHasWriteConcernMajority(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"createIndexes": "s", "indexes": [{"key": {"x": 1}, "name": "x"}, {"key": {"k": 1, "y": 1}, "name": "ky"}]}`)
	for _, x := range ddlCommands {
		if m := c.raw(x.db, x.cmd+`, "writeConcern": {"w": 9}}`); m["ok"] != 1.0 || m["writeConcernError"] != nil {
			t.Errorf("%s: %v", x.cmd, m)
		}
	}
	if m := c.raw("db", `{"createIndexes": "i", "indexes": [{"key": {"x": 1}, "name": "x"}], "writeConcern": {"w": 9}}`); m["ok"] != 1.0 || m["writeConcernError"] == nil {
		t.Errorf("createIndexes: %v", m)
	}
}

// A wtimeout that passes before a healthy majority can have stored anything does not end a DDL command: it would be answered with an error and take place.
func TestShortestWtimeoutOfDDL(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 4)
	c.disk.hold()
	answer := make(chan bson.M, 1)
	go func() { answer <- c.raw("db", `{"dropDatabase": 1, "writeConcern": {"w": "majority", "wtimeout": 1}}`) }()
	c.until("it waits for a sync", func() bool { return c.disk.count() > 0 || len(answer) == 1 })
	select { // the pause is under test: many times the wtimeout, and far from what a set without a majority is given
	case m := <-answer:
		t.Errorf("during the sync: %v", m)
		answer <- m
	case <-time.After(30 * time.Millisecond):
	}
	c.disk.free()
	if m := <-answer; m["ok"] != 1.0 {
		t.Error(m)
	}
}

// DDL has no read concern but local. The router refuses others by the name of the client's command, not that of its own message to the coordinator.
func TestReadConcernOfDDL(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	for _, x := range ddlCommands {
		m := c.raw(x.db, x.cmd+`, "readConcern": {"level": "majority"}}`)
		if text, _ := m["errmsg"].(string); m["code"] != int32(mongoerr.InvalidOptions) || !strings.HasPrefix(text, "Command "+strings.Split(x.cmd, `"`)[1]+" does not support read concern") {
			t.Errorf("%s: %v", x.cmd, m)
		}
	}
	c.run("db", `{"create": "c", "readConcern": {"level": "local"}}`)
}
