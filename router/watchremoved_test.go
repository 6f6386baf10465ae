package router_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// openWatch opens a stream and returns the code and labels of its error, 0 for none.
func (c *testCluster) openWatch(db string, coll any, spec bson.D) (code int32, labels any) {
	c.t.Helper()
	js, err := bson.MarshalExtJSON(bson.D{{Key: "aggregate", Value: coll}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: spec}}}}, {Key: "cursor", Value: bson.D{}}}, true, false)
	if err != nil {
		c.t.Fatal(err)
	}
	m := c.raw(db, string(js))
	code, _ = m["code"].(int32)
	return code, m["errorLabels"]
}

// removeEmptyShard removes a shard without data.
func (c *testCluster) removeEmptyShard(shard string) {
	c.t.Helper()
	c.cmd("admin", bson.D{{Key: "removeShard", Value: shard}})
	c.expect(c.cmd("admin", bson.D{{Key: "removeShard", Value: shard}})["state"], `"completed"`)
}

// A stream that begins when a since removed shard had data of its collection ends with ChangeStreamHistoryLost: it used to
// skip that shard's events. One of a collection of which the shard had no data, or that begins when it no longer had any, is opened.
func TestStreamsReportRemovedShards(t *testing.T) {
	c := newTestCluster(t, 3)
	c.twoShards()
	now := func() bson.Timestamp {
		return c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: 1}}}}})["operationTime"].(bson.Timestamp)
	}
	c.cmd("admin", bson.D{{Key: "shardCollection", Value: "db.other"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}})
	c.cmd("admin", bson.D{{Key: "enableSharding", Value: "db2"}, {Key: "primaryShard", Value: "shard1"}})
	before := now()
	s, _ := c.watch("s", bson.D{})
	c.cmd("admin", bson.D{{Key: "moveChunk", Value: "db.s"}, {Key: "find", Value: bson.D{{Key: "k", Value: 70}}}, {Key: "to", Value: "shard2"}, {Key: "_waitForDelete", Value: true}})
	c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: 80}}}}})
	held := now()
	c.cmd("admin", bson.D{{Key: "moveChunk", Value: "db.s"}, {Key: "find", Value: bson.D{{Key: "k", Value: 70}}}, {Key: "to", Value: "shard1"}, {Key: "_waitForDelete", Value: true}})
	after := now()
	var token any
	events := 0
	for tries := 0; events < 3 && tries < 20; tries++ {
		events += len(s.more(500))
		token = s.token
	}
	c.admin(c.confP, bson.D{{Key: "insert", Value: "placementHistory"}, {Key: "$db", Value: "config"}, {Key: "documents", Value: bson.A{ // no stream has events of the sessions
		bson.D{{Key: "nss", Value: "config.system.sessions"}, {Key: "timestamp", Value: after}, {Key: "shards", Value: bson.A{"shard2"}}}}}})
	c.removeEmptyShard("shard2")
	for _, x := range []struct {
		name string
		db   string
		coll any
		spec bson.D
		want mongoerr.Code
	}{
		{"before the shard had any", "db", "s", bson.D{{Key: "startAtOperationTime", Value: before}}, mongoerr.ChangeStreamHistoryLost},
		{"while it had some", "db", "s", bson.D{{Key: "startAtOperationTime", Value: held}}, mongoerr.ChangeStreamHistoryLost},
		{"afterwards", "db", "s", bson.D{{Key: "startAtOperationTime", Value: after}}, 0},
		{"a token of afterwards", "db", "s", bson.D{{Key: "resumeAfter", Value: token}}, 0},
		{"now", "db", "s", bson.D{}, 0},
		{"another collection", "db", "other", bson.D{{Key: "startAtOperationTime", Value: before}}, 0},
		{"its database", "db", 1, bson.D{{Key: "startAtOperationTime", Value: held}}, mongoerr.ChangeStreamHistoryLost},
		{"another database", "db2", 1, bson.D{{Key: "startAtOperationTime", Value: held}}, 0},
		{"the cluster", "admin", 1, bson.D{{Key: "allChangesForCluster", Value: true}, {Key: "startAtOperationTime", Value: held}}, mongoerr.ChangeStreamHistoryLost},
		{"the cluster afterwards", "admin", 1, bson.D{{Key: "allChangesForCluster", Value: true}, {Key: "startAtOperationTime", Value: after}}, 0},
	} {
		code, labels := c.openWatch(x.db, x.coll, x.spec)
		if code != int32(x.want) {
			t.Errorf("%s: %d %v, want %d", x.name, code, labels, x.want)
		}
		if x.want != 0 {
			c.expect(labels, `["NonResumableChangeStreamError"]`)
		}
	}
	c.cmd("admin", bson.D{{Key: "resetPlacementHistory", Value: 1}}) // which is not to hide it
	if code, _ := c.openWatch("db", "s", bson.D{{Key: "startAtOperationTime", Value: held}}); code != int32(mongoerr.ChangeStreamHistoryLost) {
		t.Errorf("while it had some, since the history was reset: %d", code)
	}
	if code, _ := c.openWatch("db", "s", bson.D{{Key: "startAtOperationTime", Value: after}}); code != 0 {
		t.Errorf("afterwards, since the history was reset: %d", code)
	}
	now()
	if got := s.more(5000); len(got) != 1 {
		t.Errorf("the stream that was open has %v", got)
	}
}

// A stream goes on without a removed shard that no longer had data, whatever the shard replies to the request that was under way: it ended with CursorKilled, as its cursor there
// was killed.
func TestStreamsGoOnWithoutARemovedShard(t *testing.T) {
	c := newTestCluster(t, 3)
	w := c.interposed("shard2")
	c.twoShards()
	s, _ := c.watch("s", bson.D{})
	var waiting atomic.Int64
	killed := make(chan struct{})
	var once sync.Once
	w.through(func(ctx context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		switch name {
		case "killCursors":
			once.Do(func() { close(killed) })
		case "getMore":
			waiting.Add(1)
			select {
			case <-killed:
				return nil, mongoerr.New(mongoerr.CursorKilled, "cursor was killed")
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return call()
	})
	c.until("a request is under way", func() bool {
		s.more(10)
		return waiting.Load() > 0
	})
	c.removeEmptyShard("shard2")
	for k := range 3 {
		c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: k}}}}})
	}
	if got := s.rest(3); len(got) != 3 {
		t.Errorf("the stream has %v", got)
	}
	if !closed(killed) {
		t.Error("the cursor on the removed shard stays")
	}
}

// A stream that has not read all events of a shard when it is removed ends with ChangeStreamHistoryLost, like one that is resumed
// there: it used to continue without those events.
func TestStreamsBehindARemovedShard(t *testing.T) {
	t.Parallel()
	for _, behind := range []bool{true, false} {
		c := newTestCluster(t, 2)
		c.twoShards()
		start := c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: 60}}}}})["operationTime"]
		s, first := c.watch("s", bson.D{{Key: "startAtOperationTime", Value: start}, {Key: "fullDocument", Value: "updateLookup"}})
		n := len(first)
		if behind {
			c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: 61}}}}})
		}
		c.cmd("admin", bson.D{{Key: "moveChunk", Value: "db.s"}, {Key: "find", Value: bson.D{{Key: "k", Value: 70}}}, {Key: "to", Value: "shard0"}, {Key: "_waitForDelete", Value: true}})
		if !behind {
			for tries := 0; tries < 3; tries++ { // until after the end of the move
				n += len(s.more(1500))
			}
		}
		c.loseCursors()
		c.removeEmptyShard("shard1")
		c.cmd("db", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "k", Value: 62}}}}})
		code := int32(0)
		for tries := 0; tries < 20 && code == 0 && n < 2; tries++ {
			js, _ := bson.MarshalExtJSON(bson.D{{Key: "getMore", Value: s.id}, {Key: "collection", Value: "s"}, {Key: "maxTimeMS", Value: 1000}}, true, false)
			m := c.raw("db", string(js))
			if code, _ = m["code"].(int32); code == 0 {
				n += len(s.take(m["cursor"].(bson.D), "nextBatch"))
			}
		}
		if behind && code != int32(mongoerr.ChangeStreamHistoryLost) {
			t.Errorf("%d events, %d", n, code)
		}
		if !behind && (code != 0 || n != 2) {
			t.Errorf("a stream that was not behind: %d events, %d", n, code)
		}
	}
}
