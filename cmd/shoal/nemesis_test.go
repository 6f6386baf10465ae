package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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

// nemesisTime is the duration for which faults are injected; `make nemesis` asks for minutes.
func nemesisTime(otherwise time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv("SHOAL_NEMESIS")); err == nil {
		return d
	}
	return otherwise
}

// keepDir returns the directory in which failed tests keep logs and histories, "" for none.
func keepDir() string { return os.Getenv("SHOAL_KEEP_LOGS") }

const (
	registers       = 8
	nemesisClients  = 6
	registerTimeout = 5 * time.Second // of one operation
)

// worker is one client of the registers. Its session makes its reads follow its own writes.
type worker struct {
	id      int
	h       *history
	linear  *mongo.Collection // linearizable reads
	causal  *mongo.Collection // majority reads of secondaries, in a session
	log     *mongo.Collection
	seen    [registers]int // the newest version that this client has seen
	next    int
	logged  []int // ids of acknowledged inserts
	acked   *atomic.Int64
	session *mongo.Session
}

type register struct {
	V int `bson:"v"`
	N int `bson:"n"`
}

func newWorker(t *testing.T, id int, uri string, h *history, acked *atomic.Int64) *worker {
	c := connect(t, uri)
	s, err := c.StartSession(options.Session().SetCausalConsistency(true))
	if err != nil {
		t.Fatal(err)
	}
	w := writeconcern.Majority()
	open := func(name string, rc *readconcern.ReadConcern, rp *readpref.ReadPref) *mongo.Collection {
		return c.Database("nemesis").Collection(name, options.Collection().SetReadConcern(rc).SetReadPreference(rp).SetWriteConcern(w))
	}
	return &worker{
		id: id, h: h, acked: acked, session: s, log: open("log", readconcern.Local(), readpref.Primary()),
		linear: open("registers", readconcern.Linearizable(), readpref.Primary()),
		causal: open("registers", readconcern.Majority(), readpref.SecondaryPreferred()),
	}
}

// run does random operations until ctx ends.
func (w *worker) run(ctx context.Context, rnd *rand.Rand) {
	for ctx.Err() == nil {
		k := rnd.Intn(registers)
		octx, cancel := context.WithTimeout(context.Background(), registerTimeout)
		var err error
		switch rnd.Intn(6) {
		case 0, 1:
			err = w.read(octx, k)
		case 2:
			err = w.compareAndSet(octx, k)
		case 3:
			err = w.readCausal(octx, k)
		case 4:
			err = w.insert(octx)
		default:
			err = w.write(octx, k)
		}
		cancel()
		if err != nil {
			withoutServer()
		}
	}
}

func (w *worker) value() int {
	w.next++
	return w.next*nemesisClients + w.id + 1
}

// read reads linearizably.
func (w *worker) read(ctx context.Context, k int) error {
	call := w.h.now()
	var r register
	err := w.linear.FindOne(ctx, bson.D{{Key: "_id", Value: k}}).Decode(&r)
	if err != nil {
		return w.failed(regOp{kind: 'r', key: k}, call, err)
	}
	w.h.done(w.id, regOp{kind: 'r', key: k}, call, r)
	return nil
}

// failed records an operation that ended in an error. No register is ever missing.
func (w *worker) failed(op regOp, call int64, err error) error {
	if errors.Is(err, mongo.ErrNoDocuments) {
		w.h.violation("client %d does not find register %d: %c %v, %v after the start", w.id, op.key, op.kind, op, time.Since(w.h.start))
	}
	w.h.lost(w.id, op, call, err)
	return err
}

func (w *worker) write(ctx context.Context, k int) error {
	return w.modify(ctx, regOp{kind: 'w', key: k, new: w.value()}, bson.D{{Key: "_id", Value: k}})
}

func (w *worker) compareAndSet(ctx context.Context, k int) error {
	var r register
	if err := w.linear.FindOne(ctx, bson.D{{Key: "_id", Value: k}}).Decode(&r); err != nil {
		return err
	}
	op := regOp{kind: 'c', key: k, old: r.V, new: w.value()}
	return w.modify(ctx, op, bson.D{{Key: "_id", Value: k}, {Key: "v", Value: r.V}})
}

// modify writes a register in the worker's session, by findAndModify, which returns the version that it created.
func (w *worker) modify(ctx context.Context, op regOp, q bson.D) error {
	call := w.h.now()
	var r register
	u := bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: op.new}}}, {Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
	sctx := mongo.NewSessionContext(ctx, w.session)
	err := w.causal.FindOneAndUpdate(sctx, q, u, options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&r)
	if errors.Is(err, mongo.ErrNoDocuments) && op.kind == 'c' {
		return nil // it changed nothing and proves nothing: another primary may have run it
	}
	if err != nil {
		return w.failed(op, call, err)
	}
	if r.V != op.new {
		w.h.violation("register %d was set to %d and returned as %d", op.key, op.new, r.V)
	}
	w.h.done(w.id, op, call, r)
	w.seen[op.key] = max(w.seen[op.key], r.N)
	w.acked.Add(1)
	return nil
}

// readCausal does a majority read on a secondary, if there is one: never older than what the session has seen.
func (w *worker) readCausal(ctx context.Context, k int) error {
	call := w.h.now()
	var r register
	err := w.causal.FindOne(mongo.NewSessionContext(ctx, w.session), bson.D{{Key: "_id", Value: k}}).Decode(&r)
	if err != nil {
		return w.failed(regOp{kind: 'r', key: k}, call, err)
	}
	if r.N < w.seen[k] {
		w.h.violation("client %d read version %d of register %d after version %d", w.id, r.N, k, w.seen[k])
	}
	w.seen[k] = r.N
	w.h.saw(k, r.N, r.V)
	return nil
}

func (w *worker) insert(ctx context.Context) error {
	id := w.value()
	_, err := w.log.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "by", Value: w.id}})
	if err == nil {
		w.logged = append(w.logged, id)
		w.acked.Add(1)
	} else if mongo.IsDuplicateKeyError(err) {
		w.h.violation("an insert of %d was tried again and met itself: %v", id, err)
	}
	return err
}

// misfortune is a fault of members. It inflicts the fault, and returns a function that undoes it.
type misfortune struct {
	name string
	do   func(rs *replicaSet, victim, other int) (undo func())
}

var misfortunes = []misfortune{
	{"kill", func(rs *replicaSet, v, _ int) func() { rs.kill(v); return func() { rs.start(v) } }},
	{"pause", func(rs *replicaSet, v, _ int) func() { rs.members[v].pause(); return rs.members[v].resume }},
	{"isolate", func(rs *replicaSet, v, _ int) func() { rs.net.isolate(rs.members[v].id); return rs.net.heal }},
	{"deafen", func(rs *replicaSet, v, o int) func() {
		rs.net.sever(rs.members[o].id, rs.members[v].id)
		return rs.net.heal
	}},
	{"kill two", func(rs *replicaSet, v, o int) func() {
		rs.kill(v)
		rs.kill(o)
		return func() { rs.start(v); rs.start(o) }
	}},
	{"step down", func(rs *replicaSet, v, _ int) func() {
		stepDownOf(rs, v)
		return func() {}
	}},
	{"stop", func(rs *replicaSet, v, _ int) func() {
		rs.members[v].end(syscall.SIGTERM)
		return func() { rs.start(v) }
	}},
}

// stepDownOf asks a member to step down.
func stepDownOf(rs *replicaSet, i int) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = rs.members[i].direct.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetStepDown", Value: 5}, {Key: "secondaryCatchUpPeriodSecs", Value: 2}}).Err()
}

// pick chooses the victim of a fault: the primary more often than not.
func (rs *replicaSet) pick(rnd *rand.Rand) (victim, other int) {
	if len(rs.members) == 1 {
		return 0, 0
	}
	victim = rs.primary()
	if victim < 0 || rnd.Intn(3) == 0 {
		victim = rnd.Intn(len(rs.members))
	}
	return victim, (victim + 1 + rnd.Intn(len(rs.members)-1)) % len(rs.members)
}

// torment inflicts faults, one after the other, until its time is over.
func torment(t *testing.T, rs *replicaSet, rnd *rand.Rand, limit time.Duration, acked *atomic.Int64) {
	for i, end := 0, time.Now().Add(limit); time.Now().Before(end); i++ {
		victim, other := rs.pick(rnd)
		// The first three are the ones that the short form must not omit.
		m := misfortunes[i%len(misfortunes)]
		if i >= 3 {
			m = misfortunes[rnd.Intn(len(misfortunes))]
		}
		before := acked.Load()
		undo := m.do(rs, victim, other)
		lasts(rnd)
		t.Logf("%s %d (%d): %d writes meanwhile", m.name, victim, other, acked.Load()-before)
		undo()
		quiet(rnd)
	}
}

// lasts pauses for the duration of a fault.
func lasts(rnd *rand.Rand) { pause(electionTimeout + time.Duration(rnd.Intn(1500))*time.Millisecond) }

// quiet pauses before the next one.
func quiet(rnd *rand.Rand) { pause(time.Duration(500+rnd.Intn(1000)) * time.Millisecond) }

// goesOn waits until some more writes are acknowledged.
func goesOn(t *testing.T, acked *atomic.Int64) {
	t.Helper()
	from := acked.Load()
	await.State(t, "more writes are acknowledged", func() (int64, bool) { n := acked.Load() - from; return n, n >= 100 })
}

// getsToAll waits, when the faults are over, until operations of all kinds have succeeded. Beside faults, and with the time limits that they need, a machine that is
// busy may not get to some; now each of them succeeds before thousands of others have.
func getsToAll(t *testing.T, acked *atomic.Int64, untried func() []string) {
	t.Helper()
	const enough = 20_000
	from := acked.Load()
	missing := await.Progress(t, "operations of all kinds succeed", func() (missing progress, over bool) {
		missing = progress{acked.Load() - from, strings.Join(untried(), ", ")}
		return missing, missing.untried == "" || missing.acked > enough
	})
	if missing.untried != "" {
		t.Errorf("%d other operations succeeded, but none of: %s", missing.acked, missing.untried)
	}
}

// progress is what was done since the faults were over.
type progress struct {
	acked   int64
	untried string
}

// Whatever happens to a minority (and, briefly, a majority), no acknowledged write is lost and no linearizable read is
// stale; in the end, all members have the same content.
func TestNemesis(t *testing.T) {
	t.Parallel()
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	rs := launchSet(t, setOptions{members: 3, net: newNetwork(t), args: smallPieces[:2]})
	rnd := rand.New(rand.NewSource(seed))
	admin := connect(t, rs.uri())
	var docs []any
	for k := range registers {
		docs = append(docs, bson.D{{Key: "_id", Value: k}, {Key: "v", Value: 0}, {Key: "n", Value: 0}})
	}
	all := options.Collection().SetWriteConcern(writeconcern.Majority())
	if _, err := admin.Database("nemesis").Collection("registers", all).InsertMany(context.Background(), docs); err != nil {
		t.Fatal(err)
	}
	h := newHistory()
	var acked atomic.Int64
	working, done := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	workers := make([]*worker, nemesisClients)
	for i := range workers {
		w := newWorker(t, i, rs.uri(), h, &acked)
		workers[i] = w
		wg.Add(1)
		go func() {
			defer wg.Done()
			w.run(working, rand.New(rand.NewSource(seed+int64(i)+1)))
		}()
	}
	large := &largeWriter{l: &clusterLoad{t: t, h: h}}
	for i, f := range []func(context.Context, *mongo.Client, *rand.Rand) error{large.write, large.read} {
		client, rnd := connect(t, rs.uri()), rand.New(rand.NewSource(seed+int64(100+i)))
		wg.Go(func() {
			for working.Err() == nil {
				octx, cancel := large.l.operation()
				_ = f(octx, client, rnd)
				cancel()
			}
		})
	}
	goesOn(t, &acked)
	watched := rs.watchPrimary(h.start)
	for round := 0; round == 0 || round < longestRounds && h.isShort(); round++ {
		torment(t, rs, rnd, nemesisTime(9*time.Second), &acked)
	}
	rs.waitReady()
	t.Logf("the longest time without a primary: %v", watched().Round(time.Millisecond))
	goesOn(t, &acked)
	large.l.calm.Store(true)
	getsToAll(t, &acked, func() (kinds []string) {
		if large.acked.Load() == 0 {
			kinds = append(kinds, "large transactions")
		}
		if h.isShort() {
			kinds = append(kinds, "registers")
		}
		return kinds
	})
	done()
	wg.Wait()
	checkLog(t, admin, workers)
	large.check(admin)
	large.l.errors.log(t)
	rs.sameEverywhere("nemesis", "config", "admin")
	h.check(t, 30*time.Second)
}

// checkLog looks for the acknowledged inserts.
func checkLog(t *testing.T, c *mongo.Client, workers []*worker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cur, err := c.Database("nemesis").Collection("log").Find(ctx, bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var docs []struct {
		ID int `bson:"_id"`
	}
	if err := cur.All(ctx, &docs); err != nil {
		t.Fatal(err)
	}
	there := map[int]bool{}
	for _, d := range docs {
		if there[d.ID] {
			t.Errorf("insert %d is there twice", d.ID)
		}
		there[d.ID] = true
	}
	var lost []string
	n := 0
	for _, w := range workers {
		n += len(w.logged)
		for _, id := range w.logged {
			if !there[id] {
				lost = append(lost, fmt.Sprint(id))
			}
		}
	}
	t.Logf("%d inserts acknowledged, %d there", n, len(there))
	if len(lost) > 0 {
		t.Errorf("%d acknowledged inserts are lost: %s", len(lost), strings.Join(lost, " "))
	}
}
