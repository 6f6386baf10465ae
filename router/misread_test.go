package router_test

import (
	"testing"

	_ "github.com/shoaldb/shoal/command/commandtest"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The router's command table had no such fields: it always read them as missing, and the shards used what clients sent.
func TestArgumentsThatTheRouterDidNotSee(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(6)
	for _, cmd := range []string{
		`{"update": "c", "updates": [{"q": {}, "u": {"$set": {"x": 1}}, "multi": true}], "alreadyWrittenRanges": [{"min": {"k": {"$minKey": 1}}, "max": {"k": {"$maxKey": 1}}}]}`,
		`{"delete": "c", "deletes": [{"q": {}, "limit": 0}], "alreadyWrittenRanges": [{"min": {"k": {"$minKey": 1}}, "max": {"k": {"$maxKey": 1}}}]}`,
	} {
		if m := c.raw("db", cmd); m["code"] != int32(mongoerr.IDLUnknownField) {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	c.run("db", `{"create": "v", "viewOn": "c", "pipeline": [{"$group": {"_id": "$g", "n": {"$sum": "$k"}}}]}`)
	c.expect(c.all("db", `{"find": "v", "filter": {"$expr": {"$gt": ["$n", "$$least"]}}, "let": {"least": 4}, "sort": {"_id": 1}}`),
		`[{"_id":1,"n":5},{"_id":2,"n":7}]`)
	c.run("admin", `{"setParameter": 1, "internalDocumentSourceGroupMaxMemoryBytes": 100}`)
	if m := c.raw("db", `{"find": "v", "allowDiskUse": false}`); m["code"] != int32(mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed) {
		t.Errorf("a find on a view used the disk: %v", m)
	}
}
