package storage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// testLog stands in for the replicated log: an array, of which entries up to commit are committed. Each member has a
// goroutine that applies them.
type testLog struct {
	t       *testing.T
	mu      sync.Mutex
	moved   *sync.Cond
	entries []testEntry // entry i has the index i + 1
	commit  int
	term    uint64
	members []*testMember
	primary *testMember
	drop    func() bool // whether a proposal is refused
	closed  bool
}

type testEntry struct {
	data  []byte
	term  uint64
	group *Group
	by    *testMember
}

type testMember struct {
	l    *testLog
	name int
	fs   *vfs.MemFS
	e    *Engine
	done chan struct{}
	stop bool
	use  sync.RWMutex // guards the use of e by the workload
}

var errStepDown = mongoerr.New(mongoerr.PrimarySteppedDown, "stepped down")

// newTestLog makes n members with the same empty store.
func newTestLog(t *testing.T, n int, o Options) *testLog {
	l := &testLog{t: t}
	l.moved = sync.NewCond(&l.mu)
	fs := vfs.NewCrashableMem()
	o.FS = fs
	if err := openMem(t, o).Close(); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		m := &testMember{l: l, name: i, fs: fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: newRand(1)})}
		o.FS = m.fs
		m.e = openMem(t, o)
		m.e.Resign(errNoMember)
		l.members = append(l.members, m)
		m.start()
	}
	return l
}

func (m *testMember) start() {
	m.done, m.stop = make(chan struct{}), false
	go m.apply()
}

// apply is a member's apply loop.
func (m *testMember) apply() {
	defer close(m.done)
	l := m.l
	index, _ := m.e.AppliedIndex()
	for at := int(index); ; at++ {
		l.mu.Lock()
		for at >= l.commit && !l.closed && !m.stop {
			l.moved.Wait()
		}
		if l.closed || m.stop {
			l.mu.Unlock()
			return
		}
		x := l.entries[at]
		own := x.by == m && l.primary == m && x.term == l.term && x.group != nil
		l.mu.Unlock()
		var err error
		switch {
		case x.data == nil:
			err = m.e.ApplyNothing(uint64(at+1), x.term)
		case own:
			err = m.e.ApplyGroup(x.group, uint64(at+1), x.term)
		default:
			err = m.e.ApplyEntry(x.data, uint64(at+1), x.term)
		}
		if err != nil {
			l.t.Errorf("member %d, entry %d: %v", m.name, at+1, err)
			return
		}
	}
}

// halt ends the member's apply loop.
func (m *testMember) halt() {
	m.l.mu.Lock()
	m.stop = true
	m.l.moved.Broadcast()
	m.l.mu.Unlock()
	<-m.done
}

func (l *testLog) propose(m *testMember, term uint64) func(*Group) error {
	return func(g *Group) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.term != term || l.drop != nil && l.drop() {
			return mongoerr.New(mongoerr.NotWritablePrimary, "proposal dropped")
		}
		l.entries = append(l.entries, testEntry{g.Data(), term, g, m})
		return nil
	}
}

// commitSome commits up to n entries.
func (l *testLog) commitSome(n int) {
	l.mu.Lock()
	l.commit = min(len(l.entries), l.commit+n)
	l.moved.Broadcast()
	l.mu.Unlock()
}

func (l *testLog) waitApplied(m *testMember, index int) {
	l.t.Helper()
	await.State(l.t, fmt.Sprintf("member %d applies entry %d", m.name, index), func() (uint64, bool) {
		if l.t.Failed() {
			l.t.FailNow() // the member that failed may have stopped applying
		}
		at, _ := m.e.AppliedIndex()
		return at, at >= uint64(index)
	})
}

// elect makes m primary. keep is the number of the old primary's uncommitted entries that survive.
func (l *testLog) elect(m *testMember, keep int) {
	l.mu.Lock()
	old := l.primary
	l.primary = nil
	l.entries = l.entries[:min(len(l.entries), l.commit+keep)]
	l.term++
	term := l.term
	l.entries = append(l.entries, testEntry{term: term})
	l.commit = len(l.entries)
	index := l.commit
	l.moved.Broadcast()
	l.mu.Unlock()
	if old != nil {
		old.e.Resign(errStepDown)
	}
	l.waitApplied(m, index)
	l.mu.Lock()
	l.primary = m
	l.mu.Unlock()
	if err := m.e.BecomePrimary(int64(term), l.propose(m, term)); err != nil {
		l.t.Error(err)
	}
}

// settle commits everything and waits until all members have applied it.
func (l *testLog) settle() {
	l.commitSome(1 << 30)
	l.mu.Lock()
	index := l.commit
	l.mu.Unlock()
	for _, m := range l.members {
		l.waitApplied(m, index)
	}
}

func (l *testLog) close() {
	for _, m := range l.members {
		m.e.Resign(errStepDown)
	}
	l.mu.Lock()
	l.closed = true
	l.moved.Broadcast()
	l.mu.Unlock()
	for _, m := range l.members {
		<-m.done
		if err := m.e.Close(); err != nil {
			l.t.Error(err)
		}
	}
}

// same checks that all members hold the same.
func (l *testLog) same() {
	l.t.Helper()
	var first []TableHash
	var ts Timestamp
	for i, m := range l.members {
		h, err := m.e.ContentHash(context.Background(), m.e.Visible())
		if err != nil {
			l.t.Fatal(err)
		}
		if i == 0 {
			first, ts = h, m.e.Visible()
			continue
		}
		if m.e.Visible() != ts {
			l.t.Errorf("member %d is at %v, member 0 at %v", i, m.e.Visible(), ts)
		}
		if len(h) != len(first) {
			l.t.Errorf("member %d has %d tables, member 0 has %d", i, len(h), len(first))
			continue
		}
		for k := range h {
			if h[k] != first[k] {
				l.t.Errorf("member %d: %s %s has %d keys, differs from member 0's %s %s with %d", i, h[k].NS, h[k].Index, h[k].Keys, first[k].NS, first[k].Index, first[k].Keys)
			}
		}
	}
}

// copySnapshot copies a snapshot of one member's store to another's.
func copySnapshot(t *testing.T, from, to *Engine, dir string) SnapshotManifest {
	t.Helper()
	if err := to.Files().Remove(dir); err != nil {
		t.Fatal(err)
	}
	m, err := from.WriteSnapshot(context.Background(), dir, 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range m.Files {
		buf := make([]byte, f.Size)
		if _, err := from.Files().ReadAt(dir, f.Name, buf, 0); err != nil {
			t.Fatal(err)
		}
		half := len(buf) / 2
		if err := errors.Join(to.Files().Append(dir, f.Name, buf[:half]), to.Files().Append(dir, f.Name, buf[half:])); err != nil {
			t.Fatal(err)
		}
	}
	if err := from.Files().Remove(dir); err != nil {
		t.Fatal(err)
	}
	return m
}

// restore restores a member from a snapshot of another: over its existing data, or after it lost everything.
func (l *testLog) restore(m, from *testMember, wiped bool, o Options) {
	m.halt()
	if wiped {
		m.e.Resign(errNoMember)
		m.use.Lock()
		defer m.use.Unlock()
		if err := m.e.Close(); err != nil {
			l.t.Error(err)
		}
		m.fs = vfs.NewCrashableMem()
		o.FS = m.fs
		m.e = openMem(l.t, o)
	}
	man := copySnapshot(l.t, from.e, m.e, "x")
	if at, _ := m.e.AppliedIndex(); man.Index > at {
		if err := m.e.InstallSnapshot(context.Background(), "x", man); err != nil {
			l.t.Error(err)
		}
		if at, term := m.e.AppliedIndex(); at != man.Index || term != man.Term || m.e.Visible() != man.TS {
			l.t.Errorf("installed %d %d %v, the store says %d %d %v", man.Index, man.Term, man.TS, at, term, m.e.Visible())
		}
	}
	if m.e.Visible() == 0 {
		l.t.Error("nothing is visible")
	}
	m.start()
}

// replicaLoad is a random workload on the current primary.
type replicaLoad struct {
	l    *testLog
	stop atomic.Bool
	acks atomic.Int64
	wg   sync.WaitGroup
	end  chan struct{}
	done chan struct{} // closed when nothing is committed any more
}

func (w *replicaLoad) run(workers int) {
	for i := range workers {
		w.wg.Add(1)
		go func() {
			defer w.wg.Done()
			rng := rand.New(rand.NewPCG(uint64(i), 7))
			for !w.stop.Load() {
				w.step(rng)
			}
		}()
	}
	w.end, w.done = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(w.done)
		for {
			select {
			case <-w.end:
				return
			case <-time.After(time.Duration(rand.IntN(100)) * time.Microsecond):
				w.l.commitSome(1 + rand.IntN(4))
			}
		}
	}()
}

// progress waits until n more entries are committed.
func (w *replicaLoad) progress(n int) {
	w.l.t.Helper()
	committed := func() int {
		w.l.mu.Lock()
		defer w.l.mu.Unlock()
		return w.l.commit
	}
	from := committed()
	await.State(w.l.t, fmt.Sprintf("%d more entries are committed", n), func() (int, bool) {
		now := committed() - from
		return now, now >= n || w.l.t.Failed()
	})
}

// wait ends the workload.
func (w *replicaLoad) wait() {
	w.stop.Store(true)
	w.wg.Wait()
	close(w.end)
	<-w.done
}

func (w *replicaLoad) step(rng *rand.Rand) {
	w.l.mu.Lock()
	m := w.l.primary
	w.l.mu.Unlock()
	if m == nil {
		runtime.Gosched() // an election
		return
	}
	m.use.RLock()
	defer m.use.RUnlock()
	ns := fmt.Sprintf("db%d.c%d", rng.IntN(2), rng.IntN(3))
	var err error
	switch x := rng.IntN(100); {
	case x < 2:
		err = w.ddl(rng, m.e, ns)
	case x < 3:
		var b *IndexBuild
		name := fmt.Sprint("b", rng.IntN(3))
		if b, err = m.e.StartIndexBuild(context.Background(), ns, [][]byte{spec(name, D(name, 1))}, NewUUID()); err == nil {
			_, err = b.Run(context.Background())
		}
	case x < 20:
		err = w.capped(rng, m.e)
	case x < 30:
		err = w.long(rng, m.e)
	default:
		err = w.write(rng, m.e, ns)
	}
	if err == nil {
		w.acks.Add(1)
	}
	switch c := mongoerr.CodeOf(err); c {
	case 0, mongoerr.WriteConflict, mongoerr.PrimarySteppedDown, mongoerr.NotWritablePrimary, mongoerr.InterruptedDueToReplStateChange,
		mongoerr.NamespaceExists, mongoerr.NamespaceNotFound, mongoerr.DuplicateKey, mongoerr.IndexBuildAborted, mongoerr.IndexAlreadyExists, mongoerr.IndexNotFound:
	default:
		w.l.t.Errorf("%s: %v", ns, err)
	}
}

func (w *replicaLoad) ddl(rng *rand.Rand, e *Engine, ns string) error {
	s := e.Snapshot()
	defer s.Release()
	u := e.NewUnitOfWork(s)
	defer u.Rollback()
	c := s.Catalog().Lookup(ns)
	var err error
	switch {
	case c == nil:
		if c, err = u.CreateCollection(CollectionSpec{NS: ns}); err == nil {
			_, err = u.CreateIndexes(c, [][]byte{spec("n_1", D("n", 1)), spec("u_1", D("u", 1), "unique", true)})
		}
	case rng.IntN(3) == 0:
		err = u.DropCollection(c)
	case rng.IntN(2) == 0 && len(c.Indexes) > 1:
		_, err = u.DropIndexes(c, []string{c.Indexes[1+rng.IntN(len(c.Indexes)-1)].Name})
	default:
		_, err = u.RenameCollection(c, fmt.Sprintf("%s.c%d", c.DB(), rng.IntN(3)), nil, false)
	}
	if err == nil {
		_, err = e.Commit(context.Background(), u, true)
	}
	return err
}

func (w *replicaLoad) capped(rng *rand.Rand, e *Engine) error {
	u := e.NewUnitOfWork(nil)
	defer u.Rollback()
	c := e.Catalog().Lookup("db0.capped")
	var err error
	if c == nil {
		if c, err = u.CreateCollection(CollectionSpec{NS: "db0.capped", Options: D("capped", true, "size", 4096, "max", 20)}); err != nil {
			return err
		}
	}
	if _, err = u.Insert(c, D("_id", int(rng.Int32()), "pad", "xxxxxxxxxxxxxx"), NoInfo); err == nil {
		_, err = e.Commit(context.Background(), u, false)
	}
	return err
}

// write does a few writes in one unit, sometimes as a transaction.
func (w *replicaLoad) write(rng *rand.Rand, e *Engine, ns string) error {
	s := e.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(ns)
	if c == nil {
		return nil
	}
	u := e.NewUnitOfWork(s)
	defer u.Rollback()
	if rng.IntN(2) == 0 {
		u.ReferToVersions()
	}
	view := s
	if rng.IntN(4) == 0 {
		u.SetTransaction(D("id", 1), 1)
		view = u.Snapshot()
	}
	for range 1 + rng.IntN(3) {
		id := rng.IntN(200)
		doc := D("_id", id, "n", rng.IntN(50), "u", rng.IntN(100000), "b0", []int{rng.IntN(9), 2})
		if rng.IntN(2) == 0 {
			doc = D("_id", id, "n", rng.IntN(50), "u", rng.IntN(100000), "b1", rng.IntN(9))
		}
		rid, old, ok, err := view.FindByID(c, V(id))
		if err != nil {
			return err
		}
		rid, old = rid.Clone(), append([]byte(nil), old...)
		switch {
		case !ok:
			_, err = u.Insert(c, doc, NoInfo)
		case rng.IntN(4) == 0:
			err = u.Delete(c, rid, old, NoInfo)
		default:
			err = u.Update(c, rid, old, doc, NoInfo)
		}
		if err != nil {
			return err
		}
		if view == s {
			break
		}
	}
	_, err := e.Commit(context.Background(), u, true)
	return err
}

const longNS = "db0.long"

// long is a transaction of many writes, which are sent ahead if units are staged: it inserts a group of documents, changes
// all of them, and deletes an existing group. Sometimes it is rolled back.
func (w *replicaLoad) long(rng *rand.Rand, e *Engine) error {
	s := e.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(longNS)
	u := e.NewUnitOfWork(s)
	defer u.Rollback()
	if c == nil {
		_, err := u.CreateCollection(CollectionSpec{NS: longNS})
		if err == nil {
			_, err = e.Commit(context.Background(), u, true)
		}
		return err
	}
	u.SetTransaction(D("id", 1), 1)
	own := u.Snapshot()
	group, parts := int(rng.Int32()), 5+rng.IntN(40)
	old, err := groupsOf(own, c)
	for i := 0; i < parts && err == nil; i++ {
		_, err = u.Insert(c, longDoc(group, parts, i, 1), NoInfo)
	}
	for i := 0; i < parts && err == nil; i++ {
		err = changeOne(own, u, c, longID(group, i), longDoc(group, parts, i, 2))
	}
	for g, n := range old {
		for i := 0; i < n && err == nil; i++ {
			err = changeOne(own, u, c, longID(g, i), nil)
		}
		delete(old, g)
		break
	}
	if err != nil {
		return err
	}
	now, err := groupsOf(own, c)
	if err == nil && (now[group] != parts || len(now) != len(old)+1) {
		w.l.t.Errorf("a transaction sees %d groups, and %d documents of %d in its own", len(now), now[group], parts)
	}
	if err == nil && rng.IntN(4) > 0 {
		_, err = e.Commit(context.Background(), u, true)
	}
	return err
}

func longID(group int, i int) string { return fmt.Sprint(group, "-", i) }

func longDoc(group int, parts, i, state int) []byte {
	return D("_id", longID(group, i), "of", group, "parts", parts, "state", state, "pad", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")
}

// changeOne gives a document another value, or deletes it.
func changeOne(own *Snapshot, u *UnitOfWork, c *catalog.Collection, id string, doc []byte) error {
	rid, old, ok, err := own.FindByID(c, V(id))
	if err != nil || !ok {
		return errorsOr(err, fmt.Errorf("document %s is not in the view", id))
	}
	rid, old = rid.Clone(), slices.Clone(old)
	if doc == nil {
		return u.Delete(c, rid, old, NoInfo)
	}
	return u.Update(c, rid, old, doc, NoInfo)
}

// groupsOf counts the documents of each group. What a transaction wrote is visible as a whole or not at all.
func groupsOf(s *Snapshot, c *catalog.Collection) (map[int]int, error) {
	found, parts := map[int]int{}, map[int]int{}
	rc := s.Scan(c, ScanOptions{})
	defer rc.Close()
	for rc.Next() {
		group := int(value.Lookup(rc.Doc(), "of").Int64())
		found[group]++
		if parts[group] = int(value.Lookup(rc.Doc(), "parts").Int64()); value.Lookup(rc.Doc(), "state").Int64() != 2 {
			return nil, fmt.Errorf("group %d has a document of the middle of its transaction", group)
		}
	}
	if rc.Err() != nil {
		return nil, rc.Err()
	}
	for g, n := range found {
		if n != parts[g] {
			return nil, fmt.Errorf("of group %d there are %d documents of %d", g, n, parts[g])
		}
	}
	return found, nil
}

// lookAround reads the groups on any member, as of now or some commits ago, until the workload ends.
func (w *replicaLoad) lookAround() {
	defer w.wg.Done()
	rng := newRand(5)
	for !w.stop.Load() {
		m := w.l.members[rng.IntN(len(w.l.members))]
		m.use.RLock()
		s, err := m.e.SnapshotAt(max(m.e.Visible()-Timestamp(rng.IntN(200)*rng.IntN(2)), m.e.Oldest()))
		if err == nil {
			if c := s.Catalog().Lookup(longNS); c != nil {
				if _, err := groupsOf(s, c); err != nil && mongoerr.CodeOf(err) != mongoerr.InterruptedDueToReplStateChange {
					w.l.t.Errorf("member %d at %v: %v", m.name, s.Timestamp(), err)
				}
			}
			s.Release()
		}
		m.use.RUnlock()
		time.Sleep(100 * time.Microsecond) // a pause in which members can be restored: readers must not keep m.use for themselves
	}
}

// noneStaged waits until no member has versions of uncommitted units, nor entries in memory for units that all readers see.
func (l *testLog) noneStaged() {
	l.t.Helper()
	await.State(l.t, "no chunks or units are left over", func() (left int, done bool) {
		l.commitSome(1 << 30)
		for _, m := range l.members {
			left += leftOver(l.t, m.e)
		}
		return left, left == 0
	})
	l.settle()
}

// leftOver counts the chunks of uncommitted units and, unless an unfinished index retains history, also those of units
// that all readers see, and the units in memory.
func leftOver(t *testing.T, e *Engine) (n int) {
	t.Helper()
	if !unfinishedIndexes(e.Catalog()) {
		return stagedKeys(t, e, stagedSeen, stagedPiece) + len(e.replica.late.all())
	}
	committed := map[stagedID]bool{}
	err := e.eachStaged(func(_ *pebble.Iterator, id stagedID, kind byte) error {
		if committed[id] = committed[id] || kind == stagedSeen; !committed[id] && kind == stagedChunk {
			n++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Members that apply a primary's groups have the same content, through changes of the primary with groups in flight.
func TestReplicas(t *testing.T) { randomReplicas(t, Options{}) }

// randomReplicas runs a random workload on three members, with elections and snapshots.
func randomReplicas(t *testing.T, o Options) {
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	o.JournalInterval, o.CollectInterval, o.HistoryWindow = time.Millisecond, 2*time.Millisecond, time.Nanosecond
	began := time.Now()
	o.Clock = func() time.Time { return began.Add(50 * time.Since(began)) } // what is kept for readers is kept for whole seconds
	l := newTestLog(t, 3, o)
	defer l.close()
	l.elect(l.members[0], 0)
	for round := range rounds {
		w := &replicaLoad{l: l}
		w.run(6)
		w.wg.Add(1)
		go w.lookAround()
		for n := range 5 {
			w.progress(20)
			if n%2 == 1 || round%3 == 0 {
				l.elect(l.members[rand.IntN(3)], rand.IntN(20))
			}
			if n == 2 {
				i := slices.Index(l.members, l.primary)
				l.restore(l.members[(i+1)%3], l.members[(i+rand.IntN(2)*2)%3], round%2 == 0, o)
			}
		}
		w.wait()
		l.settle()
		l.noneStaged()
		l.same()
		for _, m := range l.members {
			verifyIndexes(t, m.e)
		}
		l.mu.Lock()
		t.Logf("round %d: %d units, %d entries, %v", round, w.acks.Load(), len(l.entries), l.members[0].e.Visible())
		l.mu.Unlock()
		if t.Failed() {
			return
		}
	}
}

// verifyIndexes checks that counters are exact and that ready indexes point to records.
func verifyIndexes(t *testing.T, e *Engine) {
	t.Helper()
	s := e.Snapshot()
	defer s.Release()
	for _, c := range s.Catalog().All() {
		records, bytes := int64(0), int64(0)
		rc := s.Scan(c, ScanOptions{})
		for rc.Next() {
			records++
			bytes += int64(len(rc.Doc()))
		}
		if rc.Err() != nil {
			t.Error(rc.Err())
		}
		rc.Close()
		if n := c.Counters.Records.Load(); n != records || !c.Oplog && c.Counters.DataSize.Load() != bytes {
			t.Errorf("%s: counters say %d and %d, there are %d and %d", c.NS, n, c.Counters.DataSize.Load(), records, bytes)
		}
		for _, idx := range c.Indexes {
			if n := indexKeys(t, e, c.NS, idx.Name); idx.Ready && int64(n) < records {
				t.Errorf("%s: index %s has %d keys for %d records", c.NS, idx.Name, n, records)
			}
		}
	}
}

// A proposal that is refused fails its units and nothing else; later ones go through.
func TestRefusedProposal(t *testing.T) {
	l := newTestLog(t, 2, Options{})
	defer l.close()
	l.elect(l.members[0], 0)
	l.keepCommitting()
	e := l.members[0].e
	c := create(t, e, "db.c", nil)
	var n atomic.Int64
	l.mu.Lock()
	l.drop = func() bool { return n.Add(1)%3 == 0 }
	l.mu.Unlock()
	var wg sync.WaitGroup
	var failed, fine atomic.Int64
	for w := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 50 {
				u := e.NewUnitOfWork(nil)
				_, err := u.Insert(c, D("_id", w*1000+i), NoInfo)
				if err == nil {
					_, err = e.Commit(context.Background(), u, false)
				}
				u.Rollback()
				switch mongoerr.CodeOf(err) {
				case 0:
					fine.Add(1)
				case mongoerr.NotWritablePrimary:
					failed.Add(1)
				default:
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	l.settle()
	l.same()
	if got := e.Catalog().Lookup("db.c").Counters.Records.Load(); got != fine.Load() || failed.Load() == 0 {
		t.Errorf("%d documents, %d acknowledged, %d refused", got, fine.Load(), failed.Load())
	}
}

func (l *testLog) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// What a member that is not primary does: replicated units fail with the given error, rollback hooks run, and units
// that began before an election do not survive it.
func TestRoles(t *testing.T) {
	l := newTestLog(t, 2, Options{})
	defer l.close()
	a, b := l.members[0].e, l.members[1].e
	try := func(e *Engine, u *UnitOfWork) (ts Timestamp, rolledBack bool, err error) {
		u.OnRollback(func() { rolledBack = true })
		ts, err = e.Commit(context.Background(), u, true)
		return ts, rolledBack, err
	}
	u := a.NewUnitOfWork(nil)
	if _, err := u.CreateCollection(CollectionSpec{NS: "db.c"}); err != nil {
		t.Fatal(err)
	}
	if ts, undone, err := try(a, u); ts != 0 || !undone || mongoerr.CodeOf(err) != mongoerr.NotWritablePrimary {
		t.Errorf("before the election: %v %v %v", ts, undone, err)
	}
	early := a.NewUnitOfWork(nil)
	if _, err := early.CreateCollection(CollectionSpec{NS: "db.c"}); err != nil {
		t.Fatal(err)
	}
	l.elect(l.members[0], 0)
	if _, undone, err := try(a, early); !undone || mongoerr.CodeOf(err) != mongoerr.InterruptedDueToReplStateChange {
		t.Errorf("begun before the election: %v %v", undone, err)
	}
	got := make(chan error, 1)
	u = a.NewUnitOfWork(nil)
	if _, err := u.CreateCollection(CollectionSpec{NS: "db.c"}); err != nil {
		t.Fatal(err)
	}
	undone := false
	u.OnRollback(func() { undone = true })
	go func() {
		_, err := a.Commit(context.Background(), u, true)
		got <- err
	}()
	for n := 0; n < 2; {
		l.mu.Lock()
		n = len(l.entries)
		l.mu.Unlock()
	}
	// The group is in flight. Its entry survives, but its unit does not learn of that.
	l.elect(l.members[1], 1)
	if err := <-got; !errors.Is(err, errStepDown) || !undone {
		t.Errorf("in flight: %v %v", undone, err)
	}
	l.settle()
	l.same()
	for _, e := range []*Engine{a, b} {
		if e.Catalog().Lookup("db.c") == nil {
			t.Error("the entry was committed, and is not there")
		}
	}
}

// Collections of the local database are each member's own: any member may write them, at once, without advancing the
// replicated timestamp.
func TestLocalCollections(t *testing.T) {
	clock := newHandClock()
	o := Options{HistoryWindow: time.Nanosecond, CollectInterval: time.Hour, Clock: clock.now}
	l := newTestLog(t, 2, o)
	defer l.close()
	l.elect(l.members[0], 0)
	m := l.members[1]
	for _, e := range []*Engine{l.members[0].e, m.e} {
		before := e.Visible()
		c := create(t, e, "local.x", nil, spec("n_1", D("n", 1)))
		if !isLocal(c.Ident) || !isLocal(c.Indexes[1].Ident) {
			t.Errorf("tables %x", c.Ident)
		}
		if ts := insert(t, e, c, D("_id", 1, "n", 1), D("_id", 2, "n", 2)); ts != before || e.Visible() != before {
			t.Errorf("committed at %v, visible %v, before %v", ts, e.Visible(), before)
		}
		// Of two units that read the same state, only one can write.
		s := e.Snapshot()
		rid, old, _, _ := s.FindByID(c, V(1))
		rid, old = rid.Clone(), append([]byte(nil), old...)
		if err := update(t, e, "local.x", 1, D("_id", 1, "n", 5)); err != nil {
			t.Error(err)
		}
		want(t, "the old view", list(t, s, "local.x", false), "{ _id: 1, n: 1 } { _id: 2, n: 2 }")
		u := e.NewUnitOfWork(s)
		code(t, u.Update(c, rid, old, D("_id", 1, "n", 6), NoInfo), mongoerr.WriteConflict)
		u.Rollback()
		s.Release()
		want(t, "the new view", now(t, e, "local.x"), "{ _id: 1, n: 5 } { _id: 2, n: 2 }")
		u = e.NewUnitOfWork(nil)
		_, err := u.Insert(c, D("_id", 1), NoInfo)
		code(t, err, mongoerr.DuplicateKey)
		_, err = u.CreateCollection(CollectionSpec{NS: "db.y"})
		code(t, err, mongoerr.IllegalOperation)
		u.Rollback()
		b, err := e.StartIndexBuild(context.Background(), "local.x", [][]byte{spec("b_1", D("n", -1))}, NewUUID())
		if err == nil {
			_, err = b.Run(context.Background())
		}
		if err != nil || indexKeys(t, e, "local.x", "b_1") != 2 {
			t.Error(err)
		}
		clock.pass(2 * time.Second)
		if err := e.collect(context.Background()); err != nil {
			t.Fatal(err)
		}
		create(t, e, "local.gone", nil)
		u = e.NewUnitOfWork(nil)
		if err := u.DropCollection(e.Catalog().Lookup("local.gone")); err != nil {
			t.Fatal(err)
		}
		commit(t, e, u)
	}
	l.keepCommitting()
	create(t, l.members[0].e, "db.c", nil)
	l.settle()
	l.same()
	if m.e.Catalog().Lookup("local.x") == nil || m.e.Catalog().Lookup("db.c") == nil {
		t.Error("a change of one line lost what the other had")
	}
	// A snapshot of the other member leaves them alone, and so does a restart.
	m.halt()
	insert(t, l.members[0].e, l.members[0].e.Catalog().Lookup("db.c"), D("_id", 1))
	man := copySnapshot(t, l.members[0].e, m.e, "x")
	if err := m.e.InstallSnapshot(context.Background(), "x", man); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		want(t, "local", now(t, m.e, "local.x"), "{ _id: 1, n: 5 } { _id: 2, n: 2 }")
		want(t, "replicated", now(t, m.e, "db.c"), "{ _id: 1 }")
		if n := indexKeys(t, m.e, "local.x", "b_1"); n != 2 || m.e.Catalog().Lookup("local.x").Counters.Records.Load() != 2 {
			t.Errorf("%d keys", n)
		}
		m.e.Resign(errNoMember)
		if err := m.e.Close(); err != nil {
			t.Fatal(err)
		}
		o.FS = m.fs
		m.e = openMem(t, o)
	}
	m.start()
	l.settle()
	l.same()
}

// Single writes that arrive while another is in flight are batched into one log entry, but only for a short time.
func TestSmallGroupsGather(t *testing.T) {
	l := newTestLog(t, 1, Options{})
	defer l.close()
	m := l.members[0]
	l.elect(m, 0)
	m.e.replica.gatherTime = time.Hour
	queued := func(n int) {
		t.Helper()
		await.State(t, fmt.Sprintf("%d units are queued", n), func() (int, bool) {
			m.e.commit.mu.Lock()
			defer m.e.commit.mu.Unlock()
			return len(m.e.commit.mu.queue), len(m.e.commit.mu.queue) == n
		})
	}
	entries := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.entries)
	}
	var wg sync.WaitGroup
	write := func(ns string) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			u := m.e.NewUnitOfWork(nil)
			_, err := u.CreateCollection(CollectionSpec{NS: ns})
			if err == nil {
				_, err = m.e.Commit(context.Background(), u, true)
			}
			if err != nil {
				t.Error(err)
			}
		}()
	}
	before := entries()
	write("db.first")
	await.True(t, "the first is on its way", func() bool { return entries() == before+1 })
	for i := range 8 {
		write(fmt.Sprint("db.c", i))
	}
	queued(8)
	if n := entries(); n != before+1 {
		t.Errorf("%d entries while the first is on its way", n-before)
	}
	l.commitSome(1)
	await.True(t, "the others are on their way", func() bool { return entries() > before+1 })
	l.commitSome(1)
	wg.Wait()
	if n := entries(); n != before+2 {
		t.Errorf("%d entries, the first and one of all others were expected", n-before)
	}
	m.e.replica.gatherTime = time.Millisecond
	for i := range 2 {
		write(fmt.Sprint("db.far", i))
		await.True(t, "it does not wait for the one before", func() bool { return entries() == before+3+i })
	}
	l.commitSome(2)
	wg.Wait()
}
