package ddl

import (
	"encoding/hex"
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The two commands in this file accept any field, as the real ones do: unknown fields are ignored.

func convertToCappedSpec(cs *Commands) command.Spec {
	return command.Spec{
		Name: "convertToCapped", Roles: command.All, Kind: command.DDL, Namespace: true, WriteConcern: true, Lenient: true, Run: cs.runConvertToCapped,
		Fields: []command.Field{command.Opt("size", command.TAny), command.Opt("collectionUUID", command.TAny)},
	}
}

func cloneAsCappedSpec(cs *Commands) command.Spec {
	return command.Spec{
		Name: "cloneCollectionAsCapped", Roles: command.Shard | command.Config, Kind: command.DDL, ArgTypes: command.TAny, WriteConcern: true,
		Lenient: true, Run: cs.runCloneAsCapped,
		Fields: []command.Field{command.Opt("size", command.TAny), command.Opt("toCollection", command.TAny)},
	}
}

// cappedSize reads the size argument of both commands.
func cappedSize(op *command.Op) (int64, error) {
	return cappedSizeOf(op.Req.Spec.Name, op.Arg("size"))
}

func cappedSizeOf(cmd string, v value.Value) (int64, error) {
	size := int64(0)
	if v.T.Numeric() {
		size = value.SafeInt64(v)
	}
	if size <= 0 {
		return 0, command.BadOption("Capped collection size must be greater than zero")
	}
	return command.InRange("size", v, 1, maxCappedSize)
}

func (cs *Commands) runConvertToCapped(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	size, err := cappedSize(op)
	if err != nil {
		return dst, err
	}
	if coll == "system.views" {
		return dst, mongoerr.Newf(mongoerr.BadValue, "Cannot convert %s to a capped collection", ns)
	}
	w, unlock, err := cs.beginOn(op, ns)
	if err != nil {
		return dst, err
	}
	defer w.AfterCommit(unlock)
	if err := w.mayConvert(ns); err != nil {
		return dst, err
	}
	return dst, w.convertToCapped(ns, size, catalog.UUID{})
}

// convertParticipantSpec returns the row of the command with which a coordinator makes a collection capped on each shard that has it.
func convertParticipantSpec(cs *Commands) command.Spec {
	s := command.Internal(func(op *command.Op, req *msg.ConvertToCappedParticipant, dst []byte) ([]byte, error) {
		size, err := cappedSizeOf("convertToCapped", req.Size)
		if err != nil {
			return dst, err
		}
		w, err := participantWrites(cs, op, req.FromMigrate)
		if err == nil {
			w.fenced = cs.fence(op, &req.Section)
			err = w.convertPart(req, size)
		}
		return dst, err
	})
	s.Roles, s.Kind = command.Shard|command.Config, command.DDL
	return s
}

// convertPart does what the request asks for with the collection that it names, unless that is done, or this shard has nothing of it.
//
// A copy that has been filled is no longer temporary, which is written behind its last document: one that is had its filling interrupted. Under the lock of the name, nothing can be filling it.
func (w *operation) convertPart(req *msg.ConvertToCappedParticipant, size int64) error {
	unlock, err := w.LockVersioned(req.NS, req.NS)
	if err != nil {
		return err
	}
	defer w.AfterCommit(unlock)
	to := catalog.UUID(req.NewUUID)
	if req.Discard {
		return w.dropCopy(req.NS, to)
	}
	if err := w.fenced(req.NS); err != nil {
		return err
	}
	if c := w.Catalog().Lookup(req.NS); c == nil || c.UUID != catalog.UUID(req.UUID) {
		w.Finish()
		return nil
	}
	filled := w.Catalog().LookupUUID(to)
	if filled != nil && filled.Temp {
		w.discardCopy(filled)
		filled = nil
	}
	switch {
	case filled != nil && req.Copy:
		w.Finish()
		return nil
	case req.Copy:
		return w.Retry(func() error { return w.keptCopy(req.NS, size, to) })
	case filled != nil:
		if changed, err := w.changedSince(req, to); err != nil {
			return err
		} else if !changed {
			return w.Retry(func() error { return w.replaceByCopy(req.NS, to) })
		}
		w.discardCopy(filled)
	}
	return w.convertToCapped(req.NS, size, to)
}

// changedSince reports whether documents of a collection have been written since its copy was filled, under another lock of the name. The critical section excludes routers, and not a client that is connected to this
// shard and sends no version.
//
// The oplog is read backwards to the last entry about the copy, but no further than copying anew would take, or a fraction of a second: a second copy needs room on the disk while the collection is blocked.
func (w *operation) changedSince(req *msg.ConvertToCappedParticipant, copied catalog.UUID) (bool, error) {
	s := w.Snapshot()
	defer s.Release()
	c, oplog := s.Catalog().Lookup(req.NS), s.Catalog().Lookup(storage.OplogNS)
	if c == nil || oplog == nil {
		return true, nil
	}
	cur := s.Scan(oplog, storage.ScanOptions{Reverse: true})
	defer cur.Close()
	for left := c.Counters.Records.Load() + 100*copyBatch; left > 0 && cur.Next(); left-- {
		switch {
		case concerns(cur.Doc(), c.UUID):
			return true, nil
		case concerns(cur.Doc(), copied):
			return false, nil
		}
	}
	return true, cur.Err()
}

// concerns reports whether an entry of the oplog, or an operation in it, is about a collection.
func concerns(entry []byte, coll catalog.UUID) bool {
	if id, ok := catalog.UUIDFrom(value.Lookup(entry, "ui")); ok {
		return id == coll
	}
	for _, v := range value.Values(value.Lookup(value.LookupDoc(entry, "o"), "applyOps").Doc()) {
		if v.T == value.Document && concerns(v.Doc(), coll) {
			return true
		}
	}
	return false
}

// keptCopy fills a capped copy of a collection, and makes it permanent.
func (w *operation) keptCopy(ns string, size int64, uuid catalog.UUID) error {
	s := w.Snapshot()
	defer s.Release()
	_, copied, err := w.cappedCopyOf(s, ns, size, uuid)
	if err != nil {
		return err
	}
	return w.putInPlace(copied, func(u *storage.UnitOfWork) error {
		_, err := u.MakePermanent(copied)
		return err
	})
}

// replaceByCopy puts a filled copy in place of a collection.
func (w *operation) replaceByCopy(ns string, uuid catalog.UUID) error {
	c, copied := w.Catalog().Lookup(ns), w.Catalog().LookupUUID(uuid)
	if c == nil || copied == nil {
		return namespace.NotFound(ns)
	}
	u := w.Unit(nil)
	defer u.Rollback()
	if err := w.stageReplacing(u, c, copied); err != nil {
		return err
	}
	return w.Commit(u, w.Concern)
}

// stageReplacing puts a copy in place of a collection.
func (w *operation) stageReplacing(u *storage.UnitOfWork, c, copied *catalog.Collection) error {
	w.ddl.node.Forget(u, c)
	w.AuditRename(u, copied.NS, c.NS, c)
	if _, err := u.RenameCollection(copied, c.NS, c, false); err != nil {
		return err
	}
	return namespace.AddOutcome(w.Op, u, nil)
}

// dropCopy drops a copy that has not been put in place.
func (w *operation) dropCopy(ns string, uuid catalog.UUID) error {
	return w.Retry(func() error {
		copied := w.Catalog().LookupUUID(uuid)
		if copied == nil || copied.NS == ns {
			w.Finish()
			return nil
		}
		u := w.Unit(nil)
		defer u.Rollback()
		if err := u.DropCollection(copied); err != nil {
			return err
		}
		return w.Commit(u, w.Concern)
	})
}

// mayConvert returns the error that a convertToCapped would return.
func (w *operation) mayConvert(ns string) error {
	if _, err := cappedSize(w.Op); err != nil {
		return err
	}
	s := w.Snapshot()
	defer s.Release()
	c, err := cappedSource(s, ns)
	if err != nil {
		return err
	}
	if _, err := convertedName(ns); err != nil {
		return err
	}
	if err := storage.CheckNoBuild(c); err != nil {
		return err
	}
	return w.ddl.Engine.CheckRoom() // for the copy, before the collection is blocked for it
}

// convertedName returns a name for the copy that is to replace a collection.
func convertedName(ns string) (string, error) {
	id := cluster.NewObjectID()
	tmp := catalog.DBOf(ns) + ".tmp" + hex.EncodeToString(id[9:])[1:] + ".convertToCapped." + catalog.CollOf(ns)
	if len(tmp) > command.MaxNamespace {
		return "", mongoerr.Newf(mongoerr.InvalidNamespace, "Fully qualified namespace is too long. Namespace: %s Max: %d", tmp, command.MaxNamespace)
	}
	return tmp, nil
}

// convertToCapped copies the collection into a temporary capped one, which then replaces it; uuid is the copy's, zero for any.
func (w *operation) convertToCapped(ns string, size int64, uuid catalog.UUID) error {
	return w.Retry(func() error {
		s := w.Snapshot()
		defer s.Release()
		c, copied, err := w.cappedCopyOf(s, ns, size, uuid)
		if err != nil {
			return err
		}
		return w.putInPlace(copied, func(u *storage.UnitOfWork) error { return w.stageReplacing(u, c, copied) })
	})
}

// cappedCopyOf copies a collection into a temporary capped one; uuid is the copy's, zero for any.
func (w *operation) cappedCopyOf(s *storage.Snapshot, ns string, size int64, uuid catalog.UUID) (c, copied *catalog.Collection, err error) {
	if c, err = cappedSource(s, ns); err != nil {
		return nil, nil, err
	}
	tmp, err := convertedName(ns)
	if err != nil {
		return nil, nil, err
	}
	spec := cappedCopy(c, tmp, size)
	spec.UUID = uuid
	spec.Unreplicated, spec.NoIDIndex = !c.Replicated, c.IDIndex() == nil && !c.Clustered // it will have the name
	o := namespace.OptionsOf(spec.Options)
	o.Set("temp", value.NewBool(true))
	spec.Options = o.Doc()
	copied, err = w.copyInto(s, c, spec, nil)
	return c, copied, err
}

// cappedSource finds the collection that is to be capped.
func cappedSource(s *storage.Snapshot, ns string) (*catalog.Collection, error) {
	if namespace.IsBuckets(ns) {
		return nil, mongoerr.Newf(mongoerr.IllegalOperation, "Cannot convert a time-series bucket collection to capped: %s", ns)
	}
	c := s.Catalog().Lookup(ns)
	if c != nil {
		return c, nil
	}
	if v, err := namespace.ViewIn(s, ns); err != nil {
		return nil, err
	} else if v != nil {
		return nil, mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "cloneCollectionAsCapped not supported for views: %s", ns)
	}
	return nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "source collection %s does not exist", ns)
}

// cappedCopy describes a capped collection like c: its options, without its secondary indexes.
func cappedCopy(c *catalog.Collection, ns string, size int64) storage.CollectionSpec {
	o := namespace.OptionsOf(c.Options)
	for _, name := range []string{"clusteredIndex", "expireAfterSeconds", "max"} {
		delete(o, name)
	}
	o.Set("capped", value.NewBool(true))
	o.Set("size", value.NewInt(size))
	return storage.CollectionSpec{NS: ns, Options: o.Doc(), Unreplicated: catalog.Unreplicated(ns), NoIDIndex: catalog.CollOf(ns) == catalog.Profile}
}

func (cs *Commands) runCloneAsCapped(op *command.Op, dst []byte) ([]byte, error) {
	if op.Req.Cmd.T != value.String {
		return dst, command.WrongType("cloneCollectionAsCapped.cloneCollectionAsCapped", op.Req.Cmd.T, command.TString)
	}
	from, to := op.Req.Cmd.Str(), op.Arg("toCollection")
	if to.T != value.String {
		return dst, mongoerr.Newf(mongoerr.TypeMismatch, "cloneCollectionAsCapped: 'toCollection' must be a string, not %s", to.T.Name())
	}
	for _, name := range []string{from, to.Str()} {
		if err := command.CheckCollName(op.DB(), name); err != nil {
			return dst, err
		}
		if strings.Contains(name, "$") {
			return dst, mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid collection name: %s", name)
		}
	}
	size, err := cappedSize(op)
	if err != nil {
		return dst, err
	}
	src, target := op.Req.NS(from), op.Req.NS(to.Str())
	op.Stats.NS, op.Stats.Type = src, "command"
	w, err := cs.begin(op)
	if err != nil {
		return dst, err
	}
	unlock, err := w.LockVersioned(src, src, target)
	if err != nil {
		return dst, err
	}
	defer w.AfterCommit(unlock)
	return dst, w.Retry(func() error { return w.cloneAsCapped(src, target, size) })
}

func (w *operation) cloneAsCapped(src, target string, size int64) error {
	s := w.Snapshot()
	defer s.Release()
	c, err := cappedSource(s, src)
	if err != nil {
		return err
	}
	if err := namespace.RefuseBuckets(target); err != nil {
		return err
	}
	if err := namespace.CheckCreate(target); err != nil {
		return err
	}
	if s.Catalog().Lookup(target) != nil {
		return mongoerr.Newf(mongoerr.NamespaceExists, "cloneCollectionAsCapped failed - destination collection %s already exists", target)
	}
	if v, err := namespace.ViewIn(s, target); err != nil {
		return err
	} else if v != nil {
		return namespace.NotOnView(target)
	}
	if _, err := w.copyInto(s, c, cappedCopy(c, target, size), nil); err != nil {
		return err
	}
	w.Finish()
	return nil
}
