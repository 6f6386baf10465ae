package router_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A client that sends the internal fields of routers, to a router or to a shard, gets no internal reply.
func TestFieldsOfMembersFromOutside(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	group := `"pipeline": [{"$group": {"_id": null, "avg": {"$avg": "$k"}}}], "cursor": {}`
	for field, code := range map[string]int32{`"needsMerge": true`: 51089, `"fromRouter": true`: 51089, `"fromMongos": true`: 51089, `"exchange": {"policy": "broadcast"}`: 51028} {
		for _, agg := range []string{`{"aggregate": "c", ` + group + `, ` + field + `}`, `{"explain": {"aggregate": "c", ` + group + `, ` + field + `}}`} {
			if m := c.raw("db", agg); m["code"] != code {
				t.Errorf("%s: %v", agg, m)
			}
		}
	}
	c.expect(c.all("db", `{"aggregate": "c", `+group+`, "fromRouter": false}`), `[{"_id":null,"avg":9.5}]`)
	direct := func(internal bool, cmd string) bson.M {
		client := command.NewClient(5, "test", "test", nil)
		client.Internal = internal
		body, _ := bson.Marshal(append(doc(t, cmd), bson.E{Key: "$db", Value: "db"}))
		return decode(t, c.server["shard0"].Service.Run(t.Context(), client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil))
	}
	// The second part of a pipeline may refer to metadata that the first part created.
	part := `{"aggregate": "c", "pipeline": [{"$project": {"s": {"$meta": "textScore"}}}], "cursor": {}, "fromRouter": true, "needsMerge": true}`
	if m := direct(false, part); m["code"] != int32(40218) {
		t.Errorf("a client's: %v", m)
	}
	if m := direct(true, part); m["ok"] != 1.0 {
		t.Errorf("a router's: %v", m)
	}
	if m := direct(false, `{"find": "c", "_withMergeKey": true}`); m["code"] != int32(mongoerr.IDLUnknownField) {
		t.Errorf("a key to merge by: %v", m)
	}
	if m := direct(false, `{"aggregate": "c", "pipeline": [], "cursor": {}, "exchange": {"policy": "broadcast"}}`); m["code"] != int32(mongoerr.NotImplemented) {
		t.Errorf("an exchange: %v", m)
	}
}

// Only setQuerySettings sets query settings: those that a client sends with its query do not reach the planner.
func TestClientsBringNoQuerySettings(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"g": 1}, "name": "g_1"}]}`)
	own := `"querySettings": {"indexHints": [{"ns": {"db": "db", "coll": "c"}, "allowedIndexes": ["none"]}]}`
	for _, cmd := range []string{
		`{"explain": {"find": "c", "filter": {"g": 1}, ` + own + `}, "verbosity": "queryPlanner"}`,
		`{"explain": {"count": "c", "query": {"g": 1}, ` + own + `}, "verbosity": "queryPlanner"}`,
	} {
		m := c.run("db", cmd)
		plan := show(get(m["queryPlanner"], "winningPlan"))
		if !strings.Contains(plan, `"indexName":"g_1"`) {
			t.Errorf("%s\n%s", cmd, plan)
		}
	}
	if m := c.run("db", `{"find": "c", "filter": {"g": 1}, `+own+`}`); len(get(m["cursor"], "firstBatch").(bson.A)) != 7 {
		t.Errorf("%v", m)
	}
}
