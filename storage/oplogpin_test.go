package storage

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fillOplog writes n documents of a kilobyte.
func fillOplog(t *testing.T, e *Engine, ns string, n int) {
	t.Helper()
	c := create(t, e, ns, nil)
	pad := string(make([]byte, 1000))
	for i := 0; i < n; i += 100 {
		var docs [][]byte
		for k := range 100 {
			docs = append(docs, D("_id", i+k, "pad", pad))
		}
		insert(t, e, c, docs...)
	}
}

// A pin keeps the oplog's entries after it, until the oplog is several times as large as its limit; its reader then gets an
// error that some of them are gone. They used to be truncated during a migration, without its noticing.
func TestPinnedOplog(t *testing.T) {
	e := openMem(t, Options{OplogSize: 1 << 20, CollectInterval: time.Hour})
	defer e.Close()
	fillOplog(t, e, "db.before", 1500)
	at := e.Visible()
	p, err := e.PinOplog(at)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	truncate := func() Timestamp {
		t.Helper()
		if err := e.TruncateOplog(); err != nil {
			t.Fatal(err)
		}
		first, err := e.OplogFirst()
		if err != nil {
			t.Fatal(err)
		}
		return first
	}
	fillOplog(t, e, "db.c1", 2000)
	if first := truncate(); first < at || first > at+1<<32 || p.Check() != nil {
		t.Errorf("the oplog begins at %v, with a pin at %v: %v", first, at, p.Check())
	}
	entries := func() (n int) {
		s := e.Snapshot()
		defer s.Release()
		cur := s.Scan(s.Catalog().Lookup(OplogNS), ScanOptions{From: NewRecordID(int64(at) + 1)})
		defer cur.Close()
		for cur.Next() {
			n++
		}
		return n
	}
	if n := entries(); n < 2000 {
		t.Errorf("%d entries of 2000 behind the pin", n)
	}
	half := e.Visible()
	fillOplog(t, e, "db.c2", 1000)
	p.Advance(half)
	if first := truncate(); first < half || p.Check() != nil {
		t.Errorf("the oplog begins at %v, with the pin moved to %v: %v", first, half, p.Check())
	}
	if _, err := e.PinOplog(at); mongoerr.CodeOf(err) != mongoerr.CappedPositionLost {
		t.Errorf("a pin of what has been deleted: %v", err)
	}
	fillOplog(t, e, "db.c3", 6000)
	truncate()
	if err := p.Check(); mongoerr.CodeOf(err) != mongoerr.CappedPositionLost {
		t.Errorf("a pin that held more than it may: %v", err)
	}
	if size := e.oplog.counters.Load().DataSize.Load(); size > 2<<20 {
		t.Errorf("the oplog has %d bytes", size)
	}
}

// Truncations at the same time, of the collector and of whoever needs room, count what they delete once. Each of two used to: the oplog then was larger than its
// counters said, for ever, and was truncated too late by as much.
func TestTruncationsAtTheSameTime(t *testing.T) {
	e := openMem(t, Options{OplogSize: 1 << 20, CollectInterval: time.Hour})
	defer e.Close()
	for _, ns := range []string{"db.c1", "db.c2", "db.c3"} {
		fillOplog(t, e, ns, 3000)
		var w sync.WaitGroup
		for range 8 {
			w.Go(func() {
				if err := e.TruncateOplog(); err != nil {
					t.Error(err)
				}
			})
		}
		w.Wait()
	}
	pieces := e.db.NewBatch()
	defer closeQuietly(pieces)
	_, entries, bytes, err := e.oldestEntries(math.MaxInt64, MaxTimestamp, pieces)
	if err != nil {
		t.Fatal(err)
	}
	c := e.oplog.counters.Load()
	if c.Records.Load() != entries || c.DataSize.Load() != bytes || bytes > 1<<20 {
		t.Errorf("%d entries of %d bytes; the counters have %d and %d", entries, bytes, c.Records.Load(), c.DataSize.Load())
	}
}

// A hold keeps the oplog's entries however large it is; its holder is asked to advance, and then they are deleted.
func TestHeldOplog(t *testing.T) {
	e := openMem(t, Options{OplogSize: 1 << 20, CollectInterval: time.Hour})
	defer e.Close()
	h := e.HoldOplog()
	fillOplog(t, e, "db.c1", 6000)
	if err := e.TruncateOplog(); err != nil {
		t.Fatal(err)
	}
	if cut, err := e.OplogCut(); err != nil || cut != 0 {
		t.Errorf("cut up to %v: %v", cut, err)
	}
	select {
	case <-h.Asked():
	default:
		t.Error("nobody asked the holder")
	}
	at := e.Visible()
	fillOplog(t, e, "db.c2", 6000)
	h.Set(at)
	if err := e.TruncateOplog(); err != nil {
		t.Fatal(err)
	}
	if cut, err := e.OplogCut(); err != nil || cut != at {
		t.Errorf("cut up to %v, held at %v: %v", cut, at, err)
	}
	first, err := e.OplogFirst()
	if err != nil || first <= at {
		t.Errorf("the oplog begins at %v, held at %v: %v", first, at, err)
	}
}

// What has been truncated cannot be pinned by a later process either. It used to succeed after a restart: a resharding missed the entries that were gone.
func TestPinAfterARestart(t *testing.T) {
	o := Options{FS: vfs.NewMem(), OplogSize: 1 << 20, CollectInterval: time.Hour}
	reopened := func(e *Engine) *Engine {
		t.Helper()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		return openMem(t, o)
	}
	pin := func(e *Engine, at Timestamp, want mongoerr.Code) {
		t.Helper()
		p, err := e.PinOplog(at)
		code(t, err, want)
		if err == nil {
			code(t, p.Check(), mongoerr.OK)
			p.Release()
		}
	}
	e := openMem(t, o)
	pin(e, 0, mongoerr.OK)
	fillOplog(t, e, "db.c1", 100)
	e = reopened(e)
	first, err := e.OplogFirst()
	if err != nil || first == 0 {
		t.Fatal(first, err)
	}
	pin(e, 0, mongoerr.OK) // the oplog was never truncated
	pin(e, first-1, mongoerr.OK)
	at := e.Visible()
	fillOplog(t, e, "db.c2", 3000)
	if err := e.TruncateOplog(); err != nil {
		t.Fatal(err)
	}
	pin(e, at, mongoerr.CappedPositionLost)
	e = reopened(e)
	defer func() { _ = e.Close() }()
	pin(e, at, mongoerr.CappedPositionLost)
	cut, err := e.OplogCut()
	if err != nil {
		t.Fatal(err)
	}
	pin(e, cut-1, mongoerr.CappedPositionLost)
	pin(e, cut, mongoerr.OK)
	pin(e, cut+1, mongoerr.OK) // between two entries
}

// A member that becomes the primary knows what others have truncated, even if it has its data from another member's snapshot. A pin of a former primary
// is lost when its successor truncates the entries.
func TestPinOnAnotherMember(t *testing.T) {
	o := Options{OplogSize: 1 << 20, CollectInterval: time.Hour}
	l := newTestLog(t, 3, o)
	defer l.close()
	w := &replicaLoad{l: l}
	w.run(0)
	fill := func(m *testMember, ns string) (at Timestamp) {
		t.Helper()
		at = m.e.Visible()
		fillOplog(t, m.e, ns, 3000)
		if err := m.e.TruncateOplog(); err != nil {
			t.Fatal(err)
		}
		cut, err := m.e.OplogCut()
		if err != nil || cut <= at {
			t.Fatalf("cut up to %v, written after %v: %v", cut, at, err)
		}
		return at
	}
	a, b, c := l.members[0], l.members[1], l.members[2]
	l.elect(a, 0)
	at := fill(a, "db.c1")
	l.restore(c, a, true, o)
	kept, err := a.e.PinOplog(a.e.Visible())
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Release()
	l.elect(b, 0)
	for _, m := range l.members {
		_, err := m.e.PinOplog(at)
		code(t, err, mongoerr.CappedPositionLost)
		p, err := m.e.PinOplog(m.e.Visible())
		code(t, err, mongoerr.OK)
		p.Release()
	}
	code(t, kept.Check(), mongoerr.OK)
	fill(b, "db.c2")
	close(w.end)
	<-w.done
	l.settle()
	code(t, kept.Check(), mongoerr.CappedPositionLost)
}

// A truncation that is not committed, as when the primary steps down, loses no pins, and what it would have deleted may still be pinned. Pins used to be lost as soon as the truncation was decided, which ended the
// migration or resharding that needed them.
func TestTruncationThatIsNotCommitted(t *testing.T) {
	l := newTestLog(t, 3, Options{OplogSize: 1 << 20, CollectInterval: time.Hour})
	defer l.close()
	w := &replicaLoad{l: l}
	w.run(0)
	m := l.members[0]
	l.elect(m, 0)
	fillOplog(t, m.e, "db.c1", 100)
	at := m.e.Visible()
	p, err := m.e.PinOplog(at)
	code(t, err, mongoerr.OK)
	defer p.Release()
	fillOplog(t, m.e, "db.c2", 9000)
	refuse := func(drop func() bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.drop = drop
	}
	refuse(func() bool { return true })
	code(t, m.e.TruncateOplog(), mongoerr.NotWritablePrimary)
	code(t, p.Check(), mongoerr.OK)
	again, err := m.e.PinOplog(at)
	code(t, err, mongoerr.OK)
	if err == nil {
		again.Release()
	}
	refuse(nil)
	code(t, m.e.TruncateOplog(), mongoerr.OK)
	code(t, p.Check(), mongoerr.CappedPositionLost)
	_, err = m.e.PinOplog(at)
	code(t, err, mongoerr.CappedPositionLost)
	p.Advance(m.e.Visible())
	code(t, p.Check(), mongoerr.CappedPositionLost)
	close(w.end)
	<-w.done
}
