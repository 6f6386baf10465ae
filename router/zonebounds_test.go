package router_test

import (
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Zones of a collection that is to be sharded may meet at a bound of different numeric types. The empty range between 5 and NumberLong(5) used to become a chunk, too:
// the collection could not be sharded (11000).
func TestZonesThatMeetAtEqualNumbers(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"addShardToZone": "shard0", "zone": "low"}`)
	c.run("admin", `{"addShardToZone": "shard1", "zone": "high"}`)
	c.run("admin", `{"updateZoneKeyRange": "db.c", "min": {"k": {"$minKey": 1}}, "max": {"k": {"$numberInt": "5"}}, "zone": "low"}`)
	c.run("admin", `{"updateZoneKeyRange": "db.c", "min": {"k": {"$numberLong": "5"}}, "max": {"k": {"$numberDouble": "9"}}, "zone": "high"}`)
	c.run("admin", `{"updateZoneKeyRange": "db.c", "min": {"k": {"$numberLong": "9"}}, "max": {"k": {"$maxKey": 1}}, "zone": "low"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.expect(len(c.all("config", `{"find": "chunks"}`)), `3`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1, "k": 4}, {"_id": 2, "k": 5}, {"_id": 3, "k": {"$numberLong": "8"}}, {"_id": 4, "k": 9}]}`)
	c.expect(c.all("db", `{"find": "c", "filter": {"k": {"$gte": 5, "$lt": 9}}, "sort": {"k": 1}, "projection": {"_id": 1}}`), `[{"_id":2},{"_id":3}]`)
	c.expect(len(c.all("db", `{"find": "c"}`)), `4`)
	c.expect(c.run("admin", `{"balancerCollectionStatus": "db.c"}`)["balancerCompliant"], `true`)
}

// Bounds of zones that no shard key of the collection can have are refused: before it is sharded, those of different fields, and those of a hashed field that
// are not NumberLong, as the manual requires.
func TestBoundsOfZones(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"addShardToZone": "shard0", "zone": "z"}`)
	c.run("admin", `{"shardCollection": "db.hashed", "key": {"k": "hashed"}}`)
	c.run("admin", `{"shardCollection": "db.compound", "key": {"a.b": 1, "k": "hashed", "c": 1}}`)
	set := func(ns, min, max string, code mongoerr.Code) {
		t.Helper()
		m := c.raw("admin", `{"updateZoneKeyRange": "`+ns+`", "min": `+min+`, "max": `+max+`, "zone": "z"}`)
		if got, _ := m["code"].(int32); got != int32(code) {
			t.Errorf("%s from %s to %s: %v", ns, min, max, m)
		}
	}
	set("db.hashed", `{"k": {"$numberLong": "1"}}`, `{"k": {"$numberLong": "7"}}`, 0)
	set("db.hashed", `{"k": 20}`, `{"k": 30}`, mongoerr.InvalidOptions)
	set("db.hashed", `{"k": "a"}`, `{"k": {"$maxKey": 1}}`, mongoerr.InvalidOptions)
	set("db.hashed", `{"k": {"$numberLong": "7"}}`, `{"k": {"$maxKey": 1}}`, 0)
	set("db.compound", `{"a.b": 1}`, `{"a.b": 5}`, 0)
	set("db.compound", `{"a.b": 7, "k": "x"}`, `{"a.b": 8}`, mongoerr.InvalidOptions)
	set("db.compound", `{"a.b": 7, "k": {"$numberLong": "1"}}`, `{"a.b": 8}`, 0)
	set("db.compound", `{"a": {"b": 9}}`, `{"a": {"b": 10}}`, mongoerr.BadValue)
	set("db.free", `{"k": 1}`, `{"other": 5}`, mongoerr.BadValue)
	set("db.free", `{}`, `{}`, mongoerr.BadValue)
	set("db.free", `{"k": [1]}`, `{"k": [2]}`, mongoerr.BadValue)
	set("db.free", `{"k": 5}`, `{"k": 1}`, mongoerr.FailedToParse)
	set("db.free", `{"k": 1}`, `{"k": 5}`, 0)
	c.run("admin", `{"removeShardFromZone": "shard1", "zone": "z"}`) // the shard is not in that zone
	if m := c.raw("admin", `{"shardCollection": "db.free", "key": {"k": "hashed"}}`); m["code"] != int32(mongoerr.InvalidOptions) {
		t.Errorf("sharded by the hash, with a zone of numbers: %v", m)
	}
	c.run("admin", `{"shardCollection": "db.free", "key": {"k": 1}}`)
}
