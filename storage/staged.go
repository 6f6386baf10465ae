package storage

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
)

// A unit of work of many megabytes goes through the replicated log in chunks of bounded size. Each chunk is a unit of its
// own, which puts bytes into the table of staged units (identStaging); others commit between them. Once all are there, the
// unit itself is a small entry that says: unfold what is staged. Each member reads the chunks one after the other and
// writes what they hold under the timestamp that the entry has, which readers do not see yet; the last batch has the
// counters and marks, takes the chunks away, and makes the timestamp visible. After a crash in between, the entry is applied
// again from its beginning.
//
// What is staged is a stream of records, cut wherever a chunk is full:
//
//	record = kind u8 | key length uvarint | value length uvarint | key | value
//
// with the kinds of pebble's batches. Timestamps are not known yet: versions have `pending`, and keys of the oplog and of
// superseded versions the distance to it that they will have to the unit's timestamp.
const (
	// stageBytes is the size from which a unit is staged.
	stageBytes = 6 << 20
	// chunkBytes is the size of a chunk. About twice as much is written at once when a staged unit is applied.
	chunkBytes = 2 << 20
	// stagedAtOnce bounds how many chunks of a unit are on their way through the log.
	stagedAtOnce = 2
)

// stagedUnit names what is staged of a unit.
type stagedUnit struct {
	term, number uint64 // of the primary, and among its units
	chunks       uint32
}

const stagedUnitLen = 8 + 8 + 4

func (s *stagedUnit) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, s.term)
	dst = binary.BigEndian.AppendUint64(dst, s.number)
	return binary.BigEndian.AppendUint32(dst, s.chunks)
}

func readStagedUnit(p []byte) *stagedUnit {
	return &stagedUnit{binary.BigEndian.Uint64(p), binary.BigEndian.Uint64(p[8:]), binary.BigEndian.Uint32(p[16:])}
}

// key is that of a chunk; one more than the last is the end of the unit's.
func (s *stagedUnit) key(chunk uint32) []byte {
	at := stagedUnit{s.term, s.number, chunk}
	return appendUnversioned(at.append(appendIdent(nil, identStaging)))
}

// stages tells whether the unit is too large for an entry of the replicated log.
func (e *Engine) stages(u *UnitOfWork) bool {
	return e.replicated() && u.line == lineReplicated && u.Size()+len(u.superseded) > e.opts.stageBytes
}

// stageUnit puts the bulk of a unit into the table of staged units. What stays in the unit is small. Unlike the commit, it
// can be taken back: the unit's claims are held, and nothing of it can be seen. An error leaves the unit to be rolled back.
func (e *Engine) stageUnit(ctx context.Context, u *UnitOfWork) error {
	s := &stager{e: e, u: u, ctx: ctx, room: u.makesRoom(), slots: make(chan struct{}, stagedAtOnce)}
	s.unit = stagedUnit{term: uint64(e.Term()), number: e.replica.staged.Add(1)}
	s.run()
	if err := s.flush(); err != nil {
		s.discard()
		return err
	}
	u.bulk = &s.unit
	u.OnRollback(s.discard)
	return nil
}

// stager makes the chunks of a unit.
type stager struct {
	e    *Engine
	u    *UnitOfWork
	ctx  context.Context
	unit stagedUnit
	buf  []byte
	// entries is how many of the oplog are still to come, logBytes the size of those that went.
	entries  int
	logBytes int64
	room     bool // the unit makes room on the disk
	slots    chan struct{}
	wg       sync.WaitGroup
	mu       sync.Mutex
	err      error
}

// run streams all that the unit has. What is not needed any more is let go at once: the whole is in memory once already.
func (s *stager) run() {
	u := s.u
	u.releaseLatest()
	u.releaseHeld()
	s.batch()
	if len(u.superseded) > 0 {
		s.record(pebble.InternalKeyKindSet, timeKey(nil, identSuperseded, Timestamp(pending)), u.superseded)
		u.superseded = nil
	}
	s.entries = u.log.entries()
	u.log.staged = s.entries
	s.blocks()
	u.closeTransaction(s.blocks)
	u.addDelta(identOplog, s.e.oplog.counters.Load(), int64(u.log.staged), s.logBytes)
}

// batch streams the staged keys. The unit keeps those of system tables: what applies an entry has to see them.
func (s *stager) batch() {
	u := s.u
	if u.own != nil {
		u.own.Release()
		u.own = nil
	}
	from := u.batch
	u.batch = nil
	if from == nil {
		return
	}
	skip := int(u.inherited)
	u.inherited = 0
	for r := batchrepr.Read(from.Repr()); ; {
		kind, k, v, ok, err := r.Next()
		if !ok || err != nil {
			break
		}
		if skip--; skip >= 0 {
			continue
		}
		if identOf(k) >= identFirst || kind == pebble.InternalKeyKindRangeDelete {
			s.record(kind, k, v)
		} else if kind == pebble.InternalKeyKindDelete {
			_ = u.stage().Delete(k, nil)
		} else {
			_ = u.stage().Set(k, v, nil)
		}
	}
	closeQuietly(from)
}

// blocks streams the oplog blocks that are complete.
func (s *stager) blocks() {
	l := &s.u.log
	for _, b := range l.blocks {
		b.pack()
		s.entries -= b.count
		s.record(pebble.InternalKeyKindSet, timeKey(nil, identOplog, Timestamp(pending-uint64(s.entries))), b.stored())
		s.logBytes += int64(len(b.buf))
	}
	l.free()
}

func (s *stager) record(kind pebble.InternalKeyKind, key, val []byte) {
	s.buf = append(s.buf, byte(kind))
	s.buf = binary.AppendUvarint(s.buf, uint64(len(key)))
	s.buf = binary.AppendUvarint(s.buf, uint64(len(val)))
	s.bytes(key)
	s.bytes(val)
}

// bytes adds to the stream, a chunk at most at a time: one value may have many.
func (s *stager) bytes(p []byte) {
	for len(p) > 0 {
		n := min(len(p), max(s.e.opts.chunkBytes-len(s.buf), 0))
		s.buf = append(s.buf, p[:n]...)
		if p = p[n:]; len(s.buf) >= s.e.opts.chunkBytes {
			s.chunk()
		}
	}
}

// chunk sends what has been collected. It waits while enough is on its way.
func (s *stager) chunk() {
	key, val := s.unit.key(s.unit.chunks), s.buf
	s.unit.chunks++
	s.buf = make([]byte, 0, s.e.opts.chunkBytes+64)
	s.slots <- struct{}{}
	if s.failed() != nil {
		<-s.slots
		return
	}
	s.wg.Add(1)
	go func() {
		defer func() { <-s.slots; s.wg.Done() }()
		s.note(s.put(key, val))
	}()
}

// put commits one chunk, in the role that the unit began in.
func (s *stager) put(key, val []byte) error {
	if err := s.ctx.Err(); err != nil {
		return context.Cause(s.ctx)
	}
	if err := s.e.checkSpace(s.room); err != nil && !mayUseReserve(s.ctx) {
		return err
	}
	p := s.e.NewUnitOfWork(nil)
	p.gen = s.u.gen
	p.stageRaw(func(b *pebble.Batch) error { return b.Set(key, val, nil) })
	_, err := s.e.commitUnit(context.WithoutCancel(s.ctx), p, false)
	return err
}

func (s *stager) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

func (s *stager) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// flush sends the last chunk and waits until all are there.
func (s *stager) flush() error {
	if len(s.buf) > 0 {
		s.chunk()
	}
	s.buf = nil
	s.wg.Wait()
	return s.failed()
}

// discard takes the chunks of a unit away that is not committed, where this member may still write; else the next primary
// does. Nobody waits for it: the unit may fail in the hands of who leads the commits.
func (s *stager) discard() {
	e, unit, gen := s.e, s.unit, s.u.gen
	c := &e.commit
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return
	}
	c.owners.Add(1)
	go func() {
		defer c.owners.Done()
		_ = e.deleteStaged(gen, unit.key(0), unit.key(unit.chunks))
	}()
}

// deleteStaged deletes chunks on all members.
func (e *Engine) deleteStaged(gen uint64, from, to []byte) error {
	u := e.NewUnitOfWork(nil)
	u.gen = gen
	u.stageRaw(func(b *pebble.Batch) error { return b.DeleteRange(from, to, nil) })
	_, err := e.commitUnit(context.Background(), u, false)
	return err
}

// dropAbandoned deletes what primaries of earlier terms have staged and not committed. Only a primary does anything.
func (e *Engine) dropAbandoned() error {
	gen := e.replica.gen.Load()
	term := uint64(e.Term())
	if !e.replicated() || !e.writable() {
		return nil
	}
	lower, _ := identRange(identStaging)
	upper := (&stagedUnit{term: term}).key(0)
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return err
	}
	found := it.First()
	if err := errorsJoin(it.Error(), it.Close()); err != nil || !found {
		return err
	}
	return e.deleteStaged(gen, lower, upper)
}

// markStaged adds to a staged unit's batch what ends its time in the table. It is called when the unit gets its timestamp.
func (u *UnitOfWork) markStaged(b *pebble.Batch) {
	_ = b.DeleteRange(u.bulk.key(0), u.bulk.key(u.bulk.chunks), nil)
	_ = b.Delete(metaKey(metaUnfolding), nil)
}

// unfold writes what is staged of a unit under its timestamp. replica.mu is held: no snapshot may come in between.
func (e *Engine) unfold(s *stagedUnit, ts Timestamp) error {
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: s.key(0), UpperBound: s.key(s.chunks)})
	if err != nil {
		return err
	}
	defer closeQuietly(it)
	f := unfolder{e: e, ts: ts, b: e.db.NewBatch()}
	defer func() { closeQuietly(f.b) }()
	// Who finds this knows that the store has versions of a unit that is not applied.
	_ = f.b.Set(metaKey(metaUnfolding), binary.BigEndian.AppendUint64(nil, uint64(ts)), nil)
	chunks := uint32(0)
	for ok := it.First(); ok; ok = it.Next() {
		p, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if !bytes.Equal(it.Key(), s.key(chunks)) {
			break
		}
		chunks++
		if err := f.take(p); err != nil {
			return err
		}
	}
	if err := it.Error(); err != nil {
		return err
	}
	if chunks != s.chunks || len(f.rest) > 0 {
		return corrupt("of a unit of work at %v, %d chunks of %d are there", ts, chunks, s.chunks)
	}
	return f.write()
}

// unfolder turns the stream of a staged unit into batches.
type unfolder struct {
	e    *Engine
	ts   Timestamp
	b    *pebble.Batch
	rest []byte // a record that is not complete
}

// take takes a chunk in.
func (f *unfolder) take(chunk []byte) error {
	p := chunk
	if len(f.rest) > 0 {
		f.rest = append(f.rest, chunk...)
		p = f.rest
	}
	for {
		n, err := f.record(p)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		p = p[n:]
		if f.b.Len() >= 2*f.e.opts.chunkBytes {
			if err := f.write(); err != nil {
				return err
			}
		}
	}
	f.rest = append(f.rest[:0], p...)
	return nil
}

// record stages the first record of p; n is its length, 0 where it is not complete.
func (f *unfolder) record(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	kind := pebble.InternalKeyKind(p[0])
	key, a := binary.Uvarint(p[1:])
	if a <= 0 {
		return 0, nil
	}
	val, b := binary.Uvarint(p[1+a:])
	if b <= 0 {
		return 0, nil
	}
	head := 1 + a + b
	if uint64(len(p)-head) < key+val {
		return 0, nil
	}
	k, v := p[head:head+int(key)], p[head+int(key):head+int(key+val)]
	switch kind {
	case pebble.InternalKeyKindSet, pebble.InternalKeyKindSetWithDelete:
		op := f.b.SetDeferred(len(k), len(v))
		copy(op.Key, k)
		copy(op.Value, v)
		f.stamp(op.Key)
		err = op.Finish()
	case pebble.InternalKeyKindDelete:
		err = f.b.Delete(k, nil)
	case pebble.InternalKeyKindRangeDelete:
		err = f.b.DeleteRange(k, v, nil)
	default:
		err = corrupt("a staged unit of work at %v has a record of kind %v", f.ts, kind)
	}
	return head + int(key+val), err
}

// stamp puts the unit's timestamp into a key.
func (f *unfolder) stamp(k []byte) {
	switch id := identOf(k); {
	case id == identOplog || id == identSuperseded:
		at := k[identLen : identLen+8]
		binary.BigEndian.PutUint64(at, uint64(f.ts)-(pending-binary.BigEndian.Uint64(at)))
	case len(k) > suffixLen && k[len(k)-1] == suffixLen && binary.BigEndian.Uint64(k[len(k)-suffixLen:]) == pending:
		binary.BigEndian.PutUint64(k[len(k)-suffixLen:], uint64(f.ts))
	}
}

func (f *unfolder) write() error {
	if f.b.Empty() {
		return nil
	}
	err := f.e.guard(func() error { return f.e.db.Apply(f.b, pebble.NoSync) })
	closeQuietly(f.b)
	f.b = f.e.db.NewBatch()
	return err
}
