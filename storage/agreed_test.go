package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
)

// agreedRound writes to a collection and knows its content at every cluster time.
type agreedRound struct {
	*testing.T
	l     *testLog
	g     *rand.Rand
	was   []agreedWrite // in the order of from
	times []Timestamp
	claim map[int]bool // ids that a transaction is about to write
	value int
}

type agreedWrite struct {
	from Timestamp
	id   int
	doc  string // empty where it was deleted
}

const agreedIDs = 12

// write puts a random new state of a document into a unit.
func (r *agreedRound) write(u *UnitOfWork, s *Snapshot, id int) agreedWrite {
	r.Helper()
	c := s.Catalog().Lookup("db.c")
	r.value++
	tags := value.NewInt32(int32(r.value))
	if r.g.IntN(8) == 0 {
		tags = value.NewArray(value.ArrayOf(tags, V(-r.value)))
	}
	doc := D("_id", id, "x", r.value, "tags", tags, "pad", strings.Repeat("x", r.g.IntN(40)))
	rid, old, ok, err := s.FindByID(c, V(id))
	if err != nil {
		r.Fatal(err)
	}
	rid, old = rid.Clone(), bytes.Clone(old)
	switch {
	case !ok:
		_, err = u.Insert(c, doc, NoInfo)
	case r.g.IntN(4) == 0:
		doc, err = nil, u.Delete(c, rid, old, NoInfo)
	default:
		err = u.Update(c, rid, old, doc, NoInfo)
	}
	if err != nil {
		r.Fatal(err)
	}
	w := agreedWrite{id: id}
	if doc != nil {
		w.doc = shellString(value.NewDocument(doc))
	}
	return w
}

// plain writes n documents that no transaction has claimed, each in a unit of its own.
func (r *agreedRound) plain(n int) {
	e := r.l.members[0].e
	for range n {
		id := r.g.IntN(agreedIDs)
		if r.claim[id] {
			continue
		}
		s := e.Snapshot()
		u := e.NewUnitOfWork(s)
		w := r.write(u, s, id)
		w.from = commit(r, e, u)
		s.Release()
		r.was, r.times = append(r.was, w), append(r.times, w.from)
	}
}

// transaction writes some documents, and commits them at an earlier time, after other commits.
func (r *agreedRound) transaction() {
	e := r.l.members[0].e
	s := e.Snapshot()
	defer s.Release()
	u := e.NewUnitOfWork(s)
	u.SetTransaction(D("id", 1), 1)
	own := u.Snapshot()
	var list []agreedWrite
	for range 1 + r.g.IntN(4) {
		id := r.g.IntN(agreedIDs)
		if !r.claim[id] {
			r.claim[id] = true
			list = append(list, r.write(u, own, id))
		}
	}
	r.plain(r.g.IntN(3))
	from := e.Visible() + Timestamp(r.g.IntN(2))
	u.VisibleFrom(from)
	e.AdvanceClock(from)
	if r.g.IntN(3) == 0 && len(r.claim) < agreedIDs/2 {
		r.transaction() // one that is prepared later and commits first
	}
	r.plain(r.g.IntN(4))
	committed := commit(r, e, u)
	for _, w := range list {
		delete(r.claim, w.id)
		w.from = from
		r.was = append(r.was, w)
	}
	r.times = append(r.times, from-1, from, from+1, committed-1, committed)
}

// expect returns the content at a time.
func (r *agreedRound) expect(ts Timestamp) string {
	docs := map[int]string{}
	for _, w := range r.was {
		if w.from <= ts {
			docs[w.id] = w.doc
		}
	}
	var out []string
	for _, d := range docs {
		if d != "" {
			out = append(out, d)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// check reads a member at a time, in every possible way.
func (r *agreedRound) check(what string, e *Engine, ts Timestamp) {
	r.Helper()
	s, err := e.SnapshotAtClusterTime(ts)
	if err != nil {
		r.Fatal(err)
	}
	defer s.Release()
	expect := r.expect(ts)
	c := s.Catalog().Lookup("db.c")
	if c == nil {
		return // before it was created
	}
	scan := func(reverse bool) string {
		cur := s.Scan(c, ScanOptions{Reverse: reverse})
		defer cur.Close()
		var out []string
		for cur.Next() {
			out = append(out, shellString(value.NewDocument(cur.Doc())))
			if cur.Save(); r.g.IntN(2) == 0 {
				if err := cur.Restore(); err != nil {
					r.Fatal(err)
				}
			}
		}
		if cur.Err() != nil {
			r.Fatal(cur.Err())
		}
		slices.Sort(out)
		return strings.Join(out, "\n")
	}
	want(r, fmt.Sprintf("%s at %d, forward", what, ts), scan(false), expect)
	want(r, fmt.Sprintf("%s at %d, backward", what, ts), scan(true), expect)
	var byID []string
	several := false
	for id := range agreedIDs {
		_, doc, ok, err := s.FindByID(c, V(id))
		if err != nil {
			r.Fatal(err)
		}
		if ok {
			byID = append(byID, shellString(value.NewDocument(doc)))
			several = several || value.Lookup(doc, "tags").T == value.Array
		}
	}
	slices.Sort(byID)
	want(r, fmt.Sprintf("%s at %d, by _id", what, ts), strings.Join(byID, "\n"), expect)
	if several && !c.Index("tags_1").Multikey {
		r.Errorf("%s at %d: the index does not know of documents with several keys", what, ts)
	}
	if paths := c.Index("all").ArrayPaths; several && !slices.Equal(paths, []string{"tags"}) {
		r.Errorf("%s at %d: the wildcard index knows of arrays at %q, want tags", what, ts, paths)
	}
	u := e.NewUnitOfWork(s)
	own := list(r, u.Snapshot(), "db.c", false)
	u.Rollback()
	want(r, fmt.Sprintf("%s at %d, in a transaction", what, ts), own, list(r, s, "db.c", false))
}

// A transaction over several shards is visible at the time that its shards agreed on, on each of them; reads at times
// between that and the shard's commit used to be refused. The same holds on every member, after a restart and on a copy of
// the store.
func TestCommitsAtAnAgreedTime(t *testing.T) {
	for _, stage := range []int{0, 120} { // bytes above which units are staged
		clock := newHandClock()
		o := Options{stageBytes: stage, chunkBytes: stage / 2, CollectInterval: time.Hour, Clock: clock.now}
		l := newTestLog(t, 3, o)
		l.elect(l.members[0], 0)
		l.keepCommitting()
		r := &agreedRound{T: t, l: l, g: newRand(7), claim: map[int]bool{}}
		create(t, l.members[0].e, "db.c", nil, spec("tags_1", D("tags", 1)), spec("all", D("$**", 1)))
		for range 60 {
			r.plain(1)
			r.transaction()
			ts := r.times[max(len(r.times)-1-r.g.IntN(12), 0)]
			r.check("primary", l.members[0].e, ts)
		}
		l.settle()
		l.restore(l.members[2], l.members[0], true, o)
		all := func(what string, e *Engine) {
			for _, ts := range r.times {
				r.check(what, e, ts)
			}
		}
		all("secondary", l.members[1].e)
		all("copy", l.members[2].e)
		l.same()
		m := l.members[0]
		l.close()
		o.FS = m.fs
		e := openMem(t, o)
		all("reopened", e)
		if len(e.replica.agreed.list) == 0 {
			t.Error("no commit had an agreed time")
		}
		e.SetHistoryWindow(time.Nanosecond)
		clock.pass(2 * time.Second) // the history is measured in whole seconds
		e.lines[lineReplicated].oldest.Store(uint64(e.Visible()))
		if err := e.collectDead(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := e.loadAgreed(); err != nil || len(e.replica.agreed.list) != 0 {
			t.Errorf("%d agreed times stay behind the history, %v", len(e.replica.agreed.list), err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A unit of several documents has a timestamp for each in the oplog, and its versions at the last. A snapshot of one of the others shows
// all of the unit, as the change stream's event of that time says.
func TestClusterTimeWithinAUnit(t *testing.T) {
	e := openMem(t, Options{})
	c := create(t, e, "db.c", nil)
	u := e.NewUnitOfWork(nil)
	for i := range 5 {
		if _, err := u.Insert(c, D("_id", i), NoInfo); err != nil {
			t.Fatal(err)
		}
	}
	last := commit(t, e, u)
	u = e.NewUnitOfWork(nil)
	if _, err := u.Insert(c, D("_id", 9), NoInfo); err != nil {
		t.Fatal(err)
	}
	commit(t, e, u)
	for at := last - 5; at <= last; at++ {
		s, err := e.SnapshotAtClusterTime(at)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		cur := s.Scan(c, ScanOptions{})
		for cur.Next() {
			n++
		}
		cur.Close()
		s.Release()
		if at == last-5 && n != 0 || at > last-5 && n != 5 {
			t.Errorf("%d documents are there %d before the end of the unit", n, last-at)
		}
	}
}

// Commits are found by an old time without a scan of all later ones.
func TestAgreedTimesOutOfOrder(t *testing.T) {
	g := newRand(3)
	var a agreedCommits
	var all []agreedCommit
	for i := range Timestamp(300) {
		c := agreedCommit{committed: 10 * (i + 1), from: 10*(i+1) - 1 - min(10*i, Timestamp(g.IntN(1+g.IntN(200))))}
		all = append(all, c)
		a.add([]agreedCommit{c, c})
	}
	for ts := range Timestamp(3010) {
		now := ts + Timestamp(g.IntN(500))
		var expect timestamps
		for _, c := range all {
			if c.from <= ts && c.committed > ts && c.committed <= now {
				expect = append(expect, uint64(c.committed))
			}
		}
		if got := a.shownAt(ts, now); !slices.Equal(got, expect) {
			t.Fatalf("at %d up to %d: %v, want %v", ts, now, got, expect)
		}
	}
}

// commitTogether commits units of work as one group, in this order, and returns their timestamps.
func commitTogether(t *testing.T, e *Engine, units ...*UnitOfWork) []Timestamp {
	t.Helper()
	at, errs := make([]Timestamp, len(units)), make([]error, len(units))
	var all sync.WaitGroup
	e.replica.mu.Lock() // the leader waits, with its group still to be taken from the queue
	for i, u := range units {
		all.Go(func() { at[i], errs[i] = e.Commit(context.Background(), u, true) })
		await.State(t, "a unit is queued", func() (int, bool) {
			e.commit.mu.Lock()
			defer e.commit.mu.Unlock()
			return len(e.commit.mu.queue), len(e.commit.mu.queue) == i+1
		})
	}
	e.replica.mu.Unlock()
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return at
}

// A snapshot of a time has the catalog of that time, also if the unit of work that changed it was committed in one group with later ones, on
// members that commit by themselves and on those that follow.
func TestCatalogWithinAGroup(t *testing.T) {
	look := func(t *testing.T, e *Engine, at Timestamp, want string) {
		t.Helper()
		s, err := e.SnapshotAtClusterTime(at)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Release()
		got := ""
		for _, ns := range []string{"db.source", "db.target"} {
			if c := s.Catalog().Lookup(ns); c != nil {
				cur := s.Scan(c, ScanOptions{})
				for cur.Next() {
					got += fmt.Sprintf("%s: %d ", c.NS, value.Lookup(cur.Doc(), "_id").Int32())
				}
				cur.Close()
			}
		}
		if got != want {
			t.Errorf("at %v there is %q, want %q", at, got, want)
		}
	}
	round := func(t *testing.T, e *Engine, settle func(), members ...*Engine) {
		source, target := create(t, e, "db.source", nil), create(t, e, "db.target", nil)
		insert(t, e, source, D("_id", 1))
		insert(t, e, target, D("_id", 2))
		c := create(t, e, "db.c", nil)
		settle()
		rename, other := e.NewUnitOfWork(nil), e.NewUnitOfWork(nil)
		for i := range 3 {
			if _, err := rename.Insert(c, D("_id", i), NoInfo); err != nil {
				t.Fatal(err)
			}
		}
		renamed, err := rename.RenameCollection(source, "db.target", target, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Insert(c, D("_id", 10), NoInfo); err != nil {
			t.Fatal(err)
		}
		at := commitTogether(t, e, rename, other)
		before := at[0] - 4
		if at[1] != at[0]+1 {
			t.Fatalf("the units are at %v", at)
		}
		settle()
		for _, m := range members {
			look(t, m, before, "db.source: 1 db.target: 2 ")
			for ts := before + 1; ts <= at[1]; ts++ {
				look(t, m, ts, "db.target: 1 ")
			}
			if got := m.Catalog().LookupUUID(renamed.UUID); got == nil || got.NS != "db.target" {
				t.Errorf("the newest catalog has %v", got)
			}
		}
	}
	t.Run("single", func(t *testing.T) {
		e := openMem(t, Options{})
		round(t, e, func() {}, e)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("set", func(t *testing.T) {
		l := newTestLog(t, 3, Options{})
		l.elect(l.members[0], 0)
		l.keepCommitting()
		round(t, l.members[0].e, l.settle, l.members[0].e, l.members[1].e, l.members[2].e)
		l.close()
	})
}
