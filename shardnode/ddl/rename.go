package ddl

import (
	"encoding/hex"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func renameSpec(cs *Commands) command.Spec {
	return command.Spec{
		Name: "renameCollection", Roles: command.All, Kind: command.DDL, WriteConcern: true, AdminOnly: true, API: true, Run: cs.runRename,
		Fields: []command.Field{
			command.Opt("to", command.TString), command.Opt("dropTarget", command.TAny), command.Opt("stayTemp", command.TBool),
			command.Opt("collectionUUID", command.TAny),
		},
	}
}

// rename is a renameCollection command, checked.
type rename struct {
	from, to   string
	dropTarget bool
	targetUUID catalog.UUID // zero: any
	stayTemp   bool
}

func (cs *Commands) runRename(op *command.Op, dst []byte) ([]byte, error) {
	r, err := parseRename(op)
	if err != nil {
		return dst, err
	}
	op.Stats.NS, op.Stats.Type = r.from, "command"
	w, err := cs.begin(op)
	if err != nil {
		return dst, err
	}
	if err := w.checkUUIDs(r); err != nil {
		return dst, err
	}
	return dst, w.renameNamespace(r)
}

// checkUUIDs is checkUUID for the source and the target of a rename.
func (w *operation) checkUUIDs(r *rename) error {
	if err := w.checkUUID(r.from); err != nil || r.targetUUID.IsZero() {
		return err
	}
	if catalog.DBOf(r.from) != catalog.DBOf(r.to) {
		return command.BadOption("dropTarget cannot be a UUID when renaming between databases")
	}
	return namespace.CheckUUID(w.Catalog(), r.to, r.targetUUID)
}

// renameIfMatchSpec returns the row of the command that ends a secondary's $out.
func renameIfMatchSpec(cs *Commands) command.Spec {
	s := command.Internal(func(op *command.Op, req *msg.RenameIfMatch, dst []byte) ([]byte, error) {
		if err := command.CheckRename(req.From, req.To); err != nil {
			return dst, err
		}
		op.Stats.NS, op.Stats.Type = req.From, "command"
		w, err := cs.begin(op)
		if err != nil {
			return dst, err
		}
		namespace.ExpectTarget(op, namespace.TargetFrom(req.There, req.Options, req.Indexes))
		return dst, w.renameNamespace(&rename{from: req.From, to: req.To, dropTarget: true})
	})
	s.Roles, s.Kind, s.PrimaryOnly, s.WriteConcern = command.Shard|command.Config, command.DDL, true, true
	return s
}

func parseRename(op *command.Op) (*rename, error) {
	v := op.Req.Cmd
	switch {
	case v.IsNullish():
		return nil, command.MissingField("renameCollection.renameCollection")
	case v.T != value.String:
		return nil, command.WrongType("renameCollection.renameCollection", v.T, command.TString)
	case op.Arg("to").IsMissing():
		return nil, command.MissingField("renameCollection.to")
	}
	r := &rename{from: v.Str(), to: op.Req.Str("to"), stayTemp: op.Bool("stayTemp")}
	switch t := op.Arg("dropTarget"); t.T {
	case value.Missing:
	case value.Boolean:
		r.dropTarget = t.Bool()
	case value.Binary:
		id, ok := catalog.UUIDFrom(t)
		if !ok {
			return nil, mongoerr.New(mongoerr.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
		}
		r.dropTarget, r.targetUUID = true, id
	default:
		return nil, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'renameCollection.dropTarget' is the wrong type '%s', expected types '[bool, binData]'", t.T.Name())
	}
	return r, command.CheckRename(r.from, r.to)
}

func (w *operation) renameNamespace(r *rename) error {
	unlock, err := w.LockVersioned(r.from, r.from, r.to)
	if err != nil {
		return err
	}
	defer w.AfterCommit(unlock)
	if err := w.checkUUIDs(r); err != nil {
		return err
	}
	return w.Retry(func() error {
		s := w.Snapshot()
		defer s.Release()
		c, target, err := r.resolve(s)
		if err != nil {
			return err
		}
		if err := namespace.CheckTarget(w.Op, r.to, target); err != nil {
			return err
		}
		if catalog.DBOf(r.from) != catalog.DBOf(r.to) {
			return w.copyAcross(s, r, c, target)
		}
		u := w.Unit(s)
		defer u.Rollback()
		if target != nil {
			if err := w.ddl.node.NoteDropped(s, u, target); err != nil {
				return err
			}
		}
		if _, err := u.RenameCollection(c, r.to, target, r.stayTemp); err != nil {
			return err
		}
		w.AuditRename(u, r.from, r.to, target)
		for _, ns := range []string{r.from, r.to} {
			if err := stopSampling(u, s, ns); err != nil {
				return err
			}
		}
		if err := namespace.AddOutcome(w.Op, u, nil); err != nil {
			return err
		}
		return w.Commit(u, w.Concern)
	})
}

// resolve finds source and target of a rename, and returns an error if it is not possible.
func (r *rename) resolve(s *storage.Snapshot) (c, target *catalog.Collection, err error) {
	cat := s.Catalog()
	if c = cat.Lookup(r.from); c == nil {
		if v, err := namespace.ViewIn(s, r.from); err != nil {
			return nil, nil, err
		} else if v != nil {
			return nil, nil, mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "cannot rename view: %s", r.from)
		}
		return nil, nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "Source collection %s does not exist", r.from)
	}
	if err := namespace.CheckDBCase(cat, catalog.DBOf(r.to)); err != nil {
		return nil, nil, err
	}
	if r.from == r.to {
		return nil, nil, mongoerr.New(mongoerr.IllegalOperation, "Can't rename a collection to itself")
	}
	if v, err := namespace.ViewIn(s, r.to); err != nil {
		return nil, nil, err
	} else if v != nil && cat.Lookup(r.to) == nil {
		return nil, nil, mongoerr.Newf(mongoerr.NamespaceExists, "a view already exists with that name: %s", r.to)
	}
	target = cat.Lookup(r.to)
	if target != nil && !r.dropTarget {
		return nil, nil, mongoerr.New(mongoerr.NamespaceExists, "target namespace exists")
	}
	if err := storage.CheckNoBuild(c); err != nil {
		return nil, nil, err
	}
	if target != nil {
		err = storage.CheckNoBuild(target)
	}
	return c, target, err
}

// copyBatch is the number of documents that are copied in one unit of work.
const copyBatch = 1000

// copyAcross renames between databases: the documents are copied into a temporary collection, which then takes the
// target's name, and the source is dropped.
func (w *operation) copyAcross(s *storage.Snapshot, r *rename, c, target *catalog.Collection) error {
	id := cluster.NewObjectID()
	tmp := catalog.DBOf(r.to) + ".tmp" + hex.EncodeToString(id[9:]) + ".renameCollection"
	specs := make([][]byte, 0, len(c.Indexes))
	var idSpec []byte
	for _, i := range c.Indexes {
		if i.IsID {
			idSpec = i.Spec.Raw
		} else {
			specs = append(specs, i.Spec.Raw)
		}
	}
	opts := namespace.OptionsOf(c.Options)
	opts.Set("temp", value.NewBool(true))
	spec := storage.CollectionSpec{NS: tmp, Options: opts.Doc(), IDIndexSpec: idSpec, Unreplicated: catalog.Unreplicated(tmp)}
	copied, err := w.copyInto(s, c, spec, specs)
	if err != nil {
		return err
	}
	return w.putInPlace(copied, func(u *storage.UnitOfWork) error {
		if _, err := u.RenameCollection(copied, r.to, target, r.stayTemp); err != nil {
			return err
		}
		w.AuditRename(u, r.from, r.to, target)
		for _, ns := range []string{r.from, r.to} {
			if err := stopSampling(u, s, ns); err != nil {
				return err
			}
		}
		w.ddl.node.Forget(u, c)
		if err := namespace.AddOutcome(w.Op, u, nil); err != nil {
			return err
		}
		return u.DropCollection(c)
	})
}

// putInPlace commits what is to become of the temporary collection that a command has filled: it replaces another one, or stays; if that fails, it drops the copy.
func (w *operation) putInPlace(copied *catalog.Collection, stage func(*storage.UnitOfWork) error) error {
	u := w.Unit(nil)
	defer u.Rollback()
	err := stage(u)
	if err == nil {
		err = w.Commit(u, w.Concern)
	}
	if err != nil {
		u.Rollback()
		w.discardCopy(copied)
	}
	return err
}

// copyInto creates a collection and copies the documents of c in s into it.
func (w *operation) copyInto(s *storage.Snapshot, c *catalog.Collection, spec storage.CollectionSpec, indexes [][]byte) (*catalog.Collection, error) {
	u := w.Unit(nil)
	defer u.Rollback()
	made, err := u.CreateCollection(spec)
	if err != nil {
		return nil, err
	}
	w.AuditCreate(u, s.Catalog(), made)
	if len(indexes) > 0 {
		if _, err = u.CreateIndexes(made, indexes); err != nil {
			return nil, err
		}
	}
	if err := w.Commit(u, replication.Visible); err != nil {
		return nil, err
	}
	made = w.Catalog().Lookup(spec.NS)
	if made == nil {
		return nil, namespace.NotFound(spec.NS)
	}
	if err := w.copyDocs(s, c, made); err != nil {
		w.discardCopy(made)
		return nil, err
	}
	return w.Catalog().LookupUUID(made.UUID), nil
}

func (w *operation) copyDocs(s *storage.Snapshot, from, to *catalog.Collection) error {
	cur := s.Scan(from, storage.ScanOptions{})
	defer cur.Close()
	var batch [][]byte
	size := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		docs := batch
		batch, size = nil, 0
		return w.Retry(func() error { return w.insertBatch(to.UUID, docs) })
	}
	for cur.Next() {
		if err := w.Op.Check(); err != nil {
			return err
		}
		batch = append(batch, append([]byte(nil), cur.Doc()...))
		if size += len(cur.Doc()); len(batch) >= copyBatch || size > 4<<20 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := cur.Err(); err != nil {
		return err
	}
	return flush()
}

func (w *operation) insertBatch(id catalog.UUID, docs [][]byte) error {
	u := w.Unit(nil)
	defer u.Rollback()
	c := w.Catalog().LookupUUID(id)
	if c == nil {
		return mongoerr.New(mongoerr.NamespaceNotFound, "the collection being copied into was dropped")
	}
	if _, err := u.InsertMany(c, docs, storage.NoInfo); err != nil {
		return err
	}
	return w.Commit(u, replication.Visible)
}

// discardCopy drops a copy that was not finished.
func (w *operation) discardCopy(c *catalog.Collection) {
	w.Discard(w.Op, func(cat *catalog.Snapshot) *catalog.Collection { return cat.LookupUUID(c.UUID) })
}
