package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
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

// asWhole as the value of asShoal makes the test binary behave as the real server.
const asWhole = "whole"

// crashRounds is the number of times that a server is killed in each topology; the environment can ask for more.
func crashRounds(otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv("SHOAL_CRASH_ROUNDS")); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// process is a whole cluster, or another topology of `shoal start`, in a process of its own, and a client of it.
type process struct {
	*server
	client *mongo.Client
	at     string // host:port
}

// launch starts `shoal start` on a directory and waits until it accepts connections.
func launch(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	s := unstarted(t, nil, "start")
	s.args = append([]string{"start", "--listen", s.listensAt(), "--data-dir", dir, "--set-parameter", "enableTestCommands=1", "--set-parameter", "orphanCleanupDelaySecs=0"}, args...)
	s.start()
	await.True(t, "every port accepts connections", func() bool { return s.logHas(`"id":23016`, 1) }) // the first may do so before the others
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + s.listensAt() + "/?directConnection=true").SetRetryWrites(false).
		SetRetryReads(false).SetServerSelectionTimeout(5 * time.Second).SetHeartbeatInterval(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	s.direct = client
	return &process{server: s, client: client, at: s.listensAt()}
}

// kill ends the process without warning.
func (p *process) kill(*testing.T) {
	p.server.kill()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.client.Disconnect(ctx) // its sessions can no longer be ended
}

func (p *process) admin(cmd bson.D) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return p.client.Database("admin").RunCommand(ctx, cmd).Err()
}

// must runs commands of administration that have to succeed.
func (p *process) must(t *testing.T, cmds ...bson.D) {
	t.Helper()
	for _, cmd := range cmds {
		if err := p.admin(cmd); err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
	}
}

const absent = -1

// crashModel is the model of one writer: for each key of its own, the values that it may have. There are several if the
// server was killed before it replied.
type crashModel struct {
	writer   int
	possible map[int][]int
	next     int
	acked    int
	moving   bool // chunks move under the writes
}

func (m *crashModel) only(k int) (int, bool) {
	p, ok := m.possible[k]
	if !ok {
		return absent, true
	}
	return p[0], len(p) == 1
}

// outcome records the outcome of writes that set keys to new values.
func (m *crashModel) outcome(err error, set map[int]int) {
	for k, v := range set {
		old, ok := m.possible[k]
		if !ok {
			old = []int{absent}
		}
		if err == nil {
			m.possible[k] = []int{v}
		} else if !slices.Contains(old, v) {
			m.possible[k] = append(slices.Clone(old), v)
		}
	}
	if err == nil {
		m.acked++
	}
}

const (
	crashWriters = 4
	crashKeys    = 60 // of each writer
	crashGroup   = 6  // keys that a multi-update writes at once
)

func (m *crashModel) key(i int) int { return i*crashWriters + m.writer }

// step does one random write.
func (m *crashModel) step(ctx context.Context, coll *mongo.Collection, rnd *rand.Rand) error {
	m.next++
	v := m.next*crashWriters + m.writer
	i := rnd.Intn(crashKeys)
	k := m.key(i)
	switch now, known := m.only(k); {
	case !known:
		return nil
	case now == absent && rnd.Intn(3) == 0:
		return m.insertMany(ctx, coll, i, v)
	case now == absent:
		_, err := coll.InsertOne(ctx, crashDoc(k, v, i))
		m.outcome(err, map[int]int{k: v})
		return err
	}
	byKey := bson.D{{Key: "_id", Value: k}}
	set := bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: v}, {Key: "pad", Value: make([]byte, rnd.Intn(2000))}}}}
	var err error
	switch rnd.Intn(6) {
	case 0:
		_, err = coll.DeleteOne(ctx, byKey)
		m.outcome(err, map[int]int{k: absent})
	case 1:
		err = m.updateMany(ctx, coll, i/crashGroup, v)
	case 2:
		err = coll.FindOneAndUpdate(ctx, byKey, set).Err()
		m.outcome(err, map[int]int{k: v})
	default:
		_, err = coll.UpdateOne(ctx, byKey, set)
		m.outcome(err, map[int]int{k: v})
	}
	return err
}

func crashDoc(k, v, i int) bson.D {
	return bson.D{{Key: "_id", Value: k}, {Key: "v", Value: v}, {Key: "g", Value: k%crashWriters*1000 + i/crashGroup}, {Key: "a", Value: bson.A{v, k}}}
}

// insertMany inserts the absent keys of a group in one command.
func (m *crashModel) insertMany(ctx context.Context, coll *mongo.Collection, i, v int) error {
	var docs []any
	set := map[int]int{}
	for j := i / crashGroup * crashGroup; j < (i/crashGroup+1)*crashGroup; j++ {
		if now, known := m.only(m.key(j)); known && now == absent {
			docs = append(docs, crashDoc(m.key(j), v, j))
			set[m.key(j)] = v
		}
	}
	_, err := coll.InsertMany(ctx, docs, options.InsertMany().SetOrdered(i%2 == 0))
	m.outcome(err, set)
	return err
}

// updateMany writes to all documents of a group.
func (m *crashModel) updateMany(ctx context.Context, coll *mongo.Collection, g, v int) error {
	set := map[int]int{}
	for j := g * crashGroup; j < (g+1)*crashGroup; j++ {
		now, known := m.only(m.key(j))
		if !known {
			return nil
		}
		if now != absent {
			set[m.key(j)] = v
		}
	}
	r, err := coll.UpdateMany(ctx, bson.D{{Key: "g", Value: m.writer*1000 + g}}, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: v}}}})
	if err == nil && int(r.MatchedCount) != len(set) {
		if !m.moving {
			return fmt.Errorf("a multi-update matched %d documents, %d are there", r.MatchedCount, len(set))
		}
		// As documented, a document that changes shards meanwhile may be missed or met twice.
		m.outcome(errors.New("in part"), set)
		return nil
	}
	m.outcome(err, set)
	return err
}

// died reports whether an error only means that the server is gone.
func died(err error) bool {
	var we mongo.WriteException
	var ce mongo.CommandError
	var be mongo.BulkWriteException
	switch {
	case err == nil:
		return true
	case errors.As(err, &ce):
		return ce.HasErrorLabel("NetworkError") || mongo.IsNetworkError(err)
	case errors.As(err, &we), errors.As(err, &be), errors.Is(err, mongo.ErrNoDocuments):
		return false
	}
	return true
}

// crashDDL creates and drops indexes and collections, and records what was acknowledged: nil for unknown.
type crashDDL struct {
	indexes, colls map[string]*bool
}

func (d *crashDDL) step(ctx context.Context, db *mongo.Database, coll string, rnd *rand.Rand) error {
	yes := rnd.Intn(2) == 0
	name := fmt.Sprintf("x%d", rnd.Intn(4))
	var err error
	switch which := d.colls; {
	case rnd.Intn(2) == 0:
		which = d.indexes
		if yes {
			_, err = db.Collection(coll).Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "a", Value: 1}, {Key: name, Value: 1}}, Options: options.Index().SetName(name)})
		} else if err = db.Collection(coll).Indexes().DropOne(ctx, name); codeOf(err) == int32(mongoerr.IndexNotFound) || codeOf(err) == int32(mongoerr.NamespaceNotFound) {
			err = nil // no such index, or no collection before the first insert
		}
		which[name] = acknowledged(err, yes)
	default:
		if yes {
			if err = db.CreateCollection(ctx, name); codeOf(err) == int32(mongoerr.NamespaceExists) {
				err = nil
			}
		} else {
			err = db.Collection(name).Drop(ctx)
		}
		which[name] = acknowledged(err, yes)
	}
	return err
}

func acknowledged(err error, v bool) *bool {
	if err != nil {
		return nil
	}
	return &v
}

func codeOf(err error) int32 {
	var ce mongo.CommandError
	if errors.As(err, &ce) {
		return ce.Code
	}
	return 0
}

// crashPlaces splits and moves chunks of the collection.
func crashPlaces(p *process, ns string, rnd *rand.Rand) error {
	at := bson.D{{Key: "_id", Value: rnd.Intn(crashKeys * crashWriters)}}
	var err error
	if rnd.Intn(4) == 0 {
		err = p.admin(bson.D{{Key: "split", Value: ns}, {Key: "middle", Value: at}})
	} else {
		err = p.admin(bson.D{{Key: "moveChunk", Value: ns}, {Key: "find", Value: at}, {Key: "to", Value: fmt.Sprintf("shard%02d", rnd.Intn(2))}})
	}
	if c := codeOf(err); c != 0 && !died(err) {
		return nil // an existing bound, a running migration, an index build: irrelevant here
	}
	return err
}

// crashRun is one test: a directory, its servers one after the other, and what is known of the data.
type crashRun struct {
	dir    string
	args   []string
	shards bool
	models []*crashModel
	ddl    crashDDL
}

const crashNS = "crash.c"

// load writes until the server is killed, which happens after about d.
func (c *crashRun) load(t *testing.T, p *process, seed int64, d time.Duration) {
	ctx := context.Background()
	db := p.client.Database("crash")
	var wg sync.WaitGroup
	var dead atomic.Bool
	run := func(what string, n int64, f func(rnd *rand.Rand) error) {
		rnd := rand.New(rand.NewSource(seed*100 + n))
		wg.Add(1)
		go func() {
			defer wg.Done()
			for !dead.Load() {
				if err := f(rnd); err != nil {
					if !died(err) {
						t.Errorf("%s: %v", what, err)
					}
					return
				}
			}
		}()
	}
	for i, m := range c.models {
		run("writer", int64(i), func(rnd *rand.Rand) error { return m.step(ctx, db.Collection("c"), rnd) })
	}
	run("ddl", 50, func(rnd *rand.Rand) error { return c.ddl.step(ctx, db, "c", rnd) })
	if c.shards {
		run("placement", 51, func(rnd *rand.Rand) error { return crashPlaces(p, crashNS, rnd) })
	}
	pause(d) // the kill comes at any moment of the load
	dead.Store(true)
	p.kill(t)
	wg.Wait()
}

// check compares the data of a restarted server with what is known, and adds to that.
func (c *crashRun) check(t *testing.T, p *process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	db := p.client.Database("crash")
	cur, err := db.Collection("c").Find(ctx, bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var docs []struct {
		ID int `bson:"_id"`
		V  int
	}
	if err := cur.All(ctx, &docs); err != nil {
		t.Fatal(err)
	}
	got := map[int]int{}
	for _, d := range docs {
		if _, twice := got[d.ID]; twice {
			t.Errorf("key %d is there twice", d.ID)
		}
		got[d.ID] = d.V
	}
	known := 0
	for _, m := range c.models {
		for k, possible := range m.possible {
			v, ok := got[k]
			if !ok {
				v = absent
			}
			delete(got, k)
			if !slices.Contains(possible, v) {
				t.Errorf("key %d has %d, possible are %v", k, v, possible)
			}
			m.possible[k] = []int{v}
			known += m.acked
		}
	}
	if len(got) > 0 {
		t.Errorf("documents that nobody wrote: %v", got)
	}
	if known == 0 {
		t.Error("nothing was acknowledged: the test proves nothing")
	}
	c.checkIndexes(t, ctx, db, len(docs))
	c.checkDDL(t, ctx, db)
}

// checkIndexes has the server compare records and indexes, and counts through each index.
func (c *crashRun) checkIndexes(t *testing.T, ctx context.Context, db *mongo.Database, n int) {
	t.Helper()
	var v struct {
		Valid bool
		Raw   bson.M
	}
	raw, err := db.RunCommand(ctx, bson.D{{Key: "validate", Value: "c"}, {Key: "full", Value: true}}).Raw()
	if err != nil {
		t.Fatal(err)
	}
	if err := bson.Unmarshal(raw, &v); err != nil || !v.Valid {
		t.Errorf("validate: %v %v", err, raw)
	}
	specs, err := db.Collection("c").Indexes().ListSpecifications(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		if w, ours := c.ddl.indexes[s.Name]; ours && w == nil {
			continue // begun when the server was killed: some shards may have it, others not
		}
		cur, err := db.Collection("c").Find(ctx, bson.D{}, options.Find().SetHint(s.Name))
		if err != nil {
			t.Fatal(s.Name, err)
		}
		var found []bson.Raw
		if err := cur.All(ctx, &found); err != nil || len(found) != n {
			t.Errorf("index %s leads to %d documents of %d (%v)", s.Name, len(found), n, err)
		}
	}
}

func (c *crashRun) checkDDL(t *testing.T, ctx context.Context, db *mongo.Database) {
	t.Helper()
	names, err := db.ListCollectionNames(ctx, bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	specs, err := db.Collection("c").Indexes().ListSpecifications(ctx)
	if err != nil {
		t.Fatal(err)
	}
	compareDDL(t, "collection", c.ddl.colls, func(name string) bool { return slices.Contains(names, name) })
	compareDDL(t, "index", c.ddl.indexes, func(name string) bool {
		return slices.ContainsFunc(specs, func(s mongo.IndexSpecification) bool { return s.Name == name })
	})
}

func compareDDL(t *testing.T, what string, want map[string]*bool, there func(string) bool) {
	t.Helper()
	for name, w := range want {
		if w != nil && *w != there(name) {
			t.Errorf("%s %s: there is %v, acknowledged was %v", what, name, there(name), *w)
		}
	}
}

// Servers are killed at random moments under every kind of write. What they acknowledged is there afterwards; what they
// did not reply to may be there or not, but never in part.
func TestKilledServerLosesNothing(t *testing.T) {
	t.Parallel()
	for _, topology := range []string{"replset", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			seed := time.Now().UnixNano() % 1e6
			t.Logf("seed %d", seed)
			rnd := rand.New(rand.NewSource(seed))
			c := &crashRun{dir: t.TempDir(), args: []string{"--topology", topology}, shards: topology == "sharded",
				ddl: crashDDL{indexes: map[string]*bool{}, colls: map[string]*bool{}}}
			for w := range crashWriters {
				c.models = append(c.models, &crashModel{writer: w, moving: c.shards, possible: map[int][]int{}})
			}
			for round := range crashRounds(3) {
				p := launch(t, c.dir, c.args...)
				if round == 0 && c.shards {
					c.shard(t, p)
				}
				if round > 0 {
					c.check(t, p)
				}
				c.load(t, p, seed+int64(round), 300*time.Millisecond+time.Duration(rnd.Intn(700))*time.Millisecond)
				if t.Failed() {
					return
				}
			}
			p := launch(t, c.dir, c.args...)
			c.check(t, p)
			p.kill(t)
		})
	}
}

func (c *crashRun) shard(t *testing.T, p *process) {
	t.Helper()
	p.must(t,
		bson.D{{Key: "shardCollection", Value: crashNS}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}},
		bson.D{{Key: "split", Value: crashNS}, {Key: "middle", Value: bson.D{{Key: "_id", Value: 80}}}},
		bson.D{{Key: "split", Value: crashNS}, {Key: "middle", Value: bson.D{{Key: "_id", Value: 160}}}},
	)
}
