package storage

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
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
