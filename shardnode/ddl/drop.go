package ddl

import (
	"errors"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func dropSpec(cs *Commands) command.Spec {
	return command.Spec{
		Name: "drop", Roles: command.All, Kind: command.DDL, Namespace: true, WriteConcern: true, API: true, Run: cs.runDrop,
		Fields: []command.Field{command.Opt("collectionUUID", command.TAny)},
	}
}

func (cs *Commands) runDrop(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	w, err := cs.begin(op)
	if err != nil {
		return dst, err
	}
	if err := w.checkUUID(ns); err != nil {
		return dst, err
	}
	if forget, end := cs.writes.ForgetSessions(op, ns); forget != nil {
		w.forget = forget
		defer end()
	}
	d, err := w.dropNamespace(ns)
	if err != nil {
		return dst, err
	}
	return d.reply(dst, ns), nil
}

// reply appends the fields of a drop's reply.
func (d dropped) reply(dst []byte, ns string) []byte {
	if d.collection {
		dst = value.Append(dst, "nIndexesWas", value.NewInt32(int32(d.indexes)))
	}
	if d.there {
		dst = value.Append(dst, "ns", value.NewString(ns))
	}
	return dst
}

// dropped describes what a drop removed.
type dropped struct {
	there      bool
	collection bool // not a plain view
	indexes    int
}

// dropNamespace drops a collection, view or time series collection. It is not an error if there is none.
func (w *operation) dropNamespace(ns string) (d dropped, err error) {
	unlock, err := w.LockVersioned(ns, ns)
	if err != nil {
		return d, err
	}
	defer w.AfterCommit(unlock)
	if err := w.checkUUID(ns); err != nil {
		return d, err
	}
	if w.fenced != nil {
		if err := w.fenced(ns); err != nil {
			return d, err
		}
	}
	err = w.Retry(func() error {
		s := w.ddl.Engine.Snapshot()
		defer s.Release()
		u := w.Unit(s)
		defer u.Rollback()
		if d, err = w.stageDrop(u, s, ns); err != nil {
			return err
		}
		if !d.there {
			if w.fenced == nil { // a shard that has nothing of a collection is no event of its drop
				w.Op.Audit("dropCollection", mongoerr.NamespaceNotFound, value.F("ns", value.NewString(ns)))
			}
			w.Finish()
			return nil
		}
		if err := namespace.AddOutcome(w.Op, u, d.reply(nil, ns)); err != nil {
			return err
		}
		return w.Commit(u, w.Concern)
	})
	return d, err
}

func (w *operation) stageDrop(u *storage.UnitOfWork, s *storage.Snapshot, ns string) (d dropped, err error) {
	if c := s.Catalog().Lookup(ns); c != nil {
		d = dropped{there: true, collection: true, indexes: countIndexes(c)}
		if w.forget != nil {
			if err := w.forget(u); err != nil {
				return d, err
			}
		}
		w.ddl.node.Forget(u, c)
		w.AuditDrop(u, ns)
		if err := stopSampling(u, s, ns); err != nil {
			return d, err
		}
		return d, w.dropForGood(u, s, c)
	}
	v, err := namespace.ViewIn(s, ns)
	if err != nil || v == nil {
		return d, err
	}
	d.there = true
	if b := namespace.Buckets(s.Catalog(), ns); b != nil && v.IsTimeseries() {
		d.collection, d.indexes = true, countIndexes(b)
		w.ddl.node.Forget(u, b)
		if err := w.dropForGood(u, s, b); err != nil {
			return d, err
		}
		w.AuditDrop(u, b.NS)
	}
	w.AuditView(u, "dropCollection", v)
	return d, w.DropView(u, s, ns)
}

// dropForGood stages a drop and records it (NoteDropped), unless the shard only removes its copy of a collection that other shards keep.
func (w *operation) dropForGood(u *storage.UnitOfWork, s *storage.Snapshot, c *catalog.Collection) error {
	if !w.FromMigrate || w.forGood {
		if err := w.ddl.node.NoteDropped(s, u, c); err != nil {
			return err
		}
	}
	return u.DropCollection(c)
}

// countIndexes returns the number of indexes that commands report.
func countIndexes(c *catalog.Collection) int { return len(c.Indexes) }

func dropDatabaseSpec(cs *Commands) command.Spec {
	return command.Spec{
		Name: "dropDatabase", Roles: command.All, Kind: command.DDL, WriteConcern: true, API: true, Run: cs.runDropDatabase,
	}
}

func (cs *Commands) runDropDatabase(op *command.Op, dst []byte) ([]byte, error) {
	switch v := op.Req.Cmd; {
	case v.IsNullish():
		return dst, command.MissingField("dropDatabase.dropDatabase")
	case !v.T.Numeric():
		return dst, command.WrongType("dropDatabase.dropDatabase", v.T, command.TNumber)
	case value.SafeInt64(v) != 1:
		return dst, mongoerr.New(5255100, "Have to pass 1 as db parameter")
	}
	db := op.DB()
	op.Stats.NS, op.Stats.Type = db, "command"
	if db == "admin" || db == "local" || db == "config" {
		return dst, mongoerr.Newf(mongoerr.IllegalOperation, "Dropping the '%s' database is prohibited.", db)
	}
	w, err := cs.begin(op)
	if err != nil {
		return dst, err
	}
	if err := cs.node.CheckVersion(op, db); err != nil {
		return dst, err
	}
	return dst, w.dropDatabase(db, false)
}

// dropDatabase drops every collection of a database in one unit of work. known means that the database exists even if it has none.
func (w *operation) dropDatabase(db string, known bool) error {
	unlock, err := w.LockDatabase(db)
	if err != nil {
		return err
	}
	defer w.AfterCommit(unlock)
	if w.fenced != nil {
		if err := w.fenced(db); err != nil {
			return err
		}
	}
	return w.Retry(func() error {
		s := w.ddl.Engine.Snapshot()
		defer s.Release()
		list := s.Catalog().Collections(db)
		if len(list) == 0 && !known {
			w.Finish()
			return nil
		}
		u := w.Unit(s)
		defer u.Rollback()
		if err := w.ddl.node.NoteDropped(s, u, list...); err != nil {
			return err
		}
		for _, c := range list {
			w.ddl.node.Forget(u, c)
			if err := errors.Join(stopSampling(u, s, c.NS), u.DropCollection(c)); err != nil {
				return err
			}
			w.AuditDrop(u, c.NS)
		}
		w.Audit(u, "dropDatabase", value.F("ns", value.NewString(db)))
		u.Oplog(storage.OplogEntry{Op: 'c', NS: db + ".$cmd", StmtID: -1, O: value.Doc(value.F("dropDatabase", value.NewInt32(1)))})
		return w.Commit(u, w.Concern)
	})
}
