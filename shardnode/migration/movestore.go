package migration

import (
	"bytes"
	"cmp"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The new primary shard of a database stores what the old one sends it, in numbered parts. Its progress is in a document, which is written
// in the same unit of work as the part. Invariant: a part that is sent again, or arrives late, is stored once and in order.
//
// Hazard: a delayed part of the clone that was stored after later changes would restore deleted documents, or revert updates. Neither the
// critical section nor the run's id distinguishes it from one that is on time. Rejected: comparing versions of documents, of which a
// collection keeps none.

// movedNS has the progress of databases that move to this shard.
const movedNS = "config.movePrimaryRecipients"

// movedDoc is the progress of one of them.
type movedDoc struct {
	db      string
	run     catalog.UUID
	attempt uint64
	part    int64
	upTo    uint64
}

func movedDocs(store statedoc.Store) statedoc.Collection[*movedDoc] {
	return statedoc.In(store, movedNS, readMovedDoc)
}

// ID implements statedoc.Doc.
func (d *movedDoc) ID() value.Value { return value.NewString(d.db) }

// Doc implements statedoc.Doc.
func (d *movedDoc) Doc() []byte {
	return value.Doc(value.F("_id", d.ID()), value.F("migrationId", d.run.Value()), value.F("cloneTimestamp", value.NewTimestampU64(d.attempt)),
		value.F("part", value.NewInt64(d.part)), value.F("appliedUpTo", value.NewTimestampU64(d.upTo)))
}

func readMovedDoc(doc []byte) (*movedDoc, error) {
	run, ok := catalog.UUIDFrom(value.Lookup(doc, "migrationId"))
	d := &movedDoc{
		db: value.Lookup(doc, "_id").Str(), run: run, attempt: value.Lookup(doc, "cloneTimestamp").TimestampU64(),
		part: value.SafeInt64(value.Lookup(doc, "part")), upTo: value.Lookup(doc, "appliedUpTo").TimestampU64(),
	}
	if !ok || d.db == "" {
		return nil, mongoerr.New(mongoerr.BadValue, "it has no database or no operation")
	}
	return d, nil
}

// runMovePrimaryStore stores a part of a database, and reports how far this shard has come.
func (m *Manager) runMovePrimaryStore(op *command.Op, req *msg.MovePrimaryStore, dst []byte) ([]byte, error) {
	l := m.Locks.NewLocker()
	defer l.UnlockAll()
	mode := lock.IX
	if req.Create || req.Drop {
		mode = lock.X
	}
	name := req.NS
	if name == "" {
		name = req.DB + ".$cmd" // for the database: no collection has this name
	}
	if err := l.LockCollections(op, mode, name); err != nil {
		return dst, err
	}
	if err := m.state.HoldsSection(op, req.DB, req.Section); err != nil {
		return dst, err
	}
	concern := replication.Visible
	if req.Durable {
		concern = replication.Durable
	}
	var reply msg.MovePrimaryStoreReply
	err := m.Docs.WriteWith(op, concern, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		d, err := m.storePart(s, u, req)
		if err == nil {
			reply = msg.MovePrimaryStoreReply{Part: d.part, UpTo: d.upTo}
		}
		return err
	})
	if err != nil {
		return dst, err
	}
	return msg.AppendFields(dst, &reply), nil
}

// storePart stores a part if it is its turn. The progress comes first: what follows may be documents of a clone, to whose versions the oplog refers, and
// these are a unit's last.
func (m *Manager) storePart(s *storage.Snapshot, u *storage.UnitOfWork, req *msg.MovePrimaryStore) (*movedDoc, error) {
	docs := movedDocs(m.Docs)
	d, ok, err := docs.GetIn(s, value.NewString(req.DB))
	if err != nil {
		return nil, err
	}
	ours := ok && d.run == req.Section
	u.SetFromMigrate()
	first := req.Part == 0 && (!ours || d.attempt < req.Attempt)
	switch {
	case ours && d.attempt == req.Attempt && req.Part <= d.part:
		return d, nil // it has been stored
	case first:
		d = &movedDoc{db: req.DB, run: req.Section, attempt: req.Attempt}
	case !ours || d.attempt != req.Attempt || req.Part != d.part+1:
		return nil, mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "part %d of the move of database %s is not the next one", req.Part, req.DB)
	}
	d.part, d.upTo = req.Part, req.UpTo
	if err := docs.PutIn(s, u, d); err != nil || first {
		return d, err
	}
	return d, m.storeIn(s, u, req)
}

// storeIn changes the collection that a part is about.
func (m *Manager) storeIn(s *storage.Snapshot, u *storage.UnitOfWork, req *msg.MovePrimaryStore) error {
	c := s.Catalog().Lookup(req.NS)
	switch {
	case req.NS == "":
		return nil
	case req.Drop:
		if c == nil {
			return nil
		}
		m.node.Forget(u, c)
		return u.DropCollection(c)
	case req.Create:
		options := bytes.Clone(req.Options)
		if options == nil {
			options = value.Doc()
		}
		c, err := u.CreateCollection(storage.CollectionSpec{NS: req.NS, UUID: req.UUID, Options: options})
		if err != nil || len(req.Indexes) == 0 {
			return err
		}
		specs := make([][]byte, len(req.Indexes))
		for i, spec := range req.Indexes {
			specs[i] = bytes.Clone(spec)
		}
		_, err = u.CreateIndexes(c, specs)
		return err
	case c == nil || c.UUID != req.UUID:
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s was dropped while its database was moved", req.NS)
	}
	stored := value.Documents(req.Stored)
	if req.Fresh {
		u.ReferToVersions()
		_, err := u.InsertMany(c, stored, storage.NoInfo)
		return err
	}
	w := &partWriter{s: s, u: u, c: c, done: make(map[string]bool)}
	if err := w.trim(req.Oldest); err != nil {
		return err
	}
	for _, d := range value.Values(req.Deleted) {
		if err := w.remove(value.Lookup(d.Doc(), "_id")); err != nil {
			return err
		}
	}
	for _, d := range stored {
		if err := w.put(d); err != nil {
			return err
		}
	}
	return nil
}

// partWriter applies changes to documents in one unit of work.
type partWriter struct {
	s *storage.Snapshot
	u *storage.UnitOfWork
	c *catalog.Collection
	// done has the records of the snapshot that the unit has written to: true if it has removed them.
	done map[string]bool
	// within is the range that the documents belong to; nil for the whole collection. No other document is touched.
	within *KeyRange
	added  int64  // documents inserted, less those removed
	stray  []byte // the document outside of the range that has the _id of one inside: the error is identityTaken
}

// identityTaken is the code of the error that a document outside of the range has the _id of one that is to be stored.
const identityTaken = 16976

// ours reports whether a document may be changed.
func (w *partWriter) ours(doc []byte) bool { return w.within == nil || w.within.Contains(doc) }

// find looks up a document of the snapshot, unless the unit has removed it.
func (w *partWriter) find(id value.Value) (rid storage.RecordID, doc []byte, ok bool, err error) {
	rid, doc, ok, err = w.s.FindByID(w.c, id)
	if err != nil || !ok || w.done[string(rid)] {
		return nil, nil, false, err
	}
	return rid.Clone(), bytes.Clone(doc), true, nil
}

func (w *partWriter) remove(id value.Value) error {
	rid, doc, ok, err := w.find(id)
	if err != nil || !ok || !w.ours(doc) {
		return err
	}
	w.done[string(rid)] = true
	w.added--
	return w.u.Delete(w.c, rid, doc, storage.NoInfo)
}

// put inserts or replaces a document.
func (w *partWriter) put(doc []byte) error {
	rid, old, ok, err := w.find(value.Lookup(doc, "_id"))
	if err != nil {
		return err
	}
	switch {
	case !ok:
		w.added++
	case !w.ours(old):
		w.stray = old
		return mongoerr.Newf(identityTaken, "cannot migrate document %s: one with this _id is on this shard, outside of the range", value.Show(value.Lookup(doc, "_id")))
	case !bytes.Equal(value.Doc(value.F("_id", value.Lookup(old, "_id"))), value.Doc(value.F("_id", value.Lookup(doc, "_id")))):
		// As 1 and 1.0: an update keeps the key of _id, and reads that the index covers would return the old one.
		if err := w.u.Delete(w.c, rid, old, storage.NoInfo); err != nil {
			return err
		}
		w.done[string(rid)], ok = true, false
	default:
		w.done[string(rid)] = false
	}
	for {
		if ok {
			err = w.u.Update(w.c, rid, old, doc, storage.NoInfo)
		} else {
			_, err = w.u.Insert(w.c, doc, storage.NoInfo)
		}
		if mongoerr.CodeOf(err) != mongoerr.DuplicateKey {
			return err
		}
		if gave, gerr := w.removeConflicting(doc); gerr != nil || !gave {
			return cmp.Or(gerr, err)
		}
	}
}

// removeConflicting removes the documents that hold a unique index key of a newer document. On the shard that they come from they no longer
// have that key, or are gone: their own change comes in this part or a later one, since documents that have not changed do not conflict.
func (w *partWriter) removeConflicting(doc []byte) (gave bool, err error) {
	err = HoldersOf(w.s, w.c, doc, func(rid storage.RecordID, held []byte) error {
		if _, written := w.done[string(rid)]; written || !w.ours(held) {
			return nil
		}
		if err := w.u.Delete(w.c, rid, held, storage.NoInfo); err != nil {
			return err
		}
		w.done[string(rid)] = true
		w.added--
		gave = true
		return nil
	})
	return gave, err
}

// HoldersOf calls f for the documents of a snapshot that have a key of doc in a unique index, other than that of _id; for one that has several, several times.
func HoldersOf(s *storage.Snapshot, c *catalog.Collection, doc []byte, f func(rid storage.RecordID, held []byte) error) error {
	return UniqueKeys(c, doc, func(idx *catalog.Index, key []byte) error {
		cur := s.IndexScan(c, idx, false)
		defer cur.Close()
		for cur.Seek(key); cur.Next() && bytes.Equal(cur.Key(), key); {
			rid := cur.RecordID().Clone()
			held, ok, err := s.Get(c, rid)
			if err == nil && ok {
				err = f(rid, bytes.Clone(held))
			}
			if err != nil {
				return err
			}
		}
		return cur.Err()
	})
}

// UniqueKeys calls f for the keys of a document in a collection's unique indexes, other than that of _id.
func UniqueKeys(c *catalog.Collection, doc []byte, f func(idx *catalog.Index, key []byte) error) error {
	var keys indexkey.KeySet
	for _, idx := range c.Indexes {
		if idx.IsID || !idx.Enforcing {
			continue
		}
		if err := idx.Keys.Keys(doc, &keys); err != nil {
			return err
		}
		for i := range keys.Len() {
			if err := f(idx, keys.Key(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// trim removes what is before the oldest document of a capped collection: the documents that a capped collection evicts are not in the oplog.
func (w *partWriter) trim(oldest value.Value) error {
	if oldest.IsMissing() {
		return nil
	}
	cur := w.s.Scan(w.c, storage.ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		id := value.Lookup(cur.Doc(), "_id")
		if value.Compare(id, oldest) == 0 {
			break
		}
		if err := w.remove(id.Clone()); err != nil {
			return err
		}
	}
	return cur.Err()
}

// runMovePrimaryForget removes the progress of a run, after which no part of it is stored.
func (m *Manager) runMovePrimaryForget(op *command.Op, req *msg.MovePrimaryForget, dst []byte) ([]byte, error) {
	docs := movedDocs(m.Docs)
	return dst, m.Docs.Write(op, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		d, ok, err := docs.GetIn(s, value.NewString(req.DB))
		if err != nil || !ok || d.run != req.Section {
			return err
		}
		return docs.RemoveIn(s, u, d.ID())
	})
}

// runAdoptSessions adopts another shard's history of retryable writes.
func (m *Manager) runAdoptSessions(op *command.Op, req *msg.AdoptSessions, dst []byte) ([]byte, error) {
	return dst, m.sessions.Adopt(op, value.Values(req.Sessions))
}
