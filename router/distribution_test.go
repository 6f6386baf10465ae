package router_test

import (
	"encoding/json"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// $shardedDataDistribution shows the orphans of a shard that no longer has a chunk of the collection: all remaining documents are to be deleted.
func TestDataDistributionOfAShardThatOwnsNothing(t *testing.T) {
	c := newTestCluster(t, 3)
	c.sharded("c", 40)
	c.param("shard0", "orphanCleanupDelaySecs", 3600)
	for _, min := range []string{`{"_id": {"$minKey": 1}}`, `{"_id": 20}`} {
		c.run("admin", `{"moveChunk": "db.c", "find": `+strings.Replace(min, `{"$minKey": 1}`, "0", 1)+`, "to": "shard1"}`)
	}
	reply := c.run("admin", `{"aggregate": 1, "pipeline": [{"$shardedDataDistribution": {}}, {"$match": {"ns": "db.c"}}], "cursor": {}}`)
	out, err := bson.MarshalExtJSON(bson.M{"v": get(reply["cursor"], "firstBatch")}, false, false)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		V []struct {
			Shards []struct {
				ShardName                          string
				NumOrphanedDocs, NumOwnedDocuments int
			}
		}
	}
	if err := json.Unmarshal(out, &doc); err != nil || len(doc.V) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	got := map[string][2]int{}
	for _, s := range doc.V[0].Shards {
		got[s.ShardName] = [2]int{s.NumOwnedDocuments, s.NumOrphanedDocs}
	}
	if len(got) != 2 || got["shard0"] != [2]int{0, 40} || got["shard1"] != [2]int{40, 0} {
		t.Errorf("owned and orphaned documents: %v", got)
	}
}
