package router_test

import "testing"

// A projection that leaves out a field of the sort is applied by the router, which ignored the command's collation and variables: a positional
// projection returned an array element other than the one that the filter had matched, or failed.
func TestProjectionOnTheRouter(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`)
	c.run("admin", `{"split": "db.c", "middle": {"_id": 2}}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"_id": 2}, "to": "shard1"}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1, "k": 2, "a": ["x", "B", "b"]}, {"_id": 2, "k": 1, "a": ["x", "b", "B"]}]}`)
	const sorted = `"sort": {"k": 1}`
	c.expect(c.all("db", `{"find": "c", "filter": {"a": "b"}, "collation": {"locale": "en", "strength": 2}, "projection": {"_id": 1, "a.$": 1}, `+sorted+`}`),
		`[{"_id":2,"a":["b"]},{"_id":1,"a":["B"]}]`)
	c.expect(c.all("db", `{"find": "c", "let": {"plus": 10}, "projection": {"_id": 0, "sum": {"$add": ["$_id", "$$plus"]}}, `+sorted+`}`), `[{"sum":12},{"sum":11}]`)
}
