package router_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// heldPeer is a shard whose commits of transactions wait until it is released.
type heldPeer struct {
	cluster.Peer
	came, free chan struct{}
}

// holdCommits makes a shard's commits wait.
func (c *testCluster) holdCommits(shard string) *heldPeer {
	h := &heldPeer{came: make(chan struct{}, 100), free: make(chan struct{})}
	c.between(shard, func(to cluster.Peer) cluster.Peer {
		h.Peer = to
		return h
	})
	return h
}

func (h *heldPeer) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	if !value.Lookup(m.Body, "commitTransaction").IsMissing() {
		h.came <- struct{}{}
		<-h.free
	}
	return h.Peer.Call(ctx, m, dst)
}

// as is raw for another client.
func (c *testCluster) as(client *command.Client, db, cmd string) bson.M {
	c.t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
		c.t.Errorf("%s: %v", cmd, err)
	}
	body, err := bson.Marshal(append(d, bson.E{Key: "$db", Value: db}))
	if err != nil {
		c.t.Error(err)
	}
	return decode(c.t, c.router.Run(context.Background(), client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil))
}

// after makes a read causally follow a reply.
func after(cmd string, r bson.M, level, more string) string {
	ts := r["operationTime"].(bson.Timestamp)
	return fmt.Sprintf(`%s, "readConcern": {"level": "%s", "afterClusterTime": {"$timestamp": {"t": %d, "i": %d}}}%s}`, cmd[:len(cmd)-1], level, ts.T, ts.I, more)
}

// A client that had read what a transaction wrote on one shard read the earlier state on another, though it asked for a
// read after the first one's operationTime: causal reads ignored prepared transactions.
func TestCausalReadsWaitForPreparedTransactions(t *testing.T) {
	c := newTestCluster(t, 2)
	held := c.holdCommits("shard1")
	c.shardedTxnColl()
	c.run("d", `{"insert": "other", "documents": [{"_id": 1}]}`)
	c.run("d", `{"create": "v", "viewOn": "c", "pipeline": []}`)
	c.txn([]txnStep{
		{1, true, "d", `{"update": "c", "updates": [{"q": {"_id": -1}, "u": {"$inc": {"x": 1}}}]}`, 0, "n", "1"},
		{1, false, "d", bumpOne, 0, "n", "1"},
	})
	committed := make(chan bson.M)
	go func() {
		committed <- c.as(command.NewClient(2, "test", "test", nil), "admin", fmt.Sprintf(`{"commitTransaction": 1, %s, "txnNumber": {"$numberLong": "1"}, "autocommit": false}`, txnLSID))
	}()
	<-held.came
	seen := c.run("d", `{"find": "c", "filter": {"_id": -1}}`)
	for get(get(seen["cursor"], "firstBatch").(bson.A)[0], "x") != int32(1) { // the other participant commits at the same time
		seen = c.run("d", `{"find": "c", "filter": {"_id": -1}}`)
	}
	const find, count = `{"find": "c", "filter": {"_id": 1}}`, `{"aggregate": "c", "cursor": {}, "pipeline": [{"$match": {"_id": 1}}]}`
	c.router.Table.Add(command.MapReduceSpec())
	const mapReduce = `{"mapReduce": "c", "map": "function() { emit(1, this.x) }", "reduce": "function(k, v) { return Array.sum(v) }", "out": {"inline": 1}}`
	onView := func(cmd string) string { return strings.Replace(cmd, `"c"`, `"v"`, 1) }
	const distinct = `{"distinct": "c", "key": "x", "query": {"_id": 1}}`
	for _, cmd := range []string{find, count, distinct, onView(find), onView(count), onView(distinct), `{"count": "v"}`,
		`{"aggregate": "other", "cursor": {}, "pipeline": [{"$lookup": {"from": "c", "localField": "_id", "foreignField": "_id", "as": "c"}}]}`} {
		for _, level := range []string{"local", "majority"} {
			if r := c.raw("d", after(cmd, seen, level, `, "maxTimeMS": 50`)); r["code"] != int32(mongoerr.MaxTimeMSExpired) {
				t.Errorf("%s, %s, while the commit is on its way: %v", cmd, level, r)
			}
		}
	}
	if r := c.raw("d", after(mapReduce, seen, "local", `, "maxTimeMS": 50`)); r["code"] != int32(mongoerr.MaxTimeMSExpired) { // it accepts no other level
		t.Errorf("mapReduce while the commit is on its way: %v", r)
	}
	// Neither non-causal reads wait nor reads of other documents.
	c.run("d", `{"find": "c", "filter": {"_id": 1}, "readConcern": {"level": "majority"}}`)
	c.run("d", after(`{"find": "other"}`, seen, "majority", ""))
	got := make(chan bson.M)
	go func() {
		got <- c.as(command.NewClient(3, "test", "test", nil), "d", after(find, seen, "majority", ""))
	}()
	close(held.free)
	c.expect(get((<-got)["cursor"], "firstBatch"), `[{"_id":1,"x":1}]`)
	if r := <-committed; r["ok"] != 1.0 {
		t.Errorf("the commit: %v", r)
	}
	c.run("d", after(find, seen, "local", ""))
}

// A write whose filter selected what a transaction had written did not find it on a shard where the commit was still in flight:
// it changed nothing, and reported that.
func TestWritesByFilterWaitForPreparedTransactions(t *testing.T) {
	c := newTestCluster(t, 2)
	held := c.holdCommits("shard1")
	c.shardedTxnColl()
	c.txn([]txnStep{
		{1, true, "d", `{"update": "c", "updates": [{"q": {"_id": -1}, "u": {"$inc": {"x": 1}}}]}`, 0, "n", "1"},
		{1, false, "d", bumpOne, 0, "n", "1"},
	})
	committed := make(chan bson.M)
	go func() {
		committed <- c.as(command.NewClient(2, "test", "test", nil), "admin", fmt.Sprintf(`{"commitTransaction": 1, %s, "txnNumber": {"$numberLong": "1"}, "autocommit": false}`, txnLSID))
	}()
	<-held.came
	for get(get(c.run("d", `{"find": "c", "filter": {"_id": -1}}`)["cursor"], "firstBatch").(bson.A)[0], "x") != int32(1) {
		continue // the other participant commits at the same time
	}
	const many, one = `{"update": "c", "updates": [{"q": {"x": 1}, "u": {"$set": {"y": 1}}, "multi": true}]}`,
		`{"update": "c", "updates": [{"q": {"_id": 1, "x": 1}, "u": {"$set": {"y": 1}}}]}`
	const remove, modify = `{"delete": "c", "deletes": [{"q": {"_id": 1, "x": 1}, "limit": 0}]}`,
		`{"findAndModify": "c", "query": {"_id": 1, "x": 1}, "update": {"$set": {"y": 1}}}`
	for _, cmd := range []string{many, one, remove, modify} {
		r := c.raw("d", cmd[:len(cmd)-1]+`, "maxTimeMS": 50}`)
		if !strings.Contains(fmt.Sprint(r), "MaxTimeMSExpired") && r["code"] != int32(mongoerr.MaxTimeMSExpired) {
			t.Errorf("%s, while the commit is on its way: %v", cmd, r)
		}
	}
	got := make(chan bson.M)
	go func() { got <- c.as(command.NewClient(3, "test", "test", nil), "d", many) }()
	close(held.free)
	if r := <-got; r["n"] != int32(2) {
		t.Errorf("an update of what the transaction has written: %v", r)
	}
	if r := <-committed; r["ok"] != 1.0 {
		t.Errorf("the commit: %v", r)
	}
}

// A pipeline on a router read joined collections without the command's read concern, so that a snapshot covered only its
// first collection.
func TestJoinsReadAtTheTimeOfTheirCommand(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	c.run("d", `{"insert": "other", "documents": [{"_id": 1}, {"_id": 2}]}`)
	c.run("d", `{"create": "v", "viewOn": "c", "pipeline": []}`)
	ts := c.run("d", `{"find": "other"}`)["operationTime"].(bson.Timestamp)
	c.run("d", bumpOne)
	join := fmt.Sprintf(`{"aggregate": "other", "cursor": {"batchSize": 0}, "readConcern": {"level": "snapshot", "atClusterTime": {"$timestamp": {"t": %d, "i": %d}}},
		"pipeline": [{"$match": {"_id": 1}}, {"$lookup": {"from": "c", "localField": "_id", "foreignField": "_id", "as": "c"}}, {"$set": {"c": "$c.x"}}]}`, ts.T, ts.I)
	c.expect(c.all("d", join), `[{"_id":1,"c":[0]}]`)
	c.expect(c.all("d", strings.Replace(join, `"batchSize": 0`, "", 1)), `[{"_id":1,"c":[0]}]`)
	for _, of := range []string{"c", "v"} { // a find on a view dropped it
		find := fmt.Sprintf(`{"find": "%s", "filter": {"_id": 1}, "readConcern": {"level": "snapshot", "atClusterTime": {"$timestamp": {"t": %d, "i": %d}}}}`, of, ts.T, ts.I)
		c.expect(get(c.run("d", find)["cursor"], "firstBatch"), `[{"_id":1,"x":0}]`)
	}
}

// A shard treats a router as a member, so that the router has to refuse what clients must not write.
func TestClientsDoNotWriteTheHistoryOfSessionsThroughARouter(t *testing.T) {
	c := newTestCluster(t, 1)
	for _, tc := range []struct {
		db, cmd string
		code    mongoerr.Code
	}{
		{"config", `{"insert": "transactions", "documents": [{"_id": 1}], "lsid": {"id": {"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAQ==", "subType": "04"}}}}`, 40528},
		{"config", `{"findAndModify": "system.preparedTransactions", "query": {}, "update": {"$set": {"x": 1}}, "upsert": true}`, mongoerr.InvalidNamespace},
		{"config", `{"drop": "system.retryableWrites"}`, mongoerr.InvalidNamespace},
		{"config", `{"delete": "transactions", "deletes": [{"q": {"_id": 1}, "limit": 1}]}`, 0},
	} {
		if got, _ := c.raw(tc.db, tc.cmd)["code"].(int32); got != int32(tc.code) {
			t.Errorf("%s: code %d, want %d", tc.cmd, got, int32(tc.code))
		}
	}
	r := c.run("admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 1}}], "nsInfo": [{"ns": "config.system.preparedTransactions"}]}`)
	if got := bulkResults(r); got != "0!73" {
		t.Errorf("bulkWrite: %s", got)
	}
}

// A read at a time that nothing has had yet moved the cluster's clock there: to the year 2106, after which writes shared one timestamp.
func TestReadsDoNotMoveTheClock(t *testing.T) {
	c := newTestCluster(t, 2)
	c.shardedTxnColl()
	number := 0
	for _, far := range []string{`{"t": 2147483643, "i": 1}`, `{"t": 4294967295, "i": 4294967294}`, `{"t": 4294967295, "i": 4294967295}`} {
		at := fmt.Sprintf(`{"level": "snapshot", "atClusterTime": {"$timestamp": %s}}`, far)
		after := fmt.Sprintf(`{"afterClusterTime": {"$timestamp": %s}}`, far)
		causal := fmt.Sprintf(`{"level": "snapshot", "afterClusterTime": {"$timestamp": %s}}`, far)
		const txn = `, "lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}}, "txnNumber": {"$numberLong": "NUMBER"}, "startTransaction": true, "autocommit": false`
		for _, cmd := range []string{
			`{"find": "c", "readConcern": %s}`, `{"aggregate": "c", "cursor": {}, "pipeline": [], "readConcern": %s}`, `{"distinct": "c", "key": "x", "readConcern": %s}`,
			`{"find": "c", "readConcern": %s` + txn + `}`,
		} {
			for _, concern := range []string{at, after, causal} {
				number++
				cmd := strings.Replace(fmt.Sprintf(cmd, concern), "NUMBER", fmt.Sprint(number), 1)
				if r := c.raw("d", cmd); r["code"] != int32(mongoerr.InvalidOptions) || !strings.Contains(fmt.Sprint(r["errmsg"]), "must not be greater than the current clusterTime") {
					t.Errorf("%s: %v", cmd, r)
				}
			}
		}
		if r := c.raw("admin", fmt.Sprintf(`{"appendOplogNote": 1, "data": {}, "maxClusterTime": {"$timestamp": %s}}`, far)); r["ok"] == 1.0 {
			t.Errorf("a note at %s: %v", far, r)
		}
	}
	r := c.run("d", `{"insert": "c", "documents": [{"_id": 77}]}`)
	if at := r["operationTime"].(bson.Timestamp); int64(at.T) > time.Now().Unix()+1 {
		t.Errorf("a write has the time %v", at)
	}
}
