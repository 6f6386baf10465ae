package storage

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/storage/storetest"
)

// A journal that grew with each record had its length and blocks written by each sync.
func TestSmallRecordsLeaveTheLengthOfTheJournal(t *testing.T) {
	mem := vfs.NewCrashableMem()
	e := openMem(t, Options{FS: mem})
	c := create(t, e, "db.c", nil)
	journal := func() (newest string) {
		names, err := mem.List("db")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if isJournal(name) {
				newest = max(newest, name)
			}
		}
		return "db/" + newest
	}
	lengths := map[int64]bool{}
	for i := range 200 {
		insert(t, e, c, D("_id", i))
		if err := e.db.LogData([]byte{1}, pebble.Sync); err != nil {
			t.Fatal(err)
		}
		st, err := mem.Stat(journal())
		if err != nil {
			t.Fatal(err)
		}
		lengths[st.Size()] = true
	}
	if len(lengths) > 4 {
		t.Errorf("200 commits gave the journal %d lengths", len(lengths))
	}
	raw := storetest.Read(t, mem, journal())
	if n := len(raw) - len(bytes.TrimRight(raw, "\x00")); n == 0 {
		t.Error("no zeros lie ahead of the records")
	}
	again := openMem(t, Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	s := again.Snapshot()
	defer s.Release()
	for i := range 200 {
		if _, _, ok, err := s.FindByID(again.Catalog().Lookup("db.c"), V(i)); err != nil || !ok {
			t.Fatalf("after a crash document %d is not there: %v", i, err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// noRoomFS refuses to write ahead.
type noRoomFS struct {
	vfs.FS
	asked *int
}

type noRoomFile struct {
	vfs.File
	asked *int
}

func (n noRoomFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := n.FS.Create(name, c)
	return noRoomFile{f, n.asked}, err
}

func (f noRoomFile) WriteAt([]byte, int64) (int, error) {
	*f.asked++
	return 0, errors.New("no room")
}

func TestRecordsWithoutZeros(t *testing.T) {
	dir, small, large := t.TempDir(), bytes.Repeat([]byte("s"), 100), bytes.Repeat([]byte("l"), smallRecord+1)
	write := func(fs vfs.FS, name string, records ...[]byte) (content []byte) {
		t.Helper()
		f, err := filledFS{fs}.Create(filepath.Join(dir, name), "pebble-wal")
		if err != nil {
			t.Fatal(err)
		}
		var want []byte
		for _, p := range records {
			want = append(want, p...)
			if n, err := f.Write(p); err != nil || n != len(p) {
				t.Fatal(n, err)
			}
			if err := f.SyncData(); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		in, err := fs.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer closeQuietly(in)
		content, err = io.ReadAll(in)
		if err != nil || !bytes.HasPrefix(content, want) || len(bytes.TrimRight(content[len(want):], "\x00")) > 0 {
			t.Errorf("%s: %d bytes of something else than its %d bytes of records: %v", name, len(content), len(want), err)
		}
		return content
	}
	if n := len(write(vfs.Default, "1.log", large, large)); n != 2*len(large) {
		t.Errorf("large records have %d bytes in a file of %d", 2*len(large), n)
	}
	if n := len(write(vfs.Default, "2.log", small, large, large, small)); n < 2*leastFilled || n > 3*leastFilled {
		t.Errorf("small records are in a file of %d bytes", n)
	}
	if n := len(write(vfs.Default, "MANIFEST-3", small)); n != len(small) {
		t.Errorf("a file that is no journal has %d bytes", n)
	}
	asked := 0
	if n := len(write(noRoomFS{vfs.Default, &asked}, "4.log", small, small, small)); n != 3*len(small) || asked != 1 {
		t.Errorf("without room for zeros the file has %d bytes, and zeros were tried %d times", n, asked)
	}
}

// A journal that takes the place of an obsolete one is as long already as that was.
func TestReusedJournalsGetNoZeros(t *testing.T) {
	mem := vfs.NewMem()
	fs := filledFS{mem}
	f, err := fs.Create("1.log", "pebble-wal")
	if err == nil {
		_, err = f.Write(bytes.Repeat([]byte("o"), 100<<10))
	}
	if err = errorsJoin(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if f, err = fs.ReuseForWrite("1.log", "2.log", "pebble-wal"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("new")); err != nil {
		t.Fatal(err)
	}
	if raw := storetest.Read(t, mem, "2.log"); len(raw) != 100<<10 || !bytes.HasPrefix(raw, []byte("newooo")) {
		t.Errorf("%d bytes, and they begin with %.10q", len(raw), raw)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
