package write

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Audit records a change of the catalog that u stages, once it is committed; in a transaction it does so at once, whatever
// the outcome of the transaction (manual: Auditing).
func (w *Command) Audit(u *storage.UnitOfWork, atype string, param ...value.Field) {
	if !w.Op.Audits() {
		return
	}
	if w.Transaction() != nil {
		w.Op.Audit(atype, mongoerr.OK, param...)
		return
	}
	audit, doc := w.Op.Auditor(), value.Doc(param...) // the operation, and its message, may end before the commit
	u.OnCommit(func(storage.Timestamp) { audit(atype, mongoerr.OK, doc) })
}

func auditNS(ns string) value.Field { return value.F("ns", value.NewString(ns)) }

// AuditCreate records a new collection with its indexes, and its database if it is new, too. before is the catalog without it.
func (w *Command) AuditCreate(u *storage.UnitOfWork, before *catalog.Snapshot, c *catalog.Collection) {
	if !w.Op.Audits() {
		return
	}
	if db := c.DB(); !before.HasDatabase(db) {
		w.Audit(u, "createDatabase", auditNS(db))
	}
	w.Audit(u, "createCollection", auditNS(c.NS))
	for _, i := range c.Indexes {
		w.Audit(u, "createIndex", auditIndex(c.NS, i.Spec.Raw, "IndexBuildSucceeded")...)
	}
}

func auditIndex(ns string, spec []byte, state string) []value.Field {
	return []value.Field{auditNS(ns), value.F("indexName", value.Lookup(spec, "name")), value.F("indexSpec", value.NewDocument(spec)), value.F("indexBuildState", value.NewString(state))}
}

// AuditIndexes records new indexes of an empty collection, which need no build.
func (w *Command) AuditIndexes(u *storage.UnitOfWork, ns string, specs [][]byte) {
	for _, s := range specs {
		w.Audit(u, "createIndex", auditIndex(ns, s, "IndexBuildStarted")...)
		w.Audit(u, "createIndex", auditIndex(ns, s, "IndexBuildSucceeded")...)
	}
}

// AuditBuild records the start of an index build, and returns a function that records its end.
func (w *Command) AuditBuild(ns string, specs [][]byte) (ended func(err error)) {
	audit := w.Op.Auditor()
	each := func(state string, result mongoerr.Code) {
		for _, s := range specs {
			audit("createIndex", result, value.Doc(auditIndex(ns, s, state)...))
		}
	}
	each("IndexBuildStarted", mongoerr.OK)
	return func(err error) {
		if err != nil {
			each("IndexBuildAborted", mongoerr.IndexBuildAborted)
			return
		}
		each("IndexBuildSucceeded", mongoerr.OK)
	}
}

// AuditDrop records that a collection is dropped.
func (w *Command) AuditDrop(u *storage.UnitOfWork, ns string) {
	w.Audit(u, "dropCollection", auditNS(ns))
}

// AuditView records that a view is created or dropped.
func (w *Command) AuditView(u *storage.UnitOfWork, atype string, v *namespace.View) {
	w.Audit(u, atype, auditNS(v.NS), value.F("viewOn", value.NewString(catalog.DBOf(v.NS)+"."+v.On)), value.F("pipeline", v.Pipeline))
}

// AuditRename records a rename; target is the collection that it replaces, nil for none.
func (w *Command) AuditRename(u *storage.UnitOfWork, from, to string, target *catalog.Collection) {
	if target != nil {
		w.AuditDrop(u, to)
	}
	w.Audit(u, "renameCollection", value.F("old", value.NewString(from)), value.F("new", value.NewString(to)))
}
