package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"reflect"
	"strconv"
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
	"github.com/shoaldb/shoal/internal/isolation"
)

const (
	openLists  = 72      // at a time, at most; each is replaced when it is full
	fewLists   = 12      // of the tests with few clients
	listLength = 40      // appends begun
	listSlot   = 1 << 20 // a list's _id is slot*listSlot + generation

	// epochLength is the number of transactions that share lists: the history of an epoch is checked, and forgotten, while later ones run, so that
	// a long run needs no more memory than a short one. No dependency leads from one epoch to another, because they share no list.
	epochLength = 50000
)

// appender appends numbers to lists in transactions over all shards, and records what they saw for package isolation.
type appender struct {
	t    *testing.T
	coll func(*mongo.Client) *mongo.Collection
	gate sync.RWMutex // held shared by transactions

	committed atomic.Int64 // transactions
	mu        struct {
		sync.Mutex
		epoch   epoch
		before  *epoch         // the previous one, which is not checked yet
		begun   [openLists]int // appends to the slots' lists, including earlier ones
		number  int
		checked [3]int // transactions of checked epochs by outcome
		// checking counts the transactions of the epochs that are being checked.
		checking int
	}
}

// epoch is a part of a run.
type epoch struct {
	history []isolation.Txn
	first   [openLists]int // generation of the slots' first lists
	last    [openLists]int // and of their last, once the epoch is over
}

// appendsWanted is the number of transactions on lists to run: SHOAL_APPENDS=1000000 asks for the long form of TestListAppend and for
// TestListNemesis, which runs until it has completed them.
func appendsWanted(otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv("SHOAL_APPENDS")); err == nil {
		return n
	}
	return otherwise
}

// begun returns how many transactions have begun, and how many of them are checked.
func (a *appender) begun() (n, checked int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.mu.checked {
		checked += k
	}
	n = checked + a.mu.checking + len(a.mu.epoch.history)
	if a.mu.before != nil {
		n += len(a.mu.before.history)
	}
	return n, checked
}

// turn ends an epoch when no transaction is under way, and checks the one before it: its unknown outcomes have long been decided.
func (a *appender) turn(client *mongo.Client) {
	a.gate.Lock()
	a.mu.Lock()
	if len(a.mu.epoch.history) < epochLength { // another client was first
		a.mu.Unlock()
		a.gate.Unlock()
		return
	}
	before := a.endEpoch()
	a.mu.Unlock()
	a.gate.Unlock()
	if before != nil {
		a.checkEpoch(client, before)
	}
}

// endEpoch begins a new epoch with new lists, and returns the one that is to be checked now; nil if there is none. a.mu must be held.
func (a *appender) endEpoch() (due *epoch) {
	over := a.mu.epoch
	a.mu.epoch = epoch{}
	for slot, n := range a.mu.begun {
		over.last[slot] = n / listLength
		a.mu.epoch.first[slot] = n/listLength + 1
		a.mu.begun[slot] = (n/listLength + 1) * listLength
	}
	if due, a.mu.before = a.mu.before, &over; due != nil {
		a.mu.checking += len(due.history)
	}
	return due
}

// checkEpoch reads the lists of an epoch and checks its history against them.
func (a *appender) checkEpoch(client *mongo.Client, e *epoch) {
	var which bson.A
	for slot := range openLists {
		which = append(which, bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: slot*listSlot + e.first[slot]}, {Key: "$lte", Value: slot*listSlot + e.last[slot]}}}})
	}
	var final map[string][]int
	var err error
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(time.Second) { // a nemesis may be at work; the lists are long
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		final, err = listsOf(ctx, a.coll(client), bson.D{{Key: "$or", Value: which}})
		cancel()
		if err == nil || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		a.t.Errorf("the lists of an epoch: %v", err)
		return
	}
	var n [3]int
	for _, x := range e.history {
		n[x.Outcome]++
	}
	for i, x := range isolation.Check(e.history, final) {
		if a.t.Errorf("%v", x); i == 10 {
			break
		}
	}
	a.mu.Lock()
	total := 0
	a.mu.checking -= len(e.history)
	for i := range n {
		a.mu.checked[i] += n[i]
		total += a.mu.checked[i]
	}
	a.mu.Unlock()
	a.t.Logf("%s: %d transactions on lists are checked", time.Now().UTC().Format(time.TimeOnly), total)
}

// slotRange is the slots that a client chooses from.
type slotRange struct{ first, n int }

// plan chooses the operations of a transaction.
func (a *appender) plan(rnd *rand.Rand, slots slotRange) (id int, ops []isolation.Op, lists []int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for range 1 + rnd.Intn(4) {
		slot := slots.first + rnd.Intn(slots.n)
		list := slot*listSlot + a.mu.begun[slot]/listLength
		o := isolation.Op{List: strconv.Itoa(list)}
		if rnd.Intn(2) == 0 {
			a.mu.begun[slot]++
			a.mu.number++
			o.Append = a.mu.number
		}
		ops, lists = append(ops, o), append(lists, list)
	}
	h := &a.mu.epoch.history
	*h = append(*h, isolation.Txn{ID: len(*h)})
	return len(*h) - 1, ops, lists
}

// run is one transaction, at a snapshot, on a few lists.
func (a *appender) run(ctx context.Context, client *mongo.Client, rnd *rand.Rand) error {
	return a.runOn(ctx, client, rnd, slotRange{0, fewLists})
}

// runOn is run on the lists of some slots.
func (a *appender) runOn(ctx context.Context, client *mongo.Client, rnd *rand.Rand, slots slotRange) error {
	a.gate.RLock()
	id, ops, lists := a.plan(rnd, slots)
	outcome, err := a.try(ctx, client, ops, lists)
	a.mu.Lock()
	h := a.mu.epoch.history
	h[id].Ops, h[id].Outcome = ops, outcome
	over := len(h) >= epochLength
	a.mu.Unlock()
	if outcome == isolation.Committed {
		a.committed.Add(1)
	}
	a.gate.RUnlock()
	if over {
		a.turn(client)
	}
	return err
}

func (a *appender) try(ctx context.Context, client *mongo.Client, ops []isolation.Op, lists []int) (isolation.Outcome, error) {
	s, err := client.StartSession()
	if err != nil {
		return isolation.Aborted, err
	}
	defer s.EndSession(context.Background())
	if err := s.StartTransaction(options.Transaction().SetReadConcern(readconcern.Snapshot()).SetWriteConcern(writeconcern.Majority()).SetReadPreference(readpref.Primary())); err != nil {
		return isolation.Aborted, err
	}
	in := mongo.NewSessionContext(ctx, s)
	coll := a.coll(client)
	for i, o := range ops {
		q := bson.D{{Key: "_id", Value: lists[i]}}
		if o.Append != 0 {
			_, err = coll.UpdateOne(in, q, bson.D{{Key: "$push", Value: bson.D{{Key: "v", Value: o.Append}}}}, options.UpdateOne().SetUpsert(true))
		} else {
			var doc struct{ V []int }
			if err = coll.FindOne(in, q).Decode(&doc); errors.Is(err, mongo.ErrNoDocuments) {
				err = nil
			}
			ops[i].Read = doc.V
		}
		if err != nil {
			_ = s.AbortTransaction(in)
			return isolation.Aborted, err // its commit was not requested
		}
	}
	for try := 0; ; try++ {
		err := s.CommitTransaction(in)
		switch {
		case err == nil:
			return isolation.Committed, nil
		case labelled(err, "TransientTransactionError"):
			return isolation.Aborted, err
		case try == 3 || ctx.Err() != nil || !labelled(err, "UnknownTransactionCommitResult"):
			return isolation.Unknown, err
		}
	}
}

// check checks what has not been checked yet, and returns all lists.
func (a *appender) check(t *testing.T, client *mongo.Client) map[string][]int {
	t.Helper()
	a.mu.Lock()
	var due []*epoch
	for range 2 {
		if e := a.endEpoch(); e != nil {
			due = append(due, e)
		}
	}
	a.mu.Unlock()
	for _, e := range due {
		a.checkEpoch(client, e)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	final, err := listsOf(ctx, a.coll(client), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	n := a.mu.checked
	t.Logf("transactions on lists: %d committed, %d aborted, %d of unknown outcome; %d lists", n[isolation.Committed], n[isolation.Aborted], n[isolation.Unknown], len(final))
	if n[isolation.Committed] == 0 {
		t.Error("no transaction on lists committed")
	}
	return final
}

func listsOf(ctx context.Context, coll *mongo.Collection, which bson.D) (map[string][]int, error) {
	cur, err := coll.Find(ctx, which)
	if err != nil {
		return nil, err
	}
	var docs []struct {
		ID int `bson:"_id"`
		V  []int
	}
	if err := cur.All(ctx, &docs); err != nil {
		return nil, err
	}
	out := map[string][]int{}
	for _, d := range docs {
		out[strconv.Itoa(d.ID)] = d.V
	}
	return out, nil
}

// listWatcher replays a change stream of the lists, which it closes and resumes at random.
type listWatcher struct {
	coll    func(*mongo.Client) *mongo.Collection
	token   bson.Raw
	resumed int
	mu      struct {
		sync.Mutex
		lists  map[string][]int // nil before the stream is open
		events int
		err    error // the error that ended it
	}
}

// open reports whether the stream has begun.
func (w *listWatcher) open() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.lists != nil
}

// has reports whether the events produce the lists, or can no longer do so.
func (w *listWatcher) has(final map[string][]int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.err != nil || reflect.DeepEqual(w.mu.lists, final)
}

// follow replays events until ctx ends. It continues where it ended the last time.
func (w *listWatcher) follow(ctx context.Context, client *mongo.Client, rnd *rand.Rand) {
	for ctx.Err() == nil {
		opts := options.ChangeStream().SetMaxAwaitTime(100 * time.Millisecond)
		if w.token != nil {
			opts.SetResumeAfter(w.token)
			w.resumed++
		}
		cs, err := w.coll(client).Watch(ctx, mongo.Pipeline{}, opts)
		if err != nil {
			withoutServer()
			continue
		}
		w.token = cs.ResumeToken()
		w.mu.Lock()
		if w.mu.lists == nil {
			w.mu.lists = map[string][]int{}
		}
		w.mu.Unlock()
		for left := 20 + rnd.Intn(400); left > 0 && ctx.Err() == nil; left-- {
			if cs.TryNext(ctx) {
				w.mu.Lock()
				w.mu.events++
				if w.mu.err == nil {
					w.mu.err = w.apply(cs.Current)
				}
				w.mu.Unlock()
			} else if cs.Err() != nil || cs.ID() == 0 {
				break
			}
			w.token = cs.ResumeToken()
		}
		_ = cs.Close(context.Background())
	}
}

// apply replays an event. w.mu must be held.
func (w *listWatcher) apply(raw bson.Raw) error {
	var e struct {
		DocumentKey struct {
			ID int `bson:"_id"`
		} `bson:"documentKey"`
		FullDocument      struct{ V []int } `bson:"fullDocument"`
		UpdateDescription struct {
			UpdatedFields bson.D `bson:"updatedFields"`
		} `bson:"updateDescription"`
	}
	if err := bson.Unmarshal(raw, &e); err != nil {
		return err
	}
	lists, id := w.mu.lists, strconv.Itoa(e.DocumentKey.ID)
	switch kind := raw.Lookup("operationType").StringValue(); kind {
	case "insert":
		if _, ok := lists[id]; ok {
			return fmt.Errorf("list %s is inserted twice", id)
		}
		lists[id] = e.FullDocument.V
	case "update":
		for _, f := range e.UpdateDescription.UpdatedFields {
			at, err := strconv.Atoi(strings.TrimPrefix(f.Key, "v."))
			n, ok := f.Value.(int32)
			if err != nil || !ok || at != len(lists[id]) {
				return fmt.Errorf("list %s has %d numbers, and then %s = %v", id, len(lists[id]), f.Key, f.Value)
			}
			lists[id] = append(lists[id], int(n))
		}
	default:
		return fmt.Errorf("an event of type %s: %v", kind, raw)
	}
	return nil
}

// Transactions on lists over several shards, through two routers, while their ranges move: what they saw can have happened under
// snapshot isolation, and a change stream that is closed and resumed reproduces the lists. SHOAL_APPENDS sets the number of
// transactions.
func TestListAppend(t *testing.T) {
	t.Parallel()
	want := appendsWanted(1500)
	if testing.Short() {
		want = appendsWanted(300)
	}
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	x, y := twoRouters(t)
	admin := func(cmd bson.D) error { return x.Database("admin").RunCommand(context.Background(), cmd).Err() }
	split := func() error {
		if err := admin(bson.D{{Key: "shardCollection", Value: "append.lists"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}}); err != nil {
			return err
		}
		for i := 1; i < fewLists; i += 2 {
			if err := admin(bson.D{{Key: "split", Value: "append.lists"}, {Key: "middle", Value: bson.D{{Key: "_id", Value: i * listSlot}}}}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := split(); err != nil {
		t.Fatal(err)
	}
	var shards []string
	if err := x.Database("config").Collection("shards").Distinct(context.Background(), "_id", bson.D{}).Decode(&shards); err != nil {
		t.Fatal(err)
	}
	a := &appender{t: t, coll: func(c *mongo.Client) *mongo.Collection { return c.Database("append").Collection("lists") }}
	w := &listWatcher{coll: a.coll}
	ctx, cancel := context.WithCancel(context.Background())
	var clients, others sync.WaitGroup
	others.Go(func() { w.follow(ctx, y, rand.New(rand.NewSource(seed))) })
	moved := 0
	others.Go(func() {
		rnd := rand.New(rand.NewSource(seed + 1))
		for ctx.Err() == nil {
			id := rnd.Intn(fewLists) * listSlot
			if admin(bson.D{{Key: "moveChunk", Value: "append.lists"}, {Key: "find", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "to", Value: shards[rnd.Intn(len(shards))]}}) == nil {
				moved++
			}
			pauseUpTo(rnd, 50*time.Millisecond)
		}
	})
	await.True(t, "the stream is open", func() bool { return w.open() })
	for i := range 6 {
		rnd := rand.New(rand.NewSource(seed + 2 + int64(i)))
		clients.Go(func() {
			for range want / 6 {
				octx, cancel := context.WithTimeout(ctx, 30*time.Second)
				_ = a.run(octx, []*mongo.Client{x, y}[rnd.Intn(2)], rnd)
				cancel()
			}
		})
	}
	clients.Wait()
	final := a.check(t, x)
	await.True(t, "the stream has given what there is", func() bool { return w.has(final) })
	cancel()
	others.Wait()
	if w.mu.err != nil {
		t.Error(w.mu.err)
	}
	t.Logf("%d ranges moved, %d events, resumed %d times", moved, w.mu.events, w.resumed)
	if moved == 0 || w.resumed == 0 {
		t.Error("not everything was tried")
	}
}
