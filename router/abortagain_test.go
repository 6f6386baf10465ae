package router_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A resharding that a client has aborted does not begin again: neither for a second client who has joined it, nor for the request that a router sends again when the shard that coordinates it has lost its primary
// meanwhile. The abort used to be answered, and the collection was resharded.
func TestAbortedReshardingDoesNotBeginAgain(t *testing.T) {
	t.Parallel()
	const reshard = `{"reshardCollection": "db.c", "key": {"_id": 1}, "numInitialChunks": 2}`
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprint("restarted ", restarted), func(t *testing.T) {
			c := newTestCluster(t, 2)
			c.config.Points = c.points["config"]
			c.halved("c")
			reached, release := c.hangOn("config", "reshardingPauseCoordinatorAtState", "state", "applying")
			first := c.later("admin", reshard)
			reached()
			second := c.later("admin", reshard)
			c.until("the second has joined the first", func() bool { return c.underWay("shard0", "_shardsvrReshardCollection") == 2 })
			if restarted {
				undoing, undo := c.hangOn("shard0", hangBeforePhase, "phase", "undo")
				aborted := c.later("admin", `{"abortReshardCollection": "db.c"}`)
				c.wish("abortReshardCollection")
				release()
				undoing()
				c.restart("shard0")
				undo()
				c.expect((<-aborted)["ok"], `1.0`)
			} else {
				aborted := c.later("admin", `{"abortReshardCollection": "db.c"}`)
				c.wish("abortReshardCollection")
				release()
				c.expect((<-aborted)["ok"], `1.0`)
			}
			for i, reply := range []<-chan bson.M{first, second} {
				if m := <-reply; m["code"] != int32(mongoerr.ReshardCollectionAborted) {
					t.Errorf("client %d: %v", i, m)
				}
			}
			c.expect(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}, "projection": {"key": 1, "_id": 0}}`), `[{"key":{"k":1}}]`)
			c.leftOver()
			c.run("admin", reshard)
		})
	}
}

// The config server's primary steps down while it aborts or commits a resharding at a client's wish: the next one is told again.
func TestWishesForAReshardingReachTheNextPrimary(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		wish, key string
		code      mongoerr.Code
	}{{"abortReshardCollection", "k", mongoerr.ReshardCollectionAborted}, {"commitReshardCollection", "_id", 0}} {
		t.Run(x.wish, func(t *testing.T) {
			c := newTestCluster(t, 2)
			c.config.Points = c.points["config"]
			c.halved("c")
			reached, release := c.hangOn("config", "reshardingPauseCoordinatorAtState", "state", "applying")
			resharded := c.later("admin", `{"reshardCollection": "db.c", "key": {"_id": 1}, "numInitialChunks": 2}`)
			reached()
			wished := c.later("admin", `{"`+x.wish+`": "db.c"}`)
			c.wish(x.wish)
			c.depose()
			c.reshardings()
			reached()
			c.wish(x.wish) // the one that is sent again may come later
			release()
			if m := <-wished; m["ok"] != 1.0 {
				t.Errorf("%s: %v", x.wish, m)
			}
			if m := <-resharded; x.code != 0 && m["code"] != int32(x.code) || x.code == 0 && m["ok"] != 1.0 {
				t.Errorf("the resharding: %v", m)
			}
			c.expect(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}, "projection": {"key": 1, "_id": 0}}`), `[{"key":{"`+x.key+`":1}}]`)
			c.leftOver()
		})
	}
}

// wish has the config server know of a wish for db.c that it cannot fulfil yet, beside one that waits.
func (c *testCluster) wish(command string) {
	c.t.Helper()
	if m := c.raw("admin", `{"`+command+`": "db.c", "maxTimeMS": 300}`); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
		c.t.Fatalf("%s: %v", command, m)
	}
}

// The same command that a client sends after an abort is a new one: it goes on when the shard that coordinates it loses its primary.
func TestReshardingAfterAnAbortGoesOn(t *testing.T) {
	t.Parallel()
	const reshard = `{"reshardCollection": "db.c", "key": {"_id": 1}, "numInitialChunks": 2}`
	c := newTestCluster(t, 2)
	c.config.Points = c.points["config"]
	c.halved("c")
	for _, abort := range []bool{true, false} {
		reached, release := c.hangOn("config", "reshardingPauseCoordinatorAtState", "state", "applying")
		resharded := c.later("admin", reshard)
		reached()
		if abort {
			c.wish("abortReshardCollection")
		}
		c.restart("shard0")
		release()
		want := map[bool]any{true: int32(mongoerr.ReshardCollectionAborted), false: nil}[abort]
		if m := <-resharded; m["code"] != want {
			t.Errorf("aborted %v: %v", abort, m)
		}
		c.leftOver()
	}
}

// A resharding is aborted when the shard that coordinates it has lost its primary. Of the requests for the same that arrive after its end, those that are sent again by routers whose clients had joined it are answered with the abort's
// error. One that had not been received is a new one, although it is sent again, too: it was answered with that error for two minutes.
func TestWhoseReshardingWasAborted(t *testing.T) {
	t.Parallel()
	const reshard = `{"reshardCollection": "db.c", "key": {"_id": 1}, "numInitialChunks": 2}`
	c := newTestCluster(t, 2)
	c.config.Points = c.points["config"]
	w := c.interposed("shard0")
	c.halved("c")
	var sent atomic.Int32
	ended := make(chan struct{})
	w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if name != "_shardsvrReshardCollection" {
			return call()
		}
		switch n := sent.Add(1); {
		case n == 3 || n == 4: // the first two are sent again
			<-ended
		case n == 5:
			return nil, mongoerr.New(mongoerr.HostUnreachable, "it is lost")
		}
		return call()
	})
	reached, release := c.hangOn("config", "reshardingPauseCoordinatorAtState", "state", "applying")
	first := c.later("admin", reshard)
	reached()
	second := c.later("admin", reshard)
	joined := bson.D{{Key: "count", Value: "system.sharding_ddl_coordinators"}, {Key: "query", Value: bson.D{{Key: "joined", Value: bson.D{{Key: "$size", Value: 1}}}}}, {Key: "$db", Value: "config"}}
	c.until("the second has joined the first", func() bool { return c.admin(c.shards["shard0"], joined)["n"] == int32(1) })
	c.restart("shard0")
	c.until("both are sent again", func() bool { return sent.Load() == 4 })
	aborted := c.later("admin", `{"abortReshardCollection": "db.c"}`)
	c.wish("abortReshardCollection")
	release()
	c.expect((<-aborted)["ok"], `1.0`)
	c.leftOver()
	close(ended)
	for i, reply := range []<-chan bson.M{first, second} {
		if m := <-reply; m["code"] != int32(mongoerr.ReshardCollectionAborted) {
			t.Errorf("client %d: %v", i, m)
		}
	}
	c.expect(c.all("config", `{"find": "collections", "filter": {"_id": "db.c"}, "projection": {"key": 1, "_id": 0}}`), `[{"key":{"k":1}}]`)
	c.run("admin", reshard)
	if n := sent.Load(); n != 6 {
		t.Errorf("%d requests were sent", n)
	}
}
