package storage

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// The clock jumps forward, or the disk becomes low, while the newest writes are not durable. The history of the last durable moment was dropped, and reads of what no crash can undo, as those of a
// resharding's donors, returned what a loss of power takes back.
func TestHistoryReachesBackToWhatIsDurable(t *testing.T) {
	var ahead atomic.Int64
	e := openMem(t, Options{JournalInterval: time.Hour, CollectInterval: time.Hour, Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	insert(t, e, c, D("_id", 1, "x", 1))
	durable := now(t, e, "db.c")
	s := e.Snapshot()
	u := e.NewUnitOfWork(nil)
	rid, old, ok, err := s.FindByID(c, value.NewInt32(1))
	if err == nil && ok {
		err = u.Update(c, rid.Clone(), old, D("_id", 1, "x", 2), NoInfo)
	}
	s.Release()
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if _, err := e.Commit(context.Background(), u, false); err != nil {
		t.Fatal(err)
	}
	if e.Durable() >= e.Visible() {
		t.Fatalf("durable %v, visible %v", e.Durable(), e.Visible())
	}
	ahead.Store(int64(time.Hour))
	for range 2 {
		if err := e.collect(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	m := e.MajoritySnapshot()
	want(t, "what no crash can undo", list(t, m, "db.c", false), durable)
	m.Release()
	if err := e.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := e.collect(context.Background()); err != nil {
		t.Fatal(err)
	}
	if e.Oldest() != e.Visible() {
		t.Errorf("once all is durable the history begins at %v, want %v", e.Oldest(), e.Visible())
	}
}
