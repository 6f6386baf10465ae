package router_test

import (
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/router"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The commands used to be unknown to routers. Query settings apply to the whole cluster: the shards plan by them,
// whatever part of a command they receive, other routers read them with their next refresh, and nodes to which clients
// connect directly know them.
func TestQuerySettingsOfTheCluster(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"g": 1}, "name": "g"}, {"key": {"g": 1, "k": 1}, "name": "gk"}, {"key": {"g": -1}, "name": "down"}]}`)
	c.run("db", `{"create": "v", "viewOn": "c", "pipeline": [{"$match": {"k": {"$gte": 0}}}]}`)
	indexesOf := func(cmd string) map[string]bool {
		t.Helper()
		used := map[string]bool{}
		var walk func(v any)
		walk = func(v any) {
			switch v := v.(type) {
			case bson.D:
				for _, e := range v {
					if e.Key == "indexName" {
						used[e.Value.(string)] = true
					}
					if e.Key != "rejectedPlans" && e.Key != "command" {
						walk(e.Value)
					}
				}
			case bson.A:
				for _, e := range v {
					walk(e)
				}
			case bson.M:
				for _, e := range v {
					walk(e)
				}
			}
		}
		walk(c.run("db", `{"explain": `+cmd+`, "verbosity": "queryPlanner"}`))
		return used
	}
	for _, x := range []struct{ cmd, coll string }{
		{`{"find": "c", "filter": {"g": 1}, "skip": 1, "limit": 3}`, "c"},
		{`{"find": "c", "filter": {"g": 1}, "sort": {"k": 1}}`, "c"},
		{`{"distinct": "c", "key": "k", "query": {"g": 1}}`, "c"},
		{`{"aggregate": "c", "pipeline": [{"$match": {"g": 1}}, {"$group": {"_id": "$k", "n": {"$sum": 1}}}], "cursor": {}}`, "c"},
		{`{"find": "v", "filter": {"g": 1}}`, "c"},
	} {
		for _, index := range []string{"gk", "down"} {
			shaped := x.cmd[:len(x.cmd)-1] + `, "$db": "db"}`
			m := c.run("admin", fmt.Sprintf(`{"setQuerySettings": %s, "settings": {"indexHints": [{"ns": {"db": "db", "coll": %q}, "allowedIndexes": [%q]}]}}`, shaped, x.coll, index))
			if got := indexesOf(x.cmd); len(got) != 1 || !got[index] {
				t.Errorf("%s is to use %s: %v", x.cmd, index, got)
			}
			stage := c.all("admin", `{"aggregate": 1, "pipeline": [{"$querySettings": {}}, {"$match": {"queryShapeHash": "`+m["queryShapeHash"].(string)+`"}}, {"$count": "n"}], "cursor": {}}`)
			c.expect(stage, `[{"n":1}]`)
		}
		shaped := x.cmd[:len(x.cmd)-1] + `, "$db": "db"}`
		c.run("admin", fmt.Sprintf(`{"setQuerySettings": %s, "settings": {"reject": true}}`, shaped))
		if m := c.raw("db", x.cmd); m["code"] != int32(mongoerr.QueryRejectedBySettings) {
			t.Errorf("%s is to be rejected: %v", x.cmd, m)
		}
		other := c.secondRouter()
		body, _ := bson.Marshal(append(doc(t, x.cmd), bson.E{Key: "$db", Value: "db"}))
		if m := decode(t, other.Run(t.Context(), c.client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil)); m["code"] != int32(mongoerr.QueryRejectedBySettings) {
			t.Errorf("%s is to be rejected by every router: %v", x.cmd, m)
		}
		for _, p := range c.shards {
			m := c.admin(p, bson.D{{Key: "getClusterParameter", Value: "querySettings"}, {Key: "$db", Value: "admin"}})
			if n := len(get(m["clusterParameters"].(bson.A)[0], "settingsArray").(bson.A)); n != 1 {
				t.Errorf("a shard knows %d settings", n)
			}
		}
		c.run("admin", fmt.Sprintf(`{"removeQuerySettings": %s}`, shaped))
		c.run("db", x.cmd)
		c.expect(c.all("admin", `{"aggregate": 1, "pipeline": [{"$querySettings": {}}], "cursor": {}}`), `[]`)
	}
}

func doc(t *testing.T, ext string) (d bson.D) {
	t.Helper()
	if err := bson.UnmarshalExtJSON([]byte(ext), false, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// secondRouter is another router, which has done its reads at start.
func (c *testCluster) secondRouter() *command.Service {
	c.t.Helper()
	s := command.NewService(command.Router)
	params, points := cluster.NewParams(), cluster.NewFailPoints()
	base := &command.Base{Service: s, Params: params, FailPoints: points, Sessions: cluster.NewSessionCache(nil, time.Now, nil)}
	base.Install()
	s.Clock = c.router.Clock
	r := router.New(s, cluster.NewRegistry(c.confP, s.Clock, c.dial), s.Clock, params, points)
	base.BeginTxn, base.Done = r.BeginTxn, r.OpDone
	if err := r.LoadQuerySettings(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	return s
}
