package router_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// placements shows the history of a namespace: the shards of each entry, and a ! after one whose UUID differs from the previous one's.
func (c *testCluster) placements(nss string) string {
	c.t.Helper()
	var out []string
	var last any
	for _, d := range c.all("config", fmt.Sprintf(`{"find": "placementHistory", "filter": {"nss": %q}, "sort": {"timestamp": 1}}`, nss)) {
		s := strings.Trim(strings.ReplaceAll(fmt.Sprint(get(d, "shards")), "shard", ""), "[]")
		if s == "" {
			s = "-"
		}
		uuid := get(d, "uuid")
		if last != nil && fmt.Sprint(uuid) != fmt.Sprint(last) {
			s += "!"
		}
		last = uuid
		out = append(out, strings.ReplaceAll(s, " ", "+"))
	}
	return strings.Join(out, " ")
}

func (c *testCluster) placementsAre(nss, want string) {
	c.t.Helper()
	if have := c.placements(nss); have != want {
		c.t.Errorf("%s was on %s, want %s", nss, have, want)
	}
}

// placedAt asks the config server where a namespace was.
func (c *testCluster) placedAt(nss string, at bson.Timestamp, everything bool) string {
	c.t.Helper()
	m := c.admin(c.confP, bson.D{{Key: "_configsvrGetHistoricalPlacement", Value: nss}, {Key: "at", Value: at}, {Key: "targetWholeCluster", Value: everything}, {Key: "$db", Value: "admin"}})
	return fmt.Sprint(m["shards"], " ", m["isExact"] == true)
}

// Every commit that gives a database or a collection other shards writes an entry; nothing else does.
func TestPlacementHistory(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.placementsAre("db", "0")
	c.placementsAre("db.c", "0")
	c.insertKeys("c", 1, 20)
	c.run("admin", `{"split": "db.c", "middle": {"k": 0}}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 5}}`)
	before := c.run("config", `{"find": "version"}`)["$clusterTime"].(bson.D)[0].Value.(bson.Timestamp)
	for _, move := range []string{`{"k": 7}, "to": "shard1"`, `{"k": 2}, "to": "shard1"`, `{"k": -1}, "to": "shard2"`, `{"k": 2}, "to": "shard2"`} {
		c.run("admin", `{"moveChunk": "db.c", "find": `+move+`}`)
	}
	c.placementsAre("db.c", "0 0+1 1+2") // the second and the last move changed no list of shards
	c.run("admin", `{"shardCollection": "db.h", "key": {"k": "hashed"}}`)
	c.placementsAre("db.h", "0+1+2")
	c.run("admin", `{"renameCollection": "db.c", "to": "db.d"}`)
	c.placementsAre("db.c", "0 0+1 1+2 -")
	c.placementsAre("db.d", "1+2")
	c.run("admin", `{"renameCollection": "db.d", "to": "db.h", "dropTarget": true}`)
	c.placementsAre("db.h", "0+1+2 1+2!")
	c.insertKeys("u", 1, 4)
	c.placementsAre("db.u", "")
	c.run("admin", `{"moveCollection": "db.u", "toShard": "shard1"}`)
	c.placementsAre("db.u", "1")
	c.run("admin", `{"unshardCollection": "db.h", "toShard": "shard0"}`)
	c.placementsAre("db.h", "0+1+2 1+2! 0!")
	c.run("admin", `{"shardCollection": "db.h", "key": {"_id": 1}}`)
	c.placementsAre("db.h", "0+1+2 1+2! 0! 0")
	c.run("admin", `{"reshardCollection": "db.h", "key": {"k": "hashed"}, "numInitialChunks": 3}`)
	c.placementsAre("db.h", "0+1+2 1+2! 0! 0 0+1+2!")
	c.run("admin", `{"movePrimary": "db", "to": "shard2"}`)
	c.placementsAre("db", "0 2")
	c.run("db", `{"drop": "h"}`)
	c.placementsAre("db.h", "0+1+2 1+2! 0! 0 0+1+2! -")
	c.run("db", `{"dropDatabase": 1}`)
	c.placementsAre("db", "0 2 -")
	c.placementsAre("db.u", "1 -")

	now := c.run("config", `{"find": "version"}`)["$clusterTime"].(bson.D)[0].Value.(bson.Timestamp)
	for _, x := range []struct {
		nss        string
		at         bson.Timestamp
		everything bool
		want       string
	}{
		{"db.c", before, false, "[shard0] true"}, {"db.c", now, false, "[] true"}, {"db", before, false, "[shard0] true"}, {"", before, true, "[shard0] true"},
		{"db.c", bson.Timestamp{T: 5}, false, "[] false"}, // this cluster's history began before its shards
	} {
		if have := c.placedAt(x.nss, x.at, x.everything); have != x.want {
			t.Errorf("%s at %v was on %s, want %s", x.nss, x.at, have, x.want)
		}
	}
	for _, d := range c.all("config", `{"find": "placementHistory", "filter": {"nss": "db.h"}, "limit": 1}`) {
		var names []string
		for _, e := range d.(bson.D) {
			names = append(names, e.Key)
		}
		c.expect(strings.Join(names, " "), `"_id nss uuid timestamp shards"`)
	}
}

// resetPlacementHistory leaves one entry of each namespace; the cleaner removes what is older than all oplogs.
func TestPlacementHistoryIsReset(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"enableSharding": "other", "primaryShard": "shard1"}`)
	c.shardedAs("c", 1, 4)
	c.shardedAs("gone", 1, 4)
	c.run("db", `{"drop": "gone"}`)
	if n, err := c.config.CleanHistory(context.Background()); n != 0 || err != nil {
		t.Errorf("%d entries that streams may need were removed, %v", n, err)
	}
	c.run("admin", `{"resetPlacementHistory": 1}`)
	c.placementsAre("db", "0")
	c.placementsAre("other", "1")
	c.placementsAre("db.c", "0+1")
	c.placementsAre("db.gone", "")
	c.placementsAre("", "0+1 -")
	if have := c.placedAt("db.c", bson.Timestamp{T: 5}, false); have != "[shard0 shard1] false" {
		t.Errorf("before the history: %s", have)
	}
	if m := c.raw("db", `{"resetPlacementHistory": 1}`); m["code"] != int32(mongoerr.Unauthorized) {
		t.Errorf("%v", m)
	}
}

// setAllowMigrations keeps chunks where they are, even after a DDL has ended, until it is reversed.
func TestSetAllowMigrations(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.insertKeys("c", 1, 4)
	entered := c.point("shard0", "moveChunkHangAtStep4", true)
	moved := make(chan bson.M, 1)
	go func() { moved <- c.raw("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1"}`) }()
	entered()
	c.run("admin", `{"setAllowMigrations": "db.c", "allowMigrations": false}`)
	c.point("shard0", "moveChunkHangAtStep4", false)
	if m := <-moved; m["code"] != int32(mongoerr.ConflictingOperationInProgress) {
		t.Errorf("a migration that was under way: %v", m)
	}
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`)
	if m := c.raw("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1"}`); m["code"] != int32(mongoerr.ConflictingOperationInProgress) {
		t.Errorf("%v", m)
	}
	c.run("admin", `{"setAllowMigrations": "db.c", "allowMigrations": true}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1"}`)
	c.insertKeys("u", 1, 4)
	for cmd, code := range map[string]mongoerr.Code{
		`{"setAllowMigrations": "db.u", "allowMigrations": false}`:    mongoerr.NamespaceNotSharded,
		`{"setAllowMigrations": "db.none", "allowMigrations": false}`: mongoerr.NamespaceNotSharded,
		`{"setAllowMigrations": "db", "allowMigrations": false}`:      mongoerr.InvalidNamespace,
		`{"setAllowMigrations": "db.c"}`:                              mongoerr.IDLFailedToParse,
	} {
		if m := c.raw("admin", cmd); m["code"] != int32(code) {
			t.Errorf("%s: %v, want %d", cmd, m, code)
		}
	}
}

// Each change of the permission to move chunks gives one chunk the next minor version, so that nodes notice that the entry has changed; a repeated one changes nothing.
func TestPermissionsToMoveHaveVersions(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 0}}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1"}`)
	versions := func() (all []bson.Timestamp) {
		for _, d := range c.all("config", `{"find": "chunks", "sort": {"lastmod": 1}}`) {
			all = append(all, get(d, "lastmod").(bson.Timestamp))
		}
		return all
	}
	first := versions()
	newest := first[len(first)-1]
	for i, cmd := range []string{`{"setAllowMigrations": "db.c", "allowMigrations": false}`, `{"setAllowMigrations": "db.c", "allowMigrations": true}`} {
		for range 2 {
			c.run("admin", cmd)
			want := append(slices.Clone(first[:len(first)-1]), bson.Timestamp{T: newest.T, I: newest.I + uint32(i) + 1})
			if now := versions(); !slices.Equal(now, want) {
				t.Errorf("after %s: %v, want %v", cmd, now, want)
			}
		}
	}
	c.run("db", `{"collMod": "c", "validationAction": "warn"}`) // forbids migrations, and allows them again
	if now := versions(); now[len(now)-1] != (bson.Timestamp{T: newest.T, I: newest.I + 4}) {
		t.Errorf("after a DDL: %v", now)
	}
	c.run("db", `{"insert": "c", "documents": [{"_id": 1, "k": -1}, {"_id": 2, "k": 1}]}`)
	c.expect(len(c.all("db", `{"find": "c"}`)), `2`)
}

// The primary of the coordinating shard changes at each phase of an untrackUnshardedCollection.
func TestUntrackAtEveryPhase(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
	c.insertKeys("u", 1, 10)
	c.shardedAs("s", 1, 10)
	for _, phase := range []string{"enterCriticalSection", "commit", "exitCriticalSection", "done"} {
		c.run("admin", `{"moveCollection": "db.u", "toShard": "shard0"}`)
		if m := c.raw("admin", `{"untrackUnshardedCollection": "db.u"}`); m["code"] != int32(mongoerr.IllegalOperation) {
			t.Errorf("of a collection on another shard: %v", m)
		}
		c.run("admin", `{"moveCollection": "db.u", "toShard": "shard2"}`)
		if m := c.atPhase("shard2", phase, "admin", `{"untrackUnshardedCollection": "db.u"}`); m["ok"] != 1.0 {
			t.Errorf("%s: %v", phase, m)
		}
		c.leftOver()
		c.expect(c.all("config", `{"find": "collections", "filter": {"_id": "db.u"}}`), `[]`)
		c.expect(c.all("db", `{"checkMetadataConsistency": 1}`), `[]`)
		c.expect(c.counted("u", 1), `10`)
		c.run("admin", `{"untrackUnshardedCollection": "db.u"}`)
	}
	if m := c.raw("admin", `{"untrackUnshardedCollection": "none.c"}`); m["code"] != int32(mongoerr.NamespaceNotFound) {
		t.Errorf("of a database that does not exist: %v", m)
	}
	if m := c.raw("admin", `{"untrackUnshardedCollection": "db.s"}`); m["code"] != int32(mongoerr.IllegalOperation) {
		t.Errorf("of a sharded collection: %v", m)
	}
	c.run("admin", `{"untrackUnshardedCollection": "db.none"}`)
}
