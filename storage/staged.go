package storage

import (
	"bytes"
	"context"
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
)

// A unit of work of many megabytes goes through the replicated log in chunks of bounded size. Each chunk is a unit of its
// own, which writes a part of the versions to their tables, where nobody sees them yet (late.go); others commit between
// them. A transaction sends chunks while it is under way, so that its memory is bounded too. The commit is then an entry as
// small as any: it says from when the versions are visible, and has blocks of the oplog that refer to pieces which came with
// the chunks. A unit that fails has its versions deleted, by the lists of keys that are kept until then.
//
// The table of staged units, all keys of a unit behind each other:
//
//	term, number, 0 @commit            the unit has committed; until no reader is of a time before that
//	term, number, 1, chunk @version    keys of the chunk, and keys that have an older version; as long
//	term, number, 2, piece             of blocks of the oplog; until the oplog is truncated there
//	term, number, 3                    the pieces belong to the oplog
const (
	// stageBytes is the size from which a unit is staged, unless SetLargeUnits says another.
	stageBytes = 6 << 20
	// chunkBytes is the size of a chunk, but for a document that is larger.
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

// stagedID names a staged unit: the term of the primary, and a number among its units.
type stagedID struct{ term, number uint64 }

const stagedIDLen = 8 + 8

func (s stagedID) user(kind byte, n uint32) []byte {
	k := binary.BigEndian.AppendUint64(appendIdent(nil, identStaging), s.term)
	k = append(binary.BigEndian.AppendUint64(k, s.number), kind)
	return binary.BigEndian.AppendUint32(k, n)
}

// key is a key without version. Those with one come right behind it.
func (s stagedID) key(kind byte, n uint32) []byte { return appendUnversioned(s.user(kind, n)) }

func splitStagedKey(k []byte) (id stagedID, kind byte, ok bool) {
	if len(k) < identLen+stagedIDLen+1 || identOf(k) != identStaging {
		return id, 0, false
	}
	k = k[identLen:]
	return stagedID{binary.BigEndian.Uint64(k), binary.BigEndian.Uint64(k[8:])}, k[stagedIDLen], true
}

// stages tells whether the unit is too large for an entry of the replicated log.
func (e *Engine) stages(u *UnitOfWork) bool {
	return e.replicated() && u.line == lineReplicated && u.Size()+len(u.superseded) > e.replica.staging.limit()
}

// spill stages what a transaction has written so far, where that is much. Its statements see it as before. A set of one member
// does so too: what it would keep in memory is as much, and what commits is small.
func (u *UnitOfWork) spill() error {
	if u.own == nil || u.behind != nil || len(u.capped) > 0 || u.batch == nil || u.line != lineReplicated {
		return nil
	}
	if u.batch.Len()+len(u.superseded)+u.log.closed() <= u.e.replica.staging.limit() {
		return nil
	}
	return u.e.stageUnit(context.Background(), u, false)
}

// stageUnit sends the bulk of a unit in chunks; all of it where the unit is about to commit. What stays is small. Unlike the
// commit, it can be taken back: the unit's claims are held, and nothing of it can be seen. An error leaves the unit to be
// rolled back.
func (e *Engine) stageUnit(ctx context.Context, u *UnitOfWork, all bool) error {
	if u.bulk == nil {
		u.bulk = &stager{e: e, u: u, id: e.replica.staging.begin(uint64(e.Term()))}
		u.OnRollback(u.bulk.discard)
		u.OnCommit(func(Timestamp) { e.replica.staging.end(u.bulk.id, true) })
	}
	s := u.bulk
	s.ctx, s.room, s.chunk = ctx, u.makesRoom(), e.replica.staging.chunk()
	if s.err == nil {
		s.err = s.reserveImages()
	}
	s.run(all)
	return s.flush()
}

// stager makes the chunks of a unit.
type stager struct {
	e     *Engine
	u     *UnitOfWork
	ctx   context.Context
	id    stagedID
	room  bool // the unit makes room on the disk
	chunk int  // size of one

	at     hiddenTimes // of the chunks that are there
	chunks uint32
	pieces uint32
	writes int        // keys that were the unit's
	refs   []oplogRef // the blocks of the oplog, in order

	batch *pebble.Batch // the chunk that is being filled
	list  chunkKeys
	sent  chan error // of the chunk that is on its way; nil for none
	err   error
}

// run streams what the unit has. What is not needed any more is let go at once.
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

// versions streams the versions that the unit has staged. Readers of the unit's own view find them in the store then. The
// unit keeps what it has for system tables: what applies an entry has to see that.
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
			if m.reserved == 0 { // the image gets its timestamp with the unit
				_ = u.stage().Set(k, v, nil)
				continue
			}
			k, v = bytes.Clone(k), bytes.Clone(v) // iterators of the unit's own view may be reading the batch
			setImageTime(k, v, m.reserved)
			user = k[:len(user)]
		}
		switch {
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
	s.writes = before + 1 // cursors over the own view read anew
	if u.own == nil {
		closeQuietly(from)
	} // else iterators of that view may be reading it
}

// blocks streams the first blocks of the unit's oplog, cut into pieces.
func (s *stager) blocks(n int) {
	l := &s.u.log
	for i := range max(n, 0) {
		b := l.blocks[i]
		b.pack()
		stored := b.stored()
		ref := oplogRef{count: b.count, wall: b.buf[5:blockHeader], size: len(b.buf), first: s.pieces}
		for len(stored) > 0 {
			part := stored[:min(len(stored), s.chunk)]
			stored = stored[len(part):]
			s.set(s.id.key(stagedPiece, s.pieces), part)
			s.pieces++
			s.fill()
		}
		ref.wall, ref.pieces = bytes.Clone(ref.wall), s.pieces-ref.first
		s.refs = append(s.refs, ref)
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

// fill sends the chunk where it is full.
func (s *stager) fill() {
	n := len(s.list.keys) + len(s.list.superseded)
	if s.batch != nil {
		n += s.batch.Len()
	}
	if n >= s.chunk {
		s.send()
	}
}

// send sends what has been collected. One chunk is on its way while the next is filled: a key may be in both, and the later
// one has to have the later timestamp.
func (s *stager) send() {
	s.set(appendVersion(s.id.user(stagedChunk, s.chunks), pending), s.list.value())
	if len(s.u.catalogs.ops) > 0 { // tables of the unit's own are in no catalog yet
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
	p := s.e.NewUnitOfWork(nil)
	p.gen, p.batch = s.u.gen, b
	err := s.ctx.Err()
	if err != nil {
		err = context.Cause(s.ctx)
	} else if err = s.e.checkSpace(s.room); mayUseReserve(s.ctx) {
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

// await waits for the chunk that is on its way.
func (s *stager) await() {
	if s.sent == nil {
		return
	}
	if err := <-s.sent; s.err == nil {
		s.err = err
	}
	s.sent = nil
}

// flush sends the last chunk and waits until all are there.
func (s *stager) flush() error {
	if s.batch != nil || len(s.list.superseded) > 0 {
		s.send()
	}
	s.await()
	return s.err
}

// mark adds to the unit's batch what makes its chunks part of it, when it gets its timestamp.
func (s *stager) mark(b *pebble.Batch, ts Timestamp) lateEdit {
	_ = b.Set(appendVersion(s.id.user(stagedSeen, 0), uint64(ts)), nil, nil)
	if len(s.refs) > 0 {
		_ = b.Set(s.id.key(stagedLogged, 0), nil, nil)
	}
	return lateEdit{s.id, stagedSeen, ts}
}

// times are the timestamps of the unit's own chunks, which its own view shows.
func (s *stager) times() hiddenTimes {
	if s == nil {
		return nil
	}
	return s.at
}

// transactionOps calls f with the operations that were sent ahead, as applyOps arrays.
func (s *stager) transactionOps(f func(array []byte) error) error {
	if s == nil {
		return nil
	}
	for _, ref := range s.refs {
		p, err := s.e.blockBytes(0, ref.value(s.id, false))
		if err != nil {
			return err
		}
		var b openBlock
		if err := b.read(0, p); err != nil {
			return err
		}
		for i := range b.entries {
			if err := f(value.Lookup(b.entries[i].O, "applyOps").Doc()); err != nil {
				return err
			}
		}
	}
	return nil
}

// discard takes away what was staged of a unit that is not committed, where this member may still write; else the next
// primary does. Nobody waits for it: the unit may fail in the hands of who leads the commits.
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
		e.replica.staging.end(s.id, e.discardStaged(gen, s.id) == nil)
	}()
}

// oplogRef is a block of the oplog whose content is in pieces among what is staged.
type oplogRef struct {
	count  int
	wall   []byte
	size   int // unpacked
	first  uint32
	pieces uint32
}

// value is the block as the oplog has it: version, entries and time as in others, the size, and where the pieces are. The
// unit's last block says so: with it goes all that is left of the unit.
func (r *oplogRef) value(id stagedID, last bool) []byte {
	p := binary.LittleEndian.AppendUint32([]byte{blockVersionStaged}, uint32(r.count))
	p = append(p, r.wall...)
	for _, n := range []uint64{uint64(r.size), id.term, id.number, uint64(r.first), uint64(r.pieces)} {
		p = binary.AppendUvarint(p, n)
	}
	if last {
		return append(p, 1)
	}
	return append(p, 0)
}

// refOf reads what a block says that is in pieces.
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

// blockBytes gives a block that is in pieces as a whole, others as they are. Pieces go when the oplog is truncated.
func (e *Engine) blockBytes(at Timestamp, p []byte) ([]byte, error) {
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

// dropPieces deletes what a block that is truncated has among what is staged.
func dropPieces(b *pebble.Batch, block []byte) {
	if r, id, last, ok := refOf(block); ok {
		to := id.key(stagedPiece, r.first+r.pieces)
		if last {
			to = id.key(stagedEnd, 0)
		}
		_ = b.DeleteRange(id.key(stagedPiece, r.first), to, nil)
	}
}

// stagedVersion looks a key up among what was staged of the unit; known is false where it is not there.
func (u *UnitOfWork) stagedVersion(id catalog.Ident, user []byte) (live, known bool, err error) {
	it, err := u.own.iterator(nil, nil)
	if err != nil {
		return false, false, err
	}
	defer closeQuietly(it)
	it.v.ts = uint64(u.own.of(id))
	_, live, err = it.v.get(append(appendIdent(nil, id), user...))
	at := it.v.at
	return live, at == pending || u.bulk.at.has(at), err
}

// sentDuplicate is stagedDuplicate for a unit of which a part is in the store: its own view has all of it.
func (u *UnitOfWork) sentDuplicate(idx *catalog.Index, key []byte, rid RecordID) (bool, error) {
	prefix := append(appendIdent(nil, idx.Ident), key...)
	it, err := u.own.iterator(nil, nil)
	if err != nil {
		return false, err
	}
	defer closeQuietly(it)
	v := &it.v
	v.ts = uint64(u.own.of(idx.Ident))
	var buf [8]byte
	for ok := v.seekGE(prefix); ok && bytes.HasPrefix(v.user, prefix); ok = v.next() {
		ks, other, fine := splitIndexKey(idx, v.user[identLen:], &buf)
		if fine && bytes.Equal(ks, key) && !bytes.Equal(other, rid) && (v.at == pending || u.bulk.at.has(v.at)) {
			return true, nil
		}
	}
	return false, v.err
}
