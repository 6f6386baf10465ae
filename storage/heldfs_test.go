package storage

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/shoaldb/shoal/internal/await"
)

// fsync with lock only kept writers out: flushes, merges, the collector and the replicated log continued to change the files
// that were being copied. While files are held none of them changes, readers go on, and the copy opens.
func TestHeldFilesDoNotChange(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var held atomic.Bool
	var changes atomic.Int64
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if held.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileSync && op.Kind != errorfs.OpFileSyncData {
			changes.Add(1)
		}
		return nil
	}))
	e := openMem(t, Options{FS: fs, JournalInterval: time.Millisecond, CollectInterval: time.Millisecond, HistoryWindow: time.Nanosecond})
	c := create(t, e, "db.c", nil)
	for i := range 50 {
		insert(t, e, c, D("_id", i))
	}
	if err := e.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	e.HoldFiles()
	held.Store(true)
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			for i := range 20 {
				u := e.NewUnitOfWork(nil)
				_, err := u.Insert(c, D("_id", 1000*(w+1)+i), NoInfo)
				if err == nil {
					_, err = e.Commit(context.Background(), u, true)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		if err := e.db.Flush(); err != nil {
			t.Error(err)
		}
	})
	await.True(t, "the journal waits, and the flush for it", func() bool { return e.gate.waiting.Load() > 0 })
	if n := len(idsAt(t, e, "db.c", e.Visible())); n < 50 {
		t.Errorf("a reader finds %d documents", n)
	}
	copied := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: newRand(1)})
	if n := changes.Load(); n > 0 {
		t.Errorf("%d changes of files while they are held", n)
	}
	held.Store(false)
	e.ReleaseFiles()
	wg.Wait()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	e = openMem(t, Options{FS: copied})
	defer e.Close()
	verify(t, e)
	if n := len(idsAt(t, e, "db.c", e.Visible())); n != 50 {
		t.Errorf("the copy has %d documents", n)
	}
}
