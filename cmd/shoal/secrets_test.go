package main

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
)

// No password, message of an authentication or stored credential is in the log (every command is logged twice), the profiler, the audit log, the
// operations that wait, an error's text, or the command line that the server reports.
func TestSecretsAreShownNowhere(t *testing.T) {
	const secret = "s3cr3t4711"
	plain := "\x00zed\x00" + secret
	forms := []string{secret, base64.StdEncoding.EncodeToString([]byte(plain))}
	a := newAuthority(t)
	a.issue("client", "", time.Time{}, "127.0.0.1") // for the one that waits for the server
	cert := a.issue("server", secret, time.Time{}, "127.0.0.1")
	audit := filepath.Join(t.TempDir(), "audit.json")
	s := loneServer(t, "mongod", "--memory", "--auth", "--slowms", "-1", "--profile", "2", "-vv", "--auditDestination", "file", "--auditFormat", "JSON", "--auditPath", audit,
		"--setParameter", "auditAuthorizationSuccess=true", "--tlsMode", "allowTLS", "--tlsCertificateKeyFile", cert, "--tlsCertificateKeyFilePassword", secret,
		"--tlsCAFile", a.path("ca.pem"))
	s.start()
	d := func(fields ...any) bson.D {
		doc := bson.D{}
		for i := 0; i < len(fields); i += 2 {
			doc = append(doc, bson.E{Key: fields[i].(string), Value: fields[i+1]})
		}
		return doc
	}
	shows := func(what, text string) {
		t.Helper()
		for _, form := range forms {
			if at := strings.Index(text, form); at >= 0 {
				t.Errorf("%s shows a secret: %.300q", what, text[max(0, at-200):])
			}
		}
	}
	connect := func() stranger {
		c := stranger{dialRaw(t, s.at())}
		_ = c.SetDeadline(time.Time{})
		return c
	}
	nobody, boss, other := connect(), connect(), connect()
	nobody.send(d("createUser", "root", "pwd", secret, "roles", bson.A{"root"}, "$db", "admin"))
	user := func(name, db string, rest ...any) bson.D {
		return d(append([]any{"createUser", name, "roles", bson.A{}, "$db", db}, rest...)...)
	}
	credentials := d("SCRAM-SHA-256", d("iterationCount", 15000, "salt", "AAAA", "storedKey", secret, "serverKey", secret))
	sent := []bson.D{
		user("zed", "shop", "pwd", secret), user("zed", "shop", "pwd", secret), user("zoe", "shop", "pwd", bson.A{secret}), user("zoe", "shop", "pwd", d("a", secret)),
		user("zoe", "shop", "pwd", secret, "bogus", 1), user("zoe", "shop", "pwd", secret, "pwd", secret), user("", "shop", "pwd", secret), user("zoe", "shop", "pwd", secret, "mechanisms", bson.A{"x"}),
		d("updateUser", "zed", "pwd", secret, "$db", "shop"), d("updateUser", "none", "pwd", secret, "$db", "shop"), d("updateUser", "zed", "pwd", 1, "password", secret, "$db", "shop"),
		d("explain", user("zoe", "shop", "pwd", secret), "$db", "shop"),
		d("applyOps", bson.A{d("op", "c", "ns", "shop.$cmd", "o", user("zoe", "shop", "pwd", secret))}, "$db", "admin"),
		d("applyOps", bson.A{d("op", "c", "ns", "admin.$cmd", "o", d("applyOps", bson.A{d("op", "c", "ns", "shop.$cmd", "o", user("zoe", "shop", "pwd", secret))}))}, "$db", "admin"),
		d("authenticate", 1, "mechanism", "MONGODB-CR", "user", "zed", "pwd", secret, "$db", "shop"),
		d("saslStart", 1, "mechanism", "PLAIN", "payload", bson.Binary{Data: []byte(plain)}, "$db", "$external"),
		d("saslStart", 1, "mechanism", "SCRAM-SHA-256", "payload", secret, "$db", "admin"),
		d("saslContinue", 1, "conversationId", 1, "payload", bson.Binary{Data: []byte(plain)}, "$db", "admin"),
		d("hello", 1, "speculativeAuthenticate", d("saslStart", 1, "mechanism", "PLAIN", "payload", bson.Binary{Data: []byte(plain)}, "db", "$external"), "$db", "admin"),
		d("insert", "system.users", "documents", bson.A{d("_id", "shop.eve", "user", "eve", "db", "shop", "credentials", credentials, "roles", bson.A{})}, "$db", "admin"),
		d("update", "system.users", "updates", bson.A{d("q", d("_id", "shop.zed"), "u", d("$set", d("credentials", credentials)))}, "$db", "admin"),
		d("findAndModify", "system.users", "query", d("_id", "shop.zed"), "update", d("$set", d("credentials", credentials)), "$db", "admin"),
	}
	boss.logIn("root", secret)
	other.logIn("root", secret)
	for who, c := range map[string]stranger{"nobody": nobody, "root": boss} {
		for _, cmd := range sent {
			name := who + "'s " + cmd[0].Key
			reply := c.send(cmd)
			if cmd[0].Key != "findAndModify" || !fine(reply) { // it returns the document
				shows("the reply to "+name, reply.String())
			}
		}
	}

	if reply := boss.send(d("fsync", 1, "lock", true, "$db", "admin")); !fine(reply) {
		t.Fatal(reply)
	}
	waits := make(chan bson.Raw, 1)
	go func() { waits <- other.send(user("late", "shop", "pwd", secret)) }()
	await.True(t, "createUser waits", func() bool {
		reply := boss.send(d("aggregate", 1, "pipeline", bson.A{d("$currentOp", d("allUsers", true, "idleConnections", true))}, "cursor", d(), "$db", "admin")).String()
		shows("$currentOp", reply)
		return strings.Contains(reply, `"createUser"`)
	})
	boss.send(d("fsyncUnlock", 1, "$db", "admin"))
	<-waits

	for _, cmd := range []bson.D{d("getCmdLineOpts", 1), d("getLog", "global"), d("getLog", "startupWarnings"), d("serverStatus", 1), d("getParameter", "*"), d("currentOp", 1)} {
		shows(cmd[0].Key, boss.send(append(cmd, bson.E{Key: "$db", Value: "admin"})).String())
	}
	profiled := ""
	for _, db := range []string{"admin", "shop"} {
		profiled += boss.send(d("find", "system.profile", "batchSize", 1000, "$db", db)).String()
	}
	audited, _ := os.ReadFile(audit)
	for what, text := range map[string]string{"the log": string(s.log()), "the profiler": profiled, "the audit log": string(audited)} {
		shows(what, text)
		if !strings.Contains(text, "createUser") {
			t.Errorf("%s has no createUser", what)
		}
	}
}

// Passwords on the command line and in a configuration file, in any spelling, are not among the options that the server shows.
func TestPasswordsOfOptionsAreHidden(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "conf")
	if err := os.WriteFile(conf, []byte("net: {tls: {clusterPassword: s3cr3t}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := []string{"--tlsMode", "requireTLS", "--tlsCertificateKeyFile", "k", "--tlsCAFile", "c"}
	for _, args := range [][]string{{"--tlsCertificateKeyFilePassword", "s3cr3t"}, {"--tlsCertificateKeyFilePassword=s3cr3t"}, {"--tlsClusterPassword", "s3cr3t"},
		{"--sslPEMKeyPassword", "s3cr3t"}, {"--sslClusterPassword=s3cr3t"}, {"--config", conf}} {
		c, err := parse(isMongod, append(args, base...))
		if err != nil {
			t.Fatal(args, err)
		}
		shown := strings.Join(c.Argv, " ") + value.ShowDoc(c.Parsed)
		if strings.Contains(shown, "s3cr3t") || !strings.Contains(shown, hiddenValue) || c.TLS.KeyPassword+c.TLS.ClusterPassword != "s3cr3t" {
			t.Errorf("%v: %s", args, shown)
		}
	}
}
