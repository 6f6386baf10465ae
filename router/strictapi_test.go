package router_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The commands of API Version 1 run for a strict client through a router as on a member, and none of the messages that the router sends for them is
// taken for the client's own (manual: Stable API Changelog). Others are refused by their own name.
func TestStrictClientsThroughARouter(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	const strict = `, "apiVersion": "1", "apiStrict": true}`
	for _, sharded := range []bool{false, true} {
		if sharded {
			c.run("admin", `{"shardCollection": "db.c", "key": {"_id": "hashed"}}`)
		}
		for _, x := range []struct{ db, command string }{
			{"db", `{"create": "x"`}, {"db", `{"insert": "c", "documents": [{"_id": 1, "a": 1}]`}, {"db", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 2}}}]`},
			{"db", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]`}, {"db", `{"collMod": "c", "validationLevel": "moderate"`},
			{"db", `{"find": "c"`}, {"db", `{"aggregate": "c", "pipeline": [{"$group": {"_id": "$a"}}], "cursor": {}`}, {"db", `{"count": "c"`},
			{"db", `{"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"a": 1}}`}, {"db", `{"explain": {"find": "c"}`}, {"db", `{"explain": {"count": "c"}`},
			{"db", `{"explain": {"aggregate": "c", "pipeline": [], "cursor": {}}`}, {"db", `{"explain": {"delete": "c", "deletes": [{"q": {}, "limit": 1}]}`},
			{"db", `{"listCollections": 1`}, {"db", `{"listCollections": 1, "nameOnly": true`}, {"admin", `{"listDatabases": 1`}, {"db", `{"listIndexes": "c"`},
			{"admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 2}}], "nsInfo": [{"ns": "db.c"}]`},
			{"db", `{"dropIndexes": "c", "index": "a"`}, {"db", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]`}, {"db", `{"killCursors": "c", "cursors": [{"$numberLong": "5"}]`},
			{"admin", `{"renameCollection": "db.x", "to": "db.y"`}, {"db", `{"drop": "y"`},
		} {
			if m := c.raw(x.db, x.command+strict); m["ok"] != 1.0 {
				t.Errorf("sharded %v: %s: %v", sharded, x.command, m)
			}
		}
	}
	for _, x := range [][2]string{{"shardCollection", `"db.d", "key": {"_id": 1}`}, {"collStats", `"c"`}, {"distinct", `"c", "key": "a"`}, {"convertToCapped", `"c", "size": 1000`}} {
		if m := c.raw("admin", `{"`+x[0]+`": `+x[1]+strict); m["code"] != int32(mongoerr.APIStrictError) || !strings.Contains(fmt.Sprint(m["errmsg"]), "command "+x[0]+" is not") {
			t.Errorf("%s: %v", x[0], m)
		}
	}
	for _, x := range []string{
		`{"create": "e", "capped": true, "size": 4096`, `{"create": "e", "storageEngine": {"wiredTiger": {}}`, `{"find": "c", "showRecordId": true`, `{"find": "c", "min": {"_id": 1}, "hint": "_id_"`,
		`{"createIndexes": "c", "indexes": [{"key": {"s": "text"}, "name": "s"}]`, `{"createIndexes": "c", "indexes": [{"key": {"s": 1}, "name": "s", "sparse": true}]`,
		`{"explain": {"distinct": "c", "key": "a"}`, `{"explain": {"find": "c", "returnKey": true}`, `{"explain": {"aggregate": "c", "pipeline": [{"$indexStats": {}}], "cursor": {}}`,
		`{"aggregate": "c", "pipeline": [], "cursor": {}, "explain": true`, `{"aggregate": "c", "pipeline": [{"$indexStats": {}}], "cursor": {}`,
	} {
		if m := c.raw("db", x+strict); m["code"] != int32(mongoerr.APIStrictError) {
			t.Errorf("%s: %v", x, m)
		}
	}
	if m := c.raw("db", `{"dropDatabase": 1`+strict); m["ok"] != 1.0 {
		t.Error(m)
	}
}
