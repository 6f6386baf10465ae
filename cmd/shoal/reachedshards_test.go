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

// The shards of `shoal start` are shards from the first reply on, also when they start again: they used to be reached before, and the operation over shards that another
// one continued after a crash took their reply, that they had not been started as shards, for its end.
func TestShardsAreShardsBeforeTheyAreReached(t *testing.T) {
	t.Parallel()
	const replicas, shards = 3, 2
	port, dir := freePorts(t, replicas*(1+shards)), t.TempDir()
	start := func() (stop func()) {
		c := newConfig(isStart)
		c.Listen, c.DBPath, c.NodePort, c.Shards, c.Replicas = []string{"127.0.0.1:0"}, dir, port, shards, replicas
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
	var replies [replicas * shards]atomic.Int64
	ctx, end := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for i := range replies {
		at := loopback(port + replicas + i)
		asking.Go(func() {
			for ctx.Err() == nil {
				c, err := wire.Dial(ctx, at)
				if err != nil {
					pause(100 * time.Microsecond) // until it listens
					continue
				}
				for err == nil && ctx.Err() == nil {
					var reply *wire.Message
					if reply, err = c.RoundTrip(ctx, asked); err != nil {
						break
					}
					if code, _ := value.Lookup(reply.Body, "code").AsInt64(); mongoerr.Code(code) == mongoerr.NoShardingEnabled || mongoerr.Code(code) == mongoerr.CommandNotFound {
						t.Errorf("after %d replies, %s: %s", replies[i].Load(), at, value.ShowDoc(reply.Body))
						end()
					}
					replies[i].Add(1)
					pause(100 * time.Microsecond)
				}
				_ = c.Close()
			}
		})
	}
	stop := start()
	eventually(t, "all members reply", func() bool {
		for i := range replies {
			if replies[i].Load() == 0 {
				return ctx.Err() != nil
			}
		}
		return true
	})
	end()
	asking.Wait()
	stop()
}
