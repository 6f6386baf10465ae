package router_test

import (
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Ranges that do not begin before their end, and split points that no document can have, change nothing: moveRange with min > max used to
// leave overlapping chunks, and with min = max it never returned and held up the collection.
func TestRangesThatAreNone(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"a": 1}}`)
	c.run("d", `{"insert": "c", "documents": [{"a": 1}, {"a": 5}, {"a": 9}]}`)
	for cmd, want := range map[string]mongoerr.Code{
		`{"moveRange": "d.c", "min": {"a": 5}, "max": {"a": 1}, "toShard": "shard1", "maxTimeMS": 20000}`: mongoerr.FailedToParse,
		`{"moveRange": "d.c", "min": {"a": 5}, "max": {"a": 5}, "toShard": "shard1", "maxTimeMS": 20000}`: mongoerr.FailedToParse,
		`{"moveRange": "d.c", "min": {"a": 5}, "max": {"a": 5}, "toShard": "shard0", "maxTimeMS": 20000}`: mongoerr.FailedToParse,
		`{"moveRange": "d.c", "min": {"a": {"$maxKey": 1}}, "toShard": "shard1", "maxTimeMS": 20000}`:     mongoerr.FailedToParse,
		`{"moveRange": "d.c", "max": {"a": {"$minKey": 1}}, "toShard": "shard1", "maxTimeMS": 20000}`:     mongoerr.FailedToParse,
		`{"moveRange": "d.c", "min": {"a": [5]}, "toShard": "shard1", "maxTimeMS": 20000}`:                mongoerr.BadValue,
		`{"split": "d.c", "middle": {"a": [1]}}`:                                                          mongoerr.BadValue,
		`{"split": "d.c", "middle": {"a": {"$gt": 1}}}`:                                                   mongoerr.BadValue,
	} {
		if m := c.raw("admin", cmd); m["code"] != int32(want) {
			t.Errorf("%s: %v, want code %d", cmd, m, want)
		}
	}
	if m := c.run("config", `{"count": "chunks", "query": {"min": {"a": {"$minKey": 1}}, "max": {"a": {"$maxKey": 1}}}}`); m["n"] != int32(1) {
		t.Errorf("%v chunks hold everything, want one", m["n"])
	}
	c.run("d", `{"insert": "c", "documents": [{"a": 6}], "maxTimeMS": 20000}`)
}
