package oidc

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
)

// oidcIdentityProviders of any form are read without a panic; those that are accepted are complete.
func FuzzProviders(f *testing.F) {
	for _, seed := range []string{
		`{"v":[{"issuer":"https://idp.example/","audience":"a","authNamePrefix":"p","clientId":"c","matchPattern":"@x$"}]}`,
		`{"v":[{"issuer":"http://127.0.0.1:1","audience":"a","authNamePrefix":"p","useAuthorizationClaim":false,"supportsHumanFlows":false,"principalName":"sub","logClaims":["iss"],"JWKSPollSecs":0}]}`,
		`{"v":[{}]}`, `{"v":{}}`, `{"v":[{"issuer":1}]}`, `{"v":[{"issuer":"https://x","matchPattern":"("}]}`, `{"v":[]}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var doc bson.Raw
		if bson.UnmarshalExtJSON([]byte(text), false, &doc) != nil {
			return
		}
		list, err := Parse(value.Lookup(doc, "v"))
		if err != nil {
			return
		}
		for _, p := range list {
			if p.Issuer == "" || !strings.HasPrefix(p.Issuer, "http") || p.Prefix == "" {
				t.Errorf("%s: %+v", text, p)
			}
			_ = p.Info()
		}
	})
}
