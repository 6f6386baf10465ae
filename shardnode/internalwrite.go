package shardnode

import (
	"context"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// durable is the concern of the node's own state documents.
var durable = replicationConcern{W: -1, J: true}

// writeUnit runs f in a unit of work against a fresh snapshot and commits it, again where it conflicts.
func (n *Node) writeUnit(ctx context.Context, wc replicationConcern, f func(s *storage.Snapshot, u *storage.UnitOfWork) error) error {
	for {
		err := n.tryUnit(ctx, wc, f)
		if err == nil || !(storage.ErrConflict(err) || mongoerr.CodeOf(err) == mongoerr.NamespaceExists) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (n *Node) tryUnit(ctx context.Context, wc replicationConcern, f func(s *storage.Snapshot, u *storage.UnitOfWork) error) error {
	s := n.Engine.Snapshot()
	defer s.Release()
	u := n.Engine.NewUnitOfWork(s)
	defer u.Rollback()
	if err := f(s, u); err != nil {
		return err
	}
	_, err := n.Set.Commit(ctx, u, wc)
	return err
}

// stateStore is the node's store as state documents see it.
type stateStore struct{ n *Node }

func (s stateStore) Snapshot() *storage.Snapshot { return s.n.Engine.Snapshot() }

func (s stateStore) Write(ctx context.Context, f func(*storage.Snapshot, *storage.UnitOfWork) error) error {
	return s.n.writeUnit(ctx, durable, f)
}

// collectionFor finds a collection of the node's own, or makes it in the unit.
func collectionFor(s *storage.Snapshot, u *storage.UnitOfWork, ns string) (*catalog.Collection, error) {
	if c := s.Catalog().Lookup(ns); c != nil {
		return c, nil
	}
	return u.CreateCollection(storage.CollectionSpec{NS: ns, Unreplicated: unreplicated(ns)})
}

// putDoc inserts or replaces a document of the node's own by its _id.
func (n *Node) putDoc(ctx context.Context, ns string, doc []byte) error {
	return n.writeUnit(ctx, durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c, err := collectionFor(s, u, ns)
		if err != nil {
			return err
		}
		return putIn(s, u, c, doc)
	})
}

// writeTogetherSpec is how a config server changes several documents so that no reader sees a part of the change:
// {_writeTogether: ns, delete: [_id …], put: [document …], also: [{ns, delete, put} …]}.
func writeTogetherSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "_writeTogether", Roles: command.Config, AdminOnly: true, Internal: true, ArgTypes: command.TString, Kind: command.Write,
		Fields: []command.Field{command.Opt("delete", command.TArray), command.Opt("put", command.TArray), command.Opt("also", command.TArray)},
		Run:    n.runWriteTogether,
	}
}

func (n *Node) runWriteTogether(op *command.Op, dst []byte) ([]byte, error) {
	if err := n.mayWrite(op); err != nil {
		return dst, err
	}
	return dst, n.writeUnit(op, durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		if err := writeInto(s, u, op.Req.Cmd.Str(), op.Req.Body); err != nil {
			return err
		}
		for _, more := range value.Values(op.Arg("also").Doc()) {
			if err := writeInto(s, u, value.Lookup(more.Doc(), "ns").Str(), more.Doc()); err != nil {
				return err
			}
		}
		return nil
	})
}

// writeInto deletes and puts what a document names in one collection.
func writeInto(s *storage.Snapshot, u *storage.UnitOfWork, ns string, doc []byte) error {
	c, err := collectionFor(s, u, ns)
	if err != nil {
		return err
	}
	for _, id := range value.Values(value.Lookup(doc, "delete").Doc()) {
		rid, old, ok, err := s.FindByID(c, id)
		if err == nil && ok {
			err = u.Delete(c, rid.Clone(), append([]byte(nil), old...), storage.NoInfo)
		}
		if err != nil {
			return err
		}
	}
	for _, d := range value.Values(value.Lookup(doc, "put").Doc()) {
		if err := putIn(s, u, c, d.Doc()); err != nil {
			return err
		}
	}
	return nil
}

// putIn inserts or replaces a document by its _id.
func putIn(s *storage.Snapshot, u *storage.UnitOfWork, c *catalog.Collection, doc []byte) error {
	rid, old, ok, err := s.FindByID(c, value.Lookup(doc, "_id"))
	if err != nil {
		return err
	}
	if ok {
		return u.Update(c, rid.Clone(), append([]byte(nil), old...), doc, storage.NoInfo)
	}
	return insertUnseen(u, c, doc)
}

// insertUnseen inserts a document that the unit's snapshot does not have. Where it has come since, the unit begins anew.
func insertUnseen(u *storage.UnitOfWork, c *catalog.Collection, doc []byte) error {
	_, err := u.Insert(c, doc, storage.NoInfo)
	if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
		err = mongoerr.New(mongoerr.WriteConflict, "a document of "+c.NS+" was inserted meanwhile")
	}
	return err
}

// removeDoc deletes a document of the node's own; it is no error where there is none.
func (n *Node) removeDoc(ctx context.Context, ns string, id value.Value) error {
	return n.writeUnit(ctx, durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
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

// setFields sets fields of a document of the node's own; it is no error where there is none.
func (n *Node) setFields(ctx context.Context, ns string, id value.Value, fields ...value.Field) error {
	doc, err := n.getDoc(ns, id)
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
	return n.putDoc(ctx, ns, value.End(out, m))
}

// getDoc reads a document of the node's own; nil where there is none.
func (n *Node) getDoc(ns string, id value.Value) ([]byte, error) {
	s := n.Engine.Snapshot()
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

// eachDoc reads all documents of a collection of the node's own.
func (n *Node) eachDoc(ns string, f func(doc []byte) error) error {
	s := n.Engine.Snapshot()
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
