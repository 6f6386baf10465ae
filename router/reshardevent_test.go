package router_test

import (
	"context"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The reply to the message that logs the event of a resharding is lost, and the message sent again: change streams return the event once.
func TestEventOfAReshardingIsLoggedOnce(t *testing.T) {
	t.Parallel()
	c := newWatchedCluster(t, 2, func(string, *wire.Message) error { return nil })
	var sent atomic.Int32
	c.interposed("shard0").through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		reply, err := call()
		if name == "_shardsvrNotifyShardingEvent" && sent.Add(1) < 3 {
			return nil, mongoerr.New(mongoerr.HostUnreachable, "the reply is lost")
		}
		return reply, err
	})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 10)
	for i := range 2 {
		sent.Store(0)
		c.run("admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "numInitialChunks": 1, "forceRedistribution": true}`)
		m := c.admin(c.shards["shard0"], bson.D{{Key: "count", Value: "oplog.rs"}, {Key: "query", Value: bson.D{{Key: "o2.reshardCollection", Value: "db.c"}}}, {Key: "$db", Value: "local"}})
		if m["n"] != int32(i+1) || sent.Load() != 3 {
			t.Errorf("after %d reshardings and %d messages the oplog has %v events", i+1, sent.Load(), m["n"])
		}
	}
	c.leftOver()
}
