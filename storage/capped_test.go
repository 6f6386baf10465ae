package storage

import (
	"context"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/shoaldb/shoal/storage/catalog"
)

// steps is the number of steps that an iterator has made inside the store.
func steps(it *pooledIter) int {
	s := it.Stats()
	return s.ForwardStepCount[pebble.InternalIterCall] + s.ForwardSeekCount[pebble.InternalIterCall]
}

// Every insert into a full capped collection searched for the oldest record from the table's beginning, past all records
// that had been deleted within the history window: 3 ms an insert after some ten thousand. The search now begins where the
// last one was deleted, and so does a reader.
func TestFullCappedCollectionRemembersItsOldest(t *testing.T) {
	e := openMem(t, Options{CollectInterval: time.Hour, HistoryWindow: time.Hour})
	defer e.Close()
	c := create(t, e, "db.c", D("capped", true, "size", 1<<20, "max", 10))
	n := 0
	for range 3000 {
		insert(t, e, c, D("_id", n))
		n++
	}
	u := e.NewUnitOfWork(nil)
	rid, _, err := u.oldest(c)
	if got, _ := rid.Int64(); err != nil || got != int64(n-9) {
		t.Fatalf("the oldest is record %d, %v", got, err)
	}
	if s := steps(u.latest.it); s > 50 {
		t.Errorf("the oldest is found after %d steps", s)
	}
	u.Rollback()
	s := e.Snapshot()
	defer s.Release()
	r := s.Scan(c, ScanOptions{})
	defer r.Close()
	if !r.Next() {
		t.Fatal(r.Err())
	}
	if s := steps(r.it); s > 50 {
		t.Errorf("a reader finds the first after %d steps", s)
	}
	// An earlier snapshot sees what was there then.
	old := s.Timestamp()
	insert(t, e, c, D("_id", n), D("_id", n+1))
	if ids := idsAt(t, e, "db.c", old); len(ids) != 10 || ids[0] != int64(n-9) {
		t.Errorf("a reader of before finds %v", ids)
	}
	if ids := idsAt(t, e, "db.c", e.Visible()); len(ids) != 10 || ids[0] != int64(n-7) {
		t.Errorf("a reader of now finds %v", ids)
	}
}

// A unit that inserts into two capped collections in turn forgot what it had deleted from the one when it deleted from the
// other, and deleted it again.
func TestUnitOfTwoCappedCollections(t *testing.T) {
	e := openMem(t, Options{CollectInterval: time.Hour})
	defer e.Close()
	a := create(t, e, "db.a", D("capped", true, "size", 1<<20, "max", 4))
	b := create(t, e, "db.b", D("capped", true, "size", 1<<20, "max", 4))
	for i := range 4 {
		insert(t, e, a, D("_id", i))
		insert(t, e, b, D("_id", i))
	}
	u := e.NewUnitOfWork(nil)
	for i := range 3 {
		for _, c := range []*catalog.Collection{a, b} {
			if _, err := u.Insert(c, D("_id", 10+i), NoInfo); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := e.Commit(context.Background(), u, false); err != nil {
		t.Fatal(err)
	}
	verifyIndexes(t, e)
	for _, ns := range []string{"db.a", "db.b"} {
		if ids := idsAt(t, e, ns, e.Visible()); len(ids) != 4 || ids[0] != 4 {
			t.Errorf("%s has records %v", ns, ids)
		}
	}
}
