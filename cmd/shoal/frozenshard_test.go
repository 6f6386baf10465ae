package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// One shard is frozen, and keeps its connections. New databases get another one as primary shard, also where the frozen one has fewer databases. Commands that need all
// shards end at their maxTimeMS and, without one, with an error that names the shard or its server, as a find does that needs the shard.
func TestOneFrozenShard(t *testing.T) {
	if testing.Short() {
		t.Skip("starts four servers")
	}
	t.Parallel()
	c := launchCluster(t, clusterOptions{shards: []int{1, 1}})
	ctx, frozen := context.Background(), c.shards[1].members[0]
	dbs := []string{"here", "there"}
	for i, db := range dbs {
		c.admin(pairs("enableSharding", db, "primaryShard", c.shards[i].name))
		if _, err := c.client.Database(db).Collection("c").InsertOne(ctx, pairs("_id", 1)); err != nil {
			t.Fatal(err)
		}
	}
	c.shard("here.s", 0, 10)
	frozen.pause()
	defer frozen.resume()

	for i := range 5 {
		db := fmt.Sprint("new", i)
		if _, err := c.client.Database(db).Collection("c").InsertOne(ctx, pairs("_id", 1)); err != nil {
			t.Fatalf("insert into %s: %v", db, err)
		}
	}

	needAll := []struct {
		db  string
		cmd bson.D
	}{
		{"there", pairs("find", "c")}, {"here", pairs("find", "s")}, {"admin", pairs("listDatabases", 1)},
		{"admin", pairs("checkMetadataConsistency", 1)}, {"here", pairs("checkMetadataConsistency", 1)}, {"there", pairs("checkMetadataConsistency", 1)},
	}
	for _, k := range needAll {
		var refused mongo.CommandError
		err := c.client.Database(k.db).RunCommand(ctx, slices.Concat(k.cmd, pairs("maxTimeMS", 300))).Err()
		if !errors.As(err, &refused) || refused.Code != int32(mongoerr.MaxTimeMSExpired) {
			t.Errorf("%v on %s with maxTimeMS: %v", k.cmd, k.db, err)
		}
	}
	var wg sync.WaitGroup
	for _, k := range needAll {
		wg.Go(func() {
			began := time.Now()
			err := c.client.Database(k.db).RunCommand(ctx, k.cmd).Err()
			t.Logf("%v on %s after %v: %v", k.cmd, k.db, time.Since(began), err)
			var refused mongo.CommandError
			if !errors.As(err, &refused) || !slices.Contains(unreachable, mongoerr.Code(refused.Code)) {
				t.Errorf("%v on %s: %v", k.cmd, k.db, err)
			} else if !strings.Contains(refused.Message, frozen.at()) && !strings.Contains(refused.Message, c.shards[1].name) {
				t.Errorf("%v on %s does not say which shard: %v", k.cmd, k.db, err)
			}
		})
	}
	wg.Wait()

	frozen.resume()
	for _, k := range needAll {
		if err := c.client.Database(k.db).RunCommand(ctx, k.cmd).Err(); err != nil {
			t.Errorf("%v on %s after the shard goes on: %v", k.cmd, k.db, err)
		}
	}
}

// unreachable are the errors of commands that need a server that does not answer.
var unreachable = []mongoerr.Code{mongoerr.HostUnreachable, mongoerr.NetworkTimeout, mongoerr.FailedToSatisfyReadPreference}
