package router_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// building begins an index build on a shard, which lasts until end is called, like one that waits for a member.
func (c *testCluster) building(shard, ns string) (end func()) {
	c.t.Helper()
	spec := value.Doc(value.F("v", value.NewInt32(2)), value.F("key", value.NewDocument(value.Doc(value.F("built", value.NewInt32(1))))), value.F("name", value.NewString("built"+fmt.Sprint(buildNumber.Add(1)))))
	b, err := c.server[shard].Node.Engine.StartIndexBuild(context.Background(), ns, [][]byte{spec}, storage.NewUUID())
	if err != nil {
		c.t.Fatal(err)
	}
	return func() {
		c.t.Helper()
		if _, err := b.Run(context.Background()); err != nil {
			c.t.Error(err)
		}
	}
}

var buildNumber atomic.Int64

// later sends a command, and returns its reply when there is one.
func (c *testCluster) later(db, cmd string) <-chan bson.M {
	reply := make(chan bson.M, 1)
	other := c.through()
	go func() { reply <- other.raw(db, cmd) }()
	return reply
}

// underWay returns the number of a shard's operations of a command.
func (c *testCluster) underWay(shard, command string) int {
	ops := c.admin(c.shards[shard], bson.D{{Key: "currentOp", Value: 1}, {Key: "command." + command, Value: bson.D{{Key: "$exists", Value: true}}}, {Key: "desc", Value: bson.D{{Key: "$ne", Value: "ShardingDDLCoordinator"}}}, {Key: "$db", Value: "admin"}})
	return len(ops["inprog"].(bson.A))
}

// sections lists the critical sections that are stored on shards.
func (c *testCluster) sections() (all []string) {
	for id := range c.shards {
		n := c.admin(c.shards[id], bson.D{{Key: "count", Value: "collection_critical_sections"}, {Key: "$db", Value: "config"}})["n"]
		if n != int32(0) {
			all = append(all, fmt.Sprint(n, " on ", id))
		}
	}
	return all
}

// halved makes a collection of db that is sharded by k, with a chunk on each of two shards and some documents.
func (c *testCluster) halved(coll string) {
	c.t.Helper()
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.`+coll+`", "key": {"k": 1}}`)
	c.run("admin", `{"split": "db.`+coll+`", "middle": {"k": 0}}`)
	c.run("admin", `{"moveChunk": "db.`+coll+`", "find": {"k": 0}, "to": "shard1", "_waitForDelete": true}`)
	c.run("db", `{"insert": "`+coll+`", "documents": [{"k": -1}, {"k": 1}]}`)
}

// A request that is sent again joins its run, although an index build has begun meanwhile for which the operation would be refused. It used to be refused while the first was
// executed.
func TestRepeatedDDLJoinsItsRunBesideABuild(t *testing.T) {
	c := newTestCluster(t, 2)
	c.halved("c")
	const rename = `{"renameCollection": "db.c", "to": "db.d"}`
	reached, release := c.hangAt("shard0", "renameMetadata")
	first := c.later("admin", rename)
	reached()
	created := c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]}`)
	c.until("createIndexes waits for the rename", func() bool { return c.underWay("shard0", "_shardsvrCreateIndexes") == 1 })
	end := c.building("shard1", "db.c")
	second := c.later("admin", rename)
	c.until("the second request is there", func() bool { return len(second) > 0 || c.underWay("shard0", "_shardsvrRenameCollection") == 2 })
	release()
	for _, reply := range []<-chan bson.M{first, second} {
		if m := <-reply; m["ok"] != 1.0 {
			t.Errorf("renameCollection: %v", m)
		}
	}
	end()
	<-created
	c.expect(len(c.all("db", `{"find": "d"}`)), `2`)
}

// An operation that waits for a createIndexes that builds nothing yet, and which it would be refused for later, keeps its own limits.
func TestLimitsOfDDLThatWaitsBesideABuild(t *testing.T) {
	var held atomic.Pointer[chan struct{}]
	c := newHookedCluster(t, 2, clusterHooks{out: func(from string) func(cluster.Peer) cluster.Peer {
		return func(to cluster.Peer) cluster.Peer {
			if from != "shard0" {
				return to
			}
			w := &interposedPeer{Peer: to}
			w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
				if free := held.Load(); free != nil && name == "_configsvrSetAllowMigrations" {
					<-*free
				}
				return call()
			})
			return w
		}
	}})
	c.halved("c")
	free := make(chan struct{})
	held.Store(&free)
	created := c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]}`)
	c.until("createIndexes runs", func() bool {
		return c.underWay("shard0", "_shardsvrCreateIndexes") == 1 && strings.Contains(c.locks("shard0"), "createIndexes")
	})
	for db, cmd := range map[string]string{"db": `{"collMod": "c", "validationLevel": "moderate"}`, "admin": `{"renameCollection": "db.c", "to": "db.d"}`} {
		c.timedOut(db, cmd)
		if m := c.raw(db, cmd[:len(cmd)-1]+`, "maxTimeMS": 50}`); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
			t.Errorf("%s with a time limit: %v", cmd, m)
		}
	}
	held.Store(nil)
	close(free)
	if m := <-created; m["ok"] != 1.0 {
		t.Errorf("createIndexes: %v", m)
	}
}

// locks shows the DDL locks of a shard.
func (c *testCluster) locks(shard string) string {
	return show(c.admin(c.shards[shard], bson.D{{Key: "lockInfo", Value: 1}, {Key: "$db", Value: "admin"}})["lockInfo"])
}

// A collMod of a collection that moveCollection has placed is refused before any shard has changed it. Once it has begun to change them, it is not: the primary shard of the
// database used to have another definition than the shard with the documents.
func TestCollModOfAPlacedCollectionBesideABuild(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1, "k": 1}]}`)
	c.run("admin", `{"moveCollection": "db.c", "toShard": "shard1"}`)
	levels := func() (all []string) {
		for _, id := range []string{"shard0", "shard1"} {
			all = append(all, value.Lookup(c.server[id].Node.Engine.Catalog().Lookup("db.c").Options, "validationLevel").Str())
		}
		return all
	}
	const collMod = `{"collMod": "c", "validationLevel": "moderate"}`
	end := c.building("shard1", "db.c")
	if m := c.raw("db", collMod); m["code"] != int32(mongoerr.BackgroundOperationInProgressForNamespace) {
		t.Errorf("during a build: %v", m)
	}
	c.expect(levels(), `["",""]`)
	end()
	reached, release := c.hangAt("shard0", "updateShards")
	reply := c.later("db", collMod)
	reached()
	end = c.building("shard1", "db.c")
	release()
	if m := <-reply; m["ok"] != 1.0 {
		t.Errorf("with a build that has begun after the check: %v", m)
	}
	c.expect(levels(), `["moderate","moderate"]`)
	end()
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
}

// inTime sends a command that must not wait for an index build.
func (c *testCluster) inTime(db, cmd string) bson.M {
	return c.raw(db, cmd[:len(cmd)-1]+`, "maxTimeMS": 15000}`)
}

// refusedBeside sends commands that are refused because of an index build. The name of the database precedes each.
func (c *testCluster) refusedBeside(cmds ...string) {
	c.t.Helper()
	for _, cmd := range cmds {
		db, cmd, _ := strings.Cut(cmd, " ")
		if m := c.inTime(db, cmd); m["code"] != int32(mongoerr.BackgroundOperationInProgressForNamespace) {
			c.t.Errorf("%s: %v", cmd, m)
		}
	}
}

// DDL on a time series is answered at once while an index of its buckets is being built under their own name, and DDL on the buckets while one is built under the name of the time
// series. It used to wait for five minutes.
func TestDDLOnATimeSeriesBesideABuild(t *testing.T) {
	for _, x := range []struct{ built, other, index, same string }{
		{"system.buckets.ts", "ts", `{"meta.a": 1}`, `{"m.a": 1}`}, {"ts", "system.buckets.ts", `{"m.a": 1}`, `{"meta.a": 1}`},
	} {
		c := newTestCluster(t, 2)
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.run("admin", `{"shardCollection": "db.ts", "key": {"m": 1}, "timeseries": {"timeField": "t", "metaField": "m"}}`)
		c.run("db", `{"insert": "ts", "documents": [{"t": {"$date": "2024-01-01T00:00:00Z"}, "m": {"a": 1}}]}`)
		create := `{"createIndexes": "` + x.built + `", "indexes": [{"key": ` + x.index + `, "name": "i"}]}`
		for _, drop := range []string{`{"dropIndexes": "` + x.other + `", "index": ` + x.same + `}`, `{"dropIndexes": "` + x.other + `", "index": "i"}`, `{"drop": "` + x.other + `"}`} {
			reached, release := c.hangAt("shard0", "updateShards")
			created := c.later("db", create)
			reached()
			end := c.building("shard0", "db.system.buckets.ts")
			c.refusedBeside(`db {"collMod": "`+x.other+`", "index": {"name": "m_1", "hidden": false}}`,
				`db {"convertToCapped": "`+x.other+`", "size": 10000}`)
			if x.other == "ts" {
				c.refusedBeside(`admin {"renameCollection": "db.ts", "to": "db.new"}`, `admin {"reshardCollection": "db.ts", "key": {"m.a": 1}}`, `admin {"shardCollection": "db.ts", "key": {"m.a": 1}}`, `admin {"refineCollectionShardKey": "db.ts", "key": {"m": 1, "t": 1}}`)
			}
			end()
			dropped := c.later("db", drop)
			c.until("the drop has ended the build, and locks or waits", func() bool { return len(dropped) > 0 || strings.Contains(c.locks("shard0"), `"drop`) })
			release()
			if m := <-created; m["code"] != int32(mongoerr.IndexBuildAborted) {
				t.Errorf("createIndexes beside %s: %v", drop, m)
			}
			if m := <-dropped; m["ok"] != 1.0 {
				t.Errorf("%s: %v", drop, m)
			}
		}
	}
}

// What would have to wait for the index build of a collection in the catalog is answered at once.
func TestDDLThatWouldWaitForABuild(t *testing.T) {
	c := newTestCluster(t, 2)
	c.halved("c")
	c.run("db", `{"create": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	c.run("db", `{"insert": "ts", "documents": [{"t": {"$date": "2024-01-01T00:00:00Z"}, "m": 1}]}`)
	c.run("db", `{"insert": "other", "documents": [{"k": 1}]}`)
	c.run("admin", `{"moveCollection": "db.ts", "toShard": "shard1"}`)
	for coll, cmds := range map[string][]string{
		"c": {`admin {"refineCollectionShardKey": "db.c", "key": {"k": 1, "g": 1}}`, `admin {"shardCollection": "db.c", "key": {"g": 1}}`, `admin {"movePrimary": "db", "to": "shard1"}`},
		"ts": {`admin {"shardCollection": "db.ts", "key": {"m": 1}}`, `admin {"untrackUnshardedCollection": "db.ts"}`, `admin {"moveCollection": "db.ts", "toShard": "shard0"}`,
			`admin {"movePrimary": "db", "to": "shard1"}`},
	} {
		reached, release := c.hangAt("shard0", "updateShards")
		created := c.later("db", `{"createIndexes": "`+coll+`", "indexes": [{"key": {"m": 1, "x": 1}, "name": "x"}]}`)
		reached()
		end := c.building("shard1", map[string]string{"c": "db.c", "ts": "db.system.buckets.ts"}[coll])
		c.refusedBeside(cmds...)
		for cmd, code := range map[string]any{
			`admin {"renameCollection": "db.other", "to": "db.` + coll + `"}`: int32(mongoerr.NamespaceExists), `db {"create": "` + coll + `", "capped": true, "size": 4096}`: int32(mongoerr.NamespaceExists),
			`db {"create": "c"}`: nil, `db {"create": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`: nil,
		} {
			db, cmd, _ := strings.Cut(cmd, " ")
			if m := c.inTime(db, cmd); m["code"] != code {
				t.Errorf("%s: %v", cmd, m)
			}
		}
		end()
		release()
		if m := <-created; m["ok"] != 1.0 {
			t.Errorf("createIndexes: %v", m)
		}
	}
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
}

// A run that one shard refuses because of an index build ends the sections of the others before its client is answered: also those of shards that joined the cluster meanwhile. They
// used to be ended when somebody waited for them, or by the sweep after twenty seconds.
func TestRefusedRunsLeaveNoSections(t *testing.T) {
	c := newTestCluster(t, 2)
	c.halved("c")
	c.run("db", `{"insert": "plain", "documents": [{"k": 1}]}`)
	refused := func(m bson.M) {
		t.Helper()
		if m["code"] != int32(mongoerr.BackgroundOperationInProgressForNamespace) {
			t.Errorf("renameCollection: %v", m)
		}
		if left := c.sections(); len(left) > 0 {
			t.Errorf("sections: %v", left)
		}
	}
	for shard, coll := range map[string]string{"shard0": "plain", "shard1": "c"} {
		end := c.building(shard, "db."+coll)
		refused(c.raw("admin", `{"renameCollection": "db.c", "to": "db.plain", "dropTarget": true}`))
		end()
	}
	reached, release := c.hangAt("shard0", "blockCrudAndRename")
	reply := c.later("admin", `{"renameCollection": "db.c", "to": "db.d"}`)
	reached()
	for _, id := range []string{"joins", "refuses"} {
		s := c.opened(shardnode.Config{SetName: id, Host: id + ":27018"})
		if err := s.Initiate(context.Background()); err != nil {
			t.Fatal(err)
		}
		c.join(id, id+":27018", s)
	}
	e := c.server["refuses"].Node.Engine
	u := e.NewUnitOfWork(nil)
	if _, err := u.CreateCollection(storage.CollectionSpec{NS: "db.c", UUID: c.server["shard0"].Node.Engine.Catalog().Lookup("db.c").UUID}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Commit(context.Background(), u, true); err != nil {
		t.Fatal(err)
	}
	end := c.building("refuses", "db.c")
	release()
	refused(<-reply)
	end()
	c.expect(len(c.all("db", `{"find": "c"}`)), `2`)
}

// A removal of a shard whose request is sent again is answered as the first one would have been, and not with an error because the router cannot read the shards behind it.
func TestRemovalsOfShardsThatAreRepeated(t *testing.T) {
	var lost atomic.Int64 // replies to removeShard that are lost
	var unread atomic.Bool
	c := newHookedCluster(t, 3, clusterHooks{peer: func(set string, s *shardnode.Server) cluster.Peer {
		if set != "config" {
			return s.Peer()
		}
		w := &interposedPeer{Peer: s.Peer()}
		var removed atomic.Bool
		w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
			if name != "_configsvrRemoveShard" {
				if removed.Load() && name == "find" {
					return nil, errors.New("it cannot be read")
				}
				return call()
			}
			reply, err := call()
			removed.Store(unread.Load())
			if lost.Add(-1) >= 0 {
				return nil, mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "its primary steps down")
			}
			return reply, err
		})
		return w
	}})
	const remove = `{"removeShard": "shard2"}`
	there := func() bool { return strings.Contains(show(c.all("config", `{"find": "shards"}`)), "shard2") }
	lost.Store(2)
	c.expect(c.run("admin", remove)["state"], `"started"`)
	if !there() {
		t.Error("the shard is removed by the request that starts its draining")
	}
	lost.Store(1)
	m := c.run("admin", remove)
	c.expect([]any{m["msg"], m["state"], m["shard"]}, `["removeshard completed successfully","completed","shard2"]`)
	if there() {
		t.Error("the shard is not removed")
	}
	if m := c.raw("admin", remove); m["code"] != int32(mongoerr.ShardNotFound) {
		t.Errorf("once more: %v", m)
	}
	unread.Store(true)
	if m := c.raw("admin", `{"removeShard": "shard1"}`); m["state"] != "started" {
		t.Errorf("the shards cannot be read behind it: %v", m)
	}
}
