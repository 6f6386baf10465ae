package main

import (
	"context"
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shoaldb/shoal/internal/await"
)

const (
	moneyAccounts = 24
	moneyEach     = 100
	counters      = 3
	shardedLimit  = 8 * time.Second // of one operation through a router
)

// tally counts errors by message.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (e *tally) add(what string, err error) {
	e.mu.Lock()
	if e.n == nil {
		e.n = map[string]int{}
	}
	e.n[what+": "+err.Error()]++
	e.mu.Unlock()
}

func (e *tally) log(t *testing.T) {
	for s, n := range e.n {
		t.Logf("%d times: %s", n, s)
	}
}

// clusterLoad has the clients of a sharded cluster, and the model of what they have written.
type clusterLoad struct {
	t       *testing.T
	c       *shardedCluster
	h       *history // of the registers
	workers []*worker
	acked   atomic.Int64 // writes of any kind
	errors  tally
	many    []*manyWriter // the first one through the idle router
	longer  *longer
	ddl     *anyDDL // nil in the short form
	large   *largeWriter
	waiters []*waiter
	waited  int // writes that waited for an isolated member
	lists   *appender
	watcher *listWatcher

	transfers, totals, counted, unknown, moved, balanced, shuffled atomic.Int64

	shuffling atomic.Bool // the balancer moves chunks at random
	calm      atomic.Bool // the faults are over: an operation may take as long as it needs

	mu struct {
		sync.Mutex
		pairs map[int]bool // by number: acknowledged
	}
}

// prepare creates the collections, each in chunks on all shards.
func (l *clusterLoad) prepare() {
	l.t.Helper()
	c := l.c
	c.shard("nemesis.registers", registers/4, registers/2, 3*registers/4)
	c.shard("nemesis.log", 300, 1000, 3000, 10000, 30000, 100000)
	c.shard("nemesis.counters", 1, 2)
	l.prepareAccounts()
	c.shard("nemesis.pairs", "b", "c")
	fill := map[string][]any{}
	for i := range registers {
		fill["registers"] = append(fill["registers"], bson.D{{Key: "_id", Value: i}, {Key: "v", Value: 0}, {Key: "n", Value: 0}})
	}
	for i := range counters {
		fill["counters"] = append(fill["counters"], bson.D{{Key: "_id", Value: i}, {Key: "n", Value: 0}})
	}
	l.many = []*manyWriter{
		{l: l, coll: "many", rest: func(rnd *rand.Rand) time.Duration { return time.Duration(rnd.Intn(2000)) * time.Millisecond }},
		{l: l, coll: "more", rest: func(rnd *rand.Rand) time.Duration { return time.Duration(rnd.Intn(100)) * time.Millisecond }},
	}
	for _, w := range l.many {
		w.prepare()
	}
	l.longer = &longer{l: l}
	l.longer.prepare()
	if l.ddl != nil {
		l.ddl.prepare()
	}
	c.shard("nemesis.large", 5, 10)
	l.large = &largeWriter{l: l}
	for _, w := range l.waiters {
		w.prepare()
	}
	c.shard("nemesis.lists", 2*listSlot, 5*listSlot, 8*listSlot)
	l.prepareLists()
	for name, docs := range fill {
		if _, err := l.db(c.client).Collection(name).InsertMany(context.Background(), docs); err != nil {
			l.t.Fatal(err)
		}
	}
}

func (l *clusterLoad) prepareLists() {
	lists := func(c *mongo.Client) *mongo.Collection { return l.db(c).Collection("lists") }
	l.lists, l.watcher = &appender{t: l.t, coll: lists}, &listWatcher{coll: lists}
}

func (l *clusterLoad) prepareAccounts() {
	l.t.Helper()
	c := l.c
	c.shard("nemesis.accounts", moneyAccounts/3, 2*moneyAccounts/3)
	var docs []any
	for i := range moneyAccounts {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "x", Value: moneyEach}})
	}
	if _, err := l.db(c.client).Collection("accounts").InsertMany(context.Background(), docs); err != nil {
		l.t.Fatal(err)
	}
	// A router that does not know of this yet may begin a transaction at an earlier time.
	routers := c.routers
	if c.idle != nil {
		routers = append([]*server{c.idle}, routers...)
	}
	for _, r := range routers {
		if n, err := l.db(r.direct).Collection("accounts").CountDocuments(context.Background(), bson.D{}); n != moneyAccounts || err != nil {
			l.t.Fatalf("%s finds %d accounts (%v)", r.name, n, err)
		}
	}
}

// operation returns the context of one operation.
func (l *clusterLoad) operation() (context.Context, context.CancelFunc) {
	if l.calm.Load() {
		return context.WithTimeout(context.Background(), 5*time.Minute)
	}
	return context.WithTimeout(context.Background(), shardedLimit)
}

// db is the database with the write concern of a client that must lose nothing.
func (l *clusterLoad) db(c *mongo.Client) *mongo.Database {
	return c.Database("nemesis", options.Database().SetWriteConcern(writeconcern.Majority()))
}

// start begins all clients; stop ends them and waits.
func (l *clusterLoad) start(seed int64) (stop func()) {
	ctx, done := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	n := int64(0)
	begin := func(f func(rnd *rand.Rand)) {
		n++
		rnd := rand.New(rand.NewSource(seed + n))
		wg.Add(1)
		go func() { defer wg.Done(); f(rnd) }()
	}
	repeatAt := func(uri string, f func(ctx context.Context, client *mongo.Client, rnd *rand.Rand) error) {
		client := connect(l.t, uri)
		begin(func(rnd *rand.Rand) {
			for ctx.Err() == nil {
				octx, cancel := l.operation()
				if f(octx, client, rnd) != nil {
					withoutServer()
				}
				cancel()
			}
		})
	}
	repeat := func(f func(ctx context.Context, client *mongo.Client, rnd *rand.Rand) error) { repeatAt(l.c.uri(), f) }
	for i := range 3 {
		w := newWorker(l.t, i, l.c.uri(), l.h, &l.acked)
		l.workers = append(l.workers, w)
		begin(func(rnd *rand.Rand) { w.run(ctx, rnd) })
	}
	for i := range counters {
		repeat(l.counter(i))
	}
	repeat(l.transfer)
	repeat(l.transfer)
	repeat(l.pair)
	repeat(l.total)
	repeatAt("mongodb://"+l.c.idle.at()+"/", l.many[0].write)
	repeat(l.many[1].write)
	for _, f := range []func(context.Context, *mongo.Client, *rand.Rand) error{l.longer.readCausally, l.longer.commitTwice, l.longer.cursor, l.longer.heldCursor, l.longer.life} {
		repeat(f)
	}
	for _, w := range l.waiters {
		repeat(w.write)
	}
	if l.ddl != nil {
		repeat(l.ddl.any)
		repeat(l.ddl.insert)
		repeat(l.ddl.insert)
	}
	repeat(l.large.write)
	repeat(l.large.read)
	watching := connect(l.t, l.c.uri())
	begin(func(rnd *rand.Rand) { l.watcher.follow(ctx, watching, rnd) })
	await.True(l.t, "a change stream of the lists", l.watcher.open)
	repeat(l.lists.run)
	repeat(l.lists.run)
	mover := connect(l.t, l.c.uri())
	begin(func(rnd *rand.Rand) { l.c.moveSome(ctx, mover, rnd, l) })
	balancer := connect(l.t, l.c.uri())
	begin(func(rnd *rand.Rand) { l.c.rebalance(ctx, balancer, rnd, l) })
	return func() { done(); wg.Wait() }
}

// counter raises one number by retryable writes of one session. Once a later write of the session is acknowledged, none
// before it can still happen, so that what is read then is known exactly.
func (l *clusterLoad) counter(id int) func(context.Context, *mongo.Client, *rand.Rand) error {
	var session *mongo.Session
	least, most, raised := 0, 0, false
	return func(ctx context.Context, client *mongo.Client, rnd *rand.Rand) error {
		if session == nil {
			s, err := client.StartSession()
			if err != nil {
				return err
			}
			session = s
		}
		if err := l.strayTransaction(ctx, client, session, rnd); err != nil {
			return err
		}
		coll := l.db(client).Collection("counters", options.Collection().SetReadConcern(readconcern.Linearizable()))
		q := bson.D{{Key: "_id", Value: id}}
		if !raised || rnd.Intn(4) > 0 {
			writes := coll
			if id == 0 && rnd.Intn(4) == 0 { // it waits for a stopped member
				writes = client.Database("nemesis").Collection("counters", options.Collection().SetWriteConcern(&writeconcern.WriteConcern{W: 3}))
			}
			r, err := writes.UpdateOne(mongo.NewSessionContext(ctx, session), q, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
			if raised = err == nil; err != nil {
				most++
				l.unknown.Add(1)
				l.errors.add("counter", err)
				return err
			}
			least, most = least+1, most+1
			l.counted.Add(1)
			l.acked.Add(1)
			if r.MatchedCount != 1 {
				l.h.violation("counter %d is not found: %+v", id, r)
			}
			return nil
		}
		var d struct{ N int }
		if err := coll.FindOne(ctx, q).Decode(&d); err != nil {
			l.errors.add("counter read", err)
			return err
		}
		if d.N < least || d.N > most {
			l.h.violation("counter %d is at %d, between %d and %d were counted (%v after the start)", id, d.N, least, most, time.Since(l.h.start))
		}
		least, most = d.N, d.N
		return nil
	}
}

// strayTransaction sometimes begins a transaction in the session of a counter, and abandons it: the shard that it wrote to may
// not learn of that, nor of the retryable writes that follow it, until a chunk brings their history.
func (l *clusterLoad) strayTransaction(ctx context.Context, client *mongo.Client, session *mongo.Session, rnd *rand.Rand) error {
	if rnd.Intn(8) > 0 {
		return nil
	}
	if err := session.StartTransaction(options.Transaction().SetWriteConcern(writeconcern.Majority())); err != nil {
		return err
	}
	_, err := l.db(client).Collection("shelf").UpdateOne(mongo.NewSessionContext(ctx, session), bson.D{{Key: "_id", Value: rnd.Intn(shelfDocs)}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	if err != nil {
		l.errors.add("stray transaction", err)
	}
	_ = session.AbortTransaction(ctx)
	return nil
}

// transfer moves money from one account to another.
func (l *clusterLoad) transfer(ctx context.Context, client *mongo.Client, rnd *rand.Rand) error {
	from, to, amount := rnd.Intn(moneyAccounts), rnd.Intn(moneyAccounts), 1+rnd.Intn(5)
	err := l.inTransaction(ctx, client, func(ctx context.Context, db *mongo.Database) error {
		for _, move := range []struct{ id, by int }{{from, -amount}, {to, amount}} {
			r, err := db.Collection("accounts").UpdateOne(ctx, bson.D{{Key: "_id", Value: move.id}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "x", Value: move.by}}}})
			if err != nil {
				return err
			}
			if r.MatchedCount != 1 {
				l.h.violation("account %d is not found (%v after the start)", move.id, time.Since(l.h.start))
			}
		}
		return nil
	})
	if err != nil {
		l.errors.add("transfer", err)
		return err
	}
	l.transfers.Add(1)
	l.acked.Add(1)
	return nil
}

// pair inserts two documents, usually on different shards: both are there, or none.
func (l *clusterLoad) pair(ctx context.Context, client *mongo.Client, _ *rand.Rand) error {
	l.mu.Lock()
	n := len(l.mu.pairs)
	l.mu.pairs[n] = false
	l.mu.Unlock()
	err := l.inTransaction(ctx, client, func(ctx context.Context, db *mongo.Database) error {
		for _, half := range "abc" {
			if _, err := db.Collection("pairs").InsertOne(ctx, bson.D{{Key: "_id", Value: fmt.Sprintf("%c%d", half, n)}, {Key: "pair", Value: n}}); err != nil {
				return err
			}
		}
		return nil
	})
	if mongo.IsDuplicateKeyError(err) {
		l.h.violation("pair %d met itself: %v (%v after the start)", n, err, time.Since(l.h.start))
	}
	if err != nil {
		l.errors.add("pair", err)
		return err
	}
	l.acked.Add(1)
	l.mu.Lock()
	l.mu.pairs[n] = true
	l.mu.Unlock()
	return nil
}

func (l *clusterLoad) inTransaction(ctx context.Context, client *mongo.Client, f func(context.Context, *mongo.Database) error) error {
	s, err := client.StartSession()
	if err != nil {
		return err
	}
	defer s.EndSession(context.Background())
	_, err = s.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		return nil, f(ctx, l.db(client))
	}, options.Transaction().SetReadConcern(readconcern.Snapshot()).SetWriteConcern(writeconcern.Majority()))
	return err
}

// total sums up all money, by one of the kinds of consistent reads, and counts all accounts by a read without a
// snapshot, which finds each of them once wherever the chunks are.
func (l *clusterLoad) total(ctx context.Context, client *mongo.Client, rnd *rand.Rand) error {
	var docs []struct{ X int }
	read := func(ctx context.Context, db *mongo.Database) error {
		cur, err := db.Collection("accounts").Find(ctx, bson.D{}, options.Find().SetBatchSize(int32(5+rnd.Intn(30))))
		if err != nil {
			return err
		}
		docs = nil
		return cur.All(ctx, &docs)
	}
	way := []string{"a transaction", "a snapshot", "a snapshot of secondaries", "a plain read"}[rnd.Intn(4)]
	err := l.readBy(ctx, client, way, read)
	if err != nil {
		l.errors.add("total by "+way, err)
		return err
	}
	sum := 0
	for _, d := range docs {
		sum += d.X
	}
	if len(docs) != moneyAccounts || sum != moneyAccounts*moneyEach && way != "a plain read" {
		l.h.violation("%s has %d accounts with %d in all (%v after the start)", way, len(docs), sum, time.Since(l.h.start))
	}
	l.totals.Add(1)
	return nil
}

func (l *clusterLoad) readBy(ctx context.Context, client *mongo.Client, way string, read func(context.Context, *mongo.Database) error) error {
	db := l.db(client)
	switch way {
	case "a transaction":
		return l.inTransaction(ctx, client, read)
	case "a plain read":
		return read(ctx, db)
	case "a snapshot of secondaries":
		db = client.Database("nemesis", options.Database().SetReadPreference(readpref.SecondaryPreferred()))
	}
	s, err := client.StartSession(options.Session().SetSnapshot(true))
	if err != nil {
		return err
	}
	defer s.EndSession(context.Background())
	return read(mongo.NewSessionContext(ctx, s), db)
}

// checkPairs looks for the acknowledged pairs, and for halves of any.
func (l *clusterLoad) checkPairs() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var docs []struct{ Pair int }
	cur, err := l.db(l.c.client).Collection("pairs").Find(ctx, bson.D{})
	if err == nil {
		err = cur.All(ctx, &docs)
	}
	if err != nil {
		l.t.Error(err)
		return
	}
	found := map[int]int{}
	for _, d := range docs {
		found[d.Pair]++
	}
	acked := 0
	for n, known := range l.mu.pairs {
		if known {
			acked++
		}
		if found[n] != 3 && (known || found[n] != 0) {
			l.t.Errorf("of pair %d there are %d documents (acknowledged: %v)", n, found[n], known)
		}
	}
	l.t.Logf("%d pairs acknowledged, %d there", acked, len(found))
}

// checkIdle has the idle router, whose placement lacks the latest moves, read a collection that has moved after the first
// statement of a transaction, and write to all of it: a transaction that was restarted forever would never commit.
func (l *clusterLoad) checkIdle() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	w, moved := l.many[0], 0
	for i := range 3 {
		err := l.c.client.Database("admin").RunCommand(ctx, bson.D{{Key: "moveRange", Value: "nemesis." + w.coll}, {Key: "min", Value: bson.D{{Key: "_id", Value: manyDocs / 3 * (i % 2)}}},
			{Key: "toShard", Value: shardName(i)}, {Key: "waitForDelete", Value: true}}).Err()
		if err != nil {
			l.t.Logf("moveRange: %v", err)
			continue
		}
		moved++
		tries := 0
		err = l.inTransaction(ctx, l.c.idle.direct, func(ctx context.Context, db *mongo.Database) error {
			tries++
			if err := db.Collection("stubs").FindOne(ctx, bson.D{}).Err(); err != nil {
				return err
			}
			r, err := db.Collection(w.coll).UpdateMany(ctx, bson.D{{Key: "kept", Value: true}}, bson.D{{Key: "$set", Value: bson.D{{Key: "last", Value: i}}}})
			if err == nil && r.MatchedCount != manyDocs {
				l.t.Errorf("a stale router's transaction matched %d documents of %d", r.MatchedCount, manyDocs)
			}
			return err
		})
		if err != nil || tries > 10 {
			l.t.Errorf("a stale router's transaction after move %d was tried %d times: %v", i, tries, err)
		}
	}
	if moved == 0 {
		l.t.Error("no range was moved without the idle router's knowledge")
	}
}

// troubles are faults of more than one member of a set.
var troubles = []struct {
	name string
	do   func(c *shardedCluster, rnd *rand.Rand) (undo func())
}{
	{"kill a router", func(c *shardedCluster, rnd *rand.Rand) func() {
		r := c.routers[rnd.Intn(len(c.routers))]
		r.kill()
		return r.start
	}},
	{"pause a router", func(c *shardedCluster, rnd *rand.Rand) func() {
		r := c.routers[rnd.Intn(len(c.routers))]
		r.pause()
		return r.resume
	}},
	{"cut a router from a shard", func(c *shardedCluster, rnd *rand.Rand) func() {
		r, rs := c.routers[rnd.Intn(len(c.routers))], c.shards[rnd.Intn(len(c.shards))]
		m := rs.members[max(rs.primary(), 0)]
		c.net.sever(r.id, m.id)
		c.net.sever(m.id, r.id)
		return c.net.heal
	}},
	{"cut two shards from each other", func(c *shardedCluster, rnd *rand.Rand) func() {
		one, two := c.twoShards(rnd)
		a, b := one.members[max(one.primary(), 0)], two.members[max(two.primary(), 0)]
		c.net.sever(a.id, b.id)
		c.net.sever(b.id, a.id)
		return c.net.heal
	}},
	{"cut a shard from the config server", func(c *shardedCluster, rnd *rand.Rand) func() {
		rs := c.shards[rnd.Intn(len(c.shards))]
		a, b := rs.members[max(rs.primary(), 0)], c.config.members[max(c.config.primary(), 0)]
		c.net.sever(a.id, b.id)
		c.net.sever(b.id, a.id)
		return c.net.heal
	}},
	{"kill the primaries of two shards", func(c *shardedCluster, rnd *rand.Rand) func() {
		one, two := c.twoShards(rnd)
		a, b := max(one.primary(), 0), max(two.primary(), 0)
		one.kill(a)
		two.kill(b)
		return func() { one.start(a); two.start(b) }
	}},
	{"kill everything of a set", func(c *shardedCluster, rnd *rand.Rand) func() {
		rs := c.sets()[rnd.Intn(len(c.shards)+1)]
		if rs == c.config {
			c.awaitDDL()
		}
		for i := range rs.members {
			rs.kill(i)
		}
		return func() {
			for i := range rs.members {
				rs.start(i)
			}
		}
	}},
}

func (c *shardedCluster) twoShards(rnd *rand.Rand) (a, b *replicaSet) {
	order := rnd.Perm(len(c.shards))
	return c.shards[order[0]], c.shards[order[1]]
}

// misfortune inflicts a fault on a set, or on the cluster as a whole, and returns its name.
func (l *clusterLoad) misfortune(i int, rnd *rand.Rand) (name string, undo func()) {
	if len(l.waiters) > 0 && (i == 3 || i > 3 && rnd.Intn(16) == 0) {
		return l.keepAway(rnd)
	}
	return l.c.misfortune(i, rnd)
}

func (c *shardedCluster) misfortune(i int, rnd *rand.Rand) (name string, undo func()) {
	sets := c.sets()
	rs := sets[(i+1)%len(sets)] // a shard first
	m := misfortunes[rnd.Intn(len(misfortunes))]
	switch {
	case i < 3: // those that the short form must not omit, on the config server too
		rs, m = sets[(i+1)%3], misfortunes[i]
	case rnd.Intn(3) == 0:
		m := troubles[rnd.Intn(len(troubles))]
		return m.name, m.do(c, rnd)
	}
	if len(rs.members) == 1 {
		m = misfortunes[i%2]
	}
	if rs == c.config {
		c.awaitDDL()
	}
	victim, other := rs.pick(rnd)
	return fmt.Sprintf("%s %s (%d)", m.name, rs.members[victim].name, other), m.do(rs, victim, other)
}

// torment inflicts faults on a whole cluster until its time is over; often the next one begins before one ends.
func (l *clusterLoad) torment(rnd *rand.Rand, limit time.Duration) {
	for i, end := 0, time.Now().Add(limit); i < 3 || time.Now().Before(end); i++ {
		l.tormentOnce(i, rnd)
	}
}

// tormentOnce inflicts the i-th fault.
func (l *clusterLoad) tormentOnce(i int, rnd *rand.Rand) {
	before, began := l.acked.Load(), time.Since(l.h.start).Round(time.Millisecond)
	name, undo := l.misfortune(i, rnd)
	lasts(rnd)
	l.t.Logf("%v: %s: %d writes meanwhile", began, name, l.acked.Load()-before)
	undo()
	quiet(rnd)
}

// Whatever happens to the members of shards and config server, and to the routers, while chunks move: acknowledged
// writes exist once; the money is constant in every snapshot; the members of each shard agree, and so do catalog and
// shards.
func TestShardedNemesis(t *testing.T) {
	t.Parallel()
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	limit := nemesisTime(8 * time.Second)
	configs, routers, third := 1, 1, 1
	if limit > 20*time.Second {
		configs, routers, third = 3, 2, 3
	}
	l := &clusterLoad{t: t, c: launchCluster(t, clusterOptions{configs: configs, routers: routers, shards: []int{3, 3, third}, net: newNetwork(t), shardArgs: smallPieces[:2]}), h: newHistory()}
	l.c.addIdle()
	if third == 3 {
		l.ddl = &anyDDL{l: l}
		l.waiters = []*waiter{{l: l, id: "waiting write"}, {l: l, id: "waiting transaction", transaction: true}}
	}
	l.mu.pairs = map[int]bool{}
	l.prepare()
	unwatch := l.c.watchWhole()
	stop := l.start(seed)
	goesOn(t, &l.acked)
	var watched []func() time.Duration
	for _, rs := range l.c.sets() {
		watched = append(watched, rs.watchPrimary(l.h.start))
	}
	l.c.awaitDDL = l.longer.awaitDDL
	rnd := rand.New(rand.NewSource(seed))
	for round := 0; round == 0 || round < longestRounds && !l.triedAll(); round++ {
		l.torment(rnd, limit)
	}
	l.c.waitReady()
	for i, rs := range l.c.sets() {
		t.Logf("%s: the longest time without a primary: %v", rs.name, watched[i]().Round(time.Millisecond))
	}
	goesOn(t, &l.acked)
	l.calm.Store(true)
	getsToAll(t, &l.acked, l.untried)
	secondaries := l.c.secondaryQueries()
	stop()
	unwatch()
	t.Logf("%d chunks moved by the balancer at random, %d cursors held over %d migrations of their collection, %d finds at secondaries since their start", l.shuffled.Load(), l.longer.held.Load(), heldMoves, secondaries)
	t.Logf("every set had a primary for %v of %v at least", time.Duration(l.c.whole.Load()).Round(time.Second), time.Since(l.h.start).Round(time.Second))
	t.Logf("%d transfers, %d totals, %d counted (%d unknown), %d chunks moved, split or merged, %d times balanced", l.transfers.Load(), l.totals.Load(), l.counted.Load(), l.unknown.Load(), l.moved.Load(), l.balanced.Load())
	l.errors.log(t)
	l.c.settle()
	l.check()
	for _, w := range l.waiters {
		t.Logf("%s: %d acknowledged", w.id, w.done)
		if w.done == 0 || l.waited == 0 {
			t.Errorf("%s: %d acknowledged, %d waited for a member that was kept away", w.id, w.done, l.waited)
		}
	}
}

// triedAll reports whether the kinds of operations that take turns with each other have succeeded, and enough operations were recorded.
func (l *clusterLoad) triedAll() bool {
	return l.transfers.Load() > 0 && l.totals.Load() > 0 && l.counted.Load() > 0 && l.moved.Load() > 0 && l.shuffled.Load() > 0 && l.longer.held.Load() > 0 && !l.h.isShort()
}

// untried names the kinds of operations of which none has succeeded yet.
func (l *clusterLoad) untried() (kinds []string) {
	o := l.longer
	for _, k := range []struct {
		name string
		done int64
	}{
		{"transfers", l.transfers.Load()}, {"totals", l.totals.Load()}, {"counted", l.counted.Load()}, {"moves", l.moved.Load()}, {"random moves", l.shuffled.Load()},
		{"held cursors", o.held.Load()}, {"causal reads", o.causal.Load()}, {"commits sent again", o.commits.Load()}, {"cursors", o.cursors.Load()}, {"lives of collections", o.lives.Load()},
		{"many", l.many[0].done.Load()}, {"more", l.many[1].done.Load()}, {"large transactions", l.large.acked.Load()}, {"transactions on lists", l.lists.committed.Load()},
	} {
		if k.done == 0 {
			kinds = append(kinds, k.name)
		}
	}
	if l.h.isShort() {
		kinds = append(kinds, "registers")
	}
	if len(kinds) == 0 && l.c.secondaryQueries() == 0 {
		kinds = append(kinds, "reads from secondaries")
	}
	return kinds
}

// check compares the final state with what clients know.
func (l *clusterLoad) check() {
	l.t.Helper()
	checkLog(l.t, l.c.client, l.workers)
	l.checkPairs()
	for _, w := range l.many {
		w.check()
	}
	l.longer.check()
	if l.ddl != nil {
		l.ddl.check(l.t, nemesisTime(0) >= 5*time.Minute)
	}
	l.large.check(l.c.client)
	l.checkIdle()
	l.checkLists()
	l.checkTotals()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for i := range counters {
		if n, err := l.db(l.c.client).Collection("counters").CountDocuments(ctx, bson.D{{Key: "_id", Value: i}}); n != 1 || err != nil {
			l.t.Errorf("counter %d is there %d times (%v)", i, n, err)
		}
	}
	l.c.checkCatalog("nemesis", strings.Fields("registers log counters accounts pairs many more shelf stubs large lists")...)
	for _, rs := range l.c.sets() {
		rs.sameEverywhere("nemesis", "config", "admin")
	}
	l.h.check(l.t, 30*time.Second)
	for _, v := range l.h.split {
		l.c.showWrites(ctx, "nemesis.registers", v)
	}
}

// checkTotals sums up the money once more.
func (l *clusterLoad) checkTotals() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for range 8 { // in each direction
		if err := l.total(ctx, l.c.client, rand.New(rand.NewSource(time.Now().UnixNano()))); err != nil {
			l.t.Error(err)
		}
	}
}

// checkLists checks the transactions on lists for snapshot isolation, and compares what the change stream returned with the lists.
func (l *clusterLoad) checkLists() {
	l.t.Helper()
	final := l.lists.check(l.t, l.c.client)
	watching, stop := context.WithCancel(context.Background())
	var follower sync.WaitGroup
	follower.Go(func() { l.watcher.follow(watching, l.c.client, rand.New(rand.NewSource(1))) })
	await.True(l.t, "a change stream gives the lists", func() bool { return l.watcher.has(final) })
	stop()
	follower.Wait()
	if l.watcher.mu.err != nil {
		l.t.Error(l.watcher.mu.err)
	}
	l.t.Logf("%d events of the lists, the stream was resumed %d times", l.watcher.mu.events, l.watcher.resumed)
}
