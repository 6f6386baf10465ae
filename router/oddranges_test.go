package router_test

import (
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// clearJumboFlag finds the chunk by the names of the key's fields, and hashes those that are hashed: it used to take the values of its find, in their order, as a
// key, so that the wrong chunk lost its mark. moveChunk takes either a key or bounds: it used to ignore the key if it had both.
func TestChunksAreFoundByTheirKey(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"a": 1, "b": 1}}`)
	c.run("admin", `{"split": "d.c", "middle": {"a": 5, "b": 0}}`)
	c.run("admin", `{"shardCollection": "d.h", "key": {"h": "hashed"}}`)
	c.run("config", `{"update": "chunks", "updates": [{"q": {}, "u": {"$set": {"jumbo": true}}, "multi": true}]}`)
	marked := func(filter string) any {
		return c.run("config", `{"count": "chunks", "query": {"jumbo": true, `+filter+`}}`)["n"]
	}
	all := marked(`"min.h": {"$exists": true}`)
	for cmd, want := range map[string]mongoerr.Code{
		`{"clearJumboFlag": "d.c", "find": {"z": 1, "y": 9}}`: mongoerr.ShardKeyNotFound,
		`{"clearJumboFlag": "d.c", "find": {"a": 1}}`:         mongoerr.ShardKeyNotFound,
		`{"moveChunk": "d.c", "find": {"a": 1, "b": 1}, "bounds": [{"a": 5, "b": 0}, {"a": {"$maxKey": 1}, "b": {"$maxKey": 1}}], "to": "shard1"}`: mongoerr.InvalidOptions,
		`{"moveChunk": "d.c", "to": "shard1"}`: mongoerr.InvalidOptions,
	} {
		if m := c.raw("admin", cmd); m["code"] != int32(want) {
			t.Errorf("%s: %v, want code %d", cmd, m, want)
		}
	}
	c.expect(marked(`"min.a": {"$exists": true}`), `2`)
	c.run("admin", `{"clearJumboFlag": "d.c", "find": {"b": 1, "a": 7}}`)
	c.expect(marked(`"min.a": 5`), `0`)
	c.expect(marked(`"min.a": {"$exists": true}`), `1`)
	c.run("admin", `{"clearJumboFlag": "d.h", "find": {"h": 7}}`)
	if n := marked(`"min.h": {"$exists": true}`); n != all.(int32)-1 {
		t.Errorf("%v of %v chunks are marked", n, all)
	}
}

// Ranges that do not begin before their end, and split points that no document can have, change nothing: moveRange with min > max used to
// leave overlapping chunks, and with min = max it never returned and held up the collection.
func TestRangesThatAreNone(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"a": 1}}`)
	c.run("d", `{"insert": "c", "documents": [{"a": 1}, {"a": 5}, {"a": 9}]}`)
	for cmd, want := range map[string]mongoerr.Code{
		`{"moveRange": "d.c", "min": {"a": 5}, "max": {"a": 1}, "toShard": "shard1", "maxTimeMS": 100000}`: mongoerr.FailedToParse,
		`{"moveRange": "d.c", "min": {"a": 5}, "max": {"a": 5}, "toShard": "shard1", "maxTimeMS": 100000}`: mongoerr.FailedToParse,
		`{"moveRange": "d.c", "min": {"a": 5}, "max": {"a": 5}, "toShard": "shard0", "maxTimeMS": 100000}`: mongoerr.FailedToParse,
		`{"moveRange": "d.c", "min": {"a": {"$maxKey": 1}}, "toShard": "shard1", "maxTimeMS": 100000}`:     mongoerr.FailedToParse,
		`{"moveRange": "d.c", "max": {"a": {"$minKey": 1}}, "toShard": "shard1", "maxTimeMS": 100000}`:     mongoerr.FailedToParse,
		`{"moveRange": "d.c", "min": {"a": [5]}, "toShard": "shard1", "maxTimeMS": 100000}`:                mongoerr.BadValue,
		`{"split": "d.c", "middle": {"a": [1]}}`:                                                           mongoerr.BadValue,
		`{"split": "d.c", "middle": {"a": {"$gt": 1}}}`:                                                    mongoerr.BadValue,
	} {
		if m := c.raw("admin", cmd); m["code"] != int32(want) {
			t.Errorf("%s: %v, want code %d", cmd, m, want)
		}
	}
	if m := c.run("config", `{"count": "chunks", "query": {"min": {"a": {"$minKey": 1}}, "max": {"a": {"$maxKey": 1}}}}`); m["n"] != int32(1) {
		t.Errorf("%v chunks hold everything, want one", m["n"])
	}
	c.run("d", `{"insert": "c", "documents": [{"a": 6}], "maxTimeMS": 100000}`)
}
