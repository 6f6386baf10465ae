package auth

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
)

// extended reads extended JSON, and returns nil if the text is none.
func extended(text string) []byte {
	var doc bson.Raw
	if bson.UnmarshalExtJSON([]byte(text), false, &doc) != nil {
		return nil
	}
	return doc
}

// Documents of users and roles of any form, which direct writes and mongorestore can store, are read without a panic, and a user or role that
// can be read is the same after it is stored again.
func FuzzStoredUsers(f *testing.F) {
	for _, seed := range []string{
		`{"_id":"shop.ann","user":"ann","db":"shop","userId":{"$uuid":"00000000-0000-0000-0000-000000000001"},"credentials":{"SCRAM-SHA-256":{"iterationCount":15000,"salt":"AAAA","storedKey":"AAAA","serverKey":"AAAA"}},"roles":[{"role":"read","db":"shop"}],"authenticationRestrictions":[{"clientSource":["127.0.0.1","10.0.0.0/8"]}]}`,
		`{"role":"r","db":"shop","roles":["read",{"role":"x","db":""}],"privileges":[{"resource":{"db":"shop","collection":"c"},"actions":["find"]},{"resource":{"cluster":true},"actions":["nope"]},{"resource":{"anyResource":true},"actions":[]}]}`,
		`{"user":1,"roles":{},"credentials":[{}],"privileges":[1]}`, `{"roles":[{"role":{"a":1}}],"authenticationRestrictions":[[{"serverAddress":"::1/129"}]]}`, `{}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		doc := extended(text)
		if doc == nil {
			return
		}
		if u, err := ParseUser(doc); err == nil {
			again, err := ParseUser(u.Doc())
			if err != nil || again.Name != u.Name || !slices.Equal(again.Roles, u.Roles) {
				t.Errorf("%s: %+v is read back as %+v, %v", text, u, again, err)
			}
		}
		if r, err := ParseRole(doc); err == nil {
			again, err := ParseRole(r.Doc())
			if err != nil || again.Name != r.Name || !slices.Equal(again.Roles, r.Roles) || len(again.Privileges) != len(r.Privileges) {
				t.Errorf("%s: %+v is read back as %+v, %v", text, r, again, err)
			}
		}
		_, _ = ParsePrivilege(doc)
		_, _ = ParseRestrictions(value.Lookup(doc, "authenticationRestrictions"))
		_ = ParseSimulationSecret(doc)
	})
}

// The text of a key file gives keys of the right form, or an error.
func FuzzKeys(f *testing.F) {
	for _, seed := range []string{"onekeyonekey", "- onekey\n- otherkey\n", "one key\none\tkey", "", "- a", "[abcdef, {}]", "a: b", "&a [*a]", strings.Repeat("x", 1025)} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := ParseKeys(text)
		if err != nil {
			return
		}
		for _, k := range keys {
			if len(k) < 6 || len(k) > 1024 || strings.ContainsAny(k, " \t\n\r") {
				t.Errorf("%q gives the key %q", text, k)
			}
		}
		if len(keys) == 0 {
			t.Errorf("%q gives no key", text)
		}
	})
}

// The extension of a certificate that names roles, whatever is in it, gives roles with names or an error.
func FuzzCertificateRoles(f *testing.F) {
	type pair struct {
		Role string `asn1:"utf8"`
		DB   string `asn1:"utf8"`
	}
	good, err := asn1.MarshalWithParams([]pair{{"read", "shop"}, {"x", ""}}, "set")
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{good, good[:len(good)-1], append(good[:len(good):len(good)], 0), {0x31, 0}, {0x31, 0x84, 0xff, 0xff, 0xff, 0xff}, nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		roles, named, err := CertificateRoles(&x509.Certificate{Extensions: []pkix.Extension{{Id: rolesExtension, Value: raw}}})
		if !named {
			t.Errorf("%x: no roles are named", raw)
		}
		for _, r := range roles {
			if err != nil || r.Role == "" || strings.Contains(r.Role+r.DB, "\x00") {
				t.Errorf("%x: %q, %v", raw, r, err)
			}
		}
	})
}
