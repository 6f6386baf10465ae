package storage

import (
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"
)

// allocated returns the disk space that a directory's files take up.
func allocated(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Stat(path, &st); err != nil {
			return err
		}
		bytes += st.Blocks * 512
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// The journal of an empty store took 70 MB of disk: its space is reserved as it grows.
func TestEmptyStoreReservesLittleForItsJournal(t *testing.T) {
	dir := t.TempDir()
	e, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if n := allocated(t, dir); n > 2*journalStep {
		t.Errorf("an empty store takes up %d bytes", n)
	}
	for i := range 3 * journalStep >> 20 {
		if err := e.db.LogData(make([]byte, 1<<20), nil); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	if n := allocated(t, dir); n < 3*journalStep || n > 6*journalStep {
		t.Errorf("with %d bytes in its journal, it takes up %d", 3*journalStep, n)
	}
}
