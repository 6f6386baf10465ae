package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// identityProvider is an identity provider with keys that can change.
type identityProvider struct {
	*httptest.Server
	t *testing.T

	mu    sync.Mutex
	keys  map[string]*ecdsa.PrivateKey
	asked int
	down  bool
}

func startIdentityProvider(t *testing.T) *identityProvider {
	t.Helper()
	p := &identityProvider{t: t, keys: map[string]*ecdsa.PrivateKey{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.down {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": p.URL, "jwks_uri": p.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asked++
		var set jose.JSONWebKeySet
		for id, k := range p.keys {
			set.Keys = append(set.Keys, jose.JSONWebKey{Key: k.Public(), KeyID: id, Algorithm: "ES256", Use: "sig"})
		}
		_ = json.NewEncoder(w).Encode(set)
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	p.newKey("k1")
	return p
}

func (p *identityProvider) newKey(id string) *ecdsa.PrivateKey {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys[id] = key
	return key
}

// token signs claims with a key of the provider. The usual ones are added unless they are given.
func (p *identityProvider) token(id string, claims map[string]any) string {
	p.t.Helper()
	p.mu.Lock()
	key := p.keys[id]
	p.mu.Unlock()
	return p.signed(key, id, claims)
}

func (p *identityProvider) signed(key *ecdsa.PrivateKey, id string, claims map[string]any) string {
	p.t.Helper()
	all := map[string]any{"iss": p.URL, "aud": "shoal", "sub": "ann@inn", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(), "groups": []string{"cooks"}}
	for k, v := range claims {
		if all[k] = v; v == nil {
			delete(all, k)
		}
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: id}}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := jwt.Signed(signer).Claims(all).Serialize()
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// startTokens starts a deployment that trusts a provider; more are fields of its configuration.
func startTokens(t *testing.T, topology string, p *identityProvider, more string) *audited {
	t.Helper()
	return startAuditedWith(t, topology, "", pair{"authenticationMechanisms", "SCRAM-SHA-256,MONGODB-OIDC"}, pair{"JWKSMinimumQuiescePeriodSecs", "5"},
		pair{"oidcIdentityProviders", fmt.Sprintf(`[{"issuer": %q, "audience": "shoal", "authNamePrefix": "idp", "clientId": "shell", "requestScopes": ["groups"], %s}]`, p.URL, more)})
}

// bearer connects with the tokens that f returns.
func (g *guarded) bearer(f func() string) *mongo.Client {
	g.t.Helper()
	o := options.Client().ApplyURI(g.uri).SetMaxPoolSize(1).SetAuth(options.Credential{AuthMechanism: auth.OIDC,
		OIDCMachineCallback: func(context.Context, *options.OIDCArgs) (*options.OIDCCredential, error) {
			return &options.OIDCCredential{AccessToken: f()}, nil
		}})
	c, err := mongo.Connect(o)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

func always(token string) func() string { return func() string { return token } }

// A token's groups are roles, on every topology, through routers too; what they allow follows the roles.
func TestTokensWithRoles(t *testing.T) {
	for _, topology := range topologies {
		t.Run(topology, func(t *testing.T) {
			p := startIdentityProvider(t)
			g := startTokens(t, topology, p, `"authorizationClaim": "groups", "logClaims": ["sub", "absent"]`)
			root := g.root()
			g.must(root, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})
			g.must(root, "admin", "createRole", "idp/cooks", "privileges", bson.A{}, "roles", bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}})
			ann := g.bearer(always(p.token("k1", nil)))
			who := field(g.must(ann, "admin", "connectionStatus", 1), "authInfo")
			if u := field(who, "authenticatedUsers").(bson.A)[0]; field(u, "user") != "idp/ann@inn" || field(u, "db") != "$external" {
				t.Errorf("authenticated as %v", u)
			}
			g.must(ann, "shop", "find", "c")
			g.refused(ann, "shop", "insert", "c", "documents", bson.A{bson.D{}})
			roles := g.must(ann, "shop", "aggregate", "c", "pipeline", bson.A{bson.D{{Key: "$project", Value: bson.D{{Key: "r", Value: "$$USER_ROLES.role"}}}}}, "cursor", bson.D{})
			if got := fmt.Sprint(field(field(roles, "cursor", "firstBatch").(bson.A)[0], "r")); !strings.Contains(got, "idp/cooks") {
				t.Errorf("$$USER_ROLES: %s", got)
			}
			g.must(root, "admin", "updateRole", "idp/cooks", "roles", bson.A{bson.D{{Key: "role", Value: "readWrite"}, {Key: "db", Value: "shop"}}})
			g.must(ann, "shop", "insert", "c", "documents", bson.A{bson.D{}})
			g.must(root, "admin", "dropRole", "idp/cooks")
			g.refused(ann, "shop", "find", "c")
			if l := g.last("authenticate", `"claims":{"sub":"ann@inn"},"db":"$external","mechanism":"MONGODB-OIDC","user":"idp/ann@inn"`); l.Result != 0 {
				t.Errorf("%+v", l)
			}
		})
	}
}

// Without an authorization claim roles are those of the stored user.
func TestTokensOfStoredUsers(t *testing.T) {
	p := startIdentityProvider(t)
	g := startTokens(t, "standalone", p, `"useAuthorizationClaim": false, "principalName": "email"`)
	root := g.root()
	token := p.token("k1", map[string]any{"email": "ann"})
	if _, code, _ := run1(g.bearer(always(token)), "shop", "find", "c"); code != int(mongoerr.AuthenticationFailed) {
		t.Errorf("a user who does not exist: %d", code)
	}
	g.must(root, "$external", "createUser", "idp/ann", "roles", bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}})
	ann := g.bearer(always(token))
	g.must(ann, "shop", "find", "c")
	g.refused(ann, "shop", "insert", "c", "documents", bson.A{bson.D{}})
	g.must(root, "$external", "dropUser", "idp/ann")
	if _, code, _ := run1(ann, "shop", "find", "c"); code == 0 {
		t.Error("a user who was dropped can still read")
	}
}

// saslOIDC sends one step of a conversation.
func (s stranger) saslOIDC(cmd string, id int32, doc bson.D) bson.Raw {
	payload, err := bson.Marshal(doc)
	if err != nil {
		s.t.Fatal(err)
	}
	if cmd == "saslStart" {
		return s.send(bson.D{{Key: cmd, Value: 1}, {Key: "mechanism", Value: auth.OIDC}, {Key: "payload", Value: payload}, {Key: "$db", Value: "$external"}})
	}
	return s.send(bson.D{{Key: cmd, Value: 1}, {Key: "conversationId", Value: id}, {Key: "payload", Value: payload}, {Key: "$db", Value: "$external"}})
}

// A client without a token receives the issuer from which to get one.
func TestTokensInTwoSteps(t *testing.T) {
	p := startIdentityProvider(t)
	g := startTokens(t, "standalone", p, `"authorizationClaim": "groups", "matchPattern": "@inn$"`)
	s := g.stranger()
	begun := s.saslOIDC("saslStart", 0, bson.D{{Key: "n", Value: "ann@inn"}})
	info := bson.Raw(payload(begun))
	if begun.Lookup("done").Boolean() || info.Lookup("issuer").StringValue() != p.URL || info.Lookup("clientId").StringValue() != "shell" ||
		info.Lookup("requestScopes").Array().String() != `["groups"]` {
		t.Errorf("%s: %s", begun, info)
	}
	if done := s.saslOIDC("saslContinue", 1, bson.D{{Key: "jwt", Value: p.token("k1", nil)}}); !fine(done) || !done.Lookup("done").Boolean() {
		t.Errorf("%s", done)
	}
	if reply := g.stranger().saslOIDC("saslStart", 0, bson.D{{Key: "n", Value: "ann@elsewhere"}}); fine(reply) {
		t.Errorf("nobody's name: %s", reply)
	}
	if reply := g.stranger().saslOIDC("saslStart", 0, bson.D{}); !fine(reply) {
		t.Errorf("no name: %s", reply)
	}
	// The conversation is not one that a token can be brought into from outside.
	if reply := g.stranger().saslOIDC("saslContinue", 1, bson.D{{Key: "jwt", Value: p.token("k1", nil)}}); fine(reply) {
		t.Errorf("a conversation that was not begun: %s", reply)
	}
}

// Tokens that are forged, expired, meant for others or not tokens at all authenticate nobody, and the reply does not contain the reason.
func TestBadTokens(t *testing.T) {
	p := startIdentityProvider(t)
	g := startTokens(t, "standalone", p, `"authorizationClaim": "groups"`)
	mallory := startIdentityProvider(t)
	good := p.token("k1", nil)
	parts := strings.Split(good, ".")
	p.mu.Lock()
	public, err := json.Marshal(jose.JSONWebKey{Key: p.keys["k1"].Public()})
	p.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	symmetric, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: public}, (&jose.SignerOptions{}).WithHeader("kid", "k1"))
	if err != nil {
		t.Fatal(err)
	}
	confused, err := jwt.Signed(symmetric).Claims(map[string]any{"iss": p.URL, "aud": "shoal", "sub": "eve", "exp": time.Now().Add(time.Hour).Unix(), "groups": []string{"cooks"}}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{
		"another's key":            p.signed(mallory.keys["k1"], "k1", nil),
		"another's issuer":         mallory.token("k1", nil),
		"expired":                  p.token("k1", map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}),
		"not yet":                  p.token("k1", map[string]any{"nbf": time.Now().Add(time.Minute).Unix()}),
		"without an end":           p.token("k1", map[string]any{"exp": nil}),
		"another audience":         p.token("k1", map[string]any{"aud": "bank"}),
		"no audience":              p.token("k1", map[string]any{"aud": nil}),
		"no name":                  p.token("k1", map[string]any{"sub": nil}),
		"no groups":                p.token("k1", map[string]any{"groups": nil}),
		"groups of a strange kind": p.token("k1", map[string]any{"groups": []any{1}}),
		"an unknown key":           p.signed(mallory.keys["k1"], "k9", nil),
		"without signature":        parts[0] + "." + parts[1] + ".",
		"algorithm none":           "eyJhbGciOiJub25lIn0." + parts[1] + ".",
		"changed":                  parts[0] + "." + parts[1] + "x." + parts[2],
		"a public key as secret":   confused,
		"nothing":                  "",
		"no token":                 "abcd",
	} {
		s := g.stranger()
		reply := s.saslOIDC("saslStart", 0, bson.D{{Key: "jwt", Value: token}})
		if fine(reply) || s.in() || reply.Lookup("code").AsInt64() != int64(mongoerr.AuthenticationFailed) || reply.Lookup("errmsg").StringValue() != "Authentication failed." {
			t.Errorf("%s: %s", name, reply)
		}
	}
	for name, body := range map[string]any{"no document": []byte("abc"), "a string": "abc", "no field": []byte("\x05\x00\x00\x00")} {
		s := g.stranger()
		reply := s.send(bson.D{{Key: "saslStart", Value: 1}, {Key: "mechanism", Value: auth.OIDC}, {Key: "payload", Value: body}, {Key: "$db", Value: "$external"}})
		if fine(reply) && name != "no field" || s.in() {
			t.Errorf("%s: %s", name, reply)
		}
	}
	if s := g.stranger(); !fine(s.saslOIDC("saslStart", 0, bson.D{{Key: "jwt", Value: good}})) {
		t.Error("the good one is refused, too")
	}
}

// A key that the provider begins to use is fetched when a token is signed with it; made-up ones make the server ask only once in a while, and a
// provider that is down excludes no client whose key has been fetched.
func TestKeysOfProviders(t *testing.T) {
	t.Parallel()
	p := startIdentityProvider(t)
	g := startTokens(t, "standalone", p, `"authorizationClaim": "groups"`)
	in := func(token string) bool {
		return fine(g.stranger().saslOIDC("saslStart", 0, bson.D{{Key: "jwt", Value: token}}))
	}
	if !in(p.token("k1", nil)) {
		t.Fatal("the first key is not known")
	}
	made := p.newKey("made up")
	p.mu.Lock()
	delete(p.keys, "made up")
	before := p.asked
	p.mu.Unlock()
	for range 50 {
		if in(p.signed(made, "made up", nil)) {
			t.Fatal("let in with a key that the provider does not have")
		}
	}
	p.mu.Lock()
	if asked := p.asked - before; asked > 5 {
		t.Errorf("50 tokens made the server ask %d times", asked)
	}
	p.mu.Unlock()
	p.newKey("k2")
	await.True(t, "the new key is known", func() bool { return in(p.token("k2", nil)) })
	p.mu.Lock()
	p.down = true
	p.mu.Unlock()
	if !in(p.token("k1", nil)) || !in(p.token("k2", nil)) {
		t.Error("a provider that is down keeps out those whose keys are known")
	}
}

// A key that the provider withdraws ends the connections that came with it, within JWKSPollSecs; those of other keys continue, as do all
// while the provider is down.
func TestWithdrawnKeys(t *testing.T) {
	t.Parallel()
	p := startIdentityProvider(t)
	p.newKey("k2")
	g := startTokens(t, "standalone", p, `"authorizationClaim": "groups", "JWKSPollSecs": 1`)
	g.root()
	g.must(g.client("root", "secret", ""), "admin", "createRole", "idp/cooks", "privileges", bson.A{}, "roles", bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}})
	come := func(key string) stranger {
		s := g.stranger()
		if reply := s.saslOIDC("saslStart", 0, bson.D{{Key: "jwt", Value: p.token(key, nil)}}); !fine(reply) {
			t.Fatalf("%s: %s", key, reply)
		}
		return s
	}
	first, second := come("k1"), come("k2")
	find := bson.D{{Key: "find", Value: "c"}, {Key: "$db", Value: "shop"}}
	p.mu.Lock()
	asked := p.asked
	p.mu.Unlock()
	await.True(t, "the keys are read again", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.asked > asked+1
	})
	if !fine(first.send(find)) || !fine(second.send(find)) {
		t.Fatal("keys that stay the same end connections")
	}
	p.mu.Lock()
	delete(p.keys, "k1")
	p.mu.Unlock()
	var reply bson.Raw
	await.True(t, "the withdrawn key ends its connection", func() bool {
		reply = first.send(find)
		return !fine(reply)
	})
	if reply.Lookup("code").AsInt64() != int64(mongoerr.ReauthenticationRequired) {
		t.Errorf("%s", reply)
	}
	if !fine(second.send(find)) {
		t.Error("the other key's connection has ended, too")
	}
	if reply := first.saslOIDC("saslStart", 0, bson.D{{Key: "jwt", Value: p.token("k2", nil)}}); !fine(reply) || !fine(first.send(find)) {
		t.Errorf("with the other key: %s", reply)
	}
}

// When its token expires a connection may do nothing until the client authenticates again, which drivers do by themselves.
func TestExpiredTokens(t *testing.T) {
	t.Parallel()
	p := startIdentityProvider(t)
	g := startTokens(t, "standalone", p, `"authorizationClaim": "groups"`)
	g.root()
	g.must(g.client("root", "secret", ""), "admin", "createRole", "idp/cooks", "privileges", bson.A{}, "roles", bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}})
	short := func() string { return p.token("k1", map[string]any{"exp": time.Now().Add(2 * time.Second).Unix()}) }
	s := g.stranger()
	if reply := s.saslOIDC("saslStart", 0, bson.D{{Key: "jwt", Value: short()}}); !fine(reply) || !s.in() {
		t.Fatalf("%s", reply)
	}
	var reply bson.Raw
	await.True(t, "the token expires", func() bool {
		reply = s.send(bson.D{{Key: "find", Value: "c"}, {Key: "$db", Value: "shop"}})
		return !fine(reply)
	})
	if reply.Lookup("code").AsInt64() != int64(mongoerr.ReauthenticationRequired) {
		t.Errorf("%s", reply)
	}
	if reply := s.saslOIDC("saslStart", 0, bson.D{{Key: "jwt", Value: p.token("k1", nil)}}); !fine(reply) || !s.in() {
		t.Errorf("again: %s", reply)
	}
	calls := 0
	ann := g.bearer(func() string {
		if calls++; calls == 1 {
			return short()
		}
		return p.token("k1", nil)
	})
	await.State(t, "the driver asks for another token", func() (int, bool) { g.must(ann, "shop", "find", "c"); return calls, calls > 1 })
	g.must(ann, "shop", "find", "c")
	if calls != 2 {
		t.Errorf("the driver asked for %d tokens", calls)
	}
}

// Configurations that could not work are refused, at the start and later.
func TestProvidersAreChecked(t *testing.T) {
	p := startIdentityProvider(t)
	g := startTokens(t, "standalone", p, `"authorizationClaim": "groups"`)
	root := g.root()
	idp := func(change ...bson.E) bson.D {
		d := bson.D{{Key: "issuer", Value: "https://a.example"}, {Key: "audience", Value: "shoal"}, {Key: "authNamePrefix", Value: "a"}, {Key: "clientId", Value: "c"}, {Key: "authorizationClaim", Value: "groups"}}
	next:
		for _, c := range change {
			for i := range d {
				if d[i].Key == c.Key {
					d[i] = c
					continue next
				}
			}
			d = append(d, c)
		}
		return d
	}
	e := func(k string, v any) bson.E { return bson.E{Key: k, Value: v} }
	other := idp(e("issuer", "https://b.example"), e("matchPattern", "b"))
	for want, list := range map[string]bson.A{
		"issuer is required":             {idp(e("issuer", ""))},
		"audience is required":           {idp(e("audience", ""))},
		"authNamePrefix is required":     {idp(e("authNamePrefix", ""))},
		"authNamePrefix may contain":     {idp(e("authNamePrefix", "a b"))},
		"clientId is required":           {idp(e("clientId", ""))},
		"authorizationClaim is required": {idp(e("authorizationClaim", ""))},
		"is neither an https URL":        {idp(e("issuer", "http://a.example"))},
		"is an unknown field":            {idp(e("secret", "x"))},
		"expected a string":              {idp(e("issuer", 1))},
		"expected a bool":                {idp(e("supportsHumanFlows", 1))},
		"expected an array":              {idp(e("logClaims", "sub"))},
		"whole number of seconds":        {idp(e("JWKSPollSecs", -1))},
		"need a matchPattern each":       {idp(), other},
		"has audience shoal twice":       {idp(e("matchPattern", "a")), idp(e("matchPattern", "b"))},
		"JWKSPollSecs differs":           {idp(e("matchPattern", "a")), idp(e("matchPattern", "b"), e("audience", "x"), e("JWKSPollSecs", 5))},
		"matchPattern: ":                 {idp(e("matchPattern", "("))},
		"must be an object":              {1},
	} {
		if _, code, text := run1(root, "admin", "setParameter", 1, "oidcIdentityProviders", list); code != int(mongoerr.BadValue) || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", want, code, text)
		}
	}
	g.must(root, "admin", "setParameter", 1, "oidcIdentityProviders", bson.A{idp(e("matchPattern", "a")), other, idp(e("issuer", "https://c.example"), e("supportsHumanFlows", false))})
	if fine(g.stranger().saslOIDC("saslStart", 0, bson.D{{Key: "jwt", Value: p.token("k1", nil)}})) {
		t.Error("a provider that was removed is trusted")
	}
	if list := g.must(root, "admin", "getParameter", 1, "oidcIdentityProviders", 1)["oidcIdentityProviders"].(bson.A); len(list) != 3 {
		t.Errorf("%v", list)
	}
}
