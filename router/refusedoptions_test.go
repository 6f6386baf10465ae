package router_test

import (
	"fmt"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Options that have no effect are refused: the size limit of a shard, which the manual has removed in 6.2, a shard's name that is none, and what is misspelt in the zones of a
// reshardCollection, which used to commit without any zone. A collMod that changes how the buckets of a time series are filled changes nothing else (manual: collMod, SERVER-108801).
func TestOptionsWithoutEffectAreRefused(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"addShardToZone": "shard1", "zone": "z"}`)
	c.shardedAs("c", 1, 10)
	c.run("admin", `{"shardCollection": "db.ts", "key": {"m": 1}, "timeseries": {"timeField": "t", "metaField": "m"}}`)
	c.run("db", `{"createIndexes": "ts", "indexes": [{"key": {"m.x": 1}, "name": "x"}]}`)
	c.run("db", `{"create": "plain", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	for _, x := range []struct {
		db, cmd string
		code    mongoerr.Code
	}{
		{"admin", `{"addShard": "shard1/shard1:27018", "maxSize": 100}`, mongoerr.InvalidOptions},
		{"admin", `{"addShard": "shard1/shard1:27018", "name": 5}`, mongoerr.TypeMismatch},
		{"admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "zones": [{"min": {"k": 1}, "max": {"k": 5}, "zone": 5}]}`, mongoerr.TypeMismatch},
		{"admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "zones": [{"min": {"k": 1}, "max": {"k": 5}, "zon": "z"}]}`, mongoerr.IDLUnknownField},
		{"admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "zones": [{"min": 1, "max": {"k": 5}, "zone": "z"}]}`, mongoerr.TypeMismatch},
		{"admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "zones": [{"max": {"k": 5}, "zone": "z"}]}`, mongoerr.IDLFailedToParse},
	} {
		if m := c.raw(x.db, x.cmd); m["code"] != int32(x.code) {
			t.Errorf("%s: %v", x.cmd, m)
		}
	}
	c.expect(get(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0], "key"), `{"k":"hashed"}`)
	c.run("admin", `{"addShard": "shard1/shard1:27018", "name": "shard1"}`)
	c.run("admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "zones": [{"min": {"k": 1}, "max": {"k": 5}, "zone": "z"}, {"min": {"k": 5}, "max": {"k": 9}, "zone": null}]}`)
	c.expect(len(c.all("config", `{"find": "tags", "filter": {"ns": "db.c", "tag": "z"}}`)), `1`)
	for _, coll := range []string{"ts", "plain"} { // both take effect
		c.run("db", fmt.Sprintf(`{"collMod": %q, "timeseries": {"granularity": "minutes"}, "expireAfterSeconds": 100}`, coll))
		options := get(c.all("db", fmt.Sprintf(`{"listCollections": 1, "filter": {"name": %q}}`, coll))[0], "options")
		c.expect([]any{get(options, "expireAfterSeconds"), get(get(options, "timeseries"), "granularity")}, `[100,"minutes"]`)
	}
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}
