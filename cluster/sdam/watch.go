package sdam

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire"
)

// Watch is a monitor's own connection to a member. One goroutine uses it; after an error it is closed.
type Watch interface {
	// Ask sends a hello and returns the reply. With stream the member may continue to send replies: more reports
	// that it does.
	Ask(ctx context.Context, hello []byte, stream bool) (reply []byte, more bool, err error)
	// Next waits for one more reply of a member that streams.
	Next(ctx context.Context) (reply []byte, more bool, err error)
	Close()
}

// Watch implements Network: a connection that is not shared with calls. A node of this process is called directly; each
// call returns when the node's state changes.
func (n *Nodes) Watch(ctx context.Context, host string) (Watch, error) {
	if p, ok := n.local.Load(host); ok {
		return localWatch{p.(cluster.Peer)}, nil
	}
	cc, err := n.Pool.Connect(ctx, host)
	if err != nil {
		return nil, err
	}
	return &streamWatch{n, cc}, nil
}

type localWatch struct{ p cluster.Peer }

func (w localWatch) Ask(ctx context.Context, hello []byte, _ bool) ([]byte, bool, error) {
	reply, err := w.p.Call(ctx, &wire.Message{OpCode: wire.OpMsg, Body: hello}, nil)
	return reply, false, err
}

func (w localWatch) Next(ctx context.Context) ([]byte, bool, error) {
	return w.Ask(ctx, helloPlain, false)
}
func (w localWatch) Close() {}

type streamWatch struct {
	n  *Nodes
	cc *wire.ClientConn
}

func (w *streamWatch) Ask(ctx context.Context, hello []byte, stream bool) ([]byte, bool, error) {
	m := wire.Message{OpCode: wire.OpMsg, Body: w.n.between(ctx, hello)}
	if stream {
		m.Flags = wire.ExhaustAllowed
	}
	reply, err := w.cc.RoundTrip(ctx, &m)
	return w.took(ctx, reply, err)
}

func (w *streamWatch) Next(ctx context.Context) ([]byte, bool, error) {
	reply, err := w.cc.Receive(ctx)
	return w.took(ctx, reply, err)
}

func (w *streamWatch) took(ctx context.Context, reply *wire.Message, err error) ([]byte, bool, error) {
	if err != nil {
		return nil, false, err
	}
	return w.n.learn(ctx, reply.Body), reply.Flags&wire.MoreToCome != 0, nil
}

func (w *streamWatch) Close() { _ = w.cc.Close() }
