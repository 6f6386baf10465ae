package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// smallChunks sets the cluster's chunk size to one megabyte.
func (c *testCluster) smallChunks() {
	c.t.Helper()
	c.run("config", `{"update": "settings", "updates": [{"q": {"_id": "chunksize"}, "u": {"_id": "chunksize", "value": 1}, "upsert": true}]}`)
}

// load inserts documents of a size through the router, in batches.
func (c *testCluster) load(coll string, keys []int64, size int) {
	c.t.Helper()
	pad := strings.Repeat("x", size)
	for len(keys) > 0 {
		n := min(500, len(keys))
		docs := make(bson.A, n)
		for i, k := range keys[:n] {
			docs[i] = bson.D{{Key: "_id", Value: k}, {Key: "pad", Value: pad}}
		}
		keys = keys[n:]
		if m := decode(c.t, c.do("db", bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: docs}})); m["ok"] != 1.0 || m["writeErrors"] != nil {
			c.t.Fatalf("%v", m)
		}
	}
}

// balance runs rounds until one has nothing to move. A round that moves nothing may have split what was too large, or not have waited for a slow migration.
func (c *testCluster) balance(limit int) (moves int) {
	c.t.Helper()
	planned := func() int { return len(c.all("config", `{"find": "actionlog", "filter": {"what": "balancer.round"}}`)) }
	for range limit {
		c.until("no migration is under way", func() bool {
			n := int32(0)
			for _, p := range c.shards {
				n += c.admin(p, bson.D{{Key: "count", Value: "migrationCoordinators"}, {Key: "$db", Value: "config"}})["n"].(int32)
			}
			return n == 0
		})
		before := planned()
		n, err := c.config.BalancerRound(context.Background())
		if err != nil {
			c.t.Fatal(err)
		}
		if n == 0 && planned() == before {
			return moves
		}
		moves += n
	}
	c.t.Errorf("the balancer still moves ranges after %d rounds", limit)
	return moves
}

// A collection with a ranged key and one chunk on one shard spreads over all shards by itself, while it is written to: nothing used to
// split the chunk, and a balancer that requires two chunks left it where it was.
func TestRangesSpreadByThemselves(t *testing.T) {
	t.Parallel()
	for _, random := range []bool{false, true} {
		t.Run(fmt.Sprintf("random %v", random), func(t *testing.T) {
			c := newTestCluster(t, 4)
			c.smallChunks()
			c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
			c.run("admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`)
			const docs, size = 10_000, 4000
			keys := make([]int64, docs)
			for i := range keys {
				keys[i] = int64(i) * 1000
			}
			if random {
				rand.New(rand.NewPCG(1, 2)).Shuffle(docs, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			}
			c.load("c", keys[:docs/4], size)
			var wg sync.WaitGroup
			var written atomic.Int64
			stop := make(chan struct{})
			for w := range 2 { // during the rounds: updates in place and new documents
				wg.Go(func() {
					client := command.NewClient(int64(300+w), "test", "test", nil)
					rnd := rand.New(rand.NewPCG(uint64(w), 9))
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						body, _ := bson.Marshal(bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{
							{Key: "q", Value: bson.D{{Key: "_id", Value: keys[rnd.IntN(docs/4)]}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}}}}}, {Key: "$db", Value: "db"}})
						if m := decode(t, c.router.Run(context.Background(), client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil)); m["n"] != int32(1) {
							t.Errorf("%v", m)
							return
						}
						written.Add(1)
					}
				})
			}
			for part := range 3 {
				c.load("c", keys[docs/4*(part+1):docs/4*(part+2)], size)
				if _, err := c.config.BalancerRound(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			moves := c.balance(200)
			close(stop)
			wg.Wait()
			total, parts := c.parts("c")
			sum := get(c.all("db", `{"aggregate": "c", "pipeline": [{"$group": {"_id": null, "n": {"$sum": "$n"}}}], "cursor": {}}`)[0], "n")
			t.Logf("%d moves, %v documents, %d updates", moves, parts, written.Load())
			if total != docs || fmt.Sprint(sum) != fmt.Sprint(written.Load()) {
				t.Errorf("%d documents, %v updates of %d", total, sum, written.Load())
			}
			for i, n := range parts {
				if n < docs/4*75/100 || n > docs/4*125/100 { // a difference of three chunks is balanced, and a shard's share is ten
					t.Errorf("shard%d has %d of %d documents", i, n, total)
				}
			}
			if status := c.run("admin", `{"balancerCollectionStatus": "db.c"}`); status["balancerCompliant"] != true {
				t.Errorf("%v", status)
			}
			if n := len(c.all("config", `{"find": "actionlog", "filter": {"what": "balancer.round", "details.chunksMoved": {"$gte": 1}}}`)); n == 0 {
				t.Error("no round is in the action log")
			}
			if n := len(c.all("config", `{"find": "changelog", "filter": {"what": "moveChunk.from", "details.note": "success", "details.step 6 of 6": {"$exists": true}, "details.counts.cloned": {"$gte": 0}}}`)); n < moves {
				t.Errorf("%d of %d moves are in the change log with their steps", n, moves)
			}
		})
	}
}

// parts counts a collection's documents on each of the shards, once what has moved away is deleted there.
func (c *testCluster) parts(coll string) (total int32, parts []int32) {
	c.t.Helper()
	for i := range len(c.shards) {
		id := fmt.Sprintf("shard%d", i)
		// While the range deleter runs, documents and orphans would be counted at two moments.
		c.until("nothing is left to be deleted on "+id, func() bool { return c.rangeDeletions(id) == 0 })
		parts = append(parts, c.onShard(id, coll))
		total += parts[i]
	}
	return total, parts
}

// With two zones of two shards each, every zone's documents end up on its shards, in parts that differ from each other by a tenth at most, and all
// documents of a shard that is removed go to the other shard of its zone.
func TestZonesOfTwoShards(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 4)
	c.smallChunks()
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`)
	const docs, size, border = 2800, 20_000, 1600
	for i, zone := range []string{"low", "low", "high", "high"} {
		c.run("admin", fmt.Sprintf(`{"addShardToZone": "shard%d", "zone": %q}`, i, zone))
	}
	c.run("admin", fmt.Sprintf(`{"updateZoneKeyRange": "db.c", "min": {"_id": {"$minKey": 1}}, "max": {"_id": %d}, "zone": "low"}`, border))
	c.run("admin", fmt.Sprintf(`{"updateZoneKeyRange": "db.c", "min": {"_id": %d}, "max": {"_id": {"$maxKey": 1}}, "zone": "high"}`, border))
	keys := make([]int64, docs)
	for i := range keys {
		keys[i] = int64(i)
	}
	c.load("c", keys, size)
	moves := c.balance(300)
	total, parts := c.parts("c")
	t.Logf("%d moves, %v", moves, parts)
	if total != docs || parts[0]+parts[1] != border {
		t.Errorf("%d documents, %d of them in the lower zone", total, parts[0]+parts[1])
	}
	for i, n := range parts {
		share := int32(border / 2)
		if i >= 2 {
			share = (docs - border) / 2
		}
		if n < share*90/100 || n > share*110/100 {
			t.Errorf("shard%d has %d documents, its share is %d", i, n, share)
		}
	}
	c.expect(c.run("admin", `{"removeShard": "shard1"}`)["state"], `"started"`)
	c.balance(300)
	total, after := c.parts("c")
	if total != docs || after[1] != 0 || after[0] != border || after[2] != parts[2] || after[3] != parts[3] {
		t.Errorf("after shard1 was drained: %v of %v", after, parts)
	}
	c.expect(c.run("admin", `{"removeShard": "shard1"}`)["state"], `"completed"`)
	c.expect(len(c.all("db", `{"find": "c", "projection": {"_id": 1}}`)), fmt.Sprint(docs))
}

// A migration with one bound moves as much as a chunk may hold, from that bound on or up to it; the rest of the chunk
// stays. One with both bounds that is too large is refused, unless it is forced.
func TestMoveOfARangeWithOneBound(t *testing.T) {
	c := newTestCluster(t, 2)
	c.smallChunks()
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`)
	keys := make([]int64, 5000)
	for i := range keys {
		keys[i] = int64(i)
	}
	c.load("c", keys, 1000)
	if m := c.raw("admin", `{"moveChunk": "db.c", "find": {"_id": 5}, "to": "shard1"}`); m["code"] != int32(mongoerr.ChunkTooBig) {
		t.Errorf("a chunk of 5 MB: %v", m)
	}
	c.run("admin", `{"moveRange": "db.c", "min": {"_id": 1000}, "toShard": "shard1", "waitForDelete": true}`)
	n := c.onShard("shard1", "c")
	if n < 900 || n > 1100 {
		t.Errorf("%d documents moved", n)
	}
	c.run("admin", `{"moveRange": "db.c", "max": {"_id": 1000}, "toShard": "shard1", "waitForDelete": true}`)
	if m := c.onShard("shard1", "c") - n; m < 900 || m > 1000 {
		t.Errorf("%d documents moved from below", m)
	}
	c.run("admin", `{"moveRange": "db.c", "max": {"_id": {"$maxKey": 1}}, "toShard": "shard1", "waitForDelete": true}`)
	c.expect(c.all("config", `{"aggregate": "chunks", "pipeline": [{"$match": {"min._id": {"$exists": true}, "history.0.shard": {"$exists": true}}}, {"$lookup": {"from": "collections", "localField": "uuid", "foreignField": "uuid", "as": "c"}}, {"$match": {"c._id": "db.c"}}, {"$sort": {"min": 1}}, {"$group": {"_id": "$shard", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}], "cursor": {}}`),
		`[{"_id":"shard0","n":1},{"_id":"shard1","n":3}]`)
	before := c.onShard("shard1", "c")
	c.run("admin", `{"moveRange": "db.c", "min": {"_id": `+fmt.Sprint(1000+n)+`}, "max": {"_id": `+fmt.Sprint(3000)+`}, "toShard": "shard1", "forceJumbo": true, "waitForDelete": true}`)
	if m := c.onShard("shard1", "c") - before; m != 2000-n {
		t.Errorf("forced: %d documents moved", m)
	}
	if n := len(c.all("db", `{"find": "c", "projection": {"_id": 1}}`)); n != 5000 {
		t.Errorf("%d documents", n)
	}
}

// A chunk whose documents all have one key cannot be split: the balancer marks it and continues with others. Once the mark is
// removed, the chunk has a new major version.
func TestChunkOfOneKeyIsMarkedJumbo(t *testing.T) {
	c := newTestCluster(t, 2)
	c.smallChunks()
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	pad := strings.Repeat("x", 100_000)
	for i := range 40 {
		c.run("db", fmt.Sprintf(`{"insert": "c", "documents": [{"k": 7, "pad": %q}, {"k": %d, "pad": %q}]}`, pad, 100+i, pad))
	}
	moves := 0
	for range 12 { // some rounds split, or mark
		n, err := c.config.BalancerRound(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		moves += n
	}
	jumbo := c.all("config", `{"find": "chunks", "filter": {"jumbo": true}, "projection": {"_id": 0, "min": 1, "max": 1, "shard": 1}}`)
	c.expect(jumbo, `[{"min":{"k":{"$minKey":1}},"shard":"shard0","max":{"k":100}}]`)
	if moves == 0 {
		t.Error("nothing moved")
	}
	version := func() bson.Timestamp {
		return get(c.all("config", `{"find": "chunks", "filter": {"max": {"k": 100}}}`)[0], "lastmod").(bson.Timestamp)
	}
	before := version()
	if m := c.raw("admin", `{"clearJumboFlag": "db.c", "bounds": [{"k": {"$minKey": 1}}, {"k": 99}]}`); m["ok"] == 1.0 {
		t.Errorf("bounds of no chunk: %v", m)
	}
	c.run("admin", `{"clearJumboFlag": "db.c", "bounds": [{"k": {"$minKey": 1}}, {"k": 100}]}`)
	if after := version(); after.T <= before.T {
		t.Errorf("%v, then %v", before, after)
	}
	c.expect(len(c.all("config", `{"find": "chunks", "filter": {"jumbo": true}}`)), `0`)
}

// An error in one collection does not stop the migrations of others.
func TestOneCollectionsErrorDoesNotEndTheRound(t *testing.T) {
	c := newTestCluster(t, 2)
	c.smallChunks()
	c.sharded("b", 4)
	// Every range of a has a document whose _id exists on shard1: none can move there.
	c.run("admin", `{"shardCollection": "db.a", "key": {"k": 1}}`)
	c.run("admin", `{"split": "db.a", "middle": {"k": 0}}`)
	c.run("admin", `{"moveChunk": "db.a", "find": {"k": -1}, "to": "shard1"}`)
	keys := make([]int64, 5000)
	for i := range keys {
		keys[i] = int64(10 + i)
	}
	c.load("b", keys, 1000)
	pad := strings.Repeat("x", 100_000)
	for i := range 50 {
		c.run("db", fmt.Sprintf(`{"insert": "a", "documents": [{"_id": %d, "k": %d, "pad": %q}, {"_id": %d, "k": -1}]}`, i, i+1, pad, i))
	}
	moved, failed := 0, 0
	for range 6 {
		n, err := c.config.BalancerRound(t.Context())
		moved += n
		if err != nil {
			failed++
		}
	}
	if moved == 0 || failed == 0 || c.onShard("shard1", "b") == 0 {
		t.Errorf("%d moves, %d rounds with errors", moved, failed)
	}
	if n := len(c.all("config", `{"find": "actionlog", "filter": {"details.errorOccurred": true}}`)); n != failed {
		t.Errorf("%d of %d errors are in the action log", n, failed)
	}
}

// A hanging migration blocks neither the rounds nor the other shards; balancerStop waits for it.
func TestHungMigrationDoesNotHangTheBalancer(t *testing.T) {
	c := newTestCluster(t, 4)
	c.smallChunks()
	for i, name := range []string{"a", "b"} {
		c.run("admin", fmt.Sprintf(`{"enableSharding": "db%d", "primaryShard": "shard%d"}`, i, i))
		c.run("admin", fmt.Sprintf(`{"shardCollection": "db%d.%s", "key": {"_id": 1}}`, i, name))
		for at := range 5 {
			docs := bson.A{}
			for j := range 10 {
				docs = append(docs, bson.D{{Key: "_id", Value: at*10 + j}, {Key: "pad", Value: strings.Repeat("x", 100_000)}})
			}
			if m := decode(t, c.do(fmt.Sprintf("db%d", i), bson.D{{Key: "insert", Value: name}, {Key: "documents", Value: docs}})); m["ok"] != 1.0 {
				t.Fatal(m)
			}
		}
	}
	entered := c.point("shard0", "moveChunkHangAtStep3", true)
	first := make(chan struct{})
	go func() {
		defer close(first)
		_, _ = c.config.BalancerRound(context.Background())
	}()
	entered()
	// The round waits for it, and a concurrent round skips its shards.
	if _, err := c.config.BalancerRound(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.until("something of the other collection has moved", func() bool {
		return len(c.all("config", `{"find": "changelog", "filter": {"what": "moveChunk.from", "details.note": "success", "ns": "db1.b"}}`)) > 0
	})
	c.expect(c.run("admin", `{"balancerStatus": 1}`)["inBalancerRound"], `true`)
	if m := c.raw("admin", `{"balancerStop": 1, "maxTimeMS": 300}`); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
		t.Errorf("balancerStop during a migration: %v", m)
	}
	stopped := make(chan bson.M)
	go func() { stopped <- c.raw("admin", `{"balancerStop": 1}`) }()
	select {
	case m := <-stopped:
		t.Errorf("balancerStop did not wait: %v", m)
	case <-time.After(200 * time.Millisecond):
	}
	c.point("shard0", "moveChunkHangAtStep3", false)
	<-first
	if m := <-stopped; m["ok"] != 1.0 {
		t.Errorf("%v", m)
	}
	c.expect(c.run("admin", `{"balancerStatus": 1}`)["inBalancerRound"], `false`)
}

// A collection may have a chunk size of its own, and may be excluded.
func TestConfigureCollectionBalancing(t *testing.T) {
	c := newTestCluster(t, 2)
	c.sharded("c", 4)
	keys := make([]int64, 6000)
	for i := range keys {
		keys[i] = int64(10 + i)
	}
	c.load("c", keys, 1000)
	status := func(compliant bool, mb int64) {
		t.Helper()
		m := c.run("admin", `{"balancerCollectionStatus": "db.c"}`)
		if m["balancerCompliant"] != compliant || m["chunkSize"] != mb {
			t.Errorf("%v", m)
		}
		if !compliant && (m["firstComplianceViolation"] != "chunksImbalance" || m["details"] != nil) {
			t.Errorf("%v", m)
		}
	}
	status(true, 128)
	c.run("admin", `{"configureCollectionBalancing": "db.c", "chunkSize": 1, "noBalance": true}`)
	status(false, 1)
	if n := c.balance(1); n != 0 {
		t.Errorf("%d moves of a collection that is not to be balanced", n)
	}
	c.run("admin", `{"configureCollectionBalancing": "db.c", "enableBalancing": true}`)
	if n := c.balance(20); n == 0 {
		t.Error("nothing moved")
	}
	status(true, 1)
	c.run("admin", `{"configureCollectionBalancing": "db.c", "chunkSize": 0}`)
	status(true, 128)
	for _, bad := range []string{`"chunkSize": 1025`, `"chunkSize": -1`, `"chunkSize": 1.5`, `"enableBalancing": true, "noBalance": true`, `"comment": 1`} {
		if m := c.raw("admin", `{"configureCollectionBalancing": "db.c", `+bad+`}`); m["ok"] == 1.0 {
			t.Errorf("%s: %v", bad, m)
		}
	}
	if m := c.raw("admin", `{"configureCollectionBalancing": "db.none", "chunkSize": 1}`); m["code"] != int32(mongoerr.NamespaceNotSharded) && m["code"] != int32(mongoerr.NamespaceNotFound) {
		t.Errorf("%v", m)
	}
}

// Split points come from the shard key's index.
func TestSplitVector(t *testing.T) {
	c := newTestCluster(t, 1)
	c.run("admin", `{"shardCollection": "db.c", "key": {"a": 1, "b": 1}}`)
	docs := bson.A{}
	for i := range 3000 {
		docs = append(docs, bson.D{{Key: "a", Value: int32(i / 100)}, {Key: "b", Value: fmt.Sprintf("%04d", i)}, {Key: "pad", Value: strings.Repeat("x", 1000)}})
	}
	c.do("db", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: docs}})
	keys := func(cmd string) (out []string) {
		t.Helper()
		var d bson.D
		if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
			t.Fatal(err)
		}
		m := c.admin(c.shards["shard0"], append(d, bson.E{Key: "$db", Value: "db"}))
		for _, k := range m["splitKeys"].(bson.A) {
			out = append(out, fmt.Sprint(get(k, "b")))
		}
		return out
	}
	all := `"keyPattern": {"a": 1, "b": 1}, "min": {"a": {"$minKey": 1}, "b": {"$minKey": 1}}, "max": {"a": {"$maxKey": 1}, "b": {"$maxKey": 1}}`
	for cmd, want := range map[string]string{
		`{"autoSplitVector": "c", ` + all + `, "maxChunkSizeBytes": 1048576}`:                                                                                                   "[0997 1994 2497]",
		`{"autoSplitVector": "c", ` + all + `, "maxChunkSizeBytes": 1048576, "limit": 1}`:                                                                                       "[0997]",
		`{"autoSplitVector": "c", ` + all + `, "maxChunkSizeBytes": 104857600}`:                                                                                                 "[]",
		`{"splitVector": "db.c", ` + all + `, "force": true}`:                                                                                                                   "[1500]",
		`{"splitVector": "db.c", ` + all + `, "maxChunkSizeBytes": 1048576}`:                                                                                                    "[0498 0996 1494 1992 2490 2988]",
		`{"splitVector": "db.c", ` + all + `, "maxChunkSize": 8}`:                                                                                                               "[]",
		`{"splitVector": "db.c", "keyPattern": {"a": 1, "b": 1}, "min": {"a": 10}, "max": {"a": 11}, "force": true}`:                                                            "[1050]",
		`{"splitVector": "db.c", "keyPattern": {"a": 1}, "min": {"a": 10}, "max": {"a": 11}, "force": true}`:                                                                    "[]",
		`{"splitVector": "db.c", "keyPattern": {"a": 1, "b": 1}, "min": {"a": 10}, "max": {"a": 12}, "maxChunkSizeBytes": 1048576, "maxChunkObjects": 40, "maxSplitPoints": 2}`: "[1040 1080]",
	} {
		if got := fmt.Sprint(keys(cmd)); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", cmd, got, want)
		}
	}
}
