package storage

import (
	"context"
	"math/rand"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// smallDisk is a file system of limited size, as reported by GetDiskUsage.
type smallDisk struct {
	vfs.FS
	size int64
}

func (d smallDisk) GetDiskUsage(dir string) (vfs.DiskUsage, error) {
	used := d.used(dir, "")
	return vfs.DiskUsage{AvailBytes: uint64(max(0, d.size-used)), TotalBytes: uint64(d.size), UsedBytes: uint64(used)}, nil
}

// used is the size of the files with that suffix.
func (d smallDisk) used(dir, end string) (used int64) {
	list, err := d.FS.List(dir)
	if err != nil {
		return 0
	}
	for _, name := range list {
		if st, err := d.FS.Stat(d.FS.PathJoin(dir, name)); err == nil && strings.HasSuffix(name, end) {
			used += st.Size()
		}
	}
	return used
}

// handClock is a clock that a test sets.
type handClock struct{ ns atomic.Int64 }

func newHandClock() *handClock {
	c := &handClock{}
	c.ns.Store(time.Unix(1_700_000_000, 0).UnixNano())
	return c
}

func (c *handClock) now() time.Time       { return time.Unix(0, c.ns.Load()) }
func (c *handClock) pass(d time.Duration) { c.ns.Add(int64(d)) }

// fullStore is a store on a small disk.
type fullStore struct {
	*testing.T
	e     *Engine
	disk  smallDisk
	clock *handClock
	rnd   *rand.Rand
	next  int
}

func (f *fullStore) insert(ns string, size int) error {
	pad := make([]byte, size)
	f.rnd.Read(pad)
	f.next++
	u := f.e.NewUnitOfWork(nil)
	defer u.Rollback()
	c := f.e.Catalog().Lookup(ns)
	var err error
	if c == nil {
		if c, err = u.CreateCollection(CollectionSpec{NS: ns}); err != nil {
			return err
		}
	}
	_, err = u.Insert(c, D("_id", f.next, "pad", string(pad)), NoInfo)
	if err == nil {
		_, err = f.e.Commit(context.Background(), u, false)
	}
	return err
}

// rounds runs the collector, at most the given number of rounds, until an insert is accepted; it returns 0 if none is.
func (f *fullStore) rounds(most int) int {
	await.True(f.T, "what was written is durable, which may be dropped", func() bool { return f.e.Durable() >= f.e.Visible() })
	for i := range most {
		f.clock.pass(2 * time.Second)
		if err := f.e.collect(f.Context()); err != nil {
			f.Fatal(err)
		}
		f.e.iters.trim(f.clock.now().Add(time.Hour))
		f.e.iters.closeOld()
		f.settle()
		if err := f.insert("db.c", 1<<10); err == nil {
			return i + 1
		}
	}
	return 0
}

// settle waits until pebble has finished merging and has removed obsolete files.
func (f *fullStore) settle() {
	await.True(f.T, "pebble is done", func() bool {
		m := f.e.db.Metrics()
		return m.Compact.NumInProgress == 0 && m.Table.ZombieCount == 0 && m.Table.ObsoleteCount == 0
	})
	f.e.db.TestOnlyWaitForCleaning()
}

// fill writes until writes are refused permanently.
func (f *fullStore) fill() (bytes int) {
	for stuck := 0; stuck < 3; {
		err := f.insert("db.c", 256<<10)
		if err == nil {
			bytes += 256 << 10
			stuck = 0
			continue
		}
		code(f.T, err, mongoerr.OutOfDiskSpace)
		f.rounds(2)
		stuck++
	}
	return bytes
}

func (f *fullStore) deleteSome(every int) {
	s := f.e.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup("db.c")
	cur := s.Scan(c, ScanOptions{})
	defer cur.Close()
	for i := 0; cur.Next(); i++ {
		if i%every != 0 {
			continue
		}
		u := f.e.NewUnitOfWork(s)
		err := u.Delete(c, cur.RecordID(), cur.Doc(), NoInfo)
		if err == nil {
			_, err = f.e.Commit(f.Context(), u, false)
		}
		if err != nil {
			f.Fatal(err)
		}
	}
}

// A full disk has room again after two rounds of the collector if documents were deleted or a collection was dropped:
// history is dropped, files are merged, the oplog is shortened, and journals are not kept for reuse.
func TestFullDiskGetsItsRoomBack(t *testing.T) {
	for name, makeRoom := range map[string]func(f *fullStore){
		"drop":        func(f *fullStore) { f.drop("db.c") },
		"delete":      func(f *fullStore) { f.deleteSome(1) },
		"delete half": func(f *fullStore) { f.deleteSome(2) },
	} {
		t.Run(name, func(t *testing.T) {
			f := &fullStore{T: t, disk: smallDisk{vfs.NewMem(), 256 << 20}, clock: newHandClock(), rnd: rand.New(rand.NewSource(1))}
			e, err := Open(Options{Dir: "db", FS: f.disk, Clock: f.clock.now, CollectInterval: time.Hour, MinFreeDisk: 100 << 20})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			f.e = e
			create(t, e, "db.c", nil)
			bytes := f.fill()
			t.Logf("full with %d MB of documents, %d MB of files", bytes>>20, f.disk.used("db", "")>>20)
			if int64(bytes) < (f.disk.size-e.opts.MinFreeDisk)/5 {
				t.Errorf("only %d bytes of documents fit", bytes)
			}
			makeRoom(f)
			n := f.rounds(4)
			if n == 0 || n > 2 {
				t.Errorf("writes are accepted after %d rounds", n)
			}
			more := f.fill()
			t.Logf("writes are accepted after %d rounds; another %d MB fit", n, more>>20)
			want := bytes / 4 // what merges leave behind differs from run to run
			if name == "delete half" {
				want = bytes / 8
			}
			if more < want {
				t.Errorf("another %d bytes of documents fit, after %d before", more, bytes)
			}
		})
	}
}

// large creates a collection of that many bytes.
func (f *fullStore) large(ns string, bytes int) {
	for range bytes >> 18 {
		if err := f.insert(ns, 256<<10); err != nil {
			f.Fatal(err)
		}
	}
}

func (f *fullStore) drop(ns string) Timestamp {
	u := f.e.NewUnitOfWork(nil)
	if err := u.DropCollection(f.e.Catalog().Lookup(ns)); err != nil {
		f.Fatal(err)
	}
	return commit(f.T, f.e, u)
}

func (f *fullStore) collect() {
	f.e.iters.trim(f.clock.now().Add(time.Hour))
	f.e.iters.closeOld()
	if err := f.e.collect(f.Context()); err != nil {
		f.Fatal(err)
	}
}

// count reads a collection at a time.
func (f *fullStore) count(s *Snapshot, ns string) (n int, err error) {
	cur := s.Scan(s.Catalog().Lookup(ns), ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		n++
	}
	return n, cur.Err()
}

func (f *fullStore) countAt(at Timestamp, ns string) (int, error) {
	s, err := f.e.SnapshotAt(at)
	if err != nil {
		f.Fatal(err)
	}
	defer s.Release()
	return f.count(s, ns)
}

// The space of a large collection is freed as soon as it has no readers, even if history reaches back before its drop;
// reads at such a time get an error, also after a restart, and everything else can be read. Small ones stay as long as
// the history.
func TestLargeCollectionsAreDiscardedWithoutHistory(t *testing.T) {
	f := &fullStore{T: t, disk: smallDisk{vfs.NewMem(), 1 << 40}, clock: newHandClock(), rnd: rand.New(rand.NewSource(1))}
	opts := Options{Dir: "db", FS: f.disk, Clock: f.clock.now, CollectInterval: time.Hour}
	open := func() {
		e, err := Open(opts)
		if err != nil {
			t.Fatal(err)
		}
		f.e = e
	}
	open()
	defer func() { _ = f.e.Close() }()
	create(t, f.e, "db.small", nil)
	create(t, f.e, "db.large", nil)
	f.large("db.small", 1<<20)
	f.large("db.large", 2*discardFrom)
	if err := f.e.db.Flush(); err != nil {
		t.Fatal(err)
	}
	before := f.disk.used("db", ".sst")
	s := f.e.Snapshot()
	at := s.Timestamp()
	f.drop("db.large")
	f.drop("db.small")
	f.collect()
	if n, err := f.count(s, "db.large"); err != nil || n != 2*discardFrom>>18 {
		t.Errorf("a snapshot of before the drop reads %d documents: %v", n, err)
	}
	s.Release()
	check := func() {
		t.Helper()
		_, err := f.countAt(at, "db.large")
		code(t, err, mongoerr.SnapshotTooOld)
		if n, err := f.countAt(at, "db.small"); n != 4 || err != nil {
			t.Errorf("a small collection at the time before its drop: %d documents, %v", n, err)
		}
	}
	f.collect()
	check()
	want := before - 2*discardFrom*3/4
	for deadline := time.Now().Add(time.Minute); f.disk.used("db", ".sst") > want && time.Now().Before(deadline); f.settle() {
		f.e.space.dead.nudge = nudges // in production rounds are seconds apart, and a running merge ends between them
		f.collect()
	}
	if f.disk.used("db", ".sst") > want {
		t.Errorf("%d bytes of tables before the drop, %d after", before, f.disk.used("db", ".sst"))
	}
	if err := f.e.Close(); err != nil {
		t.Fatal(err)
	}
	open()
	check()
}

// A crash while a dropped collection is discarded leaves it complete, or gone for all readers.
func TestCrashWhileTablesAreDiscarded(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var armed atomic.Bool
	var crashes []*vfs.MemFS
	var mu sync.Mutex
	rnd := rand.New(rand.NewSource(2))
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if armed.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			mu.Lock()
			defer mu.Unlock()
			if len(crashes) < 12 && rnd.Intn(5) == 0 {
				crashes = append(crashes, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: newRand(uint64(len(crashes)))}))
			}
		}
		return nil
	}))
	f := &fullStore{T: t, clock: newHandClock(), rnd: rand.New(rand.NewSource(1))}
	opts := Options{Dir: "db", FS: fs, Clock: f.clock.now, CollectInterval: time.Hour, MinFreeDisk: 1}
	e, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	f.e = e
	create(t, e, "db.c", nil)
	f.large("db.c", discardFrom+1<<20)
	create(t, e, "db.other", nil)
	f.large("db.other", 1<<20)
	at := e.Visible()
	if err := e.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	armed.Store(true)
	f.drop("db.c")
	f.collect()
	if err := e.space.journals.trim(func() int { return int(e.db.Metrics().WAL.ObsoleteFiles) }); err != nil {
		t.Fatal(err)
	}
	armed.Store(false)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	whole := 0
	for i, crash := range crashes {
		opts.FS = crash
		if f.e, err = Open(opts); err != nil {
			t.Fatalf("crash %d: %v", i, err)
		}
		if f.e.Catalog().Lookup("db.c") != nil {
			whole++
		}
		n, err := f.countAt(at, "db.c")
		if mongoerr.CodeOf(err) != mongoerr.SnapshotTooOld && (n != (discardFrom+1<<20)>>18 || err != nil) {
			t.Errorf("crash %d: %d documents at the time before the drop, %v", i, n, err)
		}
		if n, err := f.countAt(at, "db.other"); n != 4 || err != nil {
			t.Errorf("crash %d: %d documents of the other collection, %v", i, n, err)
		}
		_ = f.e.Close()
	}
	t.Logf("%d crashes, %d with the collection", len(crashes), whole)
}

// Journals that pebble keeps for reuse are empty once they are trimmed, and can still be reused.
func TestJournalsAreTrimmed(t *testing.T) {
	f := &fullStore{T: t, disk: smallDisk{vfs.NewMem(), 1 << 40}, clock: newHandClock(), rnd: rand.New(rand.NewSource(1))}
	opts := Options{Dir: "db", FS: f.disk, Clock: f.clock.now, CollectInterval: time.Hour}
	e, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	f.e = e
	create(t, e, "db.c", nil)
	docs := 0
	grow := func() {
		for range 8 {
			f.large("db.c", 1<<20)
			docs += 4
			if err := e.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 3 {
		grow()
		before := f.disk.used("db", ".log")
		if err := e.trimJournals(); err != nil {
			t.Fatal(err)
		}
		if after := f.disk.used("db", ".log"); after > before/2 {
			t.Errorf("%d bytes of journals of %d are left", after, before)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if f.e, err = Open(opts); err != nil {
		t.Fatal(err)
	}
	defer f.e.Close()
	if n, err := f.countAt(f.e.Visible(), "db.c"); n != docs || err != nil {
		t.Errorf("%d documents of %d, %v", n, docs, err)
	}
}
