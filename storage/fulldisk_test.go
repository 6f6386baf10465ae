package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The disk is full for one kind of file at a time: writes fail with an error, or the store fails with one; nothing
// acknowledged is lost, and once there is room again, or after a restart, it continues.
func TestFullDisk(t *testing.T) {
	for _, file := range []string{".log", ".sst", "MANIFEST", "WITNESS", ""} {
		t.Run("file "+file, func(t *testing.T) { fillDisk(t, file) })
	}
}

func fillDisk(t *testing.T, file string) {
	mem := vfs.NewCrashableMem()
	var full atomic.Bool
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.Contains(op.Path, file) && op.Kind != errorfs.OpRemove {
			return fmt.Errorf("write: %w", syscall.ENOSPC)
		}
		return nil
	}))
	told := make(chan error, 10)
	e := openMem(t, Options{FS: fs, JournalInterval: time.Millisecond, OnFailure: func(err error) { told <- err }})
	c := create(t, e, "db.c", nil)
	var acked []int
	next := 0
	write := func() error {
		next++
		u := e.NewUnitOfWork(nil)
		defer u.Rollback()
		_, err := u.Insert(c, D("_id", next), NoInfo)
		if err == nil {
			_, err = e.Commit(context.Background(), u, true)
		}
		if err == nil {
			acked = append(acked, next)
		}
		return err
	}
	for range 20 {
		if err := write(); err != nil {
			t.Fatal(err)
		}
	}
	full.Store(true)
	if file == ".sst" || file == "MANIFEST" { // a failed log switch ends the process, see Options.OnFailure
		if _, err := e.db.AsyncFlush(); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		if err := write(); err != nil {
			code(t, err, mongoerr.OutOfDiskSpace)
		}
		time.Sleep(time.Millisecond) // the disk stays full for some rounds of the journal and of the flush
	}
	full.Store(false)
	if e.failure() != nil {
		code(t, <-told, mongoerr.OutOfDiskSpace)
		code(t, write(), mongoerr.OutOfDiskSpace)
		t.Logf("the store failed after %d writes", len(acked))
		crashed := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: newRand(1)})
		_ = e.Close()
		e = openMem(t, Options{FS: crashed})
		c = e.Catalog().Lookup("db.c")
	} else if err := e.db.Flush(); err != nil {
		t.Errorf("with room again: %v", err)
	}
	defer e.Close()
	if err := write(); err != nil {
		t.Errorf("with room again: %v", err)
	}
	verify(t, e)
	s := e.Snapshot()
	defer s.Release()
	for _, id := range acked {
		if _, _, ok, err := s.FindByID(c, V(id)); err != nil || !ok {
			t.Errorf("%d was acknowledged and is lost: %v", id, err)
		}
	}
}

// Flushes that find no room are not retried at once: that would occupy a processor and fill the log.
func TestFlushesOnAFullDiskAreNotBusy(t *testing.T) {
	var full atomic.Bool
	var tried atomic.Int64
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
			tried.Add(1)
			return fmt.Errorf("create: %w", syscall.ENOSPC)
		}
		return nil
	}))
	e := openMem(t, Options{FS: fs})
	defer e.Close()
	insert(t, e, create(t, e, "db.c", nil), D("_id", 1))
	full.Store(true)
	done, err := e.db.AsyncFlush()
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(errorBackoff / 3) // the attempts in the meantime are counted
	full.Store(false)
	if n := tried.Load(); n > 2 {
		t.Errorf("tried %d times in %v", n, errorBackoff/3)
	}
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("with room again, it does not flush")
	}
}

// openSmall opens a store with much room on a disk of which a gigabyte has to be free.
func openSmall(t *testing.T) (*Engine, *fullFS) {
	t.Helper()
	fs := &fullFS{FS: vfs.NewMem()}
	fs.free.Store(1 << 40)
	e, err := Open(Options{FS: fs, Dir: "db", MinFreeDisk: 1 << 30, CollectInterval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e, fs
}

// On a low disk a node stores its own state, as of an operation that ends, and renames; on one that is nearly full it stores nothing.
func TestOwnStateOnALowDisk(t *testing.T) {
	e, fs := openSmall(t)
	state, users := create(t, e, "config.reshardingOperations", nil), create(t, e, "db.c", nil)
	run := func(f func(s *Snapshot, u *UnitOfWork) error) error {
		e.measureSpace()
		s := e.Snapshot()
		defer s.Release()
		u := e.NewUnitOfWork(s)
		defer u.Rollback()
		err := f(s, u)
		if err == nil {
			_, err = e.Commit(context.Background(), u, false)
		}
		return err
	}
	put := func(c *catalog.Collection, id any) func(*Snapshot, *UnitOfWork) error {
		return func(s *Snapshot, u *UnitOfWork) error {
			_, err := u.Insert(s.Catalog().LookupUUID(c.UUID), D("_id", id, "x", 1), NoInfo)
			return err
		}
	}
	both := func(s *Snapshot, u *UnitOfWork) error {
		return errors.Join(put(state, "both")(s, u), put(users, "both")(s, u))
	}
	change := func(s *Snapshot, u *UnitOfWork) error { // as large as before
		rid, old, ok, err := s.FindByID(state, value.NewInt32(1))
		if err != nil || !ok {
			return errors.Join(err, errors.New("not found"))
		}
		return u.Update(state, rid.Clone(), old, D("_id", 1, "x", 2), NoInfo)
	}
	made := func(ns string) func(*Snapshot, *UnitOfWork) error {
		return func(_ *Snapshot, u *UnitOfWork) error {
			_, err := u.CreateCollection(CollectionSpec{NS: ns})
			return err
		}
	}
	rename := func(to string) func(*Snapshot, *UnitOfWork) error {
		return func(s *Snapshot, u *UnitOfWork) error {
			_, err := u.RenameCollection(s.Catalog().LookupUUID(users.UUID), to, nil, false)
			return err
		}
	}
	if err := run(put(state, 1)); err != nil {
		t.Fatal(err)
	}
	fs.free.Store(1<<30 - 1)
	for what, f := range map[string]func(*Snapshot, *UnitOfWork) error{
		"state": put(state, 2), "state that changes": change, "the first state of its kind": made("config.localReshardingOperations.donor"), "a rename": rename("db.low"),
	} {
		if err := run(f); err != nil {
			t.Errorf("low: %s: %v", what, err)
		}
	}
	refused := map[string]func(*Snapshot, *UnitOfWork) error{"a document": put(users, 1), "a document beside state": both, "a collection": made("db.more"), "a buffer": made("config.localReshardingOplogBuffer.x")}
	for what, f := range refused {
		if err := run(f); mongoerr.CodeOf(err) != mongoerr.OutOfDiskSpace {
			t.Errorf("low: %s: %v", what, err)
		}
	}
	fs.free.Store(1<<30/leastShare - 1)
	refused["state"], refused["state that changes"], refused["a rename"] = put(state, 3), change, rename("db.least")
	for what, f := range refused {
		if err := run(f); mongoerr.CodeOf(err) != mongoerr.OutOfDiskSpace {
			t.Errorf("nearly full: %s: %v", what, err)
		}
	}
}

// Units that have no documents, or only records, but much in them, are refused on a low disk like any other.
func TestLargeUnitsOfFewDocumentsOnALowDisk(t *testing.T) {
	e, fs := openSmall(t)
	ctx := context.Background()
	c := create(t, e, "db.c", nil, spec("n_1", D("n", 1)))
	tx := create(t, e, "config.transactions", nil)
	own := create(t, e, "config.anything", nil)
	refused := func(what string, err error) {
		t.Helper()
		if mongoerr.CodeOf(err) != mongoerr.OutOfDiskSpace {
			t.Errorf("%s: %v", what, err)
		}
	}
	big := strings.Repeat("x", 1<<20)
	s := e.Snapshot()
	defer s.Release()
	u := e.NewUnitOfWork(s)
	defer u.Rollback()
	u.Snapshot()
	u.SetTransaction(value.Doc(value.F("id", value.NewInt32(1))), 1)
	for i := range 4 {
		if _, err := u.Insert(c, D("_id", i, "big", big), NoInfo); err != nil {
			t.Fatal(err)
		}
	}
	fs.free.Store(1<<30 - 1)
	e.measureSpace()

	l := e.NewUnitOfWork(nil) // as logSink
	defer l.Rollback()
	l.stageRaw(func(b *pebble.Batch) error {
		return b.Set(appendVersion(appendIndexKey(nil, c.Indexes[1], []byte{60, 1}, NewRecordID(1)), 1), []byte(big), nil)
	})
	_, err := e.Commit(ctx, l, true)
	refused("keys of an index build", err)

	for _, record := range []bool{false, true} { // as prepare: a session that is ahead, and one that is not
		p := e.NewUnitOfWork(nil)
		u.LogPrepare(p, "shard7")
		if record {
			p.RecordIn(tx)
			if _, err := p.Insert(tx, D("_id", 1, "state", "prepared"), NoInfo); err != nil {
				t.Fatal(err)
			}
		}
		_, err = e.Commit(ctx, p, true)
		refused(fmt.Sprint("a vote of 4 MB, with a record: ", record), err)
		p.Rollback()
	}

	w := e.NewUnitOfWork(nil)
	defer w.Rollback()
	if _, err := w.Insert(own, D("_id", 1, "big", big), NoInfo); err != nil {
		t.Fatal(err)
	}
	_, err = e.Commit(ctx, w, true)
	refused("a client's document in config.anything", err)

	n := e.NewUnitOfWork(nil)
	defer n.Rollback()
	n.Oplog(OplogEntry{Op: 'n', StmtID: -1, O: D("big", big)})
	_, err = e.Commit(ctx, n, true)
	refused("a note of 1 MB", err)
}
