package shardnode

import (
	"encoding/base64"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A command that changes the catalog waits for the lock of its collection while another one replaces the collection: collectionUUID, and the UUID of a rename's dropTarget,
// are compared with the new one. A rename of another collection to the name is ahead of the command in the queue for the lock.
func TestUUIDsAreComparedUnderTheLock(t *testing.T) {
	n := newTestNode(t)
	waits := func(comment string) func() bool {
		return func() bool {
			ops := n.ok("admin", `{"currentOp": 1, "command.comment": "`+comment+`", "waitingForLock": true}`)["inprog"].(bson.A)
			return len(ops) == 1
		}
	}
	n.ok("d", `{"create": "source"}`)
	for i, k := range []struct{ db, cmd string }{
		{"d", `{"collMod": "c", "validator": {"x": 1}, "collectionUUID": %s`},
		{"d", `{"createIndexes": "c", "indexes": [{"key": {"y": 1}, "name": "y"}], "collectionUUID": %s`},
		{"d", `{"dropIndexes": "c", "index": "x", "collectionUUID": %s`},
		{"d", `{"convertToCapped": "c", "size": 4096, "collectionUUID": %s`},
		{"d", `{"drop": "c", "collectionUUID": %s`},
		{"admin", `{"renameCollection": "d.c", "to": "d.elsewhere", "collectionUUID": %s`},
		{"admin", `{"renameCollection": "d.c", "to": "e.elsewhere", "collectionUUID": %s`},
		{"admin", `{"renameCollection": "d.source", "to": "d.c", "dropTarget": %s`},
	} {
		for _, coll := range []string{"c", "other"} {
			n.ok("d", `{"drop": "`+coll+`"}`)
			n.ok("d", `{"createIndexes": "`+coll+`", "indexes": [{"key": {"x": 1}, "name": "x"}]}`)
		}
		was := n.srv.Node.Engine.Catalog().Lookup("d.c").UUID
		uuid := `{"$binary": {"base64": "` + base64.StdEncoding.EncodeToString(was[:]) + `", "subType": "04"}}`
		unlock, err := n.srv.Node.locks.Collection(t.Context(), "d.c", lock.X)
		if err != nil {
			t.Fatal(err)
		}
		replaced, answer := make(chan bson.M, 1), make(chan bson.M, 1)
		go func() {
			replaced <- n.do("admin", fmt.Sprintf(`{"renameCollection": "d.other", "to": "d.c", "dropTarget": true, "comment": "first %d"}`, i))
		}()
		await.True(t, "the rename waits", waits(fmt.Sprint("first ", i)))
		go func() { answer <- n.do(k.db, fmt.Sprintf(k.cmd+`, "comment": "second %d"}`, uuid, i)) }()
		await.True(t, "the command waits", waits(fmt.Sprint("second ", i)))
		unlock()
		if r := <-replaced; r["ok"] != 1.0 {
			t.Fatal(r)
		}
		if r := <-answer; r["code"] != int32(mongoerr.CollectionUUIDMismatch) {
			t.Errorf("%s: %v", k.cmd, r)
		}
	}
}
