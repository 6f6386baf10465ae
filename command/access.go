package command

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/auth/oidc"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Access provides a service with users and their privileges. A service has one whether or not it requires
// authorization: users can be created, and can log in, before it does.
type Access struct {
	// Enforced means that requests need authorization. It does not change while the service runs.
	Enforced bool
	// Members verifies that a peer is a member of the cluster; nil if claims are accepted without proof.
	Members *Members
	// OneProcess means that all members are in this process: no connection becomes a member by claiming to be one.
	OneProcess bool
	// Users is the peer that stores users and roles: the node itself, or the config server's primary.
	Users cluster.Peer
	// Changes returns the state of the users according to the node that stores them; nil if this node stores them.
	Changes func(ctx context.Context) (UserState, error)
	// OnLogin, if not nil, is called for each successful authentication, and for each failed one, with its error. The name is as the client
	// sent it.
	OnLogin func(c *Client, user auth.UserName, mech string, err error)
	// Params are the node's parameters.
	Params *cluster.Params
	// Providers verify the tokens of MONGODB-OIDC.
	Providers *oidc.Registry

	epoch      [12]byte      // identifies the process: generations of two processes cannot be compared
	writing    sync.Mutex    // held while users or roles are read and changed
	generation atomic.Uint64 // of users and roles; identities of older generations are read again
	claimed    atomic.Bool   // users or roles exist, or have existed: the localhost exception is over
	noted      atomic.Bool   // admin.system.version has the schema version of users
	simulated  simulated
	counts     loginCounts
	several    atomic.Pointer[func(context.Context) (bool, error)] // on a shard; see OfShard

	mu struct {
		sync.Mutex
		known   map[auth.UserName]*auth.Identity // of this generation
		waiting map[*waiting]struct{}            // see Op.WhileAllowed
	}
}

// Install gives a service its users, and the commands that manage them.
func (a *Access) Install(s *Service) {
	id := cluster.NewUUID()
	copy(a.epoch[:], id[:])
	s.Access = a
	s.Table.Add(a.loginSpecs()...)
	s.Table.Add(a.userSpecs()...)
	s.Table.Add(a.roleSpecs()...)
}

// ManagementSpecs returns the commands on users and roles that concern the whole cluster.
func (a *Access) ManagementSpecs() (out []Spec) {
	for _, s := range append(a.userSpecs(), a.roleSpecs()...) {
		if s.WriteConcern || s.Kind == Read {
			out = append(out, s)
		}
	}
	return out
}

// Invalidate makes the next request of every client read its identity again. Running operations continue: see Refresh.
func (a *Access) Invalidate() {
	a.generation.Add(1)
	a.mu.Lock()
	a.mu.known = nil
	a.mu.Unlock()
}

// Refresh makes every client's identity be read again: by its next request, and now if it waits for a cursor's documents.
func (a *Access) Refresh(ctx context.Context) {
	a.Invalidate()
	a.EndWaits(ctx)
}

// errNoUser reports that a user does not exist.
var errNoUser = mongoerr.New(mongoerr.UserNotFound, "Could not find user")

// read finds a document of users or roles by its _id.
func (a *Access) read(ctx context.Context, coll, id string) ([]byte, error) {
	docs, err := a.find(ctx, coll, value.Doc(value.F("_id", value.NewString(id))))
	if err != nil || len(docs) == 0 {
		return nil, err
	}
	return docs[0], nil
}

// find lists documents of users or roles.
func (a *Access) find(ctx context.Context, coll string, filter []byte) ([][]byte, error) {
	return a.findOnly(ctx, coll, filter, value.Doc())
}

// findOnly lists some fields of documents of users or roles.
func (a *Access) findOnly(ctx context.Context, coll string, filter, projection []byte) ([][]byte, error) {
	return cluster.Find{NS: "admin." + coll, Filter: filter, Projection: projection, Sort: cluster.ByID()}.All(ctx, a.Users)
}

// user reads a stored user, or returns errNoUser.
func (a *Access) user(ctx context.Context, name auth.UserName) (*auth.User, error) {
	doc, err := a.read(ctx, "system.users", name.ID())
	if err != nil {
		return nil, err
	}
	if doc == nil {
		_, _ = auth.ParseUser(decoy) // so that the reply for an unknown user takes as long
		return nil, errNoUser
	}
	return auth.ParseUser(doc)
}

// decoy is a user's document of the usual size.
var decoy = func() []byte {
	u := &auth.User{Name: auth.UserName{User: "decoy", DB: "admin"}, UUID: value.NewBinary(4, make([]byte, 16)), Credentials: map[string]auth.Credentials{},
		Roles: []auth.RoleName{{Role: "readWrite", DB: "decoy"}}}
	sim := auth.Simulation{Secret: make([]byte, 32)}
	for _, m := range auth.Mechanisms {
		u.Credentials[m] = sim.Credentials(m, u.Name, 15000)
	}
	return u.Doc()
}()

// role reads a stored role.
func (a *Access) role(ctx context.Context, name auth.RoleName) (*auth.Role, bool, error) {
	doc, err := a.read(ctx, "system.roles", name.ID())
	if err != nil || doc == nil {
		return nil, false, err
	}
	r, err := auth.ParseRole(doc)
	return r, err == nil, err
}

// roles returns role in the form that Resolve takes.
func (a *Access) roles(ctx context.Context) auth.Roles {
	return func(name auth.RoleName) (*auth.Role, bool, error) { return a.role(ctx, name) }
}

// identity returns a user's current identity, from the cache if known.
func (a *Access) identity(ctx context.Context, name auth.UserName) (*auth.Identity, error) {
	generation := a.generation.Load() // loaded before reading: what changes meanwhile is read again
	a.mu.Lock()
	id := a.mu.known[name]
	a.mu.Unlock()
	if id != nil && id.Generation == generation {
		return id, nil
	}
	u, err := a.user(ctx, name)
	if err != nil {
		return nil, err
	}
	if id, err = auth.NewIdentity(u, a.roles(ctx)); err != nil {
		return nil, err
	}
	id.Generation = generation
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.generation.Load() == generation {
		if a.mu.known == nil {
			a.mu.known = map[auth.UserName]*auth.Identity{}
		}
		a.mu.known[name] = id
	}
	return id, nil
}

// current returns a client's identity according to its user's current state; nil if the user was dropped, or
// dropped and created again, or may not be used from the client's address any more.
func (a *Access) current(ctx context.Context, c *Client) (*auth.Identity, error) {
	id := c.login.Load()
	if id == nil || id.Generation == a.generation.Load() || id.Name == auth.System {
		return id, nil
	}
	if id.Lent {
		return a.renewLent(ctx, c, id)
	}
	now, err := a.identity(ctx, id.Name)
	switch {
	case err == errNoUser, err == nil && (value.Compare(now.UUID, id.UUID) != 0 || !c.meets(now)):
		c.lose(id)
		return nil, nil
	case err != nil:
		return nil, err
	}
	mine := *now
	mine.Mechanism, mine.Expires, mine.Withdrawn = id.Mechanism, id.Expires, id.Withdrawn
	c.login.CompareAndSwap(id, &mine)
	return &mine, nil
}

// lose removes an identity from the client, which is then untrusted.
func (c *Client) lose(id *auth.Identity) {
	if c.login.CompareAndSwap(id, nil) && c.Trust != nil {
		c.Trust(false)
	}
}

// meets reports whether the client's addresses are among those to which an identity is restricted.
func (c *Client) meets(id *auth.Identity) bool {
	for _, limits := range id.Limits {
		if !limits.Met(c.Remote, c.Local) {
			return false
		}
	}
	return true
}

// LoggedIn returns the identity as which the client has authenticated; nil for none.
func (c *Client) LoggedIn() *auth.Identity { return c.login.Load() }

// authorize returns an error if a request may not run; it is the only place that checks. named is the collection
// that a request names by its UUID, empty if it names none that way.
func (a *Access) authorize(op *Op, named string) error {
	req, c := &op.Req, op.Client
	rule := req.Spec.made.rule
	id, err := a.current(op, c)
	if err != nil {
		return err
	}
	if id == nil {
		req.LSID = nil // a session belongs to a user
		switch {
		case rule != nil && rule.Open, a.excepted(op):
			return nil
		}
		return errUnauthenticated(op)
	}
	if id.System {
		return nil
	}
	if expired(id) && (rule == nil || !rule.Open) {
		return errExpired
	}
	if memberFields(req) && !id.MayInternal() {
		return a.refuse(req)
	}
	if rule == nil {
		return a.refuse(req)
	}
	if ok, err := op.allows(rule, id, named); err != nil {
		return err
	} else if !ok {
		return a.refuse(req)
	}
	if err := a.checkDirect(op, id); err != nil {
		return err
	}
	if err := a.narrow(op, id); err != nil {
		return err
	}
	return ownSession(op, id)
}

func errUnauthenticated(op *Op) error {
	return mongoerr.Newf(mongoerr.Unauthorized, "Command %s requires authentication", op.Req.Spec.Name)
}

// allows reports whether a rule allows the operation's request.
func (op *Op) allows(rule *auth.Rule, id *auth.Identity, named string) (bool, error) {
	req := &op.Req
	if rule.Open {
		return true, nil
	}
	raw := req.asksRawData()
	if ok, plain := rule.AllowsPlain(req.DB, named, req.Msg, id); plain && !raw {
		return ok, nil
	}
	asks := auth.Request{Name: req.Spec.Name, DB: req.DB, Msg: req.Msg, Who: id, Named: named, Router: op.Service.Role == Router}
	ok := rule.Allows(&asks) && (!raw || auth.MayRawData(&asks))
	return ok, asks.Wrong
}

// refuse returns the error of a request that is not allowed.
func (a *Access) refuse(req *Request) error {
	return mongoerr.Newf(mongoerr.Unauthorized, "not authorized on %s to execute command %s", req.DB, value.ShowDoc(WithoutSecrets(req.Body)))
}

// Refuse returns the error of an operation that its user is not authorized to run.
func (op *Op) Refuse() error { return op.Service.Access.refuse(&op.Req) }

// WithoutSecrets returns a command as logs, errors, the profiler and currentOp may show it: without passwords, without the messages of an
// authentication, from which passwords could be guessed, and without stored credentials. It also covers the commands within explain and applyOps.
func WithoutSecrets(body []byte) []byte {
	it := value.Walk(body)
	key, first, _ := it.Next()
	switch name := string(key); name {
	case "createUser", "updateUser", "authenticate":
		body = hide(body, "pwd", "password") // a command with a misspelt name is refused, but logged
	case "saslStart", "saslContinue":
		body = hide(body, "payload")
	case "explain":
		if first.T == value.Document {
			if inner := WithoutSecrets(first.Doc()); !bytes.Equal(inner, first.Doc()) {
				body = replaceField(body, name, value.NewDocument(inner))
			}
		}
	case "applyOps":
		if first.T == value.Array && bytes.Contains(first.Doc(), []byte("\x02op\x00\x02\x00\x00\x00c\x00")) {
			body = replaceField(body, name, value.NewArray(withoutCommandsSecrets(first.Doc())))
		}
	case "hello", "isMaster", "ismaster":
		if v := value.Lookup(body, "speculativeAuthenticate"); v.T == value.Document {
			body = replaceField(body, "speculativeAuthenticate", value.NewDocument(hide(v.Doc(), "payload", "pwd")))
		}
	}
	return WithoutStored(body)
}

// withoutCommandsSecrets is WithoutSecrets for the commands in a list of operations.
func withoutCommandsSecrets(ops []byte) []byte {
	list := value.Values(ops)
	for i, v := range list {
		if o := value.Lookup(v.Doc(), "o"); v.T == value.Document && o.T == value.Document && value.Lookup(v.Doc(), "op").Str() == "c" {
			list[i] = value.NewDocument(replaceField(v.Doc(), "o", value.NewDocument(WithoutSecrets(o.Doc()))))
		}
	}
	return value.ArrayOf(list...)
}

// WithoutStored hides stored credentials, which appear in statements that write users: those of user management commands, and of
// mongorestore.
func WithoutStored(doc []byte) []byte {
	if !bytes.Contains(doc, []byte("storedKey")) && !bytes.Contains(doc, []byte("serverKey")) {
		return doc // an application's field may also be named credentials
	}
	return withoutCredentials(doc)
}

// hide replaces the values of the named fields, whatever the case of their names, by xxx. A document without any of them
// is returned unchanged.
func hide(doc []byte, names ...string) []byte {
	secret := func(k []byte) bool {
		for _, n := range names {
			if strings.EqualFold(string(k), n) {
				return true
			}
		}
		return false
	}
	found := false
	for it := value.Walk(doc); !found; {
		k, _, ok := it.Next()
		if !ok {
			return doc
		}
		found = secret(k)
	}
	out, mark := value.Begin(make([]byte, 0, len(doc)))
	for it := value.Walk(doc); ; {
		raw, k, _, ok := it.NextRaw()
		switch {
		case !ok:
			return value.End(out, mark)
		case secret(k):
			out = value.AppendKeyBytes(out, k, value.NewString("xxx"))
		default:
			out = append(out, raw...)
		}
	}
}

// memberFields reports whether a request has fields that only members send: versions, sessions of internal
// transactions, and the arguments that a router adds.
func memberFields(r *Request) bool {
	if r.ShardVersion != nil || r.DatabaseVer != nil || r.LSID != nil && !value.Lookup(r.LSID, "txnUUID").IsMissing() {
		return true
	}
	return memberElements(r.Body) || r.Cmd.T == value.Document && memberElements(r.Cmd.Doc()) // explain's command
}

// memberElements looks for the members' arguments in a command's body, not only among the fields in the table: a router
// relays fields that it does not know.
func memberElements(body []byte) bool {
	for it := value.Walk(body); ; {
		k, v, ok := it.Next()
		if !ok {
			return false
		}
		switch string(k) {
		case "fromRouter", "fromMongos", "needsMerge", "exchange", "runtimeConstants", "isMapReduceCommand", "fromConfigServer", "stayTemp",
			"includeQueryStatsMetrics", "$audit", msg.BypassesWriteBlock, "startOrContinueTransaction", "coordinator", "$replData",
			"$oplogQueryData", "shardVersion", "databaseVersion", "$ddlRun":
			if v.T == value.Document || v.Truthy() {
				return true
			}
		}
	}
}

var errForeignDigest = mongoerr.New(mongoerr.Unauthorized, "Unauthorized to set user digest in LogicalSessionId")

// ownSession makes the request's session the user's own: two users' sessions with the same id are different. A router relays it with the owner.
func ownSession(op *Op, id *auth.Identity) error {
	req := &op.Req
	if req.LSID == nil {
		return nil
	}
	if !value.Lookup(req.LSID, "uid").IsMissing() {
		if !id.Grants.AllowCluster(auth.Actions("impersonate")) {
			return errForeignDigest
		}
		return nil
	}
	lsid := append(req.room.lsid[:0], req.LSID[:len(req.LSID)-1]...)
	lsid = value.End(value.Append(lsid, "uid", value.NewBinary(0, id.Owner[:])), 0)
	req.LSID = lsid
	if op.Service.Role == Router {
		req.Body = replaceField(req.Body, "lsid", value.NewDocument(lsid))
		msg := *req.Msg
		msg.Body, req.Msg = req.Body, &msg
	}
	return nil
}

// Owner returns the digest that sessions of the operation's user belong to.
func (op *Op) Owner() [32]byte {
	if a := op.Service.Access; a != nil && a.Enforced && !op.Client.InProcess {
		if id := op.Client.login.Load(); id != nil {
			return id.Owner
		}
	}
	return cluster.NoUser
}

// CursorOwner is the user who opened a cursor, and what the command that opened it required.
type CursorOwner struct {
	Digest     [32]byte // of the user; cluster.NoUser without authorization
	Served     [32]byte // of the user whom a router served by opening the cursor; else the same
	rule       *auth.Rule
	command    string
	db         string
	router     bool   // it is a router's
	asked      []byte // the command that opened it, as the client sent it, if rawData made it one on other namespaces
	generation uint64 // of users and roles, when the rule was last known to hold
}

// CursorOwner returns the owner of the cursor that the operation opens.
func (op *Op) CursorOwner() CursorOwner {
	o := CursorOwner{Digest: op.Owner(), Served: op.servedFor(), command: op.Req.Spec.Name, db: op.Req.DB, router: op.Service.Role == Router, rule: op.Req.Spec.made.rule,
		asked: op.Req.rawData.asked}
	if id := op.Client.login.Load(); id != nil {
		o.generation = id.Generation
	}
	return o
}

// CheckCursor returns an error unless the operation's user opened the cursor and may still run opened, the command that did:
// revoking a privilege ends the cursors that required it.
func (op *Op) CheckCursor(cursor int64, o *CursorOwner, opened []byte) error {
	if o.Digest != op.Owner() {
		return mongoerr.Newf(mongoerr.Unauthorized, "cursor id %d was not created by the authenticated user", cursor)
	}
	id := op.Client.login.Load()
	if !op.Service.enforces() || op.Client.InProcess || id == nil || id.System {
		return nil
	}
	if id.Generation == o.generation && !id.Lent {
		return nil // users and roles have not changed; roles from a certificate or token belong to the connection, and may differ from those of the opener's connection
	}
	if !o.may(id, opened) {
		return mongoerr.Newf(mongoerr.Unauthorized, "not authorized for getMore with cursor id %d", cursor)
	}
	return nil
}

// may reports whether an identity may run the command that opened the cursor.
func (o *CursorOwner) may(id *auth.Identity, opened []byte) bool {
	if o.asked != nil {
		opened = o.asked
	}
	asks := auth.Request{Name: o.command, DB: o.db, Msg: &wire.Message{Body: opened}, Who: id, Router: o.router}
	return o.rule != nil && o.rule.Allows(&asks) && (o.asked == nil || auth.MayRawData(&asks))
}

// Allowed reports whether the operation's user may perform actions on a collection; an empty database means the
// cluster. Without authorization, and for members, everything is allowed.
func (op *Op) Allowed(actions, db, coll string) bool {
	if !op.Service.enforces() || op.Client.InProcess {
		return true
	}
	id := op.Client.login.Load()
	switch {
	case id == nil:
		return false
	case db == "":
		return id.Grants.AllowCluster(auth.Actions(actions))
	}
	return id.Grants.Allow(auth.Actions(actions), db, coll)
}

// BulkIndex reads the namespace index of a bulkWrite's operation as the check of its privileges does.
func BulkIndex(kind string, v value.Value) (int64, error) { return auth.BulkIndex(kind, v) }

// CheckLoggedCommand returns an error unless an entry of an oplog may be the command, as the check of applyOps' privileges does.
func CheckLoggedCommand(name string) error { return auth.CheckLoggedCommand(name) }

// MayApply reports whether the operation's user may run an applyOps operation of a kind on a collection.
func (op *Op) MayApply(kind, db, coll string) bool {
	need, ok := auth.AppliedActions(kind)
	return ok && op.Allowed(need, db, coll)
}

// Granted reports whether the operation's user has an action on the cluster; false without authorization.
func (op *Op) Granted(action string) bool {
	id := op.Client.login.Load()
	return op.Service.enforces() && id != nil && id.Grants.AllowCluster(auth.Actions(action))
}

// servedFor returns the digest of the user that an operation serves: its client's, the one that a router names, or the owner of the
// session according to the router.
func (op *Op) servedFor() [32]byte {
	if id := op.Client.login.Load(); id != nil && !id.System {
		return id.Owner
	}
	if user := value.Lookup(op.servedUser(), "$impersonatedUser"); user.T == value.Document {
		return namedUser(user.Doc()).Digest()
	}
	if uid := value.Lookup(op.Req.LSID, "uid"); op.Req.LSID != nil && len(uid.Bytes()) == 32 {
		return [32]byte(uid.Bytes())
	}
	return cluster.NoUser
}

// SessionsShown returns a filter for the sessions that a specification of $listSessions or $listLocalSessions
// asks for: if users are known and it names neither all nor some of them, only the user's own.
func (op *Op) SessionsShown(spec []byte) func(owner [32]byte) bool {
	if !op.Service.enforces() || value.Lookup(spec, "allUsers").Truthy() || len(value.Values(value.Lookup(spec, "users").Doc())) > 0 {
		return sessionsOf(spec)
	}
	self := op.servedFor()
	return func(owner [32]byte) bool { return owner == self }
}

// sessionsOf returns a filter for the owners that such a specification names; all without any.
func sessionsOf(spec []byte) func(owner [32]byte) bool {
	owners := map[[32]byte]bool{}
	for _, u := range value.Values(value.Lookup(spec, "users").Doc()) {
		if u.T == value.Document {
			owners[namedUser(u.Doc()).Digest()] = true
		}
	}
	return func(owner [32]byte) bool { return len(owners) == 0 || owners[owner] }
}

// namedUser reads a document with a user's name and database.
func namedUser(doc []byte) auth.UserName {
	return auth.UserName{User: value.Lookup(doc, "user").Str(), DB: value.Lookup(doc, "db").Str()}
}

// UserRoles returns the value of $$USER_ROLES: the roles of the user that the operation serves.
func (op *Op) UserRoles() value.Value {
	if served := op.servedUser(); served != nil {
		return auth.ServedRoles(served)
	}
	return value.Value{}
}

// servedUser returns the user that the operation serves: its client's, or the one that a member names in its request
// (auth.Identity.Served). It is nil without authorization, and for the cluster's own work.
func (op *Op) servedUser() []byte {
	from := op
	for from.Client.InProcess {
		if from = from.parentOp; from == nil {
			return nil
		}
	}
	if !from.Service.enforces() {
		return nil
	}
	switch id := from.Client.login.Load(); {
	case id == nil:
		return servedNobody
	case id.System:
		// A copy, since query statistics outlive the message.
		return bytes.Clone(value.Lookup(from.Req.Body, "$audit").Doc())
	default:
		return id.Served()
	}
}

// servedNobody represents, in a node's requests to others, a client without a user that the localhost exception has admitted.
var servedNobody = value.Doc(value.F("$anonymous", value.NewBool(true)))

// narrow restricts a listing to what the user may see, if the command asks for that or the user may not see more:
// it adds a condition to the command's own filter.
func (a *Access) narrow(op *Op, id *auth.Identity) error {
	req := &op.Req
	var only []byte
	switch req.Spec.Name {
	case "listDatabases":
		own := op.Arg("authorizedDatabases")
		if own.IsNullish() && id.Grants.AllowCluster(auth.Actions("listDatabases")) {
			return nil
		}
		only = id.Grants.DatabaseFilter()
	case "listCollections":
		if !op.Bool("authorizedCollections") {
			return nil
		}
		only = id.Grants.CollectionFilter(req.DB)
	default:
		return nil
	}
	list := []value.Value{value.NewDocument(only)}
	if f := op.Arg("filter"); f.T == value.Document {
		list = append(list, f)
	}
	filter := value.NewDocument(value.Doc(value.F("$and", value.NewArray(value.ArrayOf(list...)))))
	msg := *req.Msg
	if msg.Body = replaceField(req.Body, "filter", filter); value.Lookup(req.Body, "filter").IsMissing() {
		msg.Body = value.End(value.Append(append([]byte(nil), req.Body[:len(req.Body)-1]...), "filter", filter), 0)
	}
	req.Msg, req.Body = &msg, msg.Body
	return req.parse(true)
}

// mayAdvance reports whether a client's cluster time is accepted without a signature; known is false if it is not accepted at all. Without
// access control every client may advance the clock within the allowed drift, so that a client that was connected to another deployment
// before, or to this one before its data was removed, is not refused forever.
func (a *Access) mayAdvance(c *Client) (known, trusted bool) {
	switch {
	case c.InProcess || c.Internal:
		return true, true
	case a == nil || !a.Enforced:
		return true, a != nil
	}
	id := c.login.Load()
	if id == nil {
		return false, false
	}
	return true, id.System || id.Grants.AllowCluster(auth.Actions("advanceClusterTime"))
}

// firstSteps are the commands that the localhost exception allows: creating the first user or role, and setting up
// a cluster for them.
var firstSteps = map[string]bool{"createUser": true, "createRole": true, "replSetInitiate": true, "replSetReconfig": true, "replSetGetStatus": true, "addShard": true}

// excepted reports whether the localhost exception allows a request: there are no users or roles yet, and it comes
// from this machine.
func (a *Access) excepted(op *Op) bool {
	if !op.Client.Loopback || !firstSteps[op.Req.Spec.Name] || !a.Params.Bool("enableLocalhostAuthBypass") {
		return false
	}
	if op.Req.Spec.Name[0] == 'c' && op.Req.DB != "admin" && op.Req.DB != "$external" {
		return false
	}
	return a.unclaimed(op)
}

// unclaimed reports whether there are no users or roles yet.
func (a *Access) unclaimed(op *Op) bool {
	if a.claimed.Load() {
		return false
	}
	for _, coll := range []string{"system.users", "system.roles"} {
		docs, err := cluster.Find{NS: "admin." + coll, Limit: 1, SingleBatch: true}.All(op, a.Users)
		if err != nil || len(docs) > 0 {
			a.claimed.CompareAndSwap(false, err == nil)
			return false
		}
	}
	return true
}

// changed invalidates identities after a command on admin that may have written users or roles directly, without the commands for that. One that was
// refused has not: a user without rights must not be able to have all identities read again for each request.
func (a *Access) changed(op *Op) {
	spec, first := op.Req.Spec, op.Req.Cmd
	switch {
	case !op.ran, spec.Kind != Write && spec.Kind != DDL && spec.Name != "applyOps":
		return
	case spec.Namespace && first.T == value.String && !strings.HasPrefix(first.Str(), "system."):
		return // a collection of an application
	}
	a.Refresh(context.WithoutCancel(op))
}
