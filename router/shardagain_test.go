package router_test

import (
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A repeated shardCollection succeeds with the same options only: other options of a time series are refused as those of one that is not sharded.
func TestShardCollectionAgain(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	const series = `{"shardCollection": "db.ts", "key": {"m": 1}, "timeseries": {"timeField": "t", "metaField": "m"`
	c.run("db", `{"create": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	for range 2 { // of one that is not sharded, and of one that is
		for _, more := range []string{`, "granularity": "hours"`, `, "bucketMaxSpanSeconds": 60, "bucketRoundingSeconds": 60`} {
			if m := c.raw("admin", series+more+`}}`); m["code"] != int32(mongoerr.InvalidOptions) {
				t.Errorf("%s: %v", more, m)
			}
		}
		if m := c.raw("admin", `{"shardCollection": "db.ts", "key": {"m": 1}, "timeseries": {"timeField": "other", "metaField": "m"}}`); m["code"] != int32(mongoerr.InvalidOptions) {
			t.Error(m)
		}
		c.run("admin", series+`}}`)
	}
	c.run("admin", series+`, "granularity": "seconds"}}`)
	c.run("admin", `{"shardCollection": "db.ts", "key": {"m": 1}}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}, "collation": {"locale": "simple"}}`)
	for _, other := range []string{`"key": {"k": 1}, "unique": true`, `"key": {"k": "hashed"}`, `"key": {"k": 1, "l": 1}`} {
		if m := c.raw("admin", `{"shardCollection": "db.c", `+other+`}`); m["code"] != int32(mongoerr.AlreadyInitialized) {
			t.Errorf("%s: %v", other, m)
		}
	}
	if m := c.raw("admin", `{"shardCollection": "db.c", "key": {"k": 1}, "timeseries": {"timeField": "t"}}`); m["code"] != int32(mongoerr.InvalidOptions) {
		t.Error(m)
	}
}

// A shard key has no collation but the simple one: another one is refused for every collection, and was taken, and read by nobody, for one without a collation of its own.
func TestShardCollectionRefusesOtherCollations(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("db", `{"create": "plain"}`)
	c.run("db", `{"create": "own", "collation": {"locale": "fr"}}`)
	c.run("admin", `{"shardCollection": "db.sharded", "key": {"k": 1}}`)
	const want = `The collation for shardCollection must be {locale: 'simple'}, but found: { locale: "fr" }`
	for _, coll := range []string{"none", "plain", "own", "sharded"} {
		m := c.raw("admin", `{"shardCollection": "db.`+coll+`", "key": {"k": 1}, "collation": {"locale": "fr"}}`)
		if m["code"] != int32(mongoerr.BadValue) || m["errmsg"] != want {
			t.Errorf("%s: %v", coll, m)
		}
		c.run("admin", `{"shardCollection": "db.`+coll+`", "key": {"k": 1}, "collation": {"locale": "simple"}}`)
	}
}
