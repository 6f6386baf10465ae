package shardnode

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The line of a slow update told of the command without its statements, which drivers send beside it: each statement has
// a line and an entry of the profiler, with q and u, and with its own figures.
func TestSlowUpdatesAreToldWithQAndU(t *testing.T) {
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
	n.ok("d", `{"delete": "c", "deletes": [{"q": {"a": 1}, "limit": 1}]}`)
	n.ok("d", `{"profile": 0, "slowms": 100}`)
	want := []string{
		`true update d.c {"q": {"a": 1},"u": {"$set": {"b": 2}},"multi": true,"upsert": false} planSummary:COLLSCAN docsExamined:2 nMatched:2 nModified:2 nUpserted:0`,
		`true update d.c {"q": {"a": 7},"u": {"$set": {"x": 1}},"hint": "_id_","multi": false,"upsert": true} planSummary:IXSCAN { _id: 1 } docsExamined:2 nMatched:0 nModified:0 nUpserted:1`,
		`false command d.$cmd {"update": "c"`,
		`true remove d.c {"q": {"a": 1},"limit": 1} planSummary:COLLSCAN docsExamined:1 ndeleted:1`,
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
		`{ op: "remove", ns: "d.c", command: { q: { a: 1 }, limit: 1 }, ndeleted: 1 }]` {
		t.Errorf("the profiler has\n%s", got)
	}
}
