package main

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// memberCert issues a certificate with a subject like "O=Shoal,title=db" and, where it is not empty, the extension that names a cluster, as a
// string of the given ASN.1 type.
func (a *authority) memberCert(name, subject, extension, kind string) string {
	a.t.Helper()
	oids := map[string]asn1.ObjectIdentifier{"O": {2, 5, 4, 10}, "OU": {2, 5, 4, 11}, "C": {2, 5, 4, 6}, "title": {2, 5, 4, 12}}
	c := &x509.Certificate{Subject: pkix.Name{CommonName: name}}
	for _, part := range strings.Split(subject, ",") {
		key, v, _ := strings.Cut(part, "=")
		c.Subject.ExtraNames = append(c.Subject.ExtraNames, pkix.AttributeTypeAndValue{Type: oids[key], Value: v})
	}
	c.Subject.ExtraNames = append(c.Subject.ExtraNames, pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: name})
	if extension != "" {
		raw, err := asn1.MarshalWithParams(extension, kind)
		if err != nil {
			a.t.Fatal(err)
		}
		c.ExtraExtensions = append(c.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 34601, 2, 1, 2}, Value: raw})
	}
	return a.certify(name, "", c, "127.0.0.1")
}

// believes reports whether a server accepts the holder of a certificate as a member.
func believes(t *testing.T, a *authority, at, cert string) bool {
	t.Helper()
	ring, err := newKeyring(tlsOptions{Mode: tlsRequire, KeyFile: cert, CAFile: a.path("ca.pem")})
	if err != nil {
		t.Fatal(err)
	}
	proof := &command.Members{Certificates: ring}
	proof.SetMode(command.ByCertificate)
	d := newDirectory(nil, wire.PoolOptions{Handshake: command.Handshake(proof, false), Dial: wire.DialTLS(ring.outgoing)})
	defer func() { _ = d.close(context.Background()) }()
	_, err = d.ask(t.Context(), at, mustDoc(t, bson.D{{Key: "_getUserCacheGeneration", Value: 1}, {Key: "$db", Value: "admin"}}))
	if err != nil && mongoerr.CodeOf(err) != mongoerr.AuthenticationFailed {
		t.Errorf("%s: %v", filepath.Base(cert), err)
	}
	return err == nil
}

// Members are recognised by the attributes of their certificates that net.tls.clusterAuthX509 names, or by the value of the extension for that, and
// by those of the parameter tlsClusterAuthX509Override; then by nothing else.
func TestMembersByAttributesOrExtension(t *testing.T) {
	a := newAuthority(t)
	a.issue("client", "", time.Time{})
	own := a.memberCert("own", "C=NO,O=Fish,title=db", "shoal://a", "utf8")
	certs := map[string]string{
		"attributes":        a.memberCert("m1", "title=db,OU=other,C=NO,O=Web", "", ""),
		"half of them":      a.memberCert("m2", "C=NO,O=Fish", "", ""),
		"old attributes":    a.memberCert("m3", "O=Old,OU=db", "", ""),
		"extension":         a.memberCert("m4", "C=SE", "shoal://a", "utf8"),
		"old extension":     a.memberCert("m5", "C=SE", "shoal://old", "utf8"),
		"another extension": a.memberCert("m6", "C=NO,O=Fish,title=db", "shoal://ab", "utf8"),
		"printable string":  a.memberCert("m7", "C=SE", "shoal://a", "printable"),
	}
	for _, tc := range []struct {
		args    []string
		members string
		users   map[string]int // names of users on $external, and the code of their creation
	}{
		{[]string{"--tlsClusterAuthX509Attributes", "title=db, C=NO"}, "attributes|another extension",
			map[string]int{"CN=u,title=db,C=NO": int(mongoerr.BadValue), "CN=u,title=db,C=NO,O=Fish": int(mongoerr.BadValue), "CN=u,O=Fish,C=NO": 0}},
		{[]string{"--tlsClusterAuthX509Attributes", "title=db, C=NO", "--setParameter", "tlsClusterAuthX509Override={ attributes: 'O=Old, OU=db' }"},
			"attributes|another extension|old attributes", map[string]int{"CN=u,OU=db,O=Old": int(mongoerr.BadValue)}},
		{[]string{"--tlsClusterAuthX509ExtensionValue", "shoal://a"}, "extension", map[string]int{"CN=u,title=db,C=NO,O=Fish": 0}},
		{[]string{"--tlsClusterAuthX509ExtensionValue", "shoal://a", "--setParameter", `tlsClusterAuthX509Override={"extensionValue": "shoal://old"}`},
			"extension|old extension", nil},
		{[]string{"--setParameter", "tlsClusterAuthX509Override={extensionValue: 'shoal://old'}"}, "half of them|old extension|another extension", nil},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			t.Parallel()
			rs := launchSet(t, setOptions{name: "config", role: "--configsvr", members: 1, args: append([]string{"--tlsMode", "requireTLS", "--tlsCertificateKeyFile", own,
				"--tlsCAFile", a.path("ca.pem"), "--clusterAuthMode", "x509"}, tc.args...)})
			at := rs.members[0].at()
			for name, cert := range certs {
				if got, want := believes(t, a, at, cert), strings.Contains("|"+tc.members+"|", "|"+name+"|"); got != want {
					t.Errorf("%s: %v", name, got)
				}
			}
			g := &guarded{t: t}
			client := a.path("client.pem")
			g.must(certified(t, a, at, client, nil), "admin", "createUser", "root", "pwd", "secret", "roles", bson.A{"root"})
			root := certified(t, a, at, client, &options.Credential{Username: "root", Password: "secret", AuthSource: "admin"})
			for name, want := range tc.users {
				if _, code, text := run1(root, "$external", "createUser", name, "roles", bson.A{}); code != want {
					t.Errorf("user %s: %d %s", name, code, text)
				}
			}
		})
	}
}

// A server does not start with a certificate by which other members would not recognise it, and does not rotate to one.
func TestOwnCertificateIsAMembers(t *testing.T) {
	a := newAuthority(t)
	good, bad := a.memberCert("good", "title=db", "", ""), a.memberCert("bad", "title=web", "shoal://a", "utf8")
	o := tlsOptions{Mode: tlsRequire, KeyFile: bad, CAFile: a.path("ca.pem"), MemberAttributes: "title=db"}
	if err := o.check(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := newKeyring(o); mongoerr.CodeOf(err) != mongoerr.InvalidSSLConfiguration {
		t.Errorf("the certificate of another: %v", err)
	}
	o.ClusterFile = good
	k, err := newKeyring(o)
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := os.ReadFile(bad)
	a.write("good.pem", raw)
	if err := k.rotate(); mongoerr.CodeOf(err) != mongoerr.InvalidSSLConfiguration {
		t.Errorf("rotated: %v", err)
	}
	o = tlsOptions{Mode: tlsRequire, KeyFile: bad, CAFile: a.path("ca.pem"), MemberAttributes: "title=db"}
	if err := o.check([]pair{{memberOverride, "{extensionValue: 'shoal://a'}"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := newKeyring(o); err != nil {
		t.Errorf("recognised by the override: %v", err)
	}
}

// The options and the parameter in each form of the manual, and what they refuse.
func TestOptionsOfMembersCertificates(t *testing.T) {
	base := "security: {clusterAuthMode: x509}\nnet: {tls: {mode: requireTLS, certificateKeyFile: k, CAFile: c, clusterAuthX509: {%}}}\n"
	for _, tc := range []struct{ inner, more, want, override string }{
		{"attributes: 'O=MongoDB, OU=MongoDB Server'", "", "", "{}"},
		{"extensionValue: 'mongodb://example.mongodb.net'", "", "", "{}"},
		{"attributes: 'O=a'", `setParameter: {tlsClusterAuthX509Override: "{ attributes: 'O=MongoDB, OU=MongoDB Server' }"}`, "", `{"attributes":"O=MongoDB, OU=MongoDB Server"}`},
		{"attributes: 'O=a'", "setParameter:\n  tlsClusterAuthX509Override: { attributes: O=10gen, OU=10gen Server }", "", `{"attributes":"O=10gen, OU=10gen Server"}`},
		{"extensionValue: b", "setParameter:\n  tlsClusterAuthX509Override: { extensionValue: c }", "", `{"extensionValue":"c"}`},
		{"attributes: 'O=a', extensionValue: b", "", "not by both", ""},
		{"attributes: 'x'", "", "distinguished name", ""},
		{"attributes: 'O='", "", "has no value", ""},
		{"attributes: 'O=a'", `setParameter: {tlsClusterAuthX509Override: "{ attributes: 'O=a', extensionValue: b }"}`, "not by both", ""},
		{"attributes: 'O=a'", `setParameter: {tlsClusterAuthX509Override: "{ what: b }"}`, "unknown field", ""},
		{"attributes: 'O=a'", `setParameter: {tlsClusterAuthX509Override: "{ attributes: [] }"}`, "not a string", ""},
		{"attributes: 'O=a'", `setParameter: {tlsClusterAuthX509Override: "O=a"}`, "expected a document", ""},
		{"attributes: 'O=a'", `setParameter: {tlsX509ClusterAuthDNOverride: "O=a"}`, "tlsClusterAuthX509Override", ""},
	} {
		path := filepath.Join(t.TempDir(), "conf")
		if err := os.WriteFile(path, []byte(strings.Replace(base, "%", tc.inner, 1)+tc.more), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := parse(isMongod, []string{"--config", path})
		switch {
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s, %s: %v", tc.inner, tc.more, err)
		case tc.want == "" && err != nil:
			t.Errorf("%s, %s: %v", tc.inner, tc.more, err)
		case tc.want == "" && c.TLS.members == nil, tc.want == "" && tc.override != "{}" && (len(c.Parameters) != 1 || c.Parameters[0].Value != tc.override):
			t.Errorf("%s, %s: %+v", tc.inner, tc.more, c.Parameters)
		}
	}
	if _, err := parse(isMongod, []string{"--tlsMode", "requireTLS", "--tlsCertificateKeyFile", "k", "--tlsCAFile", "c", "--keyFile", "k", "--tlsClusterAuthX509Attributes", "O=a"}); err == nil || !strings.Contains(err.Error(), "clusterAuthMode") {
		t.Errorf("members with a key: %v", err)
	}
}

// Where users and members need not be distinguished, the bearer of a member's certificate can be a user; members then authenticate by a key.
func TestMembersCertificatesOfUsers(t *testing.T) {
	a := newAuthority(t)
	a.issue("client", "", time.Time{})
	own, other := a.memberCert("own", "O=Shoal,OU=db", "", ""), a.memberCert("other", "O=Shoal,OU=db", "", "")
	args := []string{"--tlsMode", "requireTLS", "--tlsCertificateKeyFile", own, "--tlsCAFile", a.path("ca.pem"), "--setParameter", "enforceUserClusterSeparation=false"}
	s := loneServer(t, append([]string{"mongod", "--memory", "--auth"}, args...)...)
	s.start()
	g := &guarded{t: t}
	client := a.path("client.pem")
	g.must(certified(t, a, s.at(), client, nil), "admin", "createUser", "root", "pwd", "secret", "roles", bson.A{"root"})
	root := certified(t, a, s.at(), client, &options.Credential{Username: "root", Password: "secret", AuthSource: "admin"})
	g.must(root, "$external", "createUser", "CN=other,OU=db,O=Shoal", "roles", bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}})
	user := certified(t, a, s.at(), other, &options.Credential{AuthMechanism: "MONGODB-X509", AuthSource: "$external"})
	g.must(user, "shop", "find", "c")
	g.refused(user, "bank", "find", "c")
	if _, err := parse(isMongod, append([]string{"--clusterAuthMode", "x509"}, args...)); err == nil || !strings.Contains(err.Error(), "has to be keyFile") {
		t.Errorf("members by certificate: %v", err)
	}
}
