package write

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/extsort"
)

// fullStore makes files that accept some bytes and then no more.
type fullStore struct {
	extsort.Store
	room int
}

type fullFile struct {
	extsort.File
	store *fullStore
}

var errFull = errors.New("full")

func (s *fullStore) Create() (extsort.File, error) {
	if s.room == 0 {
		return nil, errFull
	}
	f, err := s.Store.Create()
	return fullFile{f, s}, err
}

func (f fullFile) Write(p []byte) (int, error) {
	n := min(len(p), f.store.room)
	f.store.room -= n
	if _, err := f.File.Write(p[:n]); err != nil || n == len(p) {
		return n, err
	}
	return n, errFull
}

// A list comes out as it went in, in the same units, whatever part of it is in a file; the file is removed.
func TestListOfRecordsKeepsItsOrder(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ units, room int }{{0, 1 << 20}, {1, 1 << 20}, {300, 1 << 20}, {300, 0}, {300, 2500}} {
		l := foundList{store: &fullStore{extsort.Dir(dir), c.room}, limit: 1000}
		var want, got [][]storage.RecordID
		for u := range c.units {
			var rids []storage.RecordID
			for i := range 1 + u%7 {
				rids = append(rids, storage.RecordID(slices.Repeat(binary.AppendUvarint(nil, uint64(u*i)), 1+i%3*100)))
			}
			l.add(rids)
			l.add(nil)
			want = append(want, rids)
		}
		for {
			rids, err := l.next()
			if err != nil {
				t.Fatal(err)
			}
			if len(rids) == 0 {
				break
			}
			got = append(got, rids)
		}
		l.close()
		same := slices.EqualFunc(got, want, func(a, b []storage.RecordID) bool {
			return slices.EqualFunc(a, b, func(x, y storage.RecordID) bool { return string(x) == string(y) })
		})
		if !same {
			t.Errorf("%d units, room for %d bytes: %d units came out, or others", c.units, c.room, len(got))
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Fatal(left, err)
		}
	}
}

// The memory of a list does not depend on its length.
func TestMemoryOfAListOfRecordsIsBounded(t *testing.T) {
	l := foundList{store: extsort.Dir(t.TempDir()), limit: listMemory}
	defer l.close()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const units = 2000
	for u := range units {
		rids := make([]storage.RecordID, multiUnitDocs)
		for i := range rids {
			rids[i] = storage.NewRecordID(int64(u*multiUnitDocs + i))
		}
		l.add(rids)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if used := int64(after.HeapAlloc) - int64(before.HeapAlloc); used > 4*listMemory {
		t.Errorf("%d records take %d KB", units*multiUnitDocs, used>>10)
	}
	n := 0
	for {
		rids, err := l.next()
		if err != nil {
			t.Fatal(err)
		}
		if len(rids) == 0 {
			break
		}
		n += len(rids)
	}
	if n != units*multiUnitDocs {
		t.Errorf("%d records of %d", n, units*multiUnitDocs)
	}
}
