package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// stageNames names the stages of a list: "$match $group".
func stageNames(list any) string {
	var out []string
	for _, st := range list.(bson.A) {
		out = append(out, st.(bson.D)[0].Key)
	}
	return strings.Join(out, " ")
}

// TestExplainSplitsPipelines checks how pipelines are split, and that every shard explains its own part.
func TestExplainSplitsPipelines(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	for _, k := range []struct{ pipeline, shards, merger string }{
		{`[{"$match": {"g": 1}}, {"$group": {"_id": "$k", "n": {"$sum": 1}}}, {"$sort": {"n": 1}}]`, "$match $group", "$mergeCursors $group $sort"},
		{`[{"$sort": {"g": 1}}, {"$limit": 3}, {"$project": {"k": 1}}]`, "$sort", "$mergeCursors $limit $project"},
		{`[{"$match": {"g": 1}}, {"$project": {"k": 1}}]`, "$match $project", "$mergeCursors"},
		{`[{"$unwind": "$g"}, {"$count": "n"}]`, "$unwind $group", "$mergeCursors $group $project"},
	} {
		for _, verb := range []string{"queryPlanner", "executionStats", "allPlansExecution"} {
			m := c.run("db", fmt.Sprintf(`{"explain": {"aggregate": "c", "pipeline": %s, "cursor": {}}, "verbosity": %q}`, k.pipeline, verb))
			split := m["splitPipeline"]
			if got := stageNames(get(split, "shardsPart")); got != k.shards {
				t.Errorf("%s: shards run %s, want %s", k.pipeline, got, k.shards)
			}
			if got := stageNames(get(split, "mergerPart")); got != k.merger {
				t.Errorf("%s: merger runs %s, want %s", k.pipeline, got, k.merger)
			}
			for _, id := range []string{"shard0", "shard1"} {
				one := get(m["shards"], id)
				if one == nil || get(one, "host") == nil || get(one, "stages") == nil && get(one, "queryPlanner") == nil {
					t.Errorf("%s: %s explains %v", k.pipeline, id, one)
				}
			}
		}
	}
	m := c.run("db", `{"aggregate": "c", "pipeline": [{"$group": {"_id": "$g"}}], "explain": true}`)
	c.expect(stageNames(get(m["splitPipeline"], "shardsPart")), `"$group"`)
	m = c.run("db", `{"explain": {"aggregate": "c", "pipeline": [{"$match": {"k": 3}}, {"$group": {"_id": "$g"}}], "cursor": {}}}`)
	c.expect(m["mergeType"], `"shard0"`)
}

// TestExplainGroupOnShards checks that the $group that shards run, whole or partial, is shown in their plans.
func TestExplainGroupOnShards(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	for pipeline, shards := range map[string][]string{
		`[{"$group": {"_id": "$g", "n": {"$avg": "$k"}}}, {"$sort": {"n": 1}}]`:    {"shard0", "shard1"},
		`[{"$match": {"k": 3}}, {"$group": {"_id": "$g"}}]`:                        {"shard0"},
		`[{"$group": {"_id": "$g"}}, {"$group": {"_id": null, "n": {"$sum": 1}}}]`: {"shard0", "shard1"},
	} {
		m := c.run("db", fmt.Sprintf(`{"explain": {"aggregate": "c", "pipeline": %s, "cursor": {}}, "verbosity": "executionStats"}`, pipeline))
		for _, id := range shards {
			one := get(m["shards"], id)
			plan := get(get(get(one, "queryPlanner"), "winningPlan"), "queryPlan")
			if get(one, "explainVersion") != "2" || get(plan, "stage") != "GROUP" || get(get(plan, "inputStage"), "stage") == "GROUP" ||
				get(get(get(one, "executionStats"), "executionStages"), "stage") != "group" {
				t.Errorf("%s: %s explains %v", pipeline, id, one)
			}
		}
	}
}

// TestExplainOfForeignSharded checks that a pipeline that reads a sharded collection is explained wherever it begins:
// the router runs such a stage, and shows it as its part.
func TestExplainOfForeignSharded(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	c.run("db", `{"insert": "u", "documents": [{"_id": 1, "k": 3}]}`)
	c.run("db", `{"create": "v", "viewOn": "c", "pipeline": [{"$match": {"g": 1}}]}`)
	const lookup = `{"$lookup": {"from": "c", "localField": "k", "foreignField": "k", "as": "x"}}`
	for _, k := range []struct{ coll, pipeline, shards, merger string }{
		{"u", `[` + lookup + `]`, "", "$mergeCursors $lookup"},
		{"u", `[{"$match": {"k": 3}}, ` + lookup + `, {"$match": {"x.g": 1}}]`, "$match", "$mergeCursors $lookup"},
		{"u", `[{"$lookup": {"from": "v", "localField": "k", "foreignField": "k", "as": "x"}}]`, "", "$mergeCursors $lookup"},
		{"u", `[{"$unionWith": "c"}]`, "", "$mergeCursors $unionWith"},
		{"u", `[{"$facet": {"a": [` + lookup + `]}}]`, "", "$mergeCursors $facet"},
		{"c", `[{"$match": {"k": 3}}, ` + lookup + `]`, "$match", "$mergeCursors $lookup"},
		{"v", `[{"$match": {"k": 3}}, ` + lookup + `]`, "$match", "$mergeCursors $lookup"},
	} {
		for _, cmd := range []string{
			fmt.Sprintf(`{"explain": {"aggregate": %q, "pipeline": %s, "cursor": {}}, "verbosity": "queryPlanner"}`, k.coll, k.pipeline),
			fmt.Sprintf(`{"explain": {"aggregate": %q, "pipeline": %s, "cursor": {}}, "verbosity": "executionStats"}`, k.coll, k.pipeline),
			fmt.Sprintf(`{"aggregate": %q, "pipeline": %s, "explain": true}`, k.coll, k.pipeline),
		} {
			m := c.run("db", cmd)
			shards, merger := get(m["splitPipeline"], "shardsPart"), get(m["splitPipeline"], "mergerPart")
			if shards == nil || merger == nil {
				t.Errorf("%s: %v", cmd, m)
				continue
			}
			if got := stageNames(shards); got != k.shards {
				t.Errorf("%s: shards run %q, want %q", cmd, got, k.shards)
			}
			if got := stageNames(merger); !strings.HasPrefix(got, k.merger) {
				t.Errorf("%s: the router runs %q, want %q", cmd, got, k.merger)
			}
		}
	}
	m := c.run("db", `{"explain": {"aggregate": "u", "pipeline": [{"$lookup": {"from": "u", "localField": "k", "foreignField": "k", "as": "x"}}], "cursor": {}}}`)
	if m["splitPipeline"] != nil || m["stages"] == nil {
		t.Errorf("a pipeline whose collections are all on one shard is explained as %v", m)
	}
}
