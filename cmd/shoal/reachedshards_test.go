package main

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The shards of `shoal start` have the commands of a shard from the first reply on, also when they start again: they used to be reached before, and the operation over
// shards that another one continued after a crash took their reply, that there is no such command, for its end.
func TestShardsAreShardsBeforeTheyAreReached(t *testing.T) {
	t.Parallel()
	port, dir := freePorts(t, 3), t.TempDir()
	start := func() (stop func()) {
		c := newConfig(isStart)
		c.Listen, c.DBPath, c.NodePort, c.Shards = []string{"127.0.0.1:0"}, dir, port, 2
		r, err := startCluster(c, newHost(isStart))
		if err != nil {
			t.Fatalf("it does not start: %v", err)
		}
		return func() {
			if err := r.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		}
	}
	start()()
	asked := &wire.Message{OpCode: wire.OpMsg, Body: value.Doc(value.F("_shardsvrDropIndexes", value.NewString("c")), value.F("$db", value.NewString("d")))}
	var replies [2]atomic.Int64
	ctx, end := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for i := range replies {
		at := loopback(port + 1 + i)
		asking.Go(func() {
			for ctx.Err() == nil {
				c, err := wire.Dial(ctx, at)
				if err != nil {
					pause(100 * time.Microsecond) // until it listens
					continue
				}
				if reply, err := c.RoundTrip(ctx, asked); err == nil {
					if code, _ := value.Lookup(reply.Body, "code").AsInt64(); mongoerr.Code(code) == mongoerr.CommandNotFound {
						t.Errorf("after %d replies, %s: %s", replies[i].Load(), at, value.ShowDoc(reply.Body))
						end()
					}
					replies[i].Add(1)
				}
				_ = c.Close()
			}
		})
	}
	stop := start()
	eventually(t, "both shards reply", func() bool { return ctx.Err() != nil || replies[0].Load() > 0 && replies[1].Load() > 0 })
	end()
	asking.Wait()
	stop()
}
