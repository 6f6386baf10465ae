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
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// scattered makes documents whose _ids are not in the order in which they are inserted, with a key of a second index.
func scattered(from, n int) (docs [][]byte) {
	for i := range n {
		docs = append(docs, D("_id", (from+i)*7919%100_003, "k", []int{i % 5, 10 + i%3}, "n", i%7, "pad", strings.Repeat(string(rune('a'+i%26)), 100)))
	}
	return docs
}

// byTables inserts documents in one unit that writes them as tables.
func byTables(e *Engine, c *catalog.Collection, docs [][]byte) error {
	u := e.NewUnitOfWork(nil)
	defer u.Rollback()
	u.SetFromMigrate()
	ok, err := u.InsertTables(c, docs)
	if err == nil && !ok {
		err = errors.New("the store does not insert by tables")
	}
	if err == nil {
		_, err = e.Commit(context.Background(), u, false)
	}
	return err
}

// rawKeys counts the keys of the collection's tables, whatever their versions.
func rawKeys(t testing.TB, e *Engine, c *catalog.Collection) (n int) {
	t.Helper()
	for _, id := range tablesOf(c) {
		lower, upper := identRange(id)
		it, err := e.db.NewIter(nil)
		if err != nil {
			t.Fatal(err)
		}
		it.SetBounds(lower, upper)
		for ok := it.First(); ok; ok = it.Next() {
			n++
		}
		closeQuietly(it)
	}
	return n
}

func tablesOf(c *catalog.Collection) []catalog.Ident {
	ids := []catalog.Ident{c.Ident}
	for _, idx := range c.Indexes {
		ids = append(ids, idx.Ident)
	}
	return ids
}

// copyFiles lists the files of copies that are beside the store's tables.
func copyFiles(t testing.TB, e *Engine) (found []string) {
	t.Helper()
	names, err := e.opts.FS.List(e.opts.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if strings.HasPrefix(n, copyFilePrefix) {
			found = append(found, n)
		}
	}
	return found
}

// A copy by tables is the same as one in the usual way: its documents, index keys, counters and oplog entries. Later versions of its documents win; the oplog
// has what it inserted also when the versions are gone, and after a restart at any time.
func TestCopyByTables(t *testing.T) {
	for _, restart := range []bool{false, true} {
		var clock atomic.Int64
		clock.Store(1_700_000_000)
		o := Options{FS: vfs.NewMem(), Clock: func() time.Time { return time.Unix(clock.Load(), 0) }, CollectInterval: time.Hour, HistoryWindow: time.Second}
		e := openMem(t, o)
		indexes := [][]byte{spec("k_1", D("k", 1)), spec("n_1", D("n", 1))}
		c, other := create(t, e, "db.c", nil, indexes...), create(t, e, "db.d", nil, indexes...)
		insert(t, e, c, D("_id", 200_000, "n", 1))
		insert(t, e, other, D("_id", 200_000, "n", 1))
		begin := len(oplogFrom(t, e, 0))
		copyIn(t, e, other, true, scattered(0, 3000))
		usual := oplogFrom(t, e, begin)
		if err := byTables(e, c, scattered(0, 3000)); err != nil {
			t.Fatal(err)
		}
		tables := oplogFrom(t, e, begin+3000)
		if len(usual) != 3000 || len(tables) != 3000 {
			t.Fatalf("%d and %d entries", len(usual), len(tables))
		}
		same := func(when string) {
			t.Helper()
			if restart {
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
				e = openMem(t, o)
			}
			clock.Add(10)
			if err := errors.Join(e.Sync(context.Background()), e.collect(context.Background())); err != nil { // what is not durable is not collected
				t.Fatalf("%s: %v", when, err)
			}
			a, b := e.Catalog().Lookup("db.c"), e.Catalog().Lookup("db.d")
			if now(t, e, "db.c") != now(t, e, "db.d") {
				t.Errorf("%s: the documents differ", when)
			}
			for _, name := range []string{"_id_", "k_1", "n_1"} {
				if x, y := indexKeys(t, e, "db.c", name), indexKeys(t, e, "db.d", name); x != y {
					t.Errorf("%s: index %s has %d keys, want %d", when, name, x, y)
				}
				if x, y := a.Index(name), b.Index(name); x.Multikey != y.Multikey {
					t.Errorf("%s: multikey %v, want %v", when, x.Multikey, y.Multikey)
				}
			}
			if a.Counters.Records.Load() != b.Counters.Records.Load() || a.Counters.DataSize.Load() != b.Counters.DataSize.Load() {
				t.Errorf("%s: the counters differ", when)
			}
			if x, y := rawKeys(t, e, a), rawKeys(t, e, b); x != y {
				t.Errorf("%s: the tables have %d keys, want %d", when, x, y)
			}
			if found := oplogFrom(t, e, begin+3000)[:3000]; strings.Join(found, "\n") != strings.Join(tables, "\n") {
				t.Errorf("%s: the oplog has changed", when)
			}
		}
		same("copied")
		for i := 0; i < 3000; i += 100 {
			for _, ns := range []string{"db.c", "db.d"} {
				id := i * 7919 % 100_003
				if err := update(t, e, ns, id, D("_id", id, "k", 99, "n", i)); err != nil {
					t.Fatal(err)
				}
			}
		}
		same("changed")
		same("and again")
		if got := oplogFrom(t, e, begin+3000)[:3000]; !strings.Contains(got[100], `pad`) {
			t.Errorf("the entry is %.200s", got[100])
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Until its commit nobody sees a part of a copy, readers of a time before it never do, and nobody else inserts its _ids or changes its indexes unnoticed.
func TestCopyByTablesIsSeenFromItsCommitOn(t *testing.T) {
	var e *Engine
	var before []*Snapshot
	look := func(string) error { return nil }
	fs := vfs.NewMem()
	o := Options{FS: fs, CollectInterval: time.Hour, copyStep: func(step string) error { return look(step) }}
	e = openMem(t, o)
	c := create(t, e, "db.c", nil, spec("n_1", D("n", 1)))
	steps := 0
	look = func(step string) error {
		steps++
		before = append(before, e.Snapshot())
		if n := c.Counters.Records.Load(); n != 0 || now(t, e, "db.c") != "" {
			t.Errorf("before step %s: %d documents are counted, %q are seen", step, n, now(t, e, "db.c"))
		}
		u := e.NewUnitOfWork(nil)
		defer u.Rollback()
		if _, err := u.Insert(c, D("_id", 7919), NoInfo); !ErrConflict(err) {
			t.Errorf("before step %s: an _id of the copy is inserted: %v", step, err)
		}
		return nil
	}
	if err := byTables(e, c, scattered(0, 500)); err != nil || steps != 3 {
		t.Fatalf("%v, %d steps", err, steps)
	}
	look = func(string) error { return nil }
	all := now(t, e, "db.c")
	if n := strings.Count(all, "_id"); n != 500 {
		t.Errorf("%d documents", n)
	}
	var times []Timestamp
	for i, s := range before {
		times = append(times, s.Timestamp())
		if list(t, s, "db.c", false) != "" || s.countKeys(t, "n_1") != 0 {
			t.Errorf("snapshot %d sees documents of the copy", i)
		}
		s.Release()
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openMem(t, o)
	defer func() { _ = e.Close() }()
	for i, at := range times {
		s, err := e.SnapshotAt(at)
		if err != nil {
			t.Fatal(err)
		}
		if list(t, s, "db.c", false) != "" || s.countKeys(t, "n_1") != 0 {
			t.Errorf("after a restart, snapshot %d sees documents of the copy", i)
		}
		s.Release()
	}
	if now(t, e, "db.c") != all {
		t.Error("after a restart, the documents differ")
	}
	verify(t, e)
}

func (s *Snapshot) countKeys(t testing.TB, name string) (n int) {
	t.Helper()
	c := s.Catalog().Lookup("db.c")
	cur := s.IndexScan(c, c.Index(name), false)
	defer cur.Close()
	for cur.Next() {
		n++
	}
	return n
}

// A copy whose collection changes before its commit fails, and leaves nothing behind: neither keys nor files.
func TestCopyByTablesOfAChangedCollection(t *testing.T) {
	for _, step := range []string{"write", "ingest", "commit"} {
		for _, change := range []string{"index", "drop"} {
			t.Run(step+" "+change, func(t *testing.T) {
				var e *Engine
				do := func(string) error { return nil }
				e = openMem(t, Options{CollectInterval: time.Hour, copyStep: func(s string) error { return do(s) }})
				defer func() { _ = e.Close() }()
				c := create(t, e, "db.c", nil, spec("n_1", D("n", 1)))
				insert(t, e, c, D("_id", 200_000, "n", 1, "k", 1))
				do = func(s string) error {
					if s != step {
						return nil
					}
					if change == "index" {
						b, err := e.StartIndexBuild(context.Background(), "db.c", [][]byte{spec("k_1", D("k", 1))}, NewUUID())
						if err == nil {
							_, err = b.Run(context.Background())
						}
						return err
					}
					u := e.NewUnitOfWork(nil)
					if err := u.DropCollection(e.Catalog().Lookup("db.c")); err != nil {
						t.Error(err)
					}
					commit(t, e, u)
					return nil
				}
				if err := byTables(e, c, scattered(0, 500)); !ErrConflict(err) {
					t.Fatalf("the copy ends with %v", err)
				}
				e.commit.owners.Wait() // the deletion of what was sent ahead
				if err := e.collect(context.Background()); err != nil {
					t.Fatal(err)
				}
				do = func(string) error { return nil }
				if found := copyFiles(t, e); len(found) > 0 || len(stagedAll(t, e)) > 0 {
					t.Errorf("left behind: %v, %v", found, stagedAll(t, e))
				}
				if change == "drop" {
					return
				}
				c = e.Catalog().Lookup("db.c")
				if n := rawKeys(t, e, c); n != 4 {
					t.Errorf("%d keys are left, want 4", n)
				}
				if err := byTables(e, c, scattered(0, 500)); err != nil {
					t.Error(err)
				}
				if n := strings.Count(now(t, e, "db.c"), "_id"); n != 501 {
					t.Errorf("%d documents", n)
				}
			})
		}
	}
}

// stagedAll lists the chunks of units that are in the store.
func stagedAll(t testing.TB, e *Engine) (ids []stagedID) {
	t.Helper()
	err := e.eachStaged(func(_ *pebble.Iterator, id stagedID, _ byte) error {
		ids = append(ids, id)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// crashPoints calls do for a store on a file system, and then each with what a crash before each of the writes of f leaves.
func crashPoints(t *testing.T, f func(fs vfs.FS, begin func()), each func(at int, unsynced int, left *vfs.MemFS)) {
	t.Helper()
	mem := vfs.NewCrashableMem()
	var on atomic.Bool
	type crashed struct {
		at, unsynced int
		fs           *vfs.MemFS
	}
	all := make(chan crashed, 1<<14)
	var ops atomic.Int64
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if on.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			n := int(ops.Add(1))
			for _, percent := range []int{0, 50, 100} {
				all <- crashed{n, percent, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: newRand(uint64(n))})}
			}
		}
		return nil
	}))
	f(fs, func() { on.Store(true) })
	on.Store(false)
	close(all)
	for c := range all {
		each(c.at, c.unsynced, c.fs)
	}
}

// A kill or a loss of power before any write to the disk leaves all of a copy or nothing of it, whatever of the unsynced data was written; what was acknowledged as
// durable before is there, nothing is left behind, and the copy can be repeated.
func TestCopyByTablesCrash(t *testing.T) {
	whole, none, versions := 0, 0, 0
	docs := scattered(0, 300)
	crashPoints(t, func(fs vfs.FS, begin func()) {
		e := openMem(t, Options{FS: fs, JournalInterval: time.Hour, CollectInterval: time.Hour})
		c := create(t, e, "db.c", nil, spec("n_1", D("n", 1)))
		insert(t, e, c, D("_id", 200_000, "n", 1))
		begin()
		if err := byTables(e, c, docs); err != nil {
			t.Error(err)
		}
		if err := e.Sync(context.Background()); err != nil {
			t.Error(err)
		}
		if err := byTables(e, c, scattered(300, 300)); err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}, func(at, unsynced int, left *vfs.MemFS) {
		e := openMem(t, Options{FS: left, CollectInterval: time.Hour})
		defer func() { _ = e.Close() }()
		verify(t, e)
		c := e.Catalog().Lookup("db.c")
		n := int(c.Counters.Records.Load())
		if n != 1 && n != 301 && n != 601 {
			t.Fatalf("crash before write %d (%d %% of the unsynced): %d documents", at, unsynced, n)
		}
		if rawKeys(t, e, c) != 3*n {
			versions++
		}
		if found := copyFiles(t, e); len(found) > 0 {
			t.Errorf("crash before write %d: %v is left", at, found)
		}
		if err := e.collect(context.Background()); err != nil {
			t.Fatal(err)
		}
		if k := rawKeys(t, e, c); k != 3*n {
			t.Errorf("crash before write %d (%d %% of the unsynced): %d keys of %d documents", at, unsynced, k, n)
		}
		switch n {
		case 1:
			none++
			if err := byTables(e, c, docs); err != nil {
				t.Fatal(err)
			}
		default:
			whole++
			if err := byTables(e, c, docs); mongoerr.CodeOf(err) != mongoerr.DuplicateKey {
				t.Errorf("the copy is repeated with %v", err)
			}
		}
		verify(t, e)
	})
	if whole == 0 || none == 0 || versions == 0 {
		t.Errorf("%d crashes left all, %d nothing, %d versions without their commit: each should occur", whole, none, versions)
	}
	t.Logf("%d crashes left at least the first copy, %d nothing, %d versions without their commit", whole, none, versions)
}

// The disk is full at any of a copy's writes: the copy fails and leaves nothing behind, or the store fails; nothing of what was there is lost, and with
// room again the copy is repeated.
func TestCopyByTablesOnAFullDisk(t *testing.T) {
	failed, refused := 0, 0
	for at := 1; ; at++ {
		mem := vfs.NewCrashableMem()
		var ops atomic.Int64
		var on, full atomic.Bool
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if strings.HasSuffix(op.Path, ".log") {
				return nil // TestFullDisk fills the journal
			}
			if on.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpRemove && (full.Load() || ops.Add(1) == int64(at)) {
				full.Store(true)
				return fmt.Errorf("write: %w", syscall.ENOSPC)
			}
			return nil
		}))
		e := openMem(t, Options{FS: fs, JournalInterval: time.Hour, CollectInterval: time.Hour})
		c := create(t, e, "db.c", nil, spec("n_1", D("n", 1)))
		insert(t, e, c, D("_id", 200_000, "n", 1))
		if err := e.db.Flush(); err != nil { // no log is switched for the tables, see Options.OnFailure
			t.Fatal(err)
		}
		on.Store(true)
		err := byTables(e, c, scattered(0, 300))
		on.Store(false)
		if !full.Load() {
			_ = e.Close()
			break
		}
		switch {
		case e.failure() != nil:
			failed++
			crashed := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: newRand(1)})
			_ = e.Close()
			e = openMem(t, Options{FS: crashed, CollectInterval: time.Hour})
		case err == nil:
			t.Errorf("write %d: the copy succeeds", at)
		default:
			refused++
			code(t, err, mongoerr.OutOfDiskSpace)
		}
		e.commit.owners.Wait()
		if err := e.collect(context.Background()); err != nil {
			t.Fatal(err)
		}
		verify(t, e)
		c = e.Catalog().Lookup("db.c")
		if n := int(c.Counters.Records.Load()); rawKeys(t, e, c) != 3*n || n != 1 && e.failure() == nil && failed == 0 {
			t.Errorf("write %d: %d keys of %d documents", at, rawKeys(t, e, c), n)
		} else if n == 1 {
			if err := byTables(e, c, scattered(0, 300)); err != nil {
				t.Errorf("write %d: with room again: %v", at, err)
			}
		}
		if found := copyFiles(t, e); len(found) > 0 {
			t.Errorf("write %d: %v is left", at, found)
		}
		verify(t, e)
		_ = e.Close()
	}
	if refused == 0 {
		t.Error("no copy was refused")
	}
	t.Logf("%d copies were refused, the store failed with %d", refused, failed)
}
