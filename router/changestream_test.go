package router_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// streamOf is a change stream through a router.
type streamOf struct {
	c     *testCluster
	db    string // "" is db
	coll  string
	id    int64
	token any
}

// cmd runs a command that has to succeed.
func (c *testCluster) cmd(db string, cmd bson.D) bson.M {
	c.t.Helper()
	js, err := bson.MarshalExtJSON(cmd, true, false)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.run(db, string(js))
}

func (c *testCluster) watch(coll string, spec bson.D, behind ...any) (*streamOf, bson.A) {
	c.t.Helper()
	pipeline := append(bson.A{bson.D{{Key: "$changeStream", Value: spec}}}, behind...)
	cur := c.cmd("db", bson.D{{Key: "aggregate", Value: coll}, {Key: "pipeline", Value: pipeline}, {Key: "cursor", Value: bson.D{}}})["cursor"].(bson.D)
	s := &streamOf{c: c, coll: coll}
	return s, s.take(cur, "firstBatch")
}

func (s *streamOf) take(cur bson.D, batch string) (out bson.A) {
	for _, e := range cur {
		switch e.Key {
		case "id":
			s.id = e.Value.(int64)
		case "postBatchResumeToken":
			s.token = e.Value
		case batch:
			out = e.Value.(bson.A)
		}
	}
	return out
}

func (s *streamOf) more(ms int) bson.A {
	s.c.t.Helper()
	r := s.c.cmd(cmp.Or(s.db, "db"), bson.D{{Key: "getMore", Value: s.id}, {Key: "collection", Value: s.coll}, {Key: "maxTimeMS", Value: ms}})
	return s.take(r["cursor"].(bson.D), "nextBatch")
}

// rest reads until n events have arrived, and then once more for any others.
func (s *streamOf) rest(n int) (out bson.A) {
	s.c.t.Helper()
	s.c.until(fmt.Sprintf("the stream has %d events", n), func() bool {
		out = append(out, s.more(100)...)
		return len(out) >= n
	})
	return append(out, s.more(100)...)
}

func field(d any, name string) any {
	for _, e := range d.(bson.D) {
		if e.Key == name {
			return e.Value
		}
	}
	return nil
}

// TestReplayedStreamGivesTheCollection writes at random to a sharded collection whose chunks move, while a stream is resumed
// at random: replaying its events must result in the documents of the collection, and its tokens must ascend.
func TestReplayedStreamGivesTheCollection(t *testing.T) {
	c := newTestCluster(t, 3)
	c.cmd("admin", bson.D{{Key: "shardCollection", Value: "db.s"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
	c.cmd("admin", bson.D{{Key: "split", Value: "db.s"}, {Key: "middle", Value: bson.D{{Key: "k", Value: 50}}}})
	c.cmd("admin", bson.D{{Key: "moveChunk", Value: "db.s"}, {Key: "find", Value: bson.D{{Key: "k", Value: 70}}}, {Key: "to", Value: "shard1"}, {Key: "_waitForDelete", Value: true}})
	s, first := c.watch("s", bson.D{{Key: "fullDocument", Value: "updateLookup"}})
	if len(first) != 0 {
		t.Fatalf("a stream that begins now has %v", first)
	}
	const seed = 7
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, seed))
	replayed := map[int32]bson.D{}
	last, events := "", 0
	apply := func(batch bson.A) {
		for _, e := range batch {
			token := field(field(e, "_id"), "_data").(string)
			if token <= last {
				t.Fatalf("the token %s follows %s", token, last)
			}
			last = token
			events++
			id := field(field(e, "documentKey"), "_id").(int32)
			if field(field(e, "documentKey"), "k") == nil {
				t.Errorf("the documentKey of %v has no shard key", e)
			}
			switch field(e, "operationType") {
			case "insert", "replace":
				replayed[id] = field(e, "fullDocument").(bson.D)
			case "update":
				n := field(field(field(e, "updateDescription"), "updatedFields"), "n")
				replayed[id] = bson.D{{Key: "_id", Value: id}, {Key: "k", Value: field(replayed[id], "k")}, {Key: "n", Value: n}}
			case "delete":
				if replayed[id] == nil {
					t.Errorf("%d is deleted and did not exist", id)
				}
				delete(replayed, id)
			}
		}
	}
	want := 0
	for i := range 200 {
		id := int32(r.IntN(100))
		one := bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id}}
		switch r.IntN(4) {
		case 0, 1:
			u := bson.D{{Key: "q", Value: one}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: int32(i)}}}}}, {Key: "upsert", Value: true}}
			c.cmd("db", bson.D{{Key: "update", Value: "s"}, {Key: "updates", Value: bson.A{u}}})
			want++
		case 2:
			res := c.cmd("db", bson.D{{Key: "delete", Value: "s"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: one}, {Key: "limit", Value: 1}}}}})
			want += int(res["n"].(int32))
		case 3:
			if i%8 == 3 {
				to := fmt.Sprintf("shard%d", r.IntN(3))
				c.cmd("admin", bson.D{{Key: "moveChunk", Value: "db.s"}, {Key: "find", Value: bson.D{{Key: "k", Value: id}}}, {Key: "to", Value: to}, {Key: "_waitForDelete", Value: true}})
			}
		}
		switch r.IntN(12) {
		case 0:
			apply(s.more(20))
		case 1:
			s, first = c.watch("s", bson.D{{Key: "fullDocument", Value: "updateLookup"}, {Key: "resumeAfter", Value: s.token}})
			apply(first)
		}
	}
	for events < want {
		b := s.more(5000)
		if len(b) == 0 {
			t.Fatalf("%d events came of %d", events, want)
		}
		apply(b)
	}
	if events != want {
		t.Errorf("%d events of %d writes", events, want)
	}
	if b := s.more(50); len(b) != 0 {
		t.Errorf("one event too many: %v", b)
	}
	found := map[int32]bson.D{}
	cur := c.cmd("db", bson.D{{Key: "find", Value: "s"}, {Key: "batchSize", Value: 1000}})["cursor"].(bson.D)
	for _, d := range field(cur, "firstBatch").(bson.A) {
		found[field(d, "_id").(int32)] = d.(bson.D)
	}
	if !reflect.DeepEqual(found, replayed) {
		t.Errorf("replaying gives %v, the collection has %v", replayed, found)
	}
}

// TestImagesThroughARouter watches a sharded collection with images while its documents are changed and moved: every change
// has its image, and migrations create none.
func TestImagesThroughARouter(t *testing.T) {
	c := newTestCluster(t, 2)
	on := bson.D{{Key: "enabled", Value: true}}
	c.cmd("db", bson.D{{Key: "create", Value: "s"}, {Key: "changeStreamPreAndPostImages", Value: on}})
	c.cmd("admin", bson.D{{Key: "shardCollection", Value: "db.s"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
	c.cmd("admin", bson.D{{Key: "split", Value: "db.s"}, {Key: "middle", Value: bson.D{{Key: "k", Value: 5}}}})
	s, _ := c.watch("s", bson.D{{Key: "fullDocument", Value: "required"}, {Key: "fullDocumentBeforeChange", Value: "required"}})
	var docs bson.A
	for i := range int32(10) {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "n", Value: int32(0)}})
	}
	c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: docs}})
	all := bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int32(1)}}}}}, {Key: "multi", Value: true}}
	const rounds = 3
	for i := range rounds {
		c.cmd("db", bson.D{{Key: "update", Value: "s"}, {Key: "updates", Value: bson.A{all}}})
		for _, k := range []int{1, 7} {
			c.cmd("admin", bson.D{{Key: "moveChunk", Value: "db.s"}, {Key: "find", Value: bson.D{{Key: "k", Value: k}}}, {Key: "to", Value: fmt.Sprintf("shard%d", i%2)}, {Key: "_waitForDelete", Value: true}})
		}
	}
	seen := map[int32]int32{}
	for events := 0; events < 10*(rounds+1); {
		b := s.more(5000)
		if len(b) == 0 {
			t.Fatalf("only %d events came", events)
		}
		for _, e := range b {
			events++
			id := field(field(e, "documentKey"), "_id").(int32)
			if field(e, "operationType") == "insert" {
				continue
			}
			before, after := field(field(e, "fullDocumentBeforeChange"), "n"), field(field(e, "fullDocument"), "n")
			if before != seen[id] || after != seen[id]+1 {
				t.Errorf("%d goes from %v to %v, it was %d", id, before, after, seen[id])
			}
			seen[id]++
		}
	}
	stored := int32(0)
	for _, shard := range c.shards {
		stored += c.admin(shard, bson.D{{Key: "count", Value: "system.preimages"}, {Key: "query", Value: bson.D{}}, {Key: "$db", Value: "config"}})["n"].(int32)
	}
	if stored != 10*rounds {
		t.Errorf("the shards have %d images of %d updates", stored, 10*rounds)
	}
}

// TestLargeBatchesThroughARouter resumes after each batch, with events that do not all fit in one: none is lost.
func TestLargeBatchesThroughARouter(t *testing.T) {
	c := newTestCluster(t, 2)
	c.cmd("admin", bson.D{{Key: "shardCollection", Value: "db.s"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
	c.cmd("admin", bson.D{{Key: "split", Value: "db.s"}, {Key: "middle", Value: bson.D{{Key: "k", Value: 1}}}})
	for k := range 2 {
		c.cmd("admin", bson.D{{Key: "moveChunk", Value: "db.s"}, {Key: "find", Value: bson.D{{Key: "k", Value: k}}}, {Key: "to", Value: fmt.Sprintf("shard%d", k)}, {Key: "_waitForDelete", Value: true}})
	}
	s, _ := c.watch("s", bson.D{})
	const n = 4
	for i := range int32(n) {
		doc := bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i % 2}, {Key: "pad", Value: strings.Repeat("x", 7<<20)}}
		c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{doc}}})
	}
	next := int32(0)
	for rounds := 0; next < n && rounds < 3*n; rounds++ {
		b := s.more(2000)
		for {
			for _, e := range b {
				if id := field(field(e, "documentKey"), "_id"); id != next {
					t.Fatalf("event %d is of %v", next, id)
				}
				next++
			}
			if len(b) == 0 || next == n {
				break
			}
			s, b = c.watch("s", bson.D{{Key: "resumeAfter", Value: s.token}})
		}
	}
	if next != n {
		t.Errorf("%d events came of %d", next, n)
	}
}

// A change of a collection or a database on all shards is one event of the cluster; each shard used to report one.
func TestOneEventOfWhatHappensOnAllShards(t *testing.T) {
	c := newTestCluster(t, 3)
	spread := func(coll string) {
		ns := "db." + coll
		c.cmd("admin", bson.D{{Key: "shardCollection", Value: ns}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
		for k := range 3 {
			if k > 0 {
				c.cmd("admin", bson.D{{Key: "split", Value: ns}, {Key: "middle", Value: bson.D{{Key: "k", Value: k}}}})
			}
			c.cmd("admin", bson.D{{Key: "moveChunk", Value: ns}, {Key: "find", Value: bson.D{{Key: "k", Value: k}}}, {Key: "to", Value: fmt.Sprintf("shard%d", k)}, {Key: "_waitForDelete", Value: true}})
		}
	}
	spread("s")
	spread("target")
	cur := c.cmd("db", bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: bson.D{}}}}}, {Key: "cursor", Value: bson.D{}}})["cursor"].(bson.D)
	s := &streamOf{c: c, coll: "$cmd.aggregate"}
	s.take(cur, "firstBatch")
	c.cmd("admin", bson.D{{Key: "renameCollection", Value: "db.s"}, {Key: "to", Value: "db.target"}, {Key: "dropTarget", Value: true}})
	c.cmd("db", bson.D{{Key: "drop", Value: "target"}})
	spread("u")
	c.cmd("db", bson.D{{Key: "dropDatabase", Value: 1}})
	var got []string
	for tries := 0; tries < 20 && (len(got) == 0 || got[len(got)-1] != "invalidate"); tries++ {
		for _, e := range s.more(1000) {
			name := field(e, "operationType").(string)
			if ns := field(e, "ns"); ns != nil && field(ns, "coll") != nil {
				name += " " + field(ns, "coll").(string)
			}
			got = append(got, name)
		}
	}
	if want := "rename s, drop target, drop u, dropDatabase, invalidate"; strings.Join(got, ", ") != want {
		t.Errorf("events %q, want %q", strings.Join(got, ", "), want)
	}
}

// The events of the sharding catalog's operations, for streams that ask for them: one for the whole cluster.
func TestEventsOfTheShardingCatalog(t *testing.T) {
	c := newTestCluster(t, 2)
	c.cmd("admin", bson.D{{Key: "enableSharding", Value: "db"}, {Key: "primaryShard", Value: "shard0"}})
	spec := bson.D{{Key: "showExpandedEvents", Value: true}, {Key: "showSystemEvents", Value: true}}
	cur := c.cmd("db", bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: spec}}}}, {Key: "cursor", Value: bson.D{}}})["cursor"].(bson.D)
	s := &streamOf{c: c, coll: "$cmd.aggregate"}
	s.take(cur, "firstBatch")
	c.cmd("admin", bson.D{{Key: "shardCollection", Value: "db.s"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "unique", Value: true}})
	c.cmd("admin", bson.D{{Key: "split", Value: "db.s"}, {Key: "middle", Value: bson.D{{Key: "k", Value: 5}}}})
	for _, k := range []int{1, 7} {
		c.cmd("admin", bson.D{{Key: "moveChunk", Value: "db.s"}, {Key: "find", Value: bson.D{{Key: "k", Value: k}}}, {Key: "to", Value: "shard1"}, {Key: "_waitForDelete", Value: true}})
	}
	c.cmd("db", bson.D{{Key: "drop", Value: "s"}})
	var got []string
	for tries := 0; tries < 20 && (len(got) == 0 || got[len(got)-1] != "drop"); tries++ {
		for _, e := range s.more(1000) {
			kind := field(e, "operationType").(string)
			got = append(got, kind)
			d := field(e, "operationDescription")
			if kind != "drop" && field(e, "collectionUUID") == nil {
				t.Errorf("%s without collectionUUID", kind)
			}
			switch kind {
			case "shardCollection":
				if want := (bson.D{{Key: "shardKey", Value: bson.D{{Key: "k", Value: int32(1)}}}, {Key: "unique", Value: true}, {Key: "numInitialChunks", Value: int64(0)}, {Key: "presplitHashedZones", Value: false}}); !reflect.DeepEqual(d, want) {
					t.Errorf("shardCollection: %v", d)
				}
			case "migrateChunkToNewShard":
				if field(d, "fromShardId") != "shard0" || field(d, "toShardId") != "shard1" {
					t.Errorf("%s: %v", kind, d)
				}
			case "migrateLastChunkFromShard":
				if field(d, "shardId") != "shard0" {
					t.Errorf("%s: %v", kind, d)
				}
			}
		}
	}
	if want := "create createIndexes shardCollection migrateChunkToNewShard migrateLastChunkFromShard drop"; strings.Join(got, " ") != want {
		t.Errorf("events %q, want %q", strings.Join(got, " "), want)
	}
}

// A $match after $changeStream is applied on the shards; all events used to go to the router. Its result has to be the same when
// documents are looked up on the router, when the stream is resumed after an event, and when the collection is dropped.
func TestMatchOfAStreamRunsOnTheShards(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20) // k from 0 to 19, from 10 on on shard1
	sent := func() (n int64) {
		for _, id := range []string{"shard0", "shard1"} {
			m := c.admin(c.shards[id], bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}})
			n += get(get(m["metrics"], "document"), "returned").(int64)
		}
		return n
	}
	gets := func(s *streamOf, first bson.A, n int) (got []string) {
		t.Helper()
		events := first
		for tries := 0; tries < 20 && len(events) < n && s.id != 0; tries++ {
			events = append(events, s.more(500)...)
		}
		for _, e := range events {
			what := field(e, "operationType").(string)
			if key := field(e, "documentKey"); key != nil {
				what += fmt.Sprint(" ", field(key, "k"))
			}
			got = append(got, what)
		}
		return got
	}
	even := bson.D{{Key: "$match", Value: bson.D{{Key: "updateDescription.updatedFields.v", Value: bson.D{{Key: "$mod", Value: bson.A{10, 0}}}}, {Key: "fullDocument.w", Value: 1}}}}
	s, first := c.watch("c", bson.D{{Key: "fullDocument", Value: "updateLookup"}}, even)
	before := sent()
	for k := range 20 {
		c.cmd("db", bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "k", Value: k}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: k}, {Key: "w", Value: k / 10}}}}}}}}})
	}
	if got := gets(s, first, 1); fmt.Sprint(got) != "[update 10]" {
		t.Errorf("events: %v", got)
	}
	if n := sent() - before; n > 4 {
		t.Errorf("the shards sent %d documents for 20 updates, of which they could tell that 2 are asked for", n)
	}

	// Resumed after an event that the stream's $match filters out.
	all, _ := c.watch("c", bson.D{})
	c.cmd("db", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: 3}}}}})
	c.cmd("db", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: 14}}}}})
	var token any
	for tries := 0; tries < 20 && token == nil; tries++ {
		for _, e := range all.more(500) {
			if token == nil && field(e, "operationType") == "insert" {
				token = field(e, "_id")
			}
		}
	}
	s, first = c.watch("c", bson.D{{Key: "resumeAfter", Value: token}}, bson.D{{Key: "$match", Value: bson.D{{Key: "fullDocument.k", Value: bson.D{{Key: "$gt", Value: 10}}}}}})
	if got := gets(s, first, 1); fmt.Sprint(got) != "[insert 14]" {
		t.Errorf("after the token: %v", got)
	}
	c.cmd("db", bson.D{{Key: "drop", Value: "c"}})
	if got := gets(s, nil, 1); len(got) > 0 || s.id != 0 {
		t.Errorf("at the end: %v", got)
	}
}

// An error after which a change stream can be resumed has the label for that, also when a fail point raised it on the router;
// the stream ends, and errors of plain cursors have no such label.
func TestFailPointOfGetMoreLabelsStreams(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	fail := func(code int) {
		mode := value.NewDocument(value.Doc(value.F("times", value.NewInt32(1))))
		if _, err := c.r.Fail.Configure("failGetMoreAfterCursorCheckout", mode, value.Doc(value.F("errorCode", value.NewInt32(int32(code))))); err != nil {
			t.Fatal(err)
		}
	}
	for code, resumable := range map[int]bool{int(mongoerr.HostUnreachable): true, int(mongoerr.ExceededTimeLimit): true, int(mongoerr.Interrupted): false} {
		s, _ := c.watch("c", bson.D{})
		fail(code)
		r := c.raw("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, s.id))
		if labels := fmt.Sprint(r["errorLabels"]); r["code"] != int32(code) || strings.Contains(labels, "ResumableChangeStreamError") != resumable {
			t.Errorf("%d: %v", code, r)
		}
		if r := c.raw("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, s.id)); r["code"] != int32(mongoerr.CursorNotFound) {
			t.Errorf("%d: the stream goes on: %v", code, r)
		}
	}
	cur := c.run("db", `{"find": "c", "batchSize": 2}`)["cursor"]
	fail(int(mongoerr.HostUnreachable))
	if r := c.raw("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, get(cur, "id"))); r["code"] != int32(mongoerr.HostUnreachable) || r["errorLabels"] != nil {
		t.Errorf("a plain cursor: %v", r)
	}
}

// A shard that holds an event back reports its position only to that event's stream: each event of one stream used to make
// all others reply and ask again.
func TestOneStreamIsAskedWhereItIs(t *testing.T) {
	c := newTestCluster(t, 2)
	c.cmd("admin", bson.D{{Key: "shardCollection", Value: "db.s"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
	c.cmd("admin", bson.D{{Key: "split", Value: "db.s"}, {Key: "middle", Value: bson.D{{Key: "k", Value: 50}}}})
	c.cmd("admin", bson.D{{Key: "moveChunk", Value: "db.s"}, {Key: "find", Value: bson.D{{Key: "k", Value: 70}}}, {Key: "to", Value: "shard1"}})
	const others, events = 20, 30
	var waiting sync.WaitGroup
	for range others {
		s, _ := c.watch("s", bson.D{}, bson.D{{Key: "$match", Value: bson.D{{Key: "fullDocument.to", Value: "nobody"}}}})
		s.more(1)
		waiting.Go(func() { s.more(5000) })
	}
	one, _ := c.watch("s", bson.D{}, bson.D{{Key: "$match", Value: bson.D{{Key: "fullDocument.to", Value: "one"}}}})
	asked := func() (n int64) {
		for _, shard := range c.shards {
			m := c.admin(shard, bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}})
			n += fieldAt(m, "metrics.commands.getMore.total").(int64)
		}
		return n
	}
	before := asked()
	for i := range events {
		c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: i}, {Key: "k", Value: 10 + 60*(i%2)}, {Key: "to", Value: "one"}}}}})
		for n := 0; n == 0; {
			n = len(one.more(5000))
		}
	}
	if n := asked() - before; n > 6*events+4*others {
		t.Errorf("%d requests to the shards for %d events of one stream beside %d others", n, events, others)
	}
	c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: "last"}, {Key: "k", Value: 1}, {Key: "to", Value: "nobody"}}}}})
	waiting.Wait()
}

// Events of migrations are shown only on a shard itself.
func TestRoutersShowNoEventsOfMigrations(t *testing.T) {
	c := newTestCluster(t, 1)
	watch := `{"aggregate": "c", "pipeline": [{"$changeStream": {"showMigrationEvents": true}}], "cursor": {}}`
	if m := c.as(command.NewClient(9, "test", "test", nil), "d", watch); m["code"] != int32(31123) {
		t.Errorf("%v", m)
	}
}

// The shards of a collection each log its collMod, sometimes at the same time. A stream that is resumed after any of the events returns those
// that followed it, through another router, too, and none twice.
func TestStreamResumesBetweenTheEventsOfOneTime(t *testing.T) {
	c := newTestCluster(t, 2)
	c.twoShards()
	s, _ := c.watch("s", bson.D{{Key: "showExpandedEvents", Value: true}})
	tied := func(events bson.A) (at int) { // the index of an event with the time of the one before; 0 for none
		for i := 1; i < len(events); i++ {
			if field(events[i], "clusterTime") == field(events[i-1], "clusterTime") {
				return i
			}
		}
		return 0
	}
	var all bson.A
	for round := 0; round < 500 && tied(all) == 0; round++ {
		c.cmd("db", bson.D{{Key: "collMod", Value: "s"}, {Key: "validationLevel", Value: []string{"strict", "moderate"}[round%2]}})
		all = s.rest(2)
	}
	at := tied(all)
	if at == 0 {
		t.Fatal("no two events have one time")
	}
	tokens := func(events bson.A) (out []string) {
		for _, e := range events {
			out = append(out, tokenOf(e))
		}
		return out
	}
	other := c.through()
	for i := range all {
		through := []*testCluster{c, other}[i%2]
		again, head := through.watch("s", bson.D{{Key: "showExpandedEvents", Value: true}, {Key: "resumeAfter", Value: field(all[i], "_id")}})
		want := tokens(all[i+1:])
		if len(head) < len(want) {
			head = append(head, again.rest(len(want)-len(head))...)
		}
		if got := tokens(append(head, again.more(1)...)); !slices.Equal(got, want) {
			t.Errorf("after event %d of %d come %d, want %d", i, len(all), len(got), len(want))
		}
		through.cmd("db", bson.D{{Key: "killCursors", Value: "s"}, {Key: "cursors", Value: bson.A{again.id}}})
	}
}
