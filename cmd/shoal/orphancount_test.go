package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/internal/await"
)

// numOrphanDocs of every range deletion is the number of documents of its range on that shard: after migrations beside inserts, deletions and updates, after the
// donor was killed and undid or finished one, and while a deletion is half done and paused, also across a kill.
func TestOrphansAreCountedExactly(t *testing.T) {
	t.Parallel()
	o := &orphanCount{t: t, c: launchCluster(t, clusterOptions{shards: []int{1, 1}, net: newNetwork(t),
		shardArgs: []string{"--setParameter", "rangeDeleterBatchSize=8", "--setParameter", "rangeDeleterBatchDelayMS=50"}})}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	c := o.c
	c.admin(bson.D{{Key: "enableSharding", Value: "orphans"}, {Key: "primaryShard", Value: c.shards[0].name}})
	c.admin(bson.D{{Key: "shardCollection", Value: "orphans.c"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
	for k := 100; k < 400; k += 100 {
		c.admin(bson.D{{Key: "split", Value: "orphans.c"}, {Key: "middle", Value: bson.D{{Key: "k", Value: k}}}})
	}
	rnd := rand.New(rand.NewPCG(7, 15))
	docs := make([]any, 1200)
	for i := range docs {
		docs[i] = bson.D{{Key: "k", Value: rnd.IntN(400)}, {Key: "n", Value: 0}}
	}
	if _, err := c.client.Database("orphans").Collection("c").InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	for round := range 6 {
		o.round(ctx, rnd, round)
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
	if o.compared == 0 || o.paused == 0 {
		t.Errorf("%d range deletions were compared, %d of them half done", o.compared, o.paused)
	}
	t.Logf("%d range deletions were compared, %d of them half done", o.compared, o.paused)
}

type orphanCount struct {
	t                *testing.T
	c                *shardedCluster
	on               [4]int // the shard that owns each chunk
	compared, paused int
}

// round moves a chunk beside writers, kills the donor in every other round, and compares the counts while deletions are paused.
func (o *orphanCount) round(ctx context.Context, rnd *rand.Rand, round int) {
	t, c := o.t, o.c
	t.Helper()
	o.pause(ctx, true)
	chunk := rnd.IntN(4)
	from := o.on[chunk]
	stop := o.write(ctx, rnd.Uint64())
	moved := make(chan error, 1)
	go func() {
		moved <- c.client.Database("admin").RunCommand(ctx, bson.D{{Key: "moveChunk", Value: "orphans.c"}, {Key: "find", Value: bson.D{{Key: "k", Value: chunk * 100}}},
			{Key: "to", Value: c.shards[1-from].name}}).Err()
	}()
	var err error
	if round%2 == 1 {
		pause(time.Duration(rnd.IntN(60)) * time.Millisecond) // any step may be the one at which the donor is killed
		c.shards[from].kill(0)
		c.shards[from].start(0)
		c.shards[from].waitReady()
		o.pause(ctx, true)
	}
	if err = <-moved; err != nil && round%2 == 0 {
		t.Fatal(err)
	}
	stop()
	for _, rs := range c.shards {
		awaitNone(t, ctx, "migrations of "+rs.name, rs.members[0].direct.Database("config").Collection("migrationCoordinators"))
	}
	o.place(ctx)
	o.compare(ctx)
	o.pause(ctx, false)
	halfDone := o.awaitProgress(ctx)
	o.pause(ctx, true)
	if halfDone {
		o.paused += o.compare(ctx)
	}
	if round%3 == 2 {
		victim := c.shards[rnd.IntN(2)]
		victim.kill(0)
		victim.start(0)
		victim.waitReady()
		o.pause(ctx, true)
		o.compare(ctx)
	}
	o.pause(ctx, false)
	for i, rs := range c.shards {
		awaitNone(t, ctx, "range deletions of "+rs.name, rs.members[0].direct.Database("config").Collection("rangeDeletions"))
		for chunk, on := range o.on {
			if n := o.count(ctx, i, bson.D{{Key: "k", Value: chunk * 100}}, bson.D{{Key: "k", Value: chunk*100 + 100}}); on != i && n != 0 {
				t.Errorf("%s has %d documents of chunk %d, which it does not own", rs.name, n, chunk)
			}
		}
	}
}

// pause sets whether the shards' range deleters are paused.
func (o *orphanCount) pause(ctx context.Context, on bool) {
	o.t.Helper()
	for _, rs := range o.c.shards {
		if err := rs.members[0].admin(ctx, bson.D{{Key: "setParameter", Value: 1}, {Key: "disableResumableRangeDeleter", Value: on}}); err != nil {
			o.t.Fatal(err)
		}
	}
}

// write inserts, deletes and updates documents until the returned function is called.
func (o *orphanCount) write(ctx context.Context, seed uint64) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	coll := o.c.client.Database("orphans").Collection("c")
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(w)))
			for ctx.Err() == nil {
				k := bson.D{{Key: "k", Value: rnd.IntN(400)}}
				switch rnd.IntN(4) {
				case 0, 1:
					_, _ = coll.InsertOne(ctx, append(k, bson.E{Key: "n", Value: 0}))
				case 2:
					_, _ = coll.DeleteOne(ctx, k)
				default:
					_, _ = coll.UpdateOne(ctx, k, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}, options.UpdateOne().SetUpsert(true))
				}
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// place reads which shard owns each chunk.
func (o *orphanCount) place(ctx context.Context) {
	o.t.Helper()
	chunks, err := o.c.chunksOf(ctx, o.c.client, "orphans.c")
	if err != nil || len(chunks) != 4 {
		o.t.Fatalf("%d chunks, %v", len(chunks), err)
	}
	for i, ch := range chunks {
		for s, rs := range o.c.shards {
			if rs.name == ch.Shard {
				o.on[i] = s
			}
		}
	}
}

// rangeTask is a document of config.rangeDeletions.
type rangeTask struct {
	ID      bson.RawValue `bson:"_id"`
	Orphans int64         `bson:"numOrphanDocs"`
	Pending bool          `bson:"pending"`
	Range   struct{ Min, Max bson.D }
}

func (o *orphanCount) tasks(ctx context.Context, shard int) (list []rangeTask) {
	o.t.Helper()
	cur, err := o.c.shards[shard].members[0].direct.Database("config").Collection("rangeDeletions").Find(ctx, bson.D{})
	if err == nil {
		err = cur.All(ctx, &list)
	}
	if err != nil {
		o.t.Fatal(err)
	}
	return list
}

// count counts the documents of a range on a shard, orphans too.
func (o *orphanCount) count(ctx context.Context, shard int, min, max bson.D) int64 {
	o.t.Helper()
	cur, err := o.c.shards[shard].members[0].direct.Database("orphans").Collection("c").Find(ctx, bson.D{}, options.Find().SetHint(bson.D{{Key: "k", Value: 1}}).SetMin(min).SetMax(max))
	n := int64(0)
	for err == nil && cur.Next(ctx) {
		n++
	}
	if err == nil {
		err = cur.Err()
	}
	if err != nil {
		o.t.Fatal(err)
	}
	return n
}

// compare compares the counts of all range deletions with the documents, and returns how many there are.
func (o *orphanCount) compare(ctx context.Context) (n int) {
	o.t.Helper()
	for i, rs := range o.c.shards {
		var list []rangeTask
		counts := map[string]int64{}
		await.State(o.t, "no deletion is running in "+rs.name, func() (string, bool) {
			list = o.tasks(ctx, i)
			before := fmt.Sprint(list)
			for _, task := range list {
				counts[task.ID.String()] = o.count(ctx, i, task.Range.Min, task.Range.Max)
			}
			return before, fmt.Sprint(o.tasks(ctx, i)) == before
		})
		for _, task := range list {
			if task.Pending {
				o.t.Errorf("%s has a pending range deletion although nothing moves: %+v", rs.name, task)
			}
			if got := counts[task.ID.String()]; got != task.Orphans {
				o.t.Errorf("%s: numOrphanDocs of [%v, %v) is %d, and there are %d documents", rs.name, task.Range.Min, task.Range.Max, task.Orphans, got)
			}
			n++
		}
	}
	o.compared += n
	return n
}

// awaitProgress waits until a deletion has begun, and reports whether one is half done.
func (o *orphanCount) awaitProgress(ctx context.Context) bool {
	o.t.Helper()
	all := func() (sum int64) {
		for i := range o.c.shards {
			for _, task := range o.tasks(ctx, i) {
				sum += task.Orphans
			}
		}
		return sum
	}
	was := all()
	await.State(o.t, "documents are deleted", func() (int64, bool) {
		now := all()
		return now, now < was || now == 0
	})
	return all() > 0
}
