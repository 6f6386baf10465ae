package storage

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// model is the expected content of the store: for each namespace its documents by _id, as text.
type model map[string]map[int]string

func (m model) clone() model {
	out := model{}
	for ns, docs := range m {
		out[ns] = maps.Clone(docs)
	}
	return out
}

// modelRun applies random operations to a store and to the model, and compares the two at random moments of the past.
type modelRun struct {
	t       *testing.T
	r       *rand.Rand
	fs      vfs.FS
	e       *Engine
	clock   atomic.Int64
	now     model
	history []modelMoment
	oplog   []string // its entries, as they were when they were new
	steps   []string
}

type modelMoment struct {
	ts    Timestamp
	state model
}

func (m *modelRun) open() {
	m.e = openMem(m.t, Options{FS: m.fs, Clock: func() time.Time { return time.Unix(m.clock.Load(), 0) },
		HistoryWindow: 30 * time.Second, CollectInterval: time.Hour, JournalInterval: time.Hour})
}

var modelNamespaces = []string{"a.x", "a.y", "b.x"}

func TestModel(t *testing.T) {
	seeds := 25
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := &modelRun{t: t, r: newRand(uint64(seed)), fs: vfs.NewMem(), now: model{}}
			m.clock.Store(1_700_000_000)
			m.open()
			for i := 0; i < 300 && !t.Failed(); i++ {
				m.step()
			}
			m.checkDead()
			if err := m.e.Close(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Log(strings.Join(m.steps[max(0, len(m.steps)-30):], "\n"))
			}
		})
	}
}

func (m *modelRun) note(format string, args ...any) {
	m.steps = append(m.steps, fmt.Sprintf(format, args...))
}

func (m *modelRun) step() {
	ns := modelNamespaces[m.r.IntN(len(modelNamespaces))]
	switch n := m.r.IntN(100); {
	case m.now[ns] == nil:
		m.create(ns)
	case n < 75:
		m.write(ns)
	case n < 79:
		m.index(ns)
	case n < 81:
		m.drop(ns)
	case n < 83:
		m.rename(ns)
	case n < 85:
		m.restart()
	case n < 88:
		m.clock.Add(int64(m.r.IntN(20)))
		m.note("collect")
		if err := m.e.collect(context.Background()); err != nil {
			m.t.Error(err)
		}
	case n < 90:
		_ = m.e.db.Flush()
	default:
		m.look()
	}
}

// done records the state after a commit.
func (m *modelRun) done(ts Timestamp) {
	m.history = append(m.history, modelMoment{ts, m.now.clone()})
	m.oplog = append(m.oplog, oplogFrom(m.t, m.e, len(m.oplog))...)
}

// oplogFrom lists the entries of the oplog but for the first n.
func oplogFrom(t *testing.T, e *Engine, n int) (list []string) {
	t.Helper()
	s := e.Snapshot()
	defer s.Release()
	cur := s.Scan(s.Catalog().Lookup(OplogNS), ScanOptions{})
	defer cur.Close()
	for i := 0; cur.Next(); i++ {
		if i >= n {
			list = append(list, shellString(value.NewDocument(cur.Doc())))
		}
	}
	if err := cur.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

func (m *modelRun) create(ns string) {
	m.note("create %s", ns)
	options := D()
	if m.r.IntN(3) == 0 {
		options = D("clusteredIndex", D("key", D("_id", 1), "unique", true))
	}
	u := m.e.NewUnitOfWork(nil)
	c, err := u.CreateCollection(CollectionSpec{NS: ns, Options: options})
	if err == nil && m.r.IntN(2) == 0 {
		_, err = u.CreateIndexes(c, [][]byte{spec("u_1", D("u", 1), "unique", true)})
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.now[ns] = map[int]string{}
	m.done(commit(m.t, m.e, u))
}

func (m *modelRun) drop(ns string) {
	m.note("drop %s", ns)
	u := m.e.NewUnitOfWork(nil)
	if err := u.DropCollection(m.e.Catalog().Lookup(ns)); err != nil {
		m.t.Fatal(err)
	}
	delete(m.now, ns)
	m.done(commit(m.t, m.e, u))
}

func (m *modelRun) rename(ns string) {
	to := modelNamespaces[m.r.IntN(len(modelNamespaces))]
	if to == ns || catalogDB(to) != catalogDB(ns) {
		return
	}
	m.note("rename %s to %s", ns, to)
	u := m.e.NewUnitOfWork(nil)
	if _, err := u.RenameCollection(m.e.Catalog().Lookup(ns), to, m.e.Catalog().Lookup(to), false); err != nil {
		m.t.Fatal(err)
	}
	m.now[to] = m.now[ns]
	delete(m.now, ns)
	m.done(commit(m.t, m.e, u))
}

func catalogDB(ns string) string { return ns[:1] }

func (m *modelRun) index(ns string) {
	c := m.e.Catalog().Lookup(ns)
	if c.Index("n_1") != nil {
		m.note("drop index of %s", ns)
		u := m.e.NewUnitOfWork(nil)
		if _, err := u.DropIndexes(c, []string{"n_1"}); err != nil {
			m.t.Fatal(err)
		}
		m.done(commit(m.t, m.e, u))
		return
	}
	m.note("build index of %s", ns)
	b, err := m.e.StartIndexBuild(context.Background(), ns, [][]byte{spec("n_1", D("n", 1))}, NewUUID())
	if err != nil {
		m.t.Fatal(err)
	}
	for range m.r.IntN(3) {
		m.write(ns)
	}
	ts, err := b.Run(context.Background())
	if err != nil {
		m.t.Fatal(err)
	}
	m.done(ts)
}

func (m *modelRun) restart() {
	m.note("restart")
	if err := m.e.Close(); err != nil {
		m.t.Fatal(err)
	}
	m.open()
}

// write commits or rolls back a unit of a few writes.
func (m *modelRun) write(ns string) {
	s := m.e.Snapshot()
	defer s.Release()
	u := m.e.NewUnitOfWork(s)
	defer u.Rollback()
	if m.r.IntN(2) == 0 {
		u.ReferToVersions()
	}
	view := s
	if m.r.IntN(2) == 0 {
		view = u.Snapshot()
	}
	c := s.Catalog().Lookup(ns)
	docs := maps.Clone(m.now[ns])
	touched := map[int]bool{}
	for range 1 + m.r.IntN(5) {
		id := m.r.IntN(20)
		if view == s && touched[id] {
			continue // a second write of a document needs the unit's own view
		}
		touched[id] = true
		if !m.writeOne(u, view, ns, id, docs) {
			return
		}
		if view != s && m.r.IntN(4) == 0 {
			m.compare(view, ns, docs)
		}
	}
	if m.r.IntN(6) == 0 {
		m.note("  rolled back")
		return
	}
	_ = c
	m.now[ns] = docs
	m.done(commit(m.t, m.e, u))
}

func (m *modelRun) writeOne(u *UnitOfWork, view *Snapshot, ns string, id int, docs map[int]string) bool {
	c := view.Catalog().Lookup(ns)
	doc := D("_id", id, "n", m.r.IntN(5), "u", m.r.IntN(30))
	if m.r.IntN(5) == 0 {
		doc = D("_id", id, "n", []int{m.r.IntN(5), m.r.IntN(5)}, "u", 100+id)
	}
	rid, old, ok, err := view.FindByID(c, V(id))
	if err != nil {
		m.t.Fatal(err)
	}
	if have := docs[id]; ok != (have != "") || ok && have != shellString(value.NewDocument(old)) {
		m.t.Errorf("%s: found %v %s, want %q", ns, ok, shellString(value.NewDocument(old)), have)
		return false
	}
	rid, old = rid.Clone(), slices.Clone(old)
	switch {
	case !ok:
		_, err = u.Insert(c, doc, NoInfo)
	case m.r.IntN(3) == 0:
		m.note("  delete %s %d", ns, id)
		err = u.Delete(c, rid, old, NoInfo)
		delete(docs, id)
		if err != nil {
			m.t.Error(err)
		}
		return err == nil
	default:
		err = u.Update(c, rid, old, doc, NoInfo)
	}
	m.note("  write %s %s: %v", ns, shellString(value.NewDocument(doc)), err)
	if taken := c.Index("u_1") != nil && m.taken(docs, id, doc); taken != (mongoerr.CodeOf(err) == mongoerr.DuplicateKey) || !taken && err != nil {
		m.t.Errorf("%s: writing %s: %v, but taken is %v", ns, shellString(value.NewDocument(doc)), err, taken)
		return false
	}
	if err == nil {
		docs[id] = shellString(value.NewDocument(doc))
	}
	return true
}

// taken reports whether another document has the unique value.
func (m *modelRun) taken(docs map[int]string, id int, doc []byte) bool {
	u := "u: " + shellString(value.Lookup(doc, "u")) + " }"
	for other, text := range docs {
		if other != id && strings.HasSuffix(text, u) {
			return true
		}
	}
	return false
}

// look compares the content at a random moment of the history.
func (m *modelRun) look() {
	if len(m.history) == 0 {
		return
	}
	at := m.history[m.r.IntN(len(m.history))]
	s, err := m.e.SnapshotAt(at.ts)
	if mongoerr.CodeOf(err) == mongoerr.SnapshotTooOld && at.ts < m.e.Oldest() {
		return
	}
	if err != nil {
		m.t.Fatal(err)
	}
	defer s.Release()
	m.note("look at %v of %v", at.ts, m.e.Visible())
	if now := oplogFrom(m.t, m.e, 0); !slices.Equal(now, m.oplog) {
		m.t.Errorf("the oplog is %v, it was %v", now, m.oplog)
	}
	for _, ns := range modelNamespaces {
		docs, there := at.state[ns]
		if (s.Catalog().Lookup(ns) != nil) != there {
			m.t.Errorf("%s at %v: there is %v, want %v", ns, at.ts, !there, there)
			return
		}
		if there {
			m.compare(s, ns, docs)
		}
	}
}

func (m *modelRun) compare(s *Snapshot, ns string, docs map[int]string) {
	m.t.Helper()
	c := s.Catalog().Lookup(ns)
	got := map[int]string{}
	cur := s.Scan(c, ScanOptions{Reverse: m.r.IntN(2) == 0})
	defer cur.Close()
	for cur.Next() {
		id, _ := value.Lookup(cur.Doc(), "_id").AsInt64()
		got[int(id)] = shellString(value.NewDocument(cur.Doc()))
		if m.r.IntN(5) == 0 {
			cur.Save()
		}
	}
	if cur.Err() != nil || !maps.Equal(got, docs) {
		m.t.Errorf("%s at %v:\n got  %v\n want %v\n%v", ns, s.Timestamp(), got, docs, cur.Err())
	}
	if s.unit == nil {
		v, err := s.Validate(context.Background(), c, nil)
		if err != nil || !v.Valid() {
			m.t.Errorf("%s at %v: %+v %v", ns, s.Timestamp(), v, err)
		}
	}
}

// checkDead lets the history window pass: only the newest versions of live keys are left.
func (m *modelRun) checkDead() {
	m.clock.Add(1000)
	u := m.e.NewUnitOfWork(nil)
	u.Oplog(OplogEntry{Op: 'n', StmtID: -1})
	commit(m.t, m.e, u)
	if err := m.e.collect(context.Background()); err != nil {
		m.t.Fatal(err)
	}
	live := map[uint32]int{uint32(identLocalMeta): 1} // the store's format
	s := m.e.Snapshot()
	defer s.Release()
	for _, ns := range modelNamespaces {
		c := s.Catalog().Lookup(ns)
		if c == nil {
			continue
		}
		m.compare(s, ns, m.now[ns])
		live[uint32(c.Ident)] = len(m.now[ns])
		for _, idx := range c.Indexes {
			live[uint32(idx.Ident)] = indexKeys(m.t, m.e, ns, idx.Name)
		}
		if n := c.Counters.Records.Load(); int(n) != len(m.now[ns]) {
			m.t.Errorf("%s: counted %d of %d", ns, n, len(m.now[ns]))
		}
	}
	it, err := m.e.db.NewIter(nil)
	if err != nil {
		m.t.Fatal(err)
	}
	defer it.Close()
	for ok := it.SeekGE(appendUnversioned(appendIdent(nil, identFirst))); ok; ok = it.Next() {
		live[uint32(identOf(it.Key()))]--
	}
	for id, n := range live {
		if n != 0 {
			m.t.Errorf("table %d has %d keys too many", id, -n)
		}
	}
}
