package storage

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/shoaldb/shoal/query/value"
)

// A standalone server's store keeps no oplog; it gets one when the server becomes a set's member, and keeps the one of a member
// that is started without its set.
func TestStandaloneKeepsNoOplog(t *testing.T) {
	fs := vfs.NewMem()
	entries := func(e *Engine) (n int64) {
		if c := e.Catalog().Lookup(OplogNS); c != nil {
			n = c.Counters.Records.Load()
		}
		return n
	}
	open := func(standalone bool) *Engine {
		t.Helper()
		e, err := Open(Options{Dir: "d", FS: fs, Standalone: standalone})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	write := func(e *Engine, ns string, id int32) {
		t.Helper()
		u := e.NewUnitOfWork(nil)
		defer u.Rollback()
		c := e.Catalog().Lookup(ns)
		if c == nil {
			var err error
			if c, err = u.CreateCollection(CollectionSpec{NS: ns}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := u.Insert(c, value.Doc(value.F("_id", value.NewInt32(id))), NoInfo); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Commit(t.Context(), u, true); err != nil {
			t.Fatal(err)
		}
	}
	e := open(true)
	before := e.Visible()
	write(e, "d.c", 1)
	if e.Catalog().Lookup(OplogNS) != nil || e.Visible() <= before {
		t.Errorf("a standalone server has an oplog, or its time stands: %v after %v", e.Visible(), before)
	}
	visible := e.Visible()
	e.Close()
	e = open(true)
	if e.Visible() < visible || e.Catalog().Lookup("d.c").Counters.Records.Load() != 1 {
		t.Errorf("after a restart: %v, was %v", e.Visible(), visible)
	}
	e.Close()

	e = open(false) // it becomes a member
	write(e, "d.c", 2)
	logged := entries(e)
	if logged == 0 {
		t.Error("a member logs nothing")
	}
	e.Close()
	e = open(true) // maintenance
	write(e, "d.c", 3)
	if got := entries(e); got != logged {
		t.Errorf("%d entries in the oplog of a member without its set, there were %d", got, logged)
	}
	e.Close()
	e = open(false)
	defer e.Close()
	write(e, "d.c", 4)
	if got := entries(e); got != logged+1 || e.Catalog().Lookup("d.c").Counters.Records.Load() != 4 {
		t.Errorf("%d entries, want %d", got, logged+1)
	}
}

// On a standalone server local.oplog.rs is a name like others. A member does not take it for its oplog.
func TestStandaloneOwnsTheNameOfTheOplog(t *testing.T) {
	fs := vfs.NewMem()
	e, err := Open(Options{Dir: "d", FS: fs, Standalone: true})
	if err != nil {
		t.Fatal(err)
	}
	u := e.NewUnitOfWork(nil)
	c, err := u.CreateCollection(CollectionSpec{NS: OplogNS})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Insert(c, value.Doc(value.F("_id", value.NewInt32(1))), NoInfo); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Commit(t.Context(), u, true); err != nil {
		t.Fatal(err)
	}
	e.Close()
	if e, err = Open(Options{Dir: "d", FS: fs}); err == nil {
		e.Close()
		t.Fatal("a member opens the store")
	} else if !strings.Contains(err.Error(), "start it without --replSet") {
		t.Error(err)
	}
	if e, err = Open(Options{Dir: "d", FS: fs, Standalone: true}); err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if n := e.Catalog().Lookup(OplogNS).Counters.Records.Load(); n != 1 {
		t.Errorf("%d documents", n)
	}
}
