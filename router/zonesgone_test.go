package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The zones of a collection without an entry in the catalog, of a namespace without a collection, and of a time series under either of its names, are removed by a drop of it, as the manual says of every
// collection, and by one of its database. A rename takes them along. They used to stay, and the next collection of that name got them when it was sharded.
func TestZonesOfUnshardedCollections(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"addShardToZone": "shard0", "zone": "z"}`)
	c.run("admin", `{"addShardToZone": "shard0", "zone": "kept"}`)
	c.run("admin", `{"enableSharding": "else", "primaryShard": "shard1"}`)
	c.zone("other.c", "_id", 9, "kept")
	c.zone("db2.c", "_id", 8, "kept")
	for _, x := range []struct{ db, cmd, want string }{
		{"db", `{"drop": "c"}`, "db.d 2; db.none 3; "},
		{"db", `{"drop": "none"}`, "db.c 1; db.d 2; "},
		{"db", `{"drop": "view"}`, "db.c 1; db.d 2; db.none 3; "},
		{"db", `{"drop": "series"}`, "db.c 1; db.d 2; db.none 3; "},
		{"db", `{"drop": "sharded"}`, "db.c 1; db.d 2; db.none 3; "},
		{"db", `{"dropDatabase": 1}`, ""},
		{"admin", `{"renameCollection": "db.c", "to": "db.e"}`, "db.d 2; db.e 1; db.none 3; "},
		{"admin", `{"renameCollection": "db.c", "to": "db.d", "dropTarget": true}`, "db.d 1; db.none 3; "},
		{"admin", `{"renameCollection": "db.plain", "to": "db.d", "dropTarget": true}`, "db.c 1; db.none 3; "},
		{"admin", `{"renameCollection": "db.plain", "to": "db.none"}`, "db.c 1; db.d 2; db.none 3; "},
		{"admin", `{"renameCollection": "db.c", "to": "db.none"}`, "db.d 2; db.none 1; "},
		{"admin", `{"renameCollection": "db.c", "to": "db.tracked", "dropTarget": true}`, "db.d 2; db.none 3; db.tracked 1; "},
		{"admin", `{"renameCollection": "db.tracked", "to": "db.d", "dropTarget": true}`, "db.c 1; db.none 3; "},
		{"admin", `{"renameCollection": "db.c", "to": "else.c", "dropTarget": true}`, "db.d 2; db.none 3; else.c 1; "},
		{"db", `{"aggregate": "plain", "pipeline": [{"$out": "d"}], "cursor": {}}`, "db.c 1; db.d 2; db.none 3; "},
		{"db", `{"aggregate": "plain", "pipeline": [{"$out": "tracked"}], "cursor": {}}`, "db.c 1; db.d 2; db.none 3; db.tracked 7; "},
		{"admin", `{"renameCollection": "db.plain", "to": "db.tracked", "dropTarget": true}`, "db.c 1; db.d 2; db.none 3; "},
	} {
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
		for i, coll := range []string{"c", "d", "plain", "tracked"} {
			c.insertKeys(coll, i, 4)
		}
		c.run("admin", `{"moveCollection": "db.tracked", "toShard": "shard0"}`)
		c.run("db", `{"create": "series", "timeseries": {"timeField": "t", "metaField": "m"}}`)
		c.run("db", `{"create": "view", "viewOn": "c", "pipeline": []}`)
		c.zone("db.c", "_id", 1, "z")
		c.zone("db.d", "_id", 2, "z")
		c.zone("db.none", "_id", 3, "z")
		switch x.cmd {
		case `{"drop": "view"}`:
			c.zone("db.view", "_id", 4, "z")
		case `{"drop": "series"}`:
			c.zone("db.series", "meta", 5, "z")
			c.zone("db.system.buckets.series", "meta", 6, "z")
		case `{"drop": "sharded"}`:
			c.run("admin", `{"shardCollection": "db.sharded", "key": {"m": 1}, "timeseries": {"timeField": "t", "metaField": "m"}}`)
			c.zone("db.sharded", "meta", 5, "z")
			c.zone("db.system.buckets.sharded", "meta", 6, "z")
		case `{"aggregate": "plain", "pipeline": [{"$out": "tracked"}], "cursor": {}}`, `{"renameCollection": "db.plain", "to": "db.tracked", "dropTarget": true}`:
			c.zone("db.tracked", "_id", 7, "z")
		}
		c.run(x.db, x.cmd)
		if got := c.zones("z"); got != x.want {
			t.Errorf("%s: the zones are %s, want %s", x.cmd, got, x.want)
		}
		c.leftOver()
		c.run("db", `{"dropDatabase": 1}`)
		c.run("else", `{"drop": "c"}`)
		if got := c.zones("z") + c.zones("kept"); got != "db2.c 8; other.c 9; " {
			t.Errorf("%s: the zones that are left: %s", x.cmd, got)
		}
	}
}

// A rename into another database that fails leaves zones as they are. They used to have the new name.
func TestZonesAfterARefusedRename(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"addShardToZone": "shard0", "zone": "z"}`)
	for _, db := range []string{"db", "else"} {
		c.run("admin", `{"enableSharding": "`+db+`", "primaryShard": "shard1"}`)
	}
	c.insertKeys("c", 1, 4)
	c.zone("db.c", "_id", 1, "z")
	end := c.building("shard1", "db.c")
	const rename = `{"renameCollection": "db.c", "to": "else.c"}`
	if m := c.raw("admin", rename); m["code"] != int32(mongoerr.BackgroundOperationInProgressForNamespace) {
		t.Errorf("%v", m)
	}
	c.expect(c.zones("z"), `"db.c 1; "`)
	end()
	c.run("admin", rename)
	c.expect(c.zones("z"), `"else.c 1; "`)
}

// The primary of the coordinating shard changes at each phase of the drop or rename of a collection without an entry that has zones.
func TestZonesAtEveryPhase(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"addShardToZone": "shard0", "zone": "z"}`)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
	for _, phase := range []string{"enterCriticalSection", "dropCollection", "releaseCriticalSection", "done"} {
		c.insertKeys("c", 1, 10)
		c.zone("db.c", "_id", 1, "z")
		c.atPhase("shard1", phase, "db", `{"drop": "c"}`)
		await.State(t, phase+": its zones are gone", func() (any, bool) {
			got := fmt.Sprint(c.counted("c", 1), " ", c.zones("z"))
			return got, got == "0 "
		})
		c.leftOver()
	}
	for _, phase := range []string{"renameMetadata", "done"} {
		c.insertKeys("c", 1, 10)
		c.insertKeys("d", 2, 10)
		c.zone("db.c", "_id", 1, "z")
		c.zone("db.d", "_id", 2, "z")
		c.atPhase("shard1", phase, "admin", `{"renameCollection": "db.c", "to": "db.d", "dropTarget": true}`)
		await.State(t, phase+": it is renamed with its zones", func() (any, bool) {
			got := fmt.Sprint(c.counted("c", 1), " ", c.counted("d", 1), " ", c.zones("z"))
			return got, got == "0 10 db.d 1; "
		})
		c.leftOver()
		c.run("db", `{"drop": "d"}`)
	}
}

// The drop or rename of a collection without an entry concerns the primary shard of its database alone, with zones as without: it used to wait for all shards.
func TestZonesOfUnshardedCollectionsBesideAFrozenShard(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	w := c.interposed("shard0")
	c.run("admin", `{"addShardToZone": "shard0", "zone": "z"}`)
	c.run("admin", `{"enableSharding": "else", "primaryShard": "shard1"}`)
	for _, x := range []struct{ db, cmd, want string }{
		{"db", `{"drop": "c"}`, ""}, {"db", `{"drop": "sampled"}`, "db.c 1; "}, {"db", `{"drop": "none"}`, "db.c 1; "},
		{"admin", `{"renameCollection": "db.c", "to": "db.d"}`, "db.d 1; "}, {"admin", `{"renameCollection": "db.c", "to": "else.c"}`, "else.c 1; "},
		{"admin", `{"renameCollection": "db.sampled", "to": "db.d"}`, "db.c 1; "},
	} {
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
		c.insertKeys("c", 1, 10)
		c.insertKeys("sampled", 1, 10)
		c.zone("db.c", "k", 1, "z")
		if strings.Contains(x.cmd, "none") {
			c.zone("db.none", "k", 2, "z")
		}
		c.run("admin", `{"configureQueryAnalyzer": "db.sampled", "mode": "full", "samplesPerSecond": 1}`)
		frozen := make(chan struct{})
		w.through(func(ctx context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
			select {
			case <-frozen:
				return call()
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		c.expectWithin(x.db, x.cmd)
		c.expect(c.zones("z"), `"`+x.want+`"`)
		close(frozen)
		c.leftOver()
		c.run("db", `{"dropDatabase": 1}`)
		c.run("else", `{"drop": "c"}`)
	}
}

// expectWithin runs a command that must succeed although a shard is frozen.
func (c *testCluster) expectWithin(db, cmd string) {
	c.t.Helper()
	answer := c.later(db, cmd)
	select {
	case m := <-answer:
		if m["ok"] != 1.0 {
			c.t.Errorf("%s: %v", cmd, m)
		}
	case <-time.After(2 * time.Minute):
		c.t.Fatalf("%s waits for a frozen shard", cmd)
	}
}

// A rename into another database copies the collection, and its zones follow. If the primary steps down in between, the next one renames them: they used to keep the
// name of the collection that was gone.
func TestZonesFollowACopiedCollection(t *testing.T) {
	t.Parallel()
	reached, lost := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c := newHookedCluster(t, 2, clusterHooks{out: func(set string) func(cluster.Peer) cluster.Peer {
		return func(to cluster.Peer) cluster.Peer {
			return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
				first := false
				if set == "shard1" && string(m.CommandName()) == "_configsvrRenameCollectionMetadata" {
					once.Do(func() { first = true })
				}
				if !first {
					return to.Call(ctx, m, dst)
				}
				close(reached)
				select {
				case <-lost:
				case <-ctx.Done():
				}
				return dst, errKilled
			})
		}
	}})
	c.run("admin", `{"addShardToZone": "shard0", "zone": "z"}`)
	for _, db := range []string{"db", "else"} {
		c.run("admin", `{"enableSharding": "`+db+`", "primaryShard": "shard1"}`)
	}
	const rename = `{"renameCollection": "db.c", "to": "else.c", "dropTarget": true}`
	c.insertKeys("c", 1, 10)
	c.zone("db.c", "k", 1, "z")
	c.zone("else.c", "k", 2, "z")
	answer := c.later("admin", rename)
	select {
	case <-reached:
	case m := <-answer:
		t.Fatalf("%v", m)
	}
	c.restart("shard1")
	close(lost)
	if m := <-answer; m["ok"] != 1.0 {
		t.Errorf("%v", m)
	}
	c.expect(c.zones("z"), `"else.c 1; "`)
	c.leftOver()

	for _, phase := range []string{"renameMetadata", "done"} {
		c.insertKeys("c", 1, 10)
		c.zone("db.c", "k", 3, "z")
		if m := c.atPhase("shard1", phase, "admin", rename); m["ok"] != 1.0 {
			t.Errorf("%s: %v", phase, m)
		}
		await.State(t, phase+": its zones have the new name", func() (any, bool) {
			got := fmt.Sprint(c.counted("c", 1), " ", len(c.all("else", `{"find": "c"}`)), " ", c.zones("z"))
			return got, got == "0 10 else.c 3; "
		})
		c.leftOver()
	}
}

// The client of a rename into another database stops waiting while its commit is under way: zones have the name of the collection, whether it was renamed or not.
func TestZonesOfACopyThatIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"addShardToZone": "shard0", "zone": "z"}`)
	for _, db := range []string{"db", "else"} {
		c.run("admin", `{"enableSharding": "`+db+`", "primaryShard": "shard1"}`)
	}
	c.insertKeys("c", 1, 10)
	c.zone("db.c", "k", 1, "z")
	c.disk.hold()
	m := c.raw("admin", `{"renameCollection": "db.c", "to": "else.c", "writeConcern": {"w": "majority"}, "maxTimeMS": 500}`)
	c.disk.free()
	if m["ok"] == 1.0 {
		t.Errorf("it was waited for: %v", m)
	}
	c.leftOver()
	want := "db.c 1; "
	if c.counted("c", 1) == 0 {
		want = "else.c 1; "
	}
	await.State(t, "zones have the name of the collection", func() (any, bool) {
		got := c.zones("z")
		return got, got == want
	})
}
