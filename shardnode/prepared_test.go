package shardnode

import (
	"context"
	"fmt"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A prepared transaction whose commit failed released its documents, was applied again on top of whatever others had
// written by then, and committed the part that could be applied.
func TestPreparedTransactionWhoseCommitFails(t *testing.T) {
	n := newTestNode(t)
	ctx := context.Background()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}, {"_id": 2, "x": 0}]}`)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"x": 1}, "name": "x_1"}]}`)
	n.ok("d", inTxn(`{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"x": 1}}, "multi": true}]}`, 1, true))
	n.ok("admin", inTxn(`{"prepareTransaction": 1}`, 1, false))
	commit := inTxn(`{"commitTransaction": 1, "commitTimestamp": {"$timestamp": {"t": 1, "i": 1}}}`, 1, false)
	// A catalog change that no lock prevents makes the unit fail. As long as the index refuses duplicates, the first of the
	// operations can be applied again, and the second cannot.
	var plain []byte
	unique := func(yes bool) {
		if err := n.srv.Node.Docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			c := s.Catalog().Lookup("d.c")
			spec := plain
			if yes {
				plain = c.Index("x_1").Spec.Raw
				spec = value.WithField(plain, "prepareUnique", value.NewBool(true))
			}
			_, err := u.SetIndexSpec(c, "x_1", spec, value.Doc(value.F("collMod", value.NewString("c"))), nil)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	unique(true)
	for range 2 {
		if n.code("admin", commit) == 0 {
			t.Fatal("a part of the transaction was committed")
		}
		for _, id := range []string{"1", "2"} {
			if got := n.code("d", `{"update": "c", "updates": [{"q": {"_id": `+id+`}, "u": {"$set": {"x": 7}}}], "maxTimeMS": 30}`); got != int32(mongoerr.MaxTimeMSExpired) {
				t.Errorf("a write to document %s of the prepared transaction: code %d", id, got)
			}
		}
	}
	unique(false)
	n.ok("admin", commit)
	if got := fmt.Sprint(n.first("d", `{"find": "c"}`)); got != "[{ _id: 1, x: 1 } { _id: 2, x: 1 }]" {
		t.Errorf("%s", got)
	}
	// Operations that are applied again are logged as the first time; change streams used to report replacements.
	logged := n.first("local", `{"find": "oplog.rs", "filter": {"op": "c", "o.applyOps.ns": "d.c", "multiOpType": null}, "projection": {"_id": 0, "o.prepare": 1, "o.applyOps.op": 1, "o.applyOps.o": 1, "o.applyOps.o2": 1}}`)
	if want := `{ o: { applyOps: [ { op: "u", o: { $v: 2, diff: { u: { x: 1 } } }, o2: { _id: 1 } }, { op: "u", o: { $v: 2, diff: { u: { x: 1 } } }, o2: { _id: 2 } } ], prepare: true } }`; len(logged) != 1 || logged[0] != want {
		t.Errorf("logged:\n%s, want\n%s", logged, want)
	}
	n.ok("d", `{"update": "c", "updates": [{"q": {}, "u": {"$set": {"x": 7}}, "multi": true}], "maxTimeMS": 5000}`)
}
