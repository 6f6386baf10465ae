package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A unit of work was one entry of the replicated log, however large, and one of 120 MB stopped the set.

// Half of the units of a random workload are staged in tiny chunks, and the members hold the same through elections,
// restarts and snapshots.
func TestReplicasWithStagedUnits(t *testing.T) {
	randomReplicas(t, Options{stageBytes: 400, chunkBytes: 100})
}

// A member loses power at any moment, while it unfolds a unit too, and does it again.
func TestReplayOfStagedUnits(t *testing.T) {
	replay(t, Options{stageBytes: 400, chunkBytes: 100}, false)
}

// largeUnit writes, in one unit, n documents with a pad of that size, updates some and deletes some that were there.
func largeUnit(t *testing.T, e *Engine, ns string, n, pad int, txn bool) *UnitOfWork {
	t.Helper()
	s := e.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(ns)
	u := e.NewUnitOfWork(s)
	view := s
	if txn {
		u.SetTransaction(D("id", 1), 1)
		view = u.Snapshot()
	}
	for i := range n {
		doc := D("_id", i, "n", i, "pad", bytes.Repeat([]byte{byte(i)}, pad))
		rid, old, ok, err := view.FindByID(c, V(i))
		if err != nil {
			t.Fatal(err)
		}
		rid, old = rid.Clone(), append([]byte(nil), old...)
		switch {
		case !ok:
			_, err = u.Insert(c, doc, NoInfo)
		case i%3 == 0:
			err = u.Delete(c, rid, old, NoInfo)
		default:
			err = u.Update(c, rid, old, doc, NoInfo)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return u
}

// A large unit goes through the log in entries of bounded size, others commit between them, and nothing of it can be seen
// before all of it can.
func TestLargeUnitsAreManySmallEntries(t *testing.T) {
	const chunk = 16 << 10
	l := newTestLog(t, 3, Options{stageBytes: 64 << 10, chunkBytes: chunk, CollectInterval: time.Hour, HistoryWindow: time.Nanosecond})
	defer l.close()
	l.elect(l.members[0], 0)
	l.keepCommitting()
	e := l.members[0].e
	create(t, e, "db.c", nil, spec("n_1", D("n", 1)))
	other := create(t, e, "db.other", nil)
	for round, txn := range []bool{false, true, false, true} {
		u := largeUnit(t, e, "db.c", 100, 10<<10, txn)
		before := e.Visible()
		records := e.Catalog().Lookup("db.c").Counters.Records.Load()
		done := make(chan error, 1)
		go func() {
			_, err := e.Commit(context.Background(), u, true)
			done <- err
		}()
		between := 0
		var err error
		for over := false; !over; between++ {
			ts := insert(t, e, other, D("_id", fmt.Sprint(round, "-", between)))
			select {
			case err = <-done:
				over = true
			default:
			}
			if n := len(idsAt(t, e, "db.c", ts)); n != int(records) && int64(n) != e.Catalog().Lookup("db.c").Counters.Records.Load() {
				t.Errorf("round %d: %d documents can be seen, of %d", round, n, records)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if between < 10 || e.Visible() < before {
			t.Errorf("round %d: others wrote %d times meanwhile", round, between)
		}
	}
	l.settle()
	l.same()
	l.mu.Lock()
	for i, x := range l.entries {
		if len(x.data) > 3*chunk { // both that may be on their way
			t.Errorf("entry %d has %d bytes", i+1, len(x.data))
		}
	}
	l.mu.Unlock()
	for _, m := range l.members {
		verifyIndexes(t, m.e)
		if n := stagedChunks(t, m.e); n != 0 {
			t.Errorf("member %d: %d chunks are left", m.name, n)
		}
	}
}

// idsAt are the records of a collection at a timestamp.
func idsAt(t *testing.T, e *Engine, ns string, ts Timestamp) (ids []int64) {
	t.Helper()
	s, err := e.SnapshotAt(ts)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	c := s.Scan(s.Catalog().Lookup(ns), ScanOptions{})
	defer c.Close()
	for c.Next() {
		n, _ := c.RecordID().Int64()
		ids = append(ids, n)
	}
	return ids
}

func stagedChunks(t *testing.T, e *Engine) (n int) {
	t.Helper()
	it, err := e.db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer closeQuietly(it)
	lower, upper := identRange(identStaging)
	for ok := it.SeekGE(lower); ok && bytes.Compare(it.Key(), upper) < 0; ok = it.Next() {
		n++
	}
	return n
}

// What a primary staged and did not commit, because the unit failed or because it was deposed, is taken away.
func TestAbandonedChunksGo(t *testing.T) {
	l := newTestLog(t, 2, Options{stageBytes: 64 << 10, chunkBytes: 16 << 10, CollectInterval: time.Hour, HistoryWindow: time.Nanosecond})
	defer l.close()
	l.elect(l.members[0], 0)
	stop, pumped := make(chan struct{}), make(chan struct{})
	pump := func() {
		defer close(pumped)
		for {
			select {
			case <-stop:
				return
			default:
				l.commitSome(1)
				time.Sleep(20 * time.Microsecond)
			}
		}
	}
	go pump()
	e := l.members[0].e
	create(t, e, "db.c", nil)
	// The collection changes while the unit is staged: it cannot commit.
	u := largeUnit(t, e, "db.c", 100, 2<<10, true)
	d := e.NewUnitOfWork(nil)
	if err := d.DropCollection(e.Catalog().Lookup("db.c")); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Commit(context.Background(), d, true); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Commit(context.Background(), u, true); !ErrConflict(err) {
		t.Errorf("a unit on a collection that was dropped: %v", err)
	}
	for stagedChunks(t, e) > 0 {
		time.Sleep(time.Millisecond)
	}
	// A context that has ended stops it in between.
	create(t, e, "db.c", nil)
	u = largeUnit(t, e, "db.c", 100, 2<<10, true)
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("killed")
	l.mu.Lock()
	l.drop = func() bool { cancel(why); return false }
	l.mu.Unlock()
	if _, err := e.Commit(ctx, u, true); !errors.Is(err, why) {
		t.Errorf("a unit that was killed: %v", err)
	}
	l.mu.Lock()
	l.drop = nil
	l.mu.Unlock()
	for stagedChunks(t, e) > 0 {
		time.Sleep(time.Millisecond)
	}
	// The primary is deposed when some chunks are in the log.
	close(stop)
	<-pumped
	u = largeUnit(t, e, "db.c", 100, 2<<10, true)
	done := make(chan error, 1)
	go func() {
		_, err := e.Commit(context.Background(), u, true)
		done <- err
	}()
	for _, i := range []int{0, 1} {
		for stagedChunks(t, l.members[i].e) < 3 {
			l.commitSome(1)
			time.Sleep(20 * time.Microsecond)
		}
	}
	l.elect(l.members[1], 0)
	if err := <-done; !mongoerr.CodeOf(err).In(mongoerr.CategoryNotPrimary) {
		t.Errorf("a unit of a primary that was deposed: %v", err)
	}
	stop, pumped = make(chan struct{}), make(chan struct{})
	go pump()
	if err := l.members[1].e.dropAbandoned(); err != nil {
		t.Error(err)
	}
	close(stop)
	<-pumped
	l.settle()
	l.same()
	for _, m := range l.members {
		if n := stagedChunks(t, m.e); n != 0 {
			t.Errorf("member %d: %d chunks are left", m.name, n)
		}
	}
}
