package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// reshardCollection with shardDistribution puts a collection on the shards that it names, or each range on the shard that it names with it; demoMode
// is accepted, and changes nothing, as there is no minimum duration.
func TestReshardToADistribution(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 40)
	reshard := func(more string) bson.M {
		return c.raw("admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "forceRedistribution": true`+more+`}`)
	}
	owners := func() (out string) {
		entry := c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0]
		for _, ch := range c.all("config", fmt.Sprintf(`{"find": "chunks", "filter": {"uuid": %s}, "sort": {"min": 1}}`, show(get(entry, "uuid")))) {
			out += fmt.Sprintf("%s; ", get(ch, "shard"))
			if k := show(get(get(ch, "min"), "k")); k == "10" || k == "20" { // other bounds come from sampled documents
				out = strings.TrimSuffix(out, "; ") + " from " + k + "; "
			}
		}
		return out
	}
	low, high := `{"k": {"$minKey": 1}}`, `{"k": {"$maxKey": 1}}`
	part := func(shard, min, max string) string {
		return fmt.Sprintf(`{"shard": %q, "min": %s, "max": %s}`, shard, min, max)
	}
	ranges := part("shard2", low, `{"k": 10}`) + `, ` + part("shard1", `{"k": 10}`, `{"k": 20}`) + `, ` + part("shard2", `{"k": 20}`, high)
	for _, x := range []struct {
		distribution string
		code         mongoerr.Code
	}{
		{``, mongoerr.InvalidOptions},
		{`{"shard": "nowhere"}`, mongoerr.ShardNotFound},
		{`{"shard": "shard0"}, {"shard": "shard0"}`, mongoerr.InvalidOptions},
		{`{"shard": "shard0"}, ` + part("shard1", low, high), mongoerr.InvalidOptions},
		{`{"shard": "shard0", "min": ` + low + `}`, mongoerr.InvalidOptions},
		{part("shard0", low, `{"k": 10}`), mongoerr.InvalidOptions},
		{part("shard0", `{"k": 10}`, high), mongoerr.InvalidOptions},
		{part("shard0", low, `{"k": 10}`) + `, ` + part("shard1", `{"k": 11}`, high), mongoerr.InvalidOptions},
		{part("shard0", low, `{"k": 11}`) + `, ` + part("shard1", `{"k": 10}`, high), mongoerr.InvalidOptions},
		{`{"min": ` + low + `}`, mongoerr.IDLFailedToParse},
		{`{"shard": "shard0", "odd": 1}`, mongoerr.IDLUnknownField},
		{`{"shard": 1}`, mongoerr.TypeMismatch},
	} {
		if m := reshard(`, "shardDistribution": [` + x.distribution + `]`); m["code"] != int32(x.code) {
			t.Errorf("%s: %v", x.distribution, m)
		}
	}
	for _, x := range []struct{ more, owners string }{
		{`, "demoMode": true, "shardDistribution": [` + ranges + `]`, `shard2; shard1 from 10; shard2 from 20; `},
		{`, "numInitialChunks": 2, "shardDistribution": [{"shard": "shard1"}, {"shard": "shard0"}]`, `shard1; shard0; `},
		{`, "numInitialChunks": 1, "shardDistribution": [{"shard": "shard2"}]`, `shard2; `},
	} {
		if m := reshard(x.more); m["ok"] != 1.0 {
			t.Errorf("%s: %v", x.more, m)
		}
		c.expect(owners(), fmt.Sprintf("%q", x.owners))
		c.expect(c.counted("c", 1), `40`)
	}
	c.expect(c.onShard("shard2", "c"), `40`)
	c.leftOver()
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}

// The same for a time series, whose ranges are given in fields of its measurements.
func TestReshardATimeSeriesToADistribution(t *testing.T) {
	c := seriesCluster(t, `{"m.s": 1}`)
	c.measure(4, 10)
	c.run("admin", `{"reshardCollection": "db.ts", "key": {"m.s": 1}, "forceRedistribution": true, "shardDistribution": [
		{"shard": "shard1", "min": {"m.s": {"$minKey": 1}}, "max": {"m.s": 3}}, {"shard": "shard0", "min": {"m.s": 3}, "max": {"m.s": {"$maxKey": 1}}}]}`)
	for id, want := range map[string]string{"shard0": `[3]`, "shard1": `[0,1,2]`} {
		c.expect(c.admin(c.shards[id], bson.D{{Key: "distinct", Value: "system.buckets.ts"}, {Key: "key", Value: "meta.s"}, {Key: "$db", Value: "db"}})["values"], want)
	}
	c.expect(c.run("db", `{"count": "ts"}`)["n"], `40`)
}
