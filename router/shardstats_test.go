package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// section returns a section of the router's serverStatus.
func (c *testCluster) section(name string) (out bson.D) {
	c.t.Helper()
	for _, s := range c.router.Status.Sections {
		if s.Name == name {
			if err := bson.Unmarshal(s.Doc(nil, value.Value{}), &out); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	return out
}

// The router counts how its transactions end, and on how many shards.
func TestTransactionStatistics(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	c.txn([]txnStep{
		{1, true, "d", readC, 0, "", ""},
		{1, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{2, true, "d", `{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"x": 1}}, "multi": true}]}`, 0, "", ""},
		{2, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{2, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{3, true, "d", `{"find": "c", "filter": {"_id": 1}}`, 0, "", ""},
		{3, false, "admin", `{"abortTransaction": 1}`, 0, "", ""},
		{4, true, "d", `{"find": "c", "filter": {"$bad": 1}}`, mongoerr.BadValue, "", ""},
		{5, true, "d", `{"find": "c", "filter": {"_id": 1}}`, 0, "", ""},
		{5, false, "admin", `{"commitTransaction": 1}`, 0, "", ""},
		{6, true, "d", `{"find": "c", "filter": {"_id": 1}}`, 0, "", ""},
	})
	s := c.section("transactions")
	for name, want := range map[string]string{"currentOpen": `1`, "currentActive": `0`, "currentInactive": `1`, "totalStarted": `6`,
		"totalCommitted": `3`, "totalAborted": `2`, "totalParticipantsAtCommit": `5`} {
		if got := show(get(s, name)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	c.expect(get(get(s, "abortCause"), "abort"), `1`)
	c.expect(get(get(s, "abortCause"), "BadValue"), `1`)
	for name, want := range map[string]string{"readOnly": `1`, "twoPhaseCommit": `1`, "singleShard": `1`, "noShards": `0`, "recoverWithToken": `0`} {
		kind := get(get(s, "commitTypes"), name)
		if i, ok := show(get(kind, "initiated")), show(get(kind, "successful")); i != want || ok != want {
			t.Errorf("%s: %s initiated, %s successful, want %s", name, i, ok, want)
		}
	}
}

// The router counts how many shards commands target.
func TestHostsTargeted(t *testing.T) {
	c := newTestCluster(t, 3)
	c.shardedTxnColl()
	before := c.section("shardingStatistics")
	c.run("d", `{"insert": "one", "documents": [{"_id": 1}]}`)
	c.run("d", `{"find": "one"}`)
	c.all("d", `{"find": "c"}`)
	c.run("d", `{"find": "c", "filter": {"_id": 1}}`)
	c.all("d", `{"aggregate": "c", "pipeline": [{"$match": {"x": 0}}], "cursor": {}}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": 5}, {"_id": 6}]}`)
	c.run("d", `{"insert": "c", "documents": [{"_id": -5}, {"_id": 7}], "ordered": false}`)
	c.run("d", `{"update": "c", "updates": [{"q": {"_id": 5}, "u": {"$set": {"x": 1}}}]}`)
	c.run("d", `{"delete": "c", "deletes": [{"q": {"x": 1}, "limit": 0}]}`)
	after := c.section("shardingStatistics")
	for _, want := range []struct {
		command, hosts string
		n              int64
	}{
		{"find", "unsharded", 1}, {"find", "oneShard", 1}, {"find", "allShards", 1}, {"aggregate", "allShards", 1}, {"aggregate", "oneShard", 0},
		{"insert", "unsharded", 1}, {"insert", "oneShard", 1}, {"insert", "allShards", 1}, {"update", "oneShard", 1}, {"delete", "allShards", 1},
	} {
		figure := func(s bson.D) int64 {
			return get(get(get(s, "numHostsTargeted"), want.command), want.hosts).(int64)
		}
		if got := figure(after) - figure(before); got != want.n {
			t.Errorf("%s %s: %d, want %d", want.command, want.hosts, got, want.n)
		}
	}
}
