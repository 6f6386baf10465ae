package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/extsort"
	"github.com/shoaldb/shoal/storage/spill"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fakeEnv is a node that has nothing but memory and a directory.
type fakeEnv struct {
	plannings  map[*catalog.Collection]*Planning
	restricted []string // the namespaces of queries that were planned
	memory     int64
	dir        string
	spilled    int // how often a sort asked for spill files
	settings   []byte
	observes   bool
}

func (e *fakeEnv) Planning(c *catalog.Collection) *Planning {
	if e.plannings[c] == nil {
		e.plannings[c] = NewPlanning(c, nil)
	}
	return e.plannings[c]
}

func (e *fakeEnv) QuerySettings(*command.Op) []byte { return e.settings }

func (e *fakeEnv) Restrict(_ *command.Op, ns string, _ *plan.Query) {
	e.restricted = append(e.restricted, ns)
}

func (e *fakeEnv) Observes(*command.Op) bool { return e.observes }
func (e *fakeEnv) SortMemory() int64         { return e.memory }
func (e *fakeEnv) Now() (int64, uint64)      { return 0, 0 }

func (e *fakeEnv) Spill() extsort.Store {
	e.spilled++
	return spill.Dir(e.dir)
}

// bench is an executor over a collection d.c of 300 documents {_id, a, b, s} with indexes on a and on b.
type bench struct {
	t   *testing.T
	env *fakeEnv
	ex  *Executor
	eng *storage.Engine
}

func newBench(t *testing.T) *bench {
	t.Helper()
	eng, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	b := &bench{t: t, eng: eng, env: &fakeEnv{plannings: map[*catalog.Collection]*Planning{}, memory: 1 << 20, dir: t.TempDir()}}
	b.ex = New(b.env)
	b.ex.Watch(cluster.NewParams())
	u := eng.NewUnitOfWork(nil)
	c, err := u.CreateCollection(storage.CollectionSpec{NS: "d.c"})
	if err == nil {
		_, err = u.CreateIndexes(c, [][]byte{b.doc(`{"v": 2, "key": {"a": 1}, "name": "a_1"}`), b.doc(`{"v": 2, "key": {"b": 1}, "name": "b_1"}`)})
	}
	b.commit(u, err)
	var docs [][]byte
	for i := range 300 {
		docs = append(docs, b.doc(fmt.Sprintf(`{"_id": %d, "a": %d, "b": %d, "s": "%s"}`, i, i%7, i%11, strings.Repeat("s", i%100))))
	}
	u = eng.NewUnitOfWork(nil)
	_, err = u.InsertMany(eng.Catalog().Lookup("d.c"), docs, storage.NoInfo)
	b.commit(u, err)
	return b
}

func (b *bench) commit(u *storage.UnitOfWork, err error) {
	b.t.Helper()
	if err == nil {
		_, err = b.eng.Commit(context.Background(), u, false)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) doc(text string) []byte {
	b.t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(text), false, &d); err != nil {
		b.t.Fatalf("%s: %v", text, err)
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		b.t.Fatal(err)
	}
	return raw
}

// query compiles a query over a snapshot that the test releases.
func (b *bench) query(filter, sort string) *Query {
	b.t.Helper()
	snap := b.eng.Snapshot()
	b.t.Cleanup(snap.Release)
	q := &Query{NS: "d.c", Snap: snap, Coll: snap.Catalog().Lookup("d.c"), Filter: b.doc(filter)}
	if sort != "" {
		q.Sort = b.doc(sort)
	}
	if err := q.Compile(nil); err != nil {
		b.t.Fatal(err)
	}
	return q
}

// ids drains a tree. before is called ahead of each Next, nil for nothing.
func ids(root Node, before func()) (out []string, err error) {
	var r Row
	for {
		if before != nil {
			before()
		}
		ok, err := root.Next(&command.Op{}, &r)
		if errors.Is(err, errPaused) {
			continue
		}
		if err != nil || !ok {
			return out, err
		}
		out = append(out, fmt.Sprint(r.RID))
	}
}

// An executor knows its node only through Env: which collection it plans for, how much memory a sort may use, where it spills.
func TestExecutorAsksItsEnv(t *testing.T) {
	b := newBench(t)
	run := func(q *Query) error {
		root, err := b.ex.Plan(&command.Op{}, q)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		_, err = ids(root, nil)
		return err
	}
	if err := run(b.query(`{"_id": 3}`, "")); err != nil || len(b.env.plannings) != 0 || len(b.env.restricted) != 0 {
		t.Errorf("an equality on _id was planned: %v, %v", b.env.restricted, err)
	}
	for range 3 {
		if err := run(b.query(`{"a": 1, "b": {"$gt": 3}}`, "")); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.env.plannings) != 1 || !slices.Equal(b.env.restricted, []string{"d.c", "d.c", "d.c"}) {
		t.Errorf("%d collections were planned for, query settings looked up for %v", len(b.env.plannings), b.env.restricted)
	}
	if hits, misses := b.ex.Counters.Hits.Load(), b.ex.Counters.Misses.Load(); hits != 1 || misses != 2 {
		t.Errorf("the plan cache: %d hits and %d misses, want 1 and 2", hits, misses)
	}
	b.env.memory = 4000
	q := b.query(`{}`, `{"s": 1}`)
	if err := run(q); mongoerr.CodeOf(err) != mongoerr.QueryExceededMemoryLimitNoDiskUseAllowed || b.env.spilled != 0 {
		t.Errorf("a sort past its memory without the disk: %v, files asked for %d times", err, b.env.spilled)
	}
	q = b.query(`{}`, `{"s": 1}`)
	q.AllowDiskUse = true
	if err := run(q); err != nil || b.env.spilled != 1 {
		t.Errorf("with the disk: %v, files asked for %d times", err, b.env.spilled)
	}
}

// A leaf that has used up its share of work loses nothing, whatever stages are above it, nor does a tree that releases
// the store before each row.
func TestTreesPauseAndSaveAnywhere(t *testing.T) {
	b := newBench(t)
	for _, x := range []struct{ name, filter, sort string }{
		{"collection scan", `{"s": {"$regex": "sss"}}`, ""},
		{"fetch", `{"a": {"$gt": 2}, "s": {"$ne": "s"}}`, ""},
		{"sort", `{"a": {"$in": [1, 3]}}`, `{"s": 1, "_id": -1}`},
		{"union", `{"$or": [{"a": 1}, {"b": 2}]}`, ""},
		{"merge", `{"$or": [{"a": 1}, {"a": 4, "b": {"$gt": 2}}]}`, `{"a": 1}`},
		{"intersection", `{"a": 1, "b": 2}`, ""},
	} {
		plans := func() *plan.Result {
			q := b.query(x.filter, x.sort)
			pq := q.planQuery()
			pq.Knobs = &plan.Knobs{Intersect: true, HashIntersect: true, Intersections: 3, Unions: 10, Plans: 64, Explode: 200}
			pc, err := b.env.Planning(q.Coll).planIndexes()
			if err != nil {
				t.Fatal(err)
			}
			r, err := plan.Plan(pq, pc)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		for i := range plans().Candidates {
			drain := func(p *pace, before func(root Node)) []string {
				q := b.query(x.filter, x.sort)
				root, err := (&builder{e: b.ex, q: q, pace: p}).build(plans().Candidates[i])
				if err != nil {
					t.Fatal(err)
				}
				defer root.Close()
				out, err := ids(root, func() { before(root) })
				if err != nil {
					t.Fatalf("%s: %v", x.name, err)
				}
				return out
			}
			want := drain(nil, func(Node) {})
			one := &pace{}
			paused := drain(one, func(Node) { one.left = 1 })
			saved := drain(nil, Node.Save)
			if len(want) == 0 || !slices.Equal(want, paused) || !slices.Equal(want, saved) {
				t.Errorf("%s, plan %d: %d rows, %d with pauses, %d with saves", x.name, i, len(want), len(paused), len(saved))
			}
		}
	}
}

// scripted is a leaf that returns a row at every nth unit of work, and ends or fails after a given number.
type scripted struct {
	st    nodeStats
	pace  *pace
	every int64
	works int64
	err   error
}

func (s *scripted) Next(_ *command.Op, r *Row) (bool, error) {
	for {
		if err := s.pace.step(); err != nil {
			return false, err
		}
		switch {
		case s.pace.done > s.works && s.err != nil:
			return false, s.err
		case s.pace.done > s.works:
			return false, nil
		case s.pace.done%s.every == 0:
			*r = Row{RID: storage.NewRecordID(s.pace.done), Doc: value.Doc()}
			return true, nil
		}
	}
}
func (s *scripted) Save()             {}
func (s *scripted) Close()            {}
func (s *scripted) stats() *nodeStats { return &s.st }

// What a trial prefers: plans that have ended, then the most results per unit of work, and failed plans last. It ends
// with the first plan that has returned enough.
func TestTrialPrefers(t *testing.T) {
	broken := errors.New("broken")
	for _, x := range []struct {
		name    string
		leaves  []scripted
		best    int
		atMost  int64 // works of any plan
		failing bool
	}{
		{"more results for the work", []scripted{{every: 5, works: 900}, {every: 2, works: 900}, {every: 9, works: 900}}, 1, 250, false},
		{"the end", []scripted{{every: 2, works: 900}, {every: 100, works: 20}}, 1, 60, false},
		{"the first of equals", []scripted{{every: 3, works: 900}, {every: 3, works: 900}}, 0, 350, false},
		{"what does not fail", []scripted{{every: 1, works: 3, err: broken}, {every: 50, works: 900}}, 1, 900, false},
		{"nothing", []scripted{{every: 7, works: 3, err: broken}, {every: 7, works: 5, err: broken}}, 0, 10, true},
	} {
		var all []*candidate
		byPlan := map[*plan.Node]int{}
		for i := range x.leaves {
			p := &plan.Node{Stage: plan.CollScan}
			byPlan[p] = i
			x.leaves[i].pace = &pace{}
			all = append(all, &candidate{plan: p, nodes: map[*plan.Node]Node{p: &x.leaves[i]}, root: &x.leaves[i], pace: x.leaves[i].pace})
		}
		tr := trial{works: 900, results: 101, slice: trialSlice}
		if err := tr.run(&command.Op{}, all); err != nil {
			t.Errorf("%s: %v", x.name, err)
		}
		if got := byPlan[all[0].plan]; got != x.best || (all[0].err != nil) != x.failing {
			t.Errorf("%s: plan %d won with %v", x.name, got, all[0].err)
		}
		for i := range x.leaves {
			if done := x.leaves[i].pace.done; done > x.atMost {
				t.Errorf("%s: plan %d worked %d times", x.name, i, done)
			}
		}
	}
}
