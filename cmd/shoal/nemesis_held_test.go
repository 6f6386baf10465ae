package main

import (
	"context"
	"fmt"
	"math/rand"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// heldMoves is the number of migrations of its collection over which a cursor is held open.
const heldMoves = 3

// heldCursor reads the first documents of a collection, by primaries or secondaries, lets its chunks move several times, and reads the rest: each document
// is returned once.
func (o *longer) heldCursor(_ context.Context, client *mongo.Client, rnd *rand.Rand) error {
	l := o.l
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	pref := readpref.Primary()
	if rnd.Intn(2) == 0 {
		pref = readpref.SecondaryPreferred()
	}
	coll := client.Database("nemesis", options.Database().SetReadPreference(pref)).Collection("shelf")
	cur, err := coll.Find(ctx, bson.D{}, options.Find().SetBatchSize(20))
	if err != nil {
		l.errors.add("held cursor", err)
		return err
	}
	moves := 0
	first := true
	err = o.rest(ctx, cur, "shelf", shelfDocs, func() {
		if !first {
			return
		}
		first = false
		for end := time.Now().Add(20 * time.Second); moves < heldMoves && time.Now().Before(end); {
			if l.c.moveChunkOf(client, "nemesis.shelf", rnd) == nil {
				moves++
			} else {
				pauseUpTo(rnd, 200*time.Millisecond)
			}
		}
	})
	if err != nil {
		l.errors.add("held cursor", err)
		return err
	}
	if moves == heldMoves {
		o.held.Add(1)
	}
	return nil
}

// moveChunkOf moves a chunk of a collection to another shard.
func (c *shardedCluster) moveChunkOf(client *mongo.Client, ns string, rnd *rand.Rand) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	chunks, err := c.chunksOf(ctx, client, ns)
	if err != nil || len(chunks) == 0 {
		return fmt.Errorf("no chunks: %w", err)
	}
	ch := chunks[rnd.Intn(len(chunks))]
	return client.Database("admin").RunCommand(ctx, bson.D{{Key: "moveChunk", Value: ns}, {Key: "bounds", Value: bson.A{ch.Min, ch.Max}}, {Key: "to", Value: c.otherShard(ch.Shard, rnd)}}).Err()
}

// shuffleSome has the balancer move chunks at random: by a fail point of the config server's primary, while nothing else moves any, as a shard takes part in
// one migration at a time. A round in which nothing moved, as migrations collided or a member was down, would be followed by the next after ten seconds:
// balancerStart makes one begin at once.
func (c *shardedCluster) shuffleSome(client *mongo.Client, l *clusterLoad) (moved int, err error) {
	l.shuffling.Store(true)
	defer l.shuffling.Store(false)
	p := c.config.primary()
	if p < 0 {
		return 0, fmt.Errorf("the config server has no primary")
	}
	point := func(ctx context.Context, i int, mode string) error {
		return c.config.members[i].admin(ctx, bson.D{{Key: "configureFailPoint", Value: "balancerShouldReturnRandomMigrations"}, {Key: "mode", Value: mode}})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := point(ctx, p, "alwaysOn"); err != nil {
		return 0, err
	}
	before, err := balancerMoves(ctx, client)
	if err != nil {
		return 0, err
	}
	for range 6 {
		if err = c.balanced(client, 400*time.Millisecond); err != nil {
			break
		}
	}
	c.insist("the fail point of random migrations", func(ctx context.Context) error {
		if !c.config.members[p].running() {
			return nil // a process that is started again has none
		}
		return point(ctx, p, "off")
	})
	ctx, cancel = context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	after, failed := balancerMoves(ctx, client)
	if failed != nil {
		return 0, failed
	}
	return after - before, err
}

// balancerMoves counts the migrations of all rounds of the balancer.
func balancerMoves(ctx context.Context, client *mongo.Client) (n int, err error) {
	cur, err := client.Database("config").Collection("actionlog").Aggregate(ctx, bson.A{
		bson.D{{Key: "$match", Value: bson.D{{Key: "what", Value: "balancer.round"}}}},
		bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: nil}, {Key: "n", Value: bson.D{{Key: "$sum", Value: "$details.chunksMoved"}}}}}},
	})
	if err != nil {
		return 0, err
	}
	var sums []struct{ N int }
	if err := cur.All(ctx, &sums); err != nil || len(sums) == 0 {
		return 0, err
	}
	return sums[0].N, nil
}

// secondaryQueries counts the finds that routers have sent to secondaries of the shards since these were started last.
func (c *shardedCluster) secondaryQueries() (n int64) {
	for _, rs := range c.shards {
		for i, m := range rs.members {
			if role, _ := rs.state(i); role != "secondary" {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			var status struct{ Opcounters struct{ Query int64 } }
			err := m.direct.Database("admin", options.Database().SetReadPreference(readpref.Nearest())).RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Decode(&status)
			cancel()
			if err == nil {
				n += status.Opcounters.Query
			}
		}
	}
	return n
}
