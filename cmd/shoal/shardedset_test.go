package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/internal/await"
)

// shardedCluster is a config server, shards and routers in processes of their own. Tests that do not kill, pause or cut off servers do with
// a cluster in their own process (startHere), which is there sooner.
type shardedCluster struct {
	t       *testing.T
	options clusterOptions
	net     *network
	config  *replicaSet
	shards  []*replicaSet
	routers []*server
	client  *mongo.Client // of all routers
	idle    *server       // a router that clients use from time to time, nil without one

	awaitDDL func()       // waits briefly for a running DDL command
	whole    atomic.Int64 // nanoseconds that watchWhole has counted
}

// clusterOptions configures a cluster.
type clusterOptions struct {
	configs, routers int      // 1 if it is 0
	shards           []int    // the numbers of their members
	net              *network // between all servers, nil if they reach each other directly
	keyFile          string   // with one, servers require authorization, and the cluster's client is the user root, with the password "secret"
	args             []string // of each server
	configArgs       []string
	shardArgs        []string
	routerArgs       []string
	as               string // what members of sets behave as, the real server if it is empty
}

// cursorsEnd ends a cursor whose reply, or whose end, was lost, sooner than after ten minutes: range deletions wait for cursors.
const cursorsEnd = "cursorTimeoutMillis=60000"

// launchCluster starts a cluster whose balancer is off.
func launchCluster(t *testing.T, o clusterOptions) *shardedCluster {
	t.Helper()
	if o.keyFile != "" {
		o.args = append([]string{"--keyFile", o.keyFile}, o.args...)
	}
	c := &shardedCluster{t: t, options: o, net: o.net}
	c.config = launchSet(t, setOptions{name: "config", role: "--configsvr", members: max(1, o.configs), net: o.net, args: slices.Concat(o.args, o.configArgs), as: o.as})
	for range max(1, o.routers) {
		c.routers = append(c.routers, c.startRouter())
	}
	if o.keyFile != "" {
		c.createRoot()
	}
	c.client = connect(t, c.uri())
	shardArgs := slices.Concat([]string{"--setParameter", "orphanCleanupDelaySecs=1", "--setParameter", cursorsEnd}, o.args, o.shardArgs)
	for i, n := range o.shards {
		rs := launchSet(t, setOptions{name: shardName(i), role: "--shardsvr", members: n, net: o.net, args: shardArgs, as: o.as})
		c.shards = append(c.shards, rs)
		c.admin(bson.D{{Key: "addShard", Value: rs.conn()}, {Key: "name", Value: rs.name}})
	}
	c.admin(bson.D{{Key: "balancerStop", Value: 1}})
	return c
}

// createRoot creates the first user as soon as the router has the config server.
func (c *shardedCluster) createRoot() {
	c.t.Helper()
	g := c.guarded()
	nobody := g.client("", "", "")
	await.True(c.t, "the first user", func() bool {
		_, code, _ := run1(nobody, "admin", "createUser", "root", "pwd", "secret", "roles", bson.A{"root"})
		return code == 0
	})
}

// startRouter starts one more router.
func (c *shardedCluster) startRouter() *server {
	c.t.Helper()
	name := fmt.Sprintf("router-%d", len(c.routers))
	s := newServer(c.t, c.net, name, slices.Concat([]string{"mongos", "--configdb", c.config.conn()}, testCommands, c.options.args, c.options.routerArgs)...)
	s.start()
	return s
}

// guarded connects to a cluster that requires authorization, as one user or another.
func (c *shardedCluster) guarded() *guarded {
	return &guarded{t: c.t, uri: "mongodb://" + c.routersAt() + "/"}
}

// addIdle starts one more router, which uri leaves out.
func (c *shardedCluster) addIdle() {
	c.t.Helper()
	c.idle = c.startRouter()
}

func (c *shardedCluster) routersAt() string {
	var at []string
	for _, r := range c.routers {
		at = append(at, r.at())
	}
	return strings.Join(at, ",")
}

// uri returns the connection string of an application.
func (c *shardedCluster) uri() string {
	if c.options.keyFile != "" {
		return "mongodb://root:secret@" + c.routersAt() + "/?authSource=admin"
	}
	return "mongodb://" + c.routersAt() + "/?" + strings.TrimPrefix(encryption(c.options.args), "&")
}

func (c *shardedCluster) sets() []*replicaSet { return append([]*replicaSet{c.config}, c.shards...) }

// admin runs a command that must succeed.
func (c *shardedCluster) admin(cmd bson.D) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.client.Database("admin").RunCommand(ctx, cmd).Err(); err != nil {
		c.t.Fatalf("%v: %v", cmd, err)
	}
}

// shard shards a collection by _id, splits it at points, and distributes the chunks over the shards in turn.
func (c *shardedCluster) shard(ns string, points ...any) {
	c.t.Helper()
	c.admin(bson.D{{Key: "shardCollection", Value: ns}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	for i, p := range points {
		c.admin(bson.D{{Key: "split", Value: ns}, {Key: "middle", Value: bson.D{{Key: "_id", Value: p}}}})
		c.admin(bson.D{{Key: "moveChunk", Value: ns}, {Key: "find", Value: bson.D{{Key: "_id", Value: p}}}, {Key: "to", Value: shardName(i % len(c.shards))}})
	}
}

// moveSome moves chunks between the shards until ctx ends, and counts those that have moved.
func (c *shardedCluster) moveSome(ctx context.Context, client *mongo.Client, rnd *rand.Rand, l *clusterLoad) {
	var log io.Writer = io.Discard
	if dir := keepDir(); dir != "" {
		if f, err := os.Create(filepath.Join(dir, "moves.txt")); err == nil {
			defer f.Close()
			log = f
		}
	}
	for ctx.Err() == nil {
		if l.shuffling.Load() { // the balancer needs the shards
			pauseUpTo(rnd, 100*time.Millisecond)
			continue
		}
		mctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		began := time.Since(l.h.start)
		what, err := c.moveOne(mctx, client, rnd)
		cancel()
		fmt.Fprintf(log, "%v to %v: %s: %v\n", began, time.Since(l.h.start), what, err)
		if err == nil {
			l.moved.Add(1)
		} else {
			l.errors.add("moveChunk", err)
		}
		pauseUpTo(rnd, 200*time.Millisecond)
	}
}

// shardChunk is an entry of config.chunks.
type shardChunk struct {
	Min, Max bson.D
	Shard    string
}

// moveOne moves a chunk of any collection to another shard, or a part of one; now and then it splits a chunk or merges two. Sometimes it waits
// until the donor has deleted what was moved.
func (c *shardedCluster) moveOne(ctx context.Context, client *mongo.Client, rnd *rand.Rand) (what string, err error) {
	ns, chunks, err := c.anyChunks(ctx, client, rnd)
	if err != nil || len(chunks) == 0 {
		return "", err
	}
	i := rnd.Intn(len(chunks))
	ch := chunks[i]
	to := c.otherShard(ch.Shard, rnd)
	wait := rnd.Intn(4) == 0
	var cmd bson.D
	switch kind := rnd.Intn(10); {
	case kind == 0 && len(chunks) < maxNemesisChunks:
		what, cmd = "split", bson.D{{Key: "split", Value: ns}, {Key: "bounds", Value: bson.A{ch.Min, ch.Max}}}
	case kind <= 2 && i+1 < len(chunks) && chunks[i+1].Shard == ch.Shard:
		what, cmd = "merge", bson.D{{Key: "mergeChunks", Value: ns}, {Key: "bounds", Value: bson.A{ch.Min, chunks[i+1].Max}}}
	case kind == 3:
		what, cmd = "part to "+to, bson.D{{Key: "moveRange", Value: ns}, {Key: "min", Value: ch.Min}, {Key: "toShard", Value: to}, {Key: "waitForDelete", Value: wait}}
	default:
		what, cmd = "chunk to "+to, bson.D{{Key: "moveChunk", Value: ns}, {Key: "bounds", Value: bson.A{ch.Min, ch.Max}}, {Key: "to", Value: to}, {Key: "_waitForDelete", Value: wait}}
	}
	return fmt.Sprintf("%s %v %s", ns, ch.Min, what), client.Database("admin").RunCommand(ctx, cmd).Err()
}

// otherShard draws a shard that is not the given one.
func (c *shardedCluster) otherShard(from string, rnd *rand.Rand) string {
	at := slices.IndexFunc(c.shards, func(rs *replicaSet) bool { return rs.name == from })
	return shardName((at + 1 + rnd.Intn(len(c.shards)-1)) % len(c.shards))
}

// maxNemesisChunks is the number of chunks from which a collection is split no further.
const maxNemesisChunks = 20

// anyChunks returns one of the sharded collections with its chunks.
func (c *shardedCluster) anyChunks(ctx context.Context, client *mongo.Client, rnd *rand.Rand) (ns string, chunks []shardChunk, err error) {
	var colls []struct {
		ID string `bson:"_id"`
	}
	cur, err := client.Database("config").Collection("collections").Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$ne", Value: "config.system.sessions"}}}})
	if err == nil {
		err = cur.All(ctx, &colls)
	}
	if err != nil || len(colls) == 0 {
		return "", nil, err
	}
	ns = colls[rnd.Intn(len(colls))].ID
	chunks, err = c.chunksOf(ctx, client, ns)
	return ns, chunks, err
}

// chunksOf returns the chunks of a collection in order; none if it is not sharded.
func (c *shardedCluster) chunksOf(ctx context.Context, client *mongo.Client, ns string) (chunks []shardChunk, err error) {
	var coll struct {
		UUID bson.Binary `bson:"uuid"`
	}
	err = client.Database("config").Collection("collections").FindOne(ctx, bson.D{{Key: "_id", Value: ns}}).Decode(&coll)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	cur, err := client.Database("config").Collection("chunks").Find(ctx, bson.D{{Key: "uuid", Value: coll.UUID}}, options.Find().SetSort(bson.D{{Key: "min", Value: 1}}))
	if err == nil {
		err = cur.All(ctx, &chunks)
	}
	return chunks, err
}

// waitReady waits until every set has a primary and all of its members.
func (c *shardedCluster) waitReady() {
	c.t.Helper()
	for _, rs := range c.sets() {
		rs.waitReady()
	}
}

// unfinished counts the state documents of running protocols on the shards.
func (c *shardedCluster) unfinished(ctx context.Context) (found []string, err error) {
	for _, rs := range c.shards {
		p := rs.primary()
		if p < 0 {
			return nil, fmt.Errorf("%s has no primary", rs.name)
		}
		for _, name := range []string{"migrationCoordinators", "migrationRecipients", "rangeDeletions", "transaction_coordinators", "collection_critical_sections"} {
			cur, err := rs.members[p].direct.Database("config").Collection(name).Find(ctx, bson.D{})
			if err != nil {
				return nil, err
			}
			var docs []bson.Raw
			if err := cur.All(ctx, &docs); err != nil {
				return nil, err
			}
			for _, d := range docs {
				found = append(found, fmt.Sprintf("%s, config.%s: %v", rs.name, name, d))
			}
		}
		n, err := preparedTransactions(ctx, rs.members[p].direct)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			found = append(found, fmt.Sprintf("%s: %d prepared transactions", rs.name, n))
		}
	}
	return found, nil
}

// settle waits until no protocol is running.
func (c *shardedCluster) settle() {
	c.t.Helper()
	await.Progress(c.t, "no protocol is running", func() (string, bool) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		left, err := c.unfinished(ctx)
		if err == nil && len(left) == 0 {
			return "", true
		}
		return fmt.Sprint(err, c.terms(), "\n", strings.Join(left, "\n")), false
	})
}

// terms returns the terms of the sets: a new term is progress, as long as it is not the last one.
func (c *shardedCluster) terms() (out []int64) {
	for _, rs := range c.sets() {
		newest := int64(-1)
		for i := range rs.members {
			_, term := rs.state(i)
			newest = max(newest, term)
		}
		out = append(out, newest)
	}
	return out
}

// watchWhole counts the time in which every set has a primary, as far as it could be checked, until stop.
func (c *shardedCluster) watchWhole() (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		const pace = 100 * time.Millisecond
		for {
			whole := true
			for _, rs := range c.sets() {
				whole = whole && rs.primary() >= 0
			}
			if whole {
				c.whole.Add(int64(pace))
			}
			select {
			case <-done:
				return
			case <-time.After(pace):
			}
		}
	}()
	return func() { close(done); <-ended }
}

// checkCatalog compares the config server's catalog with the shards: no inconsistency, and no document on a wrong shard.
func (c *shardedCluster) checkCatalog(db string, colls ...string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cur, err := c.client.Database("admin").RunCommandCursor(ctx, bson.D{{Key: "checkMetadataConsistency", Value: 1}})
	if err != nil {
		c.t.Error(err)
		return
	}
	var bad []bson.Raw
	if err := cur.All(ctx, &bad); err != nil || len(bad) > 0 {
		c.t.Errorf("checkMetadataConsistency finds %v (%v)", bad, err)
	}
	for _, coll := range colls {
		all, err := c.client.Database(db).Collection(coll).CountDocuments(ctx, bson.D{})
		if err != nil {
			c.t.Error(err)
		}
		var stored int64
		for _, rs := range c.shards {
			n, err := rs.members[max(rs.primary(), 0)].direct.Database(db).Collection(coll).CountDocuments(ctx, bson.D{})
			if err != nil {
				c.t.Error(err)
			}
			stored += n
		}
		if stored != all {
			c.t.Errorf("%s.%s has %d documents, the shards store %d", db, coll, all, stored)
		}
	}
}

// showWrites logs the entries of the shards' oplogs for a document around a time.
func (c *shardedCluster) showWrites(ctx context.Context, ns string, v splitVersion) {
	around := bson.D{{Key: "$gt", Value: v.at.Add(-400 * time.Millisecond)}, {Key: "$lt", Value: v.at.Add(100 * time.Millisecond)}}
	q := bson.D{{Key: "wall", Value: around}, {Key: "ns", Value: ns}, {Key: "$or", Value: bson.A{bson.D{{Key: "o._id", Value: v.key}}, bson.D{{Key: "o2._id", Value: v.key}}}}}
	for _, rs := range c.shards {
		cur, err := rs.members[max(rs.primary(), 0)].direct.Database("local").Collection("oplog.rs").Find(ctx, q)
		if err != nil {
			c.t.Log(err)
			continue
		}
		var entries []bson.Raw
		_ = cur.All(ctx, &entries)
		for _, e := range entries {
			c.t.Logf("%s, register %d, version %d: %v", rs.name, v.key, v.version, e)
		}
	}
}
