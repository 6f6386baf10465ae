package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A DDL has let others use its names, and its run has not ended yet. A request for the same that comes then, after others have used them, is executed anew: it used to be answered with the outcome of the run, and what it
// asks for was not done.
func TestRequestWhenOthersHaveUsedTheNames(t *testing.T) {
	const moved = `{"movePrimary": "db", "to": "shard1"}`
	for _, x := range []struct{ db, cmd, sent, at, since, insert, left string }{
		{"db", `{"dropDatabase": 1}`, "_shardsvrDropDatabase", "done", `{"enableSharding": "db", "primaryShard": "shard0"}`, `{"insert": "n", "documents": [{"_id": 1}]}`, `[]`},
		{"db", `{"dropDatabase": 1}`, "_shardsvrDropDatabase", "releaseCriticalSection", `{"enableSharding": "db", "primaryShard": "shard0"}`, "", `[]`},
		{"admin", moved, "_shardsvrMovePrimary", "done", `{"movePrimary": "db", "to": "shard0"}`, "", `["shard1"]`},
	} {
		c := newTestCluster(t, 2)
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.insertKeys("c", 1, 10)
		reached, release := c.hangAt("shard0", x.at)
		first := c.later(x.db, x.cmd)
		reached()
		other := c.through()
		other.run("admin", x.since)
		if x.insert != "" {
			other.run("db", x.insert)
		}
		second := c.later(x.db, x.cmd)
		c.until("the second waits", func() bool { return c.underWay("shard0", x.sent) == 2 })
		release()
		for _, answer := range []<-chan bson.M{first, second} {
			if m := <-answer; m["ok"] != 1.0 {
				t.Errorf("%s (%s): %v", x.cmd, x.at, m)
			}
		}
		c.leftOver()
		var on []any
		for _, db := range c.all("config", `{"find": "databases"}`) {
			on = append(on, get(db, "primary"))
		}
		c.expect(append(bson.A{}, on...), x.left)
		if x.cmd == moved {
			c.expect(c.counted("c", 1), `10`)
		}
	}
}
