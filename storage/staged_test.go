package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A unit of work was one entry of the replicated log, however large, and one of 120 MB stopped the set.

// Half of the units of a random workload are staged in tiny chunks, and the members have the same content through
// elections, restarts and snapshots.
func TestReplicasWithStagedUnits(t *testing.T) {
	randomReplicas(t, Options{stageBytes: 400, chunkBytes: 100})
}

// A member loses power at random moments, between the chunks of a unit too, and recovers.
func TestReplayOfStagedUnits(t *testing.T) {
	replay(t, Options{stageBytes: 400, chunkBytes: 100}, false)
}

// largeUnit writes, in one unit, n documents with a pad of that size, updates some and deletes some that were there.
func largeUnit(t *testing.T, e *Engine, ns string, n, pad int, txn bool) *UnitOfWork {
	t.Helper()
	s := e.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(ns)
	u := e.NewUnitOfWork(s)
	view := s
	if txn {
		u.SetTransaction(D("id", 1), 1)
		view = u.Snapshot()
	}
	for i := range n {
		doc := D("_id", i, "n", i, "pad", bytes.Repeat([]byte{byte(i)}, pad))
		rid, old, ok, err := view.FindByID(c, V(i))
		if err != nil {
			t.Fatal(err)
		}
		rid, old = rid.Clone(), append([]byte(nil), old...)
		switch {
		case !ok:
			_, err = u.Insert(c, doc, NoInfo)
		case i%3 == 0:
			err = u.Delete(c, rid, old, NoInfo)
		default:
			err = u.Update(c, rid, old, doc, NoInfo)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return u
}

// A large unit goes through the log in entries of bounded size, others commit between them, and it becomes visible all at
// once.
func TestLargeUnitsAreManySmallEntries(t *testing.T) {
	const chunk = 16 << 10
	l := newTestLog(t, 3, Options{stageBytes: 64 << 10, chunkBytes: chunk, CollectInterval: time.Hour, HistoryWindow: time.Nanosecond})
	defer l.close()
	l.elect(l.members[0], 0)
	l.keepCommitting()
	e := l.members[0].e
	create(t, e, "db.c", nil, spec("n_1", D("n", 1)))
	other := create(t, e, "db.other", nil)
	for round, txn := range []bool{false, true, false, true} {
		u := largeUnit(t, e, "db.c", 100, 10<<10, txn)
		before := e.Visible()
		records := e.Catalog().Lookup("db.c").Counters.Records.Load()
		done := make(chan error, 1)
		go func() {
			_, err := e.Commit(context.Background(), u, true)
			done <- err
		}()
		between := 0
		var err error
		for over := false; !over; between++ {
			ts := insert(t, e, other, D("_id", fmt.Sprint(round, "-", between)))
			select {
			case err = <-done:
				over = true
			default:
			}
			if n := len(idsAt(t, e, "db.c", ts)); n != int(records) && int64(n) != e.Catalog().Lookup("db.c").Counters.Records.Load() {
				t.Errorf("round %d: %d documents can be seen, of %d", round, n, records)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if between < 10 && !txn || e.Visible() < before { // a transaction has sent most of it ahead
			t.Errorf("round %d: others wrote %d times meanwhile", round, between)
		}
	}
	l.settle()
	l.same()
	for _, m := range l.members {
		await.State(t, "the clock's next second, without reads of the past", func() (int, bool) {
			if err := m.e.collectDead(context.Background()); err != nil {
				t.Fatal(err)
			}
			n := stagedKeys(t, m.e, stagedSeen, stagedPiece)
			return n, n == 0
		})
	}
	l.mu.Lock()
	for i, x := range l.entries {
		if len(x.data) > 3*chunk { // both that may be in flight
			t.Errorf("entry %d has %d bytes", i+1, len(x.data))
		}
	}
	l.mu.Unlock()
	for _, m := range l.members {
		verifyIndexes(t, m.e)
		if n := len(m.e.replica.late.all()); n != 0 {
			t.Errorf("member %d: %d units are not forgotten", m.name, n)
		}
	}
	l.same()
}

// A transaction that sends chunks while it is open reads what it wrote, detects its own duplicates, shows nothing to
// others, and can be rolled back; what it overwrote stays available to readers of the past.
func TestTransactionReadsWhatItSentAhead(t *testing.T) {
	l := newTestLog(t, 3, Options{stageBytes: 4 << 10, chunkBytes: 2 << 10, CollectInterval: time.Hour})
	defer l.close()
	l.elect(l.members[0], 0)
	l.keepCommitting()
	e := l.members[0].e
	create(t, e, "db.c", nil, spec("n_1", D("n", 1)), spec("u_1", D("u", 1), "unique", true))
	c := e.Catalog().Lookup("db.c")
	pad := bytes.Repeat([]byte("x"), 300)
	row := func(id, n int) []byte { return D("_id", id, "n", n, "u", id, "pad", pad) }
	for id := range 50 {
		insert(t, e, c, row(id, 0))
	}
	past := e.Visible()
	for _, give := range []bool{true, false} {
		s := e.Snapshot()
		u := e.NewUnitOfWork(s)
		u.SetTransaction(D("id", 1), 1)
		own := u.Snapshot()
		var rid RecordID
		for id := range 100 { // each twice: the second time most of the first writes have been sent ahead
			r, old, ok, err := own.FindByID(c, V(id))
			r, old = r.Clone(), bytes.Clone(old)
			if err == nil && ok {
				err = u.Update(c, r, old, row(id, 1), NoInfo)
			} else if err == nil {
				_, err = u.Insert(c, row(id, 1), NoInfo)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if stagedKeys(t, e, stagedChunk, stagedPiece) < 5 {
			t.Fatal("nothing was sent ahead")
		}
		for id := range 100 {
			r, old, ok, err := own.FindByID(c, V(id))
			if err != nil || !ok || value.Lookup(old, "n").Int64() != 1 {
				t.Fatalf("%d: %v %v %s", id, err, ok, old)
			}
			rid, old = r.Clone(), bytes.Clone(old)
			if id%10 == 0 {
				err = u.Delete(c, rid, old, NoInfo)
			} else {
				err = u.Update(c, rid, old, row(id, 2), NoInfo)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := u.Insert(c, row(1, 3), NoInfo); mongoerr.CodeOf(err) != mongoerr.DuplicateKey {
			t.Errorf("an _id of its own: %v", err)
		}
		if _, err := u.Insert(c, D("_id", 200, "u", 51), NoInfo); mongoerr.CodeOf(err) != mongoerr.DuplicateKey {
			t.Errorf("a unique key of its own: %v", err)
		}
		if _, err := u.Insert(c, row(10, 4), NoInfo); err != nil {
			t.Errorf("an _id that it had deleted: %v", err)
		}
		if n := countScan(t, own, c); n != 91 {
			t.Errorf("it sees %d documents", n)
		}
		if n := len(idsAt(t, e, "db.c", e.Visible())); n != 50 {
			t.Errorf("others see %d documents", n)
		}
		if give {
			u.Rollback()
			s.Release()
			noChunks(t, e)
			continue
		}
		before := e.Visible()
		if _, err := e.Commit(context.Background(), u, true); err != nil {
			t.Fatal(err)
		}
		s.Release()
		for ts, want := range map[Timestamp]int{past: 50, before: 50, e.Visible(): 91} {
			if n := len(idsAt(t, e, "db.c", ts)); n != want {
				t.Errorf("at %v: %d documents, not %d", ts, n, want)
			}
		}
	}
	l.settle()
	l.same()
	for _, m := range l.members {
		verifyIndexes(t, m.e)
	}
	checkPartialEntries(t, e)
}

// countScan counts the records of a view.
func countScan(t *testing.T, s *Snapshot, c *catalog.Collection) (n int) {
	t.Helper()
	rc := s.Scan(c, ScanOptions{})
	defer rc.Close()
	for rc.Next() {
		n++
	}
	if rc.Err() != nil {
		t.Error(rc.Err())
	}
	return n
}

// checkPartialEntries reads the whole oplog: of a transaction's entries all but the last say that others follow.
func checkPartialEntries(t *testing.T, e *Engine) {
	t.Helper()
	s := e.Snapshot()
	defer s.Release()
	ops, last := 0, false
	rc := s.Scan(s.Catalog().Lookup(OplogNS), ScanOptions{})
	defer rc.Close()
	for rc.Next() {
		o := value.Lookup(rc.Doc(), "o").Doc()
		if value.Lookup(rc.Doc(), "op").Str() == "c" && !value.Lookup(o, "applyOps").IsMissing() {
			ops += len(value.Values(value.Lookup(o, "applyOps").Doc()))
			last = value.Lookup(o, "partialTxn").IsMissing()
		}
	}
	if rc.Err() != nil || ops != 201 || !last {
		t.Errorf("%d operations in the oplog, its last entry complete: %v; %v", ops, last, rc.Err())
	}
}

// idsAt returns the ids of a collection's documents at a timestamp.
func idsAt(t *testing.T, e *Engine, ns string, ts Timestamp) (ids []int64) {
	t.Helper()
	s, err := e.SnapshotAt(ts)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	c := s.Scan(s.Catalog().Lookup(ns), ScanOptions{})
	defer c.Close()
	for c.Next() {
		n, _ := c.RecordID().Int64()
		ids = append(ids, n)
	}
	return ids
}

func stagedChunks(t *testing.T, e *Engine) int { return stagedKeys(t, e, stagedSeen, stagedEnd) }

// stagedKeys counts the keys of some kinds in the table of staged units.
func stagedKeys(t *testing.T, e *Engine, from, to byte) (n int) {
	t.Helper()
	err := e.eachStaged(func(_ *pebble.Iterator, _ stagedID, kind byte) error {
		if from <= kind && kind < to {
			n++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func noChunks(t *testing.T, e *Engine) {
	t.Helper()
	await.State(t, "the chunks are gone", func() (int, bool) { n := stagedChunks(t, e); return n, n == 0 })
}

// nothingLeft collects until nothing is left over, in the clock's next second.
func nothingLeft(t *testing.T, e *Engine) {
	t.Helper()
	await.State(t, "nothing is left over", func() (int, bool) {
		if err := e.collect(context.Background()); err != nil {
			t.Fatal(err)
		}
		n := leftOver(t, e)
		return n, n == 0
	})
}

// What a primary staged and did not commit, because the unit failed or because the primary was deposed, is removed.
func TestAbandonedChunksGo(t *testing.T) {
	l := newTestLog(t, 2, Options{stageBytes: 64 << 10, chunkBytes: 16 << 10, CollectInterval: time.Hour, HistoryWindow: time.Nanosecond})
	defer l.close()
	l.elect(l.members[0], 0)
	stop := l.run()
	e := l.members[0].e
	create(t, e, "db.c", nil)
	// The collection changes while the unit is staged: it cannot commit.
	u := largeUnit(t, e, "db.c", 100, 2<<10, true)
	d := e.NewUnitOfWork(nil)
	if err := d.DropCollection(e.Catalog().Lookup("db.c")); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Commit(context.Background(), d, true); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Commit(context.Background(), u, true); !ErrConflict(err) {
		t.Errorf("a unit on a collection that was dropped: %v", err)
	}
	noChunks(t, e)
	// A context that has ended stops it in between.
	create(t, e, "db.c", nil)
	u = largeUnit(t, e, "db.c", 100, 2<<10, false)
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("killed")
	l.mu.Lock()
	l.drop = func() bool { cancel(why); return false }
	l.mu.Unlock()
	if _, err := e.Commit(ctx, u, true); !errors.Is(err, why) {
		t.Errorf("a unit that was killed: %v", err)
	}
	l.mu.Lock()
	l.drop = nil
	l.mu.Unlock()
	noChunks(t, e)
	// The primary is deposed when some chunks are in the log.
	stop()
	u = largeUnit(t, e, "db.c", 100, 2<<10, false)
	done := make(chan error, 1)
	go func() {
		_, err := e.Commit(context.Background(), u, true)
		done <- err
	}()
	for _, i := range []int{0, 1} {
		await.True(t, "some chunks are in the log", func() bool {
			l.commitSome(1)
			return stagedChunks(t, l.members[i].e) >= 3
		})
	}
	l.elect(l.members[1], 0)
	if err := <-done; !mongoerr.CodeOf(err).In(mongoerr.CategoryNotPrimary) {
		t.Errorf("a unit of a primary that was deposed: %v", err)
	}
	stop = l.run()
	if err := l.members[1].e.dropAbandoned(); err != nil {
		t.Error(err)
	}
	stop()
	l.same()
	for _, m := range l.members {
		if n := stagedChunks(t, m.e); n != 0 {
			t.Errorf("member %d: %d chunks are left", m.name, n)
		}
	}
}

// A unit whose chunks are deleted was mistaken for one that committed at that time, and a committed one without chunks was not
// known at all.
func TestWhatBecomesOfALateUnit(t *testing.T) {
	var l lateUnits
	failed, bare := stagedID{1, 1}, stagedID{1, 2}
	l.edit([]lateEdit{{failed, stagedChunk, 5}, {failed, lateGone, 9}, {bare, stagedSeen, 10}})
	list := l.all()
	if len(list) != 2 || list[0].seen != Timestamp(pending) || list[0].gone != 9 || list[1].seen != 10 || list[1].gone != 0 {
		t.Errorf("%+v", list)
	}
	if at := l.visibleFrom(5); at != pending {
		t.Errorf("a version that was taken back is visible from %d", at)
	}
}

// A snapshot taken between the collector's scan of the snapshots and its advance of the history lost what it reads.
func TestCollectorSeesSnapshotsAfterItsMove(t *testing.T) {
	e := openMem(t, Options{CollectInterval: time.Hour, HistoryWindow: time.Nanosecond})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	insert(t, e, c, D("_id", 1))
	s := e.Snapshot()
	defer s.Release()
	u := e.NewUnitOfWork(s)
	rid, old, _, err := s.FindByID(c, V(1))
	if err == nil {
		err = u.Delete(c, rid.Clone(), bytes.Clone(old), NoInfo)
	}
	if err == nil {
		_, err = e.Commit(context.Background(), u, true)
	}
	e.lines[lineReplicated].oldest.Store(uint64(e.Visible())) // the advance
	if err := errors.Join(err, e.collectDead(context.Background())); err != nil {
		t.Fatal(err)
	}
	s.Save()
	if _, _, ok, err := s.FindByID(c, V(1)); !ok || err != nil {
		t.Errorf("the document is gone from a snapshot in use: %v", err)
	}
}

// A crash while versions superseded by a late unit were being dropped left a store that accepted reads at an earlier time.
func TestHistoryIsMarkedBeforeItIsDropped(t *testing.T) {
	l := newTestLog(t, 1, Options{stageBytes: 4 << 10, chunkBytes: 1 << 10, CollectInterval: time.Hour, HistoryWindow: time.Nanosecond})
	defer l.close()
	l.elect(l.members[0], 0)
	l.keepCommitting()
	e := l.members[0].e
	create(t, e, "db.c", nil)
	for range 2 {
		if _, err := e.Commit(context.Background(), largeUnit(t, e, "db.c", 30, 500, false), true); err != nil {
			t.Fatal(err)
		}
	}
	units := e.replica.late.all()
	if len(units) != 2 {
		t.Fatalf("%d late units", len(units))
	}
	oldest := units[1].seen
	e.lines[lineReplicated].oldest.Store(uint64(oldest))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = e.dropSuperseded(ctx, units[1])
	if mark, err := e.metaTime(identMeta, metaOldest); mark < oldest || err != nil {
		t.Errorf("the store says %v, not %v: %v", mark, oldest, err)
	}
}

// A set of one member kept a large transaction in memory until its commit. What a process that ends in the middle of one leaves
// behind is deleted by the next.
func TestLoneMemberSendsAhead(t *testing.T) {
	fs := vfs.NewCrashableMem()
	o := Options{FS: fs, stageBytes: 8 << 10, chunkBytes: 2 << 10, CollectInterval: time.Hour, HistoryWindow: time.Nanosecond}
	e := openMem(t, o)
	create(t, e, "db.c", nil, spec("n_1", D("n", 1)))
	u := largeUnit(t, e, "db.c", 100, 2<<10, true)
	if n := u.batch.Len(); n > 2*o.stageBytes || stagedChunks(t, e) < 10 {
		t.Errorf("%d bytes are in memory, %d chunks were sent", n, stagedChunks(t, e))
	}
	if _, err := e.Commit(context.Background(), u, true); err != nil {
		t.Fatal(err)
	}
	if n := len(idsAt(t, e, "db.c", e.Visible())); n != 100 {
		t.Errorf("%d documents", n)
	}
	given := largeUnit(t, e, "db.c", 100, 2<<10, true)
	given.Rollback()
	open := largeUnit(t, e, "db.c", 90, 2<<10, true)
	o.FS = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: newRand(1)})
	after := openMem(t, o)
	defer after.Close()
	for _, e := range []*Engine{e, after} {
		if n := len(idsAt(t, e, "db.c", e.Visible())); n != 100 {
			t.Errorf("%d documents", n)
		}
		if e == after && stagedKeys(t, e, stagedChunk, stagedPiece) == 0 {
			t.Error("the crash left nothing")
		}
		if err := e.collect(context.Background()); err != nil { // beside the open unit
			t.Fatal(err)
		}
		open.Rollback()
		nothingLeft(t, e)
		verifyIndexes(t, e)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// A transaction whose documents each fill an array of operations kept all of these arrays in memory until its commit: they
// were sent ahead only together with a further one that was not full.
func TestHugeDocumentsAreSentAhead(t *testing.T) {
	e := openMem(t, Options{})
	defer func() { _ = e.Close() }()
	create(t, e, "db.c", nil)
	const docs, size = 6, applyOpsBytes + 1<<20
	u := largeUnit(t, e, "db.c", docs, size, true)
	held := u.log.size() - u.log.txn.ahead
	if held > 3*size || u.batch.Len() > 2*size {
		t.Errorf("of %d documents of %d bytes the log holds %d bytes, the batch %d", docs, size, held, u.batch.Len())
	}
	commit(t, e, u)
	parts := 0
	s := e.Snapshot()
	defer s.Release()
	if err := s.SessionEntries(0, func(entry *SessionEntry) error {
		parts++
		if partial := value.Lookup(entry.O, "partialTxn").Truthy(); partial != (parts < docs) {
			t.Errorf("entry %d of %d: partialTxn %v", parts, docs, partial)
		}
		return nil
	}); err != nil || parts != docs {
		t.Errorf("%d entries, %v", parts, err)
	}
}
