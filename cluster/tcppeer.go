package cluster

import (
	"context"
	"sync/atomic"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TCPPeer is a replica set (or a lone server) behind pooled connections. It remembers which member took the last command
// as primary and looks for another where that one fails.
type TCPPeer struct {
	pool    *wire.Pool
	clock   *VectorClock
	hosts   []string
	primary atomic.Int32 // index into hosts
}

// NewTCPPeer makes a peer of a set's members. The clock's times ride on each request and are advanced by each reply.
func NewTCPPeer(pool *wire.Pool, clock *VectorClock, hosts []string) (*TCPPeer, error) {
	if len(hosts) == 0 {
		return nil, mongoerr.New(mongoerr.FailedToParse, "a shard needs at least one host")
	}
	return &TCPPeer{pool: pool, clock: clock, hosts: hosts}, nil
}

// Handshake is the first exchange on a connection between nodes: it says that the sender is one.
func Handshake(ctx context.Context, cc *wire.ClientConn) error {
	reply, err := cc.RoundTrip(ctx, &wire.Message{OpCode: wire.OpMsg, Body: helloInternal})
	if err != nil {
		return err
	}
	return ReplyError(reply.Body)
}

var helloInternal = value.Doc(
	value.F("hello", value.NewInt32(1)),
	value.F("internalClient", value.NewDocument(value.Doc(
		value.F("minWireVersion", value.NewInt32(27)),
		value.F("maxWireVersion", value.NewInt32(27))))),
	value.F("$db", value.NewString("admin")))

// Call implements Peer.
func (p *TCPPeer) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	out := *m
	out.OpCode, out.Flags = wire.OpMsg, m.Flags&^(wire.ExhaustAllowed|wire.ChecksumPresent)
	out.Body = p.withTimes(m.Body)
	var last error
	for try := 0; try < 2*len(p.hosts)+1; try++ {
		at := p.primary.Load()
		reply, sent, err := p.roundTrip(ctx, p.hosts[at], &out)
		if err == nil {
			if reply == nil {
				return dst, nil // w: 0: nothing comes back
			}
			p.learn(ctx, reply.Body)
			return append(dst, reply.Body...), nil
		}
		last = err
		if sent || !Retryable(err) {
			return dst, err // the command may have run: only its sender knows whether to repeat it
		}
		p.primary.CompareAndSwap(at, (at+1)%int32(len(p.hosts)))
		if try >= len(p.hosts)-1 {
			if err := Backoff(ctx, try+2); err != nil {
				return dst, err
			}
		}
	}
	return dst, last
}

// roundTrip asks one member. sent is true where the member may have run the command although no reply came.
func (p *TCPPeer) roundTrip(ctx context.Context, host string, m *wire.Message) (reply *wire.Message, sent bool, err error) {
	cc, err := p.pool.Get(ctx, host)
	if err != nil {
		return nil, false, err
	}
	reply, err = cc.RoundTrip(ctx, m)
	p.pool.Put(cc)
	if err != nil {
		return nil, true, err
	}
	if reply == nil {
		return nil, true, nil
	}
	return reply, false, notPrimary(reply.Body)
}

// notPrimary gives the error of a reply that says its member cannot take writes.
func notPrimary(reply []byte) error {
	if value.Lookup(reply, "ok").Truthy() {
		return nil
	}
	if c, _ := value.Lookup(reply, "code").AsInt64(); mongoerr.Code(c) == mongoerr.NotWritablePrimary {
		return ReplyError(reply)
	}
	return nil
}

// withTimes puts this node's times into a copy of a command, in place of those it came with.
func (p *TCPPeer) withTimes(body []byte) []byte {
	dst, mark := value.Begin(make([]byte, 0, len(body)+128))
	for it := value.Walk(body); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			break
		}
		switch string(k) {
		case "$clusterTime", "$configTime", "$topologyTime":
		default:
			dst = append(dst, raw...)
		}
	}
	if p.clock != nil {
		dst = p.clock.AppendPlain(p.clock.AppendClusterTime(dst))
	}
	return value.End(dst, mark)
}

func (p *TCPPeer) learn(ctx context.Context, reply []byte) {
	if p.clock == nil {
		return
	}
	if t := value.Lookup(reply, "$clusterTime"); t.T == value.Document {
		// A reply of a node of this cluster is trusted; one too far in the future is ignored like a lost one.
		_ = p.clock.GossipIn(ctx, t.Doc(), true)
	}
	p.clock.GossipInPlain(reply)
}
