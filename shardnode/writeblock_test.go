package shardnode

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// On a set that is no shard, DDL that was admitted before users were blocked, and waits for its collection or database, is refused once it has that. It used to be executed after the reply.
func TestDDLThatWaitsWhenUsersAreBlocked(t *testing.T) {
	for _, x := range []struct{ db, cmd string }{
		{"d", `{"drop": "c"}`}, {"d", `{"create": "c", "capped": true, "size": 4096}`}, {"d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`}, {"d", `{"dropIndexes": "c", "index": "b"}`},
		{"d", `{"collMod": "c", "validator": {"a": 1}}`}, {"d", `{"convertToCapped": "c", "size": 4096}`}, {"admin", `{"renameCollection": "d.c", "to": "d.e"}`}, {"d", `{"dropDatabase": 1}`},
	} {
		n := newTestNode(t)
		n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
		n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}]}`)
		locks, other := n.srv.Node.locks, n.other()
		unlock, err := locks.Collection(t.Context(), "d.c", lock.X)
		if err != nil {
			t.Fatal(err)
		}
		code, blocked := make(chan mongoerr.Code, 1), make(chan int32, 1)
		go func() { code <- mongoerr.Code(n.code(x.db, x.cmd)) }()
		await.True(t, x.cmd+" waits for the lock", func() bool {
			readers, writers := locks.Queued()
			return readers+writers == 1
		})
		go func() { blocked <- other.code("admin", `{"setUserWriteBlockMode": 1, "global": true}`) }()
		await.True(t, "users are blocked", func() bool {
			return len(other.first("config", `{"find": "user_writes_critical_sections"}`)) == 1
		})
		unlock()
		if got := <-code; got != mongoerr.UserWritesBlocked {
			t.Errorf("%s: %v", x.cmd, got)
		}
		if got := <-blocked; got != 0 {
			t.Errorf("the block: %d", got)
		}
		c := n.srv.Engine.Catalog().Lookup("d.c")
		if c == nil || c.Capped || c.Index("a") != nil || c.Index("b") == nil {
			t.Errorf("%s was executed: %+v", x.cmd, c)
		}
	}
}

// A retryable write that was executed before users were blocked answers as it did then: it writes nothing. It used to be refused, so that its client took it for not executed. Of a batch that was
// executed in part the rest is refused.
func TestRetriedWritesWhileUsersAreBlocked(t *testing.T) {
	fields := []string{"n", "nModified", "nInserted", "nUpdated", "nErrors", "upserted", "lastErrorObject", "value", "retriedStmtIds", "retriedStmtId"}
	for i, x := range []struct{ db, cmd, again string }{
		{"d", `{"insert": "c", "documents": [{"_id": 10}, {"_id": 11}]}`, `{ n: 2, retriedStmtIds: [ 0, 1 ] }`},
		{"d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`, `{ n: 1, nModified: 1, retriedStmtIds: [ 0 ] }`},
		{"d", `{"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}]}`, `{ n: 1, retriedStmtIds: [ 0 ] }`},
		{
			"d", `{"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"x": 1}}, "new": true}`,
			`{ lastErrorObject: { n: 1, updatedExisting: true }, value: { _id: 1, x: 1 }, retriedStmtId: 0 }`,
		},
		{
			"admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 20}}, {"update": 0, "filter": {"_id": 1}, "updateMods": {"$inc": {"x": 1}}}], "nsInfo": [{"ns": "d.c"}]}`,
			`{ nModified: 1, nInserted: 1, nErrors: 0, retriedStmtIds: [ 0, 1 ] }`,
		},
	} {
		n := newTestNode(t)
		n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}, {"_id": 2}]}`)
		cmd := inSession(x.cmd, i+1)
		n.ok(x.db, cmd)
		n.ok("admin", `{"setUserWriteBlockMode": 1, "global": true}`)
		if got := shown(t, n.do(x.db, cmd), fields...); got != x.again {
			t.Errorf("%s: %s, want %s", x.cmd, got, x.again)
		}
		if m := n.do(x.db, inSession(x.cmd, i+2)); m["code"] != int32(mongoerr.UserWritesBlocked) && m["nErrors"] != int32(1) {
			t.Errorf("%s, which is new: %v", x.cmd, m)
		}
		if docs := n.first("d", `{"find": "c", "filter": {"_id": 1, "x": {"$gt": 1}}}`); len(docs) > 0 {
			t.Errorf("%s was executed twice: %v", x.cmd, docs)
		}
	}
}

// The statements of a retryable write that were not executed before users were blocked are refused beside those that were.
func TestRetriedBatchThatWasExecutedInPart(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", inSession(`{"insert": "c", "documents": [{"_id": 1}]}`, 1))
	n.ok("d", inSession(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`, 2))
	n.ok("admin", `{"setUserWriteBlockMode": 1, "global": true}`)
	m := n.ok("d", inSession(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}, {"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`, 2))
	errs, _ := m["writeErrors"].(bson.A)
	if m["n"] != int32(1) || len(errs) != 1 {
		t.Fatalf("%v", m)
	}
	if e := errs[0].(bson.D); e[0].Value != int32(1) || e[1].Value != int32(mongoerr.UserWritesBlocked) {
		t.Errorf("%v", errs)
	}
	if got := n.first("d", `{"find": "c"}`); fmt.Sprint(got) != `[{ _id: 1, x: 1 }]` {
		t.Errorf("%v", got)
	}
}
