package storage

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/witness"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fileDamages are what may happen to a file while its store is closed. Each gives the content that is left, nil for none.
var fileDamages = []struct {
	name string
	do   func([]byte) []byte
}{
	{"deleted", func([]byte) []byte { return nil }},
	{"emptied", func(b []byte) []byte { return b[:0] }},
	{"cut to half", func(b []byte) []byte { return b[:len(b)/2] }},
	{"cut by one byte", func(b []byte) []byte { return b[:max(0, len(b)-1)] }},
	{"a bit flipped in front", func(b []byte) []byte { return flipBit(b, 0) }},
	{"a bit flipped in the middle", func(b []byte) []byte { return flipBit(b, len(b)/2) }},
	{"a bit flipped at the end", func(b []byte) []byte { return flipBit(b, len(b)-1) }},
	{"a stretch of zeros in the middle", func(b []byte) []byte { clear(b[len(b)/2 : min(len(b), len(b)/2+64)]); return b }},
}

func flipBit(b []byte, at int) []byte {
	if at >= 0 && at < len(b) {
		b[at] ^= 1
	}
	return b
}

func readAll(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return raw
}

// rewriteFile replaces a file; nil removes it.
func rewriteFile(t testing.TB, fs vfs.FS, name string, content []byte) {
	t.Helper()
	if err := fs.Remove(name); err != nil {
		t.Fatal(err)
	}
	if content == nil {
		return
	}
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(content)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

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

// damagedStore makes stores to damage: what a kill leaves, with tables and several logs, and what a clean end leaves. They
// have the documents 0 to n-1.
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

// Whatever happens to one file of a store, it opens with everything that was acknowledged, or it does not open and names
// the file and the way back.
func TestDamagedFilesAreNoticed(t *testing.T) {
	stores, n := damagedStores(t)
	for how, fs := range stores {
		names, err := fs.List("db")
		if err != nil {
			t.Fatal(err)
		}
		refused := 0
		for _, name := range names {
			if name == "LOCK" {
				continue
			}
			for _, d := range fileDamages {
				hurt := fs.CrashClone(vfs.CrashCloneCfg{})
				file := path.Join("db", name)
				raw := readAll(t, hurt, file)
				left := d.do(append([]byte(nil), raw...))
				if left != nil && string(left) == string(raw) {
					continue
				}
				rewriteFile(t, hurt, file, left)
				if opensOrRefuses(t, fmt.Sprintf("%s, %s %s", how, name, d.name), name, hurt, n) {
					refused++
				}
			}
		}
		if refused < 3*len(names) {
			t.Errorf("%s: of the damages to %d files only %d were refused", how, len(names), refused)
		}
	}
}

// opensOrRefuses opens a damaged store and tells whether it was refused.
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

// A store of before there was a witness opens, and has one from then on.
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
			raw := readAll(t, fs, path.Join("db", witness.Name))
			if strings.Contains(string(raw), name) {
				marked++
			}
		}
	}
	if marked < 2 {
		t.Errorf("%d of %v are in the witness", marked, names)
	}
}
