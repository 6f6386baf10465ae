package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xdg-go/scram"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// guarded is a deployment that requires authorization.
type guarded struct {
	t   *testing.T
	uri string
}

func startGuarded(t *testing.T, topology string) *guarded {
	t.Helper()
	return startGuardedWith(t, topology, func(*config) {})
}

func startGuardedWith(t *testing.T, topology string, with func(c *config)) *guarded {
	t.Helper()
	h := startHere(t, func(c *config) {
		c.Topology, c.Security.Auth = topology, true
		with(c)
	})
	return &guarded{t: t, uri: h.URI}
}

// root creates the first user, root with the password "secret", and returns a client of it.
func (g *guarded) root() *mongo.Client {
	g.t.Helper()
	g.must(g.client("", "", ""), "admin", "createUser", "root", "pwd", "secret", "roles", bson.A{"root"})
	return g.client("root", "secret", "")
}

// client connects as a user; without authentication if the name is empty.
func (g *guarded) client(user, password, mechanism string) *mongo.Client {
	g.t.Helper()
	return g.connect("admin", user, password, mechanism)
}

// clientOf connects as a user of another database than admin.
func (g *guarded) clientOf(db, user, password string) *mongo.Client {
	g.t.Helper()
	return g.connect(db, user, password, "")
}

func (g *guarded) connect(db, user, password, mechanism string) *mongo.Client {
	g.t.Helper()
	o := options.Client().ApplyURI(g.uri).SetMaxPoolSize(1).SetMinPoolSize(0)
	if user != "" {
		o.SetAuth(options.Credential{Username: user, Password: password, AuthSource: db, AuthMechanism: mechanism})
	}
	c, err := mongo.Connect(o)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

// run1 returns the reply of a command, and the code and text of its error.
func run1(c *mongo.Client, db string, cmd ...any) (reply bson.M, code int, text string) {
	var doc bson.D
	for i := 0; i < len(cmd); i += 2 {
		doc = append(doc, bson.E{Key: cmd[i].(string), Value: cmd[i+1]})
	}
	err := c.Database(db).RunCommand(context.Background(), doc).Decode(&reply)
	var ce mongo.CommandError
	if errors.As(err, &ce) && ce.Code != 0 { // the driver makes one without a code of a broken connection
		return reply, int(ce.Code), ce.Message
	}
	if err != nil {
		return reply, -1, err.Error()
	}
	return reply, 0, ""
}

// must runs a command that has to succeed.
func (g *guarded) must(c *mongo.Client, db string, cmd ...any) bson.M {
	g.t.Helper()
	reply, code, text := run1(c, db, cmd...)
	if code != 0 {
		g.t.Fatalf("%v: %d %s", cmd, code, text)
	}
	return reply
}

// refused runs a command that has to be refused with 13, and returns the error's text.
func (g *guarded) refused(c *mongo.Client, db string, cmd ...any) string {
	g.t.Helper()
	_, code, text := run1(c, db, cmd...)
	if code != int(mongoerr.Unauthorized) {
		g.t.Errorf("%v: %d %s", cmd, code, text)
	}
	return text
}

var topologies = []string{"standalone", "replset", "sharded"}

// The life of a user, on each topology: the localhost exception, both mechanisms, what roles allow, and what they do not.
func TestUsers(t *testing.T) {
	for _, topology := range topologies {
		t.Run(topology, func(t *testing.T) {
			g := startGuarded(t, topology)
			nobody := g.client("", "", "")
			if text := g.refused(nobody, "shop", "find", "c"); text != "Command find requires authentication" {
				t.Error(text)
			}
			g.refused(nobody, "shop", "createUser", "a", "pwd", "a", "roles", bson.A{})
			g.refused(nobody, "shop", "insert", "c", "documents", bson.A{bson.D{}})
			g.must(nobody, "admin", "createUser", "root", "pwd", "secret", "roles", bson.A{"root"})
			g.refused(nobody, "admin", "createUser", "root2", "pwd", "secret", "roles", bson.A{"root"})
			if text := g.refused(nobody, "admin", "createUser", 1); text != "Command createUser requires authentication" { // it is not even read
				t.Error(text)
			}

			root := g.client("root", "secret", "")
			g.must(root, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}}, bson.D{{Key: "_id", Value: 3}}})
			g.must(root, "other", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})
			g.must(root, "admin", "createUser", "ann", "pwd", "pw", "roles", bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}})
			for _, mech := range auth.Mechanisms {
				ann := g.client("ann", "pw", mech)
				g.must(ann, "shop", "find", "c")
				if text := g.refused(ann, "shop", "delete", "c", "deletes", bson.A{}); !strings.HasPrefix(text, `not authorized on shop to execute command { delete: "c", `) {
					t.Error(text)
				}
				g.refused(ann, "other", "find", "c")
				g.refused(ann, "admin", "find", "system.users")
				g.refused(ann, "admin", "createUser", "x", "pwd", "x", "roles", bson.A{})
				g.refused(ann, "admin", "grantRolesToUser", "ann", "roles", bson.A{"root"})
				g.refused(ann, "admin", "_getUserCacheGeneration", 1)
				g.refused(ann, "admin", "shutdown", 1)
				if names, err := ann.ListDatabaseNames(context.Background(), bson.D{}); err != nil || len(names) != 1 || names[0] != "shop" {
					t.Errorf("ann sees the databases %v, %v", names, err)
				}
			}
			for _, who := range [][2]string{{"ann", "wrong"}, {"nobody", "pw"}} {
				for _, mech := range auth.Mechanisms {
					_, code, text := run1(g.client(who[0], who[1], mech), "shop", "find", "c")
					if code != int(mongoerr.AuthenticationFailed) || text != "Authentication failed." {
						t.Errorf("%v by %s: %d %s", who, mech, code, text)
					}
				}
			}
		})
	}
}

// On open connections, revoked privileges are lost and granted ones gained at the next request.
func TestChangesReachOpenConnections(t *testing.T) {
	for _, topology := range []string{"standalone", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			g := startGuarded(t, topology)
			root := g.root()
			var docs bson.A
			for i := range 10 {
				docs = append(docs, bson.D{{Key: "_id", Value: i}})
			}
			g.must(root, "shop", "insert", "c", "documents", docs)
			reads := bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: "shop"}, {Key: "collection", Value: "c"}}}, {Key: "actions", Value: bson.A{"find"}}}}
			g.must(root, "admin", "createRole", "reader", "privileges", reads, "roles", bson.A{})
			g.must(root, "admin", "createUser", "ann", "pwd", "pw", "roles", bson.A{})
			g.must(root, "admin", "createUser", "bob", "pwd", "pw", "roles", bson.A{"reader"})
			ann, bob := g.client("ann", "pw", ""), g.client("bob", "pw", "")
			g.refused(ann, "shop", "find", "c")
			g.must(root, "admin", "grantRolesToUser", "ann", "roles", bson.A{"reader"})
			open := g.must(ann, "shop", "find", "c", "batchSize", 2)
			id := open["cursor"].(bson.D)[1].Value
			for _, e := range open["cursor"].(bson.D) {
				if e.Key == "id" {
					id = e.Value
				}
			}
			// A cursor is its user's own, whatever others may read.
			g.refused(bob, "shop", "getMore", id, "collection", "c")
			g.refused(bob, "shop", "killCursors", "c", "cursors", bson.A{id})
			g.must(root, "admin", "revokePrivilegesFromRole", "reader", "privileges", reads)
			g.refused(ann, "shop", "find", "c")
			g.must(root, "admin", "grantPrivilegesToRole", "reader", "privileges", reads)
			g.must(ann, "shop", "find", "c")
			g.must(root, "admin", "dropRole", "reader")
			g.refused(ann, "shop", "find", "c")
			g.must(root, "admin", "dropUser", "ann")
			if text := g.refused(ann, "shop", "getMore", id, "collection", "c"); text != "Command getMore requires authentication" {
				t.Error(text)
			}
			// A user who is recreated under the same name is a different one.
			g.must(root, "admin", "createUser", "ann", "pwd", "other", "roles", bson.A{"root"})
			g.refused(ann, "shop", "find", "c")
		})
	}
}

// No client becomes a member by claiming to be one, and only members may send what is reserved for members.
func TestMembersHaveToAuthenticate(t *testing.T) {
	for _, topology := range topologies {
		t.Run(topology, func(t *testing.T) {
			g := startGuarded(t, topology)
			nobody := g.client("", "", "")
			member := bson.D{{Key: "minWireVersion", Value: 27}, {Key: "maxWireVersion", Value: 27}}
			g.must(nobody, "admin", "hello", 1, "internalClient", member)
			g.refused(nobody, "shop", "find", "c")
			g.refused(nobody, "admin", "_getUserCacheGeneration", 1)
			g.must(nobody, "admin", "createUser", "root", "pwd", "secret", "roles", bson.A{"root"})
			root := g.client("root", "secret", "")
			g.must(root, "admin", "hello", 1, "internalClient", member)
			g.refused(root, "admin", "_getUserCacheGeneration", 1)
			for _, field := range []string{"shardVersion", "databaseVersion"} {
				g.refused(root, "shop", "find", "c", field, bson.D{})
			}
			g.refused(root, "shop", "aggregate", "c", "pipeline", bson.A{}, "cursor", bson.D{}, "needsMerge", true)
			g.refused(root, "shop", "explain", bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{}}, {Key: "cursor", Value: bson.D{}}, {Key: "fromRouter", Value: true}})
			g.refused(root, "shop", "aggregate", "c", "pipeline", bson.A{}, "cursor", bson.D{}, "runtimeConstants", bson.D{})
			g.must(root, "admin", "createUser", "ann", "pwd", "pw", "roles", bson.A{"readWriteAnyDatabase"})
			raw := g.raw("ann", "pw")
			session := bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}
			if err := raw(bson.D{{Key: "find", Value: "c"}, {Key: "lsid", Value: session}, {Key: "$db", Value: "shop"}}); err != nil {
				t.Error(err)
			}
			others := append(session, bson.E{Key: "uid", Value: bson.Binary{Data: make([]byte, 32)}})
			if err := raw(bson.D{{Key: "find", Value: "c"}, {Key: "lsid", Value: others}, {Key: "$db", Value: "shop"}}); mongoerr.CodeOf(err) != mongoerr.Unauthorized {
				t.Errorf("a user takes the session of another: %v", err)
			}
			child := append(session, bson.E{Key: "txnUUID", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}})
			if err := raw(bson.D{{Key: "find", Value: "c"}, {Key: "lsid", Value: child}, {Key: "$db", Value: "shop"}}); mongoerr.CodeOf(err) != mongoerr.Unauthorized {
				t.Errorf("a user takes the session of an internal transaction: %v", err)
			}
			// A time with a forged signature is refused.
			future := bson.D{{Key: "clusterTime", Value: bson.Timestamp{T: uint32(time.Now().Unix()) + 1000, I: 1}}, {Key: "signature", Value: bson.D{{Key: "hash", Value: bson.Binary{Data: make([]byte, 20)}}, {Key: "keyId", Value: int64(0)}}}}
			err := raw(bson.D{{Key: "find", Value: "c"}, {Key: "$clusterTime", Value: future}, {Key: "$db", Value: "shop"}})
			if topology != "standalone" && mongoerr.CodeOf(err) != mongoerr.KeyNotFound {
				t.Errorf("a time without a signature: %v", err)
			}
		})
	}
}

// serverStatus counts the attempts to authenticate by mechanism and kind, and those that succeed.
func TestLoginsAreCounted(t *testing.T) {
	g := startGuarded(t, "standalone")
	g.root()
	s := g.stranger()
	s.logIn("root", "secret")
	counts := func() (out [5]int64) {
		auth := s.send(bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}}).Lookup("security", "authentication").Document()
		mech := auth.Lookup("mechanisms", "SCRAM-SHA-256").Document()
		for i, at := range [][]string{{"speculativeAuthenticate", "received"}, {"speculativeAuthenticate", "successful"}, {"authenticate", "received"}, {"authenticate", "successful"}} {
			out[i] = mech.Lookup(at...).AsInt64()
		}
		out[4] = auth.Lookup("saslSupportedMechsReceived").AsInt64()
		return out
	}
	before := counts()
	g.unproved(t, "root") // one attempt that fails, and one hello
	g.stranger().logIn("root", "secret")
	g.must(g.client("root", "secret", "SCRAM-SHA-256"), "admin", "ping", 1) // the driver attempts it with its hellos, on two connections
	after := counts()
	for i, want := range [5]int64{1, 1, 2, 1, 1} {
		if got := after[i] - before[i]; got < want || i > 1 && got != want {
			t.Errorf("number %d: %v, then %v", i, before, after)
		}
	}
}

// Every command of every role has a row in the table of the privileges of commands, and those before authentication say so in both
// tables.
func TestEveryCommandHasARule(t *testing.T) {
	for _, topology := range []string{"standalone", "sharded"} {
		c := newConfig(isStart)
		c.Listen, c.Memory = []string{"127.0.0.1:0"}, true
		a, err := newAssembly(c, newHost(isStart))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = a.stop(context.Background()) }()
		if topology == "sharded" {
			err = a.sharded()
		} else {
			err = a.single(false)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range a.services {
			for _, spec := range s.Table.Specs() {
				rule := auth.RuleFor(spec.Name)
				switch {
				case rule == nil:
					t.Errorf("command %s has no row", spec.Name)
				case rule.Open != spec.NoAuth:
					t.Errorf("command %s: open is %v in the table of rules, %v in that of commands", spec.Name, rule.Open, spec.NoAuth)
				}
			}
		}
	}
}

// A key file that others may read, or that holds no key, is refused.
func TestBadKeyFilesEndTheStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("abcdefgh"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := newConfig(isMongod)
	c.Security.KeyFile = path
	if _, err := newAssembly(c, newHost(isStart)); err == nil || !strings.Contains(err.Error(), "too open") {
		t.Errorf("%v", err)
	}
}

// Two processes with the same key file form a cluster, which a process with another key cannot join. A set whose
// members authenticate can be reached by processes that have the key, and by no others.
func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	keys := map[string]string{"key": "onekeyonekeyonekey", "both": "- otherotherother\n- onekeyonekeyonekey\n", "wrong": "otherotherother"}
	for name, text := range keys {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start := func(key string) *directory {
		k, err := auth.ReadKeyFile(filepath.Join(dir, key))
		if err != nil {
			t.Fatal(err)
		}
		d := newDirectory(nil, wire.PoolOptions{Handshake: command.Handshake(&command.Members{Key: k}, false)})
		t.Cleanup(func() { _ = d.close(context.Background()) })
		return d
	}
	c := newConfig(isStart)
	c.Listen, c.Memory, c.Topology = []string{"127.0.0.1:0"}, true, "replset"
	c.Security.KeyFile = filepath.Join(dir, "key")
	r, err := startCluster(c, newHost(isStart))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Stop(context.Background()) }()
	ask := func(d *directory) error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_, err := d.ask(ctx, r.Addrs[0].String(), mustDoc(t, bson.D{{Key: "_getUserCacheGeneration", Value: 1}, {Key: "$db", Value: "admin"}}))
		return err
	}
	for _, key := range []string{"key", "both"} {
		if err := ask(start(key)); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	if err := ask(start("wrong")); mongoerr.CodeOf(err) != mongoerr.AuthenticationFailed {
		t.Errorf("a wrong key: %v", err)
	}
	without := newDirectory(nil, wire.PoolOptions{Handshake: command.Handshake(nil, false)})
	defer func() { _ = without.close(context.Background()) }()
	if err := ask(without); mongoerr.CodeOf(err) != mongoerr.Unauthorized {
		t.Errorf("no key: %v", err)
	}
}

func mustDoc(t *testing.T, d bson.D) []byte {
	t.Helper()
	b, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// raw logs in over a connection of its own and returns a function that sends commands on it unchanged.
func (g *guarded) raw(user, password string) func(cmd bson.D) error {
	g.t.Helper()
	u, err := url.Parse(strings.Split(g.uri, ",")[0])
	if err != nil {
		g.t.Fatal(err)
	}
	ctx := context.Background()
	cc, err := wire.Dial(ctx, u.Host)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = cc.Close() })
	ask := func(cmd bson.D) ([]byte, error) {
		reply, err := cc.RoundTrip(ctx, &wire.Message{OpCode: wire.OpMsg, Body: mustDoc(g.t, cmd)})
		if err != nil {
			return nil, err
		}
		return reply.Body, cluster.ReplyError(reply.Body)
	}
	client, err := scram.SHA256.NewClientUnprepped(user, password, "")
	if err != nil {
		g.t.Fatal(err)
	}
	conv := client.NewConversation()
	msg, _ := conv.Step("")
	reply, err := ask(bson.D{{Key: "saslStart", Value: 1}, {Key: "mechanism", Value: auth.SHA256}, {Key: "payload", Value: []byte(msg)}, {Key: "$db", Value: "admin"}})
	for err == nil && !value.Lookup(reply, "done").Bool() {
		msg, _ = conv.Step(string(value.Lookup(reply, "payload").Bytes()))
		if conv.Done() {
			msg = ""
		}
		reply, err = ask(bson.D{{Key: "saslContinue", Value: 1}, {Key: "conversationId", Value: 1}, {Key: "payload", Value: []byte(msg)}, {Key: "$db", Value: "admin"}})
	}
	if err != nil {
		g.t.Fatal(err)
	}
	return func(cmd bson.D) error {
		_, err := ask(cmd)
		return err
	}
}

// The commands over users and roles refuse what they cannot do by the errors of the real server, and show what they did.
func TestUserAndRoleCommands(t *testing.T) {
	for _, topology := range []string{"standalone", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			g := startGuarded(t, topology)
			root := g.root()
			none := bson.A{}
			g.must(root, "shop", "createUser", "ann", "pwd", "pw", "roles", none, "customData", bson.D{{Key: "a", Value: 1}})
			g.must(root, "shop", "createRole", "mine", "roles", bson.A{"read"}, "privileges", none)
			for _, tc := range []struct {
				code mongoerr.Code
				text string
				cmd  []any
			}{
				{51003, `User "ann@shop" already exists`, []any{"createUser", "ann", "pwd", "pw", "roles", none}},
				{mongoerr.RoleNotFound, "Could not find role: nothing@shop", []any{"createUser", "bob", "pwd", "pw", "roles", bson.A{"nothing"}}},
				{mongoerr.BadValue, "Must provide a 'pwd' field", []any{"createUser", "bob", "roles", none}},
				{mongoerr.BadValue, "mechanisms field must not be empty", []any{"createUser", "bob", "pwd", "pw", "roles", none, "mechanisms", none}},
				{mongoerr.BadValue, "Use of SCRAM-SHA-256 requires undigested passwords", []any{"createUser", "bob", "pwd", "pw", "roles", none, "digestPassword", false, "mechanisms", bson.A{auth.SHA256}}},
				{mongoerr.UserNotFound, "User 'bob@shop' not found", []any{"dropUser", "bob"}},
				{mongoerr.UserNotFound, "", []any{"updateUser", "bob", "pwd", "x"}},
				{mongoerr.BadValue, "Must specify at least one field to update", []any{"updateUser", "ann"}},
				{mongoerr.BadValue, "non-empty", []any{"grantRolesToUser", "ann", "roles", none}},
				{51002, `Role "mine@shop" already exists`, []any{"createRole", "mine", "roles", none, "privileges", none}},
				{mongoerr.BadValue, "built-in", []any{"createRole", "read", "roles", none, "privileges", none}},
				{mongoerr.InvalidRoleModification, "built-in role and cannot be modified", []any{"dropRole", "read"}},
				{mongoerr.RoleNotFound, "Role gone@shop not found", []any{"dropRole", "gone"}},
				{mongoerr.InvalidRoleModification, "itself", []any{"grantRolesToRole", "mine", "roles", bson.A{"mine"}}},
				{mongoerr.InvalidRoleModification, "other databases", []any{"grantPrivilegesToRole", "mine", "privileges", bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "cluster", Value: true}}}, {Key: "actions", Value: bson.A{"find"}}}}}},
				{mongoerr.AuthenticationFailed, "SSL support is required", []any{"authenticate", 1, "mechanism", "MONGODB-X509"}},
				{mongoerr.AuthenticationFailed, "Authentication failed.", []any{"authenticate", 1, "mechanism", "SCRAM-SHA-256", "user", "nobody"}},
			} {
				if _, code, text := run1(root, "shop", tc.cmd...); code != int(tc.code) || !strings.Contains(text, tc.text) {
					t.Errorf("%v: %d %s", tc.cmd, code, text)
				}
			}
			g.must(root, "shop", "grantRolesToUser", "ann", "roles", bson.A{"mine", "readWrite"})
			g.must(root, "shop", "revokeRolesFromUser", "ann", "roles", bson.A{"readWrite"})
			info := g.must(root, "shop", "usersInfo", "ann", "showPrivileges", true)["users"].(bson.A)
			if text := fmt.Sprint(info); len(info) != 1 || !strings.Contains(text, "mine") || strings.Contains(text, "readWrite") || !strings.Contains(text, "inheritedPrivileges") {
				t.Errorf("%v", info)
			}
			if got := g.must(root, "shop", "usersInfo", bson.D{{Key: "forAllDBs", Value: true}}, "filter", bson.D{{Key: "roles.role", Value: "mine"}})["users"].(bson.A); len(got) != 1 {
				t.Errorf("%v", got)
			}
			if got := g.must(root, "shop", "rolesInfo", 1, "showBuiltinRoles", true)["roles"].(bson.A); len(got) != 7 {
				t.Errorf("%d roles of a database", len(got))
			}
			// What mongorestore does.
			temp := bson.D{{Key: "_id", Value: "shop.new"}, {Key: "user", Value: "new"}, {Key: "db", Value: "shop"}, {Key: "credentials", Value: bson.D{}}, {Key: "roles", Value: none}}
			g.must(root, "admin", "insert", "tempusers", "documents", bson.A{temp})
			g.must(root, "admin", "_mergeAuthzCollections", 1, "tempUsersCollection", "admin.tempusers", "db", "shop", "drop", true)
			if got := g.must(root, "shop", "usersInfo", 1)["users"].(bson.A); len(got) != 1 || !strings.Contains(fmt.Sprint(got), "shop.new") {
				t.Errorf("%v", got)
			}
			if got := g.must(root, "shop", "dropAllRolesFromDatabase", 1)["n"]; fmt.Sprint(got) != "1" {
				t.Errorf("%v roles dropped", got)
			}
			// From another address the right password is refused like a wrong one.
			limit := bson.A{bson.D{{Key: "clientSource", Value: bson.A{"192.0.2.0/24"}}}}
			g.must(root, "admin", "createUser", "far", "pwd", "pw", "roles", none, "authenticationRestrictions", limit)
			if _, code, text := run1(g.client("far", "pw", ""), "shop", "ping", 1); code != int(mongoerr.AuthenticationFailed) {
				t.Errorf("%d %s", code, text)
			}
		})
	}
}
