package storage

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// prepare prepares a unit's transaction.
func prepare(t *testing.T, e *Engine, u *UnitOfWork) {
	t.Helper()
	p := e.NewUnitOfWork(nil)
	defer p.Rollback()
	u.LogPrepare(p, "shard7")
	var at Timestamp
	p.OnCommit(func(ts Timestamp) { at = ts })
	if _, err := e.Commit(context.Background(), p, true); err != nil {
		t.Fatal(err)
	}
	u.SetPrepared(OpTime{at, e.Term()})
}

// reprepare reopens the only prepared transaction, as a new primary does; its operations are inserts into db.c.
func reprepare(t *testing.T, e *Engine) *UnitOfWork {
	t.Helper()
	list, err := e.Prepared()
	if err != nil || len(list) != 1 {
		t.Fatalf("%d transactions are prepared: %v", len(list), err)
	}
	s := e.Snapshot()
	defer s.Release()
	u := e.NewUnitOfWork(s)
	u.Snapshot()
	u.SetTransaction(list[0].LSID, list[0].Number)
	u.SetPrepared(list[0].At)
	if err := s.PreparedOps(list[0].At.TS, func(ops []byte) error {
		for _, v := range value.Values(ops) {
			if _, err := u.Insert(s.Catalog().Lookup("db.c"), value.LookupDoc(v.Doc(), "o"), NoInfo); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return u
}

// transactionEntries lists the entries of transactions in the oplog: their operations and other fields.
func transactionEntries(t *testing.T, e *Engine) (list []string) {
	t.Helper()
	s := e.Snapshot()
	defer s.Release()
	prev := NoOpTime
	if err := s.SessionEntries(0, func(entry *SessionEntry) error {
		if !ofTransaction(entry.O) {
			return nil
		}
		line := ""
		for k, v := range value.Elements(entry.O) {
			if k == "applyOps" {
				v = value.NewInt32(int32(len(value.Values(v.Doc()))))
			}
			line += fmt.Sprint(k, " ", value.Show(v), ", ")
		}
		if entry.Prev.TS != max(prev.TS, 0) {
			t.Errorf("%s follows %v, not %v", line, entry.Prev, prev)
		}
		prev, list = entry.At, append(list, line)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

// A prepared transaction, small or large, is stored as oplog entries: the operations when it votes, the decision later. A new
// primary reopens it from them; they are kept until then, whatever the oplog's size. What the old primary had staged is removed,
// except for the pieces that the entries refer to.
func TestPreparedTransactionsAreInTheOplog(t *testing.T) {
	for _, tc := range []struct {
		docs  int
		abort bool
		want  string
	}{
		{3, false, "[applyOps 3, prepare true,  commitTransaction 1, commitTimestamp Timestamp(1, 7), ]"},
		{3, true, "[applyOps 3, prepare true,  abortTransaction 1, ]"},
		{300, false, "[applyOps 300, prepare true,  commitTransaction 1, commitTimestamp Timestamp(1, 7), ]"},
		{6000, false, "[applyOps 5843, partialTxn true,  applyOps 157, prepare true, count 6000,  commitTransaction 1, commitTimestamp Timestamp(1, 7), ]"},
		{6000, true, "[applyOps 5843, partialTxn true,  applyOps 157, prepare true, count 6000,  abortTransaction 1, ]"},
	} {
		t.Run(fmt.Sprint(tc.docs, tc.abort), func(t *testing.T) {
			l := newTestLog(t, 2, Options{stageBytes: 256 << 10, chunkBytes: 64 << 10, CollectInterval: time.Hour, HistoryWindow: time.Nanosecond, OplogSize: 1 << 20})
			defer l.close()
			l.elect(l.members[0], 0)
			l.keepCommitting()
			e := l.members[0].e
			create(t, e, "db.c", nil)
			u := largeUnit(t, e, "db.c", tc.docs, 2<<10, true)
			prepare(t, e, u)
			if n := len(idsAt(t, e, "db.c", e.Visible())); n != 0 {
				t.Errorf("%d documents of a prepared transaction are there", n)
			}
			fillOplog(t, e, "db.other", 6000)
			if err := e.TruncateOplog(); err != nil {
				t.Fatal(err)
			}
			l.elect(l.members[1], 0)
			u.Rollback()
			e = l.members[1].e
			again := reprepare(t, e)
			if err := e.dropAbandoned(); err != nil {
				t.Fatal(err)
			}
			if tc.abort {
				a := e.NewUnitOfWork(nil)
				again.LogAbort(a)
				commit(t, e, a)
				again.Rollback()
			} else {
				again.LogCommit(TimestampOf(1, 7))
				commit(t, e, again)
			}
			if got := fmt.Sprint(transactionEntries(t, e)); got != tc.want {
				t.Errorf("logged:\n%s, want\n%s", got, tc.want)
			}
			want := tc.docs
			if tc.abort {
				want = 0
			}
			if n := len(idsAt(t, e, "db.c", e.Visible())); n != want {
				t.Errorf("%d documents of %d are there", n, want)
			}
			if list, err := e.Prepared(); len(list) > 0 || err != nil {
				t.Errorf("%d transactions are still prepared: %v", len(list), err)
			}
			nothingLeft(t, e)
			fillOplog(t, e, "db.more", 3000)
			if err := e.TruncateOplog(); err != nil {
				t.Fatal(err)
			}
			if got := transactionEntries(t, e); len(got) > 0 || stagedKeys(t, e, stagedSeen, stagedEnd) > 0 {
				t.Errorf("the oplog still has %v, and %d keys are staged", got, stagedKeys(t, e, stagedSeen, stagedEnd))
			}
			l.settle()
			l.same()
			verifyIndexes(t, e)
		})
	}
}
