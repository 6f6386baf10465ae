package main

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A member or a router that is shutting down lets running operations complete, and reports in hello how long it remains; a
// primary that no member can replace shuts down by force only.
func TestQuiesceMode(t *testing.T) {
	t.Parallel()
	cluster := launchCluster(t, clusterOptions{shards: []int{2}})
	router, shard := cluster.routers[0], cluster.shards[0]
	if _, err := router.direct.Database("d").Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	primary := shard.ready()
	secondary := shard.members[0]
	if secondary == primary {
		secondary = shard.members[1]
	}
	endsInQuiesce(t, router)
	endsInQuiesce(t, secondary)

	secondary.start()
	var c struct {
		Config struct {
			Members []bson.M `bson:"members"`
			Version int32    `bson:"version"`
			Rest    bson.M   `bson:",inline"`
		}
	}
	var admin *mongo.Database
	await.True(t, "the primary is the only member that can be it", func() bool { // on a slow machine it may be another one meanwhile
		primary = shard.ready()
		admin = primary.direct.Database("admin")
		if err := admin.RunCommand(t.Context(), bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&c); err != nil {
			t.Fatal(err)
		}
		c.Config.Version++
		for _, m := range c.Config.Members {
			m["priority"] = 0
			if m["host"] == primary.at() {
				m["priority"] = 1
			}
		}
		return admin.RunCommand(t.Context(), bson.D{{Key: "replSetReconfig", Value: c.Config}}).Err() == nil
	})
	err := admin.RunCommand(t.Context(), bson.D{{Key: "shutdown", Value: 1}, {Key: "timeoutSecs", Value: 0}}).Err()
	if e := (mongo.CommandError{}); !errors.As(err, &e) || e.Code != int32(mongoerr.ExceededTimeLimit) {
		t.Errorf("shutdown of a primary that nobody can replace: %v", err)
	}
	if primary.hello()["isWritablePrimary"] != true {
		t.Error("the primary that refused to shut down is no longer primary")
	}
	_ = admin.RunCommand(t.Context(), bson.D{{Key: "shutdown", Value: 1}, {Key: "force", Value: true}}).Err()
	if code := primary.endedWith(t); code != 0 {
		t.Errorf("a forced shutdown ended with %d", code)
	}
}

// endsInQuiesce shuts a server down while a find is running on it.
func endsInQuiesce(t *testing.T, o *server) {
	t.Helper()
	conn := dialPlain(t, o.at())
	version := conn.run("admin", `{"hello": 1}`)["topologyVersion"].(bson.D)[1].Value.(int64)

	ctx := context.Background()
	admin := o.direct.Database("admin")
	data := bson.D{{Key: "failCommands", Value: bson.A{"find"}}, {Key: "blockConnection", Value: true}, {Key: "blockTimeMS", Value: 1500}}
	var before struct{ Count int }
	if err := admin.RunCommand(ctx, bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: bson.D{{Key: "times", Value: 1}}}, {Key: "data", Value: data}}).Decode(&before); err != nil {
		t.Fatal(err)
	}
	found := make(chan error, 1)
	c := o.direct.Database("d").Collection("c", options.Collection().SetReadPreference(readpref.SecondaryPreferred()))
	go func() { found <- c.FindOne(ctx, bson.D{}).Err() }()
	if err := admin.RunCommand(ctx, bson.D{{Key: "waitForFailPoint", Value: "failCommand"}, {Key: "timesEntered", Value: before.Count + 1}, {Key: "maxTimeMS", Value: 30000}}).Err(); err != nil {
		t.Fatal(err)
	}
	o.signal(syscall.SIGTERM)
	await.True(t, "hello reports the shutdown", func() bool {
		r := conn.run("admin", `{"hello": 1}`)
		if r["code"] != int32(mongoerr.ShutdownInProgress) {
			return false
		}
		left, _ := r["remainingQuiesceTimeMillis"].(int64)
		if counter := r["topologyVersion"].(bson.D)[1].Value.(int64); left < 5000 || left > 15000 || counter <= version {
			t.Errorf("hello in quiesce mode: %v, the version was %d", r, version)
		}
		return true
	})
	select {
	case err := <-found:
		if err != nil {
			t.Errorf("the find that was under way: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the find has not ended")
	}
	if code := o.endedWith(t); code != 0 {
		t.Errorf("%v ended with %d", o.args, code)
	}
}
