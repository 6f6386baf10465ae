package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// certified connects with a certificate; user is the credential's, where the certificate is what proves it.
func certified(t *testing.T, a *authority, at, cert string, credential *options.Credential) *mongo.Client {
	t.Helper()
	o := options.Client().ApplyURI("mongodb://" + at + "/?directConnection=true&tls=true&tlsCAFile=" + url.QueryEscape(a.path("ca.pem")) +
		"&tlsCertificateKeyFile=" + url.QueryEscape(cert)).SetMaxPoolSize(1).SetServerSelectionTimeout(10 * time.Second)
	if credential != nil {
		o.SetAuth(*credential)
	}
	c, err := mongo.Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

// encodedRoles is the extension of a certificate that names roles.
func encodedRoles(t *testing.T, pairs ...[2]string) pkix.Extension {
	t.Helper()
	type pair struct {
		Role string `asn1:"utf8"`
		DB   string `asn1:"utf8"`
	}
	var list []pair
	for _, p := range pairs {
		list = append(list, pair{p[0], p[1]})
	}
	raw, err := asn1.MarshalWithParams(list, "set")
	if err != nil {
		t.Fatal(err)
	}
	return pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 34601, 2, 1, 1}, Value: raw}
}

// A client that presents a certificate is the user named by its subject, by the command, by SASL and with the first hello, or has
// the roles that it names; a certificate of the cluster's members authenticates no user.
func TestLoginByCertificate(t *testing.T) {
	a := newAuthority(t)
	a.issue("client", "", time.Time{}) // for the clients that wait for a server
	server := a.issue("server", "", time.Time{}, "127.0.0.1")
	person := func(name string, unit string, ext ...pkix.Extension) string {
		return a.certify(name, "", &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: []string{"Shoal"}, OrganizationalUnit: []string{unit}}, ExtraExtensions: ext})
	}
	ann, eve := person("ann, the first", "cooks"), person("eve", "cooks")
	lent := person("temp", "cooks", encodedRoles(t, [2]string{"read", "shop"}))
	o := loneServer(t, "mongod", "--dbpath", t.TempDir(), "--auth", "--tlsMode", "requireTLS", "--tlsCertificateKeyFile", server, "--tlsCAFile", a.path("ca.pem"))
	o.start()
	g := &guarded{t: t}
	first := certified(t, a, o.at(), ann, nil)
	g.must(first, "admin", "createUser", "root", "pwd", "secret", "roles", bson.A{"root"})
	root := certified(t, a, o.at(), ann, &options.Credential{Username: "root", Password: "secret", AuthSource: "admin"})
	const name = `CN=ann\, the first,OU=cooks,O=Shoal`
	read := bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}
	g.must(root, "$external", "createUser", name, "roles", bson.A{read})
	g.must(root, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})

	x509 := func(user string) *options.Credential {
		return &options.Credential{AuthMechanism: "MONGODB-X509", AuthSource: "$external", Username: user}
	}
	for _, c := range []*mongo.Client{certified(t, a, o.at(), ann, x509("")), certified(t, a, o.at(), ann, x509(name)), certified(t, a, o.at(), lent, x509(""))} {
		g.must(c, "shop", "find", "c")
		g.refused(c, "shop", "insert", "c", "documents", bson.A{bson.D{}})
	}
	if who := g.must(certified(t, a, o.at(), ann, x509("")), "admin", "connectionStatus", 1); !strings.Contains(mustJSON(t, who), `"user":"CN=ann\\, the first,OU=cooks,O=Shoal"`) {
		t.Errorf("%s", mustJSON(t, who))
	}
	// Characters beyond ASCII may be escaped in the user's name, as openssl prints them, or not.
	for subject, names := range map[string][2]string{
		"jörg": {`CN=j\C3\B6rg,OU=cooks,O=Shoal`, `CN=jörg,OU=cooks,O=Shoal`}, "山田": {`CN=\E5\B1\B1\E7\94\B0,OU=cooks,O=Shoal`, `CN=山田,OU=cooks,O=Shoal`},
	} {
		cert := person(subject, "cooks")
		for i, user := range names {
			g.must(root, "$external", "createUser", user, "roles", bson.A{read})
			for _, credential := range []*options.Credential{x509(""), x509(user)} {
				c := certified(t, a, o.at(), cert, credential)
				g.must(c, "shop", "find", "c")
				if who := mustJSON(t, g.must(c, "admin", "connectionStatus", 1)); !strings.Contains(who, strings.ReplaceAll(user, `\`, `\\`)) {
					t.Errorf("%s is %s", user, who)
				}
			}
			other := []any{"authenticate", 1, "mechanism", "MONGODB-X509", "user", names[1-i]} // not every driver sends the name
			if _, code, text := run1(certified(t, a, o.at(), cert, nil), "$external", other...); code != int(mongoerr.AuthenticationFailed) {
				t.Errorf("%s as %s, whom there is not: %d %s", user, names[1-i], code, text)
			}
			g.must(root, "$external", "dropUser", user)
		}
	}
	for what, c := range map[string]*mongo.Client{"no user": certified(t, a, o.at(), eve, x509("")), "another's name": certified(t, a, o.at(), eve, x509(name))} {
		if _, code, text := run1(c, "shop", "find", "c"); !strings.Contains(text, "no x.509 client certificate matching the user") {
			t.Errorf("%s: %d %s", what, code, text)
		}
	}
	// By SASL, and the refusals of the command.
	bare := certified(t, a, o.at(), ann, nil)
	start := []any{"saslStart", 1, "mechanism", "MONGODB-X509", "payload", []byte{}}
	if _, code, text := run1(bare, "admin", start...); code != int(mongoerr.ProtocolError) {
		t.Errorf("in another database: %d %s", code, text)
	}
	for _, user := range []string{"CN=eve,OU=cooks,O=Shoal", "ann"} {
		if _, code, text := run1(bare, "$external", "authenticate", 1, "mechanism", "MONGODB-X509", "user", user); code != int(mongoerr.AuthenticationFailed) {
			t.Errorf("a name not its own: %d %s", code, text)
		}
	}
	g.must(bare, "$external", start...)
	g.must(bare, "shop", "find", "c")
	own := certified(t, a, o.at(), server, nil)
	if _, code, text := run1(own, "$external", "authenticate", 1, "mechanism", "MONGODB-X509"); code != int(mongoerr.AuthenticationFailed) || !strings.Contains(text, "check the --clusterAuthMode flag") {
		t.Errorf("the server's own certificate: %d %s", code, text)
	}
	if _, code, text := run1(certified(t, a, o.at(), person("mal", "cooks"), x509("")), "shop", "find", "c"); code == 0 {
		t.Errorf("without a user: %d %s", code, text)
	}
	// Successful and failed logins are logged, whatever characters the name contains.
	if _, code, _ := run1(certified(t, a, o.at(), ann, nil), "$external", "authenticate", 1, "mechanism", "MONGODB-X509", "user", "x\n{\"msg\":\"forged\"}"); code != int(mongoerr.AuthenticationFailed) {
		t.Errorf("a name of two lines: %d", code)
	}
	log, err := os.ReadFile(o.logFile())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(log)) {
		var entry struct {
			Msg  string
			Attr struct{ User, Mechanism, Error string }
		}
		if json.Unmarshal([]byte(line), &entry) == nil {
			found[entry.Msg+" "+entry.Attr.User] = true
		}
	}
	for _, want := range []string{"Successfully authenticated " + name, "Successfully authenticated root", "Failed to authenticate x\n{\"msg\":\"forged\"}",
		"Failed to authenticate CN=mal,OU=cooks,O=Shoal"} {
		if !found[want] {
			t.Errorf("the log does not say: %s", want)
		}
	}
	if found["forged "] {
		t.Error("a user's name is a line of the log")
	}
	// Revoked privileges are gone for connected clients.
	known, temp := certified(t, a, o.at(), ann, x509("")), certified(t, a, o.at(), lent, x509(""))
	g.must(known, "shop", "find", "c")
	g.must(temp, "shop", "find", "c")
	g.must(root, "$external", "dropUser", name)
	g.refused(known, "shop", "find", "c")
	g.must(temp, "shop", "find", "c")
}

// A certificate that is accepted for a connection only because invalid ones are authenticates no user.
func TestInvalidCertificatesProveNobody(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	ring, err := newKeyring(tlsOptions{Mode: tlsRequire, KeyFile: a.issue("server", "", time.Time{}, "127.0.0.1"), CAFile: a.path("ca.pem"), InvalidCerts: true})
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]bool{a.issue("ann", "", time.Time{}): true, other.issue("ann", "", time.Time{}): false} {
		pair, err := readKeyPair(file, "")
		if err != nil {
			t.Fatal(err)
		}
		state := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{pair.Leaf}}
		if err := ring.now.Load().server.VerifyConnection(*state); err != nil {
			t.Errorf("the connection is refused: %v", err)
		}
		if _, err := ring.Verified(state); (err == nil) != want {
			t.Errorf("%s: %v", file, err)
		}
	}
	if _, err := ring.Verified(&tls.ConnectionState{}); err == nil {
		t.Error("no certificate is one")
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	raw, err := bson.MarshalExtJSON(v, false, false)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// A cluster changes from a key file to certificates while it runs, and members are then only those of the same organization and unit.
func TestMembersByCertificate(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.issue("client", "", time.Time{}) // for the clients that wait for a server
	member := func(name, unit string) string {
		return a.certify(name, "", &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: []string{"Shoal"}, OrganizationalUnit: []string{unit}}}, "127.0.0.1")
	}
	key := writeKey(t)
	with := func(cert string, more ...string) []string {
		return append([]string{"--tlsMode", "requireTLS", "--tlsCertificateKeyFile", cert, "--tlsCAFile", a.path("ca.pem")}, more...)
	}
	both := []string{"--keyFile", key, "--clusterAuthMode"}
	config := launchSet(t, setOptions{name: "config", role: "--configsvr", members: 1, args: with(member("a", "db"), append(both, "sendKeyFile")...)})
	shard := launchSet(t, setOptions{name: "shard", role: "--shardsvr", members: 1, args: with(member("b", "db"), append(both, "sendX509")...)})
	router := loneServer(t, append([]string{"mongos", "--configdb", config.conn()}, with(member("c", "db"), append(both, "sendX509")...)...)...)
	router.start()
	g := &guarded{t: t}
	client := member("app", "web")
	await.True(t, "the first user", func() bool {
		_, code, _ := run1(certified(t, a, router.at(), client, nil), "admin", "createUser", "root", "pwd", "secret", "roles", bson.A{"root"})
		return code == 0
	})
	login := &options.Credential{Username: "root", Password: "secret", AuthSource: "admin"}
	root := certified(t, a, router.at(), client, login)
	g.must(root, "admin", "addShard", shard.conn())
	g.must(root, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})
	// No user may have the name of a member.
	for name, want := range map[string]int{"CN=x,OU=db,O=Shoal": int(mongoerr.BadValue), "O=Shoal, OU=db, CN=x": int(mongoerr.BadValue), "CN=x,OU=web,O=Shoal": 0, "x": 0} {
		if _, code, text := run1(root, "$external", "createUser", name, "roles", bson.A{}); code != want {
			t.Errorf("user %s: %d %s", name, code, text)
		}
	}
	if r := g.must(root, "admin", "getParameter", 1, "clusterAuthMode", 1); r["clusterAuthMode"] != "sendX509" {
		t.Errorf("%v", r)
	}
	g.must(root, "admin", "setParameter", 1, "clusterAuthMode", "x509")
	if _, code, _ := run1(root, "admin", "setParameter", 1, "clusterAuthMode", "sendKeyFile"); code != int(mongoerr.BadValue) {
		t.Errorf("the way back: %d", code)
	}
	g.must(root, "shop", "find", "c")

	// A router without the key belongs to the cluster by its certificate; one of another unit does not, unless its name is allowed.
	late := func(cert string) *server {
		o := loneServer(t, append([]string{"mongos", "--configdb", config.conn()}, with(cert, "--clusterAuthMode", "x509")...)...)
		o.launch()
		return o
	}
	same := late(member("d", "db"))
	same.listens()
	g.must(certified(t, a, same.at(), client, login), "shop", "find", "c")
	foreign := member("e", "web")
	ring, err := newKeyring(tlsOptions{Mode: tlsRequire, KeyFile: foreign, CAFile: a.path("ca.pem")})
	if err != nil {
		t.Fatal(err)
	}
	proof := &command.Members{Certificates: ring}
	proof.SetMode(command.ByCertificate)
	d := newDirectory(nil, wire.PoolOptions{Handshake: command.Handshake(proof, false), Dial: wire.DialTLS(ring.outgoing)})
	defer func() { _ = d.close(context.Background()) }()
	_, err = d.ask(t.Context(), config.members[0].at(), mustDoc(t, bson.D{{Key: "_getUserCacheGeneration", Value: 1}, {Key: "$db", Value: "admin"}}))
	if mongoerr.CodeOf(err) != mongoerr.AuthenticationFailed {
		t.Errorf("a member of another unit: %v", err)
	}
	// The cluster's users are the config server's; the shard has users of its own.
	g.must(certified(t, a, shard.members[0].at(), client, nil), "admin", "createUser", "root", "pwd", "secret", "roles", bson.A{"root"})
	for _, m := range []*server{config.members[0], shard.members[0]} {
		g.must(certified(t, a, m.at(), client, login), "admin", "setParameter", 1, "tlsX509ClusterAuthDNOverride", "OU=web,O=Shoal")
	}
	web := late(foreign)
	web.listens()
	await.True(t, "the other name is allowed", func() bool {
		_, code, _ := run1(certified(t, a, web.at(), member("app2", "other"), login), "shop", "find", "c")
		return code == 0
	})
}

func TestMemberModesThatDoNotFit(t *testing.T) {
	for _, tc := range []struct {
		text string
		s    security
		tls  tlsOptions
	}{
		{"needs a key file", security{ClusterAuth: "sendKeyFile"}, tlsOptions{Mode: tlsRequire, CAFile: "x"}},
		{"need to enable TLS", security{ClusterAuth: "x509"}, tlsOptions{}},
		{"preferTLS or requireTLS", security{ClusterAuth: "x509"}, tlsOptions{Mode: tlsAllow, CAFile: "x"}},
		{"no tlsWithholdClientCertificate", security{ClusterAuth: "x509"}, tlsOptions{Mode: tlsRequire, CAFile: "x", tlsParameters: tlsParameters{Withhold: true}}},
		{"whose certificates", security{ClusterAuth: "x509"}, tlsOptions{Mode: tlsRequire, tlsParameters: tlsParameters{SystemCA: true}}},
		{"", security{ClusterAuth: "x509"}, tlsOptions{Mode: tlsRequire, CAFile: "x"}},
		{"", security{ClusterAuth: "sendKeyFile", KeyFile: "x"}, tlsOptions{Mode: tlsAllow, CAFile: "x"}},
	} {
		c := newConfig(isMongod)
		c.Security, c.TLS = tc.s, tc.tls
		if err := c.checkMembers(); err == nil && tc.text != "" || err != nil && (tc.text == "" || !strings.Contains(err.Error(), tc.text)) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
