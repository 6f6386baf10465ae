package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/internal/await"
)

// twoRouters starts a cluster with two routers and returns a client of each.
func twoRouters(t *testing.T) (a, b *mongo.Client) {
	t.Helper()
	h := startHere(t, func(c *config) { c.Routers = 2 })
	var out [2]*mongo.Client
	for i := range out {
		var err error
		if out[i], err = mongo.Connect(options.Client().ApplyURI("mongodb://" + h.Addrs[i].String() + "/").SetRetryWrites(false).SetRetryReads(false)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_, _ = out[0].Disconnect(ctx), out[1].Disconnect(ctx)
	})
	return out[0], out[1]
}

// What one router did with a collection is visible to the other one at its next request, however stale that was.
func TestStaleRouterSeesWhatTheOtherDid(t *testing.T) {
	t.Parallel()
	a, b := twoRouters(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	seed := time.Now().UnixNano() % 1e6
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewSource(seed))
	type step struct {
		name string
		do   func(c *mongo.Client) error
	}
	docs := map[int]bool{}
	next := 0
	coll := func(c *mongo.Client) *mongo.Collection { return c.Database("stale").Collection("c") }
	admin := func(c *mongo.Client, cmd bson.D) error { return c.Database("admin").RunCommand(ctx, cmd).Err() }
	steps := []step{
		{"drop", func(c *mongo.Client) error { clear(docs); return coll(c).Drop(ctx) }},
		{"dropDatabase", func(c *mongo.Client) error { clear(docs); return c.Database("stale").Drop(ctx) }},
		{"shard by _id", func(c *mongo.Client) error {
			clear(docs)
			return errors.Join(coll(c).Drop(ctx), admin(c, bson.D{{Key: "shardCollection", Value: "stale.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}}))
		}},
		{"shard by hash", func(c *mongo.Client) error {
			clear(docs)
			return errors.Join(coll(c).Drop(ctx), admin(c, bson.D{{Key: "shardCollection", Value: "stale.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}}))
		}},
		{"create", func(c *mongo.Client) error {
			clear(docs)
			return errors.Join(coll(c).Drop(ctx), c.Database("stale").CreateCollection(ctx, "c"))
		}},
		{"move", func(c *mongo.Client) error {
			_ = admin(c, bson.D{{Key: "split", Value: "stale.c"}, {Key: "middle", Value: bson.D{{Key: "_id", Value: next / 2}}}})
			_ = admin(c, bson.D{{Key: "moveChunk", Value: "stale.c"}, {Key: "find", Value: bson.D{{Key: "_id", Value: next}}}, {Key: "to", Value: fmt.Sprintf("shard%02d", rnd.Intn(2))}})
			return nil // refused if the collection is not sharded
		}},
		{"insert", func(c *mongo.Client) error {
			var all []any
			for range 1 + rnd.Intn(20) {
				all = append(all, bson.D{{Key: "_id", Value: next}})
				docs[next] = true
				next++
			}
			_, err := coll(c).InsertMany(ctx, all)
			return err
		}},
		{"delete", func(c *mongo.Client) error {
			for id := range docs {
				delete(docs, id)
				_, err := coll(c).DeleteOne(ctx, bson.D{{Key: "_id", Value: id}})
				return err
			}
			return nil
		}},
	}
	trail := ""
	for range 300 {
		s, c, who := steps[rnd.Intn(len(steps))], a, "A"
		if rnd.Intn(2) == 0 {
			c, who = b, "B"
		}
		trail += " " + who + ":" + s.name
		if err := s.do(c); err != nil {
			t.Fatalf("%v, after%s", err, trail)
		}
		for i, c := range []*mongo.Client{a, b} {
			cur, err := coll(c).Find(ctx, bson.D{})
			if err != nil {
				t.Fatalf("router %d: %v, after%s", i, err, trail)
			}
			var got []bson.M
			if err := cur.All(ctx, &got); err != nil {
				t.Fatalf("router %d: %v, after%s", i, err, trail)
			}
			n, err := coll(c).CountDocuments(ctx, bson.D{})
			if len(got) != len(docs) || int(n) != len(docs) || err != nil {
				t.Fatalf("router %d finds %d and counts %d of %d documents (%v), after%s", i, len(got), n, len(docs), err, trail)
			}
		}
	}
}

// A collection is sharded, and indexes are created and dropped, during writes through two routers. No client sees an
// error, and nothing is lost.
func TestShardingUnderWriters(t *testing.T) {
	a, b := twoRouters(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for round := range 4 {
		name := fmt.Sprintf("w%d", round)
		var wg sync.WaitGroup
		quit := make(chan struct{})
		counts := make([]int, 4)
		var written atomic.Int64
		for w := range counts {
			coll := []*mongo.Client{a, b}[w%2].Database("under").Collection(name)
			wg.Add(1)
			go func() {
				defer wg.Done()
				for i := 0; ; i++ {
					select {
					case <-quit:
						counts[w] = i
						return
					default:
					}
					id := i*len(counts) + w
					if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "x", Value: i}}); err != nil {
						t.Errorf("insert: %v", err)
						return
					}
					r, err := coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
					if err != nil || r.ModifiedCount != 1 {
						t.Errorf("update: %v %v", r, err)
						return
					}
					written.Add(1)
				}
			}()
		}
		key := any(1)
		if round%2 == 1 {
			key = "hashed"
		}
		coll := b.Database("under").Collection(name)
		var steps []error
		index := func() {
			to := written.Load() + 100
			await.State(t, fmt.Sprintf("%d documents are written", to), func() (int64, bool) {
				n := int64(written.Load())
				return n, n >= int64(to) || t.Failed()
			})
			_, err := coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "x", Value: 1}}, Options: options.Index().SetName("x")})
			steps = append(steps, err)
		}
		index()
		if key == "hashed" {
			_, err := coll.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "_id", Value: key}}})
			steps = append(steps, err)
		}
		steps = append(steps, a.Database("admin").RunCommand(ctx, bson.D{{Key: "shardCollection", Value: "under." + name}, {Key: "key", Value: bson.D{{Key: "_id", Value: key}}}}).Err())
		for i := range 4 {
			if key == 1 {
				steps = append(steps, a.Database("admin").RunCommand(ctx, bson.D{{Key: "split", Value: "under." + name}, {Key: "middle", Value: bson.D{{Key: "_id", Value: i*20 + 7}}}}).Err())
			}
			steps = append(steps, coll.Indexes().DropOne(ctx, "x"))
			index()
		}
		close(quit)
		wg.Wait()
		for i, err := range steps {
			if err != nil {
				t.Errorf("step %d: %v", i, err)
			}
		}
		want := 0
		for _, n := range counts {
			want += n
		}
		for i, c := range []*mongo.Client{a, b} {
			n, err := c.Database("under").Collection(name).CountDocuments(ctx, bson.D{{Key: "n", Value: 1}})
			if err != nil || int(n) != want || want == 0 {
				t.Errorf("router %d: %d documents, want %d (%v)", i, n, want, err)
			}
		}
	}
}
