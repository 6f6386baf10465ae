package storage

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A reader does not close the iterators that its view was the last to use: that may take long, and is closeLoop's.
func TestOldIteratorsAreClosedByTheLoop(t *testing.T) {
	e := openMem(t, Options{FS: vfs.NewMem(), JournalInterval: time.Hour})
	c := create(t, e, "db.c", nil)
	copyIn(t, e, c, false, copyDocs(0, 1))
	pool := &e.iters
	pool.closeOld()
	waiting := func() int {
		pool.mu.Lock()
		defer pool.mu.Unlock()
		return len(pool.mu.old)
	}
	s := e.Snapshot()
	if _, ok, err := s.Get(c, NewRecordID(1)); err != nil || !ok {
		t.Fatal(ok, err)
	}
	copyIn(t, e, c, false, copyDocs(1, 1))
	before := waiting()
	s.Release() // with an iterator that is older than what is visible
	if n := waiting(); n != before+1 {
		t.Errorf("%d iterators wait to be closed, then %d", before, n)
	}
}
