package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// reshardWriters write to a collection and keep a model of its content.
type reshardWriters struct {
	coll *mongo.Collection
	stop chan struct{}
	wg   sync.WaitGroup

	mu      sync.Mutex
	want    map[string]int32
	unknown map[string]bool // of writes without an answer
	errs    []error
	took    []time.Duration // of each write
}

// writeBeside begins to write, rate times a second if it can.
func writeBeside(coll *mongo.Collection, prefix string, threads, rate int) *reshardWriters {
	w := &reshardWriters{coll: coll, stop: make(chan struct{}), want: map[string]int32{}, unknown: map[string]bool{}}
	for i := range threads {
		w.wg.Go(func() { w.run(fmt.Sprintf("%s-%d", prefix, i), time.Second*time.Duration(threads)/time.Duration(rate)) })
	}
	return w
}

func (w *reshardWriters) run(prefix string, every time.Duration) {
	ctx := context.Background()
	var mine []string
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		began := time.Now()
		var id string
		var err error
		next := int32(1)
		switch what := rand.IntN(20); {
		case len(mine) < 5 || what < 8:
			id = fmt.Sprintf("%s-%d", prefix, n)
			_, err = w.coll.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "a", Value: rand.Int32N(1_000_000)}, {Key: "b", Value: rand.Int32()}, {Key: "n", Value: next}})
			mine = append(mine, id)
		case what < 17:
			id = mine[rand.IntN(len(mine))]
			w.mu.Lock()
			next = w.want[id] + 1
			w.mu.Unlock()
			_, err = w.coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		default:
			at := rand.IntN(len(mine))
			id, next = mine[at], 0
			mine = slices.Delete(mine, at, at+1)
			_, err = w.coll.DeleteOne(ctx, bson.D{{Key: "_id", Value: id}})
		}
		took := time.Since(began)
		w.mu.Lock()
		w.took = append(w.took, took)
		switch {
		case err != nil:
			w.errs, w.unknown[id] = append(w.errs, err), true
		case next == 0:
			delete(w.want, id)
		default:
			w.want[id] = next
		}
		w.mu.Unlock()
	}
}

// check ends the writing and compares the collection with what was acknowledged.
func (w *reshardWriters) check(t *testing.T, prefix string) {
	t.Helper()
	close(w.stop)
	w.wg.Wait()
	if len(w.errs) > 0 {
		t.Errorf("%d of %d writes failed: %v", len(w.errs), len(w.took), w.errs[0])
	}
	ctx := context.Background()
	cur, err := w.coll.Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$regex", Value: "^" + prefix + "-"}}}})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for cur.Next(ctx) {
		var d struct {
			ID string `bson:"_id"`
			N  int32
		}
		if err := cur.Decode(&d); err != nil {
			t.Fatal(err)
		}
		if seen[d.ID] {
			t.Errorf("%s is there twice", d.ID)
		}
		seen[d.ID] = true
		if n, ok := w.want[d.ID]; !w.unknown[d.ID] && (!ok || n != d.N) {
			t.Errorf("%s has n: %d, it should have %d", d.ID, d.N, n)
		}
	}
	if err := cur.Err(); err != nil {
		t.Fatal(err)
	}
	for id := range w.want {
		if !seen[id] && !w.unknown[id] {
			t.Errorf("%s is lost", id)
		}
	}
	t.Logf("%d writes, the longest took %s", len(w.took), slices.Max(w.took))
}

func loadForReshard(t *testing.T, coll *mongo.Collection, n int) {
	t.Helper()
	pad := make([]byte, 120)
	for i := range pad {
		pad[i] = 'x'
	}
	for from := 0; from < n; from += 5000 {
		var docs []any
		for i := from; i < min(n, from+5000); i++ {
			docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "a", Value: (i * 7919) % 1_000_003}, {Key: "b", Value: i}, {Key: "pad", Value: string(pad)}})
		}
		if _, err := coll.InsertMany(context.Background(), docs, options.InsertMany().SetOrdered(false)); err != nil {
			t.Fatal(err)
		}
	}
}

// onShardsAlone counts documents where they are stored: one that is on two shards counts twice.
func onShardsAlone(t *testing.T, shards []*mongo.Client, db, coll string, filter bson.D) (per []int64, sum int64) {
	t.Helper()
	for _, s := range shards {
		n, err := s.Database(db).Collection(coll).CountDocuments(context.Background(), filter)
		if err != nil {
			t.Fatal(err)
		}
		per, sum = append(per, n), sum+n
	}
	return per, sum
}

// nothingLeft checks that no state document, critical section or temporary collection is left of a resharding.
func nothingLeft(t *testing.T, ctx context.Context, config *mongo.Client, shards []*mongo.Client, db string) {
	t.Helper()
	awaitNone(t, ctx, "reshardingOperations", config.Database("config").Collection("reshardingOperations"))
	for i, s := range shards {
		for _, coll := range []string{"localReshardingOperations.donor", "localReshardingOperations.recipient", "localReshardingOperations.recipient.progress_cloner",
			"localReshardingOperations.recipient.progress_applier", "collection_critical_sections", "system.sharding_ddl_coordinators"} {
			awaitNone(t, ctx, fmt.Sprintf("%s of shard %d", coll, i), s.Database("config").Collection(coll))
		}
		names, err := s.Database(db).ListCollectionNames(ctx, bson.D{{Key: "name", Value: bson.D{{Key: "$regex", Value: "^system.resharding"}}}})
		if err != nil || len(names) > 0 {
			t.Errorf("shard %d has %v, %v", i, names, err)
		}
	}
	n, err := config.Database("config").Collection("collections").CountDocuments(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$regex", Value: "system.resharding"}}}})
	if n != 0 || err != nil {
		t.Errorf("%d entries of temporary collections are left, %v", n, err)
	}
}

// Collections move, are resharded and unsharded while clients write to them: no write is lost or doubled, and writers wait for a moment
// only. SHOAL_RESHARD_DOCS=1000000 SHOAL_RESHARD_RATE=1000 measures.
func TestReshardUnderWrites(t *testing.T) {
	t.Parallel()
	docs, rate := 3000, 200
	if s := os.Getenv("SHOAL_RESHARD_DOCS"); s != "" {
		docs, _ = strconv.Atoi(s)
	}
	if s := os.Getenv("SHOAL_RESHARD_RATE"); s != "" {
		rate, _ = strconv.Atoi(s)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	port := freePorts(t, 3)
	p := launch(t, t.TempDir(), "--node-port", strconv.Itoa(port))
	defer p.kill(t)
	config, shards := member(t, port), []*mongo.Client{member(t, port+1), member(t, port+2)}
	p.must(t,
		bson.D{{Key: "balancerStop", Value: 1}},
		bson.D{{Key: "enableSharding", Value: "r"}, {Key: "primaryShard", Value: "shard00"}},
		bson.D{{Key: "shardCollection", Value: "r.s"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}},
	)
	db := p.client.Database("r")
	for _, name := range []string{"plain", "s"} {
		loadForReshard(t, db.Collection(name), docs)
	}
	for i, step := range []struct {
		coll   string
		cmd    bson.D
		spread []bool // the shards that have documents afterwards
	}{
		{"s", bson.D{{Key: "reshardCollection", Value: "r.s"}, {Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "numInitialChunks", Value: 8}}, []bool{true, true}},
		{"s", bson.D{{Key: "reshardCollection", Value: "r.s"}, {Key: "key", Value: bson.D{{Key: "b", Value: "hashed"}}}}, []bool{true, true}},
		{"s", bson.D{{Key: "reshardCollection", Value: "r.s"}, {Key: "key", Value: bson.D{{Key: "b", Value: "hashed"}}}, {Key: "forceRedistribution", Value: true}}, []bool{true, true}},
		{"s", bson.D{{Key: "unshardCollection", Value: "r.s"}, {Key: "toShard", Value: "shard01"}}, []bool{false, true}},
		{"plain", bson.D{{Key: "moveCollection", Value: "r.plain"}, {Key: "toShard", Value: "shard01"}}, []bool{false, true}},
		{"plain", bson.D{{Key: "moveCollection", Value: "r.plain"}, {Key: "toShard", Value: "shard00"}}, []bool{true, false}},
	} {
		prefix := fmt.Sprintf("w%d", i)
		w := writeBeside(db.Collection(step.coll), prefix, 4, rate)
		// Some documents of the writers' are part of the clone.
		await.State(t, "the writers have written", func() (int, bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.took), len(w.took) >= 20
		})
		began := time.Now()
		if err := p.admin(step.cmd); err != nil {
			t.Errorf("%v: %v", step.cmd, err)
		}
		t.Logf("%v took %s", step.cmd, time.Since(began))
		w.check(t, prefix)
		per, sum := onShardsAlone(t, shards, "r", step.coll, bson.D{{Key: "pad", Value: bson.D{{Key: "$exists", Value: true}}}})
		if sum != int64(docs) {
			t.Errorf("%v: the shards have %v documents", step.cmd, per)
		}
		for j, n := range per {
			if (n > 0) != step.spread[j] {
				t.Errorf("%v: the shards have %v documents", step.cmd, per)
			}
		}
		nothingLeft(t, ctx, config, shards, "r")
	}
	// What is not sharded any more behaves as a collection of one shard.
	if _, err := db.Collection("s").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "pad", Value: 1}, {Key: "b", Value: 1}}, Options: options.Index().SetUnique(true)}); err != nil {
		t.Errorf("a unique index on an unsharded collection: %v", err)
	}
	if _, err := db.Collection("s").UpdateOne(ctx, bson.D{{Key: "b", Value: 7}}, bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: -1}}}}, options.UpdateOne().SetUpsert(true)); err != nil {
		t.Errorf("an upsert without the shard key: %v", err)
	}
	if err := p.admin(bson.D{{Key: "split", Value: "r.s"}, {Key: "middle", Value: bson.D{{Key: "_id", Value: 5}}}}); err == nil {
		t.Error("a collection that is not sharded is split")
	}
	if n, err := db.Collection("s").CountDocuments(ctx, bson.D{{Key: "pad", Value: bson.D{{Key: "$exists", Value: true}}}}); n != int64(docs) || err != nil {
		t.Errorf("%d documents after that, %v", n, err)
	}
	var sections struct{ Details struct{ Millis int64 } }
	cur, err := config.Database("config").Collection("changelog").Find(ctx, bson.D{{Key: "what", Value: bson.D{{Key: "$regex", Value: "critical$"}}}})
	if err != nil {
		t.Fatal(err)
	}
	var took []int64
	for cur.Next(ctx) {
		if err := cur.Decode(&sections); err != nil {
			t.Fatal(err)
		}
		took = append(took, sections.Details.Millis)
	}
	t.Logf("critical sections of %v ms", took)
}

// reshardStates are those at which a resharding is interrupted.
var reshardStates = []string{"initializing", "preparing-to-donate", "cloning", "applying", "blocking-writes", "committing", "done"}

// pauseReshard has the next resharding stop at a state of a node's role in it, and returns when it has.
func pauseReshard(t *testing.T, ctx context.Context, node *mongo.Client, role, state string) (reached func() error, goOn func()) {
	t.Helper()
	admin, name := node.Database("admin"), "reshardingPause"+role+"AtState"
	point := bson.D{{Key: "configureFailPoint", Value: name}, {Key: "mode", Value: "alwaysOn"}, {Key: "data", Value: bson.D{{Key: "state", Value: state}}}}
	var set struct{ Count int64 }
	if err := admin.RunCommand(ctx, point).Decode(&set); err != nil {
		t.Fatal(err)
	}
	return func() error {
			return admin.RunCommand(ctx, bson.D{{Key: "waitForFailPoint", Value: name}, {Key: "timesEntered", Value: set.Count + 1}, {Key: "maxTimeMS", Value: 30000}}).Err()
		}, func() {
			if err := admin.RunCommand(ctx, bson.D{{Key: "configureFailPoint", Value: name}, {Key: "mode", Value: "off"}}).Err(); err != nil {
				t.Error(err)
			}
		}
}

// A cluster whose processes are killed at each state of a resharding ends it when it is back: nothing is lost or doubled, and nothing is left.
func TestKilledResharding(t *testing.T) {
	t.Parallel()
	for role, states := range map[string][]string{"Coordinator": reshardStates, "Recipient": {"cloning", "applying", "strict-consistency"}} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			killResharding(t, role, states)
		})
	}
}

// killResharding kills a cluster at the states of one role, that of its config server or its first shard.
func killResharding(t *testing.T, role string, states []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	node := 0
	if role == "Recipient" {
		node = 1
	}
	dir, port := t.TempDir(), freePorts(t, 3)
	p := launch(t, dir, "--node-port", strconv.Itoa(port))
	p.must(t,
		bson.D{{Key: "balancerStop", Value: 1}},
		bson.D{{Key: "enableSharding", Value: "k"}, {Key: "primaryShard", Value: "shard01"}},
		bson.D{{Key: "shardCollection", Value: "k.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}},
	)
	loadForReshard(t, p.client.Database("k").Collection("c"), 500)
	want := int64(500)
	for i, at := range states {
		state := role + " " + at
		key := []bson.D{{{Key: "a", Value: 1}}, {{Key: "b", Value: "hashed"}}}[i%2]
		cmd := bson.D{{Key: "reshardCollection", Value: "k.c"}, {Key: "key", Value: key}}
		reached, _ := pauseReshard(t, ctx, member(t, port+node), role, at)
		sent := make(chan error, 1)
		go func() { sent <- p.client.Database("admin").RunCommand(ctx, cmd).Err() }()
		if err := reached(); err != nil {
			t.Fatalf("%s: %v", state, err)
		}
		if !slices.Contains([]string{"committing", "done", "strict-consistency"}, at) { // there writes are held up
			if _, err := p.client.Database("k").Collection("c").InsertOne(ctx, bson.D{{Key: "_id", Value: "at " + state}, {Key: "a", Value: 5}, {Key: "b", Value: i}}); err != nil {
				t.Fatal(err)
			}
			want++
		}
		p.kill(t)
		<-sent
		p = launch(t, dir, "--node-port", strconv.Itoa(port))
		shards := []*mongo.Client{member(t, port+1), member(t, port+2)}
		nothingLeft(t, ctx, member(t, port), shards, "k")
		if per, sum := onShardsAlone(t, shards, "k", "c", bson.D{}); sum != want {
			t.Errorf("killed at %s: the shards have %v documents, they should have %d", state, per, want)
		}
		if n, err := p.client.Database("k").Collection("c").CountDocuments(ctx, bson.D{}); n != want || err != nil {
			t.Errorf("killed at %s: %d documents, %v", state, n, err)
		}
		var entry struct{ Key bson.D }
		if err := p.client.Database("config").Collection("collections").FindOne(ctx, bson.D{{Key: "_id", Value: "k.c"}}).Decode(&entry); err != nil || entry.Key[0].Key != key[0].Key {
			var last bson.M
			_ = p.client.Database("config").Collection("changelog").FindOne(ctx, bson.D{{Key: "what", Value: "reshardCollection.end"}}, options.FindOne().SetSort(bson.D{{Key: "$natural", Value: -1}})).Decode(&last)
			t.Errorf("killed at %s: the key is %v, %v; %v", state, entry.Key, err, last["details"])
		}
		if err := p.client.Database("admin").RunCommand(ctx, append(cmd, bson.E{Key: "maxTimeMS", Value: 30000})).Err(); err != nil {
			t.Errorf("killed at %s, again: %v", state, err)
		}
	}
	p.kill(t)
}

// reshardsInProgress returns the entries of nodes' currentOp for a role in a resharding by {a: 1}.
func reshardsInProgress(t *testing.T, ctx context.Context, nodes ...*mongo.Client) func(role string) []bson.M {
	return func(role string) (all []bson.M) {
		t.Helper()
		for _, node := range nodes {
			var ops struct{ Inprog []bson.M }
			err := node.Database("admin").RunCommand(ctx, bson.D{{Key: "currentOp", Value: 1}, {Key: "desc", Value: bson.D{{Key: "$regex", Value: "^" + role + " [0-9a-f-]{36}$"}}},
				{Key: "originatingCommand.key", Value: bson.D{{Key: "a", Value: 1}}}}).Decode(&ops)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, ops.Inprog...)
		}
		return all
	}
}

// A resharding can be aborted at each state before its decision, and leaves nothing then; after the decision it cannot.
func TestAbortedResharding(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	port := freePorts(t, 3)
	p := launch(t, t.TempDir(), "--node-port", strconv.Itoa(port))
	defer p.kill(t)
	config, shards := member(t, port), []*mongo.Client{member(t, port+1), member(t, port+2)}
	p.must(t,
		bson.D{{Key: "balancerStop", Value: 1}},
		bson.D{{Key: "enableSharding", Value: "k"}, {Key: "primaryShard", Value: "shard01"}},
		bson.D{{Key: "shardCollection", Value: "k.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}},
	)
	coll := p.client.Database("k").Collection("c")
	loadForReshard(t, coll, 500)
	abort := bson.D{{Key: "abortReshardCollection", Value: "k.c"}}
	if err := p.admin(abort); codeOf(err) != int32(mongoerr.NoSuchReshardCollection) {
		t.Errorf("nothing to abort: %v", err)
	}
	aborts := func() int64 { // that the config server has begun
		status, err := config.Database("admin").RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Raw()
		if err != nil {
			t.Fatal(err)
		}
		return status.Lookup("metrics", "commands", "_configsvrAbortReshardCollection", "total").AsInt64()
	}
	for _, state := range reshardStates {
		reached, goOn := pauseReshard(t, ctx, config, "Coordinator", state)
		sent := make(chan error, 1)
		go func() {
			sent <- p.client.Database("admin").RunCommand(ctx, bson.D{{Key: "reshardCollection", Value: "k.c"}, {Key: "key", Value: bson.D{{Key: "a", Value: 1}}}}).Err()
		}()
		if err := reached(); err != nil {
			t.Fatalf("%s: %v", state, err)
		}
		described := reshardsInProgress(t, ctx, append([]*mongo.Client{config}, shards...)...)
		if roles := described("ReshardingCoordinatorService"); len(roles) != 1 || roles[0]["coordinatorState"] != state {
			t.Errorf("%s: the coordinator is described as %v", state, roles)
		}
		if state == "applying" { // before it not all may have begun, after it some have ended
			if donors, recipients := described("ReshardingDonorService"), described("ReshardingRecipientService"); len(donors) != 2 || len(recipients) != 2 {
				t.Errorf("%s: donors %v, recipients %v", state, donors, recipients)
			}
		}
		final := state == "committing" || state == "done"
		ended, before := make(chan error, 1), aborts()
		go func() { ended <- p.client.Database("admin").RunCommand(ctx, abort).Err() }()
		if final {
			if err := <-ended; codeOf(err) != int32(mongoerr.ReshardCollectionCommitted) {
				t.Errorf("aborted at %s: %v", state, err)
			}
			goOn()
			if err := <-sent; err != nil {
				t.Errorf("%s: %v", state, err)
			}
			if err := p.admin(bson.D{{Key: "reshardCollection", Value: "k.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}}); err != nil {
				t.Error(err)
			}
		} else {
			await.True(t, "the abort is on the config server", func() bool { return aborts() == before+1 })
			goOn()
			if err := <-ended; err != nil {
				t.Errorf("aborted at %s: %v", state, err)
			}
			if err := <-sent; codeOf(err) != int32(mongoerr.ReshardCollectionAborted) {
				t.Errorf("what was aborted at %s answers %v", state, err)
			}
		}
		nothingLeft(t, ctx, config, shards, "k")
		if per, sum := onShardsAlone(t, shards, "k", "c", bson.D{}); sum != 500 {
			t.Errorf("%s: the shards have %v documents", state, per)
		}
		if _, err := coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
			t.Errorf("%s: %v", state, err)
		}
		var entry bson.M
		if err := config.Database("config").Collection("collections").FindOne(ctx, bson.D{{Key: "_id", Value: "k.c"}}).Decode(&entry); err != nil || entry["permitMigrations"] == false {
			t.Errorf("%s: %v, %v", state, entry, err)
		}
	}
}

// The clone's time, which one donor chooses, may be in the midst of another donor's unit of work: documents that are inserted together
// have a timestamp each in the oplog, and are visible at the last of them. None is left out.
func TestReshardInTheMidstOfAUnit(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	p := launch(t, t.TempDir())
	defer p.kill(t)
	p.must(t,
		bson.D{{Key: "balancerStop", Value: 1}},
		bson.D{{Key: "shardCollection", Value: "r.s"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}},
	)
	coll := p.client.Database("r").Collection("s")
	const together = 400
	var stored atomic.Int64
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for w := range 2 {
		writers.Go(func() {
			// Each writer rests twice as long as its insert took: writers that take all of a slow machine leave the appliers nothing to catch up with.
			rest := time.NewTimer(0)
			defer rest.Stop()
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-rest.C:
				}
				began := time.Now()
				docs := make([]any, together)
				for i := range docs {
					docs[i] = bson.D{{Key: "_id", Value: int64(w)<<40 | int64(n*together+i)}}
				}
				res, err := coll.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
				if err != nil {
					t.Errorf("insert: %v", err)
					return
				}
				stored.Add(int64(len(res.InsertedIDs)))
				rest.Reset(max(4*time.Millisecond, 2*time.Since(began)))
			}
		})
	}
	for range 4 {
		if err := p.client.Database("admin").RunCommand(ctx, bson.D{{Key: "reshardCollection", Value: "r.s"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}},
			{Key: "numInitialChunks", Value: 4}, {Key: "forceRedistribution", Value: true}}).Err(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	writers.Wait()
	if n, err := coll.CountDocuments(ctx, bson.D{}); n != stored.Load() || err != nil {
		t.Errorf("%d of %d documents are there, %v", n, stored.Load(), err)
	}
}
