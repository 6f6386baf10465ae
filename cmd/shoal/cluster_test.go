package main

import (
	"context"
	"fmt"
	"math/rand"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// startTestCluster starts a whole cluster in this process and returns a client of its router.
func startTestCluster(t *testing.T, dir string) (*mongo.Client, func()) {
	t.Helper()
	h := startHere(t, func(c *config) { c.DBPath, c.Memory = dir, dir == "" })
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + h.Addrs[0].String() + "/"))
	if err != nil {
		t.Fatal(err)
	}
	return client, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := client.Disconnect(ctx); err != nil {
			t.Error(err)
		}
		h.stop()
	}
}

// A key's writer is one goroutine, so the value it wrote last is known; chunks move under it all the time.
func TestNoWriteIsLostWhileChunksMove(t *testing.T) {
	client, stop := startTestCluster(t, "")
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	admin := client.Database("admin")
	run := func(cmd bson.D) bson.M {
		var out bson.M
		if err := admin.RunCommand(ctx, cmd).Decode(&out); err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
		return out
	}
	run(bson.D{{Key: "shardCollection", Value: "test.moved"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
	run(bson.D{{Key: "split", Value: "test.moved"}, {Key: "middle", Value: bson.D{{Key: "k", Value: 100}}}})
	run(bson.D{{Key: "split", Value: "test.moved"}, {Key: "middle", Value: bson.D{{Key: "k", Value: 200}}}})

	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	coll := client.Database("test").Collection("moved")
	writing, done := context.WithCancel(ctx)
	const writers, keys = 4, 300
	models := make([]map[int]int, writers)
	var wg sync.WaitGroup
	for w := range writers {
		models[w] = map[int]int{}
		wg.Add(1)
		go func() {
			defer wg.Done()
			writeAndRemember(t, writing, coll, rand.New(rand.NewSource(seed+int64(w))), w, writers, keys, models[w])
		}()
	}
	for i := range 12 {
		to := fmt.Sprintf("shard%02d", i%2)
		run(bson.D{{Key: "moveChunk", Value: "test.moved"}, {Key: "find", Value: bson.D{{Key: "k", Value: 150}}}, {Key: "to", Value: to}})
		n, err := coll.CountDocuments(ctx, bson.D{{Key: "k", Value: bson.D{{Key: "$lt", Value: -1}}}})
		if err != nil || n != 0 {
			t.Fatalf("count %d, %v", n, err)
		}
	}
	done()
	wg.Wait()
	compareModel(t, ctx, coll, models)
}

// writeAndRemember inserts, updates and deletes the keys that belong to one writer until ctx ends. A write in flight at
// that moment is waited for, so the model is exact.
func writeAndRemember(t *testing.T, ctx context.Context, coll *mongo.Collection, rnd *rand.Rand, w, writers, keys int, model map[int]int) {
	for v := 1; ctx.Err() == nil; v++ {
		k := rnd.Intn(keys/writers)*writers + w
		key := bson.D{{Key: "k", Value: k}}
		var err error
		_, there := model[k]
		switch {
		case !there:
			_, err = coll.InsertOne(context.Background(), bson.D{{Key: "_id", Value: k}, {Key: "k", Value: k}, {Key: "v", Value: v}})
			model[k] = v
		case rnd.Intn(4) == 0:
			var r *mongo.DeleteResult
			if r, err = coll.DeleteOne(context.Background(), key); err == nil && r.DeletedCount != 1 {
				err = fmt.Errorf("deleted %d of key %d", r.DeletedCount, k)
			}
			delete(model, k)
		default:
			var r *mongo.UpdateResult
			r, err = coll.UpdateOne(context.Background(), key, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: v}}}})
			if err == nil && r.ModifiedCount != 1 {
				err = fmt.Errorf("modified %d of key %d", r.ModifiedCount, k)
			}
			model[k] = v
		}
		if err != nil {
			t.Errorf("writer %d: %v", w, err)
			return
		}
	}
}

func compareModel(t *testing.T, ctx context.Context, coll *mongo.Collection, models []map[int]int) {
	t.Helper()
	want := map[int]int{}
	for _, m := range models {
		for k, v := range m {
			want[k] = v
		}
	}
	cur, err := coll.Find(ctx, bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	var docs []struct{ K, V int }
	if err := cur.All(ctx, &docs); err != nil {
		t.Fatal(err)
	}
	got := map[int]int{}
	for _, d := range docs {
		if _, twice := got[d.K]; twice {
			t.Errorf("key %d is returned twice", d.K)
		}
		got[d.K] = d.V
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("key %d: %d, want %d", k, got[k], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d documents, want %d", len(got), len(want))
	}
	if len(want) == 0 {
		t.Error("nothing was written: the test proves nothing")
	}
}

func TestRestartFindsEverything(t *testing.T) {
	dir := t.TempDir()
	client, stop := startTestCluster(t, dir)
	ctx := context.Background()
	db := client.Database("kept")
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "shardCollection", Value: "kept.s"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}}).Err(); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if _, err := db.Collection("s").InsertOne(ctx, bson.D{{Key: "_id", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Collection("u").InsertOne(ctx, bson.D{{Key: "_id", Value: "unsharded"}}); err != nil {
		t.Fatal(err)
	}
	stop()
	client, stop = startTestCluster(t, dir)
	defer stop()
	db = client.Database("kept")
	for name, want := range map[string]int64{"s": 200, "u": 1} {
		n, err := db.Collection(name).CountDocuments(ctx, bson.D{})
		if err != nil || n != want {
			t.Errorf("%s: %d documents (%v), want %d", name, n, err, want)
		}
	}
	if _, err := db.Collection("s").InsertOne(ctx, bson.D{{Key: "_id", Value: 1000}}); err != nil {
		t.Error(err)
	}
}

func TestViewsSeeAllShards(t *testing.T) {
	client, stop := startTestCluster(t, "")
	defer stop()
	ctx := context.Background()
	db := client.Database("views")
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "shardCollection", Value: "views.base"}, {Key: "key", Value: bson.D{{Key: "c", Value: "hashed"}}}}).Err(); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if _, err := db.Collection("base").InsertOne(ctx, bson.D{{Key: "c", Value: i}}); err != nil {
			t.Fatal(err)
		}
	}
	match := func(n int) mongo.Pipeline {
		return mongo.Pipeline{{{Key: "$match", Value: bson.D{{Key: "c", Value: bson.D{{Key: "$gte", Value: n}}}}}}}
	}
	if err := db.CreateView(ctx, "upper", "base", match(5)); err != nil {
		t.Fatal(err)
	}
	if err := db.CreateView(ctx, "top", "upper", match(15)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"upper": 15, "top": 5} {
		cur, err := db.Collection(name).Find(ctx, bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		var docs []bson.D
		if err := cur.All(ctx, &docs); err != nil || len(docs) != want {
			t.Errorf("find on %s: %d documents (%v), want %d", name, len(docs), err, want)
		}
		if n, err := db.Collection(name).CountDocuments(ctx, bson.D{}); err != nil || int(n) != want {
			t.Errorf("count on %s: %d (%v), want %d", name, n, err, want)
		}
	}
}

// The sets that a router monitors, with their members, as connPoolStats shows them; reads that no member may serve get an error.
func TestRouterShowsTheSetsItFollows(t *testing.T) {
	client, stop := startTestCluster(t, "")
	defer stop()
	ctx := context.Background()
	var stats struct {
		TotalInUse  *int64
		ReplicaSets map[string]struct {
			Hosts []struct {
				Addr                    string
				OK, IsMaster, Secondary bool
			}
		} `bson:"replicaSets"`
	}
	admin := client.Database("admin")
	if err := admin.RunCommand(ctx, bson.D{{Key: "connPoolStats", Value: 1}}).Decode(&stats); err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{"configRepl", "shard00", "shard01"} {
		h := stats.ReplicaSets[set].Hosts
		if len(h) != 1 || !h[0].OK || !h[0].IsMaster || h[0].Secondary {
			t.Errorf("%s: %+v", set, h)
		}
	}
	if err := admin.RunCommand(ctx, bson.D{{Key: "dropConnections", Value: 1}, {Key: "hostAndPort", Value: bson.A{"nowhere:1"}}}).Err(); err != nil {
		t.Error(err)
	}
	if err := client.Database("test").RunCommand(ctx, bson.D{{Key: "connPoolSync", Value: 1}}).Err(); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		pref bson.D
		code int32
	}{
		{bson.D{{Key: "mode", Value: "secondaryPreferred"}}, 0},
		{bson.D{{Key: "mode", Value: "nearest"}, {Key: "hedge", Value: bson.D{{Key: "enabled", Value: true}}}}, 0},
		{bson.D{{Key: "mode", Value: "secondary"}, {Key: "tags", Value: bson.A{bson.D{{Key: "dc", Value: "x"}}}}}, int32(mongoerr.FailedToSatisfyReadPreference)},
		{bson.D{{Key: "mode", Value: "secondary"}, {Key: "maxStalenessSeconds", Value: 5}}, int32(mongoerr.MaxStalenessOutOfRange)},
		{bson.D{{Key: "mode", Value: "anything"}}, int32(mongoerr.BadValue)},
	} {
		cmd := bson.D{{Key: "find", Value: "c"}, {Key: "$readPreference", Value: c.pref}}
		if c.code == int32(mongoerr.FailedToSatisfyReadPreference) {
			cmd = append(cmd, bson.E{Key: "maxTimeMS", Value: 100})
			c.code = int32(mongoerr.MaxTimeMSExpired)
		}
		if err := client.Database("test").RunCommand(ctx, cmd).Err(); codeOf(err) != c.code {
			t.Errorf("%v: %v", c.pref, err)
		}
	}
}
