package command

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// login is a client's authentication in progress.
type login struct {
	conv *auth.Conversation // nil while an OIDC token is awaited
	id   int32
	user *auth.User // nil for members, and for unknown users
}

// name returns the user and the mechanism, as far as they are known.
func (l *login) name() (auth.UserName, string) {
	if l.conv == nil {
		return auth.UserName{DB: auth.External}, auth.OIDC
	}
	return l.conv.User(), l.conv.Mechanism
}

// loginSpecs returns the commands with which clients authenticate.
func (a *Access) loginSpecs() []Spec {
	return []Spec{
		{Name: "saslStart", Roles: All, NoAuth: true, API: true, Lenient: true, Run: a.runSASLStart,
			Fields: []Field{Req("mechanism", TString), Opt("payload", TAny), Opt("autoAuthorize", TAny), Opt("options", TObject), Opt("db", TAny)}},
		{Name: "saslContinue", Roles: All, NoAuth: true, API: true, Lenient: true, Run: a.runSASLContinue,
			Fields: []Field{Opt("conversationId", TAny), Opt("payload", TAny)}},
		{Name: "authenticate", Roles: All, NoAuth: true, API: true, Lenient: true, Run: a.runAuthenticate, Fields: []Field{Opt("mechanism", TAny), Opt("user", TAny)}},
		{Name: "logout", Roles: All, NoAuth: true, Lenient: true, Run: a.runLogout},
	}
}

// enabled reports whether a mechanism is among authenticationMechanisms. Members may always prove their key.
func (a *Access) enabled(mech string) bool {
	switch {
	case mech == auth.OIDC && a.Providers == nil, mech == auth.Plain && a.Params.Str("saslauthdPath") == "":
		return false
	case mech != auth.X509 && mech != auth.OIDC && mech != auth.Plain && !slices.Contains(auth.Mechanisms, mech):
		return false
	}
	for _, v := range value.Values(a.Params.Get("authenticationMechanisms").Value().Doc()) {
		if v.T == value.String && v.Str() == mech {
			return true
		}
	}
	return false
}

func (a *Access) iterations(mech string) int {
	if mech == auth.SHA1 {
		return int(a.Params.Int("scramIterationCount"))
	}
	return int(a.Params.Int("scramSHA256IterationCount"))
}

func (a *Access) runSASLStart(op *Op, dst []byte) ([]byte, error) {
	out, err := a.start(op, op.Req.DB, op.Req.Body, false)
	if err != nil {
		return dst, a.failed(op, auth.UserName{DB: op.Req.DB}, op.Req.Str("mechanism"), err)
	}
	return append(dst, out...), nil
}

// start begins a conversation with a saslStart document and returns the reply's elements.
func (a *Access) start(op *Op, db string, cmd []byte, speculative bool) ([]byte, error) {
	mech, payload := value.Lookup(cmd, "mechanism"), value.Lookup(cmd, "payload")
	if mech.T != value.String {
		return nil, WrongType("saslStart.mechanism", mech.T, TString)
	}
	l := &login{id: 1}
	member := a.Members.takesKey() && db == auth.System.DB && mech.Str() == auth.SHA256
	if !member && !a.enabled(mech.Str()) {
		return nil, unavailable(mech.Str())
	}
	a.counts.attempted(op.Client, mech.Str(), speculative, member)
	if mech.Str() == auth.X509 {
		if _, err := a.certificate(op, db, strings.Trim(string(payload.Bytes())+payload.Str(), "\x00")); err != nil {
			return nil, err
		}
		return appendStep(nil, 1, true, nil), nil
	}
	if mech.Str() == auth.OIDC {
		return a.startOIDC(op, l, db, payload)
	}
	if mech.Str() == auth.Plain {
		return a.startPlain(op, l, db, payload)
	}
	lookup := func(user string) ([]auth.Credentials, error) {
		return a.credentials(op, l, mech.Str(), auth.UserName{User: user, DB: db}, speculative)
	}
	l.conv = auth.NewConversation(mech.Str(), db, lookup)
	l.conv.SkipEmpty = value.Lookup(value.Lookup(cmd, "options").Doc(), "skipEmptyExchange").Truthy()
	op.beginLogin(l)
	return a.step(op, l, payload)
}

// beginLogin makes l the client's authentication in progress. A previous one is abandoned.
func (op *Op) beginLogin(l *login) {
	if was := op.Client.takeLogin(); was != nil {
		user, mech := was.name()
		op.Service.auditLogin(op.Client, user, mech, mongoerr.AuthenticationAbandoned)
	}
	op.Client.setLogin(l)
}

// credentials returns a user's credentials. For a user that does not exist, or cannot use the mechanism, it returns credentials that no
// client can satisfy, at the same cost. A speculative authentication, however, is refused if its mechanism is not among those that the same
// reply lists for the name, known or not: a driver completes an authentication that the server has begun, and would not try a listed
// mechanism.
func (a *Access) credentials(ctx context.Context, l *login, mech string, name auth.UserName, speculative bool) ([]auth.Credentials, error) {
	if a.Members.takesKey() && name == auth.System {
		return a.Members.Key.Lookup(name.User)
	}
	sim, err := a.simulation(ctx)
	if err != nil {
		return nil, err
	}
	u, err := a.user(ctx, name)
	if err != nil && err != errNoUser {
		return nil, err
	}
	iterations, ok := a.unknown(sim, name)[mech]
	if u != nil || !ok { // a user without credentials for the mechanism is indistinguishable from one without any
		iterations = a.iterations(mech)
	}
	fake := sim.Credentials(mech, name, iterations)
	if u != nil {
		if c, ok := u.Credentials[mech]; ok {
			l.user = u
			return []auth.Credentials{c}, nil
		}
	}
	if speculative && (u != nil || !ok) {
		return nil, mongoerr.New(mongoerr.AuthenticationFailed, "Authentication failed.")
	}
	return []auth.Credentials{fake}, nil
}

func (a *Access) runSASLContinue(op *Op, dst []byte) ([]byte, error) {
	l := op.Client.takeLogin()
	if l == nil {
		return dst, mongoerr.New(mongoerr.ProtocolError, "No SASL session state found")
	}
	if id, ok := op.Arg("conversationId").AsInt64(); !ok || id != int64(l.id) {
		return dst, mongoerr.New(mongoerr.ProtocolError, "sasl: Mismatched conversation id")
	}
	if user, _ := l.name(); user.DB != op.Req.DB {
		return dst, mongoerr.New(mongoerr.ProtocolError, "Attempt to switch database target during SASL authentication.")
	}
	op.Client.setLogin(l)
	out, err := a.step(op, l, op.Arg("payload"))
	if err != nil {
		op.Client.takeLogin()
		user, mech := l.name()
		return dst, a.failed(op, user, mech, err)
	}
	return append(dst, out...), nil
}

// step processes the client's next message and returns the reply's elements; after the last one the client is
// authenticated.
func (a *Access) step(op *Op, l *login, payload value.Value) ([]byte, error) {
	var msg []byte
	switch payload.T {
	case value.Binary:
		msg = payload.Bytes()
	case value.String:
		msg = []byte(payload.Str())
	default:
		op.Client.takeLogin()
		return nil, mongoerr.New(mongoerr.TypeMismatch, "Wrong type for field (payload). Expected binData")
	}
	if l.conv == nil {
		op.Client.takeLogin()
		return a.token(op, l, msg)
	}
	answer, done, err := l.conv.Step(msg)
	if err != nil {
		op.Client.takeLogin()
		return nil, err
	}
	if done {
		op.Client.takeLogin()
		if err := a.finish(op, l); err != nil {
			return nil, err
		}
	}
	return appendStep(nil, l.id, done, answer), nil
}

// appendStep appends the elements of a conversation's reply.
func appendStep(dst []byte, id int32, done bool, answer []byte) []byte {
	dst = value.Append(dst, "conversationId", value.NewInt32(id))
	dst = value.Append(dst, "done", value.NewBool(done))
	return value.Append(dst, "payload", value.NewBinary(0, answer))
}

// unavailable is the error of a mechanism that is not enabled, or that this server does not have.
func unavailable(mech string) error {
	switch mech {
	case auth.Plain:
		return mongoerr.New(mongoerr.MechanismUnavailable, "Received authentication for mechanism PLAIN, which needs authenticationMechanisms to name it and saslauthdPath to be set")
	case "GSSAPI", "MONGODB-AWS":
		return mongoerr.Newf(mongoerr.MechanismUnavailable, "Received authentication for mechanism %s, which this server does not have", mech)
	}
	return mongoerr.Newf(mongoerr.MechanismUnavailable, "Received authentication for mechanism %s which is unknown or not enabled", mech)
}

// finish sets the client's identity to the one that it has proved.
func (a *Access) finish(op *Op, l *login) error {
	name := l.conv.User()
	if !l.conv.Authenticated() {
		return auth.Failed()
	}
	if a.Members.takesKey() && name == auth.System {
		a.becomeMember(op, l.conv.Mechanism)
		return nil
	}
	// A password that was changed since the conversation began is not proved by it.
	now, err := a.user(op, name)
	if err != nil || l.user == nil || !now.Credentials[l.conv.Mechanism].Equal(l.user.Credentials[l.conv.Mechanism]) {
		return auth.Failed()
	}
	id, err := a.identity(op, name)
	if err != nil || value.Compare(id.UUID, l.user.UUID) != 0 {
		return auth.Failed()
	}
	return a.enter(op, id, l.conv.Mechanism)
}

// becomeMember makes the operation's client a member of the cluster, after it has proved that it is one.
func (a *Access) becomeMember(op *Op, mech string) {
	c := op.Client
	c.setIdentity(auth.NewSystem())
	c.Internal = c.claimsInternal
	c.succeeded()
	op.Service.auditLogin(c, auth.System, mech, mongoerr.OK)
}

// enter sets the client's identity to that of a user, after it has proved it.
func (a *Access) enter(op *Op, id *auth.Identity, mech string) error {
	c := op.Client
	if !c.meets(id) {
		return auth.Failed()
	}
	if was := c.login.Load(); was != nil && was.Name != id.Name {
		return mongoerr.New(mongoerr.ProtocolError, "Another user is already authenticated on this connection; log out first")
	}
	mine := *id
	mine.Mechanism = mech
	c.setIdentity(&mine)
	c.succeeded()
	op.Service.auditLogin(c, id.Name, mech, mongoerr.OK)
	if a.OnLogin != nil {
		a.OnLogin(c, id.Name, mech, nil)
	}
	return nil
}

// failed returns the error of an authentication that failed, after a delay that makes guessing slow. The error
// does not distinguish reasons that would reveal something about the user.
func (a *Access) failed(op *Op, user auth.UserName, mech string, err error) error {
	var refused *refusal
	if errors.As(err, &refused) && refused.user.User != "" {
		user = refused.user
	}
	op.Service.auditLogin(op.Client, user, mech, mongoerr.CodeOf(err))
	if a.OnLogin != nil {
		a.OnLogin(op.Client, user, mech, err)
	}
	if refused != nil {
		err = refused.Unwrap() // the reason is for the log alone
	}
	if mongoerr.CodeOf(err) == mongoerr.AuthenticationFailed {
		if ms := a.Params.Int("authFailedDelayMs"); ms > 0 {
			t := time.NewTimer(time.Duration(ms) * time.Millisecond)
			defer t.Stop()
			select {
			case <-t.C:
			case <-op.Done():
			}
		}
	}
	return err
}

// runLogout logs the connection's user out, if it is a user of the database that the command is sent to.
func (a *Access) runLogout(op *Op, dst []byte) ([]byte, error) {
	if id := op.Client.login.Load(); id != nil && id.Name.DB == op.Req.DB {
		op.Service.auditLogout(op.Client, id, "Explicit logout from "+op.Req.DB)
		op.Client.setIdentity(nil)
		op.Client.Internal = op.Client.Internal && !a.Enforced
	}
	op.Client.takeLogin()
	return dst, nil
}

// setIdentity sets the client's authenticated identity; nil clears it.
func (c *Client) setIdentity(id *auth.Identity) {
	c.login.Store(id)
	if c.Trust != nil {
		c.Trust(id != nil)
	}
}

// setLogin stores the authentication in progress.
func (c *Client) setLogin(l *login) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.authenticating = l
}

// takeLogin returns the authentication in progress and clears it.
func (c *Client) takeLogin() *login {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.mu.authenticating
	c.mu.authenticating = nil
	return l
}

// appendHello handles hello's fields about authentication.
func (a *Access) appendHello(op *Op, dst []byte) ([]byte, error) {
	if v := op.Arg("saslSupportedMechs"); !v.IsMissing() {
		name, err := userName(v)
		if err != nil {
			return dst, err
		}
		a.counts.negotiated.Add(1)
		mechs, err := a.supported(op, name)
		if err != nil {
			return dst, err
		}
		dst = value.Append(dst, "saslSupportedMechs", stringArray(mechs))
	}
	if v := op.Arg("speculativeAuthenticate"); v.T == value.Document {
		// If it fails, it is omitted: the client then authenticates in the ordinary way and gets the error.
		if out := a.speculate(op, v.Doc()); out != nil {
			var m int
			dst, m = value.BeginKey(dst, value.Document, "speculativeAuthenticate")
			dst = value.End(append(dst, out...), m)
		}
	}
	return dst, nil
}

// speculate begins an authentication that a client sends with its first hello; nil if it fails.
func (a *Access) speculate(op *Op, cmd []byte) []byte {
	db := value.Lookup(cmd, "db")
	if db.T != value.String {
		return nil
	}
	it := value.Walk(cmd)
	switch name, _, _ := it.Next(); string(name) {
	case "saslStart":
		if out, err := a.start(op, db.Str(), cmd, true); err == nil {
			return out
		}
	case "authenticate":
		if out, err := a.authenticate(op, db.Str(), cmd, true); err == nil {
			return out
		}
	}
	return nil
}

// supported lists the mechanisms that a user can use. For a user that does not exist it returns those of some existing
// user.
func (a *Access) supported(ctx context.Context, name auth.UserName) (out []string, err error) {
	if name.DB == auth.External {
		return nil, nil // users of $external cannot use SCRAM, whether they exist or not
	}
	sim, err := a.simulation(ctx)
	if err != nil {
		return nil, err
	}
	u, err := a.user(ctx, name)
	if err != nil && err != errNoUser {
		return nil, err
	}
	unknown := a.unknown(sim, name)
	for _, m := range auth.Mechanisms {
		_, has := unknown[m]
		if u != nil {
			_, has = u.Credentials[m]
		}
		if has && a.enabled(m) {
			out = append(out, m)
		}
	}
	return out, nil
}

func stringArray(list []string) value.Value {
	vals := make([]value.Value, len(list))
	for i, s := range list {
		vals[i] = value.NewString(s)
	}
	return value.NewArray(value.ArrayOf(vals...))
}
