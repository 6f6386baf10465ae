package storage

import "github.com/shoaldb/shoal/storage/catalog"

// UnitOfWork is a set of writes that become visible together or not at all. One goroutine uses it at a time. It ends
// by replication.Set.Commit or by Rollback.
type UnitOfWork struct{}

// NewUnitOfWork starts a unit. s is the snapshot its reads were made from: a write to a record with a version newer than
// s is a WriteConflict. s may be nil for units that only insert or change the catalog. The unit does not release s.
func (e *Engine) NewUnitOfWork(s *Snapshot) *UnitOfWork { return nil }

// Snapshot is a view of s with the unit's own writes on top, for statements of multi-document transactions. Calling it
// once at the start makes the unit keep its writes readable. Released by the unit's end.
func (u *UnitOfWork) Snapshot() *Snapshot { return nil }

// SetSession puts lsid and txnNumber on the unit's oplog entries (retryable writes).
func (u *UnitOfWork) SetSession(lsid []byte, txnNumber int64) {}

// SetTransaction makes the unit's entries one applyOps command (several where they exceed 16 MB), with lsid and
// txnNumber.
func (u *UnitOfWork) SetTransaction(lsid []byte, txnNumber int64) {}

// SetFromMigrate marks the unit's entries fromMigrate: true, which change streams skip.
func (u *UnitOfWork) SetFromMigrate() {}

// Insert adds a document (complete, with its _id first). DuplicateKey leaves the unit as it was.
func (u *UnitOfWork) Insert(c *catalog.Collection, doc []byte, info OpInfo) (RecordID, error) {
	return nil, nyi("insert")
}

// InsertMany adds documents in order and stops at the first error: docs[:n] are in the unit. info.StmtID is that of the
// first document, counted on from there.
func (u *UnitOfWork) InsertMany(c *catalog.Collection, docs [][]byte, info OpInfo) (n int, err error) {
	return 0, nyi("insert")
}

// Update replaces a record. oldDoc is what the unit's snapshot holds.
func (u *UnitOfWork) Update(c *catalog.Collection, rid RecordID, oldDoc, newDoc []byte, info OpInfo) error {
	return nyi("update")
}

// Delete removes a record. oldDoc is what the unit's snapshot holds.
func (u *UnitOfWork) Delete(c *catalog.Collection, rid RecordID, oldDoc []byte, info OpInfo) error {
	return nyi("delete")
}

// Oplog adds an entry of its own.
func (u *UnitOfWork) Oplog(entry OplogEntry) {}

// CreateCollection stages a new collection. NamespaceExists (48) is reported at the commit when another unit was
// faster. The returned collection may be used for writes in the same unit.
func (u *UnitOfWork) CreateCollection(spec CollectionSpec) (*catalog.Collection, error) {
	return nil, nyi("create")
}

// DropCollection stages the drop; the data goes once no reader can need it.
func (u *UnitOfWork) DropCollection(c *catalog.Collection) error { return nyi("drop") }

// RenameCollection stages a rename. dropTarget, where not nil, is the collection that gives way.
func (u *UnitOfWork) RenameCollection(c *catalog.Collection, to string, dropTarget *catalog.Collection) error {
	return nyi("rename")
}

// SetCollectionOptions replaces the options (collMod). o is the oplog entry's command document.
func (u *UnitOfWork) SetCollectionOptions(c *catalog.Collection, options []byte, o []byte) error {
	return nyi("collMod")
}

// SetIndexSpec replaces an index's spec (collMod of hidden, expireAfterSeconds, unique, prepareUnique). o is the oplog
// entry's command document.
func (u *UnitOfWork) SetIndexSpec(c *catalog.Collection, name string, spec []byte, o []byte) error {
	return nyi("collMod")
}

// CreateIndexes stages ready indexes on a collection that is empty at commit (WriteConflict otherwise). Indexes on
// collections with documents are built with StartIndexBuild. Specs are complete: v, key, name, options.
func (u *UnitOfWork) CreateIndexes(c *catalog.Collection, specs [][]byte) error {
	return nyi("createIndexes")
}

// DropIndexes stages the drop of indexes by name.
func (u *UnitOfWork) DropIndexes(c *catalog.Collection, names []string) error {
	return nyi("dropIndexes")
}

// OnCommit runs f when the unit is visible, in commit order, before Commit returns. f must be quick.
func (u *UnitOfWork) OnCommit(f func(ts Timestamp)) {}

// OnRollback runs f when the unit is rolled back or its commit fails.
func (u *UnitOfWork) OnRollback(f func()) {}

// Rollback gives the unit up. After a commit it does nothing, so it can be deferred.
func (u *UnitOfWork) Rollback() {}
