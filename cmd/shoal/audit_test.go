package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// auditLine is an event in the form that tests compare.
type auditLine struct {
	Atype  string
	UUID   any
	Local  map[string]any
	Remote map[string]any
	Users  []struct{ User, DB string }
	Roles  []struct{ Role, DB string }
	Param  map[string]any
	Result int
}

// audited is a guarded deployment with an audit log.
type audited struct {
	*guarded
	path string
}

func startAudited(t *testing.T, topology, filter string) *audited {
	t.Helper()
	return startAuditedWith(t, topology, filter)
}

func startAuditedWith(t *testing.T, topology, filter string, params ...pair) *audited {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.json")
	g := startGuardedWith(t, topology, func(c *config) {
		c.Audit = console.AuditOptions{Destination: "file", Format: "JSON", Path: path, Filter: filter}
		c.Parameters = params
		c.Parsed = bsonDoc(t, bson.D{{Key: "auditLog", Value: bson.D{{Key: "destination", Value: "file"}}}})
	})
	return &audited{g, path}
}

func bsonDoc(t *testing.T, d bson.D) []byte {
	t.Helper()
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// events reads the log's events of some types, in order.
func (a *audited) events(types ...string) (out []auditLine) {
	a.t.Helper()
	f, err := os.Open(a.path)
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l auditLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			a.t.Fatalf("%s: %v", lines.Text(), err)
		}
		if slices.Contains(types, l.Atype) {
			out = append(out, l)
		}
	}
	return out
}

// last returns the latest event of a type whose param has the given text in its JSON; it fails without.
func (a *audited) last(atype, part string) auditLine {
	a.t.Helper()
	list := a.events(atype)
	for _, l := range slices.Backward(list) {
		if p, _ := json.Marshal(l.Param); strings.Contains(string(p), part) {
			return l
		}
	}
	a.t.Fatalf("no event %s with %s, but %+v", atype, part, list)
	return auditLine{}
}

// Every action of the manual's list that a client can perform by itself is recorded with the user who did it: on a standalone server
// and through a router.
func TestAuditEvents(t *testing.T) {
	for _, topology := range []string{"standalone", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			a := startAudited(t, topology, "")
			first := a.client("", "", "")
			a.must(first, "admin", "createUser", "root", "pwd", "geheim", "roles", bson.A{"root"})
			root := a.client("root", "geheim", "")
			a.auditUsers(root)
			a.auditCatalog(root)
			a.auditRest(root, topology)
			if raw, _ := os.ReadFile(a.path); strings.Contains(string(raw), "geheim") || strings.Contains(string(raw), "password1") {
				t.Error("a password is in the audit log")
			}
		})
	}
}

func (a *audited) by(l auditLine, user string) {
	a.t.Helper()
	if len(l.Users) != 1 || l.Users[0].User != user || len(l.Roles) == 0 || l.Remote["ip"] != "127.0.0.1" || l.Local["port"] == nil || l.UUID == nil {
		a.t.Errorf("%s is recorded as %+v's from %v to %v (%v), not as %s's", l.Atype, l.Users, l.Remote, l.Local, l.Roles, user)
	}
}

func (a *audited) auditUsers(root *mongo.Client) {
	roles := bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}}
	privileges := bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: "shop"}, {Key: "collection", Value: "c"}}}, {Key: "actions", Value: bson.A{"find"}}}}
	for _, c := range []struct {
		cmd  []any
		part string
	}{
		{[]any{"createUser", "ann", "pwd", "password1", "roles", bson.A{"readWrite"}, "customData", bson.D{{Key: "x", Value: 1}}}, `"customData":{"x":1},"db":"shop","roles":[{"db":"shop","role":"readWrite"}],"user":"ann"`},
		{[]any{"updateUser", "ann", "pwd", "password12"}, `"passwordChanged":true`},
		{[]any{"grantRolesToUser", "ann", "roles", roles}, `"roles":[{"db":"shop","role":"read"}]`},
		{[]any{"revokeRolesFromUser", "ann", "roles", roles}, `"roles":[{"db":"shop","role":"read"}]`},
		{[]any{"createRole", "r", "roles", bson.A{}, "privileges", privileges}, `"privileges":[{"actions":["find"]`},
		{[]any{"updateRole", "r", "roles", roles}, `"role":"r"`},
		{[]any{"grantRolesToRole", "r", "roles", roles}, `"role":"r"`},
		{[]any{"revokeRolesFromRole", "r", "roles", roles}, `"role":"r"`},
		{[]any{"grantPrivilegesToRole", "r", "privileges", privileges}, `"privileges"`},
		{[]any{"revokePrivilegesFromRole", "r", "privileges", privileges}, `"privileges"`},
		{[]any{"dropRole", "r"}, `"role":"r"`},
		{[]any{"dropAllRolesFromDatabase", 1}, `"db":"shop"`},
		{[]any{"dropUser", "ann"}, `"user":"ann"`},
		{[]any{"dropAllUsersFromDatabase", 1}, `"db":"shop"`},
	} {
		a.must(root, "shop", c.cmd...)
		a.by(a.last(c.cmd[0].(string), c.part), "root")
	}
}

func (a *audited) auditCatalog(root *mongo.Client) {
	key := func(f string) bson.A {
		return bson.A{bson.D{{Key: "name", Value: f}, {Key: "key", Value: bson.D{{Key: f, Value: 1}}}}}
	}
	a.must(root, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "a", Value: 1}}})
	a.by(a.last("createDatabase", `"ns":"shop"`), "root")
	a.by(a.last("createCollection", `"ns":"shop.c"`), "root")
	a.must(root, "shop", "createIndexes", "c", "indexes", key("a")) // on documents: a build
	a.must(root, "shop", "create", "empty")
	a.must(root, "shop", "createIndexes", "empty", "indexes", key("b"))
	for _, name := range []string{"a", "b"} {
		var states []string
		for _, l := range a.events("createIndex") {
			if l.Param["indexName"] == name {
				states = append(states, l.Param["indexBuildState"].(string))
				a.by(l, "root")
			}
		}
		if strings.Join(states, " ") != "IndexBuildStarted IndexBuildSucceeded" {
			a.t.Errorf("index %s: %v", name, states)
		}
	}
	a.must(root, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "u", Value: 1}}, bson.D{{Key: "u", Value: 1}}})
	unique := bson.A{bson.D{{Key: "name", Value: "u"}, {Key: "key", Value: bson.D{{Key: "u", Value: 1}}}, {Key: "unique", Value: true}}}
	if _, code, _ := run1(root, "shop", "createIndexes", "c", "indexes", unique); code != int(mongoerr.DuplicateKey) {
		a.t.Errorf("createIndexes: %d", code)
	}
	if l := a.last("createIndex", `"indexBuildState":"IndexBuildAborted"`); l.Result != 276 {
		a.t.Errorf("an aborted build: %+v", l)
	}
	a.must(root, "shop", "dropIndexes", "c", "index", "a")
	a.by(a.last("dropIndex", `"indexName":"a","ns":"shop.c"`), "root")
	a.must(root, "shop", "create", "v", "viewOn", "c", "pipeline", bson.A{bson.D{{Key: "$match", Value: bson.D{}}}})
	a.by(a.last("createCollection", `"ns":"shop.v","pipeline":[{"$match":{}}],"viewOn":"shop.c"`), "root")
	a.must(root, "shop", "drop", "v")
	a.by(a.last("dropCollection", `"ns":"shop.v"`), "root")
	a.must(root, "admin", "renameCollection", "shop.empty", "to", "shop.full")
	a.by(a.last("renameCollection", `"new":"shop.full","old":"shop.empty"`), "root")
	a.must(root, "shop", "drop", "full")
	a.by(a.last("dropCollection", `"ns":"shop.full"`), "root")
	a.must(root, "shop", "drop", "none")
	if l := a.last("dropCollection", `"ns":"shop.none"`); l.Result != 26 {
		a.t.Errorf("dropped without being there: %+v", l)
	}
	a.must(root, "shop", "aggregate", "c", "pipeline", bson.A{bson.D{{Key: "$out", Value: "copy"}}}, "cursor", bson.D{})
	a.by(a.last("renameCollection", `"new":"shop.copy"`), "root")
	a.must(root, "shop", "dropDatabase", 1)
	a.last("dropCollection", `"ns":"shop.c"`)
	a.last("dropDatabase", `"ns":"shop"`)
}

func (a *audited) auditRest(root *mongo.Client, topology string) {
	if topology == "sharded" {
		a.must(root, "admin", "enableSharding", "big")
		a.by(a.last("enableSharding", `"ns":"big"`), "root")
		a.must(root, "admin", "shardCollection", "big.c", "key", bson.D{{Key: "k", Value: 1}})
		a.by(a.last("shardCollection", `"key":{"k":1},"ns":"big.c","options":{"unique":false}`), "root")
		a.must(root, "big", "drop", "c")
		for _, l := range a.events("dropCollection") { // the other shard has nothing of it
			if l.Param["ns"] == "big.c" && l.Result != 0 {
				a.t.Errorf("%+v", l)
			}
		}
		a.must(root, "admin", "setClusterParameter", bson.D{{Key: "changeStreams", Value: bson.D{{Key: "expireAfterSeconds", Value: int64(7)}}}})
		a.by(a.last("setClusterParameter", `"originalClusterServerParameter"`), "root")
		a.must(root, "admin", "getClusterParameter", "changeStreams")
		a.by(a.last("getClusterParameter", `"requestedClusterServerParameters":"changeStreams"`), "root")
	}
	a.must(root, "admin", "logApplicationMessage", "hello\nthere")
	a.by(a.last("applicationMessage", `"msg":"hello\nthere"`), "root")
	a.must(root, "admin", "insert", "system.users", "documents", bson.A{bson.D{{Key: "_id", Value: "x.y"}}})
	a.by(a.last("directAuthMutation", `"document":{"_id":"x.y"},"ns":"admin.system.users","operation":"insert"`), "root")
	a.must(root, "admin", "update", "system.users", "updates", bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: "x.y"}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "credentials.SCRAM-SHA-256", Value: bson.D{{Key: "storedKey", Value: "geheim"}}}}}}}}})
	a.by(a.last("directAuthMutation", `"u":{"$set":{"credentials.SCRAM-SHA-256":"xxx"}}`), "root")
	if l := a.last("clientMetadata", `"name":"mongo-go-driver"`); l.Param["localEndpoint"] == nil {
		a.t.Errorf("%+v", l)
	}
	if l := a.events("startup"); len(l) != 1 || l[0].Remote["isSystemUser"] != true || l[0].Param["startupOptions"] == nil {
		a.t.Errorf("startup: %+v", l)
	}
	a.auditLogins(root)
}

func (a *audited) auditLogins(root *mongo.Client) {
	a.must(root, "shop", "createUser", "bob", "pwd", "password1", "roles", bson.A{"read"})
	a.last("authenticate", `"db":"admin","mechanism":"SCRAM-SHA-256","user":"root"`)
	bad := a.client("root", "wrong", "")
	if _, code, _ := run1(bad, "admin", "ping", 1); code == 0 {
		a.t.Error("a wrong password is accepted")
	}
	if l := a.last("authenticate", `"user":"root"`); l.Result != 18 {
		a.t.Errorf("a wrong password: %+v", l)
	}
	bob := a.clientOf("shop", "bob", "password1")
	if _, code, _ := run1(bob, "shop", "insert", "c", "documents", bson.A{bson.D{}}); code != int(mongoerr.Unauthorized) {
		a.t.Errorf("insert: %d", code)
	}
	l := a.last("authCheck", `"command":"insert"`)
	if a.by(l, "bob"); l.Result != 13 || l.Param["ns"] != "shop.c" {
		a.t.Errorf("refused: %+v", l)
	}
	a.must(bob, "shop", "find", "c")
	for _, l := range a.events("authCheck") {
		if l.Result != 13 {
			a.t.Errorf("recorded without auditAuthorizationSuccess: %+v", l)
		}
	}
	a.must(root, "admin", "setParameter", 1, "auditAuthorizationSuccess", true)
	a.must(bob, "shop", "find", "c", "filter", bson.D{{Key: "x", Value: 5}})
	if l := a.last("authCheck", `"filter":{"x":5}`); l.Result != 0 || l.Param["command"] != "find" {
		a.t.Errorf("%+v", l)
	}
	a.must(root, "admin", "setParameter", 1, "auditAuthorizationSuccess", false)
	a.must(bob, "shop", "logout", 1)
	a.last("logout", `"initialUsers":[{"db":"shop","user":"bob"}],"reason":"Explicit logout from shop","updatedUsers":[]`)
	gone := a.clientOf("shop", "bob", "password1")
	a.must(gone, "shop", "find", "c")
	_ = gone.Disconnect(context.Background())
	await.True(a.t, "the end of a connection is recorded", func() bool {
		return slices.ContainsFunc(a.events("logout"), func(l auditLine) bool {
			return l.Param["reason"] == "Implicit logout due to client connection closure"
		})
	})
}

// The log is rotated alone or with the server's, and its first line then names the previous file.
func TestAuditRotation(t *testing.T) {
	a := startAudited(t, "standalone", `{ atype: { $in: [ "rotateLog", "applicationMessage" ] } }`)
	a.must(a.client("", "", ""), "admin", "createUser", "root", "pwd", "x", "roles", bson.A{"root"})
	root := a.client("root", "x", "")
	a.must(root, "admin", "logApplicationMessage", "before")
	a.must(root, "admin", "logRotate", "server")
	a.last("applicationMessage", "before")
	a.must(root, "admin", "logRotate", "audit")
	l := a.last("rotateLog", `"status":"OK"`)
	kept := l.Param["logRotationStatus"].(map[string]any)["rotatedLogPath"].(string)
	if raw, err := os.ReadFile(kept); err != nil || !strings.Contains(string(raw), "before") || len(a.events("applicationMessage")) != 0 {
		t.Errorf("%s: %s %v", kept, raw, err)
	}
	if _, code, _ := run1(root, "admin", "logRotate", "other"); code != int(mongoerr.NoSuchKey) {
		t.Errorf("logRotate of an unknown log: %d", code)
	}
}

// A shard in another process records the router's user and the user's address; the router is the intermediate. Operations
// between members are not actions of users.
func TestAuditAcrossProcesses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := writeKey(t)
	log := func(name string) []string {
		return []string{"--auditDestination", "file", "--auditFormat", "JSON", "--auditPath", filepath.Join(dir, name)}
	}
	c := launchCluster(t, clusterOptions{shards: []int{1}, keyFile: key, shardArgs: log("shard"), routerArgs: log("router")})
	g, root := c.guarded(), c.client
	g.must(root, "shop", "create", "c")
	ofRouter, ofShard := &audited{g, filepath.Join(dir, "router")}, &audited{g, filepath.Join(dir, "shard")}
	ofRouter.by(ofRouter.last("addShard", `"shard":`), "root")
	if l := ofRouter.last("createUser", `"user":"root"`); len(l.Users) != 0 {
		t.Errorf("the first user was made by %v", l.Users)
	}
	made := ofShard.last("createCollection", `"ns":"shop.c"`)
	ofShard.by(made, "root")
	raw, _ := os.ReadFile(ofShard.path)
	if !strings.Contains(string(raw), `"intermediates" : [ { "ip" : "127.0.0.1"`) {
		t.Errorf("no router between shard and client: %s", raw)
	}
	port := ofRouter.last("addShard", "").Remote["port"]
	if made.Remote["port"] != port {
		t.Errorf("the shard records %v, the router port %v", made.Remote, port)
	}
	if l := ofShard.events("authCheck"); len(l) != 0 {
		t.Errorf("what members do is recorded: %+v", l)
	}
}

// An audit log by syslog on a machine without a daemon prevented servers from starting.
func TestAuditWithoutASyslogDaemon(t *testing.T) {
	if _, err := os.Stat("/dev/log"); err == nil {
		t.Skip("this machine has a daemon")
	}
	o := loneServer(t, "mongod", "--dbpath", t.TempDir(), "--auditDestination", "syslog")
	o.start()
	c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + o.at() + "/?directConnection=true").SetServerSelectionTimeout(10 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Disconnect(context.Background()) }()
	if err := c.Ping(context.Background(), nil); err != nil {
		t.Error(err)
	}
}
