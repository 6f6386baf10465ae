package sdam

import (
	"context"
	"sync"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// Nodes reach the nodes of a cluster by address: those of this process by a call, others over pooled connections.
type Nodes struct {
	Pool  *wire.Pool
	clock *cluster.VectorClock
	local sync.Map // address → cluster.Peer
}

// NewNodes reaches other nodes through pool. The clock's times are sent with each request to another process and
// advanced by each reply; nil for none.
func NewNodes(pool *wire.Pool, clock *cluster.VectorClock) *Nodes {
	return &Nodes{Pool: pool, clock: clock}
}

var _ Network = (*Nodes)(nil)

// Add registers the node at an address as running in this process.
func (n *Nodes) Add(host string, p cluster.Peer) { n.local.Store(host, p) }

// Remove undoes Add.
func (n *Nodes) Remove(host string) { n.local.Delete(host) }

// Local implements Network.
func (n *Nodes) Local(host string) bool {
	_, ok := n.local.Load(host)
	return ok
}

// Sever implements Network.
func (n *Nodes) Sever(host string) { n.Pool.Sever(host) }

// Drop implements Network.
func (n *Nodes) Drop(host string) { n.Pool.Drop(host) }

// Connections implements Network.
func (n *Nodes) Connections() []wire.HostStats { return n.Pool.Stats() }

// Call implements Network.
func (n *Nodes) Call(ctx context.Context, host string, m *wire.Message, dst []byte) (out []byte, sent bool, err error) {
	if p, ok := n.local.Load(host); ok {
		out, err = p.(cluster.Peer).Call(ctx, m, dst)
		return out, true, err
	}
	cc, err := n.Pool.Get(ctx, host)
	if err != nil {
		return dst, false, err
	}
	request := *m
	request.OpCode, request.Flags = wire.OpMsg, m.Flags&^(wire.ExhaustAllowed|wire.ChecksumPresent)
	request.Body = n.between(ctx, m.Body)
	reply, err := cc.RoundTrip(ctx, &request)
	n.Pool.Put(cc)
	if err != nil {
		return dst, true, err
	}
	if reply == nil {
		return dst, true, nil // w: 0: there is no reply
	}
	return append(dst, n.learn(ctx, reply.Body)...), true, nil
}

// between returns a copy of a command with the elements that nodes add for each other: this node's times, replacing
// those it came with, the user that the node serves, and whether that bypasses write blocks.
func (n *Nodes) between(ctx context.Context, body []byte) []byte {
	served, _ := ctx.Value(cluster.ServedUser).([]byte)
	bypasses, serves := ctx.Value(cluster.BypassesWriteBlock).(bool)
	dst, mark := value.Begin(make([]byte, 0, len(body)+128+len(served)))
	for it := value.Walk(body); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			break
		}
		switch string(k) {
		case "$clusterTime", "$configTime", "$topologyTime", "$audit":
		case msg.BypassesWriteBlock:
			if !serves {
				dst = append(dst, raw...)
			}
		default:
			dst = append(dst, raw...)
		}
	}
	if len(served) > 0 {
		dst = value.Append(dst, "$audit", value.NewDocument(served))
	}
	if bypasses {
		dst = value.Append(dst, msg.BypassesWriteBlock, value.NewBool(true))
	}
	if n.clock != nil {
		dst = n.clock.AppendPlain(n.clock.AppendClusterTime(dst))
	}
	return value.End(dst, mark)
}

// learn adopts the times of a reply and returns the reply without those that only nodes use.
func (n *Nodes) learn(ctx context.Context, reply []byte) []byte {
	if n.clock == nil {
		return reply
	}
	if t := value.Lookup(reply, "$clusterTime"); t.T == value.Document {
		// A reply of a node of this cluster is trusted; one too far in the future is ignored like a lost one.
		_ = n.clock.GossipIn(ctx, t.Doc(), true)
	}
	return n.clock.TakePlain(reply)
}
