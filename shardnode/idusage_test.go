package shardnode

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Each command that looks a document up by its _id is one use of the _id index ($indexStats), one key and one document examined (serverStatus),
// and one operation in the latencies of its collection ($collStats, top), whichever path executes it.
func TestLookUpsByIDAreCounted(t *testing.T) {
	n := newTestNode(t)
	type counts struct{ used, keys, docs, latencies, top int64 }
	count := func() (c counts) {
		docs := func(stages string) bson.A {
			return asM(n.ok("d", `{"aggregate": "c", "pipeline": [`+stages+`], "cursor": {}}`)["cursor"])["firstBatch"].(bson.A)
		}
		for _, d := range docs(`{"$indexStats": {}}, {"$match": {"name": "_id_"}}`) {
			c.used += asM(asM(d)["accesses"])["ops"].(int64)
		}
		executor := asM(asM(n.ok("admin", `{"serverStatus": 1}`)["metrics"])["queryExecutor"])
		c.keys, c.docs = executor["scanned"].(int64), executor["scannedObjects"].(int64)
		latency := asM(docs(`{"$collStats": {"latencyStats": {}}}`)[0])["latencyStats"]
		for _, kind := range []string{"reads", "writes"} {
			c.latencies += asM(asM(latency)[kind])["ops"].(int64)
		}
		totals := asM(asM(n.ok("admin", `{"top": 1}`)["totals"])["d.c"])
		for _, kind := range []string{"queries", "update", "remove", "commands"} {
			c.top += asM(totals[kind])["count"].(int64)
		}
		return c
	}
	for _, cmd := range []string{
		`{"find": "c", "filter": {"_id": 1}}`,
		`{"find": "c", "filter": {"_id": 1}, "limit": 1, "singleBatch": true}`,
		`{"find": "c", "filter": {"_id": 1}, "projection": {"x": 1}}`,
		`{"find": "c", "filter": {"_id": 1}, "hint": "_id_"}`,
		`{"find": "c", "filter": {"_id": {"$in": [1]}}}`,
		`{"aggregate": "c", "pipeline": [{"$match": {"_id": 1}}], "cursor": {}}`,
		`{"distinct": "c", "key": "x", "query": {"_id": 1}}`,
		`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`,
		`{"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"x": 1}}}`,
		`{"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}`,
	} {
		n.ok("d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"x": 1}, "upsert": true}]}`)
		idle := count()
		before := count()
		n.ok("d", cmd)
		after := count()
		// What counting itself adds is not the command's.
		got := counts{after.used - before.used, after.keys - before.keys, after.docs - before.docs, after.latencies - 2*before.latencies + idle.latencies,
			after.top - 2*before.top + idle.top}
		if want := (counts{1, 1, 1, 1, 1}); got != want {
			t.Errorf("%s counts %+v, want %+v", cmd, got, want)
		}
	}
}
