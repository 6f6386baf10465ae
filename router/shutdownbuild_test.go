package router_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A shard that shuts down, or steps down, ends the request that waits for a createIndexes before the run that executes it. Nobody wants the build to end: the router sends the request again.
func TestShutdownAbortsNoBuild(t *testing.T) {
	for _, why := range []mongoerr.Code{mongoerr.InterruptedAtShutdown, mongoerr.InterruptedDueToReplStateChange} {
		c := newTestCluster(t, 2)
		home := c.interposed("shard0")
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.shardedAs("c", 1, 10)
		var sent atomic.Int64
		home.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
			if name == "_shardsvrCreateIndexes" {
				sent.Add(1)
			}
			return call()
		})
		reached, release := c.hangAt("shard0", "updateShards")
		answer := c.later("db", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`)
		reached()
		c.server["shard0"].Service.EachOp(func(op *command.Op) {
			if op.Req.Spec != nil && op.Req.Spec.Name == "_shardsvrCreateIndexes" {
				op.Kill(why)
			}
		})
		c.until("the request is sent again", func() bool { return sent.Load() == 2 })
		release()
		if m := <-answer; m["ok"] != 1.0 {
			t.Errorf("%d: %v", why, m)
		}
		c.leftOver()
	}
}
