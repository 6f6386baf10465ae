package storage

import (
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/storetest"
	"github.com/shoaldb/shoal/storage/witness"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// slowFlushFS keeps new tables from being written while it is held, so that logs pile up.
type slowFlushFS struct {
	vfs.FS
	hold sync.RWMutex
}

func (s *slowFlushFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") {
		s.hold.RLock()
		defer s.hold.RUnlock()
	}
	return s.FS.Create(name, c)
}

// damagedStores creates stores to damage: one after a kill, with tables and several logs, and one after a clean shutdown.
// They have the documents 0 to n-1.
func damagedStores(t *testing.T) (stores map[string]*vfs.MemFS, n int) {
	t.Helper()
	mem := vfs.NewCrashableMem()
	slow := &slowFlushFS{FS: mem}
	e := openMem(t, Options{FS: slow})
	c := create(t, e, "db.c", nil, spec("n_1", D("n", 1)))
	more := func(k int) {
		for range k {
			insert(t, e, c, D("_id", n, "n", n, "pad", strings.Repeat("x", 200)))
			n++
		}
	}
	for range 3 {
		more(20)
		if err := e.db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	slow.hold.Lock()
	for range 2 {
		more(20)
		if _, err := e.db.AsyncFlush(); err != nil {
			t.Fatal(err)
		}
	}
	more(20)
	stores = map[string]*vfs.MemFS{"killed": mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: newRand(1)})}
	slow.hold.Unlock()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	stores["closed"] = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: newRand(1)})
	return stores, n
}

// Whatever the damage to one file of a store, it opens with everything that was acknowledged, or it refuses to open and
// names the file and the way to recover.
func TestDamagedFilesAreNoticed(t *testing.T) {
	stores, n := damagedStores(t)
	for how, fs := range stores {
		storetest.EachDamage(t, fs, "db", func(what, file string, damaged *vfs.MemFS) (refused bool) {
			return opensOrRefuses(t, how+", "+what, file, damaged, n)
		})
	}
}

// opensOrRefuses opens a damaged store and reports whether it was refused.
func opensOrRefuses(t *testing.T, what, name string, fs vfs.FS, n int) bool {
	t.Helper()
	e, err := Open(Options{FS: fs, Dir: "db", MinFreeDisk: 1})
	if err != nil {
		number := strings.TrimSuffix(name, path.Ext(name))
		if mongoerr.CodeOf(err) != mongoerr.DataCorruptionDetected || !strings.Contains(err.Error(), number) || !strings.Contains(err.Error(), "resync") {
			t.Errorf("%s: refused without naming the file and the way back: %v", what, err)
		}
		return true
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}()
	c := e.Catalog().Lookup("db.c")
	if c == nil {
		t.Errorf("%s: it opens, and the collection is gone", what)
		return false
	}
	s := e.Snapshot()
	defer s.Release()
	for i := range n {
		if _, doc, ok, err := s.FindByID(c, V(i)); err != nil || !ok || value.Lookup(doc, "pad").IsMissing() {
			t.Errorf("%s: it opens, and document %d of %d is not there: %v", what, i, n, err)
			return false
		}
	}
	verify(t, e)
	return false
}

// A store from before the witness was introduced opens, and has one from then on.
func TestStoreWithoutWitness(t *testing.T) {
	stores, n := damagedStores(t)
	fs := stores["killed"]
	if err := fs.Remove(path.Join("db", witness.Name)); err != nil {
		t.Fatal(err)
	}
	opensOrRefuses(t, "without a witness", "", fs, n)
	marked, names := 0, []string(nil)
	names, err := fs.List("db")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".log") || strings.HasPrefix(name, "MANIFEST") {
			raw := storetest.Read(t, fs, path.Join("db", witness.Name))
			if strings.Contains(string(raw), name) {
				marked++
			}
		}
	}
	if marked < 2 {
		t.Errorf("%d of %v are in the witness", marked, names)
	}
}

// A damaged table that was not checked at the start makes the store fail once the background check reaches it.
func TestDamageIsFoundInTheBackground(t *testing.T) {
	stores, _ := damagedStores(t)
	fs := stores["closed"]
	e := openMem(t, Options{FS: fs})
	defer func() { _ = e.Close() }()
	// The store merges its tables meanwhile, so copies of one are looked at.
	var tables []table
	var raw []byte
	for raw == nil {
		var err error
		if tables, err = e.allTables(); err != nil || len(tables) < 2 {
			t.Fatalf("%d tables (%v)", len(tables), err)
		}
		raw = readIfThere(t, fs, tables[1].path)
	}
	copyOf := func(name string, raw []byte) table {
		f, err := fs.Create(fs.PathJoin("db", name), vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = f.Write(raw)
			err = errorsJoin(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		return table{fs.PathJoin("db", name), int64(len(raw))}
	}
	tables[1] = copyOf("whole.copy", raw)
	if e.checkRest(t.Context(), tables); e.failure() != nil {
		t.Fatalf("nothing is damaged yet: %v", e.failure())
	}
	raw[len(raw)/3] ^= 0xff
	tables[1] = copyOf("damaged.copy", raw)
	e.checkRest(t.Context(), tables)
	if err := e.failure(); mongoerr.CodeOf(err) != mongoerr.DataCorruptionDetected || !strings.Contains(err.Error(), tables[1].path) {
		t.Errorf("a damaged table: %v", err)
	}
}

// readIfThere reads a file; nil where it is gone.
func readIfThere(t *testing.T, fs vfs.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(f)
	if err = errorsJoin(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return raw
}
