package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func setAuditConfig(g *guarded, root *mongo.Client, filter bson.D, success bool) {
	g.t.Helper()
	g.must(root, "admin", "setClusterParameter", bson.D{{Key: "auditConfig", Value: bson.D{{Key: "filter", Value: filter}, {Key: "auditAuthorizationSuccess", Value: success}}}})
}

// With auditLog.runtimeConfiguration what is recorded follows the cluster parameter auditConfig, on every topology, and after a restart.
func TestAuditConfig(t *testing.T) {
	t.Parallel()
	for _, topology := range topologies {
		t.Run(topology, func(t *testing.T) {
			dir := t.TempDir()
			start := func() (*audited, func()) {
				c := newConfig(isStart)
				c.Listen, c.DBPath, c.Topology, c.Security.Auth = []string{"127.0.0.1:0"}, filepath.Join(dir, "data"), topology, true
				c.Audit = console.AuditOptions{Destination: "file", Format: "JSON", Path: filepath.Join(dir, "audit.json"), Runtime: true}
				c.Parsed = bsonDoc(t, bson.D{})
				r, err := startCluster(c, newHost(isStart))
				if err != nil {
					t.Fatal(err)
				}
				stopped := false
				stop := func() {
					if stopped {
						return
					}
					stopped = true
					ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
					defer cancel()
					if err := r.Stop(ctx); err != nil {
						t.Error(err)
					}
				}
				t.Cleanup(stop)
				return &audited{&guarded{t: t, uri: r.URI}, c.Audit.Path}, stop
			}
			a, stop := start()
			first := a.client("", "", "")
			a.must(first, "admin", "createUser", "root", "pwd", "secret", "roles", bson.A{"root"})
			root := a.client("root", "secret", "")
			a.must(root, "admin", "logApplicationMessage", "one")
			a.last("applicationMessage", "one")
			setAuditConfig(a.guarded, root, bson.D{{Key: "atype", Value: bson.D{{Key: "$in", Value: bson.A{"authCheck"}}}}, {Key: "param.command", Value: "find"}}, true)
			a.must(root, "admin", "logApplicationMessage", "two")
			a.must(root, "shop", "find", "c", "filter", bson.D{{Key: "x", Value: 1}})
			a.last("authCheck", `"filter":{"x":1}`)
			set := a.must(root, "admin", "getClusterParameter", "auditConfig")["clusterParameters"].(bson.A)[0]
			if field(set, "auditAuthorizationSuccess") != true || field(set, "filter", "param.command") != "find" || field(set, "clusterParameterTime") == nil {
				t.Errorf("%v", set)
			}
			for _, c := range []*mongo.Client{first, root} { // later they would look for a server that is gone
				if err := c.Disconnect(context.Background()); err != nil {
					t.Error(err)
				}
			}
			stop()
			a, _ = start()
			root = a.client("root", "secret", "")
			if topology == "sharded" { // a router reads it after its start
				await.True(t, "the router knows", func() bool {
					a.must(root, "shop", "find", "c", "filter", bson.D{{Key: "x", Value: 2}})
					return len(a.events("authCheck")) > 1
				})
			}
			a.must(root, "shop", "find", "c", "filter", bson.D{{Key: "x", Value: 2}})
			a.last("authCheck", `"filter":{"x":2}`)
			a.must(root, "admin", "logApplicationMessage", "two")
			setAuditConfig(a.guarded, root, bson.D{}, false)
			a.must(root, "shop", "find", "c", "filter", bson.D{{Key: "x", Value: 3}})
			a.must(root, "admin", "logApplicationMessage", "three")
			a.last("applicationMessage", "three")
			for _, l := range a.events("applicationMessage", "authCheck") {
				if m := l.Param["msg"]; m == "two" || l.Atype == "authCheck" && strings.Contains(bsonText(l.Param), `"x":3`) {
					t.Errorf("recorded against the configuration: %+v", l)
				}
			}
			for what, v := range map[string]any{"a filter that is none": bson.D{{Key: "filter", Value: bson.D{{Key: "$nope", Value: 1}}}}, "where": bson.D{{Key: "filter", Value: bson.D{{Key: "$where", Value: "1"}}}},
				"a number": bson.D{{Key: "filter", Value: 1}}, "a text": bson.D{{Key: "auditAuthorizationSuccess", Value: "x"}}, "another field": bson.D{{Key: "x", Value: 1}}} {
				if _, code, text := run1(root, "admin", "setClusterParameter", bson.D{{Key: "auditConfig", Value: v}}); code <= 0 {
					t.Errorf("%s: %d %s", what, code, text)
				}
			}
			if _, code, _ := run1(root, "admin", "setParameter", 1, "auditAuthorizationSuccess", true); code != int(mongoerr.BadValue) {
				t.Errorf("setParameter: %d", code)
			}
		})
	}
}

func bsonText(v any) string {
	b, _ := bson.MarshalExtJSON(bson.M{"v": v}, false, false)
	return string(b)
}

// Without it the parameter shows the process's startup value, and cannot be set.
func TestAuditConfigOfTheStart(t *testing.T) {
	a := startAudited(t, "standalone", "{ atype: 'createUser' }")
	root := a.root()
	set := a.must(root, "admin", "getClusterParameter", "auditConfig")["clusterParameters"].(bson.A)[0]
	if field(set, "auditAuthorizationSuccess") != false || field(set, "filter", "atype") != "createUser" {
		t.Errorf("%v", set)
	}
	if _, code, _ := run1(root, "admin", "setClusterParameter", bson.D{{Key: "auditConfig", Value: bson.D{}}}); code != int(mongoerr.RuntimeAuditConfigurationNotEnabled) {
		t.Errorf("set: %d", code)
	}
	for _, o := range []console.AuditOptions{{Runtime: true}, {Destination: "console", Runtime: true, Filter: "{a: 1}"}} {
		if o.Check() == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

// getAuditConfig and setAuditConfig are older names of the parameter, on every topology.
func TestAuditConfigCommands(t *testing.T) {
	for _, topology := range topologies {
		t.Run(topology, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.json")
			g := startGuardedWith(t, topology, func(c *config) {
				c.Audit = console.AuditOptions{Destination: "file", Format: "JSON", Path: path, Runtime: true}
				c.Parsed = bsonDoc(t, bson.D{})
			})
			a := &audited{g, path}
			root := a.root()
			first := a.must(root, "admin", "getAuditConfig", 1)
			if first["generation"] != (bson.ObjectID{}) || first["auditAuthorizationSuccess"] != false || len(first["filter"].(bson.D)) != 0 {
				t.Errorf("before it is set: %v", first)
			}
			a.must(root, "admin", "setAuditConfig", 1, "filter", bson.D{{Key: "param.command", Value: "find"}}, "auditAuthorizationSuccess", true)
			set := a.must(root, "admin", "getAuditConfig", 1)
			if set["generation"] == (bson.ObjectID{}) || set["auditAuthorizationSuccess"] != true || field(set, "filter", "param.command") != "find" {
				t.Errorf("once it is set: %v", set)
			}
			if p := a.must(root, "admin", "getClusterParameter", "auditConfig")["clusterParameters"].(bson.A)[0]; field(p, "auditAuthorizationSuccess") != true {
				t.Errorf("the parameter: %v", p)
			}
			a.must(root, "shop", "find", "c", "filter", bson.D{{Key: "x", Value: 1}})
			a.last("authCheck", `"filter":{"x":1}`)
			if _, code, _ := run1(root, "admin", "setAuditConfig", 1, "filter", bson.D{{Key: "$nonsense", Value: 1}}); code == 0 {
				t.Error("an invalid filter is accepted")
			}
			a.must(root, "admin", "createUser", "ann", "pwd", "x", "roles", bson.A{"readWriteAnyDatabase"})
			a.refused(a.client("ann", "x", ""), "admin", "setAuditConfig", 1)
		})
	}
	g := startGuarded(t, "replset")
	g.root()
	for _, cmd := range []string{"getAuditConfig", "setAuditConfig"} {
		if _, code, _ := run1(g.client("root", "secret", ""), "admin", cmd, 1); code != int(mongoerr.AuditingNotEnabled) {
			t.Errorf("%s without an audit log: %d", cmd, code)
		}
	}
}
