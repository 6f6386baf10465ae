package storage

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/klauspost/compress/s2"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/storage/keystring"
)

// tableCopy has the documents of a unit that writes them, and their index keys, as sorted tables which the store ingests: neither the journal nor a memtable
// nor a flush has them. That is for copies of many megabytes in a set of one member; the members of others get their data from the replicated log.
//
//	InsertTables   claims, looks for duplicates and generates keys, like InsertMany, and keeps the keys in memory
//	Commit         announce    a unit of its own: a chunk record (staged.go) with the table and the RecordIds. Its timestamp T is that of the versions
//	               write       one table of the records, one of each index's keys, sorted; each file is synced
//	               sync        of the journal, unless the announcement is durable by now
//	               ingest      all tables in one edit of pebble's list of tables, which is synced
//	               queueUnit   the commit C: oplog entries, counters, and the mark from when the versions at T are visible
//
// The versions are a late unit's (lateUnit) between T and C: views hide T until C, and for readers of a time before C as long as there may be any. So nobody sees
// a part of the copy, reads of the past do not see it at all, and its oplog entries, which refer to the versions (oplogrefs.go), are at C, in one batch
// with the counters. What is newer is decided by timestamps, never by the order of pebble's sequence numbers: a version written after C wins
// over one at T wherever the table with T lies, and RecordIds are the copy's own.
//
// Durability is that of any unit: C may be lost with the end of the journal, and is durable with the next sync that a writer waits for (Sync). Where C is,
// the tables are: they are synced, and listed durably or in the journal before C.
//
// What a kill or a loss of power leaves:
//
//   - before the announcement is durable: files beside the tables, which the next start removes (removeBuildFiles);
//   - before the tables are ingested: such files, and an announcement, whose removal (dropAbandoned) finds no documents;
//   - amid the ingestion: pebble's list of tables has all of the copy or nothing. Files that are linked and not listed are pebble's to remove;
//   - before C is durable: versions at T, hidden since their announcement is durable. dropAbandoned reads the records at T, and deletes them and their index keys.
//     Who copies again does not see them, and gets other RecordIds and another T.
//
// Invariant: the announcement is durable before the tables are in the list. Hazard: the list's durability does not depend on the journal's; a crash would leave versions at
// a T that nothing hides, and that is allocated again. Therefore the sync, which rarely has anything left to do after the tables are written.
//
// Invariant: the tables are ingested in the role and the state of the catalog that the unit began with (ingestTables). Hazard: keys for a collection that has
// been dropped, and whose tables are deleted already, would stay for ever; keys for a store that a snapshot of another member has replaced would not be announced there.
//
// Rejected: a list of all keys in the announcement, as chunks have. It would be a tenth of what a copy of small documents writes, for the rare
// case that it fails; the index keys can be generated again. Rejected, too: the versions at the time of a commit that exists already, as an index build loads its
// keys. Nobody reads an unfinished index, but anybody may read the collection at that time.
type tableCopy struct {
	c      *catalog.Collection
	docs   [][]byte
	first  int64 // RecordId of the first document
	given  int64 // number of RecordIds given to documents
	keys   []*tableKeys
	claims *copyClaims
	files  []*tableFiles
	placed bool // the place of its oplog blocks is recorded
}

// InsertTables is InsertMany for a unit of many megabytes that has no other writes: its commit writes the documents as tables, see tableCopy. docs are
// borrowed until then. ok is false, and nothing has been done, where that is not possible: in memory, in a set of several members, and for collections
// that are capped, clustered, or local.
func (u *UnitOfWork) InsertTables(c *catalog.Collection, docs [][]byte) (ok bool, err error) {
	e := u.e
	if !e.MayInsertTables(c) || u.own != nil || u.log.txn != nil || !u.Empty() || len(docs) == 0 {
		return false, nil
	}
	first, err := c.Counters.NextRecordIDs(int64(len(docs)), func() (int64, error) { return e.lastRecordID(c.Ident) })
	if err != nil {
		return true, err
	}
	u.copy = &tableCopy{c: c, docs: docs, first: first, claims: newCopyClaims(len(docs))}
	e.claims.beginCopy(u.copy.claims)
	u.ReferToVersions()
	if _, err = u.InsertMany(c, docs, NoInfo); err == nil {
		err = u.checkCopiedIDs()
	}
	return true, err
}

// claimCopiedID is checkID for a copy, which looks for duplicates once it has claimed all _ids.
func (u *UnitOfWork) claimCopiedID(idx *catalog.Index, key []byte) error {
	mine, err := u.claim(keySpan{ident: idx.Ident, key: key}, 0, false)
	if err == nil && mine {
		err = errConflict // twice in the copy, or two of the same hash
	}
	return err
}

// checkCopiedIDs sorts the keys, and ensures that no other document has an _id. In order these lookups cost a fraction of what they cost at random: one finds
// most of what it needs where the previous one ended.
func (u *UnitOfWork) checkCopiedIDs() error {
	for _, k := range u.copy.keys {
		k.sort()
	}
	idx := u.copy.c.IDIndex()
	i := slices.IndexFunc(u.copy.keys, func(k *tableKeys) bool { return idx != nil && k.id == idx.Ident })
	if i < 0 {
		return nil
	}
	v, err := u.newest()
	if err != nil {
		return err
	}
	keys := u.copy.keys[i]
	for _, x := range keys.list {
		key := keys.user(x)
		above, err := idx.Tail.Raise(key, func() ([]byte, error) { return u.e.lastUserKey(idx.Ident) })
		if err != nil {
			return err
		}
		if above {
			continue
		}
		u.scratch.key = append(appendIdent(u.scratch.key[:0], idx.Ident), key...)
		if _, there, err := v.get(u.scratch.key); err != nil || there {
			return errorsOr(err, duplicateKey(u.copy.c, idx, key, keys.value(x)[8:]))
		}
	}
	return nil
}

// MayInsertTables reports whether InsertTables is possible for a collection.
func (e *Engine) MayInsertTables(c *catalog.Collection) bool {
	return !e.opts.Memory && !e.replicated() && !c.Capped && !c.Clustered && !isLocal(c.Ident)
}

// nextID returns the RecordId of the next document; 0 if the unit is not a copy.
func (t *tableCopy) nextID() (int64, error) {
	switch {
	case t == nil:
		return 0, nil
	case t.given == int64(len(t.docs)):
		return 0, corrupt("a copy has no RecordId left")
	}
	t.given++
	return t.first + t.given - 1, nil
}

// put keeps an index key. The records are in docs.
func (t *tableCopy) put(id catalog.Ident, user []byte, value [][]byte) {
	if id == t.c.Ident {
		return
	}
	i := slices.IndexFunc(t.keys, func(k *tableKeys) bool { return k.id == id })
	if i < 0 {
		k := tableKeysPool.Get().(*tableKeys)
		k.id, k.sorted = id, true
		i, t.keys = len(t.keys), append(t.keys, k)
	}
	t.keys[i].add(user, value)
}

// tableKeys are the keys of one index.
type tableKeys struct {
	id     catalog.Ident
	buf    []byte // keys without ident, each followed by its value
	list   []tableKey
	sorted bool
}

// tableKey is where a key is in buf.
type tableKey struct {
	lead    uint64 // its first bytes
	at      int
	key, to int32 // lengths of the key, and of both
}

// tableKeysPool has memory for the keys of further copies.
var tableKeysPool = sync.Pool{New: func() any { return &tableKeys{} }}

// free returns the memory for keys.
func (t *tableCopy) free() {
	for _, k := range t.keys {
		k.buf, k.list = k.buf[:0], k.list[:0]
		tableKeysPool.Put(k)
	}
	t.keys, t.docs = nil, nil
}

func (k *tableKeys) sort() {
	if !k.sorted {
		slices.SortFunc(k.list, k.compare)
		k.sorted = true
	}
}

func (k *tableKeys) add(user []byte, value [][]byte) {
	at := len(k.buf)
	k.buf = append(k.buf, user...)
	for _, v := range value {
		k.buf = append(k.buf, v...)
	}
	x := tableKey{at: at, key: int32(len(user)), to: int32(len(k.buf) - at)}
	var lead [8]byte
	copy(lead[:], user)
	x.lead = binary.BigEndian.Uint64(lead[:])
	if n := len(k.list); k.sorted && n > 0 {
		k.sorted = k.compare(k.list[n-1], x) < 0
	}
	k.list = append(k.list, x)
}

func (k *tableKeys) compare(a, b tableKey) int {
	if a.lead != b.lead {
		return cmp.Compare(a.lead, b.lead)
	}
	return bytes.Compare(k.user(a), k.user(b))
}

func (k *tableKeys) user(x tableKey) []byte  { return k.buf[x.at : x.at+int(x.key)] }
func (k *tableKeys) value(x tableKey) []byte { return k.buf[x.at+int(x.key) : x.at+int(x.to)] }

const copyFilePrefix = "copy-"

// writeTables makes everything of a copy but its commit durable. After an error the unit must be rolled back, which deletes what has been ingested.
func (e *Engine) writeTables(ctx context.Context, u *UnitOfWork) error {
	t := u.copy
	if t.given != int64(len(t.docs)) {
		return corrupt("a copy was to have %d documents, and has %d", len(t.docs), t.given)
	}
	at, err := e.announceCopy(ctx, u)
	if err != nil {
		return err
	}
	if err := e.copyStep("write"); err != nil {
		return err
	}
	if err = t.write(ctx, u, at); err == nil && e.Durable() < at {
		err = e.Sync(ctx)
	}
	if err == nil {
		err = e.copyStep("ingest")
	}
	if err == nil {
		err = e.ingestTables(ctx, u)
	}
	if err != nil {
		for _, f := range t.files {
			f.abandon()
		}
		if ctx.Err() != nil {
			return err
		}
		return mapDiskError(err)
	}
	return e.copyStep("commit")
}

// copyStep is called before each step of a copy.
func (e *Engine) copyStep(step string) error {
	if e.opts.copyStep == nil {
		return nil
	}
	return e.opts.copyStep(step)
}

// announceCopy commits the record of what the tables will bring, and returns the timestamp of their versions.
func (e *Engine) announceCopy(ctx context.Context, u *UnitOfWork) (at Timestamp, err error) {
	s := &stager{e: e, u: u, id: e.replica.staging.begin(uint64(e.Term())), ctx: ctx, batch: e.db.NewBatch()}
	u.bulk = s
	u.OnRollback(u.discardSent)
	u.OnCommit(func(Timestamp) { e.replica.staging.end(s.id, true) })
	s.list.copied = copiedRecords{table: u.copy.c.Ident, first: uint64(u.copy.first), last: uint64(u.copy.first) + uint64(len(u.copy.docs)) - 1}
	s.send()
	if s.await(); s.err != nil {
		return 0, s.err
	}
	return Timestamp(s.at[0]), nil
}

// write writes the tables.
func (t *tableCopy) write(ctx context.Context, u *UnitOfWork, at Timestamp) error {
	f, n := t.file(u, t.c.Ident), 0
	var key, rid []byte
	for i, doc := range t.docs {
		rid = binary.BigEndian.AppendUint64(rid[:0], uint64(t.first)+uint64(i))
		key = appendVersion(append(appendIdent(key[:0], t.c.Ident), rid...), uint64(at))
		if err := f.add(key, doc); err != nil {
			return err
		}
		if n += len(doc); n >= copyCheckBytes {
			if err := u.e.mayCopy(ctx, n); err != nil {
				return err
			}
			n = 0
		}
	}
	if err := errorsJoin(f.close(), u.e.mayCopy(ctx, n)); err != nil {
		return err
	}
	for _, k := range t.keys {
		f := t.file(u, k.id)
		for _, x := range k.list {
			key = appendVersion(append(appendIdent(key[:0], k.id), k.user(x)...), uint64(at))
			if err := f.add(key, k.value(x)); err != nil {
				return err
			}
		}
		if err := errorsJoin(f.close(), u.e.mayCopy(ctx, len(k.buf))); err != nil {
			return err
		}
	}
	return nil
}

// file returns the file of one of the copy's tables. Its writing makes way for clients like a flush's.
func (t *tableCopy) file(u *UnitOfWork, id catalog.Ident) *tableFiles {
	f := &tableFiles{e: u.e, name: fmt.Sprintf("%s%d-%d-%d", copyFilePrefix, u.bulk.id.term, u.bulk.id.number, id), category: "pebble-memtable-flush"}
	t.files = append(t.files, f)
	return f
}

// copyCheckBytes is how much of a copy is written before the disk is looked at.
const copyCheckBytes = 1 << 20

// mayCopy counts n bytes as written, and returns an error if the disk or the context says that no more should be.
func (e *Engine) mayCopy(ctx context.Context, n int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e.space.written.Add(int64(n))
	return e.checkSpace(anyRoom)
}

// ingestTables puts the tables into the store, in the role and the state of the collection that the unit began with: neither changes meanwhile.
func (e *Engine) ingestTables(ctx context.Context, u *UnitOfWork) error {
	var paths []string
	for _, f := range u.copy.files {
		paths = append(paths, f.paths...)
	}
	r := &e.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.mode != modeSingle || r.mu.gen != u.gen {
		return errOtherRole
	}
	if c := e.Catalog().LookupUUID(u.copy.c.UUID); c == nil || c.Epoch != u.copy.c.Epoch {
		return errConflict
	}
	return e.guard(func() error { return e.db.Ingest(ctx, paths) })
}

// placeCopy returns the timestamp of the versions of a unit that commits at ts, and records where the oplog has the references to them.
func (e *Engine) placeCopy(u *UnitOfWork, b *pebble.Batch, ts Timestamp) Timestamp {
	if u.copy == nil {
		return ts
	}
	at := Timestamp(u.bulk.at[0])
	if !u.copy.placed {
		e.oplog.refs.place(b, at, ts)
		u.copy.placed = true
	}
	return at
}

// copiedRecords says in the record of a chunk what came with its tables: a table's records of consecutive RecordIds, with their index keys.
type copiedRecords struct {
	table       catalog.Ident
	first, last uint64
}

// copiedMark is in place of the length of a chunk's list of keys.
const copiedMark = 1 << 63

func (c *copiedRecords) value() []byte {
	p := appendIdent(binary.AppendUvarint(nil, copiedMark), c.table)
	p = binary.BigEndian.AppendUint64(p, c.first)
	return s2.Encode(nil, binary.BigEndian.AppendUint64(p, c.last))
}

func readCopied(p []byte) (c copiedRecords, ok bool) {
	if len(p) != identLen+8+8 {
		return c, false
	}
	return copiedRecords{identOf(p), binary.BigEndian.Uint64(p[identLen:]), binary.BigEndian.Uint64(p[identLen+8:])}, true
}

// undoCopy deletes the versions of a copy that has not committed: the documents, if they have arrived, and the keys that their indexes have of them. A document
// goes together with its keys: an undo that is cut short is repeated for those that are left.
func (e *Engine) undoCopy(c *chunkKeys, commit func(func(*pebble.Batch) error) error) error {
	bound := func(rid uint64) []byte {
		return appendUnversioned(binary.BigEndian.AppendUint64(appendIdent(nil, c.copied.table), rid))
	}
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: bound(c.copied.first), UpperBound: bound(c.copied.last + 1)})
	if err != nil {
		return err
	}
	defer closeQuietly(it)
	of := collectionOf(e.Catalog(), c.copied.table)
	for ok := it.First(); ok; {
		err := commit(func(b *pebble.Batch) error {
			for ; ok && b.Len() < chunkBytes; ok = it.Next() {
				if user, ts, versioned := splitVersion(it.Key()); !versioned || ts != uint64(c.at) {
					continue
				} else if err := undoRecord(b, of, it, RecordID(user[identLen:]), c.at); err != nil {
					return err
				}
			}
			return it.Error()
		})
		if err != nil {
			return err
		}
	}
	return it.Error()
}

// undoRecord stages the deletion of the version that the iterator is on, and of its index keys. The collection is nil if it has been dropped, with all its tables.
func undoRecord(b *pebble.Batch, c *catalog.Collection, it *pebble.Iterator, rid RecordID, at Timestamp) error {
	doc, err := it.ValueAndErr()
	if err != nil {
		return err
	}
	if c != nil {
		var set indexkey.KeySet
		for _, idx := range c.Indexes {
			if err := eachIndexKey(c, idx, doc, rid, &set, func(key []byte) error {
				return b.Delete(appendVersion(append(appendIdent(nil, idx.Ident), key...), uint64(at)), nil)
			}); err != nil {
				return err
			}
		}
	}
	return b.Delete(it.Key(), nil)
}

// eachIndexKey calls f with the keys that an index has of a document, without ident; f must not keep them.
func eachIndexKey(c *catalog.Collection, idx *catalog.Index, doc []byte, rid RecordID, set *indexkey.KeySet, f func(key []byte) error) error {
	if idx.IsID {
		key, _ := keystring.Append(nil, nil, value.Lookup(doc, "_id"), false, c.Collator)
		return f(key)
	}
	if err := idx.Keys.Keys(doc, set); err != nil {
		return err
	}
	var key []byte
	for i := range set.Len() {
		key = appendIndexKey(key[:0], idx, set.Key(i), rid)
		if err := f(key); err != nil {
			return err
		}
	}
	return nil
}

// collectionOf finds the collection with a table of records; nil if there is none.
func collectionOf(cat *catalog.Snapshot, table catalog.Ident) (found *catalog.Collection) {
	cat.Each(func(c *catalog.Collection) {
		if c.Ident == table {
			found = c
		}
	})
	return found
}
