package storage

import (
	"bytes"
	"context"
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/shoaldb/shoal/storage/catalog"
)

// A unit of work of many megabytes goes through the replicated log in chunks of bounded size. Each chunk is a unit of
// its own that writes part of the versions to their tables, where they are not visible yet (late.go); other units
// commit in between. A transaction sends chunks while it is under way, which bounds its memory too. The commit is then
// an entry as small as any other: it says from when the versions are visible, and has oplog blocks that refer to pieces
// sent with the chunks. If a unit fails, its versions are deleted using the lists of keys that are kept until then.
//
// Invariant: no reader sees a version that was sent ahead before its unit has committed, and the versions of a unit that failed are deleted.
// Hazard: the primary may fail between two chunks, which then remain without an owner. The keys of the table therefore have the primary's term:
// chunks of an earlier term whose unit has not committed are abandoned, and deleted (dropAbandoned). Rejected: one log entry for the whole unit.
// Each member would hold it in memory, and all later commits would wait until it is replicated.
//
// The table of staged units; all keys of a unit are adjacent:
//
//	term, number, 0 @commit            the unit has committed; kept until no reader reads at a time before that
//	term, number, 1, chunk @version    keys of the chunk, and keys that have an older version; kept as long
//	term, number, 2, piece             of blocks of the oplog; kept until the oplog is truncated there
//	term, number, 3                    the pieces belong to the oplog
const (
	// stageBytes is the default size from which a unit is staged, see SetLargeUnits.
	stageBytes = 6 << 20
	// chunkBytes is the size of a chunk; only one with a larger document exceeds it.
	chunkBytes = 2 << 20
)

// The kinds of keys in the table of staged units.
const (
	stagedSeen byte = iota
	stagedChunk
	stagedPiece
	stagedLogged
	stagedEnd
)

// stagedID identifies a staged unit: the term of the primary, and a number unique in that term.
type stagedID struct{ term, number uint64 }

const stagedIDLen = 8 + 8

func (s stagedID) user(kind byte, n uint32) []byte {
	k := binary.BigEndian.AppendUint64(appendIdent(nil, identStaging), s.term)
	k = append(binary.BigEndian.AppendUint64(k, s.number), kind)
	return binary.BigEndian.AppendUint32(k, n)
}

// key returns a key without version. Versioned keys sort immediately after it.
func (s stagedID) key(kind byte, n uint32) []byte { return appendUnversioned(s.user(kind, n)) }

func splitStagedKey(k []byte) (id stagedID, kind byte, ok bool) {
	if len(k) < identLen+stagedIDLen+1 || identOf(k) != identStaging {
		return id, 0, false
	}
	k = k[identLen:]
	return stagedID{binary.BigEndian.Uint64(k), binary.BigEndian.Uint64(k[8:])}, k[stagedIDLen], true
}

// stages reports whether the unit is too large for one entry of the replicated log.
func (e *Engine) stages(u *UnitOfWork) bool {
	return e.replicated() && u.line == lineReplicated && u.Size()+len(u.superseded) > e.replica.staging.limit()
}

// spill sends ahead what a transaction has written so far, if that is much. Its statements still see it. A set of
// one member does so too: it needs as much memory otherwise, and the commit stays small.
func (u *UnitOfWork) spill() error {
	if u.own == nil || u.behind != nil || len(u.capped) > 0 || u.batch == nil || u.line != lineReplicated {
		return nil
	}
	if u.batch.Len()+len(u.superseded)+u.log.closed() <= u.e.replica.staging.limit() {
		return nil
	}
	if err := u.e.stageUnit(context.Background(), u, false); err != nil {
		return err
	}
	if u.log.prepared.record == 0 { // that document is not sent ahead
		u.e.claims.sentAhead(u)
	}
	return nil
}

// stageUnit sends the bulk of a unit ahead in chunks, and with all, everything, because the unit is about to
// commit. What remains is small. Unlike the commit this can be undone: the unit's claims are held, and nothing of
// it is visible. After an error the unit must be rolled back.
func (e *Engine) stageUnit(ctx context.Context, u *UnitOfWork, all bool) error {
	if err := u.inlineRefs(); err != nil { // what is sent ahead has other timestamps
		return err
	}
	if u.bulk == nil {
		u.bulk = &stager{e: e, u: u, id: e.replica.staging.begin(uint64(e.Term()))}
		u.OnRollback(u.discardSent)
		u.OnCommit(func(Timestamp) { e.replica.staging.end(u.bulk.id, true) })
	}
	s := u.bulk
	s.ctx, s.needsRoom, s.chunk = ctx, u.needsRoom(), e.replica.staging.chunk()
	if s.err == nil {
		s.err = s.reserveImages()
	}
	s.run(all)
	return s.flush()
}

// stager splits a unit into chunks.
type stager struct {
	e         *Engine
	u         *UnitOfWork
	ctx       context.Context
	id        stagedID
	needsRoom bool // see UnitOfWork.needsRoom
	chunk     int  // size of a chunk

	at     timestamps // of the chunks that are stored
	chunks uint32
	pieces uint32
	writes int // number of keys taken from the unit

	yielded bool // the unit has given up claims, see claimTable.sentAhead
	adopted bool // the versions protect their keys until another unit ends

	batch  *pebble.Batch // the chunk that is being filled
	list   chunkKeys
	logged bool       // the pieces belong to the oplog: the unit is prepared
	sent   chan error // result of the chunk in flight; nil for none
	err    error
}

// run sends what the unit has, freeing memory that is no longer needed.
func (s *stager) run(all bool) {
	u := s.u
	u.releaseLatest()
	u.releaseHeld()
	s.versions()
	superseded := u.superseded
	u.superseded = nil
	_ = eachKey(superseded, func(key []byte) error {
		if identOf(key) < identFirst {
			u.superseded = appendKey(u.superseded, key)
			return nil
		}
		s.list.superseded = appendKey(s.list.superseded, key)
		s.fill()
		return nil
	})
	if all {
		s.blocks(len(u.log.blocks))
		u.closeTransaction(func() { s.blocks(len(u.log.blocks)) })
		return
	}
	s.blocks(len(u.log.blocks) - 1)
	u.partialTransaction(func() { s.blocks(len(u.log.blocks)) })
}

// versions sends the versions that the unit has staged; its own readers then find them in the store. The unit
// keeps its keys of system tables, because a member that applies the entry has to see those.
func (s *stager) versions() {
	u := s.u
	from := u.batch
	if from == nil {
		return
	}
	before := u.writes()
	if u.batch = nil; u.own != nil {
		u.batch = s.e.db.NewIndexedBatch()
	}
	skip := int(u.keys.inherited)
	u.keys.inherited = 0
	for r := batchrepr.Read(from.Repr()); ; {
		kind, k, v, ok, err := r.Next()
		if !ok || err != nil {
			break
		}
		if skip--; skip >= 0 {
			continue
		}
		user, ts, versioned := splitVersion(k)
		if m := u.log.images; versioned && ts == pending && m.holds(kind, k, v) {
			if m.reserved == 0 { // otherwise the image gets its timestamp with the unit
				_ = u.stage().Set(k, v, nil)
				continue
			}
			k, v = bytes.Clone(k), bytes.Clone(v) // iterators of the unit's own view may be reading the batch
			setImageTime(k, v, m.reserved)
			user = k[:len(user)]
		}
		switch {
		case u.log.prepared.holds(kind, k):
			_ = u.stage().Set(k, v, nil) // it gets its timestamps with the unit
		case versioned && ts == pending && identOf(k) >= identFirst && kind == pebble.InternalKeyKindSet:
			s.set(k, v)
			s.list.keys = appendKey(s.list.keys, user)
			s.fill()
		case kind == pebble.InternalKeyKindDelete:
			_ = u.stage().Delete(k, nil)
		case kind == pebble.InternalKeyKindRangeDelete:
			_ = u.stage().DeleteRange(k, v, nil)
		default:
			_ = u.stage().Set(k, v, nil)
		}
	}
	s.writes = before + 1 // makes cursors over the unit's view read again
	if u.own == nil {
		closeQuietly(from)
	} // otherwise iterators of that view may be reading it
}

// blocks sends the first n blocks of the unit's oplog, split into pieces.
func (s *stager) blocks(n int) {
	l := &s.u.log
	for i := range max(n, 0) {
		b := l.blocks[i]
		b.pack()
		stored := b.stored()
		ref := oplogRef{id: s.id, count: b.count, wall: b.buf[5:blockHeader], size: len(b.buf), first: s.pieces}
		for len(stored) > 0 {
			part := stored[:min(len(stored), s.chunk)]
			stored = stored[len(part):]
			s.set(s.id.key(stagedPiece, s.pieces), part)
			s.pieces++
			s.fill()
		}
		ref.wall, ref.pieces = bytes.Clone(ref.wall), s.pieces-ref.first
		l.refs = append(l.refs, ref)
		l.staged += b.count
	}
	l.freeFirst(max(n, 0))
}

func (s *stager) set(k, v []byte) {
	if s.batch == nil {
		s.batch = s.e.db.NewBatchWithSize(s.chunk + s.chunk/4)
	}
	_ = s.batch.Set(k, v, nil)
}

// fill sends the chunk if it is full.
func (s *stager) fill() {
	n := len(s.list.keys) + len(s.list.superseded)
	if s.batch != nil {
		n += s.batch.Len()
	}
	if n >= s.chunk {
		s.send()
	}
}

// send sends what has been collected. One chunk is in flight while the next is filled, but not more: a key may be
// in both, and the later chunk must get the later timestamp.
func (s *stager) send() {
	s.set(appendVersion(s.id.user(stagedChunk, s.chunks), pending), s.list.value())
	if len(s.u.catalogs.ops) > 0 { // tables created by the unit are not in any catalog yet
		s.set(metaKey(metaNext), s.e.nextNumbers())
	}
	b := s.batch
	s.batch, s.list = nil, chunkKeys{}
	s.chunks++
	if s.await(); s.err != nil {
		closeQuietly(b)
		return
	}
	s.sent = make(chan error, 1)
	go func() { s.sent <- s.put(b) }()
}

// put commits one chunk, in the role that the unit began in.
func (s *stager) put(b *pebble.Batch) error {
	s.e.pace(s.ctx, b.Len())
	p := s.e.NewUnitOfWork(nil)
	p.gen, p.batch = s.u.gen, b
	err := s.ctx.Err()
	if err != nil {
		err = context.Cause(s.ctx)
	} else if err = s.e.checkSpace(func() bool { return s.needsRoom }); mayUseReserve(s.ctx) {
		err = nil
	}
	if err != nil {
		p.Rollback()
		return err
	}
	_, err = s.e.queueUnit(context.WithoutCancel(s.ctx), p, false)
	if err == nil {
		s.at = append(s.at, uint64(p.wait.at))
	}
	return err
}

// await waits for the chunk in flight.
func (s *stager) await() {
	if s.sent == nil {
		return
	}
	if err := <-s.sent; s.err == nil {
		s.err = err
	}
	s.sent = nil
}

// flush sends the last chunk and waits until all are stored.
func (s *stager) flush() error {
	if s.batch != nil || len(s.list.superseded) > 0 {
		s.send()
	}
	s.await()
	return s.err
}

// mark adds to the batch, once the unit has its timestamp, the key that makes its chunks part of it.
func (s *stager) mark(b *pebble.Batch, ts Timestamp) lateEdit {
	_ = b.Set(appendVersion(s.id.user(stagedSeen, 0), uint64(ts)), nil, nil)
	return lateEdit{s.id, stagedSeen, ts}
}

// times returns the timestamps of the unit's chunks, which its own view shows.
func (s *stager) times() timestamps {
	if s == nil {
		return nil
	}
	return s.at
}

// discard deletes what an uncommitted unit has staged, if this member may still write; otherwise the next primary
// does. It runs in the background, because the unit may fail in the hands of the commit leader.
func (s *stager) discard() {
	e, gen := s.e, s.u.gen
	c := &e.commit
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		e.replica.staging.end(s.id, false)
		return
	}
	c.owners.Add(1)
	go func() {
		defer c.owners.Done()
		s.await()
		e.replica.staging.end(s.id, e.discardStaged(gen, s.id, s.logged) == nil)
	}()
}

// oplogRef is an oplog block whose content is stored in pieces in the table of staged units.
type oplogRef struct {
	id     stagedID // of the unit that the pieces came with
	count  int
	wall   []byte
	size   int // uncompressed
	first  uint32
	pieces uint32
}

// value returns the block as the oplog stores it: version, number of entries and wall time like other blocks, then
// the size and the location of the pieces. last marks the unit's last block, with which everything that is left of
// the unit is deleted.
func (r *oplogRef) value(last bool) []byte {
	p := binary.LittleEndian.AppendUint32([]byte{blockVersionStaged}, uint32(r.count))
	p = append(p, r.wall...)
	for _, n := range []uint64{uint64(r.size), r.id.term, r.id.number, uint64(r.first), uint64(r.pieces)} {
		p = binary.AppendUvarint(p, n)
	}
	if last {
		return append(p, 1)
	}
	return append(p, 0)
}

// refOf decodes a block that is stored in pieces.
func refOf(p []byte) (r oplogRef, id stagedID, last, ok bool) {
	if len(p) < blockHeader || p[0] != blockVersionStaged {
		return r, id, false, false
	}
	b := blockReader{p: p[blockHeader:]}
	r.size = int(b.uvarint())
	id.term, id.number = b.uvarint(), b.uvarint()
	r.first, r.pieces = uint32(b.uvarint()), uint32(b.uvarint())
	end := b.take(1)
	return r, id, !b.bad && end[0] == 1, !b.bad
}

// blockBytes returns the whole block, reading its pieces if it is stored in pieces, and the documents that it refers to. Pieces are deleted when the
// oplog is truncated.
func (e *Engine) blockBytes(at Timestamp, p []byte) ([]byte, error) {
	if isRefs(p) {
		return e.withDocuments(at, p)
	}
	r, id, _, ok := refOf(p)
	if !ok {
		return p, nil
	}
	var whole []byte
	for i := range r.pieces {
		part, err := e.getMeta(id.key(stagedPiece, r.first+i))
		if err != nil {
			return nil, err
		}
		if part == nil {
			return nil, positionLost(at)
		}
		whole = append(whole, part...)
	}
	return whole, nil
}

// dropPieces stages the deletion of the pieces of a block that is truncated.
func dropPieces(b *pebble.Batch, block []byte) {
	if r, id, last, ok := refOf(block); ok {
		to := id.key(stagedPiece, r.first+r.pieces)
		if last {
			to = id.key(stagedEnd, 0)
		}
		_ = b.DeleteRange(id.key(stagedPiece, r.first), to, nil)
	}
}

// stagedVersion looks a key up among the unit's staged versions; known is false if it is not there.
func (u *UnitOfWork) stagedVersion(id catalog.Ident, user []byte) (live, known bool, err error) {
	it, err := u.own.iterator(nil, nil)
	if err != nil {
		return false, false, err
	}
	defer closeQuietly(it)
	u.own.aim(&it.v, id)
	_, live, err = it.v.get(append(appendIdent(nil, id), user...))
	at := it.v.at
	return live, at == pending || u.bulk.at.has(at), err
}

// sentDuplicate is stagedDuplicate for a unit that is partly in the store: its own view shows all of it.
func (u *UnitOfWork) sentDuplicate(idx *catalog.Index, key []byte, rid RecordID) (bool, error) {
	prefix := append(appendIdent(nil, idx.Ident), key...)
	it, err := u.own.iterator(nil, nil)
	if err != nil {
		return false, err
	}
	defer closeQuietly(it)
	v := &it.v
	u.own.aim(v, idx.Ident)
	var buf [8]byte
	for ok := v.seekPrefix(prefix); ok; ok = v.next() {
		ks, other, fine := splitIndexKey(idx, v.user[identLen:], &buf)
		if fine && bytes.Equal(ks, key) && !bytes.Equal(other, rid) && (v.at == pending || u.bulk.at.has(v.at)) {
			return true, nil
		}
	}
	return false, v.err
}
