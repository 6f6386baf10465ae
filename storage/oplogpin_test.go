package storage

import (
	"testing"
	"time"

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
