package main

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A migration with secondaryThrottle and a writeConcern waits for those members of the recipient after each batch: it fails at the wtimeout while one of them is frozen,
// where a migration without it, or with a concern that the others satisfy, continues.
func TestThrottledMigrationsAwaitTheirMembers(t *testing.T) {
	t.Parallel()
	c := launchCluster(t, clusterOptions{shards: []int{1, 3}})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	c.admin(bson.D{{Key: "enableSharding", Value: "throttle"}, {Key: "primaryShard", Value: c.shards[0].name}})
	c.admin(bson.D{{Key: "shardCollection", Value: "throttle.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}})
	docs := make([]any, 400)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}}
	}
	if _, err := c.client.Database("throttle").Collection("c").InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	frozen := c.shards[1].members[(c.shards[1].elected()+1)%3]
	move := func(from int, more ...bson.E) error {
		cmd := bson.D{{Key: "moveRange", Value: "throttle.c"}, {Key: "min", Value: bson.D{{Key: "_id", Value: from}}}, {Key: "max", Value: bson.D{{Key: "_id", Value: from + 100}}},
			{Key: "toShard", Value: c.shards[1].name}}
		return c.client.Database("admin").RunCommand(ctx, append(cmd, more...)).Err()
	}
	concern := func(w int) bson.E {
		return bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: w}, {Key: "wtimeout", Value: 500}}}
	}
	throttle := bson.E{Key: "secondaryThrottle", Value: true}
	frozen.pause()
	defer frozen.signal(syscall.SIGCONT)
	for i, x := range []struct {
		what string
		more []bson.E
		err  string
	}{
		{"without secondaryThrottle", []bson.E{concern(3)}, ""},
		{"with secondaryThrottle alone", []bson.E{throttle}, ""},
		{"with w: 2", []bson.E{throttle, concern(2)}, ""},
		{"with w: 3", []bson.E{throttle, concern(3)}, "waiting for replication timed out"},
	} {
		if err := move(100*i, x.more...); (err == nil) != (x.err == "") || err != nil && !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %v", x.what, err)
		}
	}
	frozen.signal(syscall.SIGCONT)
	if err := move(300, throttle, bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 3}}}); err != nil {
		t.Errorf("with w: 3 and all members: %v", err)
	}
	if n, err := c.client.Database("throttle").Collection("c").CountDocuments(ctx, bson.D{}); n != 400 || err != nil {
		t.Errorf("%d documents, %v", n, err)
	}
}
