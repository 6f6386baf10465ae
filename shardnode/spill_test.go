package shardnode

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// spilling are stages with the parameter that limits each, and its error if it may not use the disk.
var spilling = []struct {
	stage, param, pipeline string
	code                   mongoerr.Code
}{
	{"$group", "internalDocumentSourceGroupMaxMemoryBytes", `[{"$group": {"_id": "$_id", "all": {"$push": "$s"}, "n": {"$sum": "$a"}}}, {"$sort": {"_id": 1}}]`, mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed},
	{"$sort", "internalQueryMaxBlockingSortMemoryUsageBytes", `[{"$addFields": {"z": {"$mod": [{"$multiply": ["$_id", 7]}, 13]}}}, {"$sort": {"z": 1, "_id": -1}}]`, mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed},
	{"$bucketAuto", "internalDocumentSourceBucketAutoMaxMemoryBytes", `[{"$bucketAuto": {"groupBy": {"$mod": ["$_id", 91]}, "buckets": 7, "output": {"n": {"$sum": 1}, "sum": {"$sum": "$_id"}}}}]`, mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed},
	{"$setWindowFields", "internalDocumentSourceSetWindowFieldsMaxMemoryBytes", `[{"$setWindowFields": {"partitionBy": "$a", "sortBy": {"_id": 1}, "output": {"w": {"$sum": "$b", "window": {"documents": [-3, 2]}}, "r": {"$rank": {}}}}}, {"$sort": {"_id": 1}}]`, mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed},
	{"$setWindowFields", "internalDocumentSourceSetWindowFieldsMaxMemoryBytes", `[{"$setWindowFields": {"sortBy": {"b": 1, "_id": 1}, "output": {"w": {"$push": "$_id", "window": {"documents": [-1, 1]}}, "t": {"$top": {"sortBy": {"_id": -1}, "output": "$s"}, "window": {"documents": [-1, 0]}}}}}]`, mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed},
	{"$graphLookup", "internalDocumentSourceGraphLookupMaxMemoryBytes", `[{"$match": {"_id": {"$lt": 2}}}, {"$graphLookup": {"from": "c", "startWith": "$a", "connectFromField": "b", "connectToField": "a", "as": "all"}}, {"$project": {"n": {"$size": "$all"}}}]`, 40099},
}

// The parameter that limits a stage that does not spill had no effect: $densify used the default limit.
func TestParametersBoundPipelines(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	n.srv.Node.TempDir = t.TempDir()
	n.fill("c", 300)
	for _, c := range []struct {
		set, command string
		code         mongoerr.Code
	}{
		{`"internalDocumentSourceDensifyMaxMemoryBytes": 1000`, `{"aggregate": "c", "pipeline": [{"$densify": {"field": "_id", "range": {"step": 1, "bounds": "full"}}}], "cursor": {}, "allowDiskUse": false}`,
			mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed},
		{`"internalPipelineLengthLimit": 2`, `{"aggregate": "c", "pipeline": [{"$match": {}}, {"$match": {}}, {"$match": {}}], "cursor": {}}`, 7749501},
		{`"internalPipelineLengthLimit": 2`, `{"aggregate": "c", "pipeline": [{"$facet": {"f": [{"$match": {}}, {"$match": {}}, {"$match": {}}]}}], "cursor": {}}`, 7749501},
		{`"internalPipelineLengthLimit": 2`, `{"aggregate": "c", "pipeline": [{"$match": {}}, {"$match": {}}], "cursor": {}}`, 0},
		{`"internalQueryMaxBlockingSortMemoryUsageBytes": 1000, "allowDiskUseByDefault": false`, `{"find": "c", "sort": {"s": 1}}`, mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed},
		{`"internalQueryMaxBlockingSortMemoryUsageBytes": 1000, "allowDiskUseByDefault": false`, `{"aggregate": "c", "pipeline": [{"$sort": {"s": 1}}], "cursor": {}}`, mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed},
		{`"internalQueryMaxBlockingSortMemoryUsageBytes": 1000, "allowDiskUseByDefault": false`, `{"find": "c", "sort": {"s": 1}, "allowDiskUse": true}`, 0},
	} {
		n.ok("admin", `{"setParameter": 1, `+c.set+`}`)
		if got := n.code("d", c.command); got != int32(c.code) {
			t.Errorf("%s with %s: code %d, want %d", c.command, c.set, got, int32(c.code))
		}
		n.ok("admin", `{"setParameter": 1, "internalDocumentSourceDensifyMaxMemoryBytes": 104857600, "internalPipelineLengthLimit": 1000,
			"internalQueryMaxBlockingSortMemoryUsageBytes": 104857600, "allowDiskUseByDefault": true}`)
	}
}

// TestStagesSpill runs each with plenty of memory and with little: the results are the same, explain reports the files,
// none is left behind, and without the disk the stage is refused.
func TestStagesSpill(t *testing.T) {
	n := newTestNode(t)
	dir := t.TempDir()
	n.srv.Node.TempDir = dir
	n.fill("c", 3000)
	for _, k := range spilling {
		cmd := func(more string) string {
			return fmt.Sprintf(`{"aggregate": "c", "pipeline": %s, "cursor": {"batchSize": 5000}%s}`, k.pipeline, more)
		}
		want := n.first("d", cmd(""))
		n.ok("admin", fmt.Sprintf(`{"setParameter": 1, %q: 20000}`, k.param))
		if got := n.first("d", cmd("")); len(want) == 0 || strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s: %d documents with little memory, %d with much", k.stage, len(got), len(want))
		}
		if got := n.code("d", cmd(`, "allowDiskUse": false`)); got != int32(k.code) {
			t.Errorf("%s: code %d without the disk, want %d", k.stage, got, int32(k.code))
		}
		r := n.ok("d", fmt.Sprintf(`{"explain": %s, "verbosity": "executionStats"}`, cmd("")))
		used := false
		for _, st := range r["stages"].(bson.A) {
			m := asM(st)
			_, is := m[k.stage]
			if cursor := asM(m["$cursor"]); cursor != nil && k.stage == "$group" {
				m, is = docAt(t, cursor, "executionStats", "executionStages"), true
			}
			if is {
				used = m["usedDisk"] == true && m["spills"].(int64) > 0 && m["spilledRecords"].(int64) > 0
			}
		}
		if !used {
			t.Errorf("%s: explain reports no files: %v", k.stage, r["stages"])
		}
		n.ok("admin", fmt.Sprintf(`{"setParameter": 1, %q: 104857600}`, k.param))
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
}
