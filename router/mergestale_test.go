package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
)

// A router that does not know its target's latest shard key merges by that key all the same: what matches by the fields of an earlier key only is
// not changed, and what matches by those of the latest is.
func TestMergeOfARouterThatDoesNotKnowTheShardKey(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct{ before, change, from, want string }{
		"refined":   {`{"shardCollection": "db.to", "key": {"k": 1}}`, `{"refineCollectionShardKey": "db.to", "key": {"k": 1, "g": 1}}`, `{"_id": 1, "k": 1, "g": 2, "v": 1}`, `[{"_id":1,"k":1,"g":1}]`},
		"resharded": {`{"shardCollection": "db.to", "key": {"k": 1}}`, `{"reshardCollection": "db.to", "key": {"g": 1}}`, `{"_id": 1, "k": 2, "g": 1, "v": 1}`, `[{"_id":1,"k":2,"g":1,"v":1}]`},
		"sharded":   {`{"moveCollection": "db.other", "toShard": "shard1"}`, `{"shardCollection": "db.to", "key": {"k": 1}}`, `{"_id": 1, "k": 2, "v": 1}`, `[{"_id":1,"k":1,"g":1}]`},
		"unsharded": {`{"shardCollection": "db.to", "key": {"k": 1}}`, `{"unshardCollection": "db.to", "toShard": "shard1"}`, `{"_id": 1, "k": 2, "v": 1}`, `[{"_id":1,"k":2,"g":1,"v":1}]`},
	} {
		t.Run(name, func(t *testing.T) {
			for _, spread := range []bool{false, true} {
				c := newTestCluster(t, 2)
				c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
				c.run("db", `{"create": "other"}`)
				c.run("db", `{"createIndexes": "to", "indexes": [{"key": {"k": 1}, "name": "k"}, {"key": {"k": 1, "g": 1}, "name": "kg"}, {"key": {"g": 1}, "name": "g"}]}`)
				c.run("db", `{"insert": "to", "documents": [{"_id": 1, "k": 1, "g": 1}]}`)
				c.run("admin", x.before)
				if spread {
					c.run("admin", `{"shardCollection": "db.from", "key": {"_id": "hashed"}}`)
				}
				c.run("db", `{"insert": "from", "documents": [`+x.from+`]}`)
				stale := c.through()
				stale.expect(len(stale.all("db", `{"find": "to"}`)), `1`)
				c.run("admin", x.change)
				stale.run("db", `{"aggregate": "from", "pipeline": [{"$merge": {"into": "to", "whenNotMatched": "discard"}}], "cursor": {}}`)
				c.expect(c.all("db", `{"find": "to"}`), x.want)
			}
		})
	}
}

// The shard key is refined while a batch of a $merge is on its way: what one shard has executed by then is not executed again, and the rest is merged by the new key.
func TestMergeBesideARefinement(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	at := c.interposed("shard1")
	c.fill(40)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "g": 1}, "name": "kg"}]}`)
	c.run("db", `{"update": "c", "updates": [{"q": {}, "u": {"$set": {"g": 1, "n": 0}}, "multi": true}]}`)
	var docs []string
	for i := range 40 {
		docs = append(docs, fmt.Sprintf(`{"_id": %d, "k": %d, "g": %d}`, i, i, i%2))
	}
	c.run("db", `{"insert": "from", "documents": [`+strings.Join(docs, ",")+`]}`)
	other := c.through()
	var first atomic.Bool
	at.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if name == "update" && first.CompareAndSwap(false, true) {
			other.until("the other shard has executed its part", func() bool { return len(other.all("db", `{"find": "c", "filter": {"n": 1}}`)) == 20 })
			other.run("admin", refineToKG)
		}
		return call()
	})
	c.run("db", `{"aggregate": "from", "pipeline": [{"$merge": {"into": "c", "whenMatched": [{"$set": {"n": {"$add": ["$n", 1]}}}], "whenNotMatched": "discard"}}], "cursor": {}}`)
	if !first.Load() {
		t.Fatal("nothing was sent to shard1")
	}
	for filter, want := range map[string]int{`{"n": 1}`: 30, `{"n": 0}`: 10} {
		if n := len(c.all("db", `{"find": "c", "filter": `+filter+`}`)); n != want {
			t.Errorf("%d documents have %s, want %d: %v", n, filter, want, c.all("db", `{"find": "c"}`))
		}
	}
}

// A router that does not know where its target was moved to checks the indexes for the fields of "on" there.
func TestMergeOnIndexedFieldsOfAMovedTarget(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"createIndexes": "to", "indexes": [{"key": {"k": 1}, "name": "k", "unique": true}]}`)
	c.run("db", `{"insert": "to", "documents": [{"_id": 1, "k": 1}]}`)
	c.run("db", `{"insert": "from", "documents": [{"_id": 2, "k": 1, "v": 1}]}`)
	stale := c.through()
	stale.expect(len(stale.all("db", `{"find": "to"}`)), `1`)
	c.run("admin", `{"moveCollection": "db.to", "toShard": "shard1"}`)
	stale.run("db", `{"aggregate": "from", "pipeline": [{"$unset": "_id"}, {"$merge": {"into": "to", "on": "k"}}], "cursor": {}}`)
	c.expect(c.all("db", `{"find": "to"}`), `[{"_id":1,"k":1,"v":1}]`)
}
