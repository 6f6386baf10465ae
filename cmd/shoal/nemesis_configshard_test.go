package main

import (
	"context"
	"fmt"
	"math/rand"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shoaldb/shoal/internal/await"
)

// configShardLoad has the clients of a cluster whose config server becomes a shard and a dedicated config server in turn, and their model.
type configShardLoad struct {
	t        *testing.T
	c        *shardedCluster
	acked    atomic.Int64
	cycles   atomic.Int64 // transitions there and back that have completed
	errors   tally
	writers  []*configShardWriter
	mover    *mongo.Client
	finished chan struct{} // closed when the clients are to stop
}

// configShardWriter inserts documents of its own, and raises a number.
type configShardWriter struct {
	id          int
	known       map[int]bool // documents that were sent: acknowledged
	least, most int          // what the number may be
}

const (
	configShardSlot    = 1_000_000 // ids of a writer
	configShardWriters = 3
)

func (l *configShardLoad) prepare() {
	l.t.Helper()
	l.c.admin(bson.D{{Key: "enableSharding", Value: "own"}, {Key: "primaryShard", Value: shardName(0)}})
	l.c.admin(bson.D{{Key: "enableSharding", Value: "placed"}, {Key: "primaryShard", Value: shardName(0)}})
	l.c.admin(bson.D{{Key: "shardCollection", Value: "own.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	for i := range configShardWriters {
		for _, at := range []int{0, 100, 1000} {
			l.c.admin(bson.D{{Key: "split", Value: "own.c"}, {Key: "middle", Value: bson.D{{Key: "_id", Value: i*configShardSlot + at}}}})
		}
		if _, err := l.coll(l.c.client, "placed", "counts").InsertOne(l.t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "n", Value: 0}}); err != nil {
			l.t.Fatal(err)
		}
		l.writers = append(l.writers, &configShardWriter{id: i, known: map[int]bool{}})
	}
}

func (l *configShardLoad) coll(c *mongo.Client, db, name string) *mongo.Collection {
	return c.Database(db).Collection(name, options.Collection().SetWriteConcern(writeconcern.Majority()))
}

// stopped reports whether the clients are to stop.
func (l *configShardLoad) stopped() bool {
	select {
	case <-l.finished:
		return true
	default:
		return false
	}
}

// write runs a writer until the clients are to stop.
func (l *configShardLoad) write(w *configShardWriter, client *mongo.Client) {
	for n := 0; !l.stopped(); n++ {
		ctx, cancel := context.WithTimeout(context.Background(), shardedLimit)
		var err error
		if n%3 == 0 {
			w.most++
			if _, err = l.coll(client, "placed", "counts").UpdateOne(ctx, bson.D{{Key: "_id", Value: w.id}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err == nil {
				w.least++
			}
		} else {
			id := w.id*configShardSlot + n
			w.known[id] = false
			_, err = l.coll(client, "own", "c").InsertOne(ctx, bson.D{{Key: "_id", Value: id}})
			if mongo.IsDuplicateKeyError(err) {
				l.t.Errorf("document %d is inserted twice: %v", id, err)
			}
			w.known[id] = err == nil
		}
		cancel()
		if err != nil {
			l.errors.add("write", err)
			withoutServer()
			continue
		}
		l.acked.Add(1)
	}
}

// insist repeats a command until it succeeds, unless the clients are to stop; errors that report a state are left to is.
func (l *configShardLoad) insist(cmd bson.D, is func(reply bson.M) bool) {
	for !l.stopped() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		var reply bson.M
		err := l.mover.Database("admin").RunCommand(ctx, cmd).Decode(&reply)
		cancel()
		if err == nil && (is == nil || is(reply)) {
			return
		}
		if err != nil {
			l.errors.add(cmd[0].Key, err)
		}
		withoutServer()
	}
}

// chunks returns the ranges of the sharded collection that a shard has.
func (l *configShardLoad) chunks(shard string) (out []shardChunk) {
	ctx, cancel := context.WithTimeout(context.Background(), shardedLimit)
	defer cancel()
	cur, err := l.mover.Database("config").Collection("chunks").Find(ctx, bson.D{{Key: "shard", Value: shard}, {Key: "min._id", Value: bson.D{{Key: "$exists", Value: true}}}})
	if err == nil {
		err = cur.All(ctx, &out)
	}
	if err != nil {
		l.errors.add("chunks", err)
	}
	return out
}

func (l *configShardLoad) move(ch shardChunk, to string) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := l.mover.Database("admin").RunCommand(ctx, bson.D{{Key: "moveChunk", Value: "own.c"}, {Key: "bounds", Value: bson.A{ch.Min, ch.Max}}, {Key: "to", Value: to}}).Err()
	if err != nil {
		l.errors.add("moveChunk", err)
	}
}

// transitions makes the config server a shard, has it store chunks and a database, drains it, and so on.
func (l *configShardLoad) transitions(rnd *rand.Rand) {
	for !l.stopped() {
		l.insist(bson.D{{Key: "transitionFromDedicatedConfigServer", Value: 1}}, nil)
		for _, ch := range l.chunks(shardName(0)) {
			if rnd.Intn(2) == 0 && !l.stopped() {
				l.move(ch, "config")
			}
		}
		l.insist(bson.D{{Key: "movePrimary", Value: "placed"}, {Key: "to", Value: "config"}}, nil)
		if rnd.Intn(2) == 0 {
			l.insist(bson.D{{Key: "movePrimary", Value: "own"}, {Key: "to", Value: "config"}}, nil)
		}
		pauseUpTo(rnd, 500*time.Millisecond)
		l.drain(rnd)
		if !l.stopped() {
			l.cycles.Add(1)
		}
	}
}

// drain makes the config server a dedicated one.
func (l *configShardLoad) drain(rnd *rand.Rand) {
	done := func(reply bson.M) bool {
		if reply["state"] == "completed" {
			return true
		}
		to := shardName(rnd.Intn(len(l.c.shards)))
		for _, db := range []string{"own", "placed"} {
			l.insist(bson.D{{Key: "movePrimary", Value: db}, {Key: "to", Value: to}}, nil)
		}
		for _, ch := range l.chunks("config") {
			l.move(ch, to)
		}
		return false
	}
	l.insist(bson.D{{Key: "transitionToDedicatedConfigServer", Value: 1}}, func(reply bson.M) bool { return done(reply) })
}

// torment inflicts a fault on the config server, a shard, or a router.
func (l *configShardLoad) torment(i int, rnd *rand.Rand) {
	before := l.acked.Load()
	rs := l.c.config
	if i%3 == 2 {
		rs = l.c.shards[rnd.Intn(len(l.c.shards))]
	}
	victim, other := rs.pick(rnd)
	m := misfortunes[rnd.Intn(len(misfortunes))]
	if i < 2 || len(rs.members) == 1 {
		m = misfortunes[0] // kill
	}
	name := fmt.Sprintf("%s %s", m.name, rs.members[victim].name)
	var undo func()
	if i%7 == 6 {
		r := l.c.routers[rnd.Intn(len(l.c.routers))]
		r.end(syscall.SIGKILL)
		name, undo = "kill a router", r.start
	} else {
		undo = m.do(rs, victim, other)
	}
	pauseUpTo(rnd, electionTimeout)
	undo()
	l.t.Logf("%s: %d writes meanwhile, %d transitions there and back", name, l.acked.Load()-before, l.cycles.Load())
	pauseUpTo(rnd, time.Second)
}

// check compares the final state with what the writers know.
func (l *configShardLoad) check() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var docs []struct {
		ID int `bson:"_id"`
	}
	cur, err := l.coll(l.c.client, "own", "c").Find(ctx, bson.D{})
	if err == nil {
		err = cur.All(ctx, &docs)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	found := map[int]int{}
	for _, d := range docs {
		found[d.ID]++
	}
	acked := 0
	for _, w := range l.writers {
		for id, known := range w.known {
			if known {
				acked++
			}
			if found[id] > 1 || known && found[id] == 0 {
				l.t.Errorf("document %d is there %d times (acknowledged: %v)", id, found[id], known)
			}
		}
		var d struct{ N int }
		if err := l.coll(l.c.client, "placed", "counts").FindOne(ctx, bson.D{{Key: "_id", Value: w.id}}).Decode(&d); err != nil || d.N < w.least || d.N > w.most {
			l.t.Errorf("number %d is %d, between %d and %d were counted (%v)", w.id, d.N, w.least, w.most, err)
		}
	}
	l.t.Logf("%d documents acknowledged, %d there; %d transitions there and back", acked, len(docs), l.cycles.Load())
	if acked == 0 {
		l.t.Error("nothing was written")
	}
	for _, db := range []string{"own", "placed"} {
		names, err := l.c.config.awaitPrimary().direct.Database(db).ListCollectionNames(ctx, bson.D{})
		if err != nil || len(names) > 0 {
			l.t.Errorf("the dedicated config server has kept %v of %s (%v)", names, db, err)
		}
	}
}

// A config server becomes a shard and a dedicated config server again, and again, under writes and while servers are killed, paused, cut off and
// stepped down: every acknowledged write is there once, the catalog agrees with the shards, and the dedicated config server keeps nothing.
func TestConfigShardNemesis(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts several servers")
	}
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	limit, o := nemesisTime(4*time.Second), clusterOptions{shards: []int{1}, net: newNetwork(t), configArgs: []string{"--setParameter", "orphanCleanupDelaySecs=1"}}
	if limit > 20*time.Second {
		o.configs, o.routers, o.shards = 3, 2, []int{3, 1}
	}
	l := &configShardLoad{t: t, c: launchCluster(t, o), finished: make(chan struct{})}
	l.prepare()
	l.mover = connect(t, l.c.uri())
	var clients sync.WaitGroup
	for _, w := range l.writers {
		client := connect(t, l.c.uri())
		clients.Go(func() { l.write(w, client) })
	}
	clients.Go(func() { l.transitions(rand.New(rand.NewSource(seed + 1))) })
	goesOn(t, &l.acked)
	rnd := rand.New(rand.NewSource(seed))
	for i, end := 0, time.Now().Add(limit); i < 3 || time.Now().Before(end); i++ {
		l.torment(i, rnd)
	}
	l.c.waitReady()
	goesOn(t, &l.acked)
	from := l.cycles.Load()
	await.State(t, "another transition there and back", func() (int64, bool) { n := l.cycles.Load(); return n, n > from })
	close(l.finished)
	clients.Wait()
	l.finished = make(chan struct{}) // what follows may insist again
	l.drainAtLast(rnd)
	l.errors.log(t)
	l.c.shards = append(l.c.shards, l.c.config) // which has protocols and documents of a shard, too
	l.c.settle()
	l.c.checkCatalog("own", "c")
	l.check()
	for _, rs := range l.c.sets() {
		rs.sameEverywhere("own", "placed", "config")
	}
}

// drainAtLast makes the config server a dedicated one, unless it is.
func (l *configShardLoad) drainAtLast(rnd *rand.Rand) {
	l.insist(bson.D{{Key: "transitionFromDedicatedConfigServer", Value: 1}}, nil) // one that is draining remains so
	l.drain(rnd)
}
