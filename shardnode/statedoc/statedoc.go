package statedoc

import (
	"bytes"
	"context"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// Store is the interface of state documents to the node's store.
type Store interface {
	Snapshot() *storage.Snapshot
	// Write runs f in a unit of work over a fresh snapshot and commits it as durably as the set makes it. If the unit
	// conflicts with another, f runs again.
	Write(ctx context.Context, f func(s *storage.Snapshot, u *storage.UnitOfWork) error) error
	// Unreadable is called for a document that cannot be parsed: clients may write their own documents into these collections.
	Unreadable(ns string, doc []byte, err error)
}

// Doc is a state document.
type Doc interface {
	ID() value.Value
	// Doc returns the document as it is stored, with its _id.
	Doc() []byte
}

// Collection holds the state documents of one kind, in one of the node's own collections.
type Collection[T Doc] struct {
	store Store
	ns    string
	parse func(doc []byte) (T, error)
}

// In returns the documents of a collection. parse reads one; it may keep its argument. Documents that it rejects are
// skipped as if they did not exist: a client's document in the collection neither stops the node's work nor has an
// effect on it.
func In[T Doc](store Store, ns string, parse func(doc []byte) (T, error)) Collection[T] {
	return Collection[T]{store, ns, parse}
}

// Get reads a document; ok is false if there is none.
func (c Collection[T]) Get(id value.Value) (d T, ok bool, err error) {
	s := c.store.Snapshot()
	defer s.Release()
	d, _, _, ok, err = c.find(s, id)
	return d, ok, err
}

// GetIn is Get in a unit of work over s.
func (c Collection[T]) GetIn(s *storage.Snapshot, id value.Value) (d T, ok bool, err error) {
	d, _, _, ok, err = c.find(s, id)
	return d, ok, err
}

// Each calls f with all documents of one snapshot. f may change them.
func (c Collection[T]) Each(f func(T) error) error {
	return c.EachOr(f, func([]byte, error) bool { return false })
}

// EachOr is Each, which first calls unread with a document that cannot be parsed. It is not reported as skipped if unread returns true: it may be one of another version, of work that is
// under way.
func (c Collection[T]) EachOr(f func(T) error, unread func(doc []byte, err error) bool) error {
	s := c.store.Snapshot()
	defer s.Release()
	coll := s.Catalog().Lookup(c.ns)
	if coll == nil {
		return nil
	}
	cur := s.Scan(coll, storage.ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		doc := bytes.Clone(cur.Doc())
		d, err := c.parse(doc)
		if err != nil {
			if !unread(doc, err) {
				c.store.Unreadable(c.ns, doc, err)
			}
			continue
		}
		if err := f(d); err != nil {
			return err
		}
	}
	return cur.Err()
}

// Put inserts or replaces a document.
func (c Collection[T]) Put(ctx context.Context, d T) error {
	return c.store.Write(ctx, func(s *storage.Snapshot, u *storage.UnitOfWork) error { return c.PutIn(s, u, d) })
}

// Update changes a document. If there is none, change is not called and nothing is written.
func (c Collection[T]) Update(ctx context.Context, id value.Value, change func(T)) error {
	return c.store.Write(ctx, func(s *storage.Snapshot, u *storage.UnitOfWork) error { return c.UpdateIn(s, u, id, change) })
}

// Remove deletes a document; it is not an error if there is none.
func (c Collection[T]) Remove(ctx context.Context, id value.Value) error {
	return c.store.Write(ctx, func(s *storage.Snapshot, u *storage.UnitOfWork) error { return c.RemoveIn(s, u, id) })
}

// PutIn is Put in a unit of work over s. It creates the collection if it does not exist.
func (c Collection[T]) PutIn(s *storage.Snapshot, u *storage.UnitOfWork, d T) error {
	coll := s.Catalog().Lookup(c.ns)
	if coll == nil {
		coll = u.Catalog().Lookup(c.ns) // the unit may have created it for another document
	}
	if coll == nil {
		var err error
		if coll, err = u.CreateCollection(storage.CollectionSpec{NS: c.ns}); err != nil {
			return err
		}
	}
	rid, old, ok, err := s.FindByID(coll, d.ID())
	switch {
	case err != nil:
		return err
	case ok:
		return u.Update(coll, rid.Clone(), bytes.Clone(old), d.Doc(), storage.NoInfo)
	}
	_, err = u.Insert(coll, d.Doc(), storage.NoInfo)
	return err
}

// UpdateIn is Update in a unit of work over s.
func (c Collection[T]) UpdateIn(s *storage.Snapshot, u *storage.UnitOfWork, id value.Value, change func(T)) error {
	d, at, old, ok, err := c.find(s, id)
	if err != nil || !ok {
		return err
	}
	change(d)
	return u.Update(at.coll, at.rid, old, d.Doc(), storage.NoInfo)
}

// RemoveIn is Remove in a unit of work over s.
func (c Collection[T]) RemoveIn(s *storage.Snapshot, u *storage.UnitOfWork, id value.Value) error {
	coll := s.Catalog().Lookup(c.ns)
	if coll == nil {
		return nil
	}
	rid, old, ok, err := s.FindByID(coll, id)
	if err != nil || !ok {
		return err
	}
	return u.Delete(coll, rid.Clone(), bytes.Clone(old), storage.NoInfo)
}

// place identifies where a document is stored.
type place struct {
	coll *catalog.Collection
	rid  storage.RecordID
}

// find reads a document, with its place and its bytes.
func (c Collection[T]) find(s *storage.Snapshot, id value.Value) (d T, at place, raw []byte, ok bool, err error) {
	if at.coll = s.Catalog().Lookup(c.ns); at.coll == nil {
		return d, at, nil, false, nil
	}
	rid, doc, ok, err := s.FindByID(at.coll, id)
	if err != nil || !ok {
		return d, at, nil, false, err
	}
	at.rid, raw = rid.Clone(), bytes.Clone(doc)
	if d, err = c.parse(bytes.Clone(doc)); err != nil {
		c.store.Unreadable(c.ns, raw, err)
		return d, at, nil, false, nil
	}
	return d, at, raw, true, nil
}
