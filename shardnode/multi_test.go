package shardnode

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/internal/await"
)

// A multi-document update wrote all documents in one unit, or none: while transactions wrote to one of them after another, it
// was retried for as long as they did.
func TestMultiWritesPassBusyDocuments(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 0, "x": 0}, {"_id": 1, "x": 0}, {"_id": 2, "x": 0}, {"_id": 3, "x": 0}]}`)
	claim := func(id, number int) string {
		return inTxn(fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d}, "u": {"$set": {"y": 1}}}]}`, id), number, true)
	}
	written := func(id int) {
		t.Helper()
		want := fmt.Sprintf("[{ _id: %d, x: 1 }]", id)
		await.State(t, fmt.Sprintf("document %d is written while another one is busy", id), func() (string, bool) {
			got := fmt.Sprint(n.first("d", fmt.Sprintf(`{"find": "c", "filter": {"_id": %d}}`, id)))
			return got, got == want
		})
	}
	n.ok("d", claim(1, 1))
	done := make(chan bson.M)
	go func() {
		other := &testNode{t: t, srv: n.srv, cl: command.NewClient(2, "test:2", "test:27017", nil)}
		done <- other.do("d", `{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"x": 1}}, "multi": true}], "maxTimeMS": 60000}`)
	}()
	written(0)
	n.ok("d", otherSession(claim(3, 1)))
	n.ok("admin", inTxn(`{"abortTransaction": 1}`, 1, false))
	written(1)
	written(2)
	n.ok("admin", otherSession(inTxn(`{"abortTransaction": 1}`, 1, false)))
	if r := <-done; r["n"] != int32(4) || r["nModified"] != int32(4) {
		t.Errorf("the update: %v", r)
	}
	written(3)
}

// A transaction's statement on many documents lists all of them before it writes the first. The list was in memory: 68 MB for
// 2,000,000 documents.
func TestMultiWritesOfATransactionListInAFile(t *testing.T) {
	n := newTestNode(t)
	n.fill("c", 3000, `{"a": 1}`)
	dir := filepath.Join(t.TempDir(), "list")
	n.srv.Node.TempDir, n.srv.Node.writes.ListMemory = dir, 1000
	r := n.ok("d", inTxn(`{"update": "c", "updates": [{"q": {"a": {"$gte": 0}}, "u": {"$inc": {"a": 1}}, "multi": true, "hint": "a_1"}]}`, 1, true))
	if r["n"] != int32(3000) || r["nModified"] != int32(3000) {
		t.Errorf("the update: %v", r)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("no file was made, or one is left: %v, %v", left, err)
	}
	n.ok("admin", inTxn(`{"commitTransaction": 1}`, 1, false))
	for a := range 5 {
		if got := len(n.first("d", fmt.Sprintf(`{"find": "c", "filter": {"a": %d}, "batchSize": 4000}`, a+1))); got != 600 {
			t.Errorf("a is %d in %d documents", a+1, got)
		}
	}
	// documents can be deleted where no file can be made
	n.srv.Node.TempDir = filepath.Join(dir, "file")
	if err := os.WriteFile(n.srv.Node.TempDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := n.ok("d", inTxn(`{"delete": "c", "deletes": [{"q": {"_id": {"$gte": 10}}, "limit": 0}]}`, 2, true)); r["n"] != int32(2990) {
		t.Errorf("the delete: %v", r)
	}
	n.ok("admin", inTxn(`{"commitTransaction": 1}`, 2, false))
	if got := len(n.first("d", readAll)); got != 10 {
		t.Errorf("%d documents are left", got)
	}
}
