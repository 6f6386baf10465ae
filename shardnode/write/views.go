package write

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// PutView writes a view's document, replacing an existing one.
func (w *Command) PutView(u *storage.UnitOfWork, s *storage.Snapshot, v *namespace.View) error {
	c, err := w.Target(u, s.Catalog(), catalog.DBOf(v.NS)+".system.views", true)
	if err != nil {
		return err
	}
	if s.Catalog().Lookup(c.NS) != nil {
		rid, old, ok, err := s.FindByID(c, value.NewString(v.NS))
		if err != nil {
			return err
		}
		if ok {
			return u.Update(c, rid.Clone(), append([]byte(nil), old...), v.Doc, storage.NoInfo)
		}
	}
	_, err = u.Insert(c, v.Doc, storage.NoInfo)
	return err
}

// DropView removes a view's document.
func (w *Command) DropView(u *storage.UnitOfWork, s *storage.Snapshot, ns string) error {
	c := s.Catalog().Lookup(catalog.DBOf(ns) + ".system.views")
	if c == nil {
		return nil
	}
	rid, old, ok, err := s.FindByID(c, value.NewString(ns))
	if err != nil || !ok {
		return err
	}
	return u.Delete(c, rid.Clone(), append([]byte(nil), old...), storage.NoInfo)
}
