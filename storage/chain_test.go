package storage

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// chained is a command that detaches each of its commits and goes on.
type chained struct {
	t     *testing.T
	e     *Engine
	chain *CommitChain
	ends  []<-chan decision
}

// unit runs f in a unit after the detached ones, and detaches its commit.
func (x *chained) unit(f func(s *Snapshot, u *UnitOfWork) error) error {
	s, u := x.e.Snapshot(), (*UnitOfWork)(nil)
	if x.chain != nil {
		s.Release()
		s = x.chain.Snapshot()
		u = x.chain.NewUnitOfWork(s)
	} else {
		u = x.e.NewUnitOfWork(s)
	}
	defer s.Release()
	defer u.Rollback()
	if err := f(s, u); err != nil {
		return err
	}
	u.MayDetach(time.Nanosecond)
	_, err := x.e.Commit(context.Background(), u, false)
	l, ok := err.(*Detached)
	if !ok {
		x.t.Fatalf("the commit was not left: %v", err)
	}
	x.chain = x.chain.Follow(l)
	x.ends = append(x.ends, decisionOf(l))
	return nil
}

// must is unit for an f that must not fail.
func (x *chained) must(f func(s *Snapshot, u *UnitOfWork) error) {
	x.t.Helper()
	if err := x.unit(f); err != nil {
		x.t.Fatal(err)
	}
}

func (x *chained) insert(ns string, doc []byte) error {
	return x.unit(func(_ *Snapshot, u *UnitOfWork) error {
		_, err := u.Insert(u.Catalog().Lookup(ns), doc, NoInfo)
		return err
	})
}

// change replaces a document by its _id, nil for a deletion.
func (x *chained) change(ns string, id int, doc []byte) error {
	return x.unit(func(s *Snapshot, u *UnitOfWork) error {
		c := s.Catalog().Lookup(ns)
		rid, old, ok, err := s.FindByID(c, value.NewInt32(int32(id)))
		if err != nil || !ok {
			return fmt.Errorf("document %d: %v, %v", id, ok, err)
		}
		rid, old = rid.Clone(), append([]byte(nil), old...)
		if doc == nil {
			return u.Delete(c, rid, old, NoInfo)
		}
		return u.Update(c, rid, old, doc, NoInfo)
	})
}

func (x *chained) list(ns string) string {
	s := x.chain.Snapshot()
	defer s.Release()
	return list(x.t, s, ns, false)
}

// decided has the log commit or fail all units, and returns how many failed.
func (x *chained) decided(l *testLog) (failed int) {
	defer l.run()()
	for _, ch := range x.ends {
		if d := <-ch; d.err != nil {
			failed++
		}
	}
	return failed
}

// A command continues on top of its detached commits: it sees, changes and deletes their documents, conflicts with
// their unique keys, and creates collections. No other reader sees any of it until the log decides; then all of it is
// visible.
func TestCommitChain(t *testing.T) {
	l, e, _ := heldSet(t)
	defer l.close()
	x := &chained{t: t, e: e}
	x.must(func(_ *Snapshot, u *UnitOfWork) error {
		c, err := u.CreateCollection(CollectionSpec{NS: "db.made"})
		if err == nil {
			_, err = u.CreateIndexes(c, [][]byte{spec("u_1", D("u", 1), "unique", true)})
		}
		return err
	})
	for i := range 5 {
		if err := x.insert("db.made", D("_id", i, "u", i)); err != nil {
			t.Fatal(err)
		}
	}
	code(t, x.insert("db.made", D("_id", 2, "u", 9)), mongoerr.DuplicateKey)
	code(t, x.insert("db.made", D("_id", 9, "u", 2)), mongoerr.DuplicateKey)
	for _, err := range []error{
		x.change("db.made", 1, D("_id", 1, "u", 11)), x.change("db.made", 1, D("_id", 1, "u", 12)), x.insert("db.made", D("_id", 7, "u", 1)),
		x.change("db.made", 2, nil), x.insert("db.made", D("_id", 2, "u", 22)), x.change("db.made", 3, nil),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	expect := "{ _id: 0, u: 0 } { _id: 1, u: 12 } { _id: 4, u: 4 } { _id: 7, u: 1 } { _id: 2, u: 22 }"
	want(t, "the command itself", x.list("db.made"), expect)
	if e.Catalog().Lookup("db.made") != nil {
		t.Error("others see the collection")
	}
	if n := x.decided(l); n > 0 {
		t.Errorf("%d units failed", n)
	}
	want(t, "in the end", now(t, e, "db.made"), expect)
	want(t, "behind a chain that is decided", x.list("db.made"), expect)
	if n := e.Catalog().Lookup("db.made").Counters.Records.Load(); n != 5 {
		t.Errorf("%d records are counted", n)
	}
	stop := l.run()
	insert(t, e, e.Catalog().Lookup("db.made"), D("_id", 3, "u", 3))
	stop()
	l.same()
}

// A detached unit makes an index multikey: later units of the chain read it as a multikey index.
func TestCommitChainMarksMultikey(t *testing.T) {
	l, e, _ := heldSet(t)
	defer l.close()
	stop := l.run()
	create(t, e, "db.m", nil, spec("a_1", D("a", 1)))
	stop()
	x := &chained{t: t, e: e}
	if err := x.insert("db.m", D("_id", 1, "a", value.NewArray(value.ArrayOf(value.NewInt32(1), value.NewInt32(2))))); err != nil {
		t.Fatal(err)
	}
	if e.Catalog().Lookup("db.m").Index("a_1").Multikey || !x.chain.Catalog().Lookup("db.m").Index("a_1").Multikey {
		t.Error("the index is marked for others, or not for the command")
	}
}

// Claims that a chained unit took over return to its predecessor when it is rolled back.
func TestCommitChainReturnsClaims(t *testing.T) {
	l, e, c := heldSet(t)
	defer l.close()
	x := &chained{t: t, e: e}
	for n := range 2 {
		if err := x.change("db.c", 0, D("_id", 0, "n", n)); err != nil {
			t.Fatal(err)
		}
	}
	gaveUp := fmt.Errorf("given up")
	other := func() error {
		s := e.Snapshot()
		defer s.Release()
		u := e.NewUnitOfWork(s)
		defer u.Rollback()
		rid, old, _, _ := s.FindByID(c, value.NewInt32(0))
		return u.Delete(c, rid.Clone(), append([]byte(nil), old...), NoInfo)
	}
	err := x.unit(func(s *Snapshot, u *UnitOfWork) error {
		rid, old, _, _ := s.FindByID(c, value.NewInt32(0))
		want(t, "the third unit reads", value.ShowDoc(old), "{ _id: 0, n: 1 }")
		if err := u.Delete(c, rid.Clone(), append([]byte(nil), old...), NoInfo); err != nil {
			return err
		}
		return gaveUp
	})
	if err != gaveUp {
		t.Fatal(err)
	}
	if err := other(); !ErrConflict(err) {
		t.Errorf("another writer while nothing is decided: %v", err)
	}
	x.decided(l)
	want(t, "in the end", now(t, e, "db.c"), "{ _id: 0, n: 1 }")
	if err := other(); err != nil {
		t.Errorf("another writer: %v", err)
	}
	for i := range e.claims.shards {
		if n := len(e.claims.shards[i].below); n > 0 {
			t.Errorf("%d claims have others below them", n)
		}
	}
}

// What was decided meanwhile is read in its current state, including changes by others since.
func TestCommitChainDropsDecidedUnits(t *testing.T) {
	l, e, c := heldSet(t)
	defer l.close()
	x := &chained{t: t, e: e}
	if err := x.change("db.c", 0, D("_id", 0, "n", 1)); err != nil {
		t.Fatal(err)
	}
	x.decided(l)
	stop := l.run()
	u := e.NewUnitOfWork(e.Snapshot())
	defer u.base.Release()
	rid, old, _, _ := u.base.FindByID(c, value.NewInt32(0))
	if err := u.Update(c, rid.Clone(), append([]byte(nil), old...), D("_id", 0, "n", 2), NoInfo); err != nil {
		t.Fatal(err)
	}
	commit(t, e, u)
	stop()
	want(t, "behind the chain", x.list("db.c"), "{ _id: 0, n: 2 }")
	if err := x.change("db.c", 0, D("_id", 0, "n", 3)); err != nil {
		t.Fatal(err)
	}
	x.ends = x.ends[1:]
	x.decided(l)
	want(t, "in the end", now(t, e, "db.c"), "{ _id: 0, n: 3 }")
}

// When one unit fails, those after it fail too.
func TestCommitChainFailsTogether(t *testing.T) {
	l, e, _ := heldSet(t)
	defer l.close()
	make := func(_ *Snapshot, u *UnitOfWork) error {
		_, err := u.CreateCollection(CollectionSpec{NS: "db.made"})
		return err
	}
	first, second := &chained{t: t, e: e}, &chained{t: t, e: e}
	first.must(make)
	second.must(make)
	if err := second.insert("db.made", D("_id", 1)); err != nil {
		t.Fatal(err)
	}
	if err := second.insert("db.c", D("_id", 1)); err != nil {
		t.Fatal(err)
	}
	if n := first.decided(l); n != 0 {
		t.Errorf("%d units of the first failed", n)
	}
	if n := second.decided(l); n != 3 {
		t.Errorf("%d units of the second failed", n)
	}
	want(t, "the collection", now(t, e, "db.made"), "")
	want(t, "another collection", now(t, e, "db.c"), "{ _id: 0 }")
	l.same()
}

// The member steps down and is elected again: units chained to lost ones are refused.
func TestCommitChainEndsWithItsTerm(t *testing.T) {
	l, e, c := heldSet(t)
	defer l.close()
	x := &chained{t: t, e: e}
	if err := x.insert("db.c", D("_id", 1)); err != nil {
		t.Fatal(err)
	}
	l.elect(l.members[1], 0)
	l.elect(l.members[0], 0)
	defer l.run()()
	u := x.chain.NewUnitOfWork(nil)
	defer u.Rollback()
	if _, err := u.Insert(c, D("_id", 2), NoInfo); mongoerr.CodeOf(err) != mongoerr.InterruptedDueToReplStateChange {
		t.Errorf("inserted: %v", err)
	}
	u.Notice([]byte("something to commit"))
	if ts, err := e.Commit(context.Background(), u, false); ts != 0 || mongoerr.CodeOf(err) != mongoerr.InterruptedDueToReplStateChange {
		t.Errorf("committed at %v: %v", ts, err)
	}
	want(t, "in the end", now(t, e, "db.c"), "{ _id: 0 }")
}

// A chained unit with a view of its own sees the chain and its own writes.
func TestCommitChainWithAnOwnView(t *testing.T) {
	l, e, c := heldSet(t)
	defer l.close()
	x := &chained{t: t, e: e}
	if err := x.insert("db.c", D("_id", 1)); err != nil {
		t.Fatal(err)
	}
	x.must(func(_ *Snapshot, u *UnitOfWork) error {
		s := u.Snapshot()
		if !u.Empty() {
			t.Error("the unit holds what is the chain's")
		}
		if _, err := u.Insert(c, D("_id", 2), NoInfo); err != nil {
			return err
		}
		want(t, "the view", list(t, s, "db.c", false), "{ _id: 0 } { _id: 1 } { _id: 2 }")
		_, err := u.Insert(c, D("_id", 1), NoInfo)
		code(t, err, mongoerr.DuplicateKey)
		return nil
	})
	x.decided(l)
	want(t, "in the end", now(t, e, "db.c"), "{ _id: 0 } { _id: 1 } { _id: 2 }")
	l.same()
}

// A capped collection keeps its limit under chained inserts, and its lock is free in the end.
func TestCommitChainOnACappedCollection(t *testing.T) {
	l, e, _ := heldSet(t)
	defer l.close()
	stop := l.run()
	create(t, e, "db.capped", D("capped", true, "size", 4096, "max", 3))
	stop()
	x := &chained{t: t, e: e}
	for i := range 8 {
		if err := x.insert("db.capped", D("_id", i)); err != nil {
			t.Fatalf("document %d: %v", i, err)
		}
	}
	want(t, "the command itself", x.list("db.capped"), "{ _id: 5 } { _id: 6 } { _id: 7 }")
	x.decided(l)
	want(t, "in the end", now(t, e, "db.capped"), "{ _id: 5 } { _id: 6 } { _id: 7 }")
	stop = l.run()
	insert(t, e, e.Catalog().Lookup("db.capped"), D("_id", 8))
	stop()
	want(t, "afterwards", now(t, e, "db.capped"), "{ _id: 6 } { _id: 7 } { _id: 8 }")
	l.same()
}

// Random commands of several units, each on top of its detached ones, while the log commits from time to time: every member
// ends with what the commands saw.
func TestRandomCommitChains(t *testing.T) {
	l, e, _ := heldSet(t)
	defer l.close()
	var all []*chained
	for n := range 6 {
		x := &chained{t: t, e: e}
		all = append(all, x)
		ns := fmt.Sprintf("db.c%d", n)
		x.must(func(_ *Snapshot, u *UnitOfWork) error {
			_, err := u.CreateCollection(CollectionSpec{NS: ns})
			return err
		})
	}
	model := make([]map[int]int, len(all))
	for step := range 600 {
		n := step * 7 % len(all)
		ns, id := fmt.Sprintf("db.c%d", n), step*step%11
		if model[n] == nil {
			model[n] = map[int]int{}
		}
		_, there := model[n][id]
		var err error = errConflict
		for ErrConflict(err) { // with a unit that was committed just before
			switch {
			case !there:
				err = all[n].insert(ns, D("_id", id, "n", step))
			case step%3 == 0:
				err = all[n].change(ns, id, nil)
			default:
				err = all[n].change(ns, id, D("_id", id, "n", step))
			}
		}
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if model[n][id] = step; there && step%3 == 0 {
			delete(model[n], id)
		}
		if step%17 == 0 {
			l.commitSome(3)
		}
	}
	for n, x := range all {
		if failed := x.decided(l); failed > 0 {
			t.Errorf("%d units of command %d failed", failed, n)
		}
	}
	for n := range all {
		checkModel(t, e, e.Catalog().Lookup(fmt.Sprintf("db.c%d", n)), model[n])
	}
	l.same()
}

func checkModel(t *testing.T, e *Engine, c *catalog.Collection, model map[int]int) {
	t.Helper()
	s := e.Snapshot()
	defer s.Release()
	cur, found := s.Scan(c, ScanOptions{}), 0
	defer cur.Close()
	for ; cur.Next(); found++ {
		id, _ := value.Lookup(cur.Doc(), "_id").AsInt64()
		if n, _ := value.Lookup(cur.Doc(), "n").AsInt64(); model[int(id)] != int(n) {
			t.Errorf("%s: document %d has n: %d, want %d", c.NS, id, n, model[int(id)])
		}
	}
	if found != len(model) || c.Counters.Records.Load() != int64(found) {
		t.Errorf("%s: %d documents, %d counted, want %d", c.NS, found, c.Counters.Records.Load(), len(model))
	}
}

// A unit that has failed and is still in flight with its group has nothing in the group's batch: its contents belong to others,
// and chained units used to read them as the failed unit's.
func TestCommitChainOnAFailedUnitShowsNothing(t *testing.T) {
	l, e, _ := heldSet(t)
	defer l.close()
	c := e.Catalog().Lookup("db.c")
	other, failed := e.NewUnitOfWork(nil), e.NewUnitOfWork(nil)
	defer other.Rollback()
	if _, err := other.Insert(c, D("_id", 100), NoInfo); err != nil {
		t.Fatal(err)
	}
	failed.state, failed.wait.err = unitQueued, errConflict
	g := &Group{units: []*UnitOfWork{other, failed}, batch: other.batch}
	r := &e.replica
	r.mu.Lock()
	r.mu.inflight = append(r.mu.inflight, g)
	r.mu.Unlock()
	k, found := e.keepInFlight(failed)
	r.mu.Lock()
	r.mu.inflight = r.mu.inflight[:len(r.mu.inflight)-1]
	r.mu.Unlock()
	failed.state = unitOpen
	failed.Rollback()
	if !found || k != nil && k.keys.Count() > 0 {
		t.Errorf("found %v, with %d keys of others", found, k.keys.Count())
	}
}
