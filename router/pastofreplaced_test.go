package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A read at a time when a shard, which has been removed since, had the documents is refused, also if another set has its name by now: it returned nothing of them. So is one in a transaction that has begun before. A time
// from when the set joined can be read.
func TestPastOfAShardWhoseNameAnotherSetHas(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	c.twoShards()
	c.run("admin", `{"enableSharding": "p", "primaryShard": "shard2"}`)
	c.run("p", `{"insert": "u", "documents": [{"_id": 1}]}`)
	c.moves("shard2")
	for _, id := range []int{1, 70} {
		c.puts(id)
	}
	w := c.txnClient(0)
	if m, code := w.do("db", `{"find": "s", "filter": {"k": 1}}`, true); code != 0 {
		t.Fatal(m)
	}
	at := func() string {
		ts := get(c.run("db", `{"find": "s", "filter": {"k": 1}, "readConcern": {"level": "snapshot"}}`)["cursor"], "atClusterTime").(bson.Timestamp)
		return fmt.Sprintf(`"readConcern": {"level": "snapshot", "atClusterTime": {"$timestamp": {"t": %d, "i": %d}}}`, ts.T, ts.I)
	}
	then := at()
	c.moves("shard1")
	c.run("admin", `{"movePrimary": "p", "to": "shard0"}`)
	c.removeEmptyShard("shard2")
	c.addedAgain("shard2", "shardx")
	if err := c.r.Registry.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ db, cmd string }{{"db", `{"find": "s", "filter": {"k": 70}, ` + then + `}`}, {"db", `{"find": "s", ` + then + `}`}, {"p", `{"find": "u", ` + then + `}`}} {
		if m := c.raw(x.db, x.cmd); m["code"] != int32(mongoerr.SnapshotUnavailable) {
			t.Errorf("%s: %v", x.cmd, m)
		}
	}
	c.expect(len(c.all("db", `{"find": "s", "filter": {"k": 1}, `+then+`}`)), `1`)
	if m, code := w.do("db", `{"find": "s", "filter": {"k": 70}}`, false); code != int32(mongoerr.SnapshotUnavailable) {
		t.Errorf("in a transaction: %v", m)
	}
	c.moves("shard2")
	c.puts(71)
	now := at()
	c.moves("shard1")
	c.expect(len(c.all("db", `{"find": "s", `+now+`}`)), `3`)
}
