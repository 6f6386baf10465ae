package process

import (
	"context"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// member starts a member of a cluster on a directory of its own.
func member(t *testing.T, role, set, dir string, port int) *server {
	t.Helper()
	return launch(t, "mongod", role, "--replSet", set, "--port", strconv.Itoa(port), "--dbpath", dir, "--bind_ip", "127.0.0.1")
}

func direct(port int) string {
	return "mongodb://127.0.0.1:" + strconv.Itoa(port) + "/?directConnection=true"
}

func initiate(t *testing.T, set string, port int, more ...bson.E) {
	t.Helper()
	c := connect(t, direct(port))
	config := append(bson.D{{Key: "_id", Value: set}, {Key: "members", Value: bson.A{
		bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: "127.0.0.1:" + strconv.Itoa(port)}},
	}}}, more...)
	admin(t, c, bson.D{{Key: "replSetInitiate", Value: config}})
	waitFor(t, set+" has a primary", func() bool {
		return admin(t, c, bson.D{{Key: "hello", Value: 1}})["isWritablePrimary"] == true
	})
}

// TestClusterOfProcesses builds a cluster the way the manual does: a config server, shards and a router, each a process.
func TestClusterOfProcesses(t *testing.T) {
	ports := freePorts(t, 4)
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	member(t, "--configsvr", "cfg", dirs[0], ports[0])
	member(t, "--shardsvr", "s0", dirs[1], ports[1])
	second := member(t, "--shardsvr", "s1", dirs[2], ports[2])
	initiate(t, "cfg", ports[0], bson.E{Key: "configsvr", Value: true})
	initiate(t, "s0", ports[1])
	initiate(t, "s1", ports[2])
	launch(t, "mongos", "--configdb", "cfg/127.0.0.1:"+strconv.Itoa(ports[0]), "--port", strconv.Itoa(ports[3]), "--bind_ip", "127.0.0.1")
	c := connect(t, direct(ports[3]))
	for i, set := range []string{"s0", "s1"} {
		admin(t, c, bson.D{{Key: "addShard", Value: set + "/127.0.0.1:" + strconv.Itoa(ports[i+1])}})
	}
	admin(t, c, bson.D{{Key: "shardCollection", Value: "many.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}})
	coll := c.Database("many").Collection("c")
	insertRange(t, coll, 0, 500)

	moved := moveChunks(t, c, coll, "s1", "s0")
	if moved == 0 {
		t.Fatal("the second shard had no chunk to give away")
	}
	if n := count(t, coll); n != 500 {
		t.Fatalf("%d documents after %d moves", n, moved)
	}
	moveChunks(t, c, coll, "s0", "s1")
	second.end(t, syscall.SIGKILL)
	member(t, "--shardsvr", "s1", dirs[2], ports[2])
	waitFor(t, "the killed shard is back", func() bool {
		n, err := coll.CountDocuments(context.Background(), bson.D{})
		return err == nil && n == 500
	})
	insertRange(t, coll, 500, 600)
	if n := count(t, coll); n != 600 {
		t.Fatal(n)
	}
}

func insertRange(t *testing.T, coll *mongo.Collection, from, to int) {
	t.Helper()
	var docs []any
	for i := from; i < to; i++ {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "n", Value: 0}})
	}
	if _, err := coll.InsertMany(context.Background(), docs); err != nil {
		t.Fatal(err)
	}
}

// moveChunks moves all chunks of a collection from one shard to another, and returns their number.
func moveChunks(t *testing.T, c *mongo.Client, coll *mongo.Collection, from, to string) int {
	t.Helper()
	ctx := context.Background()
	ns := coll.Database().Name() + "." + coll.Name()
	config := c.Database("config")
	var entry struct {
		UUID bson.Binary `bson:"uuid"`
	}
	if err := config.Collection("collections").FindOne(ctx, bson.D{{Key: "_id", Value: ns}}).Decode(&entry); err != nil {
		t.Fatal(err)
	}
	cur, err := config.Collection("chunks").Find(ctx, bson.D{{Key: "uuid", Value: entry.UUID}, {Key: "shard", Value: from}})
	if err != nil {
		t.Fatal(err)
	}
	var chunks []struct{ Min, Max bson.Raw }
	if err := cur.All(ctx, &chunks); err != nil {
		t.Fatal(err)
	}
	for _, k := range chunks {
		admin(t, c, bson.D{
			{Key: "moveChunk", Value: ns}, {Key: "bounds", Value: bson.A{k.Min, k.Max}}, {Key: "to", Value: to}, {Key: "_waitForDelete", Value: true},
		})
	}
	return len(chunks)
}

// TestWritesWhileChunksMove increments documents and adds new ones while their chunks move back and forth.
func TestWritesWhileChunksMove(t *testing.T) {
	p := newTopology(t, "sharded")
	_, c := p.start(t)
	ctx := context.Background()
	p.shard(t, c, "load.c", bson.D{{Key: "_id", Value: "hashed"}})
	coll := c.Database("load").Collection("c")
	insertRange(t, coll, 0, 200)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var updates, inserts [3]int
	for w := range 3 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				r, err := coll.UpdateByID(ctx, (i*7+w)%200, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
				if err != nil || r.ModifiedCount != 1 {
					t.Errorf("update: %+v %v", r, err)
					return
				}
				updates[w]++
				if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: (w+1)*1_000_000 + i}, {Key: "n", Value: 0}}); err != nil {
					t.Error("insert:", err)
					return
				}
				inserts[w]++
			}
		})
	}
	for range 2 {
		moveChunks(t, c, coll, "shard00", "shard01")
		moveChunks(t, c, coll, "shard01", "shard00")
	}
	close(stop)
	wg.Wait()
	cur, err := coll.Aggregate(ctx, bson.A{bson.D{{Key: "$group", Value: bson.D{
		{Key: "_id", Value: nil}, {Key: "docs", Value: bson.D{{Key: "$sum", Value: 1}}}, {Key: "sum", Value: bson.D{{Key: "$sum", Value: "$n"}}},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	var got []struct{ Docs, Sum int }
	if err := cur.All(ctx, &got); err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	wantDocs, wantSum := 200+inserts[0]+inserts[1]+inserts[2], updates[0]+updates[1]+updates[2]
	t.Logf("%d inserts, %d updates during the moves", wantDocs-200, wantSum)
	if got[0].Docs != wantDocs || got[0].Sum != wantSum {
		t.Fatalf("%d documents and %d increments, want %d and %d", got[0].Docs, got[0].Sum, wantDocs, wantSum)
	}
}
