package statedoc

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
)

// fakeStore commits to an engine of its own and counts retried units.
type fakeStore struct {
	eng    *storage.Engine
	before func() // called between a unit's writes and its commit; may be nil
	again  int
	odd    []string // reports of invalid documents
}

func (f *fakeStore) Unreadable(ns string, doc []byte, err error) {
	f.odd = append(f.odd, ns+" "+value.Show(value.Lookup(doc, "_id"))+" "+err.Error())
}

func newStore(t *testing.T) *fakeStore {
	t.Helper()
	eng, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eng.Close() })
	return &fakeStore{eng: eng}
}

func (f *fakeStore) Snapshot() *storage.Snapshot { return f.eng.Snapshot() }

func (f *fakeStore) Write(ctx context.Context, do func(s *storage.Snapshot, u *storage.UnitOfWork) error) error {
	try := func() error {
		s := f.eng.Snapshot()
		defer s.Release()
		u := f.eng.NewUnitOfWork(s)
		defer u.Rollback()
		if err := do(s, u); err != nil {
			return err
		}
		if before := f.before; before != nil {
			f.before = nil
			u.Rollback() // releases its claims, as one whose snapshot is too old has none
			before()
			f.again++
			return f.Write(ctx, do)
		}
		_, err := f.eng.Commit(ctx, u, false)
		return err
	}
	for {
		if err := try(); !storage.ErrConflict(err) {
			return err
		}
	}
}

// task is a document {_id, left, note}.
type task struct {
	id   int64
	left int64
}

func (d *task) ID() value.Value { return value.NewInt64(d.id) }

func (d *task) Doc() []byte {
	return value.Doc(value.F("_id", d.ID()), value.F("left", value.NewInt64(d.left)))
}

func parseTask(doc []byte) (*task, error) {
	id, ok := value.Lookup(doc, "_id").AsInt64()
	if !ok {
		return nil, errors.New("a task without a number")
	}
	left, _ := value.Lookup(doc, "left").AsInt64()
	return &task{id, left}, nil
}

func left(t *testing.T, c Collection[*task]) (out []int64) {
	t.Helper()
	if err := c.Each(func(d *task) error { out = append(out, d.id, d.left); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

// The life of a document: it is put, changed, put again, removed. A missing document is neither changed nor removed.
func TestLifeOfAStateDocument(t *testing.T) {
	c, ctx := In(newStore(t), "config.tasks", parseTask), t.Context()
	if _, ok, err := c.Get(value.NewInt64(1)); ok || err != nil || left(t, c) != nil {
		t.Errorf("before the first: %v, %v", ok, err)
	}
	never := func(*task) { t.Error("a document that is not there is changed") }
	if err := errors.Join(c.Update(ctx, value.NewInt64(1), never), c.Remove(ctx, value.NewInt64(1))); err != nil {
		t.Error(err)
	}
	if err := errors.Join(c.Put(ctx, &task{1, 10}), c.Put(ctx, &task{2, 20}), c.Put(ctx, &task{2, 21})); err != nil {
		t.Fatal(err)
	}
	if err := c.Update(ctx, value.NewInt64(1), func(d *task) { d.left-- }); err != nil {
		t.Fatal(err)
	}
	if d, ok, err := c.Get(value.NewInt64(1)); !ok || err != nil || d.left != 9 {
		t.Errorf("%v, %v, %v", d, ok, err)
	}
	if got := left(t, c); !slices.Equal(got, []int64{1, 9, 2, 21}) {
		t.Errorf("the documents are %v", got)
	}
	if err := errors.Join(c.Remove(ctx, value.NewInt64(1)), c.Update(ctx, value.NewInt64(1), never)); err != nil {
		t.Error(err)
	}
	if got := left(t, c); !slices.Equal(got, []int64{2, 21}) {
		t.Errorf("the documents are %v", got)
	}
}

// A document that is not of the kind is reported and skipped: it used to fail the reads of the others. Put replaces it,
// Remove removes it.
func TestDocumentsOfNoKindArePassedOver(t *testing.T) {
	store := newStore(t)
	c, ctx := In(store, "config.tasks", parseTask), t.Context()
	anything := In(store, "config.tasks", func(doc []byte) (raw, error) { return raw(doc), nil })
	for _, id := range []value.Value{value.NewString("odd"), value.NewInt64(1), value.NewString("odder")} {
		if err := anything.Put(ctx, raw(value.Doc(value.F("_id", id), value.F("left", value.NewInt64(5))))); err != nil {
			t.Fatal(err)
		}
	}
	if got := left(t, c); !slices.Equal(got, []int64{1, 5}) || len(store.odd) != 2 || store.odd[0] != `config.tasks "odd" a task without a number` {
		t.Errorf("the documents are %v, told was %q", got, store.odd)
	}
	odd := value.NewString("odd")
	if _, ok, err := c.Get(odd); ok || err != nil {
		t.Errorf("it is read: %v, %v", ok, err)
	}
	if err := c.Update(ctx, odd, func(*task) { t.Error("it is changed") }); err != nil {
		t.Error(err)
	}
	if err := c.Remove(ctx, odd); err != nil {
		t.Error(err)
	}
	store.odd = nil
	if left(t, c); len(store.odd) != 1 {
		t.Errorf("after one was removed: %q", store.odd)
	}
}

// A change is based on the document at its commit: one that was made in between is not lost.
func TestUpdatesAreNotLost(t *testing.T) {
	store := newStore(t)
	c, ctx := In(store, "config.tasks", parseTask), t.Context()
	if err := c.Put(ctx, &task{1, 100}); err != nil {
		t.Fatal(err)
	}
	less := func(d *task) { d.left-- }
	store.before = func() {
		if err := c.Update(ctx, value.NewInt64(1), less); err != nil {
			t.Error(err)
		}
	}
	if err := c.Update(ctx, value.NewInt64(1), less); err != nil || store.again != 1 {
		t.Fatalf("%v, %d units ran again", err, store.again)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				if err := c.Update(ctx, value.NewInt64(1), less); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := left(t, c); !slices.Equal(got, []int64{1, 58}) {
		t.Errorf("100 less 42 is %v", got)
	}
}

// Documents of two kinds change in one unit, or not at all.
func TestTwoKindsInOneUnit(t *testing.T) {
	store := newStore(t)
	from, to, ctx := In(store, "config.from", parseTask), In(store, "config.to", parseTask), t.Context()
	if err := from.Put(ctx, &task{1, 5}); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	for _, end := range []error{broken, nil} {
		err := store.Write(ctx, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			return errors.Join(from.RemoveIn(s, u, value.NewInt64(1)), to.PutIn(s, u, &task{1, 5}), end)
		})
		if !errors.Is(err, end) {
			t.Fatal(err)
		}
		was, is := left(t, from), left(t, to)
		if moved := len(was) == 0 && len(is) == 2; moved != (end == nil) {
			t.Errorf("after %v: %v and %v", end, was, is)
		}
	}
}

// raw is a document as it is.
type raw []byte

func (r raw) ID() value.Value { return value.Lookup(r, "_id") }
func (r raw) Doc() []byte     { return r }
