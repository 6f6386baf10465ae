package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// killedDDL is an operation whose coordinator is killed at its phases.
type killedDDL struct {
	name   string
	phases []string
	// command is sent, with the whole process killed before a phase; and again when it is back.
	db      string
	command bson.D
	// prepare is sent to the database before, and admin to the database admin.
	prepare bson.D
	admin   []bson.D
	// again is the code with which the repeated command may fail, if the first one was done.
	again int32
	// check checks the state afterwards; the collection crash.c had documents on two shards.
	check func(t *testing.T, ctx context.Context, db *mongo.Database, shards []*mongo.Client)
}

var killedOperations = []killedDDL{
	{
		name: "dropCollection", phases: []string{"enterCriticalSection", "dropCollection", "releaseCriticalSection", "done"},
		db: "crash", command: bson.D{{Key: "drop", Value: "c"}},
		check: func(t *testing.T, ctx context.Context, db *mongo.Database, shards []*mongo.Client) {
			for i, s := range append(shards, db.Client()) {
				if n, err := s.Database("crash").Collection("c").CountDocuments(ctx, bson.D{}); n != 0 || err != nil {
					t.Errorf("%d documents are left on shard %d, %v", n, i, err)
				}
			}
		},
	},
	{
		name: "renameCollection", phases: []string{"blockCrudAndRename", "renameMetadata", "unblockCRUD", "done"},
		db: "admin", command: bson.D{{Key: "renameCollection", Value: "crash.c"}, {Key: "to", Value: "crash.d"}, {Key: "dropTarget", Value: true}}, again: int32(mongoerr.NamespaceNotFound),
		check: func(t *testing.T, ctx context.Context, db *mongo.Database, shards []*mongo.Client) {
			for name, want := range map[string]int64{"c": 0, "d": 100} {
				if n, err := db.Collection(name).CountDocuments(ctx, bson.D{}); n != want || err != nil {
					t.Errorf("%d documents are in %s, %v", n, name, err)
				}
			}
			for i, s := range shards {
				if n, err := s.Database("crash").Collection("c").CountDocuments(ctx, bson.D{}); n != 0 || err != nil {
					t.Errorf("%d documents are left on shard %d, %v", n, i, err)
				}
			}
		},
	},
	{
		name: "movePrimary", phases: []string{"clone", "blockWrites", "enterCriticalSection", "commit", "clean", "exitCriticalSection", "done"},
		db: "admin", command: bson.D{{Key: "movePrimary", Value: "crash"}, {Key: "to", Value: "shard00"}},
		check: func(t *testing.T, ctx context.Context, db *mongo.Database, shards []*mongo.Client) {
			for name, want := range map[string]int64{"c": 100, "plain": 100} {
				if n, err := db.Collection(name).CountDocuments(ctx, bson.D{}); n != want || err != nil {
					t.Errorf("%d documents are in %s, %v", n, name, err)
				}
			}
			for i, want := range []int64{100, 0} {
				if n, err := shards[i].Database("crash").Collection("plain").CountDocuments(ctx, bson.D{}); n != want || err != nil {
					t.Errorf("shard %d has %d documents, %v", i, n, err)
				}
			}
			if err := db.Drop(ctx); err != nil { // the next one begins on the other shard
				t.Error(err)
			}
		},
	},
	{
		name: "refineCollectionShardKey", phases: []string{"freezeMigrations", "blockCrud", "remoteIndexValidation", "commit", "releaseCritSec", "resumeMigrations", "done"},
		prepare: bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}, {Key: "g", Value: 1}}}, {Key: "name", Value: "new"}}}}},
		db:      "admin", command: bson.D{{Key: "refineCollectionShardKey", Value: "crash.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}, {Key: "g", Value: 1}}}},
		check: func(t *testing.T, ctx context.Context, db *mongo.Database, shards []*mongo.Client) {
			if n, err := db.Collection("c").CountDocuments(ctx, bson.D{}); n != 100 || err != nil {
				t.Errorf("%d documents, %v", n, err)
			}
			config := db.Client().Database("config")
			if n, err := config.Collection("collections").CountDocuments(ctx, bson.D{{Key: "_id", Value: "crash.c"}, {Key: "key.g", Value: 1}, {Key: "permitMigrations", Value: nil}}); n != 1 || err != nil {
				t.Errorf("%d entries with the new key whose chunks may move, %v", n, err)
			}
			if n, err := config.Collection("chunks").CountDocuments(ctx, bson.D{{Key: "shard", Value: "shard01"}, {Key: "min.g", Value: nil}, {Key: "min._id.id", Value: nil}}); n != 0 || err != nil {
				t.Errorf("%d chunks with old bounds, %v", n, err)
			}
			if err := db.Collection("c").Drop(ctx); err != nil {
				t.Error(err)
			}
		},
	},
	{
		name: "shardCollection", phases: []string{"enterWriteCriticalSection", "createCollection", "enterCriticalSection", "commit", "exitCriticalSection", "done"},
		db: "admin", command: bson.D{{Key: "shardCollection", Value: "crash.plain"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}},
		check: func(t *testing.T, ctx context.Context, db *mongo.Database, shards []*mongo.Client) {
			if n, err := db.Collection("plain").CountDocuments(ctx, bson.D{}); n != 100 || err != nil {
				t.Errorf("%d documents, %v", n, err)
			}
			if n, err := db.Client().Database("config").Collection("collections").CountDocuments(ctx, bson.D{{Key: "_id", Value: "crash.plain"}}); n != 1 || err != nil {
				t.Errorf("%d entries, %v", n, err)
			}
			if err := db.Drop(ctx); err != nil {
				t.Error(err)
			}
		},
	},
	{
		name: "createIndexes", phases: []string{"freezeMigrations", "checkShards", "updateShards", "unfreezeMigrations", "done"},
		db: "crash", command: bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "g", Value: 1}}}, {Key: "name", Value: "g"}}}}, {Key: "commitQuorum", Value: "majority"}},
		check: func(t *testing.T, ctx context.Context, db *mongo.Database, shards []*mongo.Client) {
			for i, s := range shards {
				if specs, err := s.Database("crash").Collection("c").Indexes().ListSpecifications(ctx); len(specs) != 3 || err != nil {
					t.Errorf("shard %d has %d indexes, %v", i, len(specs), err)
				}
			}
			if err := db.Collection("c").Drop(ctx); err != nil {
				t.Error(err)
			}
		},
	},
	{
		name: "collMod", phases: []string{"freezeMigrations", "checkShards", "updateShards", "unfreezeMigrations", "done"},
		db: "crash", command: bson.D{{Key: "collMod", Value: "c"}, {Key: "validator", Value: bson.D{{Key: "g", Value: bson.D{{Key: "$ne", Value: 7}}}}}},
		check: func(t *testing.T, ctx context.Context, db *mongo.Database, shards []*mongo.Client) {
			for i, s := range shards {
				if err := listed(ctx, s.Database("crash"), bson.D{{Key: "name", Value: "c"}, {Key: "options.validator", Value: bson.D{{Key: "g", Value: bson.D{{Key: "$ne", Value: 7}}}}}}); err != nil {
					t.Errorf("shard %d: %v", i, err)
				}
			}
			if err := db.Collection("c").Drop(ctx); err != nil {
				t.Error(err)
			}
		},
	},
	{
		name: "dropIndexes", phases: []string{"freezeMigrations", "checkShards", "updateShards", "unfreezeMigrations", "done"},
		prepare: bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "g", Value: 1}}}, {Key: "name", Value: "g"}}}}},
		db:      "crash", command: bson.D{{Key: "dropIndexes", Value: "c"}, {Key: "index", Value: "g"}}, again: int32(mongoerr.IndexNotFound),
		check: func(t *testing.T, ctx context.Context, db *mongo.Database, shards []*mongo.Client) {
			for i, s := range shards {
				if specs, err := s.Database("crash").Collection("c").Indexes().ListSpecifications(ctx); len(specs) != 2 || err != nil {
					t.Errorf("shard %d has %d indexes, %v", i, len(specs), err)
				}
			}
			if err := db.Collection("c").Drop(ctx); err != nil {
				t.Error(err)
			}
		},
	},
	{
		name: "untrackUnsplittableCollection", phases: []string{"enterCriticalSection", "commit", "exitCriticalSection", "done"},
		admin: []bson.D{
			{{Key: "moveCollection", Value: "crash.plain"}, {Key: "toShard", Value: "shard00"}},
			{{Key: "moveCollection", Value: "crash.plain"}, {Key: "toShard", Value: "shard01"}},
		},
		db: "admin", command: bson.D{{Key: "untrackUnshardedCollection", Value: "crash.plain"}},
		check: func(t *testing.T, ctx context.Context, db *mongo.Database, shards []*mongo.Client) {
			if n, err := db.Collection("plain").CountDocuments(ctx, bson.D{}); n != 100 || err != nil {
				t.Errorf("%d documents, %v", n, err)
			}
			if n, err := db.Client().Database("config").Collection("collections").CountDocuments(ctx, bson.D{{Key: "_id", Value: "crash.plain"}}); n != 0 || err != nil {
				t.Errorf("%d entries, %v", n, err)
			}
			if err := db.Collection("c").Drop(ctx); err != nil {
				t.Error(err)
			}
		},
	},
	{
		name: "dropDatabase", phases: []string{"freezeCollections", "enterCriticalSection", "dropDatabase", "releaseCriticalSection", "done"},
		db: "crash", command: bson.D{{Key: "dropDatabase", Value: 1}},
		check: func(t *testing.T, ctx context.Context, db *mongo.Database, shards []*mongo.Client) {
			for i, s := range append(shards, db.Client()) {
				if n, err := s.Database("crash").ListCollectionNames(ctx, bson.D{}); len(n) != 0 || err != nil {
					t.Errorf("%v are left on shard %d, %v", n, i, err)
				}
			}
			if n, err := db.Client().Database("config").Collection("chunks").CountDocuments(ctx, bson.D{{Key: "shard", Value: "shard01"}, {Key: "min._id.id", Value: bson.D{{Key: "$exists", Value: false}}}}); n != 0 || err != nil {
				t.Errorf("%d chunks are left, %v", n, err)
			}
		},
	},
}

// A cluster whose processes are killed at each phase of a DDL finishes it when it is back, within bounded time: the repeated
// command returns, nothing hangs, and no state document or critical section is left.
func TestKilledDDL(t *testing.T) {
	t.Parallel()
	for _, k := range killedOperations {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
			defer cancel()
			dir, port := t.TempDir(), freePorts(t, 3)
			p := launch(t, dir, "--node-port", strconv.Itoa(port))
			for _, phase := range k.phases {
				p = k.killAt(t, ctx, p, dir, port, phase)
			}
			p.kill(t)
		})
	}
}

// killAt runs the operation on a process that is killed before a phase, and returns the process that replaced it.
func (k *killedDDL) killAt(t *testing.T, ctx context.Context, p *process, dir string, port int, phase string) *process {
	t.Helper()
	p.must(t,
		bson.D{{Key: "balancerStop", Value: 1}},
		bson.D{{Key: "enableSharding", Value: "crash"}, {Key: "primaryShard", Value: "shard01"}},
		bson.D{{Key: "shardCollection", Value: "crash.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}},
	)
	all := make([]any, 100)
	for i := range all {
		all[i] = bson.D{{Key: "_id", Value: i}}
	}
	for _, name := range []string{"c", "plain"} {
		coll := p.client.Database("crash").Collection(name)
		if name == "plain" {
			_ = coll.Drop(ctx)
		}
		if _, err := coll.InsertMany(ctx, all); err != nil {
			t.Fatal(err)
		}
	}
	if k.prepare != nil {
		if err := p.client.Database("crash").RunCommand(ctx, k.prepare).Err(); err != nil {
			t.Fatal(err)
		}
	}
	p.must(t, k.admin...)
	coordinator := member(t, port+2).Database("admin")
	point := bson.D{{Key: "configureFailPoint", Value: "hangBeforeRunningShardingDDLPhase"}, {Key: "mode", Value: "alwaysOn"},
		{Key: "data", Value: bson.D{{Key: "operationType", Value: k.name}, {Key: "phase", Value: phase}}}}
	if err := coordinator.RunCommand(ctx, point).Err(); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- p.client.Database(k.db).RunCommand(ctx, k.command).Err() }()
	if err := coordinator.RunCommand(ctx, bson.D{{Key: "waitForFailPoint", Value: "hangBeforeRunningShardingDDLPhase"}, {Key: "timesEntered", Value: 1}, {Key: "maxTimeMS", Value: 20000}}).Err(); err != nil {
		t.Fatalf("%s: %v", phase, err)
	}
	p.kill(t)
	<-sent
	p = launch(t, dir, "--node-port", strconv.Itoa(port))
	err := p.client.Database(k.db).RunCommand(ctx, append(k.command, bson.E{Key: "maxTimeMS", Value: 30000})).Err()
	var refused mongo.CommandError
	if err != nil && (!errors.As(err, &refused) || k.again == 0 || refused.Code != k.again) {
		t.Errorf("killed at %s, again: %v", phase, err)
	}
	shards := []*mongo.Client{member(t, port+1), member(t, port+2)}
	for i, s := range shards {
		for _, coll := range []string{"system.sharding_ddl_coordinators", "collection_critical_sections"} {
			awaitNone(t, ctx, fmt.Sprintf("%s of shard %d after %s", coll, i, phase), s.Database("config").Collection(coll))
		}
	}
	k.check(t, ctx, p.client.Database("crash"), shards)
	return p
}

// awaitNone waits until a collection has no documents.
func awaitNone(t *testing.T, ctx context.Context, what string, coll *mongo.Collection) {
	t.Helper()
	await.State(t, "no documents in "+what, func() (string, bool) {
		n, err := coll.CountDocuments(ctx, bson.D{})
		return fmt.Sprint(n, " ", err), n == 0 && err == nil
	})
}
