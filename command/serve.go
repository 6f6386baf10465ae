package command

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Front connects a service to sockets: it makes a Client for each connection and passes its messages to the pipeline.
type Front struct {
	Service *Service
	// Compressors lists the compressors that the server offers; nil means all.
	Compressors []string
	// Connected and Disconnected are called for connections; Metadata for the client document of a first hello.
	// Each may be nil.
	Connected    func(c *Client)
	Disconnected func(c *Client)
}

var _ wire.Handler = (*Front)(nil)

func (f *Front) agree(names []string) []string {
	if f.Compressors != nil {
		return agreeCompressors(names, f.Compressors)
	}
	return agreeCompressors(names, serverCompressors)
}

// Opened implements wire.Handler.
func (f *Front) Opened(c *wire.Conn) {
	remote := c.RemoteAddr().String()
	cl := NewClient(c.ID(), remote, c.LocalAddr().String(), c.Context)
	if host, _, err := net.SplitHostPort(remote); err == nil {
		ip := net.ParseIP(host)
		cl.Loopback = ip != nil && ip.IsLoopback()
	} else {
		cl.Loopback = true // a UNIX socket
	}
	cl.Compressors = f.agree
	cl.Close, cl.TLS, cl.Trust = c.Close, c.TLS, c.Trust
	if via := c.Via(); via != nil {
		cl.Via, cl.Loopback = via.String(), false // a client on the balancers' port may claim any address
	}
	c.State = cl
	f.Service.clients.Store(cl, struct{}{})
	if f.Connected != nil {
		f.Connected(cl)
	}
}

// Closed implements wire.Handler.
func (f *Front) Closed(c *wire.Conn) {
	if cl, ok := c.State.(*Client); ok {
		cl.Gone()
		f.Service.clients.Delete(cl)
		f.Service.auditEnd(cl)
		if cl.Via != "" && f.Service.Hooks.BalancedLost != nil {
			f.Service.Hooks.BalancedLost(cl)
		}
		if id := cl.Process(); f.Service.ProcessLost != nil && id != [16]byte{} && !f.Service.HasProcess(id) {
			f.Service.ProcessLost(id)
		}
		if f.Disconnected != nil {
			f.Disconnected(cl)
		}
	}
}

// HandleInline implements wire.Handler: ping needs no worker.
func (f *Front) HandleInline(c *wire.Conn, m *wire.Message, r *wire.Reply) bool {
	if string(m.CommandName()) != "ping" || len(m.Seqs) > 0 {
		return false
	}
	f.Handle(c, m, r)
	return true
}

// Handle implements wire.Handler.
func (f *Front) Handle(c *wire.Conn, m *wire.Message, r *wire.Reply) {
	cl := c.State.(*Client)
	if cl.Internal {
		cl.received(time.Now())
	}
	name := string(m.CommandName())
	r.NoCompress = uncompressed[name]
	if n := f.Service.Status.hellos.streaming(name); n != nil && m.AllowsExhaust() {
		n.Add(1)
		defer n.Add(-1)
	}
	//lint:ignore SA1012 nil means that the request comes from a connection: Run makes no context
	r.Buf = f.Service.Run(nil, cl, m, r.Buf)
	if cl.Internal {
		c.AllowInternal()
	}
	if m.AllowsExhaust() {
		f.exhaust(c, cl, m, r, name)
	}
}

// uncompressed lists the commands whose replies are never compressed (OP_COMPRESSED specification).
var uncompressed = map[string]bool{
	"hello": true, "isMaster": true, "ismaster": true, "saslStart": true, "saslContinue": true, "getnonce": true,
	"authenticate": true, "createUser": true, "updateUser": true, "copydbSaslStart": true, "copydbgetnonce": true, "copydb": true,
}

// exhaust keeps replying to one request: to a streaming hello as long as the connection is open, to a getMore until
// its cursor is exhausted.
func (f *Front) exhaust(c *wire.Conn, cl *Client, m *wire.Message, r *wire.Reply, name string) {
	next := *m
	for {
		body := nextExhaust(name, next.Body, r.Doc())
		if body == nil || c.SendMore(m, r) != nil {
			return
		}
		next.Body = body
		//lint:ignore SA1012 as in run
		r.Buf = f.Service.Run(nil, cl, &next, r.Buf)
	}
}

// nextExhaust returns the request that the next reply of an exhausted command belongs to; nil if this reply is the
// last.
func nextExhaust(name string, body, reply []byte) []byte {
	if !value.Lookup(reply, "ok").Truthy() {
		return nil
	}
	switch name {
	case "hello", "isMaster", "ismaster":
		if value.Lookup(body, "maxAwaitTimeMS").IsMissing() {
			return nil
		}
		return replaceField(body, "topologyVersion", value.Lookup(reply, "topologyVersion"))
	case "getMore":
		cur := value.Lookup(reply, "cursor")
		if id := value.Lookup(cur.Doc(), "id"); id.Int64() == 0 {
			return nil
		}
		return body
	}
	return nil
}

func replaceField(doc []byte, name string, v value.Value) []byte {
	out, mark := value.Begin(make([]byte, 0, len(doc)+16))
	for it := value.Walk(doc); ; {
		raw, k, _, ok := it.NextRaw()
		if !ok {
			return value.End(out, mark)
		}
		if string(k) == name {
			out = value.Append(out, name, v)
		} else {
			out = append(out, raw...)
		}
	}
}

// serverCompressors are the compressors of this server, in order of preference.
var serverCompressors = []string{"snappy", "zstd", "zlib"}

func agreeCompressors(names, ours []string) []string {
	var out []string
	for _, n := range names {
		for _, s := range ours {
			if strings.EqualFold(n, s) {
				out = append(out, s)
			}
		}
	}
	return out
}

// Direct runs a request from a node of the same process.
func (s *Service) Direct(ctx context.Context, c *Client, m *wire.Message, dst []byte) ([]byte, error) {
	mark := len(dst)
	dst = s.Run(ctx, c, m, dst)
	if len(dst)-mark < 5 {
		return dst[:mark], mongoerr.New(mongoerr.InternalError, "empty reply")
	}
	return dst, nil
}
