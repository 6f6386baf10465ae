package storage

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The documents of a bulk copy are stored once: their entries in the oplog name the records, and readers of the oplog find the documents in the
// versions that the same unit has written. This halves what a copy writes to the replicated log, the journal and the tables.
//
//	block = 4 | entries u32 | wall ms u64 | timestamp of the unit u64 | table u32 | size u32 | rest
//	rest  = as in other blocks, with the difference of the RecordId from that of the entry before (uvarint) in place of the o document
//
// Invariant: as long as the oplog has such a block, the store has the versions that it names. What deletes versions (dropChunk, dropOlder, dropTables) first puts the documents
// into the block (blockKeeper), so that a reader that does not find a version finds the whole block.
//
// Exception: while the disk of a member is low and its oplog cannot be made small, because the primary decides about that or because it is held, documents are not put
// into blocks: a deletion would take room, up to the oplog's size, before it gives any. Such blocks are given up on this member, as if they were truncated here: a mark
// (metaRefsLost) has the time up to which that holds, and a reader that misses a version of one of them gets CappedPositionLost. Nothing but the copies' own entries is lost; readers
// of sessions do not read them, and a pin keeps what its reader has not seen yet.
//
// The times of such blocks are known for each table, in memory and in the meta table, so that collecting other versions does not require a look at the oplog.
//
// Rejected: keeping the versions until the oplog is truncated there. Deleted tables, superseded versions and the reserve of a full disk would all
// depend on the oplog, for days.
const blockVersionRefs = 4

// refsHeader is the length of what precedes rest in a block of references.
const refsHeader = blockHeader + 8 + 4 + 4

// metaRefs is the first byte of the keys that record when blocks refer to a table: table, first timestamp → last timestamp.
const metaRefs = 'r'

// metaRefsLost is the first byte of the key that records up to which time blocks of references may have lost their documents on this member → timestamp.
const metaRefsLost = 's'

// metaCopied is the first byte of the keys that record where the blocks of a unit are whose documents came with tables, see tablecopy.go:
// timestamp of its versions → timestamp of its last block.
const metaCopied = 'i'

// refGap is the time without references that ends a span. Each migration has a span of its own, as a rule: a table that is deleted costs a look at all blocks of its spans.
const refGap = Timestamp(10 << 32)

// refSpan is a period in which blocks refer to a table.
type refSpan struct{ first, last Timestamp }

// blockRefs has the spans of each table, in ascending order.
type blockRefs struct {
	sync.Mutex
	spans  map[catalog.Ident][]refSpan
	placed map[Timestamp]Timestamp // where the blocks of a unit are whose versions have an earlier time
}

// place records where the blocks of a unit are that refer to versions of an earlier time, in memory and in the unit's batch.
func (r *blockRefs) place(b *pebble.Batch, versions, blocks Timestamp) {
	r.notePlace(versions, blocks)
	_ = b.Set(placeKey(versions), binary.BigEndian.AppendUint64(nil, uint64(blocks)), nil)
}

func (r *blockRefs) notePlace(versions, blocks Timestamp) {
	r.Lock()
	defer r.Unlock()
	if r.placed == nil {
		r.placed = map[Timestamp]Timestamp{}
	}
	r.placed[versions] = blocks
}

// placeOf returns where the blocks are that refer to versions of a time.
func (r *blockRefs) placeOf(versions Timestamp) Timestamp {
	r.Lock()
	defer r.Unlock()
	if at, ok := r.placed[versions]; ok {
		return at
	}
	return versions
}

func placeKey(versions Timestamp) []byte {
	return metaKey(metaCopied, binary.BigEndian.AppendUint64(nil, uint64(versions))...)
}

// stamp records the time of a unit, in memory and in the unit's batch. The leader calls it, in the order of commits; replica.mu must be held.
func (r *blockRefs) stamp(b *pebble.Batch, id catalog.Ident, first, last Timestamp) {
	r.Lock()
	defer r.Unlock()
	if r.spans == nil {
		r.spans = map[catalog.Ident][]refSpan{}
	}
	list := r.spans[id]
	if n := len(list); n > 0 && first <= list[n-1].last+refGap {
		list[n-1].last = max(list[n-1].last, last)
	} else {
		list = append(list, refSpan{first, last})
		r.spans[id] = list
	}
	s := list[len(list)-1]
	_ = b.Set(refsKey(id, s.first), binary.BigEndian.AppendUint64(nil, uint64(s.last)), nil)
}

// note reads a span from its key and value.
func (r *blockRefs) note(k, v []byte) {
	if len(k) != identLen+1+4+8+1 || len(v) != 8 {
		return
	}
	id, s := catalog.Ident(binary.BigEndian.Uint32(k[identLen+1:])), refSpan{Timestamp(binary.BigEndian.Uint64(k[identLen+5:])), Timestamp(binary.BigEndian.Uint64(v))}
	r.Lock()
	defer r.Unlock()
	if r.spans == nil {
		r.spans = map[catalog.Ident][]refSpan{}
	}
	list := r.spans[id]
	at, known := slices.BinarySearchFunc(list, s, func(a, b refSpan) int { return cmp.Compare(a.first, b.first) })
	if known {
		list[at].last = max(list[at].last, s.last)
		return
	}
	r.spans[id] = slices.Insert(list, at, s)
}

// has reports whether blocks may refer to what a unit at ts has written to a table.
func (r *blockRefs) has(id catalog.Ident, ts Timestamp) bool {
	r.Lock()
	defer r.Unlock()
	return slices.ContainsFunc(r.spans[id], func(s refSpan) bool { return s.first <= ts && ts <= s.last })
}

// of returns a table's spans.
func (r *blockRefs) of(id catalog.Ident) []refSpan {
	r.Lock()
	defer r.Unlock()
	return slices.Clone(r.spans[id])
}

// drop forgets a table, which is deleted: no number is allocated twice.
func (r *blockRefs) drop(b *pebble.Batch, id catalog.Ident) {
	r.Lock()
	defer r.Unlock()
	for _, s := range r.spans[id] {
		_ = b.Delete(refsKey(id, s.first), nil)
	}
	delete(r.spans, id)
}

// forget removes the spans that have been truncated; their keys are deleted in b.
func (r *blockRefs) forget(b *pebble.Batch, cut Timestamp) {
	r.Lock()
	defer r.Unlock()
	for id, list := range r.spans {
		for len(list) > 0 && list[0].last <= cut {
			_ = b.Delete(refsKey(id, list[0].first), nil)
			list = list[1:]
		}
		if r.spans[id] = list; len(list) == 0 {
			delete(r.spans, id)
		}
	}
	for versions, blocks := range r.placed {
		if blocks <= cut {
			_ = b.Delete(placeKey(versions), nil)
			delete(r.placed, versions)
		}
	}
}

// forgetRefs forgets the spans that have been truncated. It excludes the application of units and entries meanwhile, since one may extend a span.
func (e *Engine) forgetRefs() error {
	e.replica.mu.Lock()
	defer e.replica.mu.Unlock()
	cut, err := e.OplogCut()
	if err != nil {
		return err
	}
	b := e.db.NewBatch()
	defer closeQuietly(b)
	if e.oplog.refs.forget(b, cut); b.Empty() {
		return nil
	}
	return e.applyDead(b)
}

func refsKey(id catalog.Ident, first Timestamp) []byte {
	return metaKey(metaRefs, binary.BigEndian.AppendUint64(appendIdent(nil, id), uint64(first))...)
}

// loadRefs reads the spans from the store.
func (e *Engine) loadRefs() error {
	lost, err := e.getMeta(metaKey(metaRefsLost))
	if err != nil {
		return err
	}
	e.oplog.lost.Store(0)
	if len(lost) == 8 {
		e.oplog.lost.Store(binary.BigEndian.Uint64(lost))
	}
	e.oplog.refs.Lock()
	e.oplog.refs.spans, e.oplog.refs.placed = nil, nil
	e.oplog.refs.Unlock()
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: metaKey(metaRefs), UpperBound: metaKey(metaRefs + 1)})
	if err != nil {
		return err
	}
	defer closeQuietly(it)
	for ok := it.First(); ok; ok = it.Next() {
		e.oplog.refs.note(it.Key(), it.Value())
	}
	if it.Error() != nil {
		return it.Error()
	}
	it.SetBounds(metaKey(metaCopied), metaKey(metaCopied+1))
	for ok := it.First(); ok; ok = it.Next() {
		if len(it.Key()) == identLen+1+8+1 && len(it.Value()) == 8 {
			e.oplog.refs.notePlace(Timestamp(binary.BigEndian.Uint64(it.Key()[identLen+1:])), Timestamp(binary.BigEndian.Uint64(it.Value())))
		}
	}
	return it.Error()
}

// ReferToVersions makes the oplog entries of documents that are inserted refer to the stored versions. It is for units that copy much data, which is as a
// rule neither changed nor removed while the oplog has its entries.
func (u *UnitOfWork) ReferToVersions() { u.log.refers = true }

// beginRefs turns a block without entries into one of references to a table.
func (b *opBlock) beginRefs(table catalog.Ident) {
	if b.table = table; table == 0 {
		return
	}
	rest := len(b.buf) - blockHeader
	b.buf = append(b.buf, make([]byte, refsHeader-blockHeader)...)
	copy(b.buf[refsHeader:], b.buf[blockHeader:blockHeader+rest])
	b.buf[0] = blockVersionRefs
	binary.LittleEndian.PutUint32(b.buf[blockHeader+8:], uint32(table))
	b.full, b.record = blockHeader-refsHeader, 0
}

// size returns the block's size with the documents and uncompressed, which is what the oplog's size counts.
func (b *opBlock) size() int { return len(b.buf) + b.full }

// stampRefs completes a block of references once the unit has its timestamp.
func (b *opBlock) stampRefs(ts Timestamp) {
	binary.LittleEndian.PutUint64(b.buf[blockHeader:], uint64(ts))
	binary.LittleEndian.PutUint32(b.buf[blockHeader+12:], uint32(b.size()))
}

// isRefs reports whether a stored block refers to versions.
func isRefs(p []byte) bool { return len(p) >= refsHeader && p[0] == blockVersionRefs }

// refsUnit returns the table and the timestamp of the versions that a block of references names.
func refsUnit(p []byte) (table catalog.Ident, ts Timestamp) {
	return catalog.Ident(binary.LittleEndian.Uint32(p[blockHeader+8:])), Timestamp(binary.LittleEndian.Uint64(p[blockHeader:]))
}

func refsSize(p []byte) int64 { return int64(binary.LittleEndian.Uint32(p[blockHeader+12:])) }

// inlineBlock appends to dst the block with the documents in place of references to them. doc returns nil for a document that is not there; the result
// is nil then.
func inlineBlock(dst, p []byte, doc func(rid uint64) ([]byte, error)) ([]byte, error) {
	n := int(binary.LittleEndian.Uint32(p[1:]))
	dst = append(append(dst, blockVersion), p[1:blockHeader]...)
	r := &blockReader{p: p[refsHeader:]}
	from := r.p
	r.uvarint()
	if f := r.take(1); f != nil && f[0] != noSession {
		r.doc()
		r.varint()
		if f[0] == sessionAt {
			r.uvarint()
			r.varint()
		}
	}
	rid := uint64(0)
	for range n {
		h := r.take(2)
		if h == nil {
			break
		}
		flags := h[1]
		if flags&entrySameNS == 0 {
			r.take(int(r.uvarint()))
		}
		if flags&entryUUID != 0 {
			r.take(16)
		}
		if flags&entryStmt != 0 {
			r.varint()
		}
		dst = append(dst, from[:len(from)-len(r.p)]...)
		if rid += r.uvarint(); r.bad {
			break
		}
		d, err := doc(rid)
		if err != nil || d == nil {
			return nil, err
		}
		dst = append(dst, d...)
		from = r.p
		if flags&entryO2 != 0 {
			r.doc()
		}
		if flags&entryExtra != 0 {
			r.doc()
		}
	}
	if r.bad {
		return nil, corrupt("an oplog block of references is unreadable")
	}
	return append(dst, from[:len(from)-len(r.p)]...), nil
}

// versionsAt finds the versions of records that one unit has written.
type versionsAt struct {
	it  *pebble.Iterator
	id  catalog.Ident
	ts  Timestamp
	key []byte
}

// doc returns the version of a record, nil if there is none. It is borrowed until the next call. Records are asked for in order as a rule: a step
// is cheaper than a seek.
func (v *versionsAt) doc(rid uint64) ([]byte, error) {
	v.key = binary.BigEndian.AppendUint64(appendIdent(v.key[:0], v.id), rid)
	v.key = appendVersion(v.key, uint64(v.ts))
	if !v.it.Valid() || !v.it.Next() || !bytes.Equal(v.it.Key(), v.key) {
		if !v.it.SeekGE(v.key) || !bytes.Equal(v.it.Key(), v.key) {
			return nil, v.it.Error()
		}
	}
	return v.it.ValueAndErr()
}

// withDocuments turns a block of references, with its time in the oplog, into a block with documents.
func (e *Engine) withDocuments(at Timestamp, p []byte) ([]byte, error) {
	table, ts := refsUnit(p)
	lower, upper := identRange(table)
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, err
	}
	defer closeQuietly(it)
	v := versionsAt{it: it, id: table, ts: ts}
	whole, err := inlineBlock(make([]byte, 0, refsSize(p)), p, v.doc)
	if err != nil || whole != nil {
		return whole, err
	}
	// The versions are gone, so the block has been replaced before, or truncated.
	again, err := e.getMeta(timeKey(nil, identOplog, at))
	switch {
	case err != nil:
		return nil, err
	case again == nil:
		return nil, positionLost(at)
	case isRefs(again) && at <= Timestamp(e.oplog.lost.Load()):
		return nil, positionLost(at)
	case isRefs(again):
		return nil, corrupt("the oplog block at %v refers to documents that are not there", at)
	}
	return again, nil
}

// storedBlock returns the form in which a block with documents is stored.
func storedBlock(plain []byte) []byte {
	b := opBlock{buf: plain}
	b.pack()
	return b.stored()
}

// inlineRefs puts the documents into the blocks of a unit that is too large to write all its versions at one time.
func (u *UnitOfWork) inlineRefs() error {
	var docs map[uint64][]byte
	for _, b := range u.log.blocks {
		if b.table == 0 {
			continue
		}
		if docs == nil {
			u.releaseHeld()
			docs = stagedRecords(u.batch, b.table)
		}
		plain, err := inlineBlock(make([]byte, 0, b.size()), b.buf, func(rid uint64) ([]byte, error) { return docs[rid], nil })
		if err != nil || plain == nil {
			return errorsOr(err, corrupt("the unit has no document that its oplog refers to"))
		}
		b.buf, b.table, b.full = plain, 0, 0
	}
	return nil
}

// stagedRecords returns the documents of a table that a batch has, by RecordId: as they were inserted, if the unit has changed them since.
func stagedRecords(b *pebble.Batch, table catalog.Ident) map[uint64][]byte {
	docs := map[uint64][]byte{}
	for r := batchrepr.Read(b.Repr()); ; {
		_, k, val, ok, err := r.Next()
		if !ok || err != nil {
			return docs
		}
		if user, _, versioned := splitVersion(k); versioned && identOf(k) == table && len(user) == identLen+8 {
			if rid := binary.BigEndian.Uint64(user[identLen:]); docs[rid] == nil {
				docs[rid] = val
			}
		}
	}
}

// blockKeeper puts documents into the blocks that refer to them, before their versions are deleted: it collects blocks, and flush writes them.
type blockKeeper struct {
	e    *Engine
	done map[Timestamp]bool // units whose blocks have been collected
	it   *pebble.Iterator   // over the oplog
	list []keptBlock
	size int

	giveUp Timestamp // blocks up to this time are given up
	lost   Timestamp // the last one that has been
}

// keptBytes is the size at which what has been collected is written: a few deletions may concern many units, and all that they have copied.
const keptBytes = 1 << 20

// keptBlock is a block with its documents.
type keptBlock struct {
	at     Timestamp
	stored []byte
}

func (k *blockKeeper) close() {
	if k.it != nil {
		closeQuietly(k.it)
	}
}

// keep collects the blocks that refer to the versions that a unit has written to a table, some of which are about to be deleted. They are the last of the
// unit's blocks.
func (k *blockKeeper) keep(table catalog.Ident, ts Timestamp) error {
	at := k.e.oplog.refs.placeOf(ts)
	if !k.e.oplog.refs.has(table, at) || k.done[ts] {
		return nil
	}
	if err := k.open(); err != nil {
		return err
	}
	for ok := k.it.SeekLT(timeKey(nil, identOplog, at+1)); ok; ok = k.it.Prev() {
		p, err := k.it.ValueAndErr()
		if err != nil {
			return err
		}
		if !isRefs(p) {
			break
		}
		if _, unit := refsUnit(p); unit != ts {
			break
		}
		if err := k.inline(p); err != nil {
			return err
		}
		if k.size >= keptBytes { // early does no harm: the documents are still there
			if err := k.flush(); err != nil {
				return err
			}
		}
	}
	k.done[ts] = true
	return k.it.Error()
}

func (k *blockKeeper) open() (err error) {
	if k.it == nil {
		lower, upper := identRange(identOplog)
		k.done = map[Timestamp]bool{}
		k.makeRoom()
		k.it, err = k.e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	}
	return err
}

// makeRoom truncates the oplog while the disk is low, so that little has to be put into it; where it remains large its blocks are given up.
func (k *blockKeeper) makeRoom() {
	k.giveUp = 0
	if !k.e.DiskLow() || !k.e.OplogTooLarge() {
		return
	}
	_ = k.e.TruncateOplog() // fails if this member steps down meanwhile: then the new primary truncates
	if k.e.OplogTooLarge() {
		k.giveUp = k.e.oplog.pinned()
	}
}

// inline collects the block that the iterator is on, unless it is given up.
func (k *blockKeeper) inline(p []byte) error {
	at := timeOf(k.it.Key())
	if at <= k.giveUp && !inSession(p) {
		k.lost = max(k.lost, at)
		return nil
	}
	whole, err := k.e.withDocuments(at, p)
	if mongoerr.CodeOf(err) == mongoerr.CappedPositionLost {
		return nil // truncated meanwhile
	}
	if err != nil {
		return err
	}
	if whole[0] == blockVersion {
		whole = storedBlock(whole)
	}
	k.list = append(k.list, keptBlock{at, whole})
	k.size += len(whole)
	return nil
}

// keepAll writes all blocks that refer to a table that is about to be deleted.
func (k *blockKeeper) keepAll(ctx context.Context, table catalog.Ident) error {
	for _, span := range k.e.oplog.refs.of(table) {
		if err := k.open(); err != nil {
			return err
		}
		for ok := k.it.SeekGE(timeKey(nil, identOplog, span.first)); ok && timeOf(k.it.Key()) <= span.last; ok = k.it.Next() {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := k.keepOf(table); err != nil {
				return err
			}
		}
		if err := k.it.Error(); err != nil {
			return err
		}
	}
	return k.flush()
}

// keepOf collects the block that the iterator is on if it refers to a table.
func (k *blockKeeper) keepOf(table catalog.Ident) error {
	p, err := k.it.ValueAndErr()
	if err != nil || !isRefs(p) {
		return err
	}
	if id, _ := refsUnit(p); id != table {
		return nil
	}
	if err := k.inline(p); err != nil || k.size < keptBytes {
		return err
	}
	return k.flush()
}

// before writes what has been collected, and then the batch with the deletions.
func (k *blockKeeper) before(deletions *pebble.Batch) error {
	if err := k.flush(); err != nil {
		return err
	}
	return k.e.applyDead(deletions)
}

// flush writes the blocks that have been collected, but for those that have been truncated since: a truncation is an entry of the replicated log, which
// may come at any time, and a block written after it would stay.
func (k *blockKeeper) flush() error {
	if len(k.list) == 0 && k.lost == 0 {
		return nil
	}
	if err := k.write(); err != nil {
		return err
	}
	k.e.measureSpace()
	k.makeRoom()
	return nil
}

// write writes what has been collected, and the mark of what has been given up: it is there before the deletions are.
func (k *blockKeeper) write() error {
	r := &k.e.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	cut, err := k.e.OplogCut()
	if err != nil {
		return err
	}
	b := k.e.db.NewBatchWithSize(k.size + 64*len(k.list))
	defer closeQuietly(b)
	for _, x := range k.list {
		if x.at > cut {
			_ = b.Set(timeKey(nil, identOplog, x.at), x.stored, nil)
		}
	}
	if lost := &k.e.oplog.lost; uint64(k.lost) > lost.Load() {
		_ = b.Set(metaKey(metaRefsLost), binary.BigEndian.AppendUint64(nil, uint64(k.lost)), nil)
		lost.Store(uint64(k.lost))
	}
	k.list, k.size, k.lost = nil, 0, 0
	return k.e.applyDead(b)
}
