package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// expires has a shard's monitor of expired documents begin and end a pass.
func (c *testCluster) expires(shard string) {
	c.t.Helper()
	passes := func() int64 {
		return fieldAt(c.admin(c.shards[shard], bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}}), "metrics.ttl.passes").(int64)
	}
	c.param(shard, "ttlMonitorSleepSecs", 1)
	want := passes() + 2
	c.until("expired documents are deleted", func() bool { return passes() >= want })
	c.param(shard, "ttlMonitorSleepSecs", 3600)
}

// A shard leaves documents that it does not own to their owner: an orphan that had expired was deleted with an event for
// change streams, though the document itself, whose time had been extended, was not deleted.
func TestExpiredDocumentsAreTheirOwners(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	for _, id := range []string{"shard0", "shard1"} {
		c.param(id, "ttlMonitorSleepSecs", 3600)
		c.param(id, "orphanCleanupDelaySecs", 3600)
	}
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.s", "key": {"k": 1}}`)
	c.run("admin", `{"split": "db.s", "middle": {"k": 50}}`)
	const old, late = `{"$date": "2020-01-01T00:00:00Z"}`, `{"$date": "2100-01-01T00:00:00Z"}`
	c.run("db", `{"createIndexes": "s", "indexes": [{"key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 0}]}`)
	c.run("db", fmt.Sprintf(`{"insert": "s", "documents": [{"_id": 1, "k": 60, "at": %s}, {"_id": 2, "k": 61, "at": %s}]}`, old, old))
	deleted := func(s *streamOf) (ids []any) {
		for _, e := range s.rest(2) {
			if field(e, "operationType") == "delete" {
				ids = append(ids, field(field(e, "documentKey"), "_id"))
			}
		}
		return ids
	}

	s, _ := c.watch("s", bson.D{})
	c.run("admin", `{"moveChunk": "db.s", "find": {"k": 60}, "to": "shard1"}`)
	c.run("db", fmt.Sprintf(`{"update": "s", "updates": [{"q": {"k": 60}, "u": {"$set": {"at": %s}}}]}`, late))
	c.expires("shard0")
	c.expires("shard1")
	c.expect(deleted(s), `[2]`)
	c.expect(c.run("db", `{"count": "s"}`)["n"], `1`)
}

// While a database moves to another primary shard, neither deletes documents that have expired on it: the new one has not been sent all changes, and the former one's are not sent any more once its writes
// are blocked. Change streams had the deletion of a document whose time had been extended, and that of one that had expired twice.
func TestExpiredDocumentsOfADatabaseThatMoves(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	for _, id := range []string{"shard0", "shard1"} {
		c.param(id, "ttlMonitorSleepSecs", 3600)
	}
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	const old, late = `{"$date": "2020-01-01T00:00:00Z"}`, `{"$date": "2100-01-01T00:00:00Z"}`
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 0}]}`)
	c.run("db", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": 1, "at": %s}, {"_id": 2, "at": %s}, {"_id": 3, "at": %s}]}`, old, old, late))
	s, _ := c.watch("c", bson.D{})

	move := func(from, to, phase string, meanwhile func()) {
		t.Helper()
		reached, release := c.hangAt(from, phase)
		answer := make(chan bson.M, 1)
		go func() { answer <- c.raw("admin", fmt.Sprintf(`{"movePrimary": "db", "to": %q}`, to)) }()
		reached()
		meanwhile()
		release()
		if m := <-answer; m["ok"] != 1.0 {
			t.Fatal(m)
		}
	}
	move("shard0", "shard1", "blockWrites", func() {
		c.run("db", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"at": %s}}}]}`, late))
		c.expires("shard1")
	})
	move("shard1", "shard0", "commit", func() { c.expires("shard1") })
	c.expires("shard0")
	c.expect(c.all("db", `{"find": "c", "sort": {"_id": 1}, "projection": {"_id": 1}}`), `[{"_id":1},{"_id":3}]`)
	c.run("db", `{"delete": "c", "deletes": [{"q": {"_id": 3}, "limit": 1}]}`)
	var got []string
	for _, e := range s.rest(3) {
		got = append(got, fmt.Sprint(field(e, "operationType"), " ", field(field(e, "documentKey"), "_id")))
	}
	if s := fmt.Sprint(got); s != "[update 1 delete 2 delete 3]" {
		t.Errorf("the stream has %s", s)
	}
}

// Documents expire while users' writes are blocked, as on a set: it is not a user who deletes them.
func TestDocumentsExpireWhileUsersAreBlocked(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.fill(4)
	for _, coll := range []string{"c", "plain"} {
		c.run("db", fmt.Sprintf(`{"createIndexes": %q, "indexes": [{"key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 0}]}`, coll))
	}
	for _, id := range []string{"shard0", "shard1"} {
		c.param(id, "ttlMonitorSleepSecs", 3600)
	}
	for _, coll := range []string{"c", "plain"} {
		c.run("db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 11, "k": -1, "at": {"$date": "2020-01-01T00:00:00Z"}}, {"_id": 12, "k": 1000, "at": {"$date": "2020-01-01T00:00:00Z"}}]}`, coll))
	}
	c.run("admin", `{"setUserWriteBlockMode": 1, "global": true}`)
	c.expires("shard0")
	c.expires("shard1")
	c.expect(c.run("db", `{"count": "c"}`)["n"], `4`)
	c.expect(c.run("db", `{"count": "plain"}`)["n"], `0`)
	if m := c.raw("db", `{"insert": "c", "documents": [{"_id": 13, "k": 1}]}`); !strings.Contains(show(m), "User writes blocked") {
		t.Errorf("a user's write: %v", m)
	}
	c.run("admin", `{"setUserWriteBlockMode": 1, "global": false}`)
}
