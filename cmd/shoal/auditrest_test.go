package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/internal/await"
)

// What changes a cluster's shape is recorded with the user who did it.
func TestAuditOfSharding(t *testing.T) {
	t.Parallel()
	a := startAudited(t, "sharded", "")
	root := a.root()
	a.must(root, "admin", "shardCollection", "big.c", "key", bson.D{{Key: "k", Value: 1}})
	a.must(root, "big", "createIndexes", "c", "indexes", bson.A{bson.D{{Key: "name", Value: "kx"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}, {Key: "x", Value: 1}}}}})
	a.must(root, "admin", "refineCollectionShardKey", "big.c", "key", bson.D{{Key: "k", Value: 1}, {Key: "x", Value: 1}})
	a.by(a.last("refineCollectionShardKey", `"key":{"k":1,"x":1},"ns":"big.c"`), "root")
	shards := a.must(root, "admin", "listShards", 1)["shards"].(bson.A)
	gone := field(shards[len(shards)-1], "_id").(string)
	a.must(root, "admin", "removeShard", gone)
	a.by(a.last("removeShard", `"shard":"`+gone+`"`), "root")
}

// Changes of a set's members and the shutdown of a server are recorded.
func TestAuditOfSets(t *testing.T) {
	t.Parallel()
	a := startAudited(t, "replset", "")
	root := a.root()
	config := a.must(root, "admin", "replSetGetConfig", 1)["config"].(bson.D)
	var next bson.D
	for _, e := range config {
		if e.Key == "version" {
			e.Value = e.Value.(int32) + 1
		}
		next = append(next, e)
	}
	a.must(root, "admin", "replSetReconfig", next)
	l := a.last("replSetReconfig", `"version":2`)
	a.by(l, "root")
	if was, is := l.Param["old"].(map[string]any), l.Param["new"].(map[string]any); was["version"].(float64)+1 != is["version"].(float64) || was["_id"] != "rs0" || is["members"] == nil {
		t.Errorf("replSetReconfig: %+v", l.Param)
	}
	_, _, _ = run1(root, "admin", "shutdown", 1, "force", true) // the connection may end before the answer
	await.True(t, "the shutdown is recorded", func() bool { return len(a.events("shutdown")) > 0 })
	if l := a.events("shutdown")[0]; len(l.Param) != 0 {
		t.Errorf("shutdown: %+v", l.Param)
	} else {
		a.by(l, "root")
	}
}

// startedAt returns the time limit of reads that a process had at its start, as its event shows.
func startedAt(l auditLine) string {
	for _, p := range l.Param["initialClusterServerParameters"].([]any) {
		if within(p, "_id") == "defaultMaxTimeMS" {
			ms, _ := within(p, "readOperations", "$numberLong").(string)
			return ms
		}
	}
	return "none"
}

// Each node records that it acts on another value of a cluster parameter, and with what values the process started: those that are stored.
func TestAuditOfClusterParameters(t *testing.T) {
	t.Parallel()
	for _, topology := range []string{"replset", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			dir := t.TempDir()
			start := func() (*audited, func()) {
				c := newConfig(isStart)
				c.Listen, c.DBPath, c.Topology = []string{"127.0.0.1:0"}, filepath.Join(dir, "data"), topology
				c.Audit = console.AuditOptions{Destination: "file", Format: "JSON", Path: filepath.Join(dir, "audit.json")}
				c.Parsed = bsonDoc(t, bson.D{})
				r, err := startCluster(c, newHost(isStart))
				if err != nil {
					t.Fatal(err)
				}
				return &audited{&guarded{t: t, uri: r.URI}, c.Audit.Path}, func() {
					ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
					defer cancel()
					if err := r.Stop(ctx); err != nil {
						t.Error(err)
					}
				}
			}
			a, stop := start()
			if l := a.events("startup"); len(l) != 1 || startedAt(l[0]) != "0" {
				t.Errorf("the first start: %+v", l)
			}
			if l := a.events("updateCachedClusterServerParameter"); len(l) != 0 {
				t.Errorf("recorded before any is set: %+v", l)
			}
			c := a.client("", "", "")
			a.must(c, "admin", "setClusterParameter", bson.D{{Key: "defaultMaxTimeMS", Value: bson.D{{Key: "readOperations", Value: int64(70000)}}}})
			l := a.last("updateCachedClusterServerParameter", `"_id":"defaultMaxTimeMS"`)
			if was, is := bsonText(l.Param["originalClusterServerParameter"]), bsonText(l.Param["updatedClusterServerParameter"]); !strings.Contains(was, `"0"`) || !strings.Contains(is, "70000") {
				t.Errorf("from %s to %s", was, is)
			}
			if n := len(a.events("updateCachedClusterServerParameter")); topology == "sharded" && n < 4 { // config server, two shards, router
				t.Errorf("%d nodes have recorded it", n)
			}
			n := len(a.events("updateCachedClusterServerParameter"))
			a.must(c, "admin", "getClusterParameter", "*")
			if now := len(a.events("updateCachedClusterServerParameter")); now != n {
				t.Errorf("reading them has recorded %d more", now-n)
			}
			_ = c.Disconnect(context.Background())
			stop()
			a, stop = start()
			defer stop()
			if l := a.events("startup"); len(l) != 2 || startedAt(l[1]) != "70000" {
				t.Errorf("the second start: %+v", l)
			}
		})
	}
}

// With the schema OCSF, events are as in the manual's examples.
func TestAuditOCSF(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.json")
	g := startGuardedWith(t, "standalone", func(c *config) {
		c.Audit = console.AuditOptions{Destination: "file", Format: "JSON", Path: path, Schema: "OCSF", Filter: "{ category_uid: { $in: [ 1, 3, 6 ] } }"}
		c.Parsed = bsonDoc(t, bson.D{})
	})
	a := &audited{g, path}
	root := a.root()
	a.must(root, "shop", "create", "c")
	a.must(root, "admin", "createUser", "low", "pwd", "x", "roles", bson.A{})
	low := a.client("low", "x", "")
	a.refused(low, "shop", "insert", "c", "documents", bson.A{bson.D{}})
	a.refused(low, "admin", "getParameter", "*")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]map[string]any{}
	for _, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		var e map[string]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		name, _ := within(e, "unmapped", "atype").(string)
		if op, ok := within(e, "api", "operation").(string); ok {
			name = "authCheck " + op
		}
		if name == "authenticate" && within(e, "user", "name") != "admin.root" {
			continue
		}
		seen[name] = e
		if e["category_uid"] == 4.0 {
			t.Errorf("the filter lets through %s", line)
		}
	}
	for name, want := range map[string]string{
		"startup": "type_uid 100701 class_uid 1007", "authenticate": "type_uid 300201 activity_id 1 category_uid 3 class_uid 3002 severity_id 1 auth_protocol SCRAM-SHA-256 actor.user.name admin.root user.type_id 1 metadata.product MongoDB Server metadata.version 1.0.0 src_endpoint.ip 127.0.0.1 dst_endpoint.ip 127.0.0.1",
		"createCollection": "type_uid 300401 entity.name shop.c entity.type collection actor.user.name admin.root", "createUser": "type_uid 300101 user.name admin.low",
		"authCheck insert":       "type_uid 600301 api.response.code 13 api.response.error Unauthorized api.request.uid shop.c actor.user.name admin.low",
		"authCheck getParameter": "type_uid 600300 activity_id 0 api.request.uid admin",
	} {
		e := seen[name]
		if e == nil {
			t.Errorf("no event %s in %s", name, raw)
			continue
		}
		words := strings.Fields(strings.ReplaceAll(want, "MongoDB Server", "MongoDB_Server"))
		for i := 0; i+1 < len(words); i += 2 {
			v := within(e, strings.Split(words[i], ".")...)
			b, _ := json.Marshal(v)
			if got := strings.Trim(string(b), `"`); got != strings.ReplaceAll(words[i+1], "_S", " S") {
				t.Errorf("%s: %s is %s, want %s", name, words[i], got, words[i+1])
			}
		}
	}
	if id, _ := within(seen["authenticate"], "metadata", "correlation_uid").(string); len(id) != 36 {
		t.Errorf("correlation_uid %q", id)
	}
	if ms, _ := seen["authenticate"]["time"].(float64); time.Since(time.UnixMilli(int64(ms))).Abs() > time.Hour {
		t.Errorf("time %v", seen["authenticate"]["time"])
	}
	if strings.Contains(string(raw), "secret") {
		t.Error("a password is in the audit log")
	}
}

// within returns what is at a path of a document read from JSON.
func within(v any, path ...string) any {
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	return v
}
