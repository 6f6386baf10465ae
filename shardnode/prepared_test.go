package shardnode

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// What readers at a time are told of prepared transactions: wait, come at another time, or nothing.
func TestReadersAndPromises(t *testing.T) {
	var p preparedTxns
	lsid := value.Doc(value.F("id", value.NewString("s")))
	now := time.Now()
	hear := func(ts storage.Timestamp, state string, number int64, decided storage.Timestamp) {
		p.hear(ts, promiseNotice(state, lsid, number, value.F("decided", decided.Value())), now)
	}
	expect := func(at storage.Timestamp, wait, refused bool) {
		t.Helper()
		w, err := p.at(at)
		if w != wait || (err != nil) != refused || err != nil && mongoerr.CodeOf(err) != mongoerr.SnapshotUnavailable {
			t.Errorf("a reader at %d: waits %v, %v; want %v, refused %v", at, w, err, wait, refused)
		}
	}
	expect(5, false, false)
	if p.count.Load() != 0 {
		t.Error("readers look without need")
	}
	hear(10, "prepared", 1, 0)
	expect(9, false, false)
	expect(10, true, false)
	hear(20, "prepared", 2, 0)
	hear(30, "committed", 1, 15) // other shards may show it from 15 on, this one does from 30 on
	expect(14, false, false)
	expect(15, false, true)
	expect(25, true, false) // for the other one
	hear(40, "forgotten", 2, 0)
	expect(29, false, true)
	expect(30, false, false)
	expect(45, false, false)
	p.hear(50, nil, now) // a snapshot is about to replace everything
	expect(60, true, false)
}

// A prepared transaction whose commit failed let go of its documents, was done again upon whatever others had written by
// then, and committed the part of it that could be done again.
func TestPreparedTransactionWhoseCommitFails(t *testing.T) {
	n := newTestNode(t)
	ctx := context.Background()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}, {"_id": 2, "x": 0}]}`)
	n.ok("d", inTxn(`{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"x": 1}}, "multi": true}]}`, 1, true))
	n.ok("admin", inTxn(`{"prepareTransaction": 1}`, 1, false))
	commit := inTxn(`{"commitTransaction": 1, "commitTimestamp": {"$timestamp": {"t": 1, "i": 1}}}`, 1, false)
	// A change of the catalog that no lock keeps out makes the unit fail, and so does its record while a part of it is missing.
	change := func() {
		if err := n.srv.Node.Docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			c := s.Catalog().Lookup("d.c")
			_, err := u.SetCollectionOptions(c, c.Options, value.Doc(value.F("collMod", value.NewString("c"))), nil)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	var stored []byte
	if err := n.srv.Node.Docs.Each(preparedNS, func(doc []byte) error { stored = doc; return nil }); err != nil {
		t.Fatal(err)
	}
	ops := value.Values(value.Lookup(stored, "applyOps").Doc())
	put := func(list ...value.Value) {
		if err := n.srv.Node.Docs.Put(ctx, preparedNS, value.Doc(value.F("_id", value.Lookup(stored, "_id")), value.F("applyOps", value.NewArray(value.ArrayOf(list...))))); err != nil {
			t.Fatal(err)
		}
	}
	change()
	put(ops[0], value.NewString("damaged"))
	for range 2 {
		if n.code("admin", commit) == 0 {
			t.Fatal("a part of the transaction was committed")
		}
		for _, id := range []string{"1", "2"} {
			if got := n.code("d", `{"update": "c", "updates": [{"q": {"_id": `+id+`}, "u": {"$set": {"x": 7}}}], "maxTimeMS": 30}`); got != 50 {
				t.Errorf("a write to document %s of the prepared transaction: code %d", id, got)
			}
		}
	}
	put(ops...)
	n.ok("admin", commit)
	if got := fmt.Sprint(n.first("d", `{"find": "c"}`)); got != "[{ _id: 1, x: 1 } { _id: 2, x: 1 }]" {
		t.Errorf("%s", got)
	}
	n.ok("d", `{"update": "c", "updates": [{"q": {}, "u": {"$set": {"x": 7}}, "multi": true}], "maxTimeMS": 5000}`)
}
