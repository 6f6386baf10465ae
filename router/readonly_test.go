package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
)

// A write that changed nothing on a shard made it count as one that had written: two shards ran a two-phase commit where one
// could decide alone, and the recovery token named the wrong one. Shards now report for each statement whether the transaction
// has written there.
func TestShardsTellWhetherTheyHaveWritten(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	client := command.NewClient(2, "test", "test", nil)
	do := func(number int, start bool, cmd string) bson.M {
		t.Helper()
		db, begin := "d", ""
		if start {
			begin = `, "startTransaction": true`
		} else if cmd == `{"commitTransaction": 1}` {
			db = "admin"
		}
		r := c.as(client, db, fmt.Sprintf(`%s, %s, "txnNumber": {"$numberLong": "%d"}, "autocommit": false%s}`, cmd[:len(cmd)-1], txnLSID, number, begin))
		if r["ok"] != 1.0 {
			t.Fatalf("%s: %v", cmd, r)
		}
		if _, ok := r["readOnly"]; ok {
			t.Errorf("%s: the client receives readOnly: %v", cmd, r)
		}
		return r
	}
	types := func() string { return show(get(c.section("transactions"), "commitTypes")) }
	count := func(kind string) int64 {
		n, _ := get(get(get(c.section("transactions"), "commitTypes"), kind), "successful").(int64)
		return n
	}
	const left, noLeft = `{"update": "c", "updates": [{"q": {"_id": -1}, "u": {"$inc": {"x": 1}}}]}`, `{"update": "c", "updates": [{"q": {"_id": -1, "none": 1}, "u": {"$inc": {"x": 1}}}]}`
	for i, x := range []struct {
		statements  []string
		kind, token string
	}{
		{[]string{noLeft, bumpOne}, "singleWriteShard", `{"recoveryShardId":"shard1"}`},
		{[]string{bumpOne, noLeft}, "singleWriteShard", `{"recoveryShardId":"shard1"}`},
		{[]string{left, bumpOne}, "twoPhaseCommit", `{"recoveryShardId":"shard0"}`},
		{[]string{noLeft, bumpOne, left}, "twoPhaseCommit", `{"recoveryShardId":"shard1"}`},
		{[]string{noLeft, `{"find": "c"}`}, "readOnly", `{}`},
		{[]string{noLeft}, "singleShard", `{}`},
	} {
		before := count(x.kind)
		var r bson.M
		for j, s := range x.statements {
			r = do(i+1, j == 0, s)
		}
		if got := show(r["recoveryToken"]); got != x.token {
			t.Errorf("%v: the token is %s, want %s", x.statements, got, x.token)
		}
		do(i+1, false, `{"commitTransaction": 1}`)
		if got := count(x.kind) - before; got != 1 {
			t.Errorf("%v: %d commits of type %s, want 1: %s", x.statements, got, x.kind, types())
		}
	}
	c.expect(c.all("d", readC), `[{"_id":-1,"x":2},{"_id":1,"x":4}]`)
}
