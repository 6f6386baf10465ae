package storage

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// writesFS records the lengths of writes, and fails the one of a number.
type writesFS struct {
	vfs.FS
	lens   []int
	fail   int // from 1; 0 for none
	closed int // files
}

var errWrite = errors.New("the disk is full")

func (w *writesFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := w.FS.Create(name, category)
	return writesFile{f, w}, err
}

type writesFile struct {
	vfs.File
	w *writesFS
}

func (f writesFile) Write(p []byte) (int, error) {
	f.w.lens = append(f.w.lens, len(p))
	if len(f.w.lens) == f.w.fail {
		return 0, errWrite
	}
	return f.File.Write(p)
}

func (f writesFile) Close() error {
	f.w.closed++
	return f.File.Close()
}

// A table is written in large steps that end where pages do, whatever the lengths in which pebble writes it, and what has been written is in the file after a sync or
// when it is closed. Other files are written at once.
func TestTablesAreWrittenInLargeSteps(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"000001.sst", "000001.log"} {
		w := &writesFS{FS: vfs.NewMem()}
		f, err := bufferedFS{w}.Create(name, "pebble-compaction")
		if err != nil {
			t.Fatal(err)
		}
		var want []byte
		calls := 0
		for len(want) < 10*tableBuffer {
			p := make([]byte, rnd.IntN(tableBuffer/(rnd.IntN(100)+1)+1))
			for i := range p {
				p[i] = byte(rnd.Uint32())
			}
			want = append(want, p...) // before the write: a file in memory scrambles what it is given where pebble checks its invariants
			if n, err := f.Write(p); n != len(p) || err != nil {
				t.Fatal(n, err)
			}
			clear(p) // it belongs to the caller again
			if calls++; calls == 7 {
				if err := f.Sync(); err != nil {
					t.Fatal(err)
				}
				checkFile(t, w.FS, name, want)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		checkFile(t, w.FS, name, want)
		if n := len(want)/tableBuffer + 2; (len(w.lens) <= n) != (name == "000001.sst") {
			t.Errorf("%s: %d writes for %d", name, len(w.lens), calls)
		}
	}
}

func checkFile(t *testing.T, fs vfs.FS, name string, want []byte) {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer closeQuietly(f)
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%s has %d bytes, want %d: %v", name, len(got), len(want), err)
	}
}

// A write that fails is reported by it or by a later call, at the latest by the sync; nothing is written behind the gap.
func TestFailedWriteOfATableIsReported(t *testing.T) {
	for fail := 1; fail <= 3; fail++ {
		for _, sync := range []func(vfs.File) error{vfs.File.Sync, vfs.File.SyncData, vfs.File.Close} {
			w := &writesFS{FS: vfs.NewMem(), fail: fail}
			f, err := bufferedFS{w}.Create("000001.sst", "pebble-compaction")
			if err != nil {
				t.Fatal(err)
			}
			for range 5 {
				_, _ = f.Write(make([]byte, tableBuffer/2))
			}
			if err = sync(f); !errors.Is(err, errWrite) {
				t.Errorf("write %d of 3 failed, and the sync reported %v", fail, err)
			}
			if len(w.lens) != fail {
				t.Errorf("%d writes, the last of which was to be number %d", len(w.lens), fail)
			}
			_ = vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: 1 << 20}).Close() // which does not close what it cannot sync
			if w.closed == 0 {
				t.Error("the file stays open")
			}
		}
	}
}
