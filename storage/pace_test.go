package storage

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// slowTables writes tables no faster than a disk does, so that memtables fill faster than they are flushed.
type slowTables struct{ vfs.FS }

func (s slowTables) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := s.FS.Create(name, category)
	if err == nil && category == "pebble-memtable-flush" {
		f = slowFile{f}
	}
	return f, err
}

type slowFile struct{ vfs.File }

func (f slowFile) Write(p []byte) (int, error) {
	// The time that a disk of 8 MB/s takes.
	time.Sleep(time.Duration(len(p)) * time.Second / (8 << 20))
	return f.File.Write(p)
}

// The memory of pebble's memtables and block cache while a large transaction is written does not depend on the transaction's size.
func TestMemoryOfATransactionIsBounded(t *testing.T) {
	const mb, table = 1 << 20, 1 << 20
	var native [2]int64
	for i, size := range []int{4 * mb, 16 * mb} {
		e := openMem(t, Options{FS: slowTables{vfs.NewMem()}, memTable: table, CacheSize: 2 * mb, stageBytes: mb / 2, chunkBytes: mb / 8, CollectInterval: time.Hour})
		native[i] = transactionMemory(t, e, size, 2<<10)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d MB: at most %d KB of memtables and block cache", size/mb, native[i]>>10)
	}
	if native[1] > native[0]+table || native[1] > 3*table+table/2 {
		t.Errorf("%d KB of memtables and cache, with a quarter %d; a memtable has %d", native[1]>>10, native[0]>>10, table>>10)
	}
}

// transactionMemory writes a transaction of a size, and returns the most memory that was used meanwhile.
func transactionMemory(t *testing.T, e *Engine, size, doc int) (native int64) {
	t.Helper()
	c := create(t, e, "db.c", nil)
	s := e.Snapshot()
	defer s.Release()
	u := e.NewUnitOfWork(s)
	u.SetTransaction(D("id", 1), 1)
	u.Snapshot()
	stop := make(chan struct{})
	var sampler sync.WaitGroup
	sampler.Go(func() {
		for {
			st := e.Stats()
			native = max(native, st.MemTableBytes+st.ZombieBytes+st.CacheBytes)
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	noise := make([]byte, 4*doc)
	r := rand.New(rand.NewPCG(1, uint64(size)))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	for i := range size / doc {
		at := r.IntN(len(noise) - doc)
		if _, err := u.InsertMany(c, [][]byte{D("_id", i, "pad", string(noise[at:at+doc]))}, NoInfo); err != nil {
			t.Fatal(err)
		}
	}
	commit(t, e, u)
	close(stop)
	sampler.Wait()
	return native
}

// What a transaction keeps in Go's heap while it is under way, with indexes, does not depend on its size either: one three times as
// large may need a constant more.
func TestHeapOfATransactionIsBounded(t *testing.T) {
	const mb, doc = 1 << 20, 4 << 10
	live := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	pad := make([]byte, doc)
	var most [2]int64
	for i, size := range []int{20 * mb, 60 * mb} { // each fills an oplog entry, which has up to 16 MB
		e := openMem(t, Options{FS: vfs.Default, Dir: t.TempDir(), memTable: mb, CacheSize: 2 * mb, stageBytes: mb / 2, chunkBytes: mb / 8, CollectInterval: time.Hour})
		c := create(t, e, "db.c", nil, spec("a_1", D("a", 1)), spec("b_1", D("b", 1)))
		s := e.Snapshot()
		u := e.NewUnitOfWork(s)
		u.SetTransaction(D("id", 1), 1)
		u.Snapshot()
		before := live()
		for n := range size / doc {
			if _, err := u.InsertMany(c, [][]byte{D("_id", n, "a", n*7, "b", -n, "pad", string(pad))}, NoInfo); err != nil {
				t.Fatal(err)
			}
			if n%(4*mb/doc) == 0 {
				most[i] = max(most[i], live()-before)
			}
		}
		most[i] = max(most[i], live()-before)
		commit(t, e, u)
		s.Release()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d MB: the live heap grew by at most %d KB", size/mb, most[i]>>10)
	}
	// The limit is half of what is written: an oplog entry that is being filled, and the data of a flush in progress, took 12 to 15 MB with either size. Heap that
	// other tests have left, and that is returned meanwhile, makes a comparison of the two useless.
	if most[1] > 30*mb {
		t.Errorf("the live heap grew by %d KB, by %d with a third of it", most[1]>>10, most[0]>>10)
	}
}
