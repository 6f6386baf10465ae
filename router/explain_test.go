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
