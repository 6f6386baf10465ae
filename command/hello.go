package command

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Limits and versions that hello and buildInfo report, and that requests have to observe.
const (
	MaxBSONSize    = 16 * 1024 * 1024
	MaxMessageSize = 48_000_000
	MaxWriteBatch  = 100_000
	MinWireVersion = 0
	MaxWireVersion = 27
	SessionMinutes = 30
	Version        = "8.2.4"
)

// Topology is a node's self-description in hello: its content, a counter that is raised with every change,
// and the hellos that wait for a change.
type Topology struct {
	ProcessID [12]byte
	// ServiceID identifies a router to clients that reach it through a load balancer.
	ServiceID [12]byte
	// Describe appends the role's own fields, those before the limits.
	Describe func(op *Op, hello bool, dst []byte) []byte
	// Tail appends the role's fields after the limits.
	Tail func(dst []byte) []byte
	// CatchUp raises the counter if the node knows that it is no longer primary and hello does not say so yet; nil
	// for a node whose hello never lags.
	CatchUp func()

	mu struct {
		sync.Mutex
		counter int64
		changed chan struct{}
		until   time.Time // in quiesce mode: when it ends
	}
}

// NewTopology returns a topology whose counter begins at start.
func NewTopology(processID [12]byte, start int64) *Topology {
	t := &Topology{ProcessID: processID}
	t.mu.counter = start
	t.mu.changed = make(chan struct{})
	return t
}

// Changed raises the counter: every waiting hello replies.
func (t *Topology) Changed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.counter++
	close(t.mu.changed)
	t.mu.changed = make(chan struct{})
}

// Quiesce begins quiesce mode: hello, which is sent to every waiting client at once, tells clients to use other nodes, while
// operations continue until the given time. A second call changes nothing.
func (t *Topology) Quiesce(until time.Time) {
	t.mu.Lock()
	first := t.mu.until.IsZero()
	if first {
		t.mu.until = until
	}
	t.mu.Unlock()
	if first {
		t.Changed()
	}
}

// quiesced returns the error of hello in quiesce mode.
func (t *Topology) quiesced() error {
	t.mu.Lock()
	until := t.mu.until
	t.mu.Unlock()
	if until.IsZero() {
		return nil
	}
	left := value.F("remainingQuiesceTimeMillis", value.NewInt64(max(0, time.Until(until).Milliseconds())))
	details := value.Doc(left)
	return mongoerr.New(mongoerr.ShutdownInProgress, "The server is in quiesce mode and will shut down").
		WithDetails(value.End(t.appendVersion(details[:len(details)-1]), 0))
}

func (t *Topology) state() (int64, chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.counter, t.mu.changed
}

var topologyFields = []Field{Req("processId", TAny), Req("counter", TAny)}

// awaited is what a hello that waits for a change says of the topology that its client knows.
type awaited struct {
	process value.Value // Missing in a hello that does not wait
	counter int64
	wait    int64 // milliseconds
}

func parseAwaited(op *Op) (a awaited, err error) {
	known, wait := op.Arg("topologyVersion"), op.Arg("maxAwaitTimeMS")
	if !known.IsNullish() {
		if known.T != value.Document {
			return a, WrongType("hello.topologyVersion", known.T, TObject)
		}
		f, err := ParseFields("hello.topologyVersion", known.Doc(), topologyFields)
		if err != nil {
			return a, err
		}
		for i, want := range []value.Type{value.ObjectID, value.Int64} {
			if f[i].T != want {
				return a, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'hello.topologyVersion.%s' is the wrong type '%s', expected type '%s'",
					topologyFields[i].Name, f[i].T.Name(), want.Name())
			}
		}
		a.process, a.counter = f[0], f[1].Int64()
	}
	switch {
	case !wait.IsNullish() && !wait.T.Numeric():
		return a, WrongType("hello.maxAwaitTimeMS", wait.T, TNumber)
	case wait.IsNullish() != known.IsNullish():
		return a, mongoerr.New(31368, "A request with 'topologyVersion' must include 'maxAwaitTimeMS', and vice versa")
	case wait.IsNullish():
		return a, nil
	}
	if a.wait = value.SafeInt64(wait); a.wait < 0 {
		return a, mongoerr.New(31373, "maxAwaitTimeMS must be a non-negative integer")
	}
	return a, nil
}

// wait holds a hello until the topology differs from what the client knows, or its time is over.
func (t *Topology) wait(op *Op) error {
	a, err := parseAwaited(op)
	if err != nil || a.process.IsMissing() {
		return err
	}
	counter, changed := t.state()
	if ours := a.process.ObjectID() == t.ProcessID; !ours || a.counter != counter {
		if ours && a.counter > counter {
			return mongoerr.Newf(31382, "Received a topology version with counter: %d which is greater than the server topology version counter: %d", a.counter, counter)
		}
		return nil
	}
	if op.Service.stopping.Load() {
		return mongoerr.New(mongoerr.ShutdownInProgress, "The server is in quiesce mode and will shut down")
	}
	waiting := &op.Service.Status.hellos.awaiting
	waiting.Add(1)
	defer waiting.Add(-1)
	timer := time.NewTimer(time.Duration(a.wait) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-op.Done():
		return op.Err()
	}
	return nil
}

// appendVersion adds topologyVersion.
func (t *Topology) appendVersion(dst []byte) []byte {
	counter, _ := t.state()
	dst, m := value.BeginKey(dst, value.Document, "topologyVersion")
	dst = value.Append(dst, "processId", value.NewObjectID(t.ProcessID))
	dst = value.Append(dst, "counter", value.NewInt64(counter))
	return value.End(dst, m)
}

// appendErrorVersion adds topologyVersion to an error that reports that the node is not primary. A client that has
// learned from a hello of this version that the node is primary would consider the error outdated and ignore it.
func (t *Topology) appendErrorVersion(dst []byte) []byte {
	if t.CatchUp != nil {
		t.CatchUp()
	}
	return t.appendVersion(dst)
}

// HelloSpec returns the row of hello and its legacy spellings.
func HelloSpec(t *Topology) Spec {
	return Spec{
		Name: "hello", Aliases: []string{"isMaster", "ismaster"}, Roles: All, NoAuth: true, API: true, Lenient: true,
		Fields: []Field{
			Opt("helloOk", TAny), Opt("client", TAny), Opt("compression", TAny), Opt("topologyVersion", TAny),
			Opt("maxAwaitTimeMS", TAny), Opt("saslSupportedMechs", TAny), Opt("speculativeAuthenticate", TAny),
			Opt("loadBalanced", TAny), Opt("hostInfo", TAny), Opt("internalClient", TAny), Opt("backpressure", TAny),
		},
		Run: func(op *Op, dst []byte) ([]byte, error) { return t.hello(op, dst) },
	}
}

func (t *Topology) hello(op *Op, dst []byte) ([]byte, error) {
	if cl := op.Arg("client"); !cl.IsMissing() {
		if err := keepMetadata(op, cl); err != nil {
			return dst, err
		}
	}
	if node := op.Arg("internalClient"); node.T == value.Document {
		op.Client.claimsInternal = true
		op.Client.Internal = op.Client.Internal || op.Service.acceptsMemberClaims()
		if id := value.Lookup(node.Doc(), "process"); id.T == value.Binary && len(id.Bytes()) == 16 {
			every, _ := value.Lookup(node.Doc(), "everyMillis").AsInt64()
			op.Client.setProcess([16]byte(id.Bytes()), time.Duration(every)*time.Millisecond)
		}
	}
	if v := op.Arg("saslSupportedMechs"); !v.IsMissing() {
		if _, err := userName(v); err != nil {
			return dst, err
		}
	}
	if err := op.checkBalanced(); err != nil {
		return dst, err
	}
	if err := t.wait(op); err != nil {
		return dst, err
	}
	if err := t.quiesced(); err != nil {
		return dst, err
	}
	isHello := op.Req.Name == "hello"
	if op.Bool("helloOk") {
		dst = value.Append(dst, "helloOk", value.NewBool(true))
	}
	dst = t.Describe(op, isHello, dst)
	if op.Service.Role == Config {
		dst = value.Append(dst, "configsvr", value.NewInt32(2)) // the version of the protocol, by which a config server is known
	}
	dst = value.Append(dst, "maxBsonObjectSize", value.NewInt32(MaxBSONSize))
	dst = value.Append(dst, "maxMessageSizeBytes", value.NewInt32(MaxMessageSize))
	dst = value.Append(dst, "maxWriteBatchSize", value.NewInt32(MaxWriteBatch))
	dst = value.Append(dst, "localTime", value.NewTime(time.Now()))
	dst = value.Append(dst, "logicalSessionTimeoutMinutes", value.NewInt32(op.Service.sessionMinutes()))
	dst = value.Append(dst, "connectionId", value.NewInt32(int32(op.Client.ID)))
	dst = value.Append(dst, "minWireVersion", value.NewInt32(MinWireVersion))
	dst = value.Append(dst, "maxWireVersion", value.NewInt32(MaxWireVersion))
	if op.Client.Via != "" {
		dst = value.Append(dst, "serviceId", value.NewObjectID(t.ServiceID))
	}
	if t.Tail != nil {
		dst = t.Tail(dst)
	}
	dst = op.negotiateCompression(dst)
	if op.Service.Access != nil {
		return op.Service.Access.appendHello(op, dst)
	}
	return dst, nil
}

// checkBalanced refuses a client that is not aware of the load balancer between it and this router: it would look for its cursors
// and transactions elsewhere. Only the first hello of a connection carries the option.
func (op *Op) checkBalanced() error {
	if op.Client.Via == "" || op.Arg("loadBalanced").Truthy() || op.Arg("client").IsMissing() && op.Client.hasMetadata() {
		return nil
	}
	return mongoerr.New(mongoerr.LoadBalancerSupportMismatch,
		"The server is being accessed through a load balancer, but this driver does not have load balancing enabled")
}

// userName reads saslSupportedMechs: "database.user", or a document of both.
func userName(v value.Value) (auth.UserName, error) {
	switch {
	case v.T == value.Document:
		user, db := value.Lookup(v.Doc(), "user"), value.Lookup(v.Doc(), "db")
		if user.T != value.String || db.T != value.String {
			return auth.UserName{}, mongoerr.New(mongoerr.BadValue, "UserName must contain a 'user' and a 'db' field")
		}
		return auth.UserName{User: user.Str(), DB: db.Str()}, nil
	case v.T != value.String:
		return auth.UserName{}, mongoerr.Newf(mongoerr.TypeMismatch, "UserName must be either a string or an object, not %s", v.T.Name())
	}
	db, user, ok := strings.Cut(v.Str(), ".")
	if !ok {
		return auth.UserName{}, mongoerr.New(mongoerr.BadValue, "UserName must contain a '.' separated database.user pair")
	}
	return auth.UserName{User: user, DB: db}, nil
}

// AppendVersion appends topologyVersion, for a role whose Describe includes it.
func (t *Topology) AppendVersion(dst []byte) []byte { return t.appendVersion(dst) }

// Bool returns the request's flag of that name.
func (op *Op) Bool(name string) bool { return op.Req.Bool(name) }

// negotiateCompression replies with what both sides support of the client's list, and enables it on the
// connection.
func (op *Op) negotiateCompression(dst []byte) []byte {
	agreed := op.agreedCompressors()
	if len(agreed) == 0 {
		return dst
	}
	dst, m := value.BeginKey(dst, value.Array, "compression")
	for i, n := range agreed {
		dst = value.AppendIndex(dst, i, value.NewString(n))
	}
	return value.End(dst, m)
}

func (op *Op) agreedCompressors() []string {
	want := op.Arg("compression")
	if want.T != value.Array || op.Client.Compressors == nil {
		return nil
	}
	var names []string
	for _, v := range value.Values(want.Doc()) {
		if v.T == value.String {
			names = append(names, v.Str())
		}
	}
	return op.Client.Compressors(names)
}

// keepMetadata checks and stores the client document of a connection's first hello.
func keepMetadata(op *Op, cl value.Value) error {
	again := mongoerr.New(mongoerr.ClientMetadataCannotBeMutated, "The client metadata document may only be sent in the first hello")
	if op.Client.hasMetadata() {
		return again // whatever is in the document
	}
	if cl.T != value.Document {
		return mongoerr.New(mongoerr.TypeMismatch, "The client metadata document must be a document")
	}
	if len(cl.Doc()) > 512 && !op.Client.Internal {
		return mongoerr.Newf(mongoerr.ClientMetadataDocumentTooLarge, "The client metadata document must be less then or equal to 512 bytes")
	}
	app, err := checkMetadata(cl.Doc())
	if err != nil {
		return err
	}
	if !op.Client.SetMetadata(cl.Doc(), app) {
		return again
	}
	op.auditMetadata(cl.Doc())
	if tell := op.Service.Hooks.Metadata; tell != nil && !op.Client.InProcess {
		tell(op.Client, op.agreedCompressors(), cl.Doc())
	}
	return nil
}

func checkMetadata(doc []byte) (app string, err error) {
	a := value.Lookup(doc, "application")
	if !a.IsMissing() {
		if a.T != value.Document {
			return "", mongoerr.New(mongoerr.TypeMismatch, "The 'application' field is required to be a BSON document in the client metadata document")
		}
		if n := value.Lookup(a.Doc(), "name"); !n.IsMissing() {
			if n.T != value.String {
				return "", mongoerr.New(mongoerr.TypeMismatch, "The 'application.name' field must be a string in the client metadata document")
			}
			if app = n.Str(); len(app) > 128 {
				return "", mongoerr.New(mongoerr.ClientMetadataAppNameTooLarge, "The 'application.name' field must be less then or equal to 128 bytes in the client metadata document")
			}
		}
	}
	for _, part := range []struct{ name, sub, sub2 string }{{"driver", "name", "version"}, {"os", "type", ""}} {
		d := value.Lookup(doc, part.name)
		if d.IsMissing() {
			return "", mongoerr.Newf(mongoerr.ClientMetadataMissingField, "Missing required sub-document '%s' in the client metadata document", part.name)
		}
		for _, sub := range []string{part.sub, part.sub2} {
			if sub != "" && value.Lookup(d.Doc(), sub).T != value.String {
				return "", mongoerr.Newf(mongoerr.ClientMetadataMissingField, "Missing required field '%s' in the client metadata document", sub)
			}
		}
	}
	return app, nil
}

var _ context.Context = (*Op)(nil)
