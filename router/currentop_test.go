package router_test

import (
	"fmt"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// currentOps runs $currentOp with options and returns the operations that match, projected.
func (c *testCluster) currentOps(options, match, project string) bson.A {
	c.t.Helper()
	return c.all("admin", fmt.Sprintf(`{"aggregate": 1, "pipeline": [{"$currentOp": %s}, {"$match": %s}, {"$project": %s}], "cursor": {}}`, options, match, project))
}

// A router shows the shards' operations prefixed with their names, or its own operations: idle connections, cursors and transactions too.
func TestCurrentOpOfIdleOnes(t *testing.T) {
	c := newTestCluster(t, 2)
	c.router.Host = "router:27017"
	c.fill(20)
	c.run("db", `{"find": "c", "filter": {"k": {"$lt": 5}}, "batchSize": 2}`)
	c.run("db", `{"find": "c", "sort": {"k": 1}, "batchSize": 3, "noCursorTimeout": true}`)
	cursors := `{"_id": 0, "shard": 1, "ns": 1, "n": "$cursor.nDocsReturned", "b": "$cursor.nBatchesReturned", "t": "$cursor.noCursorTimeout", "f": "$cursor.originatingCommand.find"}`
	idle := `{"type": "idleCursor"}`
	c.expect(c.currentOps(`{"idleCursors": true, "localOps": true}`, idle, cursors+`}, {"$sort": {"n": 1}`),
		`[{"ns":"db.c","n":2,"b":1,"t":false,"f":"c"},{"ns":"db.c","n":3,"b":1,"t":true,"f":"c"}]`)
	if got := c.currentOps(`{"idleCursors": true}`, idle, cursors); len(got) != 2 {
		t.Errorf("the shards' cursors: %s", show(got))
	}
	c.expect(c.currentOps(`{}`, idle, cursors), `[]`)

	c.txn([]txnStep{
		{1, true, "db", `{"insert": "c", "documents": [{"_id": 100, "k": 1}]}`, 0, "", ""},
		{1, false, "db", `{"find": "c", "filter": {"k": 15}}`, 0, "", ""},
	})
	c.expect(c.currentOps(`{"localOps": true}`, `{"type": "idleSession"}`,
		`{"_id": 0, "active": 1, "desc": 1, "n": "$transaction.parameters.txnNumber", "parts": "$transaction.participants", "ro": "$transaction.numReadOnlyParticipants"}`),
		`[{"desc":"inactive transaction","active":false,"n":1,"parts":[{"name":"shard0","coordinator":true,"readOnly":false},`+
			`{"name":"shard1","coordinator":false,"readOnly":true}],"ro":1}]`)
	c.expect(c.currentOps(`{}`, `{"type": "idleSession"}`, `{"_id": 0, "shard": 1, "client_s": 1, "client": 1}`),
		`[{"shard":"shard0","client_s":"router:27017"},{"shard":"shard1","client_s":"router:27017"}]`)
	c.expect(c.currentOps(`{"idleSessions": false}`, `{"type": "idleSession"}`, `{"_id": 1}`), `[]`)

	if got := c.currentOps(`{"idleConnections": true}`, `{"type": "op", "active": false, "desc": "TTLMonitor"}`, `{"shard": 1}`); len(got) != 2 {
		t.Errorf("idle threads: %s", show(got))
	}
	c.expect(c.currentOps(`{}`, `{"active": false, "type": "op"}`, `{"_id": 1}`), `[]`)
}

// An operation of a transaction is shown with it: by the router as a whole, with its shards, and by each shard with its own part.
func TestCurrentOpOfTransactions(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	c.txn([]txnStep{{1, true, "db", `{"insert": "c", "documents": [{"_id": 100, "k": 1}]}`, 0, "", ""}})
	var wg sync.WaitGroup
	wg.Go(func() {
		c.txn([]txnStep{{1, false, "db", `{"find": "c", "filter": {"k": 15, "$where": "sleep(60000)"}, "comment": "mine"}`, mongoerr.Interrupted, "", ""}})
	})
	match := `{"type": "op", "command.comment": "mine", "transaction.readTimestamp": {"$exists": true}}`
	ops := bson.A{}
	for len(ops) == 0 {
		ops = c.currentOps(`{}`, match, `{"_id": 0, "opid": 1, "shard": 1, "active": 1, "n": "$transaction.parameters.txnNumber", "all": "$transaction.participants"}`)
	}
	op := get(ops[0], "opid")
	c.expect(ops, fmt.Sprintf(`[{"shard":"shard1","active":true,"opid":%q,"n":1}]`, op))
	c.expect(c.currentOps(`{"localOps": true}`, `{"type": "op", "command.comment": "mine"}`,
		`{"_id": 0, "n": "$transaction.parameters.txnNumber", "parts": "$transaction.participants", "ro": "$transaction.numReadOnlyParticipants", "read": {"$type": "$transaction.readTimestamp"}}`),
		`[{"n":1,"parts":[{"name":"shard0","coordinator":true,"readOnly":false},{"name":"shard1","coordinator":false,"readOnly":true}],"ro":1,"read":"missing"}]`)
	c.run("admin", fmt.Sprintf(`{"killOp": 1, "op": %q}`, op))
	wg.Wait()
}

// A router's request to a shard in its process is shown there as an operation of the router's client: with its cursor,
// truncated if it is long, and killable by its id.
func TestCurrentOpOfRunningOnes(t *testing.T) {
	c := newTestCluster(t, 2)
	c.router.Host = "router:27017"
	c.fill(20)
	cur := c.run("db", `{"find": "c", "filter": {"k": {"$lt": 5}, "$where": "this.k == 0 || sleep(60000)"}, "batchSize": 1, "comment": "mine"}`)["cursor"]
	var wg sync.WaitGroup
	wg.Go(func() {
		if m := c.raw("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, get(cur, "id"))); m["code"] != int32(mongoerr.Interrupted) {
			t.Errorf("the getMore: %v, want it to be interrupted", m)
		}
	})
	running := bson.A{}
	for len(running) == 0 {
		running = c.currentOps(`{}`, `{"op": "getmore"}`, `{"_id": 0, "opid": 1, "shard": 1, "client_s": 1, "active": 1, "by": {"$type": "$cursor.operationUsingCursorId"}, "plan": "$cursor.planSummary", "c": "$cursor.originatingCommand.comment"}`)
	}
	op := get(running[0], "opid")
	c.expect(running, fmt.Sprintf(`[{"shard":"shard0","client_s":"router:27017","active":true,"opid":%q,"by":"long","plan":"IXSCAN { k: 1 }","c":"mine"}]`, op))
	c.expect(c.currentOps(`{"localOps": true}`, `{"op": "getmore"}`, `{"_id": 0, "ns": 1, "id": {"$type": "$cursor.cursorId"}}`), `[{"ns":"db.c","id":"long"}]`)
	c.expect(c.run("admin", `{"currentOp": 1, "op": "getmore", "$all": true}`)["inprog"].(bson.A)[0].(bson.D)[0].Value, `"shard0"`)
	c.run("admin", fmt.Sprintf(`{"killOp": 1, "op": %q}`, op))
	wg.Wait()
}
