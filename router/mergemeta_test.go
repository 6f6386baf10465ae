package router_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// TestMergesByWhatShardsKnow compares results ordered by distances and scores, which the documents do not contain, with
// those of one node.
func TestMergesByWhatShardsKnow(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.many", "key": {"_id": "hashed"}}`)
	rnd := rand.New(rand.NewPCG(5, 5))
	words := strings.Fields("coffee tea cake shop water bread coffee cake coffee")
	var docs []string
	for i := range 80 {
		text := ""
		for range 1 + i%5 {
			text += words[rnd.IntN(len(words))] + " "
		}
		docs = append(docs, fmt.Sprintf(`{"_id": %d, "xy": [%d.%d, %d.25], "at": {"type": "Point", "coordinates": [%d.5, %d.%d]}, "txt": "%s", "g": %d}`,
			i, i%17-8, i, i%11-5, i%19-9, i%13-6, i, text, i%3))
	}
	for _, n := range []string{"one", "many"} {
		c.run("db", fmt.Sprintf(`{"insert": %q, "documents": [%s]}`, n, strings.Join(docs, ",")))
		c.run("db", fmt.Sprintf(`{"createIndexes": %q, "indexes": [{"key": {"xy": "2d"}, "name": "a"}, {"key": {"at": "2dsphere"}, "name": "b"}, {"key": {"txt": "text"}, "name": "c"}]}`, n))
	}
	for _, cmd := range []string{
		`{"find": "COLL", "filter": {"xy": {"$near": [0.1, 0.3]}}}`,
		`{"find": "COLL", "filter": {"xy": {"$near": [0.1, 0.3]}, "g": 1}, "skip": 3, "limit": 9, "projection": {"g": 1}, "batchSize": 2}`,
		`{"find": "COLL", "filter": {"at": {"$nearSphere": {"$geometry": {"type": "Point", "coordinates": [1.1, 2.2]}, "$maxDistance": 900000}}}, "projection": {"_id": 1}}`,
		`{"find": "COLL", "filter": {"at": {"$near": {"$geometry": {"type": "Point", "coordinates": [1.1, 2.2]}}}}, "sort": {"_id": -1}}`,
		`{"aggregate": "COLL", "pipeline": [{"$geoNear": {"near": [0.1, 0.3], "key": "xy", "distanceField": "d"}}, {"$match": {"g": 2}}, {"$limit": 12}, {"$project": {"d": 1}}], "cursor": {"batchSize": 3}}`,
		`{"aggregate": "COLL", "pipeline": [{"$geoNear": {"near": [0.1, 0.3], "key": "xy"}}, {"$project": {"far": {"$meta": "geoNearDistance"}}}], "cursor": {}}`,
		`{"aggregate": "COLL", "pipeline": [{"$geoNear": {"near": {"type": "Point", "coordinates": [1.1, 2.2]}, "key": "at", "spherical": true}}], "cursor": {}}`,
		`{"find": "COLL", "filter": {"$text": {"$search": "coffee cake"}}, "sort": {"score": {"$meta": "textScore"}, "_id": 1}, "projection": {"score": {"$meta": "textScore"}}}`,
		`{"find": "COLL", "filter": {"$text": {"$search": "coffee cake"}}, "sort": {"score": {"$meta": "textScore"}, "_id": -1}, "projection": {"_id": 1}, "skip": 2, "limit": 10}`,
		`{"aggregate": "COLL", "pipeline": [{"$match": {"$text": {"$search": "coffee -tea"}}}, {"$sort": {"score": {"$meta": "textScore"}, "_id": 1}}, {"$limit": 9}, {"$project": {"s": {"$meta": "textScore"}}}], "cursor": {}}`,
		`{"aggregate": "COLL", "pipeline": [{"$match": {"$text": {"$search": "coffee"}}}, {"$sort": {"_id": 1}}, {"$addFields": {"s": {"$meta": "textScore"}, "k": {"$meta": "sortKey"}}}, {"$limit": 9}], "cursor": {}}`,
		`{"aggregate": "COLL", "pipeline": [{"$match": {"$text": {"$search": "coffee"}}}, {"$addFields": {"s": {"$meta": "score"}}}, {"$sort": {"_id": 1}}], "cursor": {}}`,
		`{"aggregate": "COLL", "pipeline": [{"$rankFusion": {"input": {"pipelines": {"near": [{"$geoNear": {"near": [0.1, 0.3], "key": "xy"}}, {"$limit": 20}],
			"text": [{"$match": {"$text": {"$search": "coffee cake"}}}, {"$sort": {"s": {"$meta": "textScore"}, "_id": 1}}], "by": [{"$sort": {"_id": -1}}, {"$limit": 5}]}}, "scoreDetails": true}},
			{"$project": {"s": {"$meta": "score"}, "d": {"$meta": "scoreDetails"}}}], "cursor": {"batchSize": 3}}`,
		`{"aggregate": "COLL", "pipeline": [{"$scoreFusion": {"input": {"pipelines": {"text": [{"$match": {"$text": {"$search": "coffee cake"}}}], "by": [{"$score": {"score": {"$add": ["$g", 1]}}}]},
			"normalization": "minMaxScaler"}, "scoreDetails": true}}, {"$project": {"s": {"$meta": "score"}, "d": {"$meta": "scoreDetails"}}}], "cursor": {"batchSize": 3}}`,
		`{"aggregate": "COLL", "pipeline": [{"$sort": {"_id": 1}}, {"$limit": 1}, {"$unionWith": {"coll": "COLL", "pipeline": [{"$geoNear": {"near": [0.1, 0.3], "key": "xy", "distanceField": "d"}}, {"$limit": 5}]}}], "cursor": {}}`,
		`{"aggregate": "COLL", "pipeline": [{"$sort": {"_id": 1}}, {"$limit": 1}, {"$unionWith": {"coll": "COLL", "pipeline": [{"$match": {"$text": {"$search": "coffee"}}}, {"$sort": {"s": {"$meta": "textScore"}, "_id": 1}}, {"$limit": 5}]}}], "cursor": {}}`,
		`{"aggregate": "COLL", "pipeline": [{"$match": {"$text": {"$search": "coffee"}}}, {"$group": {"_id": {"$meta": "textScore"}, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}], "cursor": {}}`,
	} {
		want, got := c.ordered("one", cmd), c.ordered("many", cmd)
		if got != want || want == "" {
			t.Errorf("%s\nsharded:\n%s\nunsharded:\n%s", cmd, got, want)
		}
	}
	if m := c.raw("db", `{"find": "one", "_withMergeKey": true}`); m["code"] != int32(mongoerr.IDLUnknownField) {
		t.Errorf("a client asks for merge keys: %v", m)
	}
}

// ordered returns a cursor's documents in their order, one per line.
func (c *testCluster) ordered(coll, cmd string) string {
	var lines []string
	for _, d := range c.all("db", strings.ReplaceAll(cmd, "COLL", coll)) {
		lines = append(lines, show(d))
	}
	return strings.Join(lines, "\n")
}

// TestMergingStagesSpill gives the merging half of pipelines little memory: the results stay the same.
func TestMergingStagesSpill(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(2000)
	c.r.TempDir = t.TempDir()
	for param, pipeline := range map[string]string{
		"internalDocumentSourceGroupMaxMemoryBytes":           `[{"$group": {"_id": "$k", "n": {"$push": "$_id"}}}, {"$sort": {"_id": 1}}]`,
		"internalDocumentSourceBucketAutoMaxMemoryBytes":      `[{"$bucketAuto": {"groupBy": "$k", "buckets": 5}}]`,
		"internalDocumentSourceSetWindowFieldsMaxMemoryBytes": `[{"$setWindowFields": {"partitionBy": "$g", "sortBy": {"k": 1}, "output": {"w": {"$sum": "$k", "window": {"documents": [-2, 0]}}}}}, {"$sort": {"_id": 1}}]`,
	} {
		cmd := fmt.Sprintf(`{"aggregate": "COLL", "pipeline": %s, "cursor": {"batchSize": 3000}}`, pipeline)
		want := c.ordered("c", cmd)
		c.run("admin", fmt.Sprintf(`{"setParameter": 1, %q: 10000}`, param))
		if got := c.ordered("c", cmd); got != want || want == "" {
			t.Errorf("%s: another answer with little memory", param)
		}
	}
}
