package storage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// verify checks what must hold of any store after any crash: counters are exact, indexes and records agree, and the
// oplog, replayed, gives the records.
func verify(t *testing.T, e *Engine) {
	t.Helper()
	s := e.Snapshot()
	defer s.Release()
	replayed := map[string]map[string]string{}
	cur := s.Scan(s.Catalog().Lookup(OplogNS), ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		d := cur.Doc()
		ns := value.Lookup(d, "ns").Str()
		if replayed[ns] == nil {
			replayed[ns] = map[string]string{}
		}
		o := value.Lookup(d, "o")
		switch value.Lookup(d, "op").Str() {
		case "i", "u":
			replayed[ns][shellString(value.Lookup(o.Doc(), "_id"))] = shellString(o)
		case "d":
			delete(replayed[ns], shellString(value.Lookup(o.Doc(), "_id")))
		}
	}
	if cur.Err() != nil {
		t.Fatal(cur.Err())
	}
	for _, c := range s.Catalog().All() {
		if c.Oplog {
			continue
		}
		records, bytes := int64(0), int64(0)
		rc := s.Scan(c, ScanOptions{})
		for rc.Next() {
			records++
			bytes += int64(len(rc.Doc()))
			id := shellString(value.Lookup(rc.Doc(), "_id"))
			if got := shellString(value.NewDocument(rc.Doc())); replayed[c.NS][id] != got {
				t.Errorf("%s: the record is %s, the oplog has %s", c.NS, got, replayed[c.NS][id])
			}
		}
		rc.Close()
		if int64(len(replayed[c.NS])) != records {
			t.Errorf("%s: the oplog has %d documents, the collection %d", c.NS, len(replayed[c.NS]), records)
		}
		if n := c.Counters.Records.Load(); n != records || c.Counters.DataSize.Load() != bytes {
			t.Errorf("%s: counters say %d and %d, there are %d and %d", c.NS, n, c.Counters.DataSize.Load(), records, bytes)
		}
		for _, idx := range c.Indexes {
			if n := indexKeys(t, e, c.NS, idx.Name); int64(n) != records {
				t.Errorf("%s: index %s has %d keys for %d records", c.NS, idx.Name, n, records)
			}
		}
	}
}

// acknowledged holds what was acknowledged as durable: the highest n of each document.
type acknowledged struct {
	sync.Mutex
	n map[int]int
}

// writer inserts and updates documents of its own, incrementing n, until the store is closed.
func (a *acknowledged) writer(e *Engine, w int, stop *atomic.Bool) {
	for n := 1; !stop.Load(); n++ {
		id := w*100 + rand.IntN(5)
		s := e.Snapshot()
		c := s.Catalog().Lookup("db.c")
		u := e.NewUnitOfWork(s)
		rid, old, ok, err := s.FindByID(c, V(id))
		if err == nil && ok {
			err = u.Update(c, rid.Clone(), append([]byte(nil), old...), D("_id", id, "n", n), NoInfo)
		} else if err == nil {
			_, err = u.Insert(c, D("_id", id, "n", n), NoInfo)
		}
		if err == nil {
			_, err = e.Commit(context.Background(), u, true)
		}
		u.Rollback()
		s.Release()
		if err == nil && !stop.Load() {
			a.Lock()
			a.n[id] = n
			a.Unlock()
		}
	}
}

// The machine loses power at random moments; what was acknowledged is there, and everything is consistent.
func TestCrash(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for round := 0; round < rounds; round++ {
		t.Run(fmt.Sprint(round), func(t *testing.T) { crashOnce(t, uint64(round)) })
	}
}

func crashOnce(t *testing.T, seed uint64) {
	fs := vfs.NewCrashableMem()
	e := openMem(t, Options{FS: fs, JournalInterval: time.Millisecond, CollectInterval: 3 * time.Millisecond, HistoryWindow: time.Nanosecond})
	create(t, e, "db.c", nil, spec("n_1", D("n", 1)))
	var stop atomic.Bool
	acks := &acknowledged{n: map[int]int{}}
	acked := func() (n int) {
		acks.Lock()
		defer acks.Unlock()
		for _, k := range acks.n {
			n += k
		}
		return n
	}
	var wg sync.WaitGroup
	for w := 0; w < 4; w++ {
		wg.Add(1)
		go func() { defer wg.Done(); acks.writer(e, w, &stop) }()
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		for i := 0; !stop.Load(); i++ {
			b, err := e.StartIndexBuild(context.Background(), "db.c", [][]byte{spec(fmt.Sprintf("x%d", i), D("n", -1))}, NewUUID())
			if err == nil {
				_, err = b.Run(context.Background())
			}
			if err != nil {
				t.Error(err)
			}
			_ = e.db.Flush()
		}
	}()
	await.True(t, "some writes are acknowledged", func() bool { return acked() >= int(1+40*seed) })
	// Whatever is acknowledged before the copy is taken must be in it.
	acks.Lock()
	must := map[int]int{}
	for k, v := range acks.n {
		must[k] = v
	}
	acks.Unlock()
	crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(seed*17) % 101, RNG: newRand(seed)})
	stop.Store(true)
	wg.Wait()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d documents acknowledged, up to %v", len(must), must)
	for again := 0; again < 2; again++ {
		e = openMem(t, Options{FS: crashed, HistoryWindow: time.Hour})
		verify(t, e)
		for id, n := range must {
			s := e.Snapshot()
			_, doc, ok, err := s.FindByID(s.Catalog().Lookup("db.c"), V(id))
			got, _ := value.Lookup(doc, "n").AsInt64()
			if err != nil || !ok || got < int64(n) {
				t.Errorf("%d was acknowledged with %d; found %v %d %v", id, n, ok, got, err)
			}
			s.Release()
		}
		insert(t, e, e.Catalog().Lookup("db.c"), D("_id", 1000+again))
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// The disk fails under the log: units fail with a clear error, reads go on, and nothing acknowledged is lost.
func TestBrokenDisk(t *testing.T) {
	for _, disk := range []error{syscall.ENOSPC, syscall.EIO} {
		t.Run(disk.Error(), func(t *testing.T) { breakDisk(t, disk) })
	}
}

func breakDisk(t *testing.T, disk error) {
	mem := vfs.NewCrashableMem()
	var broken atomic.Bool
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return fmt.Errorf("write: %w", disk)
		}
		return nil
	}))
	e := openMem(t, Options{FS: fs, JournalInterval: time.Hour})
	c := create(t, e, "db.c", nil)
	insert(t, e, c, D("_id", 1))
	broken.Store(true)
	wantCode := mongoerr.InternalError
	if errors.Is(disk, syscall.ENOSPC) {
		wantCode = mongoerr.OutOfDiskSpace
	}
	for i := 2; i < 5; i++ {
		u := e.NewUnitOfWork(nil)
		_, err := u.Insert(c, D("_id", i), NoInfo)
		if err == nil {
			_, err = e.Commit(context.Background(), u, true)
		}
		u.Rollback()
		code(t, err, wantCode)
	}
	want(t, "still readable", now(t, e, "db.c")[:10], "{ _id: 1 }")
	_ = e.Close()
	broken.Store(false)
	e = openMem(t, Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	defer e.Close()
	verify(t, e)
	want(t, "after the repair", now(t, e, "db.c")[:10], "{ _id: 1 }")
}

// fullFS reports that the disk is full.
type fullFS struct {
	vfs.FS
	free atomic.Uint64
}

func (f *fullFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: f.free.Load(), TotalBytes: 1 << 40}, nil
}

// Writes are refused before the disk is full, and accepted again when there is room.
func TestLowDisk(t *testing.T) {
	fs := &fullFS{FS: vfs.NewMem()}
	fs.free.Store(1 << 30)
	clock := atomic.Int64{}
	clock.Store(1_700_000_000_000)
	e, err := Open(Options{FS: fs, Dir: "db", Clock: func() time.Time { return time.UnixMilli(clock.Load()) }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c := create(t, e, "db.c", nil)
	try := func(id int) error {
		clock.Add(1000)
		u := e.NewUnitOfWork(nil)
		defer u.Rollback()
		if _, err := u.Insert(c, D("_id", id), NoInfo); err != nil {
			return err
		}
		_, err := e.Commit(context.Background(), u, true)
		return err
	}
	if err := try(1); err != nil {
		t.Fatal(err)
	}
	fs.free.Store(1 << 20)
	code(t, try(2), mongoerr.OutOfDiskSpace)
	want(t, "readable", now(t, e, "db.c"), "{ _id: 1 }")
	fs.free.Store(1 << 30)
	if err := try(3); err != nil {
		t.Fatal(err)
	}
}

// On a full disk deletes and drops were refused like all other writes, so that no space could be freed.
func TestDeletesAndDropsOnAFullDisk(t *testing.T) {
	fs := &fullFS{FS: vfs.NewMem()}
	fs.free.Store(1 << 30)
	clock := atomic.Int64{}
	clock.Store(1_700_000_000_000)
	e, err := Open(Options{FS: fs, Dir: "db", Clock: func() time.Time { return time.UnixMilli(clock.Add(1000)) }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c := create(t, e, "db.c", nil, spec("n_1", D("n", 1)))
	create(t, e, "db.other", nil)
	insert(t, e, c, D("_id", 1), D("_id", 2), D("_id", 3), D("_id", 5), D("_id", 6))
	in := func(f func(u *UnitOfWork, s *Snapshot) error) error {
		s := e.Snapshot()
		defer s.Release()
		u := e.NewUnitOfWork(s)
		defer u.Rollback()
		err := f(u, s)
		if err == nil {
			_, err = e.Commit(context.Background(), u, true)
		}
		return err
	}
	remove := func(id int) func(u *UnitOfWork, s *Snapshot) error {
		return func(u *UnitOfWork, s *Snapshot) error {
			c := s.Catalog().Lookup("db.c")
			rid, doc, _, err := s.FindByID(c, V(id))
			if err == nil {
				err = u.Delete(c, rid.Clone(), append([]byte(nil), doc...), NoInfo)
			}
			return err
		}
	}
	fs.free.Store(100 << 20)
	refused := map[string]func(u *UnitOfWork, s *Snapshot) error{
		"insert": func(u *UnitOfWork, s *Snapshot) error {
			_, err := u.Insert(s.Catalog().Lookup("db.c"), D("_id", 4), NoInfo)
			return err
		},
		"delete and insert": func(u *UnitOfWork, s *Snapshot) error {
			if _, err := u.Insert(s.Catalog().Lookup("db.other"), D("_id", 4), NoInfo); err != nil {
				return err
			}
			return remove(1)(u, s)
		},
		"create": func(u *UnitOfWork, s *Snapshot) error {
			_, err := u.CreateCollection(CollectionSpec{NS: "db.new"})
			return err
		},
	}
	for what, f := range refused {
		if err := in(f); mongoerr.CodeOf(err) != mongoerr.OutOfDiskSpace {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := in(remove(1)); err != nil {
		t.Errorf("delete: %v", err)
	}
	for _, id := range []int{5, 6} { // a findAndModify with remove stores the removed document for a retry
		if err := in(func(u *UnitOfWork, s *Snapshot) error {
			c := s.Catalog().Lookup("db.other")
			rid, doc, found, err := s.FindByID(c, V(1))
			if err == nil && found {
				err = u.Update(c, rid.Clone(), append([]byte(nil), doc...), D("_id", 1, "image", "longer than the one before"), NoInfo)
			} else if err == nil {
				_, err = u.Insert(c, D("_id", 1, "image", id), NoInfo)
			}
			if err != nil {
				return err
			}
			u.Accompanies(c)
			return remove(id)(u, s)
		}); err != nil {
			t.Errorf("delete with a record of it: %v", err)
		}
	}
	if err := in(func(u *UnitOfWork, s *Snapshot) error {
		_, err := u.DropIndexes(s.Catalog().Lookup("db.c"), []string{"n_1"})
		return err
	}); err != nil {
		t.Errorf("dropIndexes: %v", err)
	}
	// The very last space is reserved for the store itself.
	fs.free.Store(20 << 20)
	if err := in(remove(2)); mongoerr.CodeOf(err) != mongoerr.OutOfDiskSpace {
		t.Errorf("delete with hardly anything left: %v", err)
	}
	fs.free.Store(100 << 20)
	if err := in(func(u *UnitOfWork, s *Snapshot) error { return u.DropCollection(s.Catalog().Lookup("db.c")) }); err != nil {
		t.Errorf("drop: %v", err)
	}
}

// The last drop was only carried out after a later commit, which a full disk does not accept.
func TestLastDropIsCarriedOut(t *testing.T) {
	clock := atomic.Int64{}
	clock.Store(1_700_000_000_000)
	e := openMem(t, Options{CollectInterval: time.Hour, Clock: func() time.Time { return time.UnixMilli(clock.Add(1000)) }})
	c := create(t, e, "db.c", nil)
	insert(t, e, c, D("_id", 1), D("_id", 2))
	s := e.Snapshot()
	u := e.NewUnitOfWork(s)
	if err := u.DropCollection(s.Catalog().Lookup("db.c")); err != nil {
		t.Fatal(err)
	}
	before, err := e.Commit(context.Background(), u, true)
	if err != nil {
		t.Fatal(err)
	}
	s.Release()
	keys := func() (n int) {
		lower, upper := identRange(c.Ident)
		it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
		if err != nil {
			t.Fatal(err)
		}
		defer it.Close()
		for ok := it.First(); ok; ok = it.Next() {
			n++
		}
		return n
	}
	if err := e.collect(context.Background()); err != nil {
		t.Fatal(err)
	}
	if keys() == 0 {
		t.Error("what a snapshot of the history window reads is gone")
	}
	clock.Add(e.HistoryWindow().Milliseconds() + 10_000)
	if err := e.collect(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := keys(); n != 0 || e.Visible() != before {
		t.Errorf("%d keys are left at %v, the drop was at %v", n, e.Visible(), before)
	}
}

// The tables that a crash leaves behind are dropped, and dropped collections are readable until they are too old.
func TestDrops(t *testing.T) {
	fs := vfs.NewMem()
	clock := atomic.Int64{}
	clock.Store(1_700_000_000)
	o := Options{FS: fs, Clock: func() time.Time { return time.Unix(clock.Load(), 0) }, HistoryWindow: 10 * time.Second, CollectInterval: time.Hour}
	e := openMem(t, o)
	c := create(t, e, "db.c", nil)
	ts := insert(t, e, c, D("_id", 1))
	clock.Add(1)
	u := e.NewUnitOfWork(nil)
	if err := u.DropCollection(c); err != nil {
		t.Fatal(err)
	}
	commit(t, e, u)
	// A table that belongs to no collection.
	stray := appendVersion(append(appendIdent(nil, 500), 1), uint64(ts))
	if err := e.db.Set(stray, []byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = openMem(t, o)
	defer e.Close()
	s, err := e.SnapshotAt(ts)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "before the drop", list(t, s, "db.c", false), "{ _id: 1 }")
	if e.Catalog().Lookup("db.c") != nil {
		t.Error("the collection is still there")
	}
	clock.Add(60)
	other := create(t, e, "db.d", nil)
	insert(t, e, other, D("_id", 1))
	if err := e.collect(context.Background()); err != nil {
		t.Fatal(err)
	}
	want(t, "held by the snapshot", list(t, s, "db.c", false), "{ _id: 1 }")
	s.Release()
	if err := e.collect(context.Background()); err != nil {
		t.Fatal(err)
	}
	_, err = e.SnapshotAt(ts)
	code(t, err, mongoerr.SnapshotTooOld)
	for _, id := range []catalog.Ident{c.Ident, c.IDIndex().Ident, 500} {
		if k, err := e.lastUserKey(id); k != nil || err != nil {
			t.Errorf("table %d is still there: %v", id, err)
		}
	}
}

// The oplog drops its oldest entries when it is too large, and nothing else changes.
func TestOplogTruncation(t *testing.T) {
	e := openMem(t, Options{OplogSize: 1 << 20, CollectInterval: time.Hour})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	pad := string(make([]byte, 1000))
	for i := 0; i < 3000; i += 100 {
		var docs [][]byte
		for k := 0; k < 100; k++ {
			docs = append(docs, D("_id", i+k, "pad", pad))
		}
		insert(t, e, c, docs...)
	}
	if err := e.collect(context.Background()); err != nil {
		t.Fatal(err)
	}
	s := e.Snapshot()
	defer s.Release()
	oplog := s.Catalog().Lookup(OplogNS)
	cur := s.Scan(oplog, ScanOptions{})
	defer cur.Close()
	n := int64(0)
	for cur.Next() {
		n++
	}
	if n < 500 || n > 1100 || n != oplog.Counters.Records.Load() {
		t.Errorf("%d entries, counted %d", n, oplog.Counters.Records.Load())
	}
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// Of a document that was written many times, only the versions that snapshots can still see are kept.
func TestHotDocument(t *testing.T) {
	clock := atomic.Int64{}
	clock.Store(1_700_000_000)
	e := openMem(t, Options{CollectInterval: time.Hour, HistoryWindow: time.Second, Clock: func() time.Time { return time.Unix(clock.Load(), 0) }})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	insert(t, e, c, D("_id", 1, "n", 0))
	for i := range 500 {
		if err := update(t, e, "db.c", 1, D("_id", 1, "n", i)); err != nil {
			t.Fatal(err)
		}
	}
	clock.Add(60)
	create(t, e, "db.other", nil)
	if err := e.collect(context.Background()); err != nil {
		t.Fatal(err)
	}
	lower, upper := identRange(c.Ident)
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		n++
	}
	if err := it.Close(); err != nil || n != 1 {
		t.Errorf("%d versions are left: %v", n, err)
	}
	want(t, "the newest", now(t, e, "db.c"), "{ _id: 1, n: 499 }")
}
