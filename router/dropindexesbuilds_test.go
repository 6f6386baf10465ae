package router_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// kept makes calls of a command to a shard wait until release is called, or their caller gives up.
func (w *interposedPeer) kept(command string) (release func()) {
	free := make(chan struct{})
	w.through(func(ctx context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if name == command {
			select {
			case <-free:
			case <-ctx.Done():
			}
		}
		return call()
	})
	return func() { close(free) }
}

// failing makes a createIndexes build its indexes on the shard, and fail once fail is called.
func (w *interposedPeer) failing() (fail func()) {
	free := make(chan struct{})
	w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		out, err := call()
		if name == "createIndexes" {
			<-free
			return nil, mongoerr.New(mongoerr.OutOfDiskSpace, "no space")
		}
		return out, err
	})
	return func() { close(free) }
}

// frozen reports whether chunks of db.c may not move.
func (c *testCluster) frozen() bool {
	return get(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0], "permitMigrations") == false
}

// Indexes of a createIndexes that may still be undone do not serve the shard key. A dropIndexes used to drop the only other index for it, and the undo was then refused by all
// shards, repeated forever, and kept chunks from moving.
func TestUnfinishedIndexesServeNoShardKey(t *testing.T) {
	c := newTestCluster(t, 2)
	s := c.interposed("shard1")
	c.halved("c")
	fail := s.failing()
	created := c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "z": 1}, "name": "kz"}]}`)
	c.until("both have it", func() bool { return len(c.hasIndex("db.c", "kz")) == 2 })
	if m := c.inTime("db", `{"dropIndexes": "c", "index": "k_1"}`); m["code"] != int32(mongoerr.CannotDropShardKeyIndex) {
		t.Fatalf("dropIndexes of the only finished index: %v", m)
	}
	fail()
	if m := <-created; m["code"] != int32(mongoerr.OutOfDiskSpace) {
		t.Errorf("createIndexes: %v", m)
	}
	if on, other := c.hasIndex("db.c", "kz"), c.hasIndex("db.c", "k_1"); len(on) != 0 || len(other) != 2 || c.frozen() {
		t.Errorf("kz is on %v, k_1 on %v, chunks may not move: %v", on, other, c.frozen())
	}
	s.by.Store(nil)
	// One that a createIndexes names and finds there is no such index. Whether it is, is known after its check.
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "z": 1}, "name": "kz"}]}`)
	reached, release := c.hangAt("shard0", "checkShards")
	created = c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1}, "name": "k_1"}]}`)
	reached()
	if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString("alwaysOn"), value.Doc(value.F("operationType", value.NewString("createIndexes")))); err != nil {
		t.Fatal(err)
	}
	dropped := c.later("db", `{"dropIndexes": "c", "index": "kz"}`)
	c.until("dropIndexes is there", func() bool { return len(dropped) > 0 || c.underWay("shard0", "_shardsvrDropIndexes") == 1 })
	release()
	for _, reply := range []<-chan bson.M{created, dropped} {
		if m := <-reply; m["ok"] != 1.0 {
			t.Error(m)
		}
	}
	if on := c.hasIndex("db.c", "kz"); len(on) != 0 {
		t.Errorf("kz is on %v", on)
	}
	c.leftOver()
}

// The undo of a createIndexes ends although an index has become the only one for the shard key, because the others were dropped on the shards themselves.
func TestUndoKeepsTheOnlyShardKeyIndex(t *testing.T) {
	c := newTestCluster(t, 2)
	s := c.interposed("shard1")
	c.halved("c")
	fail := s.failing()
	created := c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "z": 1}, "name": "kz"}]}`)
	c.until("both have it", func() bool { return len(c.hasIndex("db.c", "kz")) == 2 })
	for _, id := range []string{"shard0", "shard1"} {
		c.admin(c.shards[id], bson.D{{Key: "dropIndexes", Value: "c"}, {Key: "index", Value: "k_1"}, {Key: "$db", Value: "db"}})
	}
	fail()
	c.until("createIndexes has ended", func() bool { return len(created) > 0 })
	if m := <-created; m["code"] != int32(mongoerr.OutOfDiskSpace) {
		t.Errorf("createIndexes: %v", m)
	}
	if on := c.hasIndex("db.c", "kz"); len(on) != 2 || c.frozen() {
		t.Errorf("kz is on %v, chunks may not move: %v", on, c.frozen())
	}
	c.leftOver()
}

// A dropIndexes by key ends the build of an index with that key, as the shards compare keys: numbers of another type are equal, and a text index has its stored key. The two used
// to run beside each other, both were answered with ok, and some shards had the index.
func TestDropIndexesByAnEqualKeyEndsTheBuild(t *testing.T) {
	c := newTestCluster(t, 2)
	s := c.interposed("shard1")
	c.halved("c")
	for built, dropped := range map[string]string{`{"a": {"$numberInt": "1"}}`: `{"a": {"$numberDouble": "1.0"}}`, `{"a": "text"}`: `{"_fts": "text", "_ftsx": 1}`} {
		release := s.kept("createIndexes")
		created := c.later("db", `{"createIndexes": "c", "indexes": [{"key": `+built+`, "name": "a"}]}`)
		c.until("shard0 has it", func() bool { return len(c.hasIndex("db.c", "a")) == 1 })
		if m := c.inTime("db", `{"dropIndexes": "c", "index": `+dropped+`}`); m["ok"] != 1.0 {
			t.Errorf("dropIndexes of %s: %v", dropped, m)
		}
		release()
		if m := <-created; m["code"] != int32(mongoerr.IndexBuildAborted) {
			t.Errorf("createIndexes of %s: %v", built, m)
		}
		if on := c.hasIndex("db.c", "a"); len(on) != 0 {
			t.Errorf("%s is on %v", built, on)
		}
		s.by.Store(nil)
		c.raw("db", `{"dropIndexes": "c", "index": "a"}`)
	}
}

// A dropIndexes that ends a build which has begun while it waited is answered with ok. It used to be IndexNotFound.
func TestDropIndexesOfABuildThatBeganMeanwhile(t *testing.T) {
	c := newTestCluster(t, 2)
	s := c.interposed("shard1")
	c.halved("c")
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}]}`)
	reached, goOn := c.hangOn("shard0", hangBeforePhase, "operationType", "dropIndexes")
	first := c.later("db", `{"dropIndexes": "c", "index": "b"}`)
	reached()
	release := s.kept("createIndexes")
	created := c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]}`)
	var waits bson.A
	c.until("createIndexes waits", func() bool {
		waits = c.admin(c.shards["shard0"], bson.D{{Key: "currentOp", Value: 1}, {Key: "command._shardsvrCreateIndexes", Value: bson.D{{Key: "$exists", Value: true}}}, {Key: "waitingForLock", Value: true}, {Key: "msg", Value: bson.D{{Key: "$exists", Value: true}}}, {Key: "$db", Value: "admin"}})["inprog"].(bson.A)
		return len(waits) > 0
	})
	if text := get(waits[0], "msg").(string); !strings.Contains(text, "the DDL lock of 'db.c' ") {
		t.Errorf("currentOp: %s", text)
	}
	dropped := c.later("db", `{"dropIndexes": "c", "index": "x"}`)
	c.until("dropIndexes waits", func() bool { return c.underWay("shard0", "_shardsvrDropIndexes") == 2 })
	goOn()
	if m := <-first; m["ok"] != 1.0 {
		t.Error(m)
	}
	c.until("dropIndexes has ended", func() bool { return len(dropped) > 0 })
	release()
	if m := <-dropped; m["ok"] != 1.0 || strings.Count(show(m), "nIndexesWas") != 2 {
		t.Errorf("dropIndexes: %v", show(m))
	}
	if m := <-created; m["code"] != int32(mongoerr.IndexBuildAborted) {
		t.Errorf("createIndexes: %v", m)
	}
	if on := c.hasIndex("db.c", "x"); len(on) != 0 {
		t.Errorf("x is on %v", on)
	}
}

// A dropIndexes of several indexes drops those that are there, besides ending the builds of others. It used to be answered with ok and to drop none, whatever it named.
func TestDropIndexesOfABuildAndOthers(t *testing.T) {
	c := newTestCluster(t, 2)
	s := c.interposed("shard1")
	c.halved("c")
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"b": 1}, "name": "b"}, {"key": {"d": 1}, "name": "d"}]}`)
	for _, x := range []struct {
		names string
		code  any
	}{{`["a", "x"]`, nil}, {`["x", "nothing"]`, int32(mongoerr.IndexNotFound)}, {`["x"]`, nil}} {
		release := s.kept("createIndexes")
		created := c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]}`)
		c.until("shard0 has it", func() bool { return len(c.hasIndex("db.c", "x")) == 1 })
		if m := c.inTime("db", `{"dropIndexes": "c", "index": `+x.names+`}`); m["code"] != x.code {
			t.Errorf("dropIndexes of %s: %v", x.names, m)
		}
		release()
		if m := <-created; m["code"] != int32(mongoerr.IndexBuildAborted) {
			t.Errorf("createIndexes: %v", m)
		}
		if on := c.hasIndex("db.c", "x"); len(on) != 0 {
			t.Errorf("x is on %v", on)
		}
		s.by.Store(nil)
	}
	if on := c.hasIndex("db.c", "a"); len(on) != 0 {
		t.Errorf("a is on %v", on)
	}
	// An index that only some shards have is dropped with others.
	c.admin(c.shards["shard1"], bson.D{{Key: "dropIndexes", Value: "c"}, {Key: "index", Value: "b"}, {Key: "$db", Value: "db"}})
	c.run("db", `{"dropIndexes": "c", "index": ["b", "d"]}`)
	if b, d := c.hasIndex("db.c", "b"), c.hasIndex("db.c", "d"); len(b) != 0 || len(d) != 0 {
		t.Errorf("b is on %v, d on %v", b, d)
	}
	if m := c.raw("db", `{"dropIndexes": "c", "index": ["b", "d"]}`); m["code"] != int32(mongoerr.IndexNotFound) {
		t.Errorf("dropIndexes of nothing: %v", m)
	}
}

// A dropIndexes that is refused ends no build.
func TestRefusedDropIndexesEndsNoBuild(t *testing.T) {
	c := newTestCluster(t, 2)
	s := c.interposed("shard1")
	c.halved("c")
	for _, cmd := range []string{
		`{"dropIndexes": "c", "index": "x", "collectionUUID": "no"}`,
		`{"dropIndexes": "c", "index": "x", "collectionUUID": {"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAA==", "subType": "03"}}}`,
		`{"dropIndexes": "c", "index": "x", "odd": 1}`,
		`{"dropIndexes": "c", "index": ["x", "_id_"]}`,
		`{"dropIndexes": "c", "index": ["x", 5]}`,
		`{"dropIndexes": "c", "index": ["x", "k_1"]}`,
		`{"dropIndexes": "c", "index": ["x", {"x": 1}]}`,
		`{"dropIndexes": "c", "index": "*", "isTimeseriesNamespace": "no"}`,
	} {
		release := s.kept("createIndexes")
		created := c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x"}]}`)
		c.until("shard0 has it", func() bool { return len(c.hasIndex("db.c", "x")) == 1 })
		m := c.inTime("db", cmd)
		release()
		if n := <-created; m["ok"] == 1.0 || n["ok"] != 1.0 {
			t.Errorf("%s: %v, createIndexes: %v", cmd, m, n)
		}
		s.by.Store(nil)
		c.raw("db", `{"dropIndexes": "c", "index": "x"}`)
	}
}

// A dropIndexes is refused before it ends a build, also if the shard that refuses it is another one than the primary shard of the database, or if the build has not begun there. It
// used to end the build, and then to be refused or to drop the index that had the key, too.
func TestRefusedDropIndexesEndsNoBuildElsewhere(t *testing.T) {
	c := newTestCluster(t, 2)
	s := []*interposedPeer{c.interposed("shard0"), c.interposed("shard1")}
	c.halved("c")
	const a, again = `{"key": {"a": 1}, "name": "a"}`, `{"key": {"a": 1}, "name": "again", "collation": {"locale": "en"}}`
	c.run("admin", `{"shardCollection": "db.ts", "key": {"m": 1}, "timeseries": {"timeField": "t", "metaField": "m"}}`)
	c.run("db", `{"insert": "ts", "documents": [{"t": {"$date": "2026-01-01T00:00:00Z"}, "m": 1, "a": 1}]}`)
	type refused struct {
		coll, finished, built, dropped string
		code                           mongoerr.Code
	}
	check := func(when string, x refused, hold func() (reached, release func())) {
		t.Helper()
		if x.finished != "" {
			c.run("db", `{"createIndexes": "`+x.coll+`", "indexes": [`+x.finished+`]}`)
		}
		reached, release := hold()
		created := c.later("db", `{"createIndexes": "`+x.coll+`", "indexes": [`+x.built+`]}`)
		reached()
		m := c.inTime("db", `{"dropIndexes": "`+x.coll+`", "index": `+x.dropped+`}`)
		release()
		if n := <-created; m["code"] != int32(x.code) || n["ok"] != 1.0 {
			t.Errorf("%s, %s of %s: %v, createIndexes: %v", when, x.dropped, x.coll, m, n)
		}
		for _, one := range s {
			one.by.Store(nil)
		}
		c.run("db", `{"dropIndexes": "`+x.coll+`", "index": "*"}`)
	}
	shared := refused{"c", a, again, `{"a": {"$numberDouble": "1.0"}}`, mongoerr.AmbiguousIndexKeyPattern}
	both := shared
	both.finished, both.built = "", a+", "+again
	series := shared
	series.coll = "ts"
	for _, x := range []refused{shared, both, series} {
		check("before any shard has begun", x, func() (_, _ func()) { return c.hangAt("shard0", "updateShards") })
	}
	onlyOn := func(lacks int, index string) func() (_, _ func()) {
		return func() (_, _ func()) {
			release := s[lacks].kept("createIndexes")
			return func() { c.until("another shard has it", func() bool { return len(c.hasIndex("db.c", index)) == 1 }) }, release
		}
	}
	check("when shard1 alone has the index", shared, onlyOn(0, "again"))
	check("when shard0 alone has the index", shared, onlyOn(1, "again"))
	key := refused{"c", "", `{"key": {"k": 1, "x": 1}, "name": "x"}, {"key": {"k": 1, "y": 1}, "name": "y"}`, `["x", "k_1"]`, mongoerr.CannotDropShardKeyIndex}
	check("when shard0 alone has other indexes for the shard key", key, onlyOn(1, "y"))
	c.expect(c.all("db", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	c.leftOver()
}

// A message of an earlier term, by which a createIndexes that is undone lets chunks move, does not do so while a dropIndexes beside it needs them not to.
func TestLatePermissionForMigrations(t *testing.T) {
	late := &latePeer{command: "_configsvrSetAllowMigrations", came: make(chan struct{}), free: make(chan struct{}), done: make(chan error, 1)}
	var armed atomic.Bool
	c := newHookedCluster(t, 2, clusterHooks{out: func(from string) func(cluster.Peer) cluster.Peer {
		return func(to cluster.Peer) cluster.Peer {
			return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
				if from == "shard0" && string(m.CommandName()) == late.command && value.Lookup(m.Body, "allowMigrations").Truthy() && armed.CompareAndSwap(true, false) {
					late.Peer = to
					return late.Call(ctx, m, dst)
				}
				return to.Call(ctx, m, dst)
			})
		}
	}})
	s := c.interposed("shard1")
	c.halved("c")
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}]}`)
	c.run("db", `{"insert": "c", "documents": [{"k": 5, "l": [1, 2], "m": [3]}]}`)
	armed.Store(true)
	created := c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"l": 1, "m": 1}, "name": "x"}]}`) // shard1 cannot index two arrays
	c.until("the undo lets chunks move", func() bool { return closed(late.came) })
	undone, release := s.held(c, "dropIndexes", 1, false)
	c.restart("shard0")
	undone()
	_, goOn := c.hangAt("shard0", "updateShards")
	dropped := c.later("db", `{"dropIndexes": "c", "index": "b"}`)
	c.until("dropIndexes has checked the shards", func() bool {
		ops := c.admin(c.shards["shard0"], bson.D{{Key: "currentOp", Value: 1}, {Key: "command._shardsvrDropIndexes", Value: bson.D{{Key: "$exists", Value: true}}}, {Key: "currentPhase", Value: "updateShards"}, {Key: "$db", Value: "admin"}})
		return len(ops["inprog"].(bson.A)) > 0
	})
	if err := late.release(); err != nil {
		t.Error(err)
	}
	if !c.frozen() {
		t.Error("chunks may move")
	}
	goOn()
	release()
	if m := <-dropped; m["ok"] != 1.0 {
		t.Errorf("dropIndexes: %v", m)
	}
	<-created
	if c.frozen() {
		t.Error("chunks may not move in the end")
	}
}
