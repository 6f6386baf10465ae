package oidc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
)

// fuzzProvider is a provider with one key, and a registry that trusts it.
func fuzzProvider(f *testing.F) (r *Registry, issuer string, sign func(claims map[string]any) string) {
	f.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	f.Cleanup(srv.Close)
	answer := func(path string, v any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) })
	}
	answer("/.well-known/openid-configuration", map[string]any{"issuer": srv.URL, "jwks_uri": srv.URL + "/keys"})
	answer("/keys", jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k"}}})
	doc, err := bson.Marshal(bson.D{{Key: "v", Value: bson.A{bson.D{{Key: "issuer", Value: srv.URL}, {Key: "audience", Value: "shoal"}, {Key: "authNamePrefix", Value: "idp"},
		{Key: "clientId", Value: "c"}, {Key: "authorizationClaim", Value: "groups"}, {Key: "logClaims", Value: bson.A{"sub", "groups"}}}}}})
	if err != nil {
		f.Fatal(err)
	}
	list, err := Parse(value.Lookup(doc, "v"))
	if err != nil {
		f.Fatal(err)
	}
	r = NewRegistry(time.Now)
	r.Set(list)
	return r, srv.URL, func(claims map[string]any) string {
		s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
		if err != nil {
			f.Fatal(err)
		}
		out, err := jwt.Signed(s).Claims(claims).Serialize()
		if err != nil {
			f.Fatal(err)
		}
		return out
	}
}

// Only tokens that the provider has signed are accepted.
func FuzzToken(f *testing.F) {
	r, issuer, sign := fuzzProvider(f)
	good := sign(map[string]any{"iss": issuer, "aud": "shoal", "sub": "ann", "groups": []string{"cooks"}, "exp": time.Now().Add(time.Hour).Unix()})
	if _, err := r.Verify(context.Background(), good); err != nil {
		f.Fatal(err)
	}
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","kid":"k"}`))
	body := strings.Split(good, ".")[1]
	for _, seed := range []string{good, good + "x", good[:len(good)-2], none + "." + body + ".", "a.b.c", "..", `{"payload":"x","signatures":[]}`, ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		l, err := r.Verify(context.Background(), token)
		if err == nil && !sameToken(token, good) {
			t.Errorf("%q is accepted for %v", token, l.User)
		}
	})
}

// sameToken reports whether two texts are one token: with the same signed part.
func sameToken(a, b string) bool {
	i, j := strings.LastIndexByte(a, '.'), strings.LastIndexByte(b, '.')
	return i > 0 && j > 0 && a[:i] == b[:j]
}

// Claims of any form are read without a panic, and yield a user with a name, or none.
func FuzzClaims(f *testing.F) {
	for _, seed := range []string{`{"sub":"ann","groups":["a","b"]}`, `{"sub":"ann","groups":"a"}`, `{"sub":1}`, `{"sub":"","groups":null}`, `{"sub":"a","groups":[1,{"x":[]}]}`, `{"sub":"a","groups":{"b":1e400}}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, claims string) {
		var all map[string]any
		if json.Unmarshal([]byte(claims), &all) != nil {
			return
		}
		for _, roles := range []string{"", "groups"} {
			p := &Provider{Principal: "sub", Prefix: "idp", Roles: roles, LogClaims: []string{"sub", "groups"}}
			l, err := p.login(time.Now(), all)
			if err == nil && (l.User.User == "idp/" || l.User.DB == "") {
				t.Errorf("%s: %+v", claims, l)
			}
		}
	})
}
