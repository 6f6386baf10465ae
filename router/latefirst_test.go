package router_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// stuckPeer loses the connection of the first call of a command, which arrives later.
type stuckPeer struct {
	cluster.Peer
	command string
	once    sync.Once
	free    chan struct{}
	done    chan string
}

func (w *stuckPeer) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	first := false
	if string(m.CommandName()) == w.command {
		w.once.Do(func() { first = true })
	}
	if !first {
		return w.Peer.Call(ctx, m, dst)
	}
	later := &wire.Message{OpCode: m.OpCode, Body: bytes.Clone(m.Body)}
	go func() {
		<-w.free
		reply, err := cluster.Run(context.WithoutCancel(ctx), w.Peer, later.Body)
		w.done <- fmt.Sprintf("%q %v", reply, err)
	}()
	return nil, mongoerr.New(mongoerr.HostUnreachable, "connection reset")
}

func TestLateFirstRequestEndsNoBuild(t *testing.T) {
	for _, x := range []struct{ cmd, sent string }{{`{"drop": "c"}`, "_shardsvrDropCollection"}, {`{"dropIndexes": "c", "index": "a"}`, "_shardsvrDropIndexes"}} {
		c := newTestCluster(t, 2)
		w := &stuckPeer{command: x.sent, free: make(chan struct{}), done: make(chan string, 1)}
		c.between("shard0", func(to cluster.Peer) cluster.Peer {
			w.Peer = to
			return w
		})
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.shardedAs("c", 1, 10)
		const create = `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`
		c.run("db", create)
		c.run("db", x.cmd)
		if x.cmd == `{"drop": "c"}` {
			c.shardedAs("c", 1, 10)
		}
		reached, release := c.hangAt("shard0", "updateShards")
		built := c.later("db", create)
		reached()
		close(w.free)
		c.until("the first request has arrived", func() bool {
			return len(w.done) == 1 || len(c.all("admin", `{"aggregate": 1, "pipeline": [{"$currentOp": {"allUsers": true}}, {"$match": {"desc": "ShardingDDLCoordinator", "command.`+x.sent+`": {"$exists": true}}}], "cursor": {}}`)) > 0
		})
		release()
		t.Log(<-w.done)
		if m := <-built; m["ok"] != 1.0 {
			t.Errorf("%s: %v", x.cmd, m)
		}
		c.leftOver()
	}
}
