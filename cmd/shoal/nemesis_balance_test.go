package main

import (
	"context"
	"fmt"
	"math/rand"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// rebalance has the balancer move chunks beside moveSome until ctx ends: for a zone that a range is assigned to for a moment, because a
// shard is draining for a moment, or at random; in the short form only at random.
func (c *shardedCluster) rebalance(ctx context.Context, client *mongo.Client, rnd *rand.Rand, l *clusterLoad) {
	for ctx.Err() == nil {
		if l.ddl == nil || rnd.Intn(3) == 0 {
			moved, err := c.shuffleSome(client, l)
			l.shuffled.Add(int64(moved))
			if err != nil {
				l.errors.add("random migrations", err)
			}
			pauseUpTo(rnd, time.Second)
			continue
		}
		change, undo := c.zoneSome, c.unzone
		if rnd.Intn(2) == 0 {
			change, undo = c.drainSome, c.undrain
		}
		octx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		what, err := change(octx, client, rnd)
		cancel()
		if err == nil {
			err = c.balanced(client, time.Duration(1000+rnd.Intn(3000))*time.Millisecond)
		}
		if err != nil {
			l.errors.add(what, err)
		} else {
			l.balanced.Add(1)
		}
		c.insist(what, func(ctx context.Context) error { return undo(ctx, client) })
	}
}

// balanced lets the balancer run for a while.
func (c *shardedCluster) balanced(client *mongo.Client, while time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "balancerStart", Value: 1}}).Err(); err != nil {
		return err
	}
	<-time.After(while)
	c.insist("balancerStop", func(ctx context.Context) error {
		return client.Database("admin").RunCommand(ctx, bson.D{{Key: "balancerStop", Value: 1}}).Err()
	})
	return nil
}

// insist repeats what has to be undone, whatever is down at the moment.
func (c *shardedCluster) insist(what string, f func(ctx context.Context) error) {
	var err error
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		err = f(ctx)
		cancel()
		if err == nil {
			return
		}
	}
	c.t.Errorf("%s cannot be undone: %v", what, err)
}

// zoneSome assigns a chunk's range to a zone that another shard has.
func (c *shardedCluster) zoneSome(ctx context.Context, client *mongo.Client, rnd *rand.Rand) (what string, err error) {
	ns, chunks, err := c.anyChunks(ctx, client, rnd)
	if err != nil || len(chunks) == 0 {
		return "zones", err
	}
	ch, to := chunks[rnd.Intn(len(chunks))], c.shards[rnd.Intn(len(c.shards))].name
	admin := client.Database("admin")
	err = admin.RunCommand(ctx, bson.D{{Key: "addShardToZone", Value: to}, {Key: "zone", Value: "nemesis"}}).Err()
	if err == nil {
		err = admin.RunCommand(ctx, bson.D{{Key: "updateZoneKeyRange", Value: ns}, {Key: "min", Value: ch.Min}, {Key: "max", Value: ch.Max}, {Key: "zone", Value: "nemesis"}}).Err()
	}
	return fmt.Sprintf("a zone of %s", ns), err
}

// unzone removes the zone from every range and shard.
func (c *shardedCluster) unzone(ctx context.Context, client *mongo.Client) error {
	cur, err := client.Database("config").Collection("tags").Find(ctx, bson.D{{Key: "tag", Value: "nemesis"}})
	if err != nil {
		return err
	}
	var tags []struct {
		NS       string `bson:"ns"`
		Min, Max bson.D
	}
	if err := cur.All(ctx, &tags); err != nil {
		return err
	}
	admin := client.Database("admin")
	for _, tag := range tags {
		err := admin.RunCommand(ctx, bson.D{{Key: "updateZoneKeyRange", Value: tag.NS}, {Key: "min", Value: tag.Min}, {Key: "max", Value: tag.Max}, {Key: "zone", Value: nil}}).Err()
		if err != nil {
			return err
		}
	}
	for _, rs := range c.shards {
		if err := admin.RunCommand(ctx, bson.D{{Key: "removeShardFromZone", Value: rs.name}, {Key: "zone", Value: "nemesis"}}).Err(); err != nil {
			return err
		}
	}
	return nil
}

// drainSome begins to drain the last shard. Nobody asks to remove it once it is empty.
func (c *shardedCluster) drainSome(ctx context.Context, client *mongo.Client, _ *rand.Rand) (what string, err error) {
	name := c.shards[len(c.shards)-1].name
	return "draining " + name, client.Database("admin").RunCommand(ctx, bson.D{{Key: "removeShard", Value: name}}).Err()
}

// undrain ends the draining of all shards.
func (c *shardedCluster) undrain(ctx context.Context, client *mongo.Client) error {
	_, err := client.Database("config").Collection("shards").UpdateMany(ctx, bson.D{{Key: "draining", Value: true}}, bson.D{{Key: "$unset", Value: bson.D{{Key: "draining", Value: ""}}}})
	return err
}
