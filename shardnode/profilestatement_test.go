package shardnode

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The log line of a slow update showed the command without its statements, which drivers send in a separate section:
// each statement now has a log line and a profiler entry, with q and u, and with its own counters.
func TestSlowUpdatesAreReportedWithQAndU(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1}, {"_id": 2, "a": 1}]}`)
	var lines []string
	n.srv.Node.SlowLog = func(_ int64, write bool, attrs []byte) {
		doc := bson.Raw(attrs)
		line := fmt.Sprint(write, " ", doc.Lookup("type").StringValue(), " ", doc.Lookup("ns").StringValue(), " ", doc.Lookup("command"))
		for _, k := range []string{"planSummary", "docsExamined", "nMatched", "nModified", "nUpserted", "ndeleted"} {
			if v, err := doc.LookupErr(k); err == nil {
				line += fmt.Sprint(" ", k, ":", v)
			}
		}
		lines = append(lines, line)
	}
	n.ok("d", `{"profile": 2, "slowms": -1}`)
	lines = nil
	n.ok("d", `{"update": "c", "updates": [{"q": {"a": 1}, "u": {"$set": {"b": 2}}, "multi": true}, {"q": {"a": 7}, "u": {"$set": {"x": 1}}, "upsert": true, "hint": "_id_"}]}`)
	n.ok("d", `{"delete": "c", "deletes": [{"q": {"a": 1}, "limit": 1}], "comment": ["why"]}`)
	n.ok("d", `{"profile": 0, "slowms": 100}`)
	want := []string{
		`true update d.c {"q": {"a": 1},"u": {"$set": {"b": 2}},"multi": true,"upsert": false} planSummary:COLLSCAN docsExamined:2 nMatched:2 nModified:2 nUpserted:0`,
		`true update d.c {"q": {"a": 7},"u": {"$set": {"x": 1}},"hint": "_id_","multi": false,"upsert": true} planSummary:IXSCAN { _id: 1 } docsExamined:2 nMatched:0 nModified:0 nUpserted:1`,
		`false command d.$cmd {"update": "c"`,
		`true remove d.c {"q": {"a": 1},"limit": 1,"comment": ["why"]} planSummary:COLLSCAN docsExamined:1 ndeleted:1`,
		`false command d.$cmd {"delete": "c"`,
	}
	for i, w := range want {
		got := "nothing"
		if i < len(lines) {
			for _, s := range []string{"{\"$numberInt\":\"", "{\"$numberLong\":\"", "\"}"} {
				lines[i] = strings.ReplaceAll(lines[i], s, "")
			}
			got = strings.ReplaceAll(lines[i], `planSummary:"`, "planSummary:")
			got = strings.Replace(got, `" docsExamined`, " docsExamined", 1)
		}
		if !strings.HasPrefix(got, w) {
			t.Errorf("line %d\n%s\nwant\n%s", i, got, w)
		}
	}
	profiled := n.first("d", `{"find": "system.profile", "filter": {"op": {"$in": ["update", "remove"]}}, "projection": {"_id": 0, "op": 1, "ns": 1, "command": 1, "nModified": 1, "ndeleted": 1}}`)
	if got := fmt.Sprint(profiled); got != `[{ op: "update", ns: "d.c", command: { q: { a: 1 }, u: { $set: { b: 2 } }, multi: true, upsert: false }, nModified: 2 } `+
		`{ op: "update", ns: "d.c", command: { q: { a: 7 }, u: { $set: { x: 1 } }, hint: "_id_", multi: false, upsert: true }, nModified: 0 } `+
		`{ op: "remove", ns: "d.c", command: { q: { a: 1 }, limit: 1, comment: [ "why" ] }, ndeleted: 1 }]` {
		t.Errorf("the profiler has\n%s", got)
	}
}

// Profiler entries lacked the execution statistics of the plan's stages, the locks and the index keys.
func TestProfiledExecution(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}, {"key": {"tags": 1}, "name": "tags_1"}]}`)
	n.ok("d", `{"profile": 2}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1, "tags": [1, 2]}, {"_id": 2, "a": 2}, {"_id": 3, "a": 2}]}`)
	n.ok("d", `{"find": "c", "filter": {"_id": 2}}`)
	n.ok("d", `{"find": "c", "filter": {"a": 2}, "projection": {"x": 1}}`)
	n.ok("d", `{"aggregate": "c", "pipeline": [{"$match": {"a": {"$gt": 0}}}, {"$lookup": {"from": "c", "localField": "a", "foreignField": "_id", "as": "o"}}], "cursor": {}}`)
	n.ok("d", `{"update": "c", "updates": [{"q": {"a": 2}, "u": {"$inc": {"a": 5}}, "multi": true}, {"q": {"_id": 9}, "u": {"$set": {"a": 9}}, "upsert": true}]}`)
	n.ok("d", `{"findAndModify": "c", "query": {"_id": 1}, "update": {"$set": {"tags": [2, 3, 4]}}}`)
	var opened struct{ ID int64 }
	cursor := n.rawCursor("d", `{"find": "c", "batchSize": 2}`)
	if err := bson.Unmarshal(cursor, &opened); err != nil {
		t.Fatal(err)
	}
	n.ok("d", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c", "batchSize": 1}`, opened.ID))
	n.ok("d", `{"delete": "c", "deletes": [{"q": {"a": {"$gte": 7}}, "limit": 0}, {"q": {"_id": 77}, "limit": 1}]}`)
	n.ok("d", `{"profile": 0}`)
	var got []string
	entries, _ := n.rawCursor("d", `{"find": "system.profile"}`).Lookup("firstBatch").Array().Values()
	for _, v := range entries {
		e := v.Document()
		line := e.Lookup("op").StringValue()
		for _, k := range []string{"keysInserted", "keysDeleted"} {
			if v, ok := e.Lookup(k).AsInt64OK(); ok {
				line += fmt.Sprintf(" %s:%d", k, v)
			}
		}
		if v, err := e.LookupErr("locks", "Collection", "acquireCount", "w"); err == nil {
			line += fmt.Sprintf(" w:%d", v.AsInt64())
		}
		for s := e.Lookup("execStats"); s.Type == bson.TypeEmbeddedDocument; s = s.Document().Lookup("inputStage") {
			line += fmt.Sprintf(" %s(%d)", s.Document().Lookup("stage").StringValue(), s.Document().Lookup("nReturned").AsInt64())
		}
		got = append(got, line)
	}
	want := []string{
		"insert keysInserted:10 w:1",
		"query EXPRESS_IXSCAN(1)",
		"query PROJECTION_SIMPLE(2) FETCH(2) IXSCAN(2)",
		"command FETCH(3) IXSCAN(3)",
		"update keysInserted:2 keysDeleted:2 w:1 UPDATE(0) FETCH(2) IXSCAN(2)",
		"update keysInserted:3 w:1 EXPRESS_UPDATE(0) EXPRESS_IXSCAN(0)",
		"command keysInserted:2 keysDeleted:1 w:1 EXPRESS_UPDATE(0) EXPRESS_IXSCAN(1)",
		"query COLLSCAN(2)",
		"getmore COLLSCAN(3)",
		"remove keysDeleted:9 w:1 DELETE(0) FETCH(3) IXSCAN(3)",
		"remove w:1 EXPRESS_DELETE(0) EXPRESS_IXSCAN(0)",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// rawCursor is the cursor that a command returns.
func (n *testNode) rawCursor(db, cmd string) bson.Raw {
	n.t.Helper()
	raw, err := bson.Marshal(n.ok(db, cmd)["cursor"])
	if err != nil {
		n.t.Fatal(err)
	}
	return raw
}
