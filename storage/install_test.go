package storage

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// keepCommitting commits what is proposed until the log is closed.
func (l *testLog) keepCommitting() {
	go func() {
		for !l.isClosed() {
			l.commitSome(1 + rand.IntN(3))
			time.Sleep(20 * time.Microsecond) // the log's own pace: commits gather behind it
		}
	}()
}

// A member loses power at random moments and replays the log from its store's index; applying entries a second time
// does no harm.
func TestReplay(t *testing.T) { replay(t, Options{}, true) }

// replay is TestReplay, with or without entries applied a second time.
func replay(t *testing.T, o Options, again bool) {
	o.JournalInterval, o.CollectInterval, o.HistoryWindow = time.Millisecond, 2*time.Millisecond, time.Nanosecond
	l := newTestLog(t, 2, o)
	defer l.close()
	l.elect(l.members[0], 0)
	m := l.members[1]
	w := &replicaLoad{l: l}
	w.run(4)
	for round := range 8 {
		w.progress(20)
		crashed := m.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: round * 14, RNG: newRand(uint64(round))})
		m.halt()
		before, _ := m.e.AppliedIndex()
		if err := m.e.Close(); err != nil {
			t.Error(err)
		}
		m.fs, o.FS = crashed, crashed
		m.e = openMem(t, o)
		at, _ := m.e.AppliedIndex()
		if at > before {
			t.Errorf("entry %d is applied, it was %d before the crash", at, before)
		}
		verifyIndexes(t, m.e)
		if back := min(at, 10); again && round%2 == 1 && at > 0 {
			m.e.replica.at.Store(&applied{index: at - back})
		}
		if at == 0 {
			m.e.Resign(errNoMember)
		}
		m.start()
		// A store's own index is never behind its content: the next crash has to come after the replay, and keep it.
		l.waitApplied(m, int(at))
		if err := m.e.db.LogData(nil, pebble.Sync); err != nil {
			t.Error(err)
		}
	}
	w.wait()
	l.settle()
	l.same()
}

// total reads all documents of a collection and adds up a field.
func total(s *Snapshot, ns string) (sum, n int64, err error) {
	cur := s.Scan(s.Catalog().Lookup(ns), ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		v, _ := value.Lookup(cur.Doc(), "n").AsInt64()
		sum, n = sum+v, n+1
		if n%10 == 0 {
			cur.Save() // so that the next step needs a new iterator
		}
	}
	return sum, n, cur.Err()
}

// Readers see a consistent state while snapshots replace everything, or fail because their state is gone; the snapshots
// are taken while the primary writes.
func TestInstallUnderReaders(t *testing.T) {
	o := Options{CollectInterval: 3 * time.Millisecond, HistoryWindow: time.Nanosecond}
	l := newTestLog(t, 2, o)
	defer l.close()
	l.keepCommitting()
	l.elect(l.members[0], 0)
	p, m := l.members[0], l.members[1]
	c := create(t, p.e, "db.c", nil)
	for i := range 50 {
		insert(t, p.e, c, D("_id", i, "n", 100))
	}
	l.settle()
	m.halt()
	var stop atomic.Bool
	var wg sync.WaitGroup
	var replaced, fine, moved atomic.Int64
	for range 2 {
		wg.Add(2)
		go func() {
			defer wg.Done()
			for !stop.Load() {
				from := rand.IntN(50)
				if err := transfer(p.e, "db.c", from, (from+1+rand.IntN(49))%50, false); err != nil && !ErrConflict(err) {
					t.Error(err)
				}
				moved.Add(1)
			}
		}()
		go func() {
			defer wg.Done()
			for !stop.Load() {
				s := m.e.Snapshot()
				sum, n, err := total(s, "db.c")
				s.Release()
				switch {
				case errors.Is(err, errReplaced):
					replaced.Add(1)
				case err != nil || sum != 5000 || n != 50:
					t.Errorf("%d documents with a sum of %d: %v", n, sum, err)
				default:
					fine.Add(1)
				}
			}
		}()
	}
	for range 20 {
		from := moved.Load()
		await.True(t, "there are newer commits than those of the copy", func() bool { return moved.Load() >= from+10 })
		man := copySnapshot(t, p.e, m.e, "x")
		if at, _ := m.e.AppliedIndex(); at == man.Index {
			continue
		}
		if err := m.e.InstallSnapshot(context.Background(), "x", man); err != nil {
			t.Error(err)
		}
		if m.e.Visible() != man.TS {
			t.Errorf("installed %v, visible is %v", man.TS, m.e.Visible())
		}
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("%d reads, %d told that their view is gone", fine.Load(), replaced.Load())
	m.start()
	l.settle()
	l.same()
}

// A damaged snapshot, or one of tables that are not replicated, is refused and changes nothing.
func TestDamagedSnapshot(t *testing.T) {
	l := newTestLog(t, 2, Options{})
	defer l.close()
	l.keepCommitting()
	l.elect(l.members[0], 0)
	p, m := l.members[0], l.members[1]
	c := create(t, p.e, "db.c", nil)
	insert(t, p.e, c, D("_id", 1, "pad", string(make([]byte, 10000))))
	l.settle()
	m.halt()
	insert(t, p.e, c, D("_id", 2))
	l.commitSome(1)
	before, err := m.e.ContentHash(context.Background(), m.e.Visible())
	if err != nil {
		t.Fatal(err)
	}
	path := func(name string) string {
		return m.e.opts.FS.PathJoin(m.e.Files().path("x"), name)
	}
	for name, damage := range map[string]func(man *SnapshotManifest){
		"a changed byte": func(man *SnapshotManifest) {
			f, _ := m.e.opts.FS.OpenReadWrite(path(man.Files[0].Name), vfs.WriteCategoryUnspecified)
			_, _ = f.WriteAt([]byte{0xEE}, man.Files[0].Size/2)
			_ = f.Close()
		},
		"one byte too many": func(man *SnapshotManifest) { _ = m.e.Files().Append("x", man.Files[0].Name, []byte{1}) },
		"a missing file":    func(man *SnapshotManifest) { _ = m.e.opts.FS.Remove(path(man.Files[0].Name)) },
		"a strange name":    func(man *SnapshotManifest) { man.Files[0].Name = "../../etc" },
		"no files":          func(man *SnapshotManifest) { man.Files = nil },
		"no table": func(man *SnapshotManifest) {
			text := []byte("this is not a table")
			_ = m.e.opts.FS.Remove(path(man.Files[0].Name))
			_ = m.e.Files().Append("x", man.Files[0].Name, text)
			man.Files[0].Size, man.Files[0].Sum = int64(len(text)), sumOf(text)
		},
		"tables of another node": func(man *SnapshotManifest) {
			w := snapshotWriter{e: m.e, dir: m.e.Files().path("x"), max: 1 << 20}
			if err := errors.Join(w.open(), w.w.Set(TableRaftLog.key(nil, []byte("k")), nil), w.close()); err != nil {
				t.Fatal(err)
			}
			*man = SnapshotManifest{Index: man.Index, Term: man.Term, Files: w.files}
		},
		"old": func(man *SnapshotManifest) { man.Index = 1 },
	} {
		man := copySnapshot(t, p.e, m.e, "x")
		damage(&man)
		err := m.e.InstallSnapshot(context.Background(), "x", man)
		if c := mongoerr.CodeOf(err); c != mongoerr.DataCorruptionDetected && name != "old" && !errors.Is(err, os.ErrNotExist) || err == nil {
			t.Errorf("%s: %v", name, err)
		}
		if m.e.failure() != nil {
			t.Fatalf("%s: the store gave up: %v", name, m.e.failure())
		}
		after, err := m.e.ContentHash(context.Background(), m.e.Visible())
		if err != nil || !slices.Equal(before, after) {
			t.Errorf("%s: the store has changed: %v", name, err)
		}
	}
	if err := p.e.InstallSnapshot(context.Background(), "x", copySnapshot(t, p.e, p.e, "y")); err == nil {
		t.Error("a primary takes a snapshot")
	}
	m.start()
	l.settle()
	l.same()
}

// The machine loses power while a snapshot is installed: the store has the old or the new state.
func TestInterruptedInstall(t *testing.T) {
	l := newTestLog(t, 2, Options{})
	defer l.close()
	l.keepCommitting()
	l.elect(l.members[0], 0)
	p, m := l.members[0], l.members[1]
	c := create(t, p.e, "db.c", nil, spec("n_1", D("n", 1)))
	insert(t, p.e, c, D("_id", 1, "n", 1))
	l.settle()
	m.halt()
	old, _ := m.e.AppliedIndex()
	insert(t, p.e, c, D("_id", 2, "n", 2))
	create(t, p.e, "db.d", nil)
	man := copySnapshot(t, p.e, m.e, "x")
	b := m.e.NewLocalBatch()
	b.Set(TableRaftMeta, []byte("hard"), []byte("state"))
	if err := b.Commit(true); err != nil {
		t.Fatal(err)
	}
	// The power may fail at any write of the installation.
	if err := m.e.Close(); err != nil {
		t.Fatal(err)
	}
	var clones struct {
		sync.Mutex
		on   bool
		list []*vfs.MemFS
	}
	snap := func() {
		n := uint64(len(clones.list))
		clones.list = append(clones.list, m.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(n*37) % 101, RNG: newRand(n)}))
	}
	m.e = openMem(t, Options{FS: errorfs.Wrap(m.fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		clones.Lock()
		defer clones.Unlock()
		if clones.on && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			snap()
		}
		return nil
	}))})
	clones.Lock()
	clones.on = true
	clones.Unlock()
	if err := m.e.InstallSnapshot(context.Background(), "x", man); err != nil {
		t.Fatal(err)
	}
	clones.Lock()
	clones.on = false
	snap()
	clones.Unlock()
	states := map[uint64]int{}
	for _, fs := range clones.list {
		e := openMem(t, Options{FS: fs})
		at, _ := e.AppliedIndex()
		states[at]++
		docs := map[uint64]string{old: "{ _id: 1, n: 1 }", man.Index: "{ _id: 1, n: 1 } { _id: 2, n: 2 }"}[at]
		want(t, "after the crash", now(t, e, "db.c"), docs)
		if at == man.Index != (e.Catalog().Lookup("db.d") != nil) {
			t.Errorf("entry %d is applied, and the catalog is another", at)
		}
		if v, err := e.LocalGet(TableRaftMeta, []byte("hard")); err != nil || string(v) != "state" {
			t.Errorf("the local table has %q, %v", v, err)
		}
		verifyIndexes(t, e)
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("states found: %v", states)
	m.start()
	l.settle()
	l.same()
}

// Local tables keep their order, and their removals, across a restart.
func TestLocalTables(t *testing.T) {
	fs := vfs.NewMem()
	e := openMem(t, Options{FS: fs})
	b := e.NewLocalBatch()
	for i := byte(0); i < 10; i++ {
		b.Set(TableRaftLog, []byte{i}, []byte("v"), []byte{i})
	}
	if err := b.Commit(true); err != nil {
		t.Fatal(err)
	}
	b = e.NewLocalBatch()
	b.DeleteRange(TableRaftLog, nil, []byte{3})
	b.DeleteRange(TableRaftLog, []byte{7}, nil)
	b.Delete(TableRaftLog, []byte{5})
	if err := b.Commit(true); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var got []byte
		if err := e.LocalScan(TableRaftLog, []byte{4}, nil, func(k, v []byte) bool {
			got = append(append(got, k...), v[1:]...)
			return true
		}); err != nil || string(got) != "\x04\x04\x06\x06" {
			t.Errorf("%q %v", got, err)
		}
		if k, v, err := e.LocalLast(TableRaftLog); err != nil || string(k) != "\x06" || string(v) != "v\x06" {
			t.Errorf("%q %q %v", k, v, err)
		}
		if v, err := e.LocalGet(TableRaftLog, []byte{5}); v != nil || err != nil {
			t.Errorf("%q %v", v, err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		e = openMem(t, Options{FS: fs})
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

func sumOf(p []byte) uint64 { return xxhash.Sum64(p) }
