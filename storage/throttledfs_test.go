package storage

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// While clients wait for syncs, flushes and compactions pause after each step, unless the store has fallen behind; without clients they do not, and
// journals are always written at once.
func TestTablesPauseForClients(t *testing.T) {
	const size = 8 * throttleStep
	for _, x := range []struct {
		name            string
		category        vfs.DiskWriteCategory
		clients, urgent bool
		pauses          int64
	}{
		{"a flush beside clients", "pebble-memtable-flush", true, false, 8},
		{"a compaction beside clients", "pebble-compaction", true, false, 8},
		{"a flush in a urgent", "pebble-memtable-flush", true, true, 0},
		{"a flush without clients", "pebble-memtable-flush", false, false, 0},
		{"a journal", "pebble-wal", true, false, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var pauses atomic.Int64
				fs := throttledFS{vfs.NewMem(), func() bool { return x.urgent }, &pauses}
				f, err := fs.Create("f", x.category)
				if err != nil {
					t.Fatal(err)
				}
				defer closeQuietly(f)
				lastDurable.Store(0)
				began := time.Now()
				for range size / 4096 {
					if x.clients {
						noteDurable()
					}
					if _, err := f.Write(make([]byte, 4096)); err != nil {
						t.Fatal(err)
					}
				}
				if n, took := pauses.Load(), time.Since(began); n != x.pauses || took < time.Duration(n)*leastPause || n == 0 && took > 0 {
					t.Errorf("%d pauses in %v, want %d", n, took, x.pauses)
				}
			})
		})
	}
}

// A flush pauses while clients wait for units to become durable.
func TestFlushBesideDurableWrites(t *testing.T) {
	e := openMem(t, Options{FS: vfs.NewMem(), memTable: 2 << 20})
	defer closeQuietly(e)
	c := create(t, e, "db.c", nil)
	noise, pad := rand.NewChaCha8([32]byte{}), make([]byte, 32<<10)
	id := 0
	write := func(sync bool) {
		_, _ = noise.Read(pad)
		id++
		u := e.NewUnitOfWork(nil)
		_, err := u.Insert(c, D("_id", id, "pad", string(pad)), NoInfo)
		if err == nil {
			_, err = e.Commit(t.Context(), u, sync)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	lastDurable.Store(0)
	for range 8 << 20 / len(pad) {
		write(false)
	}
	if err := e.db.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := e.Stats().TablePauses; n != 0 {
		t.Errorf("%d pauses without durable writes", n)
	}
	for end := time.Now().Add(20 * time.Second); e.Stats().TablePauses == 0; {
		if time.Now().After(end) {
			t.Fatal("no flush has paused for durable writes")
		}
		write(true)
	}
}
