package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestOrphansAreDroppedByTheirKeys checks that an index with the shard key in it covers queries on a sharded
// collection, and that orphans, which are dropped before they are fetched, are not returned.
func TestOrphansAreDroppedByTheirKeys(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	c.param("shard0", "orphanCleanupDelaySecs", 3600)
	c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"g": 1, "k": -1}, "name": "gk"}]}`)
	c.run("admin", `{"split": "db.c", "middle": {"k": 5}}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 5}, "to": "shard1"}`)
	if got := c.onShard("shard0", "c"); got != 10 {
		t.Fatalf("shard0 has %d documents, want the 5 of its chunk and 5 orphans", got)
	}
	explained := func(cmd string) bson.D {
		t.Helper()
		m := c.run("db", fmt.Sprintf(`{"explain": %s, "verbosity": "executionStats"}`, cmd))
		return m["executionStats"].(bson.D)
	}
	for _, k := range []struct {
		cmd, want     string
		keys, fetches int32
	}{
		{`{"find": "c", "filter": {"k": {"$gte": 3, "$lt": 7}}, "projection": {"k": 1, "_id": 0}, "sort": {"k": 1}, "hint": "k_1"}`, `[{"k":3},{"k":4},{"k":5},{"k":6}]`, 6, 0},
		{`{"find": "c", "filter": {"g": 1}, "projection": {"k": 1, "_id": 0}, "hint": "gk"}`, `[{"k":4},{"k":1},{"k":19},{"k":16},{"k":13},{"k":10},{"k":7}]`, 8, 0},
		{`{"find": "c", "filter": {"k": {"$gte": 3, "$lt": 7}}, "sort": {"k": 1}, "hint": "k_1"}`,
			`[{"_id":3,"k":3,"g":0},{"_id":4,"k":4,"g":1},{"_id":5,"k":5,"g":2},{"_id":6,"k":6,"g":0}]`, 6, 4},
	} {
		if strings.Contains(k.cmd, `"sort"`) {
			c.expect(c.all("db", k.cmd), k.want)
		} else if got := len(c.all("db", k.cmd)); got != strings.Count(k.want, "{") {
			t.Errorf("%s returns %d documents, want %s", k.cmd, got, k.want)
		}
		st := explained(k.cmd)
		if n := get(st, "totalKeysExamined"); n != k.keys {
			t.Errorf("%s examines %v keys, want %d", k.cmd, n, k.keys)
		}
		if n := get(st, "totalDocsExamined"); n != k.fetches {
			t.Errorf("%s fetches %v documents, want %d", k.cmd, n, k.fetches)
		}
	}
	const count = `{"count": "c", "query": {"k": {"$gte": 3, "$lt": 7}}}`
	c.expect(c.run("db", count)["n"], `4`)
	if n := get(explained(count), "totalDocsExamined"); n != int32(0) {
		t.Errorf("a count by keys fetches %v documents", n)
	}
	c.expect(c.run("db", `{"distinct": "c", "key": "k", "query": {"k": {"$gte": 3, "$lt": 7}}}`)["values"], `[3,4,5,6]`)
}
