package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// kindOfCollection is a kind of collection other than a plain one.
type kindOfCollection struct {
	name   string
	create func(coll string) (db, admin []bson.D) // the commands that create one, on two shards if it can be
	doc    func(n int) bson.D
	ops    []kindDDL
}

// kindDDL is a DDL of the collection x, whose coordinator is killed at its phases.
type kindDDL struct {
	name    string
	phases  []string
	db      string
	command bson.D
	again   int32 // the code with which the repeated command may fail, if the first one was done
	check   func(ctx context.Context, db *mongo.Database) error
}

func kindsOfCollections() []kindOfCollection {
	hashed := func(coll, field string, more ...bson.E) bson.D {
		return append(bson.D{{Key: "shardCollection", Value: "crash." + coll}, {Key: "key", Value: bson.D{{Key: field, Value: "hashed"}}}}, more...)
	}
	drop := kindDDL{
		name: "dropCollection", phases: []string{"enterCriticalSection", "dropCollection", "releaseCriticalSection", "done"}, db: "crash", command: bson.D{{Key: "drop", Value: "x"}},
		check: func(ctx context.Context, db *mongo.Database) error { return holds(ctx, db, map[string]int64{"x": 0}) },
	}
	rename := kindDDL{
		name: "renameCollection", phases: []string{"blockCrudAndRename", "renameMetadata", "unblockCRUD", "done"}, db: "admin", again: int32(mongoerr.NamespaceNotFound),
		command: bson.D{{Key: "renameCollection", Value: "crash.x"}, {Key: "to", Value: "crash.y"}, {Key: "dropTarget", Value: true}},
		check: func(ctx context.Context, db *mongo.Database) error {
			return holds(ctx, db, map[string]int64{"x": 0, "y": 100})
		},
	}
	changes := []string{"freezeMigrations", "checkShards", "updateShards", "unfreezeMigrations", "done"}
	return []kindOfCollection{
		{
			name: "timeseries",
			create: func(coll string) (db, admin []bson.D) {
				ts := bson.D{{Key: "timeField", Value: "t"}, {Key: "metaField", Value: "m"}}
				return nil, []bson.D{hashed(coll, "m", bson.E{Key: "timeseries", Value: ts})}
			},
			doc: func(n int) bson.D {
				return bson.D{{Key: "n", Value: n}, {Key: "m", Value: n % 10}, {Key: "t", Value: bson.DateTime(n * 1000)}}
			},
			ops: []kindDDL{drop, {
				name: "collMod", phases: changes, db: "crash",
				command: bson.D{{Key: "collMod", Value: "x"}, {Key: "timeseries", Value: bson.D{{Key: "granularity", Value: "minutes"}}}},
				check: func(ctx context.Context, db *mongo.Database) error {
					return listed(ctx, db, bson.D{{Key: "name", Value: "x"}, {Key: "options.timeseries.granularity", Value: "minutes"}})
				},
			}, {
				name: "createIndexes", phases: changes, db: "crash",
				command: bson.D{{Key: "createIndexes", Value: "x"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "m", Value: 1}, {Key: "n", Value: 1}}}, {Key: "name", Value: "mn"}}}}, {Key: "commitQuorum", Value: "majority"}},
				check: func(ctx context.Context, db *mongo.Database) error {
					specs, err := db.Collection("x").Indexes().ListSpecifications(ctx)
					if err == nil && len(specs) < 2 {
						err = fmt.Errorf("x has %d indexes", len(specs))
					}
					return err
				},
			}},
		}, {
			name: "capped",
			create: func(coll string) (db, admin []bson.D) {
				return []bson.D{{{Key: "create", Value: coll}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 24}}},
					[]bson.D{{{Key: "moveCollection", Value: "crash." + coll}, {Key: "toShard", Value: "shard00"}}}
			},
			doc: func(n int) bson.D { return bson.D{{Key: "n", Value: n}} },
			ops: []kindDDL{drop, rename, {
				name: "convertToCapped", phases: []string{"acquireCriticalSection", "copyCollection", "convertCollection", "releaseCriticalSection", "done"}, db: "crash",
				command: bson.D{{Key: "convertToCapped", Value: "x"}, {Key: "size", Value: 1 << 20}},
				check: func(ctx context.Context, db *mongo.Database) error {
					if err := listed(ctx, db, bson.D{{Key: "name", Value: "x"}, {Key: "options.size", Value: 1 << 20}}); err != nil {
						return err
					}
					return holds(ctx, db, map[string]int64{"x": 100})
				},
			}},
		}, {
			name: "clustered",
			create: func(coll string) (db, admin []bson.D) {
				return []bson.D{{{Key: "create", Value: coll}, {Key: "clusteredIndex", Value: bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "unique", Value: true}}}}},
					[]bson.D{hashed(coll, "_id")}
			},
			doc: func(n int) bson.D { return bson.D{{Key: "_id", Value: n}, {Key: "n", Value: n}} },
			ops: []kindDDL{drop, rename},
		},
	}
}

// holds compares the numbers of documents of collections.
func holds(ctx context.Context, db *mongo.Database, want map[string]int64) error {
	for coll, n := range want {
		have, err := db.Collection(coll).CountDocuments(ctx, bson.D{{Key: "n", Value: bson.D{{Key: "$lt", Value: 100}}}})
		if err == nil && have != n {
			err = fmt.Errorf("%s has %d documents, not %d", coll, have, n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// listed checks that a collection is listed as a filter says.
func listed(ctx context.Context, db *mongo.Database, filter bson.D) error {
	cur, err := db.ListCollections(ctx, filter) // the names alone are not filtered by options
	var found []bson.M
	if err == nil {
		err = cur.All(ctx, &found)
	}
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%v are listed as %v", found, filter)
	}
	return err
}

// A cluster is killed at a phase of each DDL of time series, capped and clustered collections, beside writes to another collection of the kind: the
// DDL is done afterwards, and no acknowledged write is missing. The long form, TestKilledKindsNemesis, takes each phase of each.
func TestKilledDDLOfOtherKinds(t *testing.T) {
	t.Parallel()
	killKinds(t, func(op int, phases []string) []string { return phases[op%len(phases) : op%len(phases)+1] })
}

func TestKilledKindsNemesis(t *testing.T) {
	if os.Getenv("SHOAL_NEMESIS") == "" {
		t.Skip("make nemesis runs it")
	}
	killKinds(t, func(_ int, phases []string) []string { return phases })
}

// killKinds kills a cluster at the chosen phases of the DDL of all kinds.
func killKinds(t *testing.T, choose func(op int, phases []string) []string) {
	for i, kind := range kindsOfCollections() {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
			defer cancel()
			dir, port := t.TempDir(), freePorts(t, 3)
			p := launch(t, dir, "--node-port", strconv.Itoa(port))
			for _, cmd := range []bson.D{{{Key: "balancerStop", Value: 1}}, {{Key: "enableSharding", Value: "crash"}, {Key: "primaryShard", Value: "shard01"}}} {
				if err := p.admin(cmd); err != nil {
					t.Fatal(err)
				}
			}
			kind.prepare(t, ctx, p, "kept")
			w := &keptWrites{kind: &kind, acknowledged: map[int]bool{}}
			for j, op := range kind.ops {
				for _, phase := range choose(i+j, op.phases) {
					p = kind.killAt(t, ctx, p, dir, port, &op, phase, w)
				}
			}
			p.kill(t)
		})
	}
}

// prepare creates a collection of the kind.
func (k *kindOfCollection) prepare(t *testing.T, ctx context.Context, p *process, coll string) {
	t.Helper()
	db, admin := k.create(coll)
	for _, cmd := range db {
		if err := p.client.Database("crash").RunCommand(ctx, cmd).Err(); err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
	}
	for _, cmd := range admin {
		if err := p.admin(cmd); err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
	}
}

// keptWrites inserts documents into the collection kept.
type keptWrites struct {
	kind *kindOfCollection
	next int

	mu           sync.Mutex
	acknowledged map[int]bool
}

// begin inserts until the returned function is called, or the server is gone.
func (w *keptWrites) begin(ctx context.Context, coll *mongo.Collection) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			n := w.next
			w.next++
			if _, err := coll.InsertOne(ctx, w.kind.doc(n)); err != nil {
				continue
			}
			w.mu.Lock()
			w.acknowledged[n] = true
			w.mu.Unlock()
		}
	}()
	return func() { cancel(); <-done }
}

// check finds all acknowledged documents, and none twice.
func (w *keptWrites) check(ctx context.Context, coll *mongo.Collection) error {
	cur, err := coll.Find(ctx, bson.D{})
	if err != nil {
		return err
	}
	var docs []struct{ N int }
	if err := cur.All(ctx, &docs); err != nil {
		return err
	}
	found := map[int]int{}
	for _, d := range docs {
		if found[d.N]++; found[d.N] > 1 {
			return fmt.Errorf("%d is there twice", d.N)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := range w.acknowledged {
		if found[n] == 0 {
			return fmt.Errorf("%d was acknowledged and is missing", n)
		}
	}
	return nil
}

// killAt runs a DDL on a process that is killed before a phase, and returns the process that replaced it.
func (k *kindOfCollection) killAt(t *testing.T, ctx context.Context, p *process, dir string, port int, op *kindDDL, phase string, w *keptWrites) *process {
	t.Helper()
	for _, left := range []string{"x", "y"} {
		if err := p.client.Database("crash").Collection(left).Drop(ctx); err != nil {
			t.Fatal(err)
		}
	}
	k.prepare(t, ctx, p, "x")
	var docs []any
	for n := range 100 {
		docs = append(docs, k.doc(n))
	}
	if _, err := p.client.Database("crash").Collection("x").InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	coordinator := member(t, port+2).Database("admin")
	const hang = "hangBeforeRunningShardingDDLPhase"
	if err := coordinator.RunCommand(ctx, bson.D{{Key: "configureFailPoint", Value: hang}, {Key: "mode", Value: "alwaysOn"},
		{Key: "data", Value: bson.D{{Key: "operationType", Value: op.name}, {Key: "phase", Value: phase}}}}).Err(); err != nil {
		t.Fatal(err)
	}
	end := w.begin(ctx, p.client.Database("crash").Collection("kept"))
	defer end()
	sent := make(chan error, 1)
	go func() { sent <- p.client.Database(op.db).RunCommand(ctx, op.command).Err() }()
	if err := coordinator.RunCommand(ctx, bson.D{{Key: "waitForFailPoint", Value: hang}, {Key: "timesEntered", Value: 1}, {Key: "maxTimeMS", Value: 60000}}).Err(); err != nil {
		t.Fatalf("%s of %s at %s: %v", op.name, k.name, phase, err)
	}
	p.kill(t)
	end()
	<-sent
	p = launch(t, dir, "--node-port", strconv.Itoa(port))
	db := p.client.Database("crash")
	end = w.begin(ctx, db.Collection("kept"))
	defer end()
	err := p.client.Database(op.db).RunCommand(ctx, append(op.command, bson.E{Key: "maxTimeMS", Value: 60000})).Err()
	var refused mongo.CommandError
	if err != nil && (!errors.As(err, &refused) || op.again == 0 || refused.Code != op.again) {
		t.Errorf("%s of %s killed at %s, again: %v", op.name, k.name, phase, err)
	}
	for i, s := range []*mongo.Client{member(t, port+1), member(t, port+2)} {
		for _, coll := range []string{"system.sharding_ddl_coordinators", "collection_critical_sections"} {
			awaitNone(t, ctx, fmt.Sprintf("%s of shard %d after %s", coll, i, phase), s.Database("config").Collection(coll))
		}
	}
	end()
	if err := op.check(ctx, db); err != nil {
		t.Errorf("%s of %s killed at %s: %v", op.name, k.name, phase, err)
	}
	if err := w.check(ctx, db.Collection("kept")); err != nil {
		t.Errorf("%s of %s killed at %s: %v", op.name, k.name, phase, err)
	}
	cur, err := p.client.Database("admin").RunCommandCursor(ctx, bson.D{{Key: "checkMetadataConsistency", Value: 1}, {Key: "checkIndexes", Value: true}})
	var bad []bson.M
	if err == nil {
		err = cur.All(ctx, &bad)
	}
	if err != nil || len(bad) > 0 {
		t.Errorf("%s of %s killed at %s: %v, %v", op.name, k.name, phase, bad, err)
	}
	return p
}
