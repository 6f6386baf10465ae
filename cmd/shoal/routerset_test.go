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
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shoaldb/shoal/cluster/sdam"
	"github.com/shoaldb/shoal/internal/await"
)

// replicatedCluster is a cluster in this process whose config server and shards have three members each.
type replicatedCluster struct {
	t      *testing.T
	client *mongo.Client
	other  *mongo.Client // of the last router
	port   int           // of the first member: the config server's, then each shard's
}

func startReplicatedCluster(t *testing.T, routers int) *replicatedCluster {
	t.Helper()
	port := freePorts(t, 9)
	h := startHere(t, func(c *config) { c.Replicas, c.NodePort, c.Routers = 3, port, routers })
	return &replicatedCluster{t: t, client: connect(t, "mongodb://"+h.Addrs[0].String()+"/"),
		other: connect(t, "mongodb://"+h.Addrs[len(h.Addrs)-1].String()+"/"), port: port}
}

// member returns a client of one member: set 0 is the config server, 1 and 2 are the shards.
func (c *replicatedCluster) member(set, i int) *mongo.Client { return member(c.t, c.port+3*set+i) }

// primary finds a set's primary.
func (c *replicatedCluster) primary(ctx context.Context, set int) (int, *mongo.Client) {
	i := await.State(c.t, fmt.Sprintf("set %d has a primary", set), func() (int, bool) {
		for i := range 3 {
			var hello struct{ IsWritablePrimary bool }
			if err := c.member(set, i).Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err == nil && hello.IsWritablePrimary {
				return i, true
			}
		}
		return -1, ctx.Err() != nil
	})
	if i < 0 {
		c.t.Fatalf("set %d has no primary in the test's time", set)
	}
	return i, c.member(set, i)
}

// Applications that use a router do not notice elections in shards and config server; nothing is written twice or lost.
func TestRouterFollowsElections(t *testing.T) {
	t.Parallel()
	c := startReplicatedCluster(t, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	admin := c.client.Database("admin")
	for _, cmd := range []bson.D{
		{{Key: "shardCollection", Value: "test.s"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}},
		{{Key: "flushRouterConfig", Value: 1}},
	} {
		if err := admin.RunCommand(ctx, cmd).Err(); err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
	}
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	writing, done := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var inserted atomic.Int64
	for w := range 4 {
		wg.Go(func() { c.work(writing, w, rand.New(rand.NewSource(seed+int64(w))), &inserted) })
	}
	for i := range 6 {
		at, p := c.primary(ctx, i%3)
		err := p.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetStepDown", Value: 10}, {Key: "secondaryCatchUpPeriodSecs", Value: 5}}).Err()
		t.Logf("set %d: member %d steps down: %v", i%3, at, err)
		if i == 2 {
			if err := admin.RunCommand(ctx, bson.D{{Key: "flushRouterConfig", Value: 1}}).Err(); err != nil {
				t.Error(err)
			}
		}
		before := inserted.Load()
		await.True(t, "clients work with the new primary", func() bool { return inserted.Load() >= before+40 || t.Failed() })
	}
	done()
	wg.Wait()
	total := inserted.Load()
	n, err := c.client.Database("test").Collection("s").CountDocuments(ctx, bson.D{})
	if err != nil || n != total {
		t.Errorf("%d documents (%v), %d were inserted", n, err, total)
	}
	t.Logf("%d inserts", total)
}

// work inserts, increments, and reads everywhere until ctx ends. Each of its documents is inserted and incremented once. No
// operation may take as long as an election that is only noticed by the next heartbeat; slow machines get more time.
func (c *replicatedCluster) work(ctx context.Context, w int, rnd *rand.Rand, inserted *atomic.Int64) {
	coll := c.client.Database("test").Collection("s")
	far := c.client.Database("test").Collection("s", options.Collection().SetReadPreference(readpref.SecondaryPreferred()))
	n := 0
	usual := time.Duration(0)
	for ctx.Err() == nil {
		id := bson.D{{Key: "_id", Value: fmt.Sprintf("%d-%d", w, n)}}
		run := context.Background()
		began, late := time.Now(), measureLag()
		err := insertRaiseRead(run, coll, id)
		took, lag := time.Since(began), late()
		if n < 20 {
			usual += took / 20
		}
		if err != nil || took > sdam.DefaultTiming.Heartbeat/2+20*usual+lag {
			c.t.Errorf("an insert, an update and a read took %v, in the beginning %v (the machine was late by %v): %v", took, usual, lag, err)
		}
		if err != nil {
			return
		}
		n++
		inserted.Add(1)
		if rnd.Intn(4) == 0 {
			if _, err := far.CountDocuments(run, bson.D{}); err != nil {
				c.t.Errorf("count on secondaries: %v", err)
				return
			}
		}
	}
}

func insertRaiseRead(ctx context.Context, coll *mongo.Collection, id bson.D) error {
	if _, err := coll.InsertOne(ctx, append(id, bson.E{Key: "n", Value: 0})); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	if _, err := coll.UpdateOne(ctx, id, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	var d struct{ N int }
	if err := coll.FindOne(ctx, id).Decode(&d); err != nil || d.N != 1 {
		return fmt.Errorf("read %v: %w", d, err)
	}
	return nil
}

// Reads go where their read preference directs them, cursors stay there, and config.shards follows the members.
func TestRouterReadsFromSecondariesAndFollowsMembers(t *testing.T) {
	c := startReplicatedCluster(t, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	admin := c.client.Database("admin")
	if err := admin.RunCommand(ctx, bson.D{{Key: "enableSharding", Value: "near"}, {Key: "primaryShard", Value: "shard00"}}).Err(); err != nil {
		t.Fatal(err)
	}
	docs := make([]any, 500)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}}
	}
	coll := c.client.Database("near").Collection("c")
	sess, err := c.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	sctx := mongo.NewSessionContext(ctx, sess)
	if _, err := coll.InsertMany(sctx, docs); err != nil {
		t.Fatal(err)
	}
	at, _ := c.primary(ctx, 1)
	for _, m := range []struct {
		pref    *readpref.ReadPref
		primary bool
	}{{readpref.Primary(), true}, {readpref.PrimaryPreferred(), true}, {readpref.Secondary(), false}, {readpref.SecondaryPreferred(), false}} {
		for range 5 {
			far := c.client.Database("near").Collection("c", options.Collection().SetReadPreference(m.pref))
			cur, err := far.Find(sctx, bson.D{}, options.Find().SetBatchSize(50))
			if err != nil {
				t.Fatalf("%v: %v", m.pref, err)
			}
			var got []bson.D
			if err := cur.All(sctx, &got); err != nil || len(got) != len(docs) {
				t.Fatalf("%v: %d documents, %v", m.pref, len(got), err)
			}
		}
	}
	asked := func(i int) (n int64) {
		var s struct {
			OpCounters struct{ Query, GetMore int64 } `bson:"opcounters"`
		}
		if err := c.member(1, i).Database("admin").RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Decode(&s); err != nil {
			t.Fatal(err)
		}
		return s.OpCounters.GetMore
	}
	if p, s := asked(at), asked((at+1)%3)+asked((at+2)%3); p < 90 || s < 90 {
		t.Errorf("the primary was asked for %d further batches, the secondaries for %d", p, s)
	}
	c.resize(ctx, at)
}

// Killing sessions through a router only ended their operations on primaries: a cursor that another router had opened on a
// secondary stayed.
func TestKilledSessionsEndOnSecondaries(t *testing.T) {
	c := startReplicatedCluster(t, 2)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	docs := make([]any, 100)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}}
	}
	coll := c.client.Database("kill").Collection("c", options.Collection().SetReadPreference(readpref.Secondary()).SetWriteConcern(writeconcern.Majority()))
	sess, err := c.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	sctx := mongo.NewSessionContext(ctx, sess)
	if _, err := coll.InsertMany(sctx, docs); err != nil {
		t.Fatal(err)
	}
	open := func() (n int64) {
		for set := range 3 {
			for i := range 3 {
				var s struct {
					Metrics struct {
						Cursor struct{ Open struct{ NoTimeout int64 } }
					}
				}
				if err := c.member(set, i).Database("admin").RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Decode(&s); err != nil {
					t.Fatal(err)
				}
				n += s.Metrics.Cursor.Open.NoTimeout
			}
		}
		return n
	}
	for _, kill := range []bson.D{
		{{Key: "killSessions", Value: bson.A{sess.ID()}}},
		{{Key: "killAllSessions", Value: bson.A{}}},
		{{Key: "killAllSessionsByPattern", Value: bson.A{bson.D{{Key: "lsid", Value: sess.ID()}}}}},
	} {
		for range 4 {
			cur, err := coll.Find(sctx, bson.D{}, options.Find().SetBatchSize(10).SetNoCursorTimeout(true))
			if err != nil {
				t.Fatal(err)
			}
			defer cur.Close(context.Background())
		}
		if n := open(); n != 4 {
			t.Fatalf("%d cursors on the members, want 4", n)
		}
		if err := c.other.Database("admin").RunCommand(ctx, kill).Err(); err != nil {
			t.Fatal(err)
		}
		if n := open(); n != 0 {
			t.Errorf("%d cursors on the members after %s", n, kill[0].Key)
		}
	}
}

// resize removes a member from a shard and adds it again, and waits for config.shards to follow.
func (c *replicatedCluster) resize(ctx context.Context, primary int) {
	_, p := c.primary(ctx, 1)
	var r struct{ Config bson.M }
	if err := p.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&r); err != nil {
		c.t.Fatal(err)
	}
	members := r.Config["members"].(bson.A)
	version := r.Config["version"].(int32)
	out := (primary + 1) % 3
	fewer := append(append(bson.A{}, members[:out]...), members[out+1:]...)
	for _, m := range []bson.A{fewer, members} {
		version++
		r.Config["members"], r.Config["version"] = m, version
		if err := p.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetReconfig", Value: r.Config}}).Err(); err != nil {
			c.t.Fatal(err)
		}
		var s struct{ Host string }
		await.State(c.t, fmt.Sprintf("config.shards has %d members", len(m)), func() (string, bool) {
			if err := c.client.Database("config").Collection("shards").FindOne(ctx, bson.D{{Key: "_id", Value: "shard00"}}).Decode(&s); err != nil {
				c.t.Fatal(err)
			}
			return s.Host, strings.Count(s.Host, ":") == len(m)
		})
	}
}

// A secondary that has served no request since a range moved off its shard, and a router with the placement before that
// either, do not return remains of the range: the placement changes for a shard's secondaries, too.
func TestSecondariesLearnOfMigrations(t *testing.T) {
	c := startReplicatedCluster(t, 2)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for _, cmd := range []bson.D{
		{{Key: "enableSharding", Value: "far"}, {Key: "primaryShard", Value: "shard00"}},
		{{Key: "shardCollection", Value: "far.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}},
		{{Key: "split", Value: "far.c"}, {Key: "middle", Value: bson.D{{Key: "_id", Value: 50}}}},
	} {
		if err := c.client.Database("admin").RunCommand(ctx, cmd).Err(); err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
	}
	docs := make([]any, 100)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}}
	}
	if _, err := c.client.Database("far").Collection("c").InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	s, err := c.other.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.EndSession(ctx)
	far := c.other.Database("far").Collection("c", options.Collection().SetReadPreference(readpref.Secondary()))
	count := func(when string) {
		t.Helper()
		for range 6 { // each secondary
			cur, err := far.Find(mongo.NewSessionContext(ctx, s), bson.D{})
			if err != nil {
				t.Fatal(err)
			}
			var got []bson.D
			if err := cur.All(ctx, &got); err != nil || len(got) != len(docs) {
				t.Errorf("%s: %d documents (%v)", when, len(got), err)
			}
		}
	}
	own, err := c.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer own.EndSession(ctx)
	s.AdvanceClusterTime(own.ClusterTime())
	count("before")
	move := bson.D{{Key: "moveChunk", Value: "far.c"}, {Key: "find", Value: bson.D{{Key: "_id", Value: 50}}}, {Key: "to", Value: "shard01"}, {Key: "_waitForDelete", Value: true}}
	if err := c.client.Database("admin").RunCommand(mongo.NewSessionContext(ctx, own), move).Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.AdvanceOperationTime(own.OperationTime()); err != nil {
		t.Fatal(err)
	}
	count("after")
}

// $currentOp and $collStats with targetAllNodes ask all members; it was accepted, and they asked the primaries alone.
func TestCurrentOpOfAllMembers(t *testing.T) {
	c := startReplicatedCluster(t, 2)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	hosts := func(options bson.D) (out map[string]bool) {
		t.Helper()
		cur, err := c.client.Database("admin").Aggregate(ctx, bson.A{bson.D{{Key: "$currentOp", Value: append(bson.D{{Key: "allUsers", Value: true}, {Key: "idleConnections", Value: true}}, options...)}},
			bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$shard"}, {Key: "hosts", Value: bson.D{{Key: "$addToSet", Value: "$host"}}}}}}})
		if err != nil {
			t.Fatal(err)
		}
		var shards []struct {
			Hosts []string
		}
		if err := cur.All(ctx, &shards); err != nil {
			t.Fatal(err)
		}
		out = map[string]bool{}
		for _, s := range shards {
			for _, h := range s.Hosts {
				out[h] = true
			}
		}
		if len(shards) != 2 {
			t.Errorf("%v: operations of %d shards", options, len(shards))
		}
		return out
	}
	if got := hosts(nil); len(got) != 2 {
		t.Errorf("operations of %v, want those of the primaries", got)
	}
	if got := hosts(bson.D{{Key: "targetAllNodes", Value: true}}); len(got) != 6 {
		t.Errorf("operations of %v, want those of all six members", got)
	}
	for _, cmd := range []bson.D{
		{{Key: "enableSharding", Value: "d"}},
		{{Key: "shardCollection", Value: "d.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}},
	} {
		if err := c.client.Database("admin").RunCommand(ctx, cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
	stats := func(options bson.D) (n []struct{ Hosts []string }) {
		t.Helper()
		cur, err := c.client.Database("d").Collection("c").Aggregate(ctx, bson.A{bson.D{{Key: "$collStats", Value: append(bson.D{{Key: "count", Value: bson.D{}}}, options...)}},
			bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$shard"}, {Key: "hosts", Value: bson.D{{Key: "$addToSet", Value: "$host"}}}}}}})
		if err == nil {
			err = cur.All(ctx, &n)
		}
		if err != nil || len(n) != 2 {
			t.Fatalf("%v: %v, %v", options, n, err)
		}
		return n
	}
	if got := stats(nil); len(got[0].Hosts) != 1 || len(got[1].Hosts) != 1 {
		t.Errorf("statistics of %v, want one member of each shard", got)
	}
	if got := stats(bson.D{{Key: "targetAllNodes", Value: true}}); len(got[0].Hosts) != 3 || len(got[1].Hosts) != 3 {
		t.Errorf("statistics of %v, want all members of each shard", got)
	}
}
