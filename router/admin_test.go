package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/configsvr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func TestOrphansAreNeverSeen(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"g": 1}, "name": "g"}]}`)
	// Documents that no chunk of shard0 covers, as an interrupted migration may leave them.
	var orphans []string
	for i := 10; i < 15; i++ {
		orphans = append(orphans, fmt.Sprintf(`{"_id": %d, "k": %d, "g": 7}`, i, i))
	}
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(fmt.Sprintf(`{"insert": "c", "documents": [%s]}`, joined(orphans))), false, &d); err != nil {
		t.Fatal(err)
	}
	c.admin(c.shards["shard0"], append(d, bson.E{Key: "$db", Value: "db"}))
	if n := c.onShard("shard0", "c"); n != 15 {
		t.Fatalf("%d documents on shard0, want 10 and 5 orphans", n)
	}
	c.expect(c.run("db", `{"count": "c"}`)["n"], `20`)
	c.expect(c.run("db", `{"count": "c", "query": {"g": 7}}`)["n"], `0`)
	c.expect(len(c.all("db", `{"find": "c"}`)), `20`)
	c.expect(len(c.all("db", `{"find": "c", "filter": {"g": 7}}`)), `0`)
	c.expect(c.run("db", `{"distinct": "c", "key": "g"}`)["values"], `[0,1,2]`)
	c.expect(c.all("db", `{"aggregate": "c", "pipeline": [{"$count": "n"}], "cursor": {}}`), `[{"n":20}]`)
	c.expect(c.all("db", `{"aggregate": "c", "pipeline": [{"$group": {"_id": "$g"}}, {"$sort": {"_id": 1}}], "cursor": {}}`), `[{"_id":0},{"_id":1},{"_id":2}]`)
	c.expect(c.run("db", `{"update": "c", "updates": [{"q": {"g": 7}, "u": {"$set": {"x": 1}}, "multi": true}]}`)["n"], `0`)
	c.expect(c.run("db", `{"delete": "c", "deletes": [{"q": {"g": 7}, "limit": 0}]}`)["n"], `0`)
}

func joined(parts []string) string {
	out := ""
	for i, p := range parts {
		if i > 0 {
			out += ","
		}
		out += p
	}
	return out
}

func TestShardIsDrainedAndRemoved(t *testing.T) {
	c := newTestCluster(t, 3)
	c.fill(20)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 15}, "to": "shard2"}`)
	m := c.run("admin", `{"removeShard": "shard2"}`)
	c.expect(m["state"], `"started"`)
	c.expect(c.run("admin", `{"removeShard": "shard2"}`)["state"], `"ongoing"`)
	for i := 0; i < 5; i++ {
		if _, err := c.config.BalancerRound(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	before := c.clock.Now().Topology
	c.expect(c.run("admin", `{"removeShard": "shard2"}`)["state"], `"completed"`)
	c.expect(len(c.run("admin", `{"listShards": 1}`)["shards"].(bson.A)), `2`)
	// The time of the removal is in the catalog: a restarted config server, and a router that it notifies, have it.
	clock := cluster.NewVectorClock(nil)
	again := configsvr.New(c.conf.OwnPeer(), cluster.NewRegistry(c.confP, clock, c.dial), clock, func() string { return "config:27019" })
	if err := again.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := clock.Now().Topology; got <= before || got != c.clock.Now().Topology {
		t.Errorf("topology time of a config server that starts: %x, before the removal %x, after it %x", got, before, c.clock.Now().Topology)
	}
	c.expect(len(c.all("db", `{"find": "c"}`)), `20`)
}

func TestBalancerKeepsZones(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	c.run("admin", `{"addShardToZone": "shard0", "zone": "low"}`)
	c.run("admin", `{"updateZoneKeyRange": "db.c", "min": {"k": 10}, "max": {"k": 15}, "zone": "low"}`)
	if m := c.raw("admin", `{"updateZoneKeyRange": "db.c", "min": {"k": 12}, "max": {"k": 30}, "zone": "low"}`); m["code"] != int32(mongoerr.RangeOverlapConflict) {
		t.Errorf("an overlapping zone range: %v", m)
	}
	if m := c.raw("admin", `{"removeShardFromZone": "shard0", "zone": "low"}`); m["code"] != int32(mongoerr.ZoneStillInUse) {
		t.Errorf("the last shard of a zone that is in use: %v", m)
	}
	c.expect(c.run("admin", `{"balancerCollectionStatus": "db.c"}`)["firstComplianceViolation"], `"zoneViolation"`)
	for i := 0; i < 3; i++ {
		if _, err := c.config.BalancerRound(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c.expect(c.run("admin", `{"balancerCollectionStatus": "db.c"}`)["balancerCompliant"], `true`)
	c.expect(c.all("config", `{"find": "chunks", "filter": {"min": {"k": 10}}, "projection": {"_id": 0, "shard": 1, "max": 1}}`), `[{"max":{"k":15},"shard":"shard0"}]`)
	c.expect(len(c.all("db", `{"find": "c"}`)), `20`)
	c.run("admin", `{"balancerStop": 1}`)
	c.expect(c.run("admin", `{"balancerStatus": 1}`)["mode"], `"off"`)
	if n, err := c.config.BalancerRound(t.Context()); n != 0 || err != nil {
		t.Errorf("a stopped balancer moved %d chunks, %v", n, err)
	}
}

func TestShardingCommandsRefuse(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(4)
	c.run("db", `{"create": "cap", "capped": true, "size": 4096}`)
	c.run("db", `{"create": "v", "viewOn": "c", "pipeline": []}`)
	c.run("db", `{"insert": "full", "documents": [{"_id": 1, "x": 1}]}`)
	for _, x := range []struct {
		cmd  string
		code mongoerr.Code
	}{
		{`{"shardCollection": "db.c", "key": {"other": 1}}`, mongoerr.AlreadyInitialized},
		{`{"shardCollection": "db.cap", "key": {"_id": 1}}`, mongoerr.InvalidOptions},
		{`{"shardCollection": "db.v", "key": {"_id": 1}}`, mongoerr.CommandNotSupportedOnView},
		{`{"shardCollection": "db.full", "key": {"x": 1}}`, mongoerr.InvalidOptions},
		{`{"shardCollection": "db.n", "key": {"x": "hashed"}, "unique": true}`, mongoerr.InvalidOptions},
		{`{"shardCollection": "db.n", "key": {}}`, mongoerr.BadValue},
		{`{"shardCollection": "db.n", "key": {"x": 2}}`, mongoerr.BadValue},
		{`{"shardCollection": "nodot", "key": {"x": 1}}`, mongoerr.InvalidNamespace},
		{`{"shardCollection": "config.x", "key": {"x": 1}}`, mongoerr.IllegalOperation},
		{`{"shardCollection": "db.system.views", "key": {"_id": 1}}`, mongoerr.IllegalOperation},
		{`{"shardCollection": "db.system.profile", "key": {"_id": 1}}`, mongoerr.IllegalOperation},
		{`{"reshardCollection": "db.system.views", "key": {"x": 1}}`, mongoerr.InvalidNamespace},
		{`{"moveCollection": "db.system.views", "toShard": "shard1"}`, mongoerr.InvalidNamespace},
		{`{"split": "db.c", "middle": {"k": 2}}`, mongoerr.CannotSplit},
		{`{"split": "db.full", "middle": {"x": 2}}`, mongoerr.NamespaceNotSharded},
		{`{"split": "db.c", "middle": {"k": 1}, "find": {"k": 1}}`, mongoerr.InvalidOptions},
		{`{"moveChunk": "db.c", "find": {"k": 1}, "to": "nowhere"}`, mongoerr.ShardNotFound},
		{`{"moveChunk": "db.c", "find": {"x": 1}, "to": "shard1"}`, mongoerr.ShardKeyNotFound},
		{`{"enableSharding": "DB"}`, mongoerr.DatabaseDifferCase},
		{`{"enableSharding": "db", "primaryShard": "shard1"}`, mongoerr.NamespaceExists},
		{`{"removeShard": "nowhere"}`, mongoerr.ShardNotFound},
		{`{"addShardToZone": "nowhere", "zone": "z"}`, mongoerr.ShardNotFound},
		{`{"updateZoneKeyRange": "db.c", "min": {"k": 1}, "max": {"k": 2}, "zone": "nozone"}`, mongoerr.ZoneNotFound},
		{`{"updateZoneKeyRange": "db.c", "min": {"k": 1}, "max": {"k": 2}, "zone": ""}`, mongoerr.ZoneNotFound},
		{`{"updateZoneKeyRange": "db.c", "min": {"k": 1}, "max": {"k": 2}, "zone": {"k": 30}}`, mongoerr.TypeMismatch},
		{`{"updateZoneKeyRange": "db.c", "min": {"k": 1}, "max": {"k": 2}, "zone": 5}`, mongoerr.TypeMismatch},
	} {
		if m := c.raw("admin", x.cmd); m["code"] != int32(x.code) {
			t.Errorf("%s: want code %d, got %v", x.cmd, int32(x.code), m)
		}
	}
	for _, x := range []struct{ db, cmd string }{ // the cluster could not read its placement any more
		{"config", `{"drop": "chunks"}`}, {"config", `{"drop": "shards"}`}, {"config", `{"convertToCapped": "collections", "size": 4096}`},
		{"admin", `{"renameCollection": "config.chunks", "to": "config.x"}`}, {"admin", `{"renameCollection": "db.full", "to": "config.databases", "dropTarget": true}`},
	} {
		if m := c.raw(x.db, x.cmd); m["code"] != int32(mongoerr.IllegalOperation) {
			t.Errorf("%s: %v", x.cmd, m)
		}
	}
	move := c.raw("db", `{"update": "c", "updates": [{"q": {"k": 0}, "u": {"$set": {"k": 3}}}]}`)
	if errs, ok := move["writeErrors"].(bson.A); !ok || get(errs[0], "code") != int32(mongoerr.IllegalOperation) {
		t.Errorf("an update that moves a document: %v", move)
	}
	mixed := c.raw("db", `{"update": "c", "ordered": false, "updates": [{"q": {"k": 0}, "u": {"$set": {"k": 3}}}, {"q": {"k": 0}, "u": {"$set": {"y": 1}}}, {"q": {"k": 3}, "u": {"$set": {"z": 1}}}]}`)
	if mixed["nModified"] != int32(2) {
		t.Errorf("what follows it in an unordered batch: %v", mixed)
	}
	if m := c.raw("db", `{"convertToCapped": "c", "size": 4096}`); m["code"] != int32(mongoerr.IllegalOperation) {
		t.Errorf("convertToCapped: %v", m)
	}
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`) // repeating it is no error
	c.run("admin", `{"renameCollection": "db.c", "to": "db.renamed"}`)
	c.expect(len(c.all("db", `{"find": "renamed"}`)), `4`)
	c.expect(len(c.all("db", `{"find": "c"}`)), `0`)
	c.expect(c.all("config", `{"find": "collections", "projection": {"_id": 1}}`), `[{"_id":"db.renamed"}]`)
	c.run("db", `{"dropDatabase": 1}`)
	c.expect(len(c.all("config", `{"find": "chunks"}`)), `0`)
	c.expect(len(c.all("config", `{"find": "databases", "filter": {"_id": "db"}}`)), `0`)
}

// The fields from which mongosh builds sh.status() and getShardDistribution().
func TestReportsNameTheirShards(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(4)
	stages := func(want int) {
		t.Helper()
		for _, stage := range []string{`{"$collStats": {"count": {}, "storageStats": {}}}`, `{"$indexStats": {}}`} {
			seen := map[any]bool{}
			for _, d := range c.all("db", `{"aggregate": "c", "pipeline": [`+stage+`], "cursor": {}}`) {
				seen[get(d, "shard")] = true
			}
			if len(seen) != want || seen[nil] {
				t.Errorf("%s on %d shards names %v", stage, want, seen)
			}
		}
	}
	stages(2)
	m := c.run("admin", `{"getShardMap": 1}`)
	c.expect(m["map"], `{"config":"config/config:27018","shard0":"shard0/shard0:27018","shard1":"shard1/shard1:27018"}`)
	c.expect(m["hosts"], `{"config:27018":"config","shard0:27018":"shard0","shard1:27018":"shard1"}`)

	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1"}`)
	for what, want := range map[string]string{
		"moveChunk.start": `[{"shard":"shard0","details":{"from":"shard0","to":"shard1"}}]`,
		"moveChunk.from":  `[{"shard":"shard0","details":{"from":"shard0","to":"shard1","note":"success"}}]`,
		"moveChunk.to":    `[{"shard":"shard1","details":{"from":"shard0","to":"shard1","note":"success"}}]`,
	} {
		c.expect(c.all("config", `{"find": "changelog", "filter": {"what": "`+what+`", "ns": "db.c", "details.errmsg": {"$exists": false}},
			"sort": {"$natural": -1}, "limit": 1, "projection": {"_id": 0, "shard": 1, "details.from": 1, "details.to": 1, "details.note": 1}}`), want)
	}
	stages(1)
}

// A router counts its own work.
func TestRouterCountsWork(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(6)
	c.all("db", `{"find": "c", "batchSize": 2}`)
	c.all("db", `{"find": "c", "filter": {"k": {"$lt": 3}}, "batchSize": 2}`)
	c.all("db", `{"aggregate": "c", "pipeline": [{"$match": {"k": 1}}], "cursor": {}}`)
	var m bson.D
	for _, section := range c.router.Status.Sections {
		if section.Name != "metrics" {
			continue
		}
		if err := bson.Unmarshal(section.Doc(nil, value.Value{}), &m); err != nil {
			t.Fatal(err)
		}
	}
	cursor := get(m, "cursor")
	c.expect(get(cursor, "totalOpened"), `2`)
	c.expect(get(cursor, "moreThanOneBatch"), `2`)
	c.expect(get(get(cursor, "lifespan"), "lessThan1Second"), `2`)
	c.expect(get(get(cursor, "open"), "total"), `0`)
	c.expect(get(get(m, "aggStageCounters"), "$match"), `1`)
	c.expect(get(get(get(m, "commands"), "find"), "total"), `2`)
	c.expect(get(get(get(m, "operatorCounters"), "expressions"), "$add"), `0`)
}

func TestClusterCatalogKnowsWhereCollectionsAre(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(4)
	c.run("db", `{"insert": "u", "documents": [{"_id": 1}]}`)
	c.run("other", `{"create": "x"}`)
	list := func(db, spec string) bson.A {
		return c.all(db, `{"aggregate": 1, "pipeline": [{"$listClusterCatalog": `+spec+`}, {"$match": {"db": {"$nin": ["admin", "config"]}}}, {"$unset": ["options", "info", "idIndex", "type"]}, {"$sort": {"ns": 1}}], "cursor": {}}`)
	}
	c.expect(list("db", `{"shards": true}`), `[{"db":"db","ns":"db.c","sharded":true,"shardKey":{"k":1},"shards":["shard0","shard1"]},{"db":"db","ns":"db.u","sharded":false,"shards":["shard0"]}]`)
	c.expect(list("db", `{"balancingConfiguration": true}`), `[{"db":"db","ns":"db.c","sharded":true,"shardKey":{"k":1},"balancingEnabled":true,"balancingEnabledReason":{"enableBalancing":true,"allowMigrations":true},"autoMergingEnabled":true,"chunkSize":128},{"db":"db","ns":"db.u","sharded":false}]`)
	c.expect(len(list("admin", `{}`)), `3`)
	c.expect(list("none", `{}`), `[]`)
	for cmd, code := range map[string]int32{
		`{"aggregate": "c", "pipeline": [{"$listClusterCatalog": {}}], "cursor": {}}`:          9621301,
		`{"aggregate": 1, "pipeline": [{"$listClusterCatalog": 1}], "cursor": {}}`:             9621302,
		`{"aggregate": 1, "pipeline": [{"$listClusterCatalog": {"shards": 1}}], "cursor": {}}`: int32(mongoerr.TypeMismatch),
	} {
		if m := c.raw("db", cmd); m["code"] != code {
			t.Errorf("%s: %v, want %d", cmd, m["code"], code)
		}
	}
}
