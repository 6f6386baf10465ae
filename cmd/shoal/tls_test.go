package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/youmark/pkcs8"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// authority signs certificates in a directory of its own.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), next: 1}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of " + filepath.Base(a.dir)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		SubjectKeyId: []byte{1, 2, 3},
	}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, _ = x509.ParseCertificate(der)
	a.write("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name string, b []byte) string {
	a.t.Helper()
	if err := os.WriteFile(a.path(name), b, 0o600); err != nil {
		a.t.Fatal(err)
	}
	return a.path(name)
}

// issue writes a certificate for hosts with its key, which password encrypts where it is not empty.
func (a *authority) issue(name, password string, until time.Time, hosts ...string) string {
	a.t.Helper()
	return a.certify(name, password, &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: []string{"Shoal"}}, NotAfter: until}, hosts...)
}

// certify is issue with further fields of the certificate.
func (a *authority) certify(name, password string, c *x509.Certificate, hosts ...string) string {
	a.t.Helper()
	a.next++
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	c.SerialNumber, c.NotBefore = big.NewInt(a.next), time.Now().Add(-time.Hour)
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(24 * time.Hour)
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	block := &pem.Block{Type: "PRIVATE KEY"}
	if password == "" {
		block.Bytes, err = x509.MarshalPKCS8PrivateKey(key)
	} else {
		block.Type = "ENCRYPTED PRIVATE KEY"
		block.Bytes, err = pkcs8.MarshalPrivateKey(key, []byte(password), nil)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return a.write(name+".pem", append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(block)...))
}

// revoke writes a list with the certificates of these files.
func (a *authority) revoke(until time.Time, files ...string) string {
	a.t.Helper()
	l := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: until}
	for _, f := range files {
		pair, err := readKeyPair(f, "")
		if err != nil {
			a.t.Fatal(err)
		}
		l.RevokedCertificateEntries = append(l.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: pair.Leaf.SerialNumber, RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, l, a.cert, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.write("crl.pem", pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}))
}

// encryption returns the options that a connection string needs for a server with these arguments.
func encryption(args []string) string {
	i := slices.Index(args, "--tlsCAFile")
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("&tls=true&tlsCAFile=%s&tlsCertificateKeyFile=%s", args[i+1], filepath.Join(filepath.Dir(args[i+1]), "client.pem"))
}

// A cluster of processes that use nothing but TLS, with clients and among each other: a set of two members, a config server
// and a router; certificates change while it runs.
func TestTLSCluster(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	tomorrow := time.Now().Add(24 * time.Hour)
	server := a.issue("server", "", tomorrow, "127.0.0.1", "localhost")
	a.issue("client", "", tomorrow)
	secure := []string{"--tlsMode", "requireTLS", "--tlsCertificateKeyFile", server, "--tlsCAFile", a.path("ca.pem")}
	c := launchCluster(t, clusterOptions{shards: []int{2}, args: secure})
	router := c.routers[0]
	admin := router.direct.Database("admin")
	coll := router.direct.Database("test").Collection("c")
	docs := make([]any, 1000)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}, {Key: "s", Value: strings.Repeat("x", 1000)}}
	}
	if _, err := coll.InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
	if n, err := coll.CountDocuments(t.Context(), bson.D{}); err != nil || n != 1000 {
		t.Fatalf("%d, %v", n, err)
	}
	var status struct {
		Security          bson.M           `bson:"security"`
		TransportSecurity map[string]int64 `bson:"transportSecurity"`
	}
	if err := admin.RunCommand(t.Context(), bson.D{{Key: "serverStatus", Value: 1}}).Decode(&status); err != nil {
		t.Fatal(err)
	}
	if s := status.Security; s["SSLServerSubjectName"] != "CN=server,O=Shoal" || s["SSLServerHasCertificateAuthority"] != true || status.TransportSecurity["1.3"] == 0 {
		t.Errorf("serverStatus: %+v", status)
	}
	refusedConnections(t, a, router.at())

	open := dialSecure(t, a, router.at())
	ping := bson.E{Key: "ping", Value: 1}
	if got := open.ask(ping); got != "ok" {
		t.Fatal(got)
	}
	a.issue("server", "", tomorrow, "127.0.0.1", "new.example")
	if err := admin.RunCommand(t.Context(), bson.D{{Key: "rotateCertificates", Value: 1}}).Err(); err != nil {
		t.Fatal(err)
	}
	if names := serverNames(t, a, router.at()); !slices.Equal(names, []string{"new.example"}) {
		t.Errorf("after rotateCertificates the server is %v", names)
	}
	a.write("server.pem", []byte("no certificate"))
	err := admin.RunCommand(t.Context(), bson.D{{Key: "rotateCertificates", Value: 1}}).Err()
	if mongoerr.Code(codeOf(err)) != mongoerr.InvalidSSLConfiguration {
		t.Errorf("rotateCertificates with a damaged file: %v", err)
	}
	if names := serverNames(t, a, router.at()); !slices.Equal(names, []string{"new.example"}) {
		t.Errorf("after a failed rotateCertificates the server is %v", names)
	}
	if got := open.ask(ping); got != "ok" {
		t.Errorf("a connection from before rotateCertificates: %s", got)
	}
}

// The subject that serverStatus shows is in the form in which users and members are named, also where it has attributes for which Go knows no name.
func TestServersSubjectInServerStatus(t *testing.T) {
	a := newAuthority(t)
	cert := a.certify("server", "", &x509.Certificate{Subject: pkix.Name{CommonName: "db, jörg's", Organization: []string{"Shoal"}, ExtraNames: []pkix.AttributeTypeAndValue{
		{Type: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 1}, Value: "ops@example.org"}}}}, "127.0.0.1")
	k, err := newKeyring(tlsOptions{Mode: tlsAllow, KeyFile: cert, CAFile: a.path("ca.pem")})
	if err != nil {
		t.Fatal(err)
	}
	const want = `emailAddress=ops@example.org,CN=db\, j\C3\B6rg's,O=Shoal`
	if got := value.Lookup(value.Doc(k.fields()...), "SSLServerSubjectName").Str(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A certificate that the other side of a connection presents, and that expires soon, causes a warning, in both directions; one that lasts does not, and
// with the threshold 0 none does.
func TestPeersWhoseCertificatesExpire(t *testing.T) {
	a := newAuthority(t)
	hours := func(n int) time.Time { return time.Now().Add(time.Duration(n) * time.Hour) }
	soon, later := a.issue("peer that expires", "", hours(30), "127.0.0.1"), a.issue("peer that lasts", "", hours(24*40), "127.0.0.1")
	ring := func(cert string, days int64) *keyring {
		k, err := newKeyring(tlsOptions{Mode: tlsRequire, KeyFile: cert, CAFile: a.path("ca.pem")})
		if err != nil {
			t.Fatal(err)
		}
		k.near.Store(days)
		return k
	}
	for _, tc := range []struct {
		server, client *keyring
		want           int
	}{
		{ring(later, 30), ring(soon, 30), 1}, {ring(soon, 30), ring(later, 30), 1}, {ring(soon, 30), ring(soon, 30), 2}, {ring(soon, 1), ring(soon, 2), 1},
		{ring(later, 30), ring(later, 30), 0}, {ring(soon, 0), ring(soon, 0), 0},
	} {
		before, _, _ := console.Std.Ring("global")
		if got := meet(t, tc.server.incoming().Config(), tc.client.outgoing("127.0.0.1")); got != "" {
			t.Fatal(got)
		}
		after, lines, _ := console.Std.Ring("global")
		warned := 0
		for _, line := range lines[max(0, len(lines)-(after-before)):] {
			if strings.Contains(line, "Peer certificate expires soon") && strings.Contains(line, `"peerSubjectName":"CN=peer that expires,O=Shoal","days":1`) {
				warned++
			}
		}
		if warned != tc.want {
			t.Errorf("%d warnings, want %d", warned, tc.want)
		}
	}
}

// dialSecure opens a connection that is encrypted and has a client's certificate.
func dialSecure(t *testing.T, a *authority, at string) *rawConn {
	t.Helper()
	pair, err := readKeyPair(a.path("client.pem"), "")
	if err != nil {
		t.Fatal(err)
	}
	c := dialRaw(t, at)
	c.Conn = tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}})
	_ = c.SetDeadline(time.Time{})
	return c
}

// refusedConnections tries to connect without the required credentials.
func refusedConnections(t *testing.T, a *authority, at string) {
	t.Helper()
	stranger := newAuthority(t)
	foreign := stranger.issue("client", "", time.Now().Add(time.Hour))
	for name, query := range map[string]string{
		"plain": "", "without a certificate": "&tls=true&tlsCAFile=" + a.path("ca.pem"),
		"a certificate of a stranger": "&tls=true&tlsCAFile=" + a.path("ca.pem") + "&tlsCertificateKeyFile=" + foreign,
	} {
		c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + at + "/?directConnection=true&serverSelectionTimeoutMS=500" + query))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Ping(t.Context(), nil); err == nil {
			t.Errorf("%s: got in", name)
		}
		_ = c.Disconnect(t.Context())
	}
}

// serverNames returns the names in the certificate that a server presents.
func serverNames(t *testing.T, a *authority, at string) []string {
	t.Helper()
	pair, err := readKeyPair(a.path("client.pem"), "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.Dial("tcp", at, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].DNSNames
}

// The outcome of a handshake between two keyrings, by their options; want is a part of either side's error.
func TestTrust(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	soon := time.Now().Add(time.Hour)
	good, other := a.issue("good", "", soon, "127.0.0.1"), b.issue("other", "", soon, "127.0.0.1")
	named, late := a.issue("127.0.0.1", "", soon), a.issue("late", "", time.Now().Add(-time.Minute), "127.0.0.1")
	elsewhere, locked := a.issue("elsewhere", "", soon, "db.example"), a.issue("locked", "secret", soon, "127.0.0.1")
	revoked := a.issue("revoked", "", soon, "127.0.0.1")
	crl, ca := a.revoke(soon, revoked), a.path("ca.pem")
	base := tlsOptions{Mode: tlsRequire, KeyFile: good, CAFile: ca}
	with := func(f func(o *tlsOptions)) tlsOptions {
		o := base
		f(&o)
		return o
	}
	for name, c := range map[string]struct {
		server, client tlsOptions
		want           string
	}{
		"good":                          {base, base, ""},
		"encrypted key":                 {with(func(o *tlsOptions) { o.KeyFile, o.KeyPassword = locked, "secret" }), base, ""},
		"common name":                   {with(func(o *tlsOptions) { o.KeyFile = named }), base, ""},
		"name of another host":          {with(func(o *tlsOptions) { o.KeyFile = elsewhere }), base, "IP SANs"},
		"names do not matter":           {with(func(o *tlsOptions) { o.KeyFile = elsewhere }), with(func(o *tlsOptions) { o.InvalidHosts = true }), ""},
		"expired server":                {with(func(o *tlsOptions) { o.KeyFile = late }), base, "expired"},
		"expired client":                {base, with(func(o *tlsOptions) { o.KeyFile = late }), "expired"},
		"stranger":                      {base, with(func(o *tlsOptions) { o.KeyFile = other }), "didn't provide a certificate"},
		"stranger, certificates unread": {with(func(o *tlsOptions) { o.InvalidCerts = true }), with(func(o *tlsOptions) { o.KeyFile = other }), ""},
		"stranger of the cluster's CA":  {with(func(o *tlsOptions) { o.ClusterCAFile = b.path("ca.pem") }), with(func(o *tlsOptions) { o.ClusterFile = other }), ""},
		"none shown":                    {base, with(func(o *tlsOptions) { o.Withhold = true }), "didn't provide a certificate"},
		"none needed":                   {with(func(o *tlsOptions) { o.NoClientCerts = true }), with(func(o *tlsOptions) { o.Withhold = true }), ""},
		"revoked client":                {with(func(o *tlsOptions) { o.CRL = crl }), with(func(o *tlsOptions) { o.KeyFile = revoked }), "revoked"},
		"revoked server":                {with(func(o *tlsOptions) { o.KeyFile = revoked }), with(func(o *tlsOptions) { o.CRL = crl }), "revoked"},
		"not revoked":                   {with(func(o *tlsOptions) { o.CRL = crl }), base, ""},
		"no version in common":          {with(func(o *tlsOptions) { o.Disabled = "TLS1_0,TLS1_1,TLS1_2" }), with(func(o *tlsOptions) { o.Disabled = "TLS1_3" }), "protocol version"},
		"old version":                   {with(func(o *tlsOptions) { o.Disabled = "none" }), with(func(o *tlsOptions) { o.Disabled = "TLS1_3,TLS1_2" }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			server, err := newKeyring(c.server)
			if err != nil {
				t.Fatal(err)
			}
			client, err := newKeyring(c.client)
			if err != nil {
				t.Fatal(err)
			}
			got := meet(t, server.incoming().Config(), client.outgoing("127.0.0.1"))
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// meet runs a handshake and exchanges a line; it returns the errors of both sides.
func meet(t *testing.T, server, client *tls.Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	said := make(chan string, 1)
	go func() {
		_, err := tls.Server(far, server).Write([]byte("welcome\n"))
		_ = far.(*net.TCPConn).CloseWrite()
		if err != nil {
			said <- err.Error()
			return
		}
		said <- ""
	}()
	line, err := bufio.NewReader(tls.Client(near, client)).ReadString('\n')
	_ = near.Close()
	text := <-said
	if err != nil {
		text += " " + err.Error()
	}
	if line == "welcome\n" && err == nil && text == "" {
		return ""
	}
	return text
}

func TestTLSOptionsThatDoNotFit(t *testing.T) {
	a := newAuthority(t)
	key, ca := a.issue("server", "secret", time.Now().Add(time.Hour), "127.0.0.1"), a.path("ca.pem")
	for name, c := range map[string]struct {
		o    tlsOptions
		want string
	}{
		"no mode":        {tlsOptions{Any: true, CAFile: ca}, "need to enable TLS"},
		"no key":         {tlsOptions{Mode: tlsAllow, CAFile: ca}, "need tlsCertificateKeyFile"},
		"no authority":   {tlsOptions{Mode: tlsAllow, KeyFile: key}, "chain of trust"},
		"wrong password": {tlsOptions{Mode: tlsAllow, KeyFile: key, CAFile: ca, KeyPassword: "no"}, "password"},
		"no such file":   {tlsOptions{Mode: tlsAllow, KeyFile: key + "x", CAFile: ca}, "no such file"},
		"not a key":      {tlsOptions{Mode: tlsAllow, KeyFile: ca, CAFile: ca}, "no private key"},
		"gap":            {tlsOptions{Mode: tlsAllow, KeyFile: key, CAFile: ca, Disabled: "TLS1_2"}, "gap"},
		"nothing spoken": {tlsOptions{Mode: tlsAllow, KeyFile: key, CAFile: ca, Disabled: "TLS1_0,TLS1_1,TLS1_2,TLS1_3"}, "no version"},
		"no such name":   {tlsOptions{Mode: tlsAllow, KeyFile: key, CAFile: ca, Disabled: "SSL3"}, "Unrecognized disabledProtocols 'SSL3'"},
		"no CRL":         {tlsOptions{Mode: tlsAllow, KeyFile: key, KeyPassword: "secret", CAFile: ca, CRL: ca}, "revocation list"},
	} {
		err := c.o.check(nil)
		if err == nil {
			_, err = newKeyring(c.o)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An upgrade while the server runs: plain clients are accepted until the mode is requireTLS, and there is no way back.
func TestTLSModeMovesOn(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	key := a.issue("server", "", time.Now().Add(time.Hour), "127.0.0.1")
	a.issue("client", "", time.Now().Add(time.Hour))
	s := loneServer(t, "mongod", "--dbpath", t.TempDir(), "--tlsMode", "allowTLS", "--tlsCertificateKeyFile", key, "--tlsCAFile", a.path("ca.pem"))
	s.start()
	admin := s.direct.Database("admin")
	plain := connect(t, "mongodb://"+s.at()+"/?directConnection=true&serverSelectionTimeoutMS=500")
	for _, c := range []struct {
		mode  string
		moves bool
	}{{"requireTLS", false}, {"preferTLS", true}, {"allowTLS", false}, {"requireTLS", true}, {"disabled", false}} {
		err := admin.RunCommand(t.Context(), bson.D{{Key: "setParameter", Value: 1}, {Key: "tlsMode", Value: c.mode}}).Err()
		if (err == nil) != c.moves {
			t.Errorf("to %s: %v", c.mode, err)
		}
	}
	if err := plain.Ping(t.Context(), nil); err == nil {
		t.Error("a plain client got in with requireTLS")
	}
	if err := s.direct.Ping(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
