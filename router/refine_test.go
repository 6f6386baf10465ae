package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/configsvr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// refinable creates db.c, sharded by k over two shards, with a zone, documents {_id, k, g} and an index on both.
func (c *testCluster) refinable(n int) {
	c.t.Helper()
	c.fill(n)
	c.run("admin", `{"addShardToZone": "shard1", "zone": "z"}`)
	c.run("admin", fmt.Sprintf(`{"updateZoneKeyRange": "db.c", "min": {"k": %d}, "max": {"k": {"$maxKey": 1}}, "zone": "z"}`, n/2))
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "g": 1}, "name": "kg"}]}`)
}

const refineToKG = `{"refineCollectionShardKey": "db.c", "key": {"k": 1, "g": 1}}`

// A refined shard key has its new fields everywhere: in the entry, with a new epoch, in the bounds of chunks and zones. Routers that
// do not know it read and write, and documents with one value of the old key can be on several shards.
func TestRefineCollectionShardKey(t *testing.T) {
	c := newTestCluster(t, 2)
	c.refinable(20)
	stale := c.through()
	stale.expect(len(stale.all("db", `{"find": "c"}`)), `20`)
	before := c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0]
	c.run("admin", refineToKG)
	c.leftOver()
	after := c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0]
	c.expect(get(after, "key"), `{"k":1,"g":1}`)
	c.expect([]any{get(after, "permitMigrations")}, `[null]`)
	if get(after, "lastmodEpoch") == get(before, "lastmodEpoch") || get(after, "timestamp") == get(before, "timestamp") || fmt.Sprint(get(after, "uuid")) != fmt.Sprint(get(before, "uuid")) {
		t.Errorf("before %v, after %v", before, after)
	}
	const ends = `{"min": 1, "max": 1, "_id": 0}`
	c.expect(c.all("config", `{"find": "chunks", "sort": {"min": 1}, "projection": `+ends+`}`),
		`[{"min":{"k":{"$minKey":1},"g":{"$minKey":1}},"max":{"k":10,"g":{"$minKey":1}}},{"min":{"k":10,"g":{"$minKey":1}},"max":{"k":{"$maxKey":1},"g":{"$maxKey":1}}}]`)
	c.expect(c.all("config", `{"find": "tags", "projection": `+ends+`}`), `[{"min":{"k":10,"g":{"$minKey":1}},"max":{"k":{"$maxKey":1},"g":{"$maxKey":1}}}]`)
	stale.run("db", `{"insert": "c", "documents": [{"_id": 20, "k": 5, "g": 1}, {"_id": 21, "k": 5, "g": 2}, {"_id": 22, "k": 5}]}`)
	stale.expect(len(stale.all("db", `{"find": "c"}`)), `23`)
	c.run("admin", refineToKG) // which it has already
	c.run("admin", `{"split": "db.c", "middle": {"k": 5, "g": 2}}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 5, "g": 2}, "to": "shard1", "_waitForDelete": true}`)
	for _, r := range []*testCluster{c, stale} {
		r.expect(len(r.all("db", `{"find": "c"}`)), `23`)
		r.expect(r.all("db", `{"find": "c", "filter": {"k": 5}, "sort": {"_id": 1}, "projection": {"_id": 1}}`), `[{"_id":5},{"_id":20},{"_id":21},{"_id":22}]`)
		r.expect(r.run("db", `{"update": "c", "updates": [{"q": {"k": 5}, "u": {"$inc": {"n": 1}}, "multi": true}]}`)["n"], `4`)
	}
	if m := c.raw("db", `{"insert": "c", "documents": [{"_id": 23, "k": 5, "g": [1]}]}`); m["writeErrors"] == nil {
		t.Errorf("an array in a new field of the key: %v", m)
	}
	c.expect(c.all("db", `{"checkMetadataConsistency": "c"}`), `[]`)
}

func TestRefineIsRefused(t *testing.T) {
	c := newTestCluster(t, 2)
	c.refinable(20)
	c.run("db", `{"insert": "plain", "documents": [{"_id": 1}]}`)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "a": 1}, "name": "ka", "sparse": true}, {"key": {"k": 1, "b": 1}, "name": "kb", "partialFilterExpression": {"b": 1}},
		{"key": {"k": 1, "l": 1}, "name": "kl"}, {"key": {"k": 1, "f": 1}, "name": "kf", "collation": {"locale": "fr"}}, {"key": {"k": 1, "u": 1}, "name": "ku", "unique": true}]}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 100, "k": 100, "l": [1]}]}`)
	refuse := func(cmd string, code int32, text string) {
		t.Helper()
		if m := c.raw("admin", cmd); m["code"] != code || !strings.Contains(fmt.Sprint(m["errmsg"]), text) {
			t.Errorf("%s: %v, want %d %q", cmd, m, code, text)
		}
	}
	for _, key := range []string{`{"k": 1, "a": 1}`, `{"k": 1, "b": 1}`, `{"k": 1, "l": 1}`, `{"k": 1, "f": 1}`, `{"k": 1, "none": 1}`} {
		refuse(`{"refineCollectionShardKey": "db.c", "enforceUniquenessCheck": false, "key": `+key+`}`, int32(mongoerr.InvalidOptions), "create an index")
	}
	refuse(refineToKG, int32(mongoerr.InvalidOptions), "unique index on ku")
	for _, key := range []string{`{"g": 1}`, `{"g": 1, "k": 1}`, `{"k": "hashed", "g": 1}`} {
		refuse(`{"refineCollectionShardKey": "db.c", "key": `+key+`}`, int32(mongoerr.InvalidOptions), "does not extend")
	}
	refuse(`{"refineCollectionShardKey": "db.c", "key": {"k": 1, "g": 2}}`, int32(mongoerr.BadValue), "1 or the string")
	refuse(`{"refineCollectionShardKey": "db.c", "key": {}}`, int32(mongoerr.BadValue), "empty")
	refuse(`{"refineCollectionShardKey": "db.plain", "key": {"_id": 1, "g": 1}}`, int32(mongoerr.NamespaceNotSharded), "not sharded")
	refuse(`{"refineCollectionShardKey": "db.none", "key": {"_id": 1, "g": 1}}`, int32(mongoerr.NamespaceNotSharded), "not sharded")
	refuse(`{"refineCollectionShardKey": "none.none", "key": {"_id": 1, "g": 1}}`, int32(mongoerr.NamespaceNotSharded), "")
	refuse(`{"refineCollectionShardKey": "db", "key": {"_id": 1, "g": 1}}`, int32(mongoerr.InvalidNamespace), "")
	refuse(`{"refineCollectionShardKey": "config.system.sessions", "key": {"_id": 1, "g": 1}}`, int32(mongoerr.IllegalOperation), "")
	c.run("admin", `{"refineCollectionShardKey": "db.c", "enforceUniquenessCheck": false, "key": {"k": 1, "g": 1}}`)

	c.run("admin", `{"shardCollection": "db.u", "key": {"k": 1}, "unique": true}`)
	c.run("db", `{"createIndexes": "u", "indexes": [{"key": {"k": 1, "g": 1}, "name": "plain"}, {"key": {"k": 1, "h": "hashed"}, "name": "h"}]}`)
	refine := `{"refineCollectionShardKey": "db.u", "key": {"k": 1, "g": 1}}`
	refuse(refine, int32(mongoerr.InvalidOptions), "unique index on k_1")
	c.run("db", `{"dropIndexes": "u", "index": "k_1"}`)
	refuse(refine, int32(mongoerr.InvalidOptions), "create an index")
	refuse(`{"refineCollectionShardKey": "db.u", "key": {"k": 1, "h": "hashed"}}`, int32(mongoerr.InvalidOptions), "unique")
	c.run("db", `{"dropIndexes": "u", "index": "plain"}`)
	c.run("db", `{"createIndexes": "u", "indexes": [{"key": {"k": 1, "g": 1}, "name": "uniq", "unique": true}]}`)
	c.run("admin", refine)
	c.leftOver()
}

// The primary of the coordinating shard changes at each phase of a refinement, during writes: it completes, change streams get one
// event, no write is lost, and chunks move again.
func TestRefineAtEveryPhase(t *testing.T) {
	t.Parallel()
	for _, phase := range []string{"freezeMigrations", "blockCrud", "remoteIndexValidation", "commit", "releaseCritSec", "resumeMigrations", "done"} {
		c := newTestCluster(t, 2)
		c.refinable(20)
		s, _ := c.watch("c", bson.D{{Key: "showExpandedEvents", Value: true}}, bson.D{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "refineCollectionShardKey"}}}})
		var written atomic.Int64
		stop, stopped := make(chan struct{}), make(chan struct{})
		writer := c.through()
		go func() {
			defer close(stopped)
			for i := 1000; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if m := writer.raw("db", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "k": %d, "g": %d}]}`, i, i%20, i)); m["ok"] == 1.0 && m["writeErrors"] == nil {
					written.Add(1)
				}
			}
		}()
		c.until("a write", func() bool { return written.Load() > 0 })
		if m := c.atPhase("shard0", phase, "admin", refineToKG); m["ok"] != 1.0 && m["code"] != int32(mongoerr.HostUnreachable) { // if its primary stepped down first
			t.Errorf("%s: %v", phase, m)
		}
		c.run("admin", refineToKG)
		c.leftOver()
		close(stop)
		<-stopped
		c.run("admin", `{"split": "db.c", "middle": {"k": 5, "g": 2}}`)
		c.run("admin", `{"moveChunk": "db.c", "find": {"k": 5, "g": 2}, "to": "shard1", "_waitForDelete": true}`)
		c.expect(len(c.all("db", `{"find": "c"}`)), fmt.Sprint(20+written.Load()))
		c.expect(c.all("db", `{"checkMetadataConsistency": "c"}`), `[]`)
		var told []any
		for _, e := range s.rest(1) {
			told = append(told, field(e, "operationDescription"))
		}
		c.expect(told, `[{"shardKey":{"k":1,"g":1},"oldShardKey":{"k":1}}]`)
	}
}

// A document with an array in a new field is written after the indexes were checked: its write waits for the new key, and is
// refused because of it.
func TestRefineHoldsWritesUp(t *testing.T) {
	c := newTestCluster(t, 2)
	c.refinable(20)
	stale := c.through()
	stale.run("db", `{"find": "c"}`)
	if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString("alwaysOn"), value.Doc(value.F("phase", value.NewString("commit")))); err != nil {
		t.Fatal(err)
	}
	done := make(chan bson.M, 2)
	go func() { done <- c.raw("admin", refineToKG) }()
	if err := c.points["shard0"].Register(hangBeforePhase).WaitEntered(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	stale.expect(len(stale.all("db", `{"find": "c", "maxTimeMS": 100000}`)), `20`) // reads go on
	if m := stale.raw("db", `{"insert": "c", "documents": [{"_id": 100, "k": 15, "g": [1]}], "maxTimeMS": 100}`); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
		t.Errorf("a write meanwhile: %v", m)
	}
	written := make(chan bson.M, 1)
	go func() { written <- stale.raw("db", `{"insert": "c", "documents": [{"_id": 100, "k": 15, "g": [1]}]}`) }()
	if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString("off"), nil); err != nil {
		t.Fatal(err)
	}
	if m := <-done; m["ok"] != 1.0 {
		t.Errorf("%v", m)
	}
	if m := <-written; m["writeErrors"] == nil && m["code"] == nil {
		t.Errorf("an array in a new field of the key was written: %v", m)
	}
}

// Remains of earlier migrations: one that is running while the key is refined is aborted, and a range deletion with the old
// bounds is executed.
func TestRefineBesideMigrations(t *testing.T) {
	c := newTestCluster(t, 2)
	c.refinable(20)
	entered := c.point("shard0", "moveChunkHangAtStep3", true)
	moved := make(chan bson.M, 1)
	go func() { moved <- c.raw("admin", `{"moveChunk": "db.c", "find": {"k": 5}, "to": "shard1"}`) }()
	entered()
	c.run("admin", refineToKG)
	c.point("shard0", "moveChunkHangAtStep3", false)
	if m := <-moved; m["ok"] == 1.0 {
		t.Errorf("a migration by the old key: %v", m)
	}
	c.expect(len(c.all("db", `{"find": "c"}`)), `20`)
	c.until("the copied range is deleted", func() bool { return c.onShard("shard0", "c") == 10 && c.onShard("shard1", "c") == 10 })

	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1, "g": 1, "h": 1}, "name": "kgh"}]}`)
	for _, id := range []string{"shard0", "shard1"} {
		c.point(id, "suspendRangeDeletion", true)
	}
	c.run("admin", `{"split": "db.c", "middle": {"k": 5, "g": 0}}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 5, "g": 0}, "to": "shard1"}`)
	c.expect(c.onShard("shard0", "c"), `10`)
	c.run("admin", `{"refineCollectionShardKey": "db.c", "key": {"k": 1, "g": 1, "h": 1}}`)
	for _, id := range []string{"shard0", "shard1"} {
		c.point(id, "suspendRangeDeletion", false)
	}
	c.until("the range with old bounds is deleted", func() bool { return c.onShard("shard0", "c") == 5 })
	c.expect(len(c.all("db", `{"find": "c"}`)), `20`)
}

// The config server is killed between writing the entry and the chunks: the table is read by the new key all the same, and the refinement continues.
func TestRefineWithKilledConfigServer(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.refinable(20)
	key := `{"k": 1`
	atEveryStep(t, func(t *testing.T, n int) bool {
		f := fmt.Sprintf("f%d", n)
		c.run("db", fmt.Sprintf(`{"createIndexes": "c", "indexes": [{"key": %s, %q: 1}, "name": %q}]}`, key, f, f))
		_, killed := c.withMortalConfig(n, "admin", fmt.Sprintf(`{"refineCollectionShardKey": "db.c", "key": %s, %q: 1}, "maxTimeMS": 500}`, key, f))
		c.through().expect(len(c.all("db", `{"find": "c"}`)), `20`)
		key += fmt.Sprintf(`, %q: 1`, f)
		c.run("admin", fmt.Sprintf(`{"refineCollectionShardKey": "db.c", "key": %s}, "maxTimeMS": 100000}`, key))
		c.leftOver()
		c.expect(c.all("config", fmt.Sprintf(`{"find": "chunks", "filter": {"min.%s": {"$exists": false}}}`, f)), `[]`)
		c.expect(len(c.all("db", `{"find": "c"}`)), `20`)
		return killed
	})
}

func TestExtendedBounds(t *testing.T) {
	raw := func(s string) []byte {
		var d bson.D
		if err := bson.UnmarshalExtJSON([]byte(s), false, &d); err != nil {
			t.Fatal(err)
		}
		b, _ := bson.Marshal(d)
		return b
	}
	key, err := cluster.ParseShardKey(raw(`{"a": 1, "b": 1, "c": 1}`))
	if err != nil {
		t.Fatal(err)
	}
	for bound, want := range map[string]string{
		`{"a": {"$minKey": 1}}`:                 `{"a":{"$minKey":1},"b":{"$minKey":1},"c":{"$minKey":1}}`,
		`{"a": {"$maxKey": 1}}`:                 `{"a":{"$maxKey":1},"b":{"$maxKey":1},"c":{"$maxKey":1}}`,
		`{"a": 1, "b": {"$maxKey": 1}}`:         `{"a":1,"b":{"$maxKey":1},"c":{"$minKey":1}}`,
		`{"a": {"$maxKey": 1}, "b": 1, "c": 1}`: `{"a":{"$maxKey":1},"b":1,"c":1}`,
		`{"a": 1}`:                              `{"a":1,"b":{"$minKey":1},"c":{"$minKey":1}}`,
	} {
		var got bson.D
		if err := bson.Unmarshal(key.ExtendBound(raw(bound)), &got); err != nil {
			t.Fatal(err)
		}
		if s := show(got); s != want {
			t.Errorf("%s: %s, want %s", bound, s, want)
		}
	}
}

// A message that disables a collection's migrations and arrives after its run was undone changes nothing; otherwise the chunks
// could never move again. Likewise a commit message.
func TestOvertakenMessagesChangeNothing(t *testing.T) {
	c := newTestCluster(t, 2)
	var refuse atomic.Bool
	c.refusesBlock("shard1", &refuse)
	c.refinable(20)
	refuse.Store(true)
	if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString("alwaysOn"), value.Doc(value.F("phase", value.NewString("undo")))); err != nil {
		t.Fatal(err)
	}
	done := make(chan bson.M, 1)
	go func() { done <- c.raw("admin", refineToKG) }()
	if err := c.points["shard0"].Register(hangBeforePhase).WaitEntered(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	docs := c.admin(c.shards["shard0"], bson.D{{Key: "find", Value: "system.sharding_ddl_coordinators"}, {Key: "$db", Value: "config"}})["cursor"]
	stored := get(docs, "firstBatch").(bson.A)[0]
	run := msg.RunOf{Coordinator: "shard0", ID: [16]byte(get(stored, "id").(bson.Binary).Data)}
	entry := c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0]
	uuid, epoch := [16]byte(get(entry, "uuid").(bson.Binary).Data), [12]byte(get(entry, "lastmodEpoch").(bson.ObjectID))
	key, _ := bson.Marshal(bson.D{{Key: "k", Value: 1}, {Key: "g", Value: 1}})
	overtaken := func(when string) {
		t.Helper()
		for _, m := range []msg.Message{&msg.SetAllowMigrations{NS: "db.c", UUID: uuid, Run: run}, &msg.CommitRefine{NS: "db.c", UUID: uuid, Key: key, Epoch: epoch, NewEpoch: cluster.NewObjectID(), Run: run}} {
			if _, err := cluster.Run(context.Background(), c.confP, msg.Doc(m)); mongoerr.CodeOf(err) != mongoerr.StaleEpoch {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
	overtaken("while it is undone")
	if _, err := c.points["shard0"].Configure(hangBeforePhase, value.NewString("off"), nil); err != nil {
		t.Fatal(err)
	}
	if m := <-done; m["code"] != int32(mongoerr.Unauthorized) {
		t.Errorf("%v", m)
	}
	c.leftOver()
	overtaken("behind its end")
	c.expect(get(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0], "key"), `{"k":1}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 5}, "to": "shard1"}`)
}

// The config server has written the new key, and no chunk yet: routers read the table by the new key, and the refinement ends
// as soon as it can.
func TestRefinedTableIsReadByItsNewKey(t *testing.T) {
	c := newTestCluster(t, 2)
	c.refinable(20)
	var refuse atomic.Bool
	refuse.Store(true)
	m := configsvr.New(cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
		if string(m.CommandName()) == "_writeTogether" && value.Lookup(m.Body, "_writeTogether").Str() == "config.chunks" && refuse.Load() {
			return dst, mongoerr.New(mongoerr.HostUnreachable, "refused")
		}
		return c.conf.OwnPeer().Call(ctx, m, dst)
	}), cluster.NewRegistry(c.confP, c.router.Clock, c.dial), c.router.Clock, func() string { return "config:27019" })
	m.Register(c.conf.Service)
	if err := m.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan bson.M, 1)
	go func() { done <- c.raw("admin", refineToKG) }()
	c.until("the entry has the new key", func() bool {
		return show(get(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}}`)[0], "key")) == `{"k":1,"g":1}`
	})
	c.expect(get(get(c.all("config", `{"find": "chunks", "filter": {"min.k": 10}}`)[0], "min"), "g"), `null`)
	fresh := c.through()
	fresh.expect(len(fresh.all("db", `{"find": "c", "maxTimeMS": 100000}`)), `20`)
	info, err := fresh.r.Catalog.Collection(t.Context(), "db.c")
	if err != nil {
		t.Fatal(err)
	}
	for _, chunk := range info.Map.Overlapping(value.Values(info.Map.Key.GlobalMin()), value.Values(info.Map.Key.GlobalMax())) {
		if value.Count(chunk.Min) != 2 || value.Count(chunk.Max) != 2 {
			t.Errorf("a chunk from %s to %s", value.ShowDoc(chunk.Min), value.ShowDoc(chunk.Max))
		}
	}
	refuse.Store(false)
	c.expect((<-done)["ok"], `1.0`)
	c.leftOver()
	c.expect(c.all("config", `{"find": "chunks", "filter": {"min.g": {"$exists": false}}}`), `[]`)
}

// A coordinator whose writes are repeated although they were done writes one event for change streams.
func TestEventsAreToldOnce(t *testing.T) {
	c := newTestCluster(t, 2)
	c.refinable(20)
	s, _ := c.watch("c", bson.D{{Key: "showExpandedEvents", Value: true}}, bson.D{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "refineCollectionShardKey"}}}})
	var n atomic.Int64
	end := c.interceptDocs("shard0", func(_ *storage.UnitOfWork, commit func() (storage.Timestamp, error)) (storage.Timestamp, error) {
		ts, err := commit()
		if err == nil && n.Add(1)%2 == 1 {
			err = mongoerr.New(mongoerr.HostUnreachable, "the reply was lost")
		}
		return ts, err
	})
	c.run("admin", refineToKG)
	end()
	told := len(s.rest(1))
	if told != 1 || n.Load() < 8 {
		t.Errorf("%d events after %d commits", told, n.Load())
	}
}
