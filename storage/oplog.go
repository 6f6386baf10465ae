package storage

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/klauspost/compress/s2"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// OplogNS is the namespace of the oplog.
const OplogNS = "local.oplog.rs"

// The entries of a unit of work are kept as blocks: one key for up to blockBytes of them, so that a batch of inserts
// costs hardly more keys than its records. Readers see single entries.
//
//	key    = ident 4 | timestamp of the last entry | 00
//	block  = version u8 | entries u32 | wall ms u64 | rest
//	rest   = term uvarint | session flag u8 [lsid document, txnNumber varint, previous] entry*     (packed with s2 in version 2)
//	entry  = operation+
//	operation = op u8 | flags u8 | [ns length uvarint, ns] [uuid 16] [stmtId varint] o document [o2 document] [extra document]
//
// Timestamps of a block's entries follow each other without gaps. An entry of several operations is a vectored insert; each of
// them but the last has the flag entryMore.
const (
	blockVersion       = 1
	blockVersionPacked = 2
	blockVersionStaged = 3 // the block is stored in pieces elsewhere, see oplogRef
	blockBytes         = 128 << 10
	blockHeader        = 1 + 4 + 8
	// packBytes is the size from which a block is compressed. This happens once, before the write-ahead log: every
	// later copy of the block, in the log, the memtable and the sstables of each level, is smaller, and sstables
	// need not compress it again.
	packBytes = 2 << 10
	// maxBlock exceeds the size of any block: a nearly full one plus an entry of 16 MB.
	maxBlock = 64 << 20
)

const (
	entrySameNS = 1 << iota // namespace and UUID are those of the previous entry
	entryUUID
	entryStmt
	entryO2
	entryExtra
	entryMigrate
	entryMore
)

// A vectored insert ends with the operation that reaches one of these limits.
const (
	vectorOps   = 500       // internalInsertMaxBatchSize
	vectorBytes = 256 << 10 // of documents
	// vectorMax bounds the entry where the last document is large: it may have its _id twice.
	vectorMax = 4 << 20
)

// vector is the vectored insert that a unit is logging.
type vector struct {
	on         bool
	ops, bytes int
}

// continues reports whether the next operation, of that size, belongs to the same entry as the one before it.
func (v *vector) continues(size int) bool {
	if !v.on {
		return false
	}
	more := v.ops > 0 && v.ops < vectorOps && v.bytes < vectorBytes && v.bytes+size <= vectorMax
	if !more {
		v.ops, v.bytes = 0, 0
	}
	v.ops, v.bytes = v.ops+1, v.bytes+size
	return more
}

// opBlock is a block under construction.
type opBlock struct {
	buf    []byte
	packed []byte // the stored form in place of buf, if pack was called and made it smaller
	count  int
	flags  int // position in buf of the newest operation's flags
	ns     string
	uuid   catalog.UUID

	table  catalog.Ident // of the documents that the block refers to; 0 if it has its documents
	record uint64        // RecordId of the newest entry of a block of references
	full   int           // how much larger such a block is with its documents
}

// session holds the fields that retryable writes and transactions add to their entries.
type session struct {
	lsid   []byte
	number int64
	prev   OpTime // of the session's last entry before this unit
	room   [lsidRoom]byte
}

// lsidRoom is the size of a session id that includes a user's hash, as a server sees it from drivers.
const lsidRoom = 80

// The session flag says where the prevOpTime of a block's first entry comes from.
const (
	noSession      = iota
	sessionUnknown // written by earlier versions, which did not record it
	sessionAt      // at the timestamp (uvarint) and term (varint) that follow
	sessionGoesOn  // immediately before it, in the unit's previous block
)

func (b *opBlock) begin(wallMS, term int64, s *session, first bool) {
	b.buf = append(b.buf[:0], blockVersion, 0, 0, 0, 0)
	b.buf = binary.LittleEndian.AppendUint64(b.buf, uint64(wallMS))
	b.buf = binary.AppendUvarint(b.buf, uint64(term))
	flag := byte(sessionAt)
	switch {
	case s == nil:
		flag = noSession
	case !first:
		flag = sessionGoesOn
	}
	b.buf = append(b.buf, flag)
	if s != nil {
		b.buf = append(b.buf, s.lsid...)
		b.buf = binary.AppendVarint(b.buf, s.number)
	}
	if flag == sessionAt {
		b.buf = binary.AppendUvarint(b.buf, uint64(s.prev.TS))
		b.buf = binary.AppendVarint(b.buf, s.prev.Term)
	}
	b.count, b.ns, b.uuid, b.packed = 0, "", catalog.UUID{}, b.packed[:0]
	b.table, b.full = 0, 0
}

// pack builds the stored form of a large block; nothing can be added afterwards.
func (b *opBlock) pack() {
	if len(b.buf) < packBytes || b.table != 0 {
		return
	}
	rest := b.buf[blockHeader:]
	if n := blockHeader + s2.MaxEncodedLen(len(rest)); cap(b.packed) < n {
		b.packed = make([]byte, n)
	}
	b.packed = b.packed[:cap(b.packed)]
	copy(b.packed, b.buf[:blockHeader])
	b.packed[0] = blockVersionPacked
	b.packed = b.packed[:blockHeader+len(s2.Encode(b.packed[blockHeader:], rest))]
	if len(b.packed) >= len(b.buf) {
		b.packed = b.packed[:0]
	}
}

// stored returns the block's stored form.
func (b *opBlock) stored() []byte {
	if len(b.packed) > 0 {
		return b.packed
	}
	return b.buf
}

// blockSize returns the uncompressed size of a stored block, which is what the oplog's size counts.
func blockSize(p []byte) int64 {
	if r, _, _, ok := refOf(p); ok {
		return int64(r.size)
	}
	if isRefs(p) {
		return refsSize(p)
	}
	if len(p) > blockHeader && p[0] == blockVersionPacked {
		if n, err := s2.DecodedLen(p[blockHeader:]); err == nil {
			return int64(blockHeader + n)
		}
	}
	return int64(len(p))
}

// add adds an operation: to the newest entry with more, otherwise as an entry of its own.
func (b *opBlock) add(e *OplogEntry, migrate, more bool) {
	var flags byte
	same := b.count > 0 && e.NS == b.ns && e.UUID == b.uuid
	switch {
	case same:
		flags |= entrySameNS
	case !e.UUID.IsZero():
		flags |= entryUUID
	}
	if e.StmtID >= 0 {
		flags |= entryStmt
	}
	if e.O2 != nil {
		flags |= entryO2
	}
	if e.Extra != nil {
		flags |= entryExtra
	}
	if migrate {
		flags |= entryMigrate
	}
	if more {
		b.buf[b.flags] |= entryMore
		b.count--
	}
	b.flags = len(b.buf) + 1
	b.buf = append(b.buf, e.Op, flags)
	if !same {
		b.buf = binary.AppendUvarint(b.buf, uint64(len(e.NS)))
		b.buf = append(b.buf, e.NS...)
		if flags&entryUUID != 0 {
			b.buf = append(b.buf, e.UUID[:]...)
		}
		b.ns, b.uuid = e.NS, e.UUID
	}
	if flags&entryStmt != 0 {
		b.buf = binary.AppendVarint(b.buf, int64(e.StmtID))
	}
	if b.table == 0 {
		b.buf = append(b.buf, e.O...)
	} else {
		before := len(b.buf)
		b.buf = binary.AppendUvarint(b.buf, e.record-b.record)
		b.record, b.full = e.record, b.full+len(e.O)-(len(b.buf)-before)
	}
	b.buf = append(b.buf, e.O2...)
	b.buf = append(b.buf, e.Extra...)
	b.count++
	binary.LittleEndian.PutUint32(b.buf[1:], uint32(b.count))
}

// openBlock is a block being read.
type openBlock struct {
	last    Timestamp
	wall    int64
	term    int64
	lsid    []byte
	number  int64
	flag    byte
	prev    OpTime
	entries []blockEntry
	parts   []blockEntry // the operations of its vectored inserts
	plain   []byte       // of a compressed block; entries borrow from it
}

type blockEntry struct {
	OplogEntry
	migrate bool
	vector  []blockEntry // the operations of a vectored insert; nil for other entries
}

// operations returns the operations of entry i.
func (b *openBlock) operations(i int) []blockEntry {
	if v := b.entries[i].vector; v != nil {
		return v
	}
	return b.entries[i : i+1]
}

// ofSession reports whether the entry stands for a statement of its unit's session. Other writes of the unit, such
// as the creation of a collection, do not.
func (e *blockEntry) ofSession() bool {
	if e.vector != nil {
		e = &e.vector[0]
	}
	return e.StmtID >= 0 || e.Op == 'c' && ofTransaction(e.O) || e.Extra != nil && !value.Lookup(e.Extra, "stmtId").IsMissing()
}

// ofTransaction reports whether a command's entry has operations of a transaction, or decides about one.
func ofTransaction(o []byte) bool {
	it := value.Walk(o)
	k, _, _ := it.Next()
	switch string(k) {
	case "applyOps", "commitTransaction", "abortTransaction":
		return true
	}
	return false
}

// before returns the prevOpTime of entry i, if it has one.
func (b *openBlock) before(i int) (prev OpTime, ok bool) {
	for i--; i >= 0; i-- {
		if b.entries[i].ofSession() {
			return OpTime{TS: b.ts(i), Term: b.term}, true
		}
	}
	if b.flag == sessionGoesOn {
		return OpTime{TS: b.ts(0) - 1, Term: b.term}, true
	}
	return b.prev, b.flag == sessionAt
}

func (b *openBlock) ts(i int) Timestamp { return b.last - Timestamp(len(b.entries)-1-i) }

// blockReader reads a block's bytes; the first error sticks.
type blockReader struct {
	p   []byte
	bad bool
}

func (r *blockReader) take(n int) []byte {
	if n < 0 || n > len(r.p) {
		r.bad = true
		return nil
	}
	out := r.p[:n:n]
	r.p = r.p[n:]
	return out
}

func (r *blockReader) doc() []byte {
	if len(r.p) < 5 {
		r.bad = true
		return nil
	}
	return r.take(int(int32(binary.LittleEndian.Uint32(r.p))))
}

func (r *blockReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.p)
	if r.take(max(n, -n)); n <= 0 {
		r.bad = true
	}
	return v
}

func (r *blockReader) varint() int64 {
	v, n := binary.Varint(r.p)
	if r.take(max(n, -n)); n <= 0 {
		r.bad = true
	}
	return v
}

// read opens a block; entries borrow from p or, if it is compressed, from b.
func (b *openBlock) read(last Timestamp, p []byte) error {
	b.last, b.lsid, b.entries, b.parts = last, nil, b.entries[:0], b.parts[:0]
	if len(p) < blockHeader+2 || p[0] != blockVersion && p[0] != blockVersionPacked {
		return corrupt("the oplog block at %v is unreadable", last)
	}
	n := int(binary.LittleEndian.Uint32(p[1:]))
	b.wall = int64(binary.LittleEndian.Uint64(p[5:]))
	r := &blockReader{p: p[blockHeader:]}
	if p[0] == blockVersionPacked {
		size, err := s2.DecodedLen(r.p)
		if err == nil && size <= maxBlock {
			b.plain, err = s2.Decode(b.plain[:cap(b.plain)], r.p)
		}
		if err != nil || size > maxBlock {
			return corrupt("the oplog block at %v is unreadable", last)
		}
		r.p = b.plain
	}
	b.term = int64(r.uvarint())
	if f := r.take(1); f != nil && f[0] != noSession {
		b.flag = f[0]
		b.lsid = r.doc()
		b.number = r.varint()
		if b.flag == sessionAt {
			b.prev.TS, b.prev.Term = Timestamp(r.uvarint()), r.varint()
		}
	}
	var prev OplogEntry
	for i := 0; i < n && !r.bad; i++ {
		e, more := readOperation(r, &prev)
		prev = e.OplogEntry
		if more {
			at := len(b.parts)
			b.parts = append(b.parts, e)
			for more && !r.bad {
				e, more = readOperation(r, &prev)
				prev = e.OplogEntry
				b.parts = append(b.parts, e)
			}
			e = blockEntry{OplogEntry: OplogEntry{Op: 'c', NS: "admin.$cmd", StmtID: -1}, vector: b.parts[at:]}
		}
		b.entries = append(b.entries, e)
	}
	if r.bad {
		return corrupt("the oplog block at %v is unreadable", last)
	}
	return nil
}

// readOperation reads one operation; more means that the next one belongs to the same entry.
func readOperation(r *blockReader, prev *OplogEntry) (e blockEntry, more bool) {
	h := r.take(2)
	if h == nil {
		return e, false
	}
	flags := h[1]
	e.Op, e.StmtID, e.migrate = h[0], -1, flags&entryMigrate != 0
	if flags&entrySameNS != 0 {
		e.NS, e.UUID = prev.NS, prev.UUID
	} else {
		e.NS = string(r.take(int(r.uvarint())))
		if flags&entryUUID != 0 {
			copy(e.UUID[:], r.take(16))
		}
	}
	if flags&entryStmt != 0 {
		e.StmtID = int32(r.varint())
	}
	e.O = r.doc()
	if flags&entryO2 != 0 {
		e.O2 = r.doc()
	}
	if flags&entryExtra != 0 {
		e.Extra = r.doc()
	}
	return e, flags&entryMore != 0
}

// document appends entry i as local.oplog.rs shows it.
func (b *openBlock) document(dst []byte, i int) []byte {
	e := &b.entries[i]
	dst, doc := value.Begin(dst[:0])
	session := b.lsid != nil && e.ofSession()
	if session {
		dst = value.Append(dst, "lsid", value.NewDocument(b.lsid))
		dst = value.Append(dst, "txnNumber", value.NewInt64(b.number))
	}
	if e.vector != nil {
		dst = e.appendVector(dst)
	} else {
		dst = e.appendOperation(dst)
	}
	dst = value.Append(dst, "ts", b.ts(i).Value())
	dst = value.Append(dst, "t", value.NewInt64(b.term))
	dst = value.Append(dst, "v", value.NewInt64(2))
	dst = value.Append(dst, "wall", value.NewDateTime(b.wall))
	if session {
		if prev, ok := b.before(i); ok {
			dst = value.Append(dst, "prevOpTime", prev.Value())
		}
	}
	if e.vector != nil {
		dst = value.Append(dst, "multiOpType", value.NewInt32(1)) // its operations are no transaction
	}
	return value.End(e.appendExtra(dst), doc)
}

// appendVector appends the fields by which a vectored insert is an applyOps command.
func (e *blockEntry) appendVector(dst []byte) []byte {
	dst = value.Append(dst, "op", value.NewString("c"))
	dst = value.Append(dst, "ns", value.NewString(e.NS))
	dst, o := value.BeginKey(dst, value.Document, "o")
	dst, ops := value.BeginKey(dst, value.Array, "applyOps")
	for i := range e.vector {
		var op int
		dst, op = value.BeginIndex(dst, value.Document, i)
		dst = value.End(e.vector[i].appendExtra(e.vector[i].appendOperation(dst)), op)
	}
	return value.End(value.End(dst, ops), o)
}

// appendOperation appends the fields that describe an operation.
func (e *blockEntry) appendOperation(dst []byte) []byte {
	dst = value.Append(dst, "op", value.NewStringBytes([]byte{e.Op}))
	dst = value.Append(dst, "ns", value.NewString(e.NS))
	if !e.UUID.IsZero() {
		dst = value.Append(dst, "ui", e.UUID.Value())
	}
	dst = value.Append(dst, "o", value.NewDocument(e.O))
	switch {
	case e.O2 != nil:
		dst = value.Append(dst, "o2", value.NewDocument(e.O2))
	case e.Op == 'i':
		dst = value.Append(dst, "o2", value.NewDocument(idDocument(e.O)))
	}
	if e.migrate {
		dst = value.Append(dst, "fromMigrate", value.NewBool(true))
	}
	if e.StmtID >= 0 {
		dst = value.Append(dst, "stmtId", value.NewInt32(e.StmtID))
	}
	return dst
}

func (e *blockEntry) appendExtra(dst []byte) []byte {
	for it := value.Walk(e.Extra); ; {
		k, v, ok := it.Next()
		if !ok {
			return dst
		}
		dst = value.AppendKeyBytes(dst, k, v)
	}
}

// idDocument returns {_id: …} of a document; empty if it has none.
func idDocument(doc []byte) []byte {
	id := value.Lookup(doc, "_id")
	if id.IsMissing() {
		return value.Doc()
	}
	return value.Doc(value.F("_id", id))
}

// oplogCursor reads local.oplog.rs entry by entry.
type oplogCursor struct {
	s        *Snapshot
	reverse  bool
	from, to Timestamp     // both inclusive
	of       catalog.Ident // blocks that refer to versions of other tables are skipped; 0 if none are
	skipped  Timestamp     // of the newest of them
	it       *pooledIter
	block    openBlock
	raw      []byte // the block, owned, because entries outlive the iterator
	at       int    // next entry of block; -1 or len if a new block is needed
	started  bool
	rid      [8]byte
	doc      []byte
	err      error
}

func newOplogCursor(s *Snapshot, o ScanOptions) *oplogCursor {
	c := &oplogCursor{s: s, reverse: o.Reverse, from: 0, to: s.ts}
	if o.CopiesOf != nil {
		c.of = o.CopiesOf.Ident
	}
	if n, ok := o.From[:min(len(o.From), 8)].Int64(); ok {
		c.from = Timestamp(n)
		if len(o.From) > 8 {
			c.from++ // the successor of that RecordID, which resumed scans start from
		}
	}
	if n, ok := o.To.Int64(); ok {
		c.to = min(c.to, Timestamp(n))
	}
	return c
}

func (c *oplogCursor) next() bool {
	for c.err == nil {
		if c.started && c.at >= 0 && c.at < len(c.block.entries) {
			i := c.at
			ts := c.block.ts(i)
			if c.reverse {
				c.at--
			} else {
				c.at++
			}
			switch {
			case ts < c.from && c.reverse, ts > c.to && !c.reverse:
				return false
			case ts < c.from, ts > c.to:
				continue
			}
			binary.BigEndian.PutUint64(c.rid[:], uint64(ts))
			c.doc = c.block.document(c.doc, i)
			return true
		}
		if !c.load() {
			return false
		}
	}
	return false
}

// load reads the block with the next entry in the cursor's direction.
func (c *oplogCursor) load() bool {
	fresh := c.it == nil
	if fresh {
		lower, upper := identRange(identOplog)
		if c.it, c.err = c.s.e.iters.get(&c.s.moment, &c.s.e.view.Load().moment, lower, upper); c.err != nil {
			return false
		}
	}
	var ok bool
	switch {
	case c.started && c.reverse:
		if fresh {
			ok = c.it.SeekLT(timeKey(nil, identOplog, c.block.last))
		} else {
			ok = c.it.Prev()
		}
	case c.started:
		if fresh {
			ok = c.it.SeekGE(timeKey(nil, identOplog, c.block.last+1))
		} else {
			ok = c.it.Next()
		}
	case c.reverse:
		// The block that holds `to` may end later.
		ok = c.it.SeekGE(timeKey(nil, identOplog, c.to)) || c.it.Last()
	default:
		ok = c.it.SeekGE(timeKey(nil, identOplog, c.from))
	}
	if !ok {
		c.err = c.it.Error()
		return false
	}
	// Entries later than the view are skipped by next: c.to is never later.
	last := timeOf(c.it.Key())
	p, err := c.it.ValueAndErr()
	if err == nil && c.of != 0 && isRefs(p) {
		if table, _ := refsUnit(p); table != c.of {
			c.block.last, c.block.entries = last, c.block.entries[:0]
			c.started, c.at = true, 0
			if last <= c.to {
				c.skipped = last
			}
			return true
		}
	}
	if err == nil {
		p, err = c.s.e.blockBytes(last, p)
	}
	if err == nil {
		c.raw = append(c.raw[:0], p...)
		err = c.block.read(last, c.raw)
	}
	if err != nil {
		c.err = err
		return false
	}
	c.started, c.at = true, 0
	if c.reverse {
		c.at = len(c.block.entries) - 1
	}
	return true
}

func (c *oplogCursor) seekTo(rid RecordID) {
	n, ok := rid.Int64()
	if !ok {
		return
	}
	if c.reverse {
		c.to = min(c.s.ts, Timestamp(n))
	} else {
		c.from = Timestamp(n)
	}
	c.started = false
}

func (c *oplogCursor) save() {
	if c.it != nil {
		c.s.e.iters.put(c.it, &c.s.e.view.Load().moment, c.s.e.opts.Clock().UnixNano())
		c.it = nil
	}
}

func (c *oplogCursor) close() { c.save() }

func (e *Engine) oplogGet(s *Snapshot, rid RecordID) (doc []byte, ok bool, err error) {
	c := newOplogCursor(s, ScanOptions{From: rid, To: rid})
	defer c.close()
	if !c.next() {
		return nil, false, c.err
	}
	return c.doc, true, nil
}

// OplogFirst returns the timestamp of the oldest entry of the oplog, zero if it is empty.
func (e *Engine) OplogFirst() (Timestamp, error) { return e.oplogEnd(false) }

// OplogLast returns the timestamp of the newest entry, zero if the oplog is empty.
func (e *Engine) OplogLast() (Timestamp, error) { return e.oplogEnd(true) }

func (e *Engine) oplogEnd(last bool) (Timestamp, error) {
	s := e.Snapshot()
	defer s.Release()
	c := newOplogCursor(s, ScanOptions{Reverse: last})
	defer c.close()
	if !c.next() {
		return 0, c.err
	}
	return Timestamp(binary.BigEndian.Uint64(c.rid[:])), nil
}

// oplogState is the engine's state for the oplog as a whole.
type oplogState struct {
	counters atomic.Pointer[catalog.Counters]
	limit    atomic.Int64 // set by SetOplogSize; 0 means Options.OplogSize
	refs     blockRefs
	lost     atomic.Uint64 // blocks of references up to this time may have lost their documents here

	truncating sync.Mutex // held by a truncation, which deletes what it has counted

	mu    sync.Mutex
	pins  map[*OplogPin]struct{}
	holds []*OplogHold
	cut   Timestamp // what this process is about to truncate as the primary; what is gone already is in the store, see OplogCut
}

// SetOplogSize changes the size that the oplog is truncated to, until the store is closed.
func (e *Engine) SetOplogSize(bytes int64) { e.oplog.limit.Store(bytes) }

// lowOplog is the size to which the oplog is truncated while disk space is low.
const lowOplog = 16 << 20

// OplogLimit returns the configured size of the oplog.
func (e *Engine) OplogLimit() int64 {
	if n := e.oplog.limit.Load(); n > 0 {
		return n
	}
	return e.opts.OplogSize
}

// oplogTarget returns the size that the oplog is truncated to now.
func (e *Engine) oplogTarget() int64 {
	if e.DiskLow() {
		return min(e.OplogLimit(), lowOplog)
	}
	return e.OplogLimit()
}

// OplogTooLarge reports whether the oplog will be truncated as soon as the pins on it allow.
func (e *Engine) OplogTooLarge() bool {
	return e.oplog.counters.Load().DataSize.Load() > e.oplogTarget()
}

// TruncateOplog deletes the oldest entries if the oplog exceeds its size, except those that are pinned or held.
//
// The cut is recorded (noteCut) before the unit that deletes is committed. A pin taken afterwards on entries
// before the cut fails, and a pin taken earlier makes noteCut refuse. If it were recorded after the commit, a pin
// could succeed in between on entries that are about to vanish, and a migration would miss the writes they
// describe.
func (e *Engine) TruncateOplog() error {
	if !e.writable() {
		return nil // the primary does it for all members
	}
	e.oplog.truncating.Lock()
	defer e.oplog.truncating.Unlock()
	size, limit := e.oplog.counters.Load().DataSize.Load(), e.oplogTarget()
	if size <= limit {
		return nil
	}
	pinned := maxPinned * e.OplogLimit()
	pieces := e.db.NewBatch()
	defer closeQuietly(pieces)
	held, err := e.firstPrepared()
	if err != nil {
		return err
	}
	excess, last := size-limit*9/10, e.oplog.mayCut(size > pinned)
	cut, entries, bytes, err := e.oldestEntries(excess, min(held-1, last), pieces)
	if err == nil && bytes < excess {
		e.oplog.askHolders(last)
	}
	if err != nil || cut == 0 {
		return err
	}
	if held, err := e.firstPrepared(); err != nil || held <= cut {
		return err // prepared meanwhile
	}
	undo, ok := e.oplog.noteCut(cut, size > pinned)
	if !ok {
		return nil // the oplog was pinned meanwhile
	}
	// The commit order owns the counters, so the deletion is a unit of work like any other.
	lower, _ := identRange(identOplog)
	u := e.NewUnitOfWork(nil)
	defer u.Rollback()
	u.stageRaw(func(b *pebble.Batch) error {
		if err := b.Set(metaKey(metaOplogCut), binary.BigEndian.AppendUint64(nil, uint64(cut)), nil); err != nil {
			return err
		}
		return errorsJoin(b.DeleteRange(lower, timeKey(nil, identOplog, cut+1), nil), b.Apply(pieces, nil))
	})
	u.addDelta(identOplog, e.oplog.counters.Load(), -entries, -bytes)
	if _, err = e.commitUnit(context.Background(), u, false); err != nil {
		undo()
	}
	return err
}

// oldestEntries finds the end of the oldest blocks that hold excess bytes, none of them past limit, and counts
// their entries and bytes. The deletion of their pieces stored elsewhere is staged in pieces.
func (e *Engine) oldestEntries(excess int64, limit Timestamp, pieces *pebble.Batch) (cut Timestamp, entries, bytes int64, err error) {
	lower, upper := identRange(identOplog)
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return 0, 0, 0, err
	}
	defer closeQuietly(it)
	for ok := it.First(); ok && bytes < excess; ok = it.Next() {
		p, err := it.ValueAndErr()
		if err != nil {
			return 0, 0, 0, err
		}
		at := timeOf(it.Key())
		if at > limit {
			break
		}
		cut = at
		bytes += blockSize(p)
		dropPieces(pieces, p)
		if len(p) >= blockHeader {
			entries += int64(binary.LittleEndian.Uint32(p[1:]))
		}
	}
	return cut, entries, bytes, it.Error()
}

// OplogCut returns the time up to which entries of the oplog have been truncated; zero if none have.
func (e *Engine) OplogCut() (Timestamp, error) {
	v, err := e.getMeta(metaKey(metaOplogCut))
	if err != nil || len(v) != 8 {
		return 0, err
	}
	return Timestamp(binary.BigEndian.Uint64(v)), nil
}

func corrupt(format string, args ...any) error {
	return mongoerr.New(mongoerr.DataCorruptionDetected, fmt.Sprintf(format, args...))
}
