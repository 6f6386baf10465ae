package statedoc

import (
	"context"
	"sync"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Docs gives access to a node's own documents: it reads them from the store, and writes them through the node's set.
type Docs struct {
	Engine *storage.Engine
	Set    replication.Set
	// Warn logs errors that are not returned to any client; nil for no log.
	Warn func(msg string, err error)

	odd sync.Map // the namespaces and ids of documents that Unreadable has logged
}

// Unreadable implements Store: it logs once for each document that it is skipped.
func (d *Docs) Unreadable(ns string, doc []byte, err error) {
	id := value.Show(value.Lookup(doc, "_id"))
	if _, logged := d.odd.LoadOrStore(ns+" "+id, true); !logged && d.Warn != nil {
		d.Warn("An invalid document of "+ns+" is skipped", mongoerr.From(err).Prefix(id+": "))
	}
}

// WriteWith runs f in a unit of work over a fresh snapshot and commits it; after a conflict, also about a name that another unit has taken meanwhile, it starts again.
func (d *Docs) WriteWith(ctx context.Context, wc replication.WriteConcern, f func(s *storage.Snapshot, u *storage.UnitOfWork) error) error {
	for {
		staged, err := d.tryUnit(ctx, wc, f)
		if err == nil || !(storage.ErrConflict(err) || staged && mongoerr.CodeOf(err) == mongoerr.NamespaceExists) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (d *Docs) tryUnit(ctx context.Context, wc replication.WriteConcern, f func(s *storage.Snapshot, u *storage.UnitOfWork) error) (staged bool, err error) {
	s := d.Engine.Snapshot()
	defer s.Release()
	u := d.Engine.NewUnitOfWork(s)
	defer u.Rollback()
	if err := f(s, u); err != nil {
		return false, err
	}
	_, err = d.Set.Commit(ctx, u, wc)
	return true, err
}

// Snapshot implements Store.
func (d *Docs) Snapshot() *storage.Snapshot { return d.Engine.Snapshot() }

// Write implements Store.
func (d *Docs) Write(ctx context.Context, f func(*storage.Snapshot, *storage.UnitOfWork) error) error {
	return d.WriteWith(ctx, replication.Durable, f)
}

// CollectionFor finds one of the node's own collections, or creates it in the unit.
func CollectionFor(s *storage.Snapshot, u *storage.UnitOfWork, ns string) (*catalog.Collection, error) {
	if c := s.Catalog().Lookup(ns); c != nil {
		return c, nil
	}
	return u.CreateCollection(storage.CollectionSpec{NS: ns, Unreplicated: catalog.Unreplicated(ns)})
}

// Put inserts or replaces one of the node's own documents by its _id.
func (d *Docs) Put(ctx context.Context, ns string, doc []byte) error {
	return d.WriteWith(ctx, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c, err := CollectionFor(s, u, ns)
		if err != nil {
			return err
		}
		return PutIn(s, u, c, doc)
	})
}

// PutIn inserts or replaces a document by its _id.
func PutIn(s *storage.Snapshot, u *storage.UnitOfWork, c *catalog.Collection, doc []byte) error {
	rid, old, ok, err := s.FindByID(c, value.Lookup(doc, "_id"))
	if err != nil {
		return err
	}
	if ok {
		return u.Update(c, rid.Clone(), append([]byte(nil), old...), doc, storage.NoInfo)
	}
	return insertUnseen(u, c, doc)
}

// insertUnseen inserts a document that is not in the unit's snapshot. If it was inserted since, the unit has to
// start again.
func insertUnseen(u *storage.UnitOfWork, c *catalog.Collection, doc []byte) error {
	_, err := u.Insert(c, doc, storage.NoInfo)
	if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
		err = mongoerr.New(mongoerr.WriteConflict, "a document of "+c.NS+" was inserted meanwhile")
	}
	return err
}

// Remove deletes one of the node's own documents; it is not an error if there is none.
func (d *Docs) Remove(ctx context.Context, ns string, id value.Value) error {
	return d.WriteWith(ctx, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c := s.Catalog().Lookup(ns)
		if c == nil {
			return nil
		}
		rid, old, ok, err := s.FindByID(c, id)
		if err != nil || !ok {
			return err
		}
		return u.Delete(c, rid.Clone(), append([]byte(nil), old...), storage.NoInfo)
	})
}

// SetFields sets fields of one of the node's own documents; it is not an error if there is none.
func (d *Docs) SetFields(ctx context.Context, ns string, id value.Value, fields ...value.Field) error {
	doc, err := d.Get(ns, id)
	if err != nil || doc == nil {
		return err
	}
	out, m := value.Begin(nil)
	for k, v := range value.Elements(doc) {
		set := false
		for _, f := range fields {
			set = set || f.Key == k
		}
		if !set {
			out = value.Append(out, k, v)
		}
	}
	for _, f := range fields {
		out = value.Append(out, f.Key, f.Val)
	}
	return d.Put(ctx, ns, value.End(out, m))
}

// Get reads one of the node's own documents; nil if there is none.
func (d *Docs) Get(ns string, id value.Value) ([]byte, error) {
	s := d.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(ns)
	if c == nil {
		return nil, nil
	}
	_, doc, ok, err := s.FindByID(c, id)
	if err != nil || !ok {
		return nil, err
	}
	return append([]byte(nil), doc...), nil
}

// Each calls f with all documents of one of the node's own collections.
func (d *Docs) Each(ns string, f func(doc []byte) error) error {
	s := d.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(ns)
	if c == nil {
		return nil
	}
	cur := s.Scan(c, storage.ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		if err := f(append([]byte(nil), cur.Doc()...)); err != nil {
			return err
		}
	}
	return cur.Err()
}

// PutRecord replaces the document with an _id, or removes it if doc is nil.
func PutRecord(s *storage.Snapshot, u *storage.UnitOfWork, c *catalog.Collection, id value.Value, doc []byte) error {
	rid, old, ok, err := s.FindByID(c, id)
	if err != nil {
		return err
	}
	rid, old = rid.Clone(), append([]byte(nil), old...)
	switch {
	case ok && doc == nil:
		return u.Delete(c, rid, old, storage.NoInfo)
	case ok:
		return u.Update(c, rid, old, doc, storage.NoInfo)
	case doc == nil:
		return nil
	}
	return insertUnseen(u, c, doc)
}
