package router_test

import (
	"context"
	"sync/atomic"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire"
)

// shardPeer reaches a shard by what stands there now: nodes keep the peers they have once dialled, and a test that came between
// by another peer only would see nothing of what they send.
type shardPeer struct{ to atomic.Pointer[cluster.Peer] }

func newShardPeer(to cluster.Peer) *shardPeer {
	s := &shardPeer{}
	s.to.Store(&to)
	return s
}

func (s *shardPeer) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	return (*s.to.Load()).Call(ctx, m, dst)
}

// between puts what f returns between a shard and its callers, also those who have dialled it before.
func (c *testCluster) between(shard string, f func(to cluster.Peer) cluster.Peer) {
	s := c.shards[shard].(*shardPeer)
	to := f(*s.to.Load())
	s.to.Store(&to)
}
