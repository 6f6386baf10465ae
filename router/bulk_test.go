package router_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
)

// The operations of a bulkWrite that insert into one collection go to its shards together; each has its own result.
func TestBulkInsertsOverShards(t *testing.T) {
	const ops = `"ops": [{"insert": 0, "document": {"_id": 11, "k": 11}}, {"insert": 0, "document": {"_id": 20, "k": 3}}, {"insert": 0, "document": {"_id": 20, "k": 14}},
		{"insert": 0, "document": {"_id": 1, "k": 1}}, {"insert": 1, "document": {"_id": 5}}, {"insert": 1, "document": {"_id": 5}}, {"delete": 0, "filter": {"k": 3}},
		{"insert": 0, "document": {"_id": 21, "k": 15}}, {"insert": 7, "document": {"_id": 1}}, {"insert": 0, "document": {"_id": 22, "k": 16}}],
		"nsInfo": [{"ns": "d.c"}, {"ns": "d.plain"}]`
	for _, x := range []struct {
		options, want, retried string
	}{
		{`"ordered": true`, `nErrors 1, nInserted 0: 0!11000`, "null"},
		{`"ordered": false`, `nErrors 4, nInserted 5: 0!11000 1:1 2:1 3!11000 4:1 5!11000 6:1 7:1 8!2 9:1`, "[1,2,4,6,7,9]"},
		{`"ordered": false, "errorsOnly": true`, `nErrors 4, nInserted 5: 0!11000 3!11000 5!11000 8!2`, "[1,2,4,6,7,9]"},
	} {
		c := newTestCluster(t, 2)
		c.moveColl()
		for _, retried := range []string{"null", x.retried} {
			r := c.run("admin", retryable(`{"bulkWrite": 1, `+x.options+`, `+ops+`}`, 1))
			var results []string
			for _, res := range get(r["cursor"], "firstBatch").(bson.A) {
				if code := get(res, "code"); code != nil {
					results = append(results, fmt.Sprintf("%v!%v", get(res, "idx"), code))
				} else {
					results = append(results, fmt.Sprintf("%v:%v", get(res, "idx"), get(res, "n")))
				}
			}
			if got := fmt.Sprintf("nErrors %v, nInserted %v: %s", r["nErrors"], r["nInserted"], strings.Join(results, " ")); got != x.want {
				t.Errorf("%s: %s, want %s", x.options, got, x.want)
			}
			c.expect(r["retriedStmtIds"], retried)
		}
	}
}

// A router checks the number of a bulkWrite's operations itself where it does not relay them as they are.
func TestBulkWriteOfTooMany(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	one := `{"insert": 0, "document": {"k": 1}},`
	for _, ops := range []string{"", strings.TrimSuffix(strings.Repeat(one, command.MaxWriteBatch+1), ",")} {
		if r := c.raw("admin", `{"bulkWrite": 1, "nsInfo": [{"ns": "d.c"}], "ops": [`+ops+`]}`); r["codeName"] != "InvalidLength" {
			t.Errorf("%d bytes of operations: %v", len(ops), r)
		}
	}
}

// A migration to a shard where the collection is already waits for no transaction there, so that no writer waits behind it.
func TestMoveToAShardWithAnOpenTransaction(t *testing.T) {
	c := newTestCluster(t, 2)
	c.moveColl()
	open := txnLSID + `, "txnNumber": {"$numberLong": "1"}, "autocommit": false`
	c.run("d", `{"update": "c", "updates": [{"q": {"k": 1}, "u": {"$set": {"x": 1}}}], "startTransaction": true, `+open+`}`)
	c.run("admin", `{"moveRange": "d.c", "min": {"k": 10}, "max": {"k": 12}, "toShard": "shard0", "maxTimeMS": 20000}`)
	c.run("d", `{"update": "c", "updates": [{"q": {"k": 2}, "u": {"$set": {"x": 1}}}], "maxTimeMS": 20000}`)
	c.run("admin", `{"commitTransaction": 1, `+open+`}`)
	if got := c.held(); !strings.HasPrefix(got, `[{_id:1,k:1,x:1},{_id:2,k:2,x:1},{_id:11,k:11}] `) {
		t.Errorf("the shards hold %s", got)
	}
}
