package router_test

import "testing"

// TestDocumentsBeforeSharded checks pipelines of a database that begin with $documents: whatever follows, also stages that
// only a router can run.
func TestDocumentsBeforeSharded(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	c.run("db", `{"create": "v", "viewOn": "c", "pipeline": [{"$match": {"g": 1}}]}`)
	c.run("admin", `{"shardCollection": "db.target", "key": {"_id": 1}}`)
	const documents = `{"$documents": [{"_id": 1, "k": 3}, {"_id": 2, "k": 99}]}`
	for _, k := range []struct{ stages, want string }{
		{`{"$lookup": {"from": "c", "localField": "k", "foreignField": "k", "as": "x"}}`, `[{"_id":1,"k":3,"x":[{"_id":3,"k":3,"g":0}]},{"_id":2,"k":99,"x":[]}]`},
		{`{"$lookup": {"from": "v", "localField": "k", "foreignField": "k", "as": "x"}}, {"$count": "n"}`, `[{"n":2}]`},
		{`{"$unionWith": "c"}, {"$count": "n"}`, `[{"n":22}]`},
		{`{"$graphLookup": {"from": "c", "startWith": "$k", "connectFromField": "g", "connectToField": "k", "as": "x"}}, {"$project": {"n": {"$size": "$x"}}}`, `[{"_id":1,"n":2},{"_id":2,"n":0}]`},
		{`{"$facet": {"a": [{"$lookup": {"from": "c", "localField": "k", "foreignField": "k", "as": "x"}}, {"$count": "n"}]}}`, `[{"a":[{"n":2}]}]`},
	} {
		c.expect(c.all("db", `{"aggregate": 1, "pipeline": [`+documents+`, `+k.stages+`], "cursor": {}}`), k.want)
	}
	const want = `[{"_id":1,"k":3},{"_id":2,"k":99}]`
	for _, target := range []string{"plain", "target"} {
		c.run("db", `{"aggregate": 1, "pipeline": [`+documents+`, {"$merge": {"into": "`+target+`"}}], "cursor": {}}`)
		c.expect(c.all("db", `{"find": "`+target+`", "sort": {"_id": 1}}`), want)
	}
	c.run("db", `{"aggregate": 1, "pipeline": [`+documents+`, {"$out": "out"}], "cursor": {}}`)
	c.expect(c.all("db", `{"find": "out", "sort": {"_id": 1}}`), want)
	m := c.run("db", `{"explain": {"aggregate": 1, "pipeline": [`+documents+`, {"$unionWith": "c"}], "cursor": {}}}`)
	if got := stageNames(get(m["mongos"], "stages")); got != "$documents $unionWith" {
		t.Errorf("$documents before a sharded collection is explained as %v", m)
	}
}
