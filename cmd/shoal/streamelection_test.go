package main

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shoaldb/shoal/internal/await"
)

// Change streams through a router continue without an error when members of the shards are killed, paused or replaced as primaries:
// every document that was acknowledged comes once, in the order of the tokens.
func TestStreamsOverElectionsOfShards(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts eight servers")
	}
	t.TempDir() // ends last
	c := launchCluster(t, clusterOptions{shards: []int{3, 3}, net: newNetwork(t)})
	c.shard("watch.c", 0)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	watchers := []*electionWatcher{
		openElectionWatcher(ctx, t, "shared", c, readpref.Primary()),
		openElectionWatcher(ctx, t, "from secondaries", c, readpref.SecondaryPreferred()),
	}
	w := startElectionWriters(ctx, c.client)
	following, stop := context.WithCancel(ctx)
	defer stop()
	var reading sync.WaitGroup
	for _, x := range watchers {
		reading.Go(func() { x.follow(following) })
	}
	troubles := []func(rs *replicaSet){
		func(rs *replicaSet) { i := rs.elected(); rs.kill(i); rs.awaitPrimaryBut(i); rs.start(i) },
		func(rs *replicaSet) {
			_ = rs.members[rs.elected()].admin(ctx, bson.D{{Key: "replSetStepDown", Value: 5}, {Key: "force", Value: true}})
		},
		func(rs *replicaSet) {
			i := rs.elected()
			rs.members[i].pause()
			rs.awaitPrimaryBut(i)
			rs.members[i].resume()
		},
		func(rs *replicaSet) {
			i := (rs.elected() + 1) % 3
			rs.kill(i)
			before := w.count()
			await.True(t, "the writers continue without the member", func() bool { return w.count() > before+50 })
			rs.start(i)
		},
	}
	for i, trouble := range troubles {
		for k := range c.shards {
			before := w.count()
			trouble(c.shards[(i+k)%2])
			c.shards[(i+k)%2].waitReady()
			await.True(t, "the writers continue", func() bool { return w.count() > before+50 })
		}
	}
	acknowledged, unknown := w.end()
	for _, x := range watchers {
		await.True(t, "the stream "+x.name+" has every event", func() bool { return x.hasAll(acknowledged) })
	}
	stop()
	reading.Wait()
	for _, x := range watchers {
		x.check(acknowledged, unknown)
	}
	t.Logf("%d documents acknowledged, %d of unknown outcome", len(acknowledged), len(unknown))
}

// electionWriters insert documents, one by one and in transactions over both shards.
type electionWriters struct {
	stop context.CancelFunc
	wg   sync.WaitGroup
	mu   struct {
		sync.Mutex
		acknowledged, unknown map[int]bool
	}
}

func startElectionWriters(ctx context.Context, client *mongo.Client) *electionWriters {
	w := &electionWriters{}
	w.mu.acknowledged, w.mu.unknown = map[int]bool{}, map[int]bool{}
	ctx, w.stop = context.WithCancel(ctx)
	for n := range 4 {
		w.wg.Go(func() {
			for k := 0; ctx.Err() == nil; k += 4 {
				at := 1 + n*1_000_000 + k
				ids := []int{at, -at, at + 1, -at - 1}
				w.note(ids, insertAll(context.Background(), client, ids, n == 0))
				pause(5 * time.Millisecond) // the streams have to follow
			}
		})
	}
	return w
}

// insertAll inserts documents, in a transaction or each by itself.
func insertAll(ctx context.Context, client *mongo.Client, ids []int, transaction bool) error {
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	coll := client.Database("watch").Collection("c")
	all := func(ctx context.Context) error {
		for _, id := range ids {
			if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: id}}); err != nil {
				return err
			}
		}
		return nil
	}
	if !transaction {
		return all(ctx)
	}
	s, err := client.StartSession()
	if err != nil {
		return err
	}
	defer s.EndSession(context.Background())
	_, err = s.WithTransaction(ctx, func(ctx context.Context) (any, error) { return nil, all(ctx) })
	return err
}

func (w *electionWriters) note(ids []int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if err == nil {
			w.mu.acknowledged[id] = true
		} else {
			w.mu.unknown[id] = true
		}
	}
}

func (w *electionWriters) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.mu.acknowledged)
}

func (w *electionWriters) end() (acknowledged, unknown map[int]bool) {
	w.stop()
	w.wg.Wait()
	return w.mu.acknowledged, w.mu.unknown
}

// electionWatcher reads one stream by getMore, which no driver resumes.
type electionWatcher struct {
	t    *testing.T
	name string
	db   *mongo.Database
	id   int64
	mu   struct {
		sync.Mutex
		seen map[int]int
		last string
		errs []error
	}
}

type electionBatch struct {
	Cursor struct {
		ID                    int64
		FirstBatch, NextBatch []struct {
			ID struct {
				Data string `bson:"_data"`
			} `bson:"_id"`
			OperationType string `bson:"operationType"`
			DocumentKey   struct {
				ID int `bson:"_id"`
			} `bson:"documentKey"`
		}
	}
}

func openElectionWatcher(ctx context.Context, t *testing.T, name string, c *shardedCluster, pref *readpref.ReadPref) *electionWatcher {
	t.Helper()
	x := &electionWatcher{t: t, name: name, db: connect(t, c.uri()).Database("watch")}
	x.mu.seen = map[int]int{}
	cmd := bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: bson.D{}}}}}, {Key: "cursor", Value: bson.D{}}}
	if pref.Mode() != readpref.PrimaryMode {
		cmd = append(cmd, bson.E{Key: "$readPreference", Value: bson.D{{Key: "mode", Value: pref.Mode().String()}}})
	}
	var b electionBatch
	if err := x.db.RunCommand(ctx, cmd).Decode(&b); err != nil || b.Cursor.ID == 0 {
		t.Fatalf("%s: %v", name, err)
	}
	x.id = b.Cursor.ID
	return x
}

func (x *electionWatcher) follow(ctx context.Context) {
	for ctx.Err() == nil {
		var b electionBatch
		err := x.db.RunCommand(ctx, bson.D{{Key: "getMore", Value: x.id}, {Key: "collection", Value: "c"}, {Key: "maxTimeMS", Value: 300}}).Decode(&b)
		if ctx.Err() != nil {
			return
		}
		x.mu.Lock()
		if err != nil {
			x.mu.errs = append(x.mu.errs, err)
			x.mu.Unlock()
			return
		}
		for _, e := range b.Cursor.NextBatch {
			if e.OperationType != "insert" || e.ID.Data <= x.mu.last {
				x.mu.errs = append(x.mu.errs, fmt.Errorf("%s of %d with token %s after %s", e.OperationType, e.DocumentKey.ID, e.ID.Data, x.mu.last))
			}
			x.mu.last = e.ID.Data
			x.mu.seen[e.DocumentKey.ID]++
		}
		x.mu.Unlock()
	}
}

func (x *electionWatcher) hasAll(ids map[int]bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id := range ids {
		if x.mu.seen[id] == 0 {
			return len(x.mu.errs) > 0
		}
	}
	return true
}

func (x *electionWatcher) check(acknowledged, unknown map[int]bool) {
	x.t.Helper()
	for _, err := range x.mu.errs {
		x.t.Errorf("%s: %v", x.name, err)
	}
	for id := range acknowledged {
		if n := x.mu.seen[id]; n != 1 {
			x.t.Errorf("%s: the document %d came %d times", x.name, id, n)
		}
	}
	for id, n := range x.mu.seen {
		if n > 1 || !acknowledged[id] && !unknown[id] {
			x.t.Errorf("%s: the document %d came %d times, and was acknowledged: %t", x.name, id, n, acknowledged[id])
		}
	}
}
