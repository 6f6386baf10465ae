package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// config.changelog shows a split as the manual does: the chunk before, and both parts with their versions, or one entry for each of more parts. It used to have
// the bounds of the chunk and the number of parts.
func TestChangelogOfSplits(t *testing.T) {
	c := newTestCluster(t, 1)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	entries := func(what string) []bson.M {
		t.Helper()
		var out []bson.M
		for _, e := range c.all("config", `{"find": "changelog", "filter": {"what": "`+what+`", "ns": "db.c"}, "sort": {"details.number": 1}}`) {
			out = append(out, asMap(get(e, "details")))
		}
		return out
	}
	stored := func(k string) bson.M {
		t.Helper()
		return asMap(c.all("config", `{"find": "chunks", "filter": {"min.k": `+k+`}}`)[0])
	}
	same := func(part any, of bson.M, epoch any) {
		t.Helper()
		p := asMap(part)
		for _, name := range []string{"min", "max", "lastmod"} {
			if show(p[name]) != show(of[name]) {
				t.Errorf("%s is %v, that of the chunk is %v", name, p[name], of[name])
			}
		}
		if show(p["lastmodEpoch"]) != show(epoch) {
			t.Errorf("the epoch is %v, want %v", p["lastmodEpoch"], epoch)
		}
	}
	epoch := asMap(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0])["lastmodEpoch"]
	whole := stored(`{"$type": "minKey"}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 5}}`)
	split := entries("split")
	if len(split) != 1 || split[0]["owningShard"] != "shard0" {
		t.Fatalf("of a split: %v", split)
	}
	same(split[0]["before"], whole, epoch)
	same(split[0]["left"], stored(`{"$type": "minKey"}`), epoch)
	same(split[0]["right"], stored("5"), epoch)
	before := stored("5")
	chunk := bson.D{{Key: "min", Value: bson.D{{Key: "k", Value: 5}}}, {Key: "max", Value: bson.D{{Key: "k", Value: bson.MaxKey{}}}}}
	c.admin(c.confP, append(bson.D{{Key: "_configsvrCommitChunkSplit", Value: "db.c"}, {Key: "splitPoints", Value: bson.A{bson.D{{Key: "k", Value: 6}}, bson.D{{Key: "k", Value: 7}}}}, {Key: "$db", Value: "admin"}}, chunk...))
	parts := entries("multi-split")
	if len(parts) != 3 {
		t.Fatalf("of a split into three: %v", parts)
	}
	for i, k := range []string{"5", "6", "7"} {
		same(parts[i]["before"], before, epoch)
		same(parts[i]["chunk"], stored(k), epoch)
		if parts[i]["number"] != int32(i+1) || parts[i]["of"] != int32(3) {
			t.Errorf("part %d: %v", i, parts[i])
		}
	}
}

// config.changelog shows the beginning of a DDL over shards, by the shard that coordinates it, and the client that requested it. It used to show only the end, and no client.
func TestChangelogOfDDL(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	entry := func(what, ns string) (e bson.M) {
		t.Helper()
		c.until(what, func() bool {
			for _, d := range c.all("config", `{"find": "changelog", "filter": {"what": "`+what+`", "ns": "`+ns+`"}}`) {
				e = asMap(d)
			}
			return e != nil
		})
		return e
	}
	begun := func(kind, end, ns, details string) {
		t.Helper()
		first, last := entry(kind+".start", ns), entry(end, ns)
		if show(first["details"]) != details {
			t.Errorf("%s.start: %v", kind, show(first["details"]))
		}
		if first["shard"] != "shard0" || first["server"] == "" || first["clientAddr"] == "" {
			t.Errorf("%s.start: %v", kind, first)
		}
		if last["server"] != "config:27019" {
			t.Errorf("%s: %v", end, last)
		}
		if first["time"].(bson.DateTime) > last["time"].(bson.DateTime) {
			t.Errorf("%s begins at %v and ends at %v", kind, first["time"], last["time"])
		}
	}
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	begun("shardCollection", "shardCollection.end", "db.c", `{"shardKey":{"k":1},"primary":"shard0"}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 5}}`)
	if e := entry("split", "db.c"); e["clientAddr"] == "" {
		t.Errorf("a split: %v", e)
	}
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 5}, "to": "shard1"}`)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "l": 1}, "name": "kl"}]}`)
	c.run("admin", `{"refineCollectionShardKey": "db.c", "key": {"k": 1, "l": 1}}`)
	begun("refineCollectionShardKey", "refineCollectionShardKey.end", "db.c", `{"newKey":{"k":1,"l":1}}`)
	c.run("admin", `{"renameCollection": "db.c", "to": "db.d"}`)
	begun("renameCollection", "renameCollection", "db.c", `{"source":"db.c","destination":"db.d"}`)
	c.run("db", `{"drop": "d"}`)
	begun("dropCollection", "dropCollection", "db.d", `{}`)
	c.run("db", `{"dropDatabase": 1}`)
	begun("dropDatabase", "dropDatabase", "db", `{}`)
}

// A migration that fails is logged as such, in addition to the entries that sh.status() counts.
func TestChangelogOfAFailedMigration(t *testing.T) {
	c := newTestCluster(t, 2)
	c.twoHalves()
	c.run("admin", `{"configureCollectionBalancing": "d.c", "chunkSize": 1}`)
	for i := range 4 {
		c.run("d", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "pad": %q}]}`, 10+i, strings.Repeat("x", 1<<20)))
	}
	if m := c.raw("admin", `{"moveChunk": "d.c", "find": {"_id": 1}, "to": "shard1"}`); m["code"] != int32(mongoerr.ChunkTooBig) {
		t.Fatal(m)
	}
	for what, n := range map[string]int{"moveChunk.start": 1, "moveChunk.error": 1, "moveChunk.from": 1, "moveChunk.to": 1, "moveChunk.commit": 0} {
		if got := len(c.all("config", `{"find": "changelog", "filter": {"what": "`+what+`", "ns": "d.c"}}`)); got != n {
			t.Errorf("%d entries of %s", got, what)
		}
	}
}

// asMap returns a document with its fields by name.
func asMap(d any) bson.M {
	m := bson.M{}
	for _, e := range d.(bson.D) {
		m[e.Key] = e.Value
	}
	return m
}

// clearJumboFlag also clears a mark that was set by hand: the config server used to look in its routing table, which did not have it.
func TestJumboFlagSetByHandIsCleared(t *testing.T) {
	c := newTestCluster(t, 1)
	c.sharded("c", 4)
	c.run("admin", `{"clearJumboFlag": "db.c", "find": {"_id": 1}}`) // reads the table, of which later only the newest chunk is read again
	c.run("config", `{"update": "chunks", "updates": [{"q": {"max._id": 2}, "u": {"$set": {"jumbo": true}}}]}`)
	c.run("admin", `{"clearJumboFlag": "db.c", "find": {"_id": 1}}`)
	c.expect(c.all("config", `{"find": "chunks", "filter": {"max._id": 2}, "projection": {"_id": 0, "lastmod": 1, "jumbo": 1}}`), `[{"lastmod":{"$timestamp":{"t":2,"i":0}}}]`)
}

// splitVector needs an index on the key, however little data there is.
func TestSplitVectorNeedsAnIndex(t *testing.T) {
	c := newTestCluster(t, 1)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	vector := func(key string) (bson.M, error) {
		body, _ := bson.Marshal(bson.D{{Key: "splitVector", Value: "db.c"}, {Key: "keyPattern", Value: bson.D{{Key: key, Value: 1}}}, {Key: "maxChunkSize", Value: 1}, {Key: "$db", Value: "db"}})
		reply, err := cluster.Run(t.Context(), c.shards["shard0"], body)
		if err != nil {
			return nil, err
		}
		return decode(t, reply), nil
	}
	if m, err := vector("z"); mongoerr.CodeOf(err) != mongoerr.IndexNotFound {
		t.Errorf("without an index: %v, %v", m, err)
	}
	m, err := vector("_id")
	if err != nil {
		t.Fatal(err)
	}
	c.expect(m["splitKeys"], `[]`)
}
