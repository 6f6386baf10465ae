package router_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// interposedPeer passes calls to a shard through a function, which nil lets through.
type interposedPeer struct {
	cluster.Peer
	by atomic.Pointer[func(ctx context.Context, name string, call func() ([]byte, error)) ([]byte, error)]
}

// interposed lets a test come between a shard and its callers.
func (c *testCluster) interposed(shard string) *interposedPeer {
	w := &interposedPeer{}
	c.between(shard, func(to cluster.Peer) cluster.Peer {
		w.Peer = to
		return w
	})
	return w
}

func (w *interposedPeer) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	call := func() ([]byte, error) { return w.Peer.Call(ctx, m, dst) }
	if by := w.by.Load(); by != nil {
		return (*by)(ctx, string(m.CommandName()), call)
	}
	return call()
}

func (w *interposedPeer) through(f func(ctx context.Context, name string, call func() ([]byte, error)) ([]byte, error)) {
	w.by.Store(&f)
}

// hasIndex returns the shards whose copy of a collection has an index.
func (c *testCluster) hasIndex(ns, name string) (on []string) {
	for _, id := range []string{"shard0", "shard1", "shard2"} {
		if s := c.server[id]; s != nil {
			if l := s.Node.Engine.Catalog().Lookup(ns); l != nil && l.Index(name) != nil && l.Index(name).Ready {
				on = append(on, id)
			}
		}
	}
	return on
}

// The primary of the coordinating shard changes at each phase of a createIndexes: the client gets the reply to its command, and
// every shard has the index, including the database's primary shard if it owns no chunk.
func TestCreateIndexesAtEveryPhase(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
	c.shardedAs("c", 1, 20)
	for _, d := range c.all("config", `{"find": "chunks", "filter": {"shard": "shard2", "min.k": {"$exists": true}}}`) {
		c.run("admin", fmt.Sprintf(`{"moveChunk": "db.c", "bounds": [%s, %s], "to": "shard0", "_waitForDelete": true}`, show(get(d, "min")), show(get(d, "max"))))
	}
	for _, phase := range []string{"freezeMigrations", "checkShards", "updateShards", "unfreezeMigrations", "done"} {
		m := c.atPhase("shard2", phase, "db", fmt.Sprintf(`{"createIndexes": "c", "indexes": [{"key": {%[1]q: 1}, "name": %[1]q}], "comment": "known"}`, phase))
		raw, _ := m["raw"].(bson.D)
		if m["ok"] != 1.0 || len(raw) != 2 { // of the shards that own chunks
			t.Fatalf("%s: %v", phase, m)
		}
		c.leftOver()
		if on := fmt.Sprint(c.hasIndex("db.c", phase)); on != "[shard0 shard1 shard2]" {
			t.Errorf("%s: %s", phase, on)
		}
	}
	c.expect(c.all("db", `{"checkMetadataConsistency": "c", "checkIndexes": true}`), `[]`)
	m := c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"done": 1}, "name": "done"}]}`)
	c.expect(get(get(m["raw"], "shard0/shard0:27018"), "note"), `"all indexes already exist"`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": {"$numberInt": "1"}}, "to": "shard2"}`)
}

// A shard that refuses an index, because of its documents or before it looks at them, leaves no other shard with it.
func TestRefusedIndexIsOnNoShard(t *testing.T) {
	c := newTestCluster(t, 2)
	s := c.interposed("shard1")
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 0}}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1"}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1, "k": -1, "l": [1], "m": [1]}, {"_id": 2, "k": 1, "l": [1, 2], "m": [3]}]}`)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"there": 1}, "name": "there"}]}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 3, "k": 2, "x": 1}]}`)
	c.run("db", `{"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1, "k": -1}]}`)
	s.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if name == "createIndexes" { // it refuses what the other shard has built
			c.until("the other shard has the index", func() bool { return slices.Contains(c.hasIndex("db.c", "x"), "shard0") })
		}
		return call()
	})
	for _, x := range []struct {
		cmd  string
		code mongoerr.Code
	}{
		{`{"createIndexes": "c", "indexes": [{"key": {"l": 1, "m": 1}, "name": "x"}, {"key": {"there": 1}, "name": "there"}]}`, mongoerr.CannotIndexParallelArrays},
		{`{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x", "unique": true}]}`, mongoerr.CannotCreateIndex}, // without the shard key
		{`{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "there"}]}`, mongoerr.IndexKeySpecsConflict},
		{`{"createIndexes": "c", "indexes": []}`, mongoerr.BadValue},
		{`{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}], "odd": 1}`, mongoerr.IDLUnknownField},
	} {
		if m := c.raw("db", x.cmd); m["code"] != int32(x.code) {
			t.Errorf("%s: %v, want %d", x.cmd, m, x.code)
		}
		c.leftOver()
		if on := c.hasIndex("db.c", "x"); len(on) > 0 {
			t.Errorf("%s: the index is on %v", x.cmd, on)
		}
		if on := c.hasIndex("db.c", "there"); len(on) != 2 {
			t.Errorf("%s: the older index is on %v", x.cmd, on)
		}
	}
	s.by.Store(nil)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard0"}`)
}

// A chunk reaches a shard after the coordinator has read where the collection is, and another one is being moved.
func TestChunkArrivesBesideCreateIndexes(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 0}}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 5}}`)
	c.insertKeys("c", 1, 20)
	done := make(chan bson.M, 1)
	create := func(name, phase string) {
		if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString("alwaysOn"), value.Doc(value.F("phase", value.NewString(phase)))); err != nil {
			t.Fatal(err)
		}
		go func() {
			done <- c.raw("db", fmt.Sprintf(`{"createIndexes": "c", "indexes": [{"key": {%[1]q: 1}, "name": %[1]q}]}`, name))
		}()
		c.until("the run is at the phase", func() bool {
			ops := c.admin(c.shards["shard0"], bson.D{{Key: "currentOp", Value: 1}, {Key: "desc", Value: "ShardingDDLCoordinator"}, {Key: "currentPhase", Value: phase}, {Key: "$db", Value: "admin"}})
			return len(ops["inprog"].(bson.A)) == 1
		})
	}
	off := func() {
		if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString("off"), nil); err != nil {
			t.Fatal(err)
		}
		if m := <-done; m["ok"] != 1.0 {
			t.Errorf("%v", m)
		}
		c.expect(c.all("db", `{"checkMetadataConsistency": "c", "checkIndexes": true}`), `[]`)
	}
	create("a", "freezeMigrations")
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 7}, "to": "shard1"}`)
	off()
	create("b", "updateShards")
	if m := c.raw("admin", `{"moveChunk": "db.c", "find": {"k": 2}, "to": "shard2"}`); m["code"] != int32(mongoerr.ConflictingOperationInProgress) {
		t.Errorf("a move beside it: %v", m)
	}
	off()
	entered := c.point("shard0", "moveChunkHangAtStep4", true)
	moved := make(chan bson.M, 1)
	go func() { moved <- c.raw("admin", `{"moveChunk": "db.c", "find": {"k": 2}, "to": "shard2"}`) }()
	entered()
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"z": 1}, "name": "z"}]}`)
	c.point("shard0", "moveChunkHangAtStep4", false)
	<-moved
	c.expect(c.all("db", `{"checkMetadataConsistency": "c", "checkIndexes": true}`), `[]`)
	c.expect(c.counted("c", 1), `20`)
}

// An index build ends when its client's time is over, and when its collection, or the index, is dropped: as on a single member.
func TestCreateIndexesIsAborted(t *testing.T) {
	c := newTestCluster(t, 2)
	s := c.interposed("shard1")
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	began := make(chan struct{}, 10)
	s.through(func(ctx context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if name != "createIndexes" {
			return call()
		}
		began <- struct{}{}
		<-ctx.Done() // a build that never ends
		return nil, ctx.Err()
	})
	const create = `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]}`
	if m := c.raw("db", create[:len(create)-1]+`, "maxTimeMS": 300}`); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
		t.Errorf("%v", m)
	}
	c.leftOver()
	if on := c.hasIndex("db.c", "x"); len(on) > 0 {
		t.Errorf("the index is on %v", on)
	}
	for len(began) > 0 {
		<-began
	}
	for _, cmd := range []string{`{"dropIndexes": "c", "index": "x"}`, `{"dropIndexes": "c", "index": {"x": 1}}`, `{"dropIndexes": "c", "index": "*"}`, `{"drop": "c"}`, `{"dropDatabase": 1}`} {
		if cmd == `{"dropDatabase": 1}` {
			c.shardedAs("c", 1, 10)
		}
		done := make(chan bson.M, 1)
		go func() { done <- c.raw("db", create) }()
		<-began
		c.raw("db", cmd[:len(cmd)-1]+`, "maxTimeMS": 100000}`)
		select {
		case m := <-done:
			if m["code"] != int32(mongoerr.IndexBuildAborted) {
				t.Errorf("%s: %v", cmd, m)
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("%s does not end the build", cmd)
		}
		c.leftOver()
	}
	s.by.Store(nil)
	c.expect(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`), `[]`)
}

// Different createIndexes of one collection are executed one after another.
func TestCreateIndexesQueue(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	done := make(chan bson.M, 6)
	for i := range 3 {
		go func() {
			done <- c.raw("db", fmt.Sprintf(`{"createIndexes": "c", "indexes": [{"key": {"f%[1]d": 1}, "name": "f%[1]d"}]}`, i))
		}()
	}
	for range 3 {
		if m := <-done; m["ok"] != 1.0 {
			t.Errorf("%v", m)
		}
	}
	for i := range 3 {
		go func() { done <- c.raw("db", fmt.Sprintf(`{"dropIndexes": "c", "index": "f%d"}`, i)) }()
	}
	for range 3 {
		if m := <-done; m["ok"] != 1.0 {
			t.Errorf("%v", m)
		}
	}
}

// A collMod that one shard would refuse changes none; it used to change the others.
func TestRefusedCollModChangesNoShard(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 0}}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1"}`)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "u": 1}, "name": "u"}]}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1, "k": -1, "u": 1}, {"_id": 2, "k": 1, "u": 1}, {"_id": 3, "k": 1, "u": 1}]}`)
	c.run("db", `{"collMod": "c", "index": {"name": "u", "prepareUnique": true}}`)
	if m := c.raw("db", `{"collMod": "c", "index": {"name": "u", "unique": true}}`); m["code"] != int32(mongoerr.CannotConvertIndexToUnique) {
		t.Errorf("%v", m)
	}
	c.leftOver()
	for _, id := range []string{"shard0", "shard1"} {
		if value.Lookup(c.server[id].Node.Engine.Catalog().Lookup("db.c").Index("u").Spec.Raw, "unique").Truthy() {
			t.Errorf("the index is unique on %s", id)
		}
	}
	c.expect(c.all("db", `{"checkMetadataConsistency": "c", "checkIndexes": true}`), `[]`)
	c.run("db", `{"delete": "c", "deletes": [{"q": {"_id": 3, "k": 1}, "limit": 1}]}`)
	c.run("db", `{"collMod": "c", "index": {"name": "u", "unique": true}}`)
}

// Shards enforce uniqueness each on its own: on a sharded collection no index is made unique, or prepared for it (prepareUnique), that does not begin with the shard key, and no collection
// that has such an index is sharded by the key (manual: Convert an Existing Index to a Unique Index). A chunk could not move to a shard that has one of its values already. An index of a
// time series is not prepared either (SERVER-83370).
func TestIndexesThatShardsCannotEnforce(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	refused := func(db, cmd string) {
		t.Helper()
		if m := c.raw(db, cmd); m["code"] != int32(mongoerr.InvalidOptions) {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	const indexes = `{"createIndexes": "%s", "indexes": [{"key": {"k": 1}, "name": "k"}, {"key": {"u": 1}, "name": "u"%s}, {"key": {"k": 1, "u": 1}, "name": "ku"}, {"key": {"z": 1}, "name": "z"}]}`
	for _, coll := range []string{"c", "prepared", "unchecked", "placed"} {
		c.run("db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 1, "k": -1, "u": 1, "z": 1}, {"_id": 2, "k": 1, "u": 2, "z": 1}]}`, coll))
		prepared := `, "prepareUnique": true`
		if coll == "c" || coll == "placed" {
			prepared = ""
		}
		c.run("db", fmt.Sprintf(indexes, coll, prepared))
	}
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 0}}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1"}`)
	refused("db", `{"collMod": "c", "index": {"name": "u", "prepareUnique": true}}`)
	refused("db", `{"collMod": "c", "index": {"keyPattern": {"u": 1}, "prepareUnique": true}}`)
	for _, id := range []string{"shard0", "shard1"} {
		if c.server[id].Node.Engine.Catalog().Lookup("db.c").Index("u").PrepareUnique {
			t.Errorf("the index is prepared on %s", id)
		}
	}
	c.run("db", `{"collMod": "c", "index": {"name": "ku", "prepareUnique": true}}`)
	c.run("db", `{"collMod": "c", "index": {"name": "ku", "unique": true}}`)
	refused("admin", `{"reshardCollection": "db.c", "key": {"z": 1}}`)

	refused("admin", `{"shardCollection": "db.prepared", "key": {"k": 1}}`)
	c.run("db", `{"collMod": "prepared", "index": {"name": "u", "prepareUnique": false}}`)
	c.run("admin", `{"shardCollection": "db.prepared", "key": {"k": 1}}`)
	c.run("db", `{"collMod": "prepared", "index": {"name": "ku", "prepareUnique": true}}`)
	refused("admin", `{"reshardCollection": "db.prepared", "key": {"z": 1}}`)
	c.run("admin", `{"shardCollection": "db.unchecked", "key": {"k": 1}, "enforceUniquenessCheck": false}`)
	refused("db", `{"collMod": "unchecked", "index": {"name": "u", "unique": true}}`)

	c.run("admin", `{"moveCollection": "db.placed", "toShard": "shard1"}`)
	c.run("db", `{"collMod": "placed", "index": {"name": "u", "prepareUnique": true}}`)
	refused("admin", `{"shardCollection": "db.placed", "key": {"k": 1}}`)
	c.run("db", `{"collMod": "placed", "index": {"name": "u", "unique": true}}`)

	for _, series := range []string{"plain", "sharded"} {
		c.run("db", fmt.Sprintf(`{"create": %q, "timeseries": {"timeField": "t", "metaField": "m"}}`, series))
		if series == "sharded" {
			c.run("admin", `{"shardCollection": "db.sharded", "key": {"m": 1}}`)
		}
		refused("db", fmt.Sprintf(`{"collMod": %q, "index": {"name": "m_1_t_1", "prepareUnique": true}}`, series))
		refused("db", fmt.Sprintf(`{"createIndexes": %q, "indexes": [{"key": {"m": 1, "x": 1}, "name": "x", "prepareUnique": true}]}`, series))
	}
	c.leftOver()
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}

// A router that loses the reply of a coordinator sends the request again and gets the reply to the first one, though there is nothing left
// to do.
func TestLostReplyOfDDL(t *testing.T) {
	c := newTestCluster(t, 2)
	s := c.interposed("shard0")
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	c.shardedAs("d", 1, 10)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]}`)
	lost := ""
	lose := func(name string) {
		lost = name
		var once atomic.Bool
		s.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
			reply, err := call()
			if name == lost && once.CompareAndSwap(false, true) {
				return nil, mongoerr.New(mongoerr.HostUnreachable, "the reply is lost")
			}
			return reply, err
		})
	}
	lose("_shardsvrDropIndexes")
	m := c.run("db", `{"dropIndexes": "c", "index": "x"}`)
	c.expect(get(get(m["raw"], "shard0/shard0:27018"), "nIndexesWas"), `3`)
	lose("_shardsvrRenameCollection")
	c.run("admin", `{"renameCollection": "db.c", "to": "db.d", "dropTarget": true}`)
	lose("_shardsvrDropCollection")
	c.expect(c.run("db", `{"drop": "d"}`)["nIndexesWas"], `2`)
	c.insertKeys("e", 1, 2)
	lose("_shardsvrRenameCollection")
	c.run("admin", `{"renameCollection": "db.e", "to": "db.f"}`) // one unit of work on one shard
	c.expect(c.counted("f", 1), `2`)
	lose("_shardsvrRenameCollection")
	c.run("admin", `{"renameCollection": "db.f", "to": "elsewhere.f"}`)
	c.expect(len(c.all("elsewhere", `{"find": "f"}`)), `2`)
	c.run("elsewhere", `{"createIndexes": "f", "indexes": [{"key": {"x": 1}, "name": "x"}]}`)
	lose("_shardsvrDropIndexes")
	c.expect(c.run("elsewhere", `{"dropIndexes": "f", "index": "x"}`)["nIndexesWas"], `2`)
	lose("_shardsvrDropCollection")
	c.expect(c.run("elsewhere", `{"drop": "f"}`)["nIndexesWas"], `1`)
	lose("_shardsvrRenameCollection") // what was refused is refused again
	if m := c.raw("admin", `{"renameCollection": "db.e", "to": "db.f"}`); m["code"] != int32(mongoerr.NamespaceNotFound) {
		t.Errorf("a rename of nothing: %v", m)
	}
}

// The last index that supports the shard key stays: dropping it is refused, on every shard, and dropping all keeps it. One of several can be dropped, and that of a hashed key, too.
func TestLastShardKeyIndexStays(t *testing.T) {
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.insertKeys("c", 1, 10)
	c.run("admin", `{"split": "db.c", "middle": {"k": 0}}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1"}`)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "z": 1}, "name": "kz"}, {"key": {"y": 1}, "name": "y"}]}`)
	for _, index := range []string{`["k_1", "kz"]`, `["k_1", "y", "kz"]`} {
		if m := c.raw("db", `{"dropIndexes": "c", "index": `+index+`}`); m["code"] != int32(mongoerr.CannotDropShardKeyIndex) {
			t.Errorf("%s: %v", index, m)
		}
	}
	// Only what is not hidden counts (manual: Hidden Indexes).
	c.run("db", `{"collMod": "c", "index": {"name": "k_1", "hidden": true}}`)
	if m := c.raw("db", `{"dropIndexes": "c", "index": "kz"}`); m["code"] != int32(mongoerr.CannotDropShardKeyIndex) {
		t.Errorf("the last one that is not hidden: %v", m)
	}
	for _, index := range []string{`"name": "kz"`, `"keyPattern": {"k": 1, "z": 1}`} {
		if m := c.raw("db", `{"collMod": "c", "index": {`+index+`, "hidden": true}}`); m["code"] != int32(mongoerr.InvalidOptions) {
			t.Errorf("hide the last one: %v", m)
		}
	}
	c.run("db", `{"dropIndexes": "c", "index": "k_1"}`)
	if m := c.raw("db", `{"dropIndexes": "c", "index": "kz"}`); m["code"] != int32(mongoerr.CannotDropShardKeyIndex) {
		t.Errorf("the last one: %v", m)
	}
	c.run("db", `{"dropIndexes": "c", "index": "*"}`)
	for name, want := range map[string]int{"kz": 2, "y": 0, "k_1": 0} {
		if on := c.hasIndex("db.c", name); len(on) != want {
			t.Errorf("%s is on %v", name, on)
		}
	}
	c.expect(c.all("db", `{"checkMetadataConsistency": "c", "checkIndexes": true}`), `[]`)
	c.run("admin", `{"shardCollection": "db.h", "key": {"k": "hashed"}}`)
	c.run("db", `{"dropIndexes": "h", "index": "*"}`) // manual, dropIndexes: all but that of _id and the last remaining one of the shard key
	if on := c.hasIndex("db.h", "k_hashed"); len(on) != 2 {
		t.Errorf("k_hashed is on %v", on)
	}
	c.run("db", `{"dropIndexes": "h", "index": "k_hashed"}`)
}
