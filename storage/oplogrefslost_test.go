package storage

import (
	"math/rand"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// shrinkingDisk is a small disk whose size a test changes.
type shrinkingDisk struct {
	smallDisk
	free *atomic.Int64 // how much is available; negative for no limit
}

func (d shrinkingDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	free := d.free.Load()
	if free < 0 {
		free = 1 << 40
	}
	return vfs.DiskUsage{AvailBytes: uint64(free), TotalBytes: 1 << 41}, nil
}

// lowCopies is a store on a disk that becomes low, with copies that its oplog refers to.
type lowCopies struct {
	fullStore
	opts Options
	free atomic.Int64
	size int64 // of the documents
}

func newLowCopies(t *testing.T, o Options) *lowCopies {
	t.Helper()
	f := &lowCopies{fullStore: fullStore{T: t, disk: smallDisk{vfs.NewMem(), 1 << 40}, clock: newHandClock(), rnd: rand.New(rand.NewSource(1))}}
	f.free.Store(-1)
	o.Dir, o.FS, o.Clock, o.CollectInterval, o.HistoryWindow, o.MinFreeDisk = "db", shrinkingDisk{f.disk, &f.free}, f.clock.now, time.Hour, time.Second, 100<<20
	f.opts = o
	f.open()
	c := create(t, f.e, "db.copied", nil)
	create(t, f.e, "db.c", nil)
	for _, at := range []int{0, 10_000, 20_000} {
		for i := range 12 {
			docs := noiseDocs(500, 2000)
			for j := range docs {
				docs[j] = D("_id", at+500*i+j, "pad", value.Lookup(docs[j], "pad").Str())
				f.size += int64(len(docs[j]))
			}
			copyIn(t, f.e, c, true, docs)
		}
	}
	return f
}

func (f *lowCopies) open() {
	e, err := Open(f.opts)
	if err != nil {
		f.Fatal(err)
	}
	f.e = e
}

// low makes the disk low: deletions are still accepted.
func (f *lowCopies) low() { f.free.Store(60 << 20) }

// scanned reads the oplog from a time on, and returns how many entries it has read before an error.
func (f *lowCopies) scanned(from Timestamp) (n int, err error) {
	s := f.e.Snapshot()
	defer s.Release()
	cur := s.Scan(s.Catalog().Lookup(OplogNS), ScanOptions{From: NewRecordID(int64(from))})
	defer cur.Close()
	for cur.Next() {
		n++
	}
	return n, cur.Err()
}

// While the disk is low, and the oplog cannot be truncated, a drop of a collection, or the deletion of its documents, used to write all that was copied into the collection
// into the oplog, before it freed any space. These entries are given up instead: a read of them returns an error that says so. Whatever else the oplog has stays, and so does what a pin keeps.
func TestDeletingCopiesTakesNoRoomOnALowDisk(t *testing.T) {
	for name, remove := range map[string]func(f *lowCopies){
		"drop": func(f *lowCopies) { f.fullStore.drop("db.copied") },
		"delete": func(f *lowCopies) {
			s := f.e.Snapshot()
			defer s.Release()
			c := s.Catalog().Lookup("db.copied")
			cur := s.Scan(c, ScanOptions{})
			defer cur.Close()
			u := f.e.NewUnitOfWork(s)
			for cur.Next() {
				if err := u.Delete(c, cur.RecordID().Clone(), append([]byte(nil), cur.Doc()...), NoInfo); err != nil {
					f.Fatal(err)
				}
			}
			commit(f.T, f.e, u)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newLowCopies(t, Options{OplogSize: 1 << 30})
			defer func() { _ = f.e.Close() }()
			f.e.HoldOplog() // as on a member whose primary has room, and truncates nothing
			c := f.e.Catalog().Lookup("db.copied")
			pinned := f.e.Visible()
			pin, err := f.e.PinOplog(pinned)
			if err != nil {
				t.Fatal(err)
			}
			defer pin.Release()
			copyIn(t, f.e, c, true, copyDocs(30_000, 300))
			remove(f)
			f.low()
			before := f.e.db.Metrics().WAL.BytesIn
			for range 4 {
				f.clock.pass(10 * time.Second)
				f.collect()
			}
			written := int64(f.e.db.Metrics().WAL.BytesIn - before)
			t.Logf("%d MB of copies, %d KB written to delete them", f.size>>20, written>>10)
			if written > f.size/4 {
				t.Errorf("%d bytes were written to delete %d", written, f.size)
			}
			check := func() {
				t.Helper()
				_, err := f.scanned(0)
				code(t, err, mongoerr.CappedPositionLost)
				if n, err := f.scanned(pinned + 1); n < 301 || err != nil {
					t.Errorf("%d entries after the pin, %v", n, err)
				}
				s := f.e.Snapshot()
				defer s.Release()
				if err := s.SessionEntries(0, func(*SessionEntry) error { return nil }); err != nil {
					t.Errorf("a reader of sessions: %v", err)
				}
			}
			check()
			if err := f.e.Close(); err != nil {
				t.Fatal(err)
			}
			f.free.Store(-1)
			f.open()
			check()
		})
	}
}

// Where the oplog can be truncated, it is, before anything is put into it, and nothing is given up that it still has.
func TestTheOplogOfALowDiskIsTruncatedBeforeADrop(t *testing.T) {
	f := newLowCopies(t, Options{OplogSize: 1 << 30})
	defer func() { _ = f.e.Close() }()
	f.drop("db.copied")
	f.clock.pass(10 * time.Second)
	create(t, f.e, "db.other", nil)
	if err := f.e.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.low()
	f.e.measureSpace()
	before := f.e.db.Metrics().WAL.BytesIn
	f.e.collecting.Lock()
	err := f.e.collectDead(t.Context()) // the disk has become low since the round has begun
	f.e.collecting.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := refBlocks(t, f.e); n != 0 {
		t.Errorf("%d blocks still refer to what was dropped", n)
	}
	if written := int64(f.e.db.Metrics().WAL.BytesIn - before); written > lowOplog+lowOplog/2 {
		t.Errorf("%d bytes were written", written)
	}
	if n, err := f.scanned(0); n == 0 || err != nil {
		t.Errorf("the oplog has %d entries, %v", n, err)
	}
	if f.e.oplog.counters.Load().DataSize.Load() > lowOplog {
		t.Errorf("the oplog has %d bytes", f.e.oplog.counters.Load().DataSize.Load())
	}
}

// Readers of sessions pass over copies without reading their documents.
func TestSessionReadersPassOverCopies(t *testing.T) {
	e := openMem(t, Options{CollectInterval: time.Hour})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	copyIn(t, e, c, true, copyDocs(0, 50))
	lower, upper := identRange(identOplog)
	it, err := e.db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer closeQuietly(it)
	it.SetBounds(lower, upper)
	refs := 0
	for ok := it.First(); ok; ok = it.Next() {
		if p := it.Value(); isRefs(p) {
			if refs++; inSession(p) {
				t.Error("a copy is taken for a session's")
			}
			if !strings.Contains(string(p), "db.c") {
				t.Errorf("%q", p)
			}
		}
	}
	if refs == 0 {
		t.Error("nothing is logged by reference")
	}
}
