package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
)

// Zones may be set before a collection is sharded (manual: updateZoneKeyRange). They used to be gone after a moveCollection and an
// untrackUnshardedCollection, and after a shardCollection that was undone.
func TestZonesSetBeforeShardingAreKept(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"addShardToZone": "shard1", "zone": "z"}`)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.insertKeys("c", 1, 10)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1}, "name": "k"}]}`)
	c.zone("db.c", "k", 2, "z")
	c.run("db", `{"create": "series", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	c.zone("db.series", "meta", 3, "z")
	c.zone("db.system.buckets.series", "meta", 4, "z")
	const all, series = "db.c 2; db.series 3; db.system.buckets.series 4; ", "db.series 3; db.system.buckets.series 4; "
	for _, x := range []struct{ db, cmd, want string }{
		{"admin", `{"moveCollection": "db.c", "toShard": "shard1"}`, all},
		{"admin", `{"moveCollection": "db.series", "toShard": "shard1"}`, all},
		{"admin", `{"moveCollection": "db.c", "toShard": "shard0"}`, all},
		{"admin", `{"moveCollection": "db.series", "toShard": "shard0"}`, all},
		{"admin", `{"untrackUnshardedCollection": "db.c"}`, all},
		{"admin", `{"untrackUnshardedCollection": "db.series"}`, all},
		{"admin", `{"moveCollection": "db.c", "toShard": "shard1"}`, all},
		{"admin", `{"shardCollection": "db.c", "key": {"k": 1}}`, all},
		{"admin", `{"unshardCollection": "db.c", "toShard": "shard1"}`, series}, // those of the former key are not kept
		{"db", `{"drop": "series"}`, ""},
	} {
		c.run(x.db, x.cmd)
		if got := c.zones("z"); got != x.want {
			t.Errorf("%s: the zones are %s", x.cmd, got)
		}
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
	}
	c.run("db", `{"drop": "c"}`)

	// The config server removes the entry when a shardCollection is undone, of a collection that there was before or not.
	for _, existed := range []bool{true, false} {
		c.zone("db.c", "k", 2, "z")
		c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
		var uuid [16]byte
		copy(uuid[:], get(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0], "uuid").(bson.Binary).Data)
		if _, err := cluster.Run(t.Context(), c.confP, msg.Doc(&msg.RemoveCollection{NS: "db.c", UUID: uuid, Untrack: existed, Undo: true})); err != nil {
			t.Fatal(err)
		}
		c.expect(c.zones("z"), `"db.c 2; "`)
		c.run("db", `{"drop": "c"}`)
	}
}
