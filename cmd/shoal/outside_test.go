package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shoaldb/shoal/internal/await"
)

// steadyClient uses routers as an application does, and fails the test at the first error.
type steadyClient struct {
	t       *testing.T
	coll    *mongo.Collection
	wg      sync.WaitGroup
	stop    atomic.Bool
	written atomic.Int64
	slowest atomic.Int64
}

func (c *steadyClient) run(workers int) {
	for w := range workers {
		c.wg.Go(func() {
			for i := 0; !c.stop.Load(); i++ {
				began := time.Now()
				if err := c.once(fmt.Sprint(w, "-", i)); err != nil {
					c.t.Errorf("a client sees after %v: %v", time.Since(began), err)
					return
				}
				if took := int64(time.Since(began)); took > c.slowest.Load() {
					c.slowest.Store(took)
				}
			}
		})
	}
}

// once inserts a document, increments its number, and reads it and another one by their values, on all shards.
func (c *steadyClient) once(id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	defer cancel()
	if _, err := c.coll.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "n", Value: 0}}); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	c.written.Add(1)
	key := bson.D{{Key: "_id", Value: id}}
	if r, err := c.coll.UpdateOne(ctx, key, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil || r.ModifiedCount != 1 {
		return fmt.Errorf("update: %+v %w", r, err)
	}
	var d struct{ N int }
	if err := c.coll.FindOne(ctx, key).Decode(&d); err != nil || d.N != 1 {
		return fmt.Errorf("find: %v %w", d, err)
	}
	if err := c.coll.FindOne(ctx, bson.D{{Key: "n", Value: 7}}).Err(); err != mongo.ErrNoDocuments {
		return fmt.Errorf("find on all shards: %w", err)
	}
	return nil
}

// check stops the client and compares the documents with what was acknowledged.
func (c *steadyClient) check() {
	c.t.Helper()
	c.stop.Store(true)
	c.wg.Wait()
	cur, err := c.coll.Aggregate(context.Background(), bson.A{bson.D{{Key: "$group", Value: bson.D{
		{Key: "_id", Value: nil}, {Key: "docs", Value: bson.D{{Key: "$sum", Value: 1}}}, {Key: "sum", Value: bson.D{{Key: "$sum", Value: "$n"}}}}}}})
	var got []struct{ Docs, Sum int64 }
	if err == nil {
		err = cur.All(context.Background(), &got)
	}
	if n := c.written.Load(); err != nil || len(got) != 1 || got[0].Docs != n || got[0].Sum != n {
		c.t.Errorf("%+v (%v), %d documents were written", got, err, n)
	}
	c.t.Logf("%d documents, the slowest round took %v", c.written.Load(), time.Duration(c.slowest.Load()))
}

// refresh has routers reread their routing tables, and returns how long the slowest read took, without the delays of a busy machine.
func refresh(t *testing.T, routers ...*server) (slowest time.Duration) {
	t.Helper()
	late := measureLag()
	defer func() { slowest -= late() }()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, r := range routers {
		if err := r.direct.Database("admin").RunCommand(ctx, bson.D{{Key: "flushRouterConfig", Value: 1}}).Err(); err != nil {
			t.Error(err)
		}
		began := time.Now()
		if _, err := r.direct.Database("d").Collection("c").CountDocuments(ctx, bson.D{{Key: "_id", Value: "0-0"}}); err != nil {
			t.Errorf("a read that refreshes: %v after %v", err, time.Since(began))
		}
		slowest = max(slowest, time.Since(began))
	}
	return slowest
}

// A cluster of processes whose members come and go, step down, are killed and paused: clients of its routers see no error,
// and a routing table can be read whatever the config server's primary does.
func TestClusterOfSetsFromOutside(t *testing.T) {
	t.Parallel()
	c := launchCluster(t, clusterOptions{configs: 3, routers: 2, shards: []int{3, 3}})
	config, a, b, routers, client := c.config, c.shards[0], c.shards[1], c.routers, c.client
	c.admin(bson.D{{Key: "shardCollection", Value: "d.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}})
	work := &steadyClient{t: t, coll: client.Database("d").Collection("c")}
	work.run(3)

	a.stepDown()
	config.stepDown()
	a.add()
	a.remove(a.members[0])
	killed := config.killPrimary()
	// The config server has no primary: its secondaries have the tables.
	if took := refresh(t, routers...); took > 1500*time.Millisecond {
		t.Errorf("a refresh took %v while the config server elects", took)
	}
	killed.start()
	killed = b.killPrimary()
	paused := config.ready()
	killed.start()
	b.ready()
	paused.pause()
	if took := refresh(t, routers...); took > 5*time.Second {
		t.Errorf("a refresh took %v with the config server's primary paused", took)
	}
	paused.signal(syscall.SIGCONT)
	work.check()
	var shard struct{ Host string }
	await.True(t, "config.shards follows the members of a", func() bool {
		err := client.Database("config").Collection("shards").FindOne(t.Context(), bson.D{{Key: "_id", Value: a.name}}).Decode(&shard)
		return err == nil && sameMembers(shard.Host, a.conn())
	})
}

// sameMembers compares connection strings whatever the order of their hosts.
func sameMembers(x, y string) bool {
	sorted := func(conn string) []string {
		set, hosts, _ := strings.Cut(conn, "/")
		all := strings.Split(hosts, ",")
		slices.Sort(all)
		return append(all, set)
	}
	return slices.Equal(sorted(x), sorted(y))
}

// All addresses that config server and shard had when the cluster was created may vanish: restarted nodes find them at
// their current ones.
func TestFirstAddressesVanish(t *testing.T) {
	t.Parallel()
	c := launchCluster(t, clusterOptions{shards: []int{1}})
	config, shard, router := c.config, c.shards[0], c.routers[0]
	ctx := t.Context()
	coll := router.direct.Database("d").Collection("c")
	if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*replicaSet{config, shard} {
		first := s.members[0]
		s.add()
		s.add()
		s.remove(first)
	}
	stored := func() string {
		var id struct {
			ConfigDB string `bson:"configsvrConnectionString"`
		}
		version := shard.awaitPrimary().direct.Database("admin", options.Database().SetReadPreference(readpref.Nearest())).Collection("system.version")
		_ = version.FindOne(ctx, bson.D{{Key: "_id", Value: "shardIdentity"}}).Decode(&id)
		return id.ConfigDB
	}
	await.True(t, "the shard's identity has the config server's members", func() bool { return sameMembers(stored(), config.conn()) })
	if r := shard.command(shard.awaitPrimary(), bson.D{{Key: "shardingState", Value: 1}}); !sameMembers(r["configServer"].(string), config.conn()) {
		t.Errorf("shardingState: %v", r["configServer"])
	}
	await.True(t, "config.shards has the shard's members", func() bool {
		var d struct{ Host string }
		err := router.direct.Database("config").Collection("shards").FindOne(ctx, bson.D{}).Decode(&d)
		return err == nil && sameMembers(d.Host, shard.conn())
	})
	var places struct {
		Map struct{ Config, Shard00 string }
	}
	if err := router.direct.Database("admin").RunCommand(ctx, bson.D{{Key: "getShardMap", Value: 1}}).Decode(&places); err != nil ||
		!sameMembers(places.Map.Config, config.conn()) || !sameMembers(places.Map.Shard00, shard.conn()) {
		t.Errorf("getShardMap: %+v, %v", places, err)
	}
	router.kill()
	for _, m := range append(shard.members, config.members...) {
		m.kill()
	}
	for _, m := range append(shard.members, config.members...) {
		m.launch() // shards first: their config server is not running yet
	}
	config.ready()
	shard.ready()
	router = c.startRouter()
	coll = router.direct.Database("d").Collection("c")
	if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 2}}); err != nil {
		t.Error(err)
	}
	if n, err := coll.CountDocuments(ctx, bson.D{}); err != nil || n != 2 {
		t.Errorf("%d documents, %v", n, err)
	}
}
