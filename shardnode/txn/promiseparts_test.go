package txn

import (
	"context"
	"errors"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
)

// watchedSet knows how large the largest unit was, and fails one of those to come.
type watchedSet struct {
	replication.Set
	units, largest int
	failAt         int // 0 for never
}

var errUnit = errors.New("a unit that fails")

func (w *watchedSet) Commit(ctx context.Context, u *storage.UnitOfWork, wc replication.WriteConcern) (storage.Timestamp, error) {
	w.units, w.largest = w.units+1, max(w.largest, u.Size())
	if w.units == w.failAt {
		u.Rollback()
		return 0, errUnit
	}
	return w.Set.Commit(ctx, u, wc)
}

const (
	partBytes  = 12 << 20 // where an array of operations ends
	largeDocs  = 48
	largeBytes = 1 << 20
)

// beginLarge opens a transaction that inserts several times partBytes into db.c.
func beginLarge(t *testing.T, m *Manager) *Session {
	t.Helper()
	err := m.Docs.WriteWith(t.Context(), replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		_, err := u.CreateCollection(storage.CollectionSpec{NS: "db.c"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s := m.begin(t, 1, 5)
	c := s.Txn.View.Catalog().Lookup("db.c")
	for i := range int32(largeDocs) {
		doc := value.Doc(value.F("_id", value.NewInt32(i)), value.F("pad", value.NewBinary(0, make([]byte, largeBytes))))
		if _, err := s.Txn.Unit.Insert(c, doc, storage.NoInfo); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// stored counts the documents of a collection.
func (m *Manager) stored(t *testing.T, ns string) (n int) {
	t.Helper()
	if err := m.Docs.Each(ns, func([]byte) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

// The record of a large promise was one unit of work, several times as large in memory as the transaction.
func TestLargePromisesAreWrittenInParts(t *testing.T) {
	m, n := newTestManager(t)
	s := beginLarge(t, m)
	w := &watchedSet{Set: n.set}
	m.Set, m.Docs.Set = w, w
	if err := m.prepare(m.op(t, 1, 5, false), s.Txn); err != nil {
		t.Fatal(err)
	}
	if parts := m.stored(t, PreparedNS); s.Txn.State != Prepared || parts != s.Txn.parts || parts < 4 || w.largest > 3*partBytes {
		t.Errorf("a promise of %d bytes in state %d: %d parts of %d, the largest unit has %d bytes", largeDocs*largeBytes, s.Txn.State, parts, s.Txn.parts, w.largest)
	}
	m.AbortTxns() // the node is no primary any more, and then it is again
	if err := m.LoadRetries(); err != nil {
		t.Fatal(err)
	}
	if err := m.LoadPrepared(); err != nil || m.prepared.open() != 1 {
		t.Fatalf("%d promises, %v", m.prepared.open(), err)
	}
	if err := m.RestorePrepared(t.Context()); err != nil {
		t.Fatal(err)
	}
	op := m.op(t, 1, 5, false)
	again, release, err := m.retries.take(op)
	if err != nil || again.Txn == nil || again.Txn.State != Prepared {
		t.Fatalf("the transaction was not opened again: %v", err)
	}
	defer release()
	op.Req.Body = value.Doc(value.F("commitTransaction", value.NewInt32(1)), value.F("commitTimestamp", value.NewTimestamp(1, 1)))
	if err := m.commitPrepared(op, again, replication.Visible); err != nil {
		t.Fatal(err)
	}
	if docs, parts := m.stored(t, "db.c"), m.stored(t, PreparedNS); docs != largeDocs || parts != 0 || w.largest > 3*partBytes {
		t.Errorf("%d documents of %d are there, %d parts of the promise are left, the largest unit had %d bytes", docs, largeDocs, parts, w.largest)
	}
}

// A promise without its last part is none: nothing waits for it, and its parts go.
func TestPromisesThatWereNotFinished(t *testing.T) {
	m, n := newTestManager(t)
	s := beginLarge(t, m)
	w := &watchedSet{Set: n.set, failAt: 3}
	m.Set, m.Docs.Set = w, w
	if err := m.prepare(m.op(t, 1, 5, false), s.Txn); !errors.Is(err, errUnit) || s.Txn.State != Open {
		t.Errorf("%v, in state %d", err, s.Txn.State)
	}
	if parts := m.stored(t, PreparedNS); parts != 0 || w.units != 5 {
		t.Errorf("%d parts are left after %d units", parts, w.units)
	}
	for i := range 2 { // a primary was killed in the middle
		part := value.Doc(value.F("_id", PreparedID(s.LSID, 5, i)), value.F("applyOps", value.NewArray(value.ArrayOf())), value.F("more", value.NewBool(true)))
		if err := m.Docs.Put(t.Context(), PreparedNS, part); err != nil {
			t.Fatal(err)
		}
	}
	m.AbortTxns()
	if err := m.LoadPrepared(); err != nil || m.prepared.open() != 0 {
		t.Errorf("%d promises, %v", m.prepared.open(), err)
	}
	if err := m.RestorePrepared(t.Context()); err != nil {
		t.Error(err)
	}
	if s.Txn.State != Aborted || m.stored(t, PreparedNS) != 0 {
		t.Errorf("the transaction is in state %d, %d parts are left", s.Txn.State, m.stored(t, PreparedNS))
	}
}
