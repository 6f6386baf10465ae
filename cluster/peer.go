package cluster

import (
	"context"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ServedUser is the context key for the user that a node serves, in the form in which it is sent to other nodes: the
// value of a command's element $audit ([]byte). There is no value if there is no user.
var ServedUser servedUser

type servedUser struct{}

// BypassesWriteBlock is the context key for whether the client that a node serves may write while users are blocked (bool), which other nodes are told in a command's element mayBypassWriteBlocking. There is no value if
// the node does not serve a client's operation: then the sender decides what the command says.
var BypassesWriteBlock bypassesWriteBlock

type bypassesWriteBlock struct{}

// SentBy is the context key for the address (string) of the client on whose behalf a call is made that outlives its sender's operation.
var SentBy sentBy

type sentBy struct{}

// MayQueue is the context key for whether a call may wait until other calls return their connections to the pool. The value is true for
// requests of clients outside of transactions, which hold no resources that others wait for. Everything else is urgent (wire.Pool).
var MayQueue mayQueue

type mayQueue struct{}

// Urgent reports whether a call under ctx must not wait for the connections of others.
func Urgent(ctx context.Context) bool { return ctx.Value(MayQueue) != true }

// AtOnce returns a context for calls that others wait for, whatever their origin: they are urgent.
func AtOnce(ctx context.Context) context.Context { return context.WithValue(ctx, MayQueue, nil) }

// Peer is another node, or a replica set, that accepts commands; for a set it finds the right member. Both ways to reach
// one, a function call within the process and a pooled connection, carry the same bytes.
type Peer interface {
	// Call sends a request and appends the reply document to dst. An error means that no reply came; a reply with ok: 0
	// is not an error here.
	Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error)
}

// SetPeer is a Peer that is a replica set.
type SetPeer interface {
	Peer
	// CallOn is Call on a member that p allows; nil means the primary. It also returns the member that replied,
	// which has the cursor if the reply opens one.
	CallOn(ctx context.Context, p *ReadPreference, m *wire.Message, dst []byte) ([]byte, Peer, error)
}

// CallOn calls a member according to a read preference if p is a set; any other peer is called itself.
func CallOn(ctx context.Context, p Peer, pref *ReadPreference, m *wire.Message, dst []byte) ([]byte, Peer, error) {
	if s, ok := p.(SetPeer); ok {
		return s.CallOn(ctx, pref, m, dst)
	}
	out, err := p.Call(ctx, m, dst)
	return out, p, err
}

// LocalPeer reaches a node of the same process on the caller's goroutine.
type LocalPeer func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error)

// Call implements Peer.
func (f LocalPeer) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	return f(ctx, m, dst)
}

// Run sends a command document and returns its reply; a reply with ok: 0 becomes an error.
func Run(ctx context.Context, p Peer, cmd []byte) ([]byte, error) { return RunInto(ctx, p, cmd, nil) }

// RunInto is Run with a buffer that the reply may be put into.
func RunInto(ctx context.Context, p Peer, cmd, buf []byte) ([]byte, error) {
	m := wire.Message{OpCode: wire.OpMsg, Body: cmd}
	reply, err := p.Call(ctx, &m, buf[:0])
	if err != nil {
		return nil, err
	}
	return reply, ReplyError(reply)
}

// ReplyError turns a reply with ok: 0 into the error it carries, with its labels and further fields; nil for ok: 1.
func ReplyError(reply []byte) error {
	if value.Lookup(reply, "ok").Truthy() {
		return nil
	}
	e := &mongoerr.Error{Code: mongoerr.UnknownError, Message: "the reply has no error message"}
	details, m := value.Begin(nil)
	extra := false
	for it := value.Walk(reply); ; {
		raw, k, v, ok := it.NextRaw()
		if !ok {
			break
		}
		switch string(k) {
		case "ok", "codeName", "$clusterTime", "operationTime", "$configTime", "$topologyTime", "$gleStats", "lastCommittedOpTime":
		case "code":
			if c, isInt := v.AsInt64(); isInt {
				e.Code = mongoerr.Code(c)
			}
		case "errmsg":
			e.Message = v.Str()
		case "errorLabels":
			for _, l := range value.Values(v.Doc()) {
				e.Labels = append(e.Labels, l.Str())
			}
		default:
			details, extra = append(details, raw...), true
		}
	}
	if extra {
		e.Details = value.End(details, m)
	}
	return e
}

// WriteConcernErrorOf returns a reply's writeConcernError as an error, with its errInfo, nil if there is none.
func WriteConcernErrorOf(reply []byte) *mongoerr.Error {
	w := value.Lookup(reply, "writeConcernError")
	if w.T != value.Document {
		return nil
	}
	c, _ := value.Lookup(w.Doc(), "code").AsInt64()
	e := mongoerr.New(mongoerr.Code(c), value.Lookup(w.Doc(), "errmsg").Str())
	if info := value.Lookup(w.Doc(), "errInfo"); info.T == value.Document {
		return e.WithDetails(value.Doc(value.F("errInfo", info)))
	}
	return e
}

// RunWrite is Run for commands that write: write errors and write concern errors count as errors too.
func RunWrite(ctx context.Context, p Peer, cmd []byte) ([]byte, error) {
	reply, err := Run(ctx, p, cmd)
	if err != nil {
		return reply, err
	}
	if errs := value.Lookup(reply, "writeErrors"); errs.T == value.Array {
		for _, w := range value.Values(errs.Doc()) {
			c, _ := value.Lookup(w.Doc(), "code").AsInt64()
			return reply, mongoerr.New(mongoerr.Code(c), value.Lookup(w.Doc(), "errmsg").Str())
		}
	}
	if e := WriteConcernErrorOf(reply); e != nil {
		return reply, e
	}
	return reply, nil
}

// FindAll runs a find or aggregate command on a peer and fetches all of its cursor.
func FindAll(ctx context.Context, p Peer, db string, cmd []byte) ([][]byte, error) {
	return fetchAll(db, cmd, func(cmd []byte) ([]byte, error) { return Run(ctx, p, cmd) })
}

// FindLinearizable reads documents of a collection as a majority of the set has them: the primary that replies has confirmed that it has not been
// deposed, and has all writes that its predecessors acknowledged.
func FindLinearizable(ctx context.Context, p Peer, f Find) ([][]byte, error) {
	f.ReadConcern = "linearizable"
	return f.All(ctx, p)
}

// fetchAll runs a command that opens a cursor, and then getMore until the cursor's end.
func fetchAll(db string, cmd []byte, run func(cmd []byte) ([]byte, error)) ([][]byte, error) {
	reply, err := run(cmd)
	if err != nil {
		return nil, err
	}
	var out [][]byte
	batch := "firstBatch"
	for {
		cur := value.Lookup(reply, "cursor").Doc()
		for _, d := range value.Values(value.Lookup(cur, batch).Doc()) {
			out = append(out, d.Doc())
		}
		id, _ := value.Lookup(cur, "id").AsInt64()
		if id == 0 {
			return out, nil
		}
		_, coll := SplitNS(value.Lookup(cur, "ns").Str())
		reply, err = run(msg.Doc(&msg.GetMore{DB: db, Coll: coll, Cursor: id}))
		if err != nil {
			return nil, err
		}
		batch = "nextBatch"
	}
}

// SplitNS splits a namespace at its first dot.
func SplitNS(ns string) (db, coll string) {
	for i := 0; i < len(ns); i++ {
		if ns[i] == '.' {
			return ns[:i], ns[i+1:]
		}
	}
	return ns, ""
}

// Retryable reports whether a command may be sent again after this error without the client noticing: the network
// failed, or the member is no longer primary.
func Retryable(err error) bool {
	switch mongoerr.CodeOf(err) {
	case mongoerr.HostUnreachable, mongoerr.HostNotFound, mongoerr.NetworkTimeout, mongoerr.ShutdownInProgress,
		mongoerr.PrimarySteppedDown, mongoerr.SocketException, mongoerr.NotWritablePrimary, mongoerr.InterruptedAtShutdown,
		mongoerr.InterruptedDueToReplStateChange, mongoerr.NotPrimaryNoSecondaryOk, mongoerr.NotPrimaryOrSecondary:
		return true
	}
	return false
}

// Transient reports whether a step that failed with this error may succeed when it is repeated: the error is retryable, reports a conflict
// with another operation or the end of a wait, or has one of the codes of more.
func Transient(err error, more ...mongoerr.Code) bool {
	code := mongoerr.CodeOf(err)
	switch code {
	case mongoerr.ConflictingOperationInProgress, mongoerr.LockTimeout, mongoerr.LockBusy, mongoerr.StaleConfig, mongoerr.FailedToSatisfyReadPreference,
		mongoerr.ShardingStateNotInitialized, // a shard that has just started
		mongoerr.MaxTimeMSExpired, mongoerr.Interrupted, mongoerr.WriteConcernTimeout, mongoerr.ExceededTimeLimit, mongoerr.WriteConflict, mongoerr.SnapshotUnavailable:
		return true
	}
	return Retryable(err) || slices.Contains(more, code)
}

// Backoff waits before the n-th retry, or returns the context's error.
func Backoff(ctx context.Context, n int) error {
	return Sleep(ctx, time.Millisecond<<min(n, 7))
}

// Sleep waits for d, or returns the context's error if that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Handshake performs the first exchange on a connection between nodes: the sender identifies itself as a node,
// with the process that it belongs to. Monitors' connections begin the same way, so that a live process has a
// connection to every node on which it may have operations.
func Handshake(ctx context.Context, cc *wire.ClientConn) error { return CheckConn(ctx, cc) }

// CheckConn checks a connection between nodes that has been idle.
func CheckConn(ctx context.Context, cc *wire.ClientConn) error {
	reply, err := cc.RoundTrip(ctx, &wire.Message{OpCode: wire.OpMsg, Body: helloInternal})
	if err != nil {
		return err
	}
	return ReplyError(reply.Body)
}

// processID identifies this process to the nodes that it is connected to.
var processID = NewUUID()

var helloInternal = HelloEvery(0)

// HelloEvery returns a hello that announces that this process will send the next one on the same connection after
// d: if it does not, it has stopped, although its connections remain. With 0 it announces nothing.
func HelloEvery(d time.Duration) []byte {
	return msg.Doc(&msg.Hello{Internal: &msg.InternalClient{MinWire: wireVersion, MaxWire: wireVersion, Process: processID, Every: d.Milliseconds()}})
}

// wireVersion is the version of the protocol that nodes speak to each other.
const wireVersion = 27
