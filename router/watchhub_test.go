package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// twoShards makes db.s sharded by k: keys below 50 are on shard0, the rest on shard1.
func (c *testCluster) twoShards() {
	c.t.Helper()
	c.cmd("admin", bson.D{{Key: "enableSharding", Value: "db"}, {Key: "primaryShard", Value: "shard0"}})
	c.cmd("admin", bson.D{{Key: "shardCollection", Value: "db.s"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
	c.cmd("admin", bson.D{{Key: "split", Value: "db.s"}, {Key: "middle", Value: bson.D{{Key: "k", Value: 50}}}})
	c.cmd("admin", bson.D{{Key: "moveChunk", Value: "db.s"}, {Key: "find", Value: bson.D{{Key: "k", Value: 70}}}, {Key: "to", Value: "shard1"}, {Key: "_waitForDelete", Value: true}})
}

// cursorsOnShards counts the cursors that clients and routers have open on the shards.
func (c *testCluster) cursorsOnShards() (n int) {
	c.t.Helper()
	for _, p := range c.shards {
		m := c.admin(p, bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}})
		n += int(fieldAt(m, "metrics.cursor.open.total").(int64))
	}
	return n
}

// Streams that differ in what they match share their cursors on the shards; each used to have its own. Those that match one value
// get its events, and the last one that is closed closes the shards' cursors.
func TestStreamsShareTheShardsCursors(t *testing.T) {
	c := newTestCluster(t, 2)
	c.twoShards()
	before := c.cursorsOnShards()
	const n = 40
	streams := make([]*streamOf, n)
	for i := range streams {
		streams[i], _ = c.watch("s", bson.D{}, bson.D{{Key: "$match", Value: bson.D{{Key: "fullDocument.to", Value: i}}}})
	}
	if got := c.cursorsOnShards() - before; got > 20 {
		t.Errorf("%d streams have %d cursors on two shards", n, got)
	}
	for k := range 2 * n {
		c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: k}, {Key: "k", Value: k}, {Key: "to", Value: k % n}}}}})
	}
	for i, s := range streams {
		var got []int32
		for tries := 0; len(got) < 2 && tries < 20; tries++ {
			for _, e := range s.more(1000) {
				got = append(got, field(field(e, "documentKey"), "_id").(int32))
			}
		}
		if want := []int32{int32(i), int32(i + n)}; !reflect.DeepEqual(got, want) {
			t.Errorf("stream %d has %v, want %v", i, got, want)
		}
	}
	for _, s := range streams {
		c.cmd("db", bson.D{{Key: "killCursors", Value: "s"}, {Key: "cursors", Value: bson.A{s.id}}})
	}
	if got := c.cursorsOnShards() - before; got != 0 {
		t.Errorf("%d cursors are left on the shards", got)
	}
}

// sharedStream is one of many streams under test, with what it has to return.
type sharedStream struct {
	*streamOf
	spec   bson.D
	behind []any
	is     func(e bson.D) bool
	start  int // of the events of the reference
	got    []string
}

func tokenOf(e any) string { return field(field(e, "_id"), "_data").(string) }

// Many streams of one collection, opened and resumed at random, whose clients read or pause for long, have the same events as a
// stream by itself, in the same order, from where they began: whether they share a window, fall behind it, or catch up with it, while
// chunks move.
func TestSharedStreamsHaveEveryEvent(t *testing.T) {
	t.Parallel()
	for _, window := range []int{4 << 10, 16 << 20} {
		t.Run(fmt.Sprint(window), func(t *testing.T) { sharedStreams(t, window) })
	}
}

func sharedStreams(t *testing.T, window int) {
	c := newTestCluster(t, 2)
	c.twoShards()
	other := c.through()
	for _, x := range []*testCluster{c, other} {
		x.r.SetStreamWindow(window)
	}
	const seed = 11
	r := rand.New(rand.NewPCG(seed, uint64(window)))
	at := c.clock.ClusterTime()
	var all []*sharedStream
	written := 0
	open := func() {
		s := &sharedStream{spec: bson.D{}, start: written, is: func(bson.D) bool { return true }}
		switch r.IntN(4) {
		case 0:
			s.spec = bson.D{{Key: "fullDocument", Value: "updateLookup"}}
		case 1:
			v := int32(r.IntN(20))
			s.behind = []any{bson.D{{Key: "$match", Value: bson.D{{Key: "fullDocument.to", Value: v}}}}}
			s.is = func(e bson.D) bool {
				return field(e, "operationType") == "insert" && field(field(e, "fullDocument"), "to") == v
			}
		case 2:
			v := int32(r.IntN(3))
			s.behind = []any{bson.D{{Key: "$match", Value: bson.D{{Key: "documentKey._id", Value: bson.D{{Key: "$mod", Value: bson.A{3, v}}}}}}}}
			s.is = func(e bson.D) bool { return field(field(e, "documentKey"), "_id").(int32)%3 == v }
		}
		x := c
		if r.IntN(3) == 0 {
			x = other
		}
		// Starts now, whatever the clock of the router says: everything before has been acknowledged.
		s.streamOf, _ = x.watch("s", s.spec, s.behind...)
		all = append(all, s)
	}
	take := func(s *sharedStream, batch bson.A) {
		t.Helper()
		for _, e := range batch {
			token := tokenOf(e)
			if n := len(s.got); n > 0 && token <= s.got[n-1] {
				t.Fatalf("the token %s comes behind %s", token, s.got[n-1])
			}
			s.got = append(s.got, token)
		}
	}
	for step := range 400 {
		id := int32(r.IntN(100))
		one := bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id}}
		switch r.IntN(8) {
		case 0, 1, 2:
			if c.raw("db", fmt.Sprintf(`{"insert": "s", "documents": [{"_id": %d, "k": %d, "to": %d, "pad": %q}]}`, id, id, r.IntN(20), strings.Repeat("x", r.IntN(500))))["n"] == int32(1) {
				written++
			}
		case 3:
			u := bson.D{{Key: "q", Value: one}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: int32(step)}}}}}}
			written += int(c.cmd("db", bson.D{{Key: "update", Value: "s"}, {Key: "updates", Value: bson.A{u}}})["nModified"].(int32))
		case 4:
			written += int(c.cmd("db", bson.D{{Key: "delete", Value: "s"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: one}, {Key: "limit", Value: 1}}}}})["n"].(int32))
		case 5:
			if len(all) < 30 {
				open()
			}
		default:
			if len(all) == 0 {
				break
			}
			s := all[r.IntN(len(all))]
			if r.IntN(3) > 0 {
				take(s, s.more(1+r.IntN(30)))
				break
			}
			x := c
			if r.IntN(2) == 0 {
				x = other
			}
			was := s.id
			s.c.cmd("db", bson.D{{Key: "killCursors", Value: "s"}, {Key: "cursors", Value: bson.A{was}}})
			next, first := x.watch("s", append(bson.D{{Key: "resumeAfter", Value: s.token}}, s.spec...), s.behind...)
			s.streamOf = next
			take(s, first)
		}
		if step%97 == 50 {
			to := fmt.Sprintf("shard%d", r.IntN(2))
			c.cmd("admin", bson.D{{Key: "moveChunk", Value: "db.s"}, {Key: "find", Value: bson.D{{Key: "k", Value: id}}}, {Key: "to", Value: to}, {Key: "_waitForDelete", Value: true}})
		}
	}
	// The reference shares nothing with the other streams, as it has a read preference.
	ref := &streamOf{c: c, coll: "s"}
	cur := c.cmd("db", bson.D{{Key: "aggregate", Value: "s"}, {Key: "cursor", Value: bson.D{}}, {Key: "$readPreference", Value: bson.D{{Key: "mode", Value: "primaryPreferred"}}},
		{Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: bson.D{{Key: "startAtOperationTime", Value: bson.Timestamp{T: uint32(at >> 32), I: uint32(at)}}}}}}}})["cursor"].(bson.D)
	reference := ref.take(cur, "firstBatch")
	for tries := 0; len(reference) < written && tries < 20; tries++ {
		reference = append(reference, ref.more(1000)...)
	}
	if len(reference) != written {
		t.Fatalf("the reference has %d events of %d", len(reference), written)
	}
	for i, s := range all {
		var want []string
		for _, e := range reference[s.start:] {
			if s.is(e.(bson.D)) {
				want = append(want, tokenOf(e))
			}
		}
		for tries := 0; len(s.got) < len(want) && tries < 20; tries++ {
			take(s, s.more(500))
		}
		take(s, s.more(20))
		if !reflect.DeepEqual(s.got, want) && len(s.got)+len(want) > 0 {
			t.Errorf("stream %d (%v %v) from %d on has %d events, want %d", i, s.spec, s.behind, s.start, len(s.got), len(want))
		}
	}
}

// The fragments of an event that did not fit into a client's batch are still to come: the token of the batch must order before them.
func TestTokenOfABatchStandsBeforeTheFragmentsLeft(t *testing.T) {
	c := newTestCluster(t, 2)
	c.twoShards()
	c.cmd("db", bson.D{{Key: "collMod", Value: "s"}, {Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: true}}}})
	c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}, {Key: "pad", Value: strings.Repeat("a", 9<<20)}}}}})
	spec, split := bson.D{{Key: "fullDocumentBeforeChange", Value: "required"}}, bson.D{{Key: "$changeStreamSplitLargeEvent", Value: bson.D{}}}
	s, _ := c.watch("s", spec, split)
	c.cmd("db", bson.D{{Key: "update", Value: "s"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}}},
		{Key: "u", Value: bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: 1}, {Key: "pad", Value: strings.Repeat("b", 9<<20)}}}}}}})
	var first bson.A
	for tries := 0; len(first) == 0 && tries < 20; tries++ {
		r := c.cmd("db", bson.D{{Key: "getMore", Value: s.id}, {Key: "collection", Value: "s"}, {Key: "batchSize", Value: 1}, {Key: "maxTimeMS", Value: 1000}})
		first = s.take(r["cursor"].(bson.D), "nextBatch")
	}
	if len(first) != 1 || field(field(first[0], "splitEvent"), "fragment") != int32(1) {
		t.Fatalf("the first batch has %d events", len(first))
	}
	rest, batch := c.watch("s", append(bson.D{{Key: "resumeAfter", Value: s.token}}, spec...), split)
	for tries := 0; len(batch) == 0 && tries < 20; tries++ {
		batch = rest.more(1000)
	}
	if len(batch) == 0 || field(field(batch[0], "splitEvent"), "fragment") != int32(2) {
		t.Errorf("resumed at the token of the batch: %d events", len(batch))
	}
}

// A stream continues over a movePrimary of its database: no event is missing, duplicated, or caused by the copying; the movePrimary has an
// event of its own if the stream asks for it.
func TestStreamsOverAMovePrimary(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fillDatabase()
	onDB := func(spec bson.D) *streamOf {
		s := &streamOf{c: c, coll: "$cmd.aggregate"}
		s.take(c.cmd("db", bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: spec}}}}, {Key: "cursor", Value: bson.D{}}})["cursor"].(bson.D), "firstBatch")
		return s
	}
	plain, _ := c.watch("plain", bson.D{})
	db, expanded := onDB(bson.D{}), onDB(bson.D{{Key: "showExpandedEvents", Value: true}})
	var want []string
	for i, to := range []string{"shard1", "shard0", "shard1"} {
		for k := range 5 {
			id := 10000 + 10*i + k
			c.cmd("db", bson.D{{Key: "insert", Value: "plain"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id}}}}})
			want = append(want, fmt.Sprint("insert ", id))
		}
		if i == 1 { // another primary takes over after the event
			if m := c.atPhase("shard1", "clean", "admin", fmt.Sprintf(`{"movePrimary": "db", "to": %q}`, to)); m["ok"] != 1.0 && m["code"] != int32(mongoerr.HostUnreachable) {
				t.Errorf("%v", m)
			}
		}
		c.run("admin", fmt.Sprintf(`{"movePrimary": "db", "to": %q, "maxTimeMS": 100000}`, to))
		c.leftOver()
	}
	c.cmd("db", bson.D{{Key: "drop", Value: "plain"}})
	want = append(want, "drop plain")
	collect := func(s *streamOf, last string) (got []string) {
		for tries := 0; tries < 40 && s.id != 0 && (len(got) == 0 || got[len(got)-1] != last); tries++ {
			for _, e := range s.more(500) {
				kind := field(e, "operationType").(string)
				switch kind {
				case "insert":
					kind += fmt.Sprint(" ", field(field(e, "documentKey"), "_id"))
				case "drop":
					kind += " " + field(field(e, "ns"), "coll").(string)
				case "movePrimary":
					d := field(e, "operationDescription")
					kind += fmt.Sprint(" ", field(field(e, "ns"), "db"), " ", field(d, "from"), " ", field(d, "to"))
				}
				got = append(got, kind)
			}
		}
		return got
	}
	if got := collect(plain, "invalidate"); !reflect.DeepEqual(got, append(want[:len(want):len(want)], "invalidate")) {
		t.Errorf("the stream of the collection has %v", got)
	}
	if got := collect(db, "drop plain"); !reflect.DeepEqual(got, want) {
		t.Errorf("the stream of the database has %v", got)
	}
	var full []string
	for i, w := range want {
		if i > 0 && i%5 == 0 {
			full = append(full, []string{"movePrimary db shard0 shard1", "movePrimary db shard1 shard0", "movePrimary db shard0 shard1"}[i/5-1])
		}
		full = append(full, w)
	}
	if got := collect(expanded, "drop plain"); !reflect.DeepEqual(got, full) {
		t.Errorf("the stream with showExpandedEvents has %v\nwant %v", got, full)
	}
}

// The events of a shard that joins while streams are open are in order among those of the other shards, from the first write on.
func TestStreamsIncludeAShardThatJoins(t *testing.T) {
	c := newTestCluster(t, 2)
	c.twoShards()
	s, _ := c.watch("s", bson.D{})
	s.more(1)
	third := c.opened(shardnode.Config{SetName: "shard2", Host: "shard2:27018"})
	if err := third.Initiate(context.Background()); err != nil {
		t.Fatal(err)
	}
	c.join("shard2", "shard2:27018", third)
	c.cmd("admin", bson.D{{Key: "moveChunk", Value: "db.s"}, {Key: "find", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "to", Value: "shard2"}, {Key: "_waitForDelete", Value: true}})
	last, n, written := "", 0, 0
	end := time.Now().Add(2500 * time.Millisecond)
	for time.Now().Before(end) {
		for _, k := range []int{1, 70} {
			c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: written}, {Key: "k", Value: k}}}}})
			n, written = n+1, written+1
		}
		for _, e := range s.more(5) {
			if token := tokenOf(e); token <= last {
				t.Fatalf("the token %s comes behind %s", token, last)
			} else {
				last = token
			}
			n--
		}
	}
	for tries := 0; n > 0 && tries < 20; tries++ {
		for _, e := range s.more(500) {
			if token := tokenOf(e); token <= last {
				t.Fatalf("the token %s comes behind %s", token, last)
			} else {
				last = token
			}
			n--
		}
	}
	if n != 0 {
		t.Errorf("%d events are missing", n)
	}
}

// Streams on a database that are ended by its drop, resumed after that, and opened on another router have the same events as a stream
// on the cluster by itself, whatever happens to the database's collections.
func TestSharedStreamsOverCatalogChanges(t *testing.T) {
	c := newTestCluster(t, 2)
	c.cmd("admin", bson.D{{Key: "enableSharding", Value: "db"}, {Key: "primaryShard", Value: "shard0"}})
	routers := []*testCluster{c, c.through()}
	const seed = 3
	r := rand.New(rand.NewPCG(seed, seed))
	at := c.clock.ClusterTime()
	open := func(x *testCluster, spec bson.D) (*streamOf, bson.A) {
		s := &streamOf{c: x, coll: "$cmd.aggregate"}
		cur := x.cmd("db", bson.D{{Key: "aggregate", Value: 1}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: spec}}}}, {Key: "cursor", Value: bson.D{}}})["cursor"].(bson.D)
		return s, s.take(cur, "firstBatch")
	}
	const n = 6
	var streams [n]*streamOf
	var got [n][]string
	var ended [n]any // the token of the invalidate, while the stream is not open again
	take := func(i int, batch bson.A) {
		for _, e := range batch {
			if field(e, "operationType") == "invalidate" {
				ended[i] = field(e, "_id")
				continue
			}
			got[i] = append(got[i], fmt.Sprint(field(e, "operationType"), " ", tokenOf(e)))
		}
	}
	read := func(i, ms int) {
		if ended[i] == nil && r.IntN(4) > 0 {
			take(i, streams[i].more(ms))
			return
		}
		if ended[i] == nil {
			c := streams[i].c
			c.cmd("db", bson.D{{Key: "killCursors", Value: "$cmd.aggregate"}, {Key: "cursors", Value: bson.A{streams[i].id}}})
		}
		var first bson.A
		if ended[i] != nil {
			streams[i], first = open(routers[r.IntN(2)], bson.D{{Key: "startAfter", Value: ended[i]}})
		} else {
			streams[i], first = open(routers[r.IntN(2)], bson.D{{Key: "resumeAfter", Value: streams[i].token}})
		}
		ended[i] = nil
		take(i, first)
	}
	for i := range streams {
		streams[i], _ = open(routers[i%2], bson.D{})
	}
	for range 250 {
		x, coll := routers[r.IntN(2)], []string{"a", "b"}[r.IntN(2)]
		switch r.IntN(14) {
		default:
			x.raw("db", fmt.Sprintf(`{"insert": %q, "documents": [{"k": %d}, {"k": %d}]}`, coll, r.IntN(100), r.IntN(100)))
		case 0:
			x.raw("db", fmt.Sprintf(`{"drop": %q}`, coll))
		case 1:
			x.raw("admin", `{"renameCollection": "db.a", "to": "db.b", "dropTarget": true}`)
		case 2:
			if r.IntN(3) == 0 {
				x.run("db", `{"dropDatabase": 1}`)
			}
		case 3:
			x.raw("admin", fmt.Sprintf(`{"shardCollection": "db.%s", "key": {"_id": "hashed"}}`, coll))
		case 4:
			x.raw("admin", fmt.Sprintf(`{"movePrimary": "db", "to": "shard%d"}`, r.IntN(2)))
		case 5:
			x.raw("admin", fmt.Sprintf(`{"moveChunk": "db.%s", "find": {"_id": %d}, "to": "shard%d"}`, coll, r.IntN(100), r.IntN(2)))
		case 6, 7, 8:
			read(r.IntN(n), 1+r.IntN(20))
		}
	}
	c.run("db", `{"insert": "last", "documents": [{"_id": 1}]}`)
	ref := &streamOf{c: c, coll: "$cmd.aggregate"}
	start := bson.Timestamp{T: uint32(at >> 32), I: uint32(at) + 1}
	cur := c.cmd("admin", bson.D{{Key: "aggregate", Value: 1}, {Key: "cursor", Value: bson.D{}}, {Key: "$readPreference", Value: bson.D{{Key: "mode", Value: "primaryPreferred"}}},
		{Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: bson.D{{Key: "allChangesForCluster", Value: true}, {Key: "startAtOperationTime", Value: start}}}}}}})["cursor"].(bson.D)
	var want []string
	for batch := ref.take(cur, "firstBatch"); ; {
		for _, e := range batch {
			want = append(want, fmt.Sprint(field(e, "operationType"), " ", tokenOf(e)))
		}
		if len(batch) > 0 && field(field(batch[len(batch)-1], "ns"), "coll") == "last" {
			break
		}
		batch = ref.take(c.cmd("admin", bson.D{{Key: "getMore", Value: ref.id}, {Key: "collection", Value: ref.coll}, {Key: "maxTimeMS", Value: 5000}})["cursor"].(bson.D), "nextBatch")
		if len(batch) == 0 {
			t.Fatalf("the reference ends with %d events", len(want))
		}
	}
	for i := range streams {
		for tries := 0; tries < 40 && (len(got[i]) == 0 || got[i][len(got[i])-1] != want[len(want)-1]); tries++ {
			read(i, 500)
		}
		for k := range max(len(want), len(got[i])) {
			if k >= len(want) || k >= len(got[i]) || got[i][k] != want[k] {
				t.Errorf("stream %d: event %d of %d and %d differs: %v, want %v", i, k, len(got[i]), len(want), got[i][min(k, len(got[i])):min(k+2, len(got[i]))], want[min(k, len(want)):min(k+2, len(want))])
				break
			}
		}
	}
}

// heldByStreams adds up the memory in use that the code of change streams has allocated, on the router and on the shards.
func heldByStreams() (size int, by map[string]int) {
	by = map[string]int{}
	runtime.GC()
	runtime.GC()
	var records []runtime.MemProfileRecord
	for n, ok := runtime.MemProfile(nil, false); !ok; {
		records = make([]runtime.MemProfileRecord, n+100)
		n, ok = runtime.MemProfile(records, false)
		records = records[:min(n, len(records))]
	}
	for i := range records {
		frames := runtime.CallersFrames(records[i].Stack())
		for f, more := frames.Next(); ; f, more = frames.Next() {
			name := f.Function[strings.LastIndex(f.Function, "/")+1:]
			if strings.HasPrefix(name, "streams.") || strings.HasPrefix(name, "router.(*shardMerge)") || strings.HasPrefix(name, "router.(*watchHub)") ||
				strings.HasPrefix(name, "router.(*clientStream)") || strings.HasPrefix(name, "shardnode.(*eventStream)") {
				size += int(records[i].InUseBytes())
				by[name] += int(records[i].InUseBytes()) >> 20
				break
			}
			if !more {
				break
			}
		}
	}
	return size, by
}

// Streams that their clients do not read hold a bounded part of what is written, on the shards and on the router: the rest is
// in the oplog until the clients read it.
func TestUnreadStreams(t *testing.T) {
	for _, size := range []int{1 << 20, 15 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			c := newTestCluster(t, 2)
			c.twoShards()
			before, _ := heldByStreams()
			const streams = 4
			total := 30 * max(size, 10<<20)
			var open []*streamOf
			for i := range streams {
				var behind []any
				if i%2 == 0 {
					behind = append(behind, bson.D{{Key: "$match", Value: bson.D{{Key: "documentKey._id", Value: bson.D{{Key: "$gte", Value: 0}}}}}})
				}
				s, _ := c.watch("s", bson.D{}, behind...)
				open = append(open, s)
			}
			pad := strings.Repeat("x", size)
			most, by := 0, map[string]int{}
			// Events that are being copied are not held, however long that takes on a slow machine: the lowest of several measurements counts.
			look := func() {
				least, of := heldByStreams()
				for same := 0; same < 3; same++ {
					time.Sleep(100 * time.Millisecond) // measurements so far apart that no event is being copied during all of them
					if n, now := heldByStreams(); n < least {
						least, of, same = n, now, 0
					}
				}
				if least-before > most {
					most, by = least-before, of
				}
			}
			for i := range total / size {
				c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i % 100}, {Key: "pad", Value: pad}}}}})
				if i == 1 { // they read once, and then stop
					for _, s := range open {
						s.more(5000)
					}
				}
				if i*size >= total/4 && i*size%(total/4) < size {
					look()
				}
			}
			look()
			t.Logf("%d streams held %d MiB of %d", streams, most>>20, total>>20)
			if most > total*2/3 {
				t.Errorf("%d streams held %d MiB of %d: %v", streams, most>>20, total>>20, by)
			}
			for _, s := range open {
				c.cmd("db", bson.D{{Key: "killCursors", Value: "s"}, {Key: "cursors", Value: bson.A{s.id}}})
			}
		})
	}
}
