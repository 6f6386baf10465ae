package txn

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// watchedSet counts units and their bytes, and fails one of those to come.
type watchedSet struct {
	replication.Set
	units, bytes int
	failAt       int // 0 for never
}

var errUnit = errors.New("a unit that fails")

func (w *watchedSet) Commit(ctx context.Context, u *storage.UnitOfWork, wc replication.WriteConcern) (storage.Timestamp, error) {
	w.units, w.bytes = w.units+1, w.bytes+u.Size()
	if w.units == w.failAt {
		u.Rollback()
		return 0, errUnit
	}
	return w.Set.Commit(ctx, u, wc)
}

const (
	partBytes  = 12 << 20 // the size at which an array of operations ends
	largeDocs  = 48
	largeBytes = 1 << 20
)

// beginLarge opens a transaction that inserts several times partBytes into db.c.
func beginLarge(t *testing.T, m *Manager) *Session {
	t.Helper()
	err := m.Docs.WriteWith(t.Context(), replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		_, err := u.CreateCollection(storage.CollectionSpec{NS: "db.c"})
		_, again := u.CreateCollection(storage.CollectionSpec{NS: TransactionsNS})
		return errors.Join(err, again)
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

// restored reopens the prepared transaction of session 1 and number 5, as a node that becomes primary does.
func (m *Manager) restored(t *testing.T) (s *Session, release func()) {
	t.Helper()
	m.AbortTxns() // the node is no longer primary, and then it is again
	if err := m.LoadRetries(); err != nil {
		t.Fatal(err)
	}
	if err := m.LoadPrepared(); err != nil || m.prepared.open() != 1 {
		t.Fatalf("%d transactions are prepared, %v", m.prepared.open(), err)
	}
	if err := m.RestorePrepared(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, release, err := m.take(m.op(t, 1, 5, false))
	if err != nil || s.Txn == nil || s.Txn.State != Prepared {
		t.Fatalf("the transaction was not opened again: %v", err)
	}
	return s, release
}

// logged lists the entries of transactions in the oplog: the number of operations of each, and its other fields.
func (m *Manager) logged(t *testing.T) (entries []string, first, last uint64) {
	t.Helper()
	var prev value.Value
	if err := m.Docs.Each(storage.OplogNS, func(doc []byte) error {
		if value.Lookup(doc, "op").Str() != "c" || value.Lookup(doc, "lsid").IsMissing() {
			return nil
		}
		o, line := value.LookupDoc(doc, "o"), ""
		for k, v := range value.Elements(o) {
			if k == "applyOps" {
				line += " " + strconv.Itoa(len(value.Values(v.Doc()))) + " operations"
			} else {
				line += " " + k + " " + value.Show(v)
			}
		}
		before := value.Lookup(value.LookupDoc(doc, "prevOpTime"), "ts")
		if want := max(prev.TimestampU64(), 0); before.TimestampU64() != want {
			t.Errorf("%s: prevOpTime %v", line, value.Show(before))
		}
		prev, entries = value.Lookup(doc, "ts"), append(entries, line[1:])
		if last = prev.TimestampU64(); first == 0 {
			first = last
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return entries, first, last
}

// The vote of a large transaction used to be a record of its own besides the oplog's entries, read from the store, written and
// removed again. It now consists of the oplog entries, most of which the transaction has sent ahead: what the vote and the
// decision write does not grow with the transaction.
func TestVotesOfLargeTransactionsAreSmall(t *testing.T) {
	m, n := newTestManager(t)
	s := beginLarge(t, m)
	w := &watchedSet{Set: n.set}
	m.Set, m.Docs.Set, n.set = w, w, w
	if err := m.prepare(m.op(t, 1, 5, false), s.Txn, "shard7"); err != nil {
		t.Fatal(err)
	}
	if s.Txn.State != Prepared || w.units != 1 || w.bytes > 2*partBytes+largeBytes {
		t.Errorf("a transaction of %d bytes is in state %d after %d units with %d bytes", largeDocs*largeBytes, s.Txn.State, w.units, w.bytes)
	}
	record := func(state string, starts bool) {
		t.Helper()
		_, began, wrote := m.logged(t)
		if err := m.FlushRetries(t.Context()); err != nil {
			t.Error(err)
		}
		doc, err := m.Docs.Get(TransactionsNS, value.NewDocument(s.LSID))
		first, last := value.Lookup(doc, "startOpTime"), value.Lookup(value.LookupDoc(doc, "lastWriteOpTime"), "ts")
		if err != nil || value.Lookup(doc, "state").Str() != state || last.TimestampU64() != wrote || first.IsMissing() == starts ||
			starts && value.Lookup(first.Doc(), "ts").TimestampU64() != began || value.SafeInt64(value.Lookup(doc, "txnNum")) != s.Number {
			t.Errorf("%s: %s, %v", state, value.ShowDoc(doc), err)
		}
	}
	record("prepared", true)
	again, release := m.restored(t)
	defer release()
	record("prepared", true)
	op := m.op(t, 1, 5, false)
	op.Req.Body = value.Doc(value.F("commitTransaction", value.NewInt32(1)), value.F("commitTimestamp", value.NewTimestamp(1, 1)))
	w.units, w.bytes = 0, 0
	if err := m.commitPrepared(op, again, replication.Visible); err != nil {
		t.Fatal(err)
	}
	if docs := m.stored(t, "db.c"); docs != largeDocs || w.units != 1 || w.bytes > 2*partBytes+largeBytes {
		t.Errorf("%d documents of %d are there, after %d units with %d bytes", docs, largeDocs, w.units, w.bytes)
	}
	if list, err := m.Engine.Prepared(); len(list) > 0 || err != nil {
		t.Errorf("%d transactions are prepared still: %v", len(list), err)
	}
	record("committed", false)
	entries, _, _ := m.logged(t)
	if got, want := fmt.Sprint(entries), "[12 operations partialTxn true 12 operations partialTxn true 12 operations partialTxn true 12 operations prepare true count 48 commitTransaction 1 commitTimestamp Timestamp(1, 1)]"; got != want {
		t.Errorf("logged:\n%s, want\n%s", got, want)
	}
}

// A vote that was not stored is none: the transaction stays open, no reader waits for it, and a node that becomes
// primary does not know of it. One that is decided is not reopened either.
func TestVotesThatWereNotStored(t *testing.T) {
	m, n := newTestManager(t)
	s := beginLarge(t, m)
	w := &watchedSet{Set: n.set, failAt: 1}
	m.Set, m.Docs.Set = w, w
	if err := m.prepare(m.op(t, 1, 5, false), s.Txn, "shard7"); !errors.Is(err, errUnit) || s.Txn.State != Open {
		t.Errorf("%v, in state %d", err, s.Txn.State)
	}
	none := func() {
		t.Helper()
		m.AbortTxns()
		if err := m.LoadPrepared(); err != nil || m.prepared.open() != 0 {
			t.Errorf("%d transactions are prepared, %v", m.prepared.open(), err)
		}
		if err := m.RestorePrepared(t.Context()); err != nil {
			t.Error(err)
		}
		if s.Txn.State != Aborted || m.stored(t, "db.c") != 0 || m.counters.Open.Load() != 0 {
			t.Errorf("the transaction is in state %d, %d documents are there", s.Txn.State, m.stored(t, "db.c"))
		}
	}
	none()
	s = m.begin(t, 1, 6)
	if _, err := s.Txn.Unit.Insert(s.Txn.View.Catalog().Lookup("db.c"), value.Doc(value.F("_id", value.NewInt32(1))), storage.NoInfo); err != nil {
		t.Fatal(err)
	}
	op := m.op(t, 1, 6, false)
	if err := m.prepare(op, s.Txn, "shard7"); err != nil {
		t.Fatal(err)
	}
	if err := m.abortPrepared(op, s); err != nil {
		t.Fatal(err)
	}
	entries, _, last := m.logged(t)
	doc, err := m.Docs.Get(TransactionsNS, value.NewDocument(s.LSID))
	if err != nil || value.Lookup(doc, "state").Str() != "aborted" || value.Lookup(value.LookupDoc(doc, "lastWriteOpTime"), "ts").TimestampU64() != last {
		t.Errorf("%s, %v", value.ShowDoc(doc), err)
	}
	if got, want := fmt.Sprint(entries), "[1 operations prepare true abortTransaction 1]"; got != want {
		t.Errorf("logged %s, want %s", got, want)
	}
	none()
}

// A store with the vote of an earlier version does not accept writes: it would lose what other shards may have committed.
func TestVotesOfEarlierVersionsAreNotLost(t *testing.T) {
	m, _ := newTestManager(t)
	record := value.Doc(value.F("_id", value.NewInt32(1)), value.F("applyOps", value.NewArray(value.ArrayOf())))
	if err := m.Docs.Put(t.Context(), oldPreparedNS, record); err != nil {
		t.Fatal(err)
	}
	if err := m.RestorePrepared(t.Context()); mongoerr.CodeOf(err) != mongoerr.IncompatibleServerVersion {
		t.Errorf("%v", err)
	}
}
