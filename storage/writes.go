package storage

import (
	"bytes"
	"context"
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/storage/keystring"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// entryLive starts the value of every index entry but those of the _id index, whose value is the RecordId and is never
// empty; an empty value is a deletion.
var entryLive = []byte{1}

// Insert adds a document, which must be complete with its _id first. A DuplicateKey error leaves the unit
// unchanged.
func (u *UnitOfWork) Insert(c *catalog.Collection, doc []byte, info OpInfo) (RecordID, error) {
	if err := u.use(c); err != nil {
		return nil, err
	}
	rid, err := u.insert(c, doc, &info)
	return rid.Clone(), err
}

// InsertMany adds documents in order and stops at the first error: docs[:n] are in the unit. info.StmtID is that
// of the first document; the following documents get consecutive ids. With info.Vectored they share entries of the oplog
// (except in a capped collection, whose oldest documents are removed in between, and in a transaction).
func (u *UnitOfWork) InsertMany(c *catalog.Collection, docs [][]byte, info OpInfo) (n int, err error) {
	if err := u.use(c); err != nil {
		return 0, err
	}
	if u.batch == nil && u.copy == nil && len(docs) > 1 {
		// Records, their oplog entries unless those refer to the records, and the keys of a few indexes.
		size := 0
		for _, doc := range docs {
			if size += len(doc) + 32 + 40*len(c.Indexes); !u.log.refers {
				size += len(doc) + 68
			}
		}
		u.batch = u.e.db.NewBatchWithSize(size)
	}
	if u.own == nil && u.copy == nil && !c.Capped && len(docs) > 1 {
		u.holdRecords(c.Ident)
		defer u.releaseHeld()
	}
	if info.Vectored && !c.Capped && u.log.txn == nil {
		u.log.vector.on = true
		defer func() { u.log.vector = vector{} }()
	}
	for i, doc := range docs {
		err := u.log.checkSize()
		if err == nil {
			err = u.spill()
		}
		if err != nil {
			return i, err
		}
		if _, err := u.insert(c, doc, &info); err != nil {
			return i, err
		}
		if info.StmtID >= 0 {
			info.StmtID++
		}
	}
	return len(docs), nil
}

// insert returns the RecordID in scratch memory.
func (u *UnitOfWork) insert(c *catalog.Collection, doc []byte, info *OpInfo) (RecordID, error) {
	s := u.scratch
	id := value.Lookup(doc, "_id")
	s.ids, s.tb = keystring.Append(s.ids[:0], s.tb[:0], id, false, c.Collator)
	s.tb = keystring.TrimTypeBits(s.tb)
	if c.Capped {
		if err := u.lockCapped(c); err != nil {
			return nil, err
		}
	}
	rid, err := u.newRecordID(c, s.ids)
	if err != nil {
		return nil, err
	}
	// Everything is checked before anything is staged, so that a duplicate leaves no trace.
	s.sets = grow(s.sets, len(c.Indexes))
	for i, idx := range c.Indexes {
		if idx.IsID {
			if err := u.checkID(c, idx, s.ids, s.tb); err != nil {
				return nil, err
			}
			continue
		}
		if err := idx.Keys.Keys(doc, &s.sets[i]); err != nil {
			return nil, err
		}
		if err := u.checkUnique(c, idx, &s.sets[i], rid); err != nil {
			return nil, err
		}
	}
	u.put(c.Ident, rid, doc)
	for i, idx := range c.Indexes {
		if idx.IsID {
			u.put(idx.Ident, s.ids, rid, s.tb)
			u.keys.inserted++
			continue
		}
		u.putKeys(c, idx, &s.sets[i], rid)
	}
	u.addDelta(c.Ident, c.Counters, 1, int64(len(doc)))
	if u.logs(c) {
		e := &OplogEntry{Op: 'i', NS: c.NS, UUID: c.UUID, O: doc, O2: info.O2, StmtID: info.StmtID, Extra: info.Extra}
		if e.O2 == nil && info.Key != nil {
			e.O2 = info.Key(doc)
		}
		if u.log.refers && u.own == nil && !c.Capped && !c.Clustered {
			e.table, e.record = c.Ident, binary.BigEndian.Uint64(rid)
		}
		u.logEntry(e)
	}
	if c.Capped && !u.keeps {
		return rid, u.trimCapped(c)
	}
	return rid, nil
}

func grow(s []indexkey.KeySet, n int) []indexkey.KeySet {
	for len(s) < n {
		s = append(s, indexkey.KeySet{})
	}
	return s
}

// maxRecordID is the maximum length of the RecordID of a clustered collection.
const maxRecordID = 8 << 20

// newRecordID returns the RecordID for a new record. In clustered collections that is its _id, which must be new.
func (u *UnitOfWork) newRecordID(c *catalog.Collection, idKey []byte) (RecordID, error) {
	if c.Clustered {
		if len(idKey) > maxRecordID {
			return nil, mongoerr.Newf(5894900, "The size of the RecordId exceeds the maximum of %d bytes: %d", maxRecordID, len(idKey))
		}
		u.scratch.rid = append(u.scratch.rid[:0], idKey...)
		rid := RecordID(u.scratch.rid)
		if err := u.claimRecord(c, rid); err != nil {
			return nil, err
		}
		if live, known, err := u.staged(c.Ident, rid); known || err != nil {
			if err != nil {
				return nil, err
			}
			if live {
				return nil, duplicateID(c, idKey, u.scratch.tb)
			}
			return rid, nil
		}
		v, err := u.newest()
		if err != nil {
			return nil, err
		}
		if _, there, err := v.get(append(appendIdent(u.scratch.key[:0], c.Ident), rid...)); err != nil || !there {
			return rid, err
		}
		return nil, duplicateID(c, idKey, u.scratch.tb)
	}
	n, err := u.copy.nextID()
	if n == 0 {
		n, err = c.Counters.NextRecordID(func() (int64, error) { return u.e.lastRecordID(c.Ident) })
	}
	if err != nil {
		return nil, err
	}
	// Other members write while this one is not the primary, and the next primary continues after the last committed record: the
	// number could be that of another record, or have been given to this unit before.
	if u.line != lineLocal && u.gen != u.e.replica.writing.Load() {
		return nil, errOtherRole
	}
	u.scratch.rid = binary.BigEndian.AppendUint64(u.scratch.rid[:0], uint64(n))
	return u.scratch.rid, nil
}

// checkID ensures that no other document has the _id, and claims it.
func (u *UnitOfWork) checkID(c *catalog.Collection, idx *catalog.Index, key, tb []byte) error {
	if u.copy != nil {
		return u.claimCopiedID(idx, key)
	}
	span := keySpan{ident: idx.Ident, key: key}
	h := u.e.claims.hash(idx.Ident, key)
	r := u.e.claims.take(u, h, 0, false)
	if r == claimNew || r == claimUnsure { // a key above all others has no versions
		above, err := idx.Tail.Raise(key, func() ([]byte, error) { return u.e.lastUserKey(idx.Ident) })
		if err != nil || above {
			return err
		}
	}
	mine, err := u.settleClaim(r, h, span, 0)
	if err != nil {
		return err
	}
	if mine {
		if live, known, err := u.staged(idx.Ident, key); known || err != nil {
			if err != nil {
				return err
			}
			if live {
				return duplicateKey(c, idx, key, tb)
			}
			return nil
		}
	}
	v, err := u.newest()
	if err != nil {
		return err
	}
	u.scratch.key = append(appendIdent(u.scratch.key[:0], idx.Ident), key...)
	_, there, err := v.get(u.scratch.key)
	if err != nil || !there {
		return err
	}
	if u.own != nil && u.e.replica.late.visibleFrom(v.at) > uint64(u.readTS()) {
		return errConflict
	}
	return duplicateKey(c, idx, key, tb)
}

// checkUnique ensures that no other record has one of the keys, and claims them.
func (u *UnitOfWork) checkUnique(c *catalog.Collection, idx *catalog.Index, set *indexkey.KeySet, rid RecordID) error {
	if !idx.Unique && !idx.PrepareUnique {
		return nil
	}
	for i := 0; i < set.Len(); i++ {
		key := set.Key(i)
		mine, err := u.claim(keySpan{idx.Ident, key, idx}, 0, false)
		if err != nil {
			return err
		}
		if !idx.Enforcing {
			continue
		}
		if err := u.lookForDuplicate(c, idx, key, set.TypeBits(i), rid, mine); err != nil {
			return err
		}
	}
	return nil
}

// lookForDuplicate searches the entries with a key for one of another record.
func (u *UnitOfWork) lookForDuplicate(c *catalog.Collection, idx *catalog.Index, key, tb []byte, rid RecordID, mine bool) error {
	if mine {
		if found, err := u.stagedDuplicate(idx, key, rid); err != nil || found {
			return errorsOr(err, duplicateKey(c, idx, key, tb))
		}
	}
	v, err := u.newest()
	if err != nil {
		return err
	}
	prefix := append(appendIdent(u.scratch.key[:0], idx.Ident), key...)
	u.scratch.key = prefix
	var buf [8]byte
	for ok := v.seekPrefix(prefix); ok; ok = v.next() {
		ks, other, fine := splitIndexKey(idx, v.user[identLen:], &buf)
		if !fine || !bytes.Equal(ks, key) || bytes.Equal(other, rid) {
			continue
		}
		if live, known, err := u.staged(idx.Ident, v.user[identLen:]); err != nil {
			return err
		} else if mine && known && !live {
			continue
		}
		if u.own != nil && u.e.replica.late.visibleFrom(v.at) > uint64(u.readTS()) {
			return errConflict
		}
		return duplicateKey(c, idx, key, tb)
	}
	return v.err
}

// staged looks a key up among the unit's own writes. Without an index of them it is slow; it is only called after a claim showed
// that there is such a write.
func (u *UnitOfWork) staged(id catalog.Ident, user []byte) (live, known bool, err error) {
	if u.copy != nil {
		return false, false, errConflict // it has the key twice, or keys of the same hash
	}
	err = u.eachStagedUnder(id, user, func(key, val []byte) {
		if bytes.Equal(key, user) {
			live, known = len(val) > 0, true
		}
	})
	if err != nil {
		return false, false, err
	}
	if !known && u.bulk != nil {
		return u.stagedVersion(id, user)
	}
	return live, known, nil
}

// stagedDuplicate looks for a live entry of another record with the key among the unit's own writes.
func (u *UnitOfWork) stagedDuplicate(idx *catalog.Index, key []byte, rid RecordID) (bool, error) {
	if u.copy != nil {
		return false, errConflict
	}
	if u.bulk != nil {
		return u.sentDuplicate(idx, key, rid)
	}
	live := map[string]bool{}
	var buf [8]byte
	err := u.eachStagedUnder(idx.Ident, key, func(k, val []byte) {
		ks, other, ok := splitIndexKey(idx, k, &buf)
		if ok && bytes.Equal(ks, key) && !bytes.Equal(other, rid) {
			live[string(other)] = len(val) > 0
		}
	})
	if err != nil {
		return false, err
	}
	for _, l := range live {
		if l {
			return true, nil
		}
	}
	return false, nil
}

// eachStagedUnder calls f with what the unit has staged, and not sent ahead, of keys that begin with prefix: of each key the newest
// version last. A transaction may have many keys staged, but has an index of them.
func (u *UnitOfWork) eachStagedUnder(id catalog.Ident, prefix []byte, f func(user, val []byte)) error {
	if u.own == nil || !u.batch.Indexed() {
		u.eachStaged(id, func(user, val []byte) {
			if bytes.HasPrefix(user, prefix) {
				f(user, val)
			}
		})
		return nil
	}
	it, err := u.batch.NewBatchOnlyIter(context.Background(), nil)
	if err != nil {
		return err
	}
	defer closeQuietly(it)
	from := append(appendIdent(nil, id), prefix...)
	for ok := it.SeekGE(appendVersion(bytes.Clone(from), pending)); ok; ok = it.Next() {
		user, ts, versioned := splitVersion(it.Key())
		if !bytes.HasPrefix(user, from) {
			break
		}
		if versioned && ts == pending {
			f(user[identLen:], it.Value())
		}
	}
	return it.Error()
}

func (u *UnitOfWork) eachStaged(id catalog.Ident, f func(user, val []byte)) {
	u.releaseHeld()
	if u.behind != nil && u.own == nil {
		eachPending(u.behind.batch, id, f)
	}
	eachPending(u.batch, id, f)
}

func eachPending(b *pebble.Batch, id catalog.Ident, f func(user, val []byte)) {
	if b == nil {
		return
	}
	for r := batchrepr.Read(b.Repr()); ; {
		_, k, val, ok, err := r.Next()
		if !ok || err != nil {
			return
		}
		if user, ts, versioned := splitVersion(k); versioned && ts == pending && identOf(k) == id {
			f(user[identLen:], val)
		}
	}
}

// putKeys stages all keys of a set.
func (u *UnitOfWork) putKeys(c *catalog.Collection, idx *catalog.Index, set *indexkey.KeySet, rid RecordID) {
	for i := 0; i < set.Len(); i++ {
		u.putEntry(idx, set.Key(i), set.TypeBits(i), rid)
	}
	if set.IsMultikey() {
		u.setMultikey(c, idx, set.Multikey, set.ArrayPaths)
	}
}

func (u *UnitOfWork) putEntry(idx *catalog.Index, key, tb []byte, rid RecordID) {
	u.scratch.key = appendIndexKey(u.scratch.key[:0], idx, key, rid)
	u.put(idx.Ident, u.scratch.key, entryLive, tb)
	u.keys.inserted++
}

// removeEntry stages the deletion of an entry. A unique key stays claimed, so that no other unit takes it before the
// commit.
func (u *UnitOfWork) removeEntry(c *catalog.Collection, idx *catalog.Index, key []byte, rid RecordID) error {
	if idx.Unique || idx.PrepareUnique {
		if _, err := u.claim(keySpan{idx.Ident, key, idx}, 0, false); err != nil {
			return err
		}
	}
	u.scratch.key = appendIndexKey(u.scratch.key[:0], idx, key, rid)
	u.put(idx.Ident, u.scratch.key)
	u.supersede(idx.Ident, u.scratch.key)
	u.keys.deleted++
	return nil
}

// Update replaces a record. oldDoc is the document that the unit's snapshot holds.
func (u *UnitOfWork) Update(c *catalog.Collection, rid RecordID, oldDoc, newDoc []byte, info OpInfo) error {
	if err := u.use(c); err != nil {
		return err
	}
	if err := u.claimRecord(c, rid); err != nil {
		return err
	}
	s := u.scratch
	s.sets, s.olds = grow(s.sets, len(c.Indexes)), grow(s.olds, len(c.Indexes))
	for i, idx := range c.Indexes {
		if idx.IsID {
			continue // an _id never changes
		}
		if err := idx.Keys.Keys(oldDoc, &s.olds[i]); err != nil {
			return err
		}
		if err := idx.Keys.Keys(newDoc, &s.sets[i]); err != nil {
			return err
		}
		if err := u.checkAdded(c, idx, &s.olds[i], &s.sets[i], rid); err != nil {
			return err
		}
	}
	for i, idx := range c.Indexes {
		if idx.IsID {
			continue
		}
		if err := u.changeKeys(c, idx, &s.olds[i], &s.sets[i], rid); err != nil {
			return err
		}
	}
	u.put(c.Ident, rid, newDoc)
	u.supersede(c.Ident, rid)
	u.addDelta(c.Ident, c.Counters, 0, int64(len(newDoc)-len(oldDoc)))
	if u.logs(c) {
		e := &OplogEntry{Op: 'u', NS: c.NS, UUID: c.UUID, O: info.O, O2: info.O2, StmtID: info.StmtID, Extra: info.Extra}
		if e.O == nil {
			e.O = newDoc
		}
		if e.O2 == nil {
			e.O2 = info.key(oldDoc)
		}
		if err := u.keepImage(c, oldDoc); err != nil {
			return err
		}
		u.logEntry(e)
	}
	return nil
}

// checkAdded looks for duplicates of the keys that an update adds.
func (u *UnitOfWork) checkAdded(c *catalog.Collection, idx *catalog.Index, before, after *indexkey.KeySet, rid RecordID) (err error) {
	if !idx.Unique && !idx.PrepareUnique {
		return nil
	}
	indexkey.Diff(before, after, func(_, _ []byte) {}, func(key, tb []byte) {
		if err != nil {
			return
		}
		var mine bool
		if mine, err = u.claim(keySpan{idx.Ident, key, idx}, 0, false); err == nil && idx.Enforcing {
			err = u.lookForDuplicate(c, idx, key, tb, rid, mine)
		}
	})
	return err
}

func (u *UnitOfWork) changeKeys(c *catalog.Collection, idx *catalog.Index, before, after *indexkey.KeySet, rid RecordID) (err error) {
	indexkey.Diff(before, after,
		func(key, _ []byte) {
			if err == nil {
				err = u.removeEntry(c, idx, key, rid)
			}
		},
		func(key, tb []byte) { u.putEntry(idx, key, tb, rid) })
	if after.IsMultikey() {
		u.setMultikey(c, idx, after.Multikey, after.ArrayPaths)
	}
	return err
}

// Delete removes a record. oldDoc is the document that the unit's snapshot holds.
func (u *UnitOfWork) Delete(c *catalog.Collection, rid RecordID, oldDoc []byte, info OpInfo) error {
	if err := u.use(c); err != nil {
		return err
	}
	if err := u.claimRecord(c, rid); err != nil {
		return err
	}
	if err := u.remove(c, rid, oldDoc); err != nil {
		return err
	}
	if u.logs(c) {
		e := &OplogEntry{Op: 'd', NS: c.NS, UUID: c.UUID, O: info.O, O2: info.O2, StmtID: info.StmtID, Extra: info.Extra}
		if e.O == nil {
			e.O = info.key(oldDoc)
		}
		if err := u.keepImage(c, oldDoc); err != nil {
			return err
		}
		u.logEntry(e)
	}
	return nil
}

// remove stages the deletion of a claimed record and its keys.
func (u *UnitOfWork) remove(c *catalog.Collection, rid RecordID, oldDoc []byte) error {
	s := u.scratch
	s.olds = grow(s.olds, len(c.Indexes))
	for i, idx := range c.Indexes {
		if idx.IsID {
			s.ids, s.tb = keystring.Append(s.ids[:0], s.tb[:0], value.Lookup(oldDoc, "_id"), false, c.Collator)
			if _, err := u.claim(keySpan{ident: idx.Ident, key: s.ids}, 0, false); err != nil {
				return err
			}
			u.put(idx.Ident, s.ids)
			u.supersede(idx.Ident, s.ids)
			u.keys.deleted++
			continue
		}
		if err := idx.Keys.Keys(oldDoc, &s.olds[i]); err != nil {
			return err
		}
		for k := 0; k < s.olds[i].Len(); k++ {
			if err := u.removeEntry(c, idx, s.olds[i].Key(k), rid); err != nil {
				return err
			}
		}
	}
	u.put(c.Ident, rid)
	u.supersede(c.Ident, rid)
	u.addDelta(c.Ident, c.Counters, -1, -int64(len(oldDoc)))
	return nil
}

// lockCapped makes the unit the only one that inserts into a capped collection, so that documents are removed in
// insertion order. A unit that already holds one such lock does not wait for a second.
func (u *UnitOfWork) lockCapped(c *catalog.Collection) error {
	if u.heldCapped(c) != nil {
		return nil
	}
	switch {
	case u.behind.yieldCapped(u, c.Counters):
		return nil
	case c.Counters.Trim.TryLock():
	case len(u.capped) > 0 || u.e.DetachedCommits() > 0: // a detached unit may hold it, for an unknown time
		return errConflict
	default:
		c.Counters.Trim.Lock()
	}
	u.capped = append(u.capped, heldCapped{counters: c.Counters})
	return nil
}

// heldCapped returns the unit's state for a capped collection, nil if it holds none.
func (u *UnitOfWork) heldCapped(c *catalog.Collection) *heldCapped {
	for i := range u.capped {
		if u.capped[i].counters == c.Counters {
			return &u.capped[i]
		}
	}
	return nil
}

// trimCapped deletes the oldest documents until the collection is within its limits.
func (u *UnitOfWork) trimCapped(c *catalog.Collection) error {
	for {
		records, bytes := u.behind.sizeOf(c)
		if u.behind == nil {
			records, bytes = c.Counters.Records.Load(), c.Counters.DataSize.Load()
		}
		n, size := u.deltaOf(c.Ident)
		records += n
		bytes += size
		if records <= 1 || bytes <= c.CappedSize && (c.CappedMax <= 0 || records <= c.CappedMax) {
			return nil
		}
		rid, doc, err := u.oldest(c)
		if err != nil || rid == nil {
			return err
		}
		if _, err := u.claim(keySpan{ident: c.Ident, key: rid}, 0, true); err != nil {
			return err
		}
		if err := u.remove(c, rid, doc); err != nil {
			return err
		}
		u.heldCapped(c).trimmed, _ = rid.Int64()
	}
}

// oldest finds the first record of a capped collection that the unit has not deleted. It starts after what is
// known to be gone: the versions of thousands of deleted records remain for as long as history reaches.
func (u *UnitOfWork) oldest(c *catalog.Collection) (RecordID, []byte, error) {
	v, err := u.newest()
	if err != nil {
		return nil, nil, err
	}
	gone := c.Counters.Trimmed(uint64(v.ts))
	if held := u.heldCapped(c); held != nil {
		gone = max(gone, held.trimmed)
	}
	from := append(appendIdent(nil, c.Ident), NewRecordID(gone+1)...)
	if v.seekGE(from) && identOf(v.user) == c.Ident {
		return RecordID(append([]byte(nil), v.user[identLen:]...)), append([]byte(nil), v.value...), nil
	}
	if v.err != nil {
		return nil, nil, v.err
	}
	var rid, doc []byte
	u.eachStaged(c.Ident, func(key, val []byte) {
		if rid == nil && len(val) > 0 && bytes.Compare(key, from[identLen:]) >= 0 {
			rid, doc = append([]byte(nil), key...), append([]byte(nil), val...)
		}
	})
	return rid, doc, nil
}
