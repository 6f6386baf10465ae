package storage

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// UnitOfWork is a set of writes that become visible together or not at all. One goroutine uses it at a time. It ends
// with replication.Set.Commit or Rollback.
//
// Its versioned keys are staged in a pebble batch under the timestamp `pending`, which the commit overwrites in
// place.
type UnitOfWork struct {
	e     *Engine
	base  *Snapshot // nil for units that do not read, such as those that only insert
	own   *Snapshot // base with the unit's own writes on top
	batch *pebble.Batch
	bulk  *stager    // has sent most of a large unit ahead
	copy  *tableCopy // the documents are written as tables; nil for other units, see InsertTables
	unitHolds
	unitEffects
	hooks struct {
		commit   []func(Timestamp)
		rollback []func()
	}
	scratch *unitScratch
	latest  struct {
		it *pooledIter
		v  versions
	}
	gen    uint64 // role that the unit began in, see replicaState
	detach detaching
	wait   commitWait

	unitChain

	// Small fields are grouped, because each write allocates a unit.
	state   unitState
	line    uint8 // the line that it writes to, once lined is set
	lined   bool
	refused bool // failed before it was proposed; belongs to the leader
	keys    keyCounts
}

// unitHolds has what a unit has claimed or locked against other writers.
type unitHolds struct {
	claims []heldClaim
	capped []heldCapped // collections whose Trim lock is held
	keeps  bool         // the oldest documents of capped collections, whatever their limits
	held   heldKeys
}

// unitEffects has the effects that accompany the keys of a unit's batch.
type unitEffects struct {
	deltas     []delta
	used       []usedCollection
	catalogs   catalogStage
	log        unitLog
	notices    [][]byte
	superseded []byte // keys that got a newer version, each with its length
	drops      []catalog.Ident
	client     bool // see ForClient
}

// unitChain is a unit's place among the undecided commits of its command.
type unitChain struct {
	behind *CommitChain                // chain whose writes the unit sees; nil for none
	after  *UnitOfWork                 // the unit fails if that one does
	chain  atomic.Pointer[CommitChain] // chain that the unit is part of
}

// keyCounts counts the keys that a unit stages.
type keyCounts struct {
	inherited         uint32 // keys of batch that belong to the chain
	inserted, deleted uint32 // index keys
}

// IndexKeys returns how many index keys the unit has inserted and deleted so far.
func (u *UnitOfWork) IndexKeys() (inserted, deleted int64) {
	return int64(u.keys.inserted), int64(u.keys.deleted)
}

// heldCapped is a capped collection that only this unit may insert into.
type heldCapped struct {
	counters *catalog.Counters
	trimmed  int64 // last record deleted to make room; 0 for none
}

type unitState uint8

const (
	unitOpen unitState = iota
	unitQueued
	unitCommitted
	unitRolledBack
)

// delta is a unit's change to the counters of a collection.
type delta struct {
	ident    catalog.Ident
	counters *catalog.Counters
	records  int64
	bytes    int64
	aside    bool // it accompanies the unit's other writes, see Accompanies
}

// usedCollection is a collection that the unit wrote to, in the state that the unit knew.
type usedCollection struct {
	uuid  catalog.UUID
	epoch uint64
}

// unitScratch is memory that successive units reuse.
type unitScratch struct {
	sets, olds []indexkey.KeySet
	key, tb    []byte
	ids, rid   []byte
	held       [][]byte
}

var scratchPool = sync.Pool{New: func() any { return &unitScratch{} }}

// NewUnitOfWork starts a unit. s is the snapshot that it reads from: a write to a record with a version newer than
// s is a WriteConflict. s may be nil for units that only insert or change the catalog. The unit does not release
// s.
func (e *Engine) NewUnitOfWork(s *Snapshot) *UnitOfWork {
	return &UnitOfWork{e: e, base: s, gen: e.replica.gen.Load(), scratch: scratchPool.Get().(*unitScratch)}
}

// Snapshot returns a view of s with the unit's own writes on top, for statements of multi-document transactions.
// It must be called before the first write, and makes the unit keep its writes readable. The snapshot ends with
// the unit.
func (u *UnitOfWork) Snapshot() *Snapshot {
	if u.own == nil {
		if u.base == nil {
			u.base = u.behind.snapshot(u.e)
			u.OnRollback(u.base.Release)
			u.OnCommit(func(Timestamp) { u.base.Release() })
		}
		old := u.batch
		u.batch = u.e.db.NewIndexedBatch()
		if u.behind != nil {
			_ = u.batch.Apply(u.behind.batch, nil) // fails only for batches of another store
			u.keys.inherited = u.batch.Count()
		}
		if old != nil {
			_ = u.batch.Apply(old, nil)
			closeQuietly(old)
		}
		u.own = &Snapshot{e: u.e, moment: u.base.moment, hidden: u.base.hidden, shown: u.base.shown, cat: u.base.cat, unit: u}
		u.e.snapshots.add(u.own)
	}
	return u.own
}

// sealOverlay makes the unit's writes unreadable again: keys of an indexed batch must not be overwritten in place.
func (u *UnitOfWork) sealOverlay() {
	if u.own == nil {
		return
	}
	u.own.Release()
	indexed := u.batch
	u.batch = u.e.db.NewBatch()
	if u.keys.inherited == 0 {
		_ = u.batch.Apply(indexed, nil) // fails only for batches of another store
	} else {
		appendKeys(u.batch, indexed, int(u.keys.inherited), 0)
		u.keys.inherited = 0
	}
	closeQuietly(indexed)
}

func (u *UnitOfWork) readTS() Timestamp {
	if u.base == nil {
		return 0
	}
	if u.line == lineLocal {
		return u.base.local
	}
	return u.base.ts
}

// writes returns the number of staged keys, by which cursors over the unit's view notice new ones.
func (u *UnitOfWork) writes() (n int) {
	if u.bulk != nil {
		n = u.bulk.writes
	}
	if u.batch == nil {
		return n
	}
	return n + int(u.batch.Count()-u.keys.inherited)
}

// Empty reports whether the unit has nothing to commit.
func (u *UnitOfWork) Empty() bool {
	return u.bulk == nil && u.copy == nil && u.writes() == 0 && u.log.count() == 0 && len(u.catalogs.ops) == 0 && len(u.notices) == 0
}

// ChangesCatalog reports whether the unit creates or changes collections or indexes. Marking an index as multikey
// does not count.
func (u *UnitOfWork) ChangesCatalog() bool { return len(u.catalogs.ops) > len(u.catalogs.marks) }

// Collections returns the collections that the unit has written to.
func (u *UnitOfWork) Collections() []catalog.UUID {
	out := make([]catalog.UUID, len(u.used))
	for i := range u.used {
		out[i] = u.used[i].uuid
	}
	return out
}

// Size returns roughly how many bytes the unit will write.
func (u *UnitOfWork) Size() int {
	n := u.log.size()
	if u.batch != nil {
		n += u.batch.Len()
	}
	return n
}

func (u *UnitOfWork) stage() *pebble.Batch {
	if u.batch == nil {
		u.batch = u.e.db.NewBatch()
	}
	return u.batch
}

// stageRaw adds unversioned writes.
func (u *UnitOfWork) stageRaw(f func(*pebble.Batch) error) {
	if err := f(u.stage()); err != nil {
		u.e.log.Error().Err(err).Msg("staging")
	}
}

// put stages a version of ident ‖ user; an empty value is a deletion.
func (u *UnitOfWork) put(id catalog.Ident, user []byte, value ...[]byte) {
	if u.copy != nil && id >= identFirst {
		u.copy.put(id, user, value)
		return
	}
	n := 0
	for _, v := range value {
		n += len(v)
	}
	if u.held.on && id != u.held.records {
		u.hold(id, user, n, value)
		return
	}
	op := u.stage().SetDeferred(identLen+len(user)+1+suffixLen, n)
	binary.BigEndian.PutUint32(op.Key, uint32(id))
	k := copy(op.Key[identLen:], user) + identLen
	op.Key[k] = 0
	binary.BigEndian.PutUint64(op.Key[k+1:], pending)
	op.Key[k+1+8] = suffixLen
	at := 0
	for _, v := range value {
		at += copy(op.Value[at:], v)
	}
	_ = op.Finish() // adds to the index of an indexed batch, which cannot fail
}

// supersede records that ident ‖ user has an older version, for the collector to drop later.
func (u *UnitOfWork) supersede(id catalog.Ident, user []byte) {
	u.superseded = binary.AppendUvarint(u.superseded, uint64(identLen+len(user)))
	u.superseded = appendIdent(u.superseded, id)
	u.superseded = append(u.superseded, user...)
}

func (u *UnitOfWork) addDelta(id catalog.Ident, c *catalog.Counters, records, bytes int64) {
	for i := range u.deltas {
		if u.deltas[i].ident == id {
			u.deltas[i].records += records
			u.deltas[i].bytes += bytes
			return
		}
	}
	if u.deltas == nil {
		u.deltas = make([]delta, 0, 2) // enough for a collection and the oplog
	}
	u.deltas = append(u.deltas, delta{ident: id, counters: c, records: records, bytes: bytes})
}

// Accompanies declares that the unit's writes to c only record its other writes: a unit that makes room may
// include them even when the disk is too full for anything else.
func (u *UnitOfWork) Accompanies(c *catalog.Collection) {
	for i := range u.deltas {
		if u.deltas[i].ident == c.Ident {
			u.deltas[i].aside = true
		}
	}
}

func (u *UnitOfWork) deltaOf(id catalog.Ident) (records, bytes int64) { return deltaOf(u.deltas, id) }

func deltaOf(deltas []delta, id catalog.Ident) (records, bytes int64) {
	for i := range deltas {
		if deltas[i].ident == id {
			return deltas[i].records, deltas[i].bytes
		}
	}
	return 0, 0
}

// use records that the unit depends on the collection being in the state c.
func (u *UnitOfWork) use(c *catalog.Collection) error {
	if u.state != unitOpen {
		return mongoerr.New(mongoerr.InternalError, "the unit of work has ended")
	}
	if c.Oplog {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "cannot write to %s", c.NS)
	}
	if err := u.log.checkSize(); err != nil {
		return err
	}
	if err := u.spill(); err != nil {
		return err
	}
	return u.depend(c)
}

// depend makes the unit fail if the collection has changed by its commit.
func (u *UnitOfWork) depend(c *catalog.Collection) error {
	for i := len(u.used) - 1; i >= 0; i-- {
		if u.used[i].uuid == c.UUID && u.used[i].epoch == c.Epoch {
			return nil
		}
	}
	u.used = append(u.used, usedCollection{c.UUID, c.Epoch})
	return u.touch(c.Ident)
}

// touch assigns the unit to the line of a table; it fails if the unit already belongs to the other line.
func (u *UnitOfWork) touch(id catalog.Ident) error {
	line := lineOf(id)
	if u.lined && u.line != uint8(line) {
		return mongoerr.New(mongoerr.IllegalOperation,
			"a unit of work may write to the local database or to others, not to both")
	}
	u.line, u.lined = uint8(line), true
	return nil
}

// OnCommit registers f to run when the unit is visible, in commit order, before Commit returns. f must be quick.
func (u *UnitOfWork) OnCommit(f func(ts Timestamp)) { u.hooks.commit = append(u.hooks.commit, f) }

// OnRollback registers f to run when the unit is rolled back or its commit fails.
func (u *UnitOfWork) OnRollback(f func()) { u.hooks.rollback = append(u.hooks.rollback, f) }

// Rollback abandons the unit. After a commit it does nothing, so it can be deferred.
func (u *UnitOfWork) Rollback() {
	switch {
	case u.detach.done:
	case u.state == unitOpen:
		u.detach.keeps = false
		u.undo()
	case u.state == unitRolledBack && u.detach.keeps:
		u.detach.keeps = false
		u.releaseClaims(0, 0)
		if u.bulk != nil {
			u.discardSent()
		}
	}
}

// discardSent deletes what a unit that failed has sent ahead, unless that has still to protect its keys.
func (u *UnitOfWork) discardSent() {
	if !u.detach.keeps && !u.bulk.adopted {
		u.bulk.discard()
	}
}

// KeepClaims makes the unit keep its claims if its commit fails, for a unit that takes them over and repeats the
// writes. The claims end with Rollback.
func (u *UnitOfWork) KeepClaims() { u.detach.keeps = true }

// TakeOver moves to the unit, which must be new, all claims of another unit that has ended or is about to be
// rolled back. Nobody else has written the claimed keys since the other unit began.
func (u *UnitOfWork) TakeOver(from *UnitOfWork) {
	u.e.claims.hand(from, u)
	u.adopt(from)
}

func (u *UnitOfWork) undo() {
	u.state = unitRolledBack
	if !u.detach.keeps {
		u.releaseClaims(0, 0)
	}
	for i := len(u.hooks.rollback) - 1; i >= 0; i-- {
		u.hooks.rollback[i]()
	}
	u.free()
}

// free releases the unit's resources, once its claims are gone.
func (u *UnitOfWork) free() {
	u.releaseLatest()
	for _, c := range u.capped {
		if u.state == unitCommitted && c.trimmed > 0 {
			c.counters.NoteTrimmed(c.trimmed, uint64(u.wait.at))
		}
		c.counters.Trim.Unlock()
	}
	u.capped, u.after = nil, nil
	if u.copy != nil {
		u.copy.free()
	}
	if u.own != nil {
		u.own.Release()
	}
	if u.batch != nil {
		closeQuietly(u.batch)
		u.batch = nil
	}
	u.log.free()
	if u.scratch != nil {
		scratchPool.Put(u.scratch)
		u.scratch = nil
	}
}

func (u *UnitOfWork) releaseLatest() {
	if u.latest.it != nil {
		u.e.iters.put(u.latest.it, &u.e.view.Load().moment, u.e.opts.Clock().UnixNano())
		u.latest.it = nil
	}
}

// newest prepares u.latest to read what is committed now, regardless of the unit's snapshot.
func (u *UnitOfWork) newest() (*versions, error) {
	v := u.e.view.Load()
	if u.latest.it != nil && !u.latest.it.asOf.covers(&v.moment) {
		u.releaseLatest()
	}
	if u.latest.it == nil {
		it, err := u.e.iters.get(&v.moment, &v.moment, nil, nil)
		if err != nil {
			return nil, err
		}
		u.latest.it = it
	}
	now := v.ts
	if u.line == lineLocal {
		now = v.local
	}
	u.latest.v.reset(u.latest.it.Iterator, now, false)
	u.latest.v.hidden = v.hiddenAt(v.ts, nil)
	return &u.latest.v, nil
}

// claimRecord makes the unit the only writer of a record, and checks that it has not been written since the unit read
// it.
func (u *UnitOfWork) claimRecord(c *catalog.Collection, rid RecordID) error {
	_, err := u.claim(keySpan{ident: c.Ident, key: rid}, u.readTS(), true)
	return err
}

// unitLog is the unit's part of the oplog.
type unitLog struct {
	session *session
	txn     *txnLog
	migrate bool
	vector  vector
	refers  bool  // see ReferToVersions
	failed  error // the unit must not commit
	begun   bool  // a block has been started
	blocks  []*opBlock
	limit   int64 // size limit of a transaction's operations; 0 for none
	staged  int   // entries already sent ahead, see stager
	images  *unitImages
	refs    []oplogRef // the blocks that were sent ahead, in order; they precede the others
	// prepared is set for the vote of a prepared transaction and for its decision.
	prepared preparedLog
}

var blockPool = sync.Pool{New: func() any { return &opBlock{} }}

func (l *unitLog) count() (n int) {
	for _, b := range l.blocks {
		n += b.count
	}
	if l.txn != nil {
		n += l.txn.count
	}
	return n + l.staged
}

// closed returns the size of what can be sent ahead.
func (l *unitLog) closed() (n int) {
	if l.txn != nil {
		for _, a := range l.txn.arrays[:l.txn.followed()] {
			n += len(a)
		}
	}
	return n
}

func (l *unitLog) size() (n int) {
	for _, b := range l.blocks {
		n += len(b.buf)
	}
	if l.txn != nil {
		n += l.txn.size()
	}
	return n
}

// pack compresses the blocks, outside the commit order.
func (l *unitLog) pack() {
	for _, b := range l.blocks {
		b.pack()
	}
}

func (l *unitLog) free() {
	l.freeFirst(len(l.blocks))
	l.blocks = nil
}

// freeFirst frees the first n blocks.
func (l *unitLog) freeFirst(n int) {
	for i, b := range l.blocks[:n] {
		if l.blocks[i] = nil; cap(b.buf) <= 4*blockBytes {
			blockPool.Put(b)
		}
	}
	l.blocks = l.blocks[n:]
}

// SetSession makes the unit's oplog entries carry lsid and txnNumber (retryable writes). prev is the optime of
// the session's previous entry with that number, NoOpTime for none. It must be called before the first write.
func (u *UnitOfWork) SetSession(lsid []byte, txnNumber int64, prev OpTime) {
	s := &session{number: txnNumber, prev: prev}
	s.lsid = append(s.room[:0], lsid...)
	u.log.session = s
}

// LSID returns the session id that SetSession or SetTransaction was given.
func (u *UnitOfWork) LSID() []byte { return u.log.session.lsid }

// SetTransaction makes the unit's entries one applyOps command (several if they exceed 16 MB) with lsid and
// txnNumber. It must be called before the first write.
func (u *UnitOfWork) SetTransaction(lsid []byte, txnNumber int64) {
	u.SetSession(lsid, txnNumber, NoOpTime)
	u.log.txn = &txnLog{}
}

// LimitTransaction bounds the size of a transaction's operations (transactionSizeLimitBytes).
func (u *UnitOfWork) LimitTransaction(bytes int64) { u.log.limit = bytes }

// CheckSize returns an error if a transaction has become too large. It is also called before a prepare, after
// which the transaction can no longer be refused.
func (u *UnitOfWork) CheckSize() error { return u.log.checkSize() }

// checkSize returns an error if a transaction has become too large.
func (l *unitLog) checkSize() error {
	if l.failed != nil {
		return l.failed
	}
	if l.txn == nil || l.limit <= 0 {
		return nil
	}
	if n := int64(l.txn.size()); n >= l.limit {
		return mongoerr.Newf(mongoerr.TransactionTooLarge, "Total size of all transaction operations must be less than server parameter 'transactionSizeLimitBytes' = %d. Actual size is %d", l.limit, n)
	}
	return nil
}

// SetFromMigrate marks the unit's entries fromMigrate: true, which change streams skip.
func (u *UnitOfWork) SetFromMigrate() { u.log.migrate = true }

// ForClient marks a unit of a client's write: what it writes to the collections of the nodes' own state is not theirs, and needs room on the disk like all else.
func (u *UnitOfWork) ForClient() { u.client = true }

// KeepCapped has the unit insert into capped collections without removing their oldest documents: the code that fills a copy removes
// what the original has removed.
func (u *UnitOfWork) KeepCapped() { u.keeps = true }

// Oplog adds an entry composed by the caller.
func (u *UnitOfWork) Oplog(entry OplogEntry) { u.logEntry(&entry) }

func (u *UnitOfWork) logEntry(e *OplogEntry) {
	if u.e.opts.Standalone {
		return
	}
	if e.O == nil {
		e.O = value.Doc()
	}
	if u.log.txn != nil {
		u.log.txn.add(e)
		return
	}
	u.appendEntry(e)
}

func (u *UnitOfWork) appendEntry(e *OplogEntry) {
	n, more := len(u.log.blocks), e.table == 0 && u.log.vector.continues(len(e.O))
	if n > 0 && u.log.blocks[n-1].table != 0 && e.table == 0 {
		u.log.failed = u.inlineRefs() // blocks of references are a unit's last, see blockKeeper.keep
	}
	if !more && (n == 0 || u.log.blocks[n-1].size() > blockBytes || u.log.blocks[n-1].table != e.table) {
		b := blockPool.Get().(*opBlock)
		b.begin(u.e.opts.Clock().UnixMilli(), u.e.Term(), u.log.session, !u.log.begun)
		b.beginRefs(e.table)
		u.log.begun = true
		u.log.blocks = append(u.log.blocks, b)
		n++
	}
	u.log.blocks[n-1].add(e, u.log.migrate, more)
}

// txnLog collects a transaction's operations as elements of applyOps arrays.
type txnLog struct {
	arrays [][]byte // complete arrays
	cur    []byte
	mark   int
	index  int
	count  int
	ahead  int // bytes of the arrays that were sent ahead
	done   bool
	// visibleFrom is the time that the shards of the transaction have agreed upon, 0 for none.
	visibleFrom Timestamp
	// prepared is set if the operations are in the oplog already, and decision is the entry that remains to be logged.
	prepared bool
	decision []value.Field
}

// applyOpsBytes is the size at which an applyOps array is closed and the next begun; an entry must stay below 16
// MB.
const applyOpsBytes = 12 << 20

func (t *txnLog) size() int {
	n := len(t.cur) + t.ahead
	for _, a := range t.arrays {
		n += len(a)
	}
	return n
}

func (t *txnLog) add(e *OplogEntry) {
	if t.prepared {
		t.count++ // pre-images are counted by it
		return
	}
	if t.cur == nil {
		t.cur, t.mark = value.Begin(nil)
	}
	f := []value.Field{value.F("op", value.NewStringBytes([]byte{e.Op})), value.F("ns", value.NewString(e.NS))}
	if !e.UUID.IsZero() {
		f = append(f, value.F("ui", e.UUID.Value()))
	}
	f = append(f, value.F("o", value.NewDocument(e.O)))
	switch {
	case e.O2 != nil:
		f = append(f, value.F("o2", value.NewDocument(e.O2)))
	case e.Op == 'i':
		f = append(f, value.F("o2", value.NewDocument(idDocument(e.O))))
	}
	for it := value.Walk(e.Extra); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		f = append(f, value.F(string(k), v))
	}
	t.cur = value.AppendIndex(t.cur, t.index, value.NewDocument(value.Doc(f...)))
	t.index++
	t.count++
	if len(t.cur) > applyOpsBytes {
		t.close()
	}
}

func (t *txnLog) close() {
	if t.index > 0 {
		t.arrays = append(t.arrays, value.End(t.cur, t.mark))
	}
	t.cur, t.index = nil, 0
}

// followed returns the number of complete arrays that precede another one. The last entry of a transaction differs
// from those before it, so an array that the newest operation has filled waits for the next operation.
func (t *txnLog) followed() int {
	if t.index > 0 {
		return len(t.arrays)
	}
	return max(0, len(t.arrays)-1)
}

// partialTransaction turns the operations collected so far into entries that are followed by others.
func (u *UnitOfWork) partialTransaction(each func()) {
	t := u.log.txn
	if t == nil {
		return
	}
	n := t.followed()
	for i, arr := range t.arrays[:n] {
		u.appendEntry(&OplogEntry{Op: 'c', NS: "admin.$cmd", StmtID: -1,
			O: value.Doc(value.F("applyOps", value.NewArray(arr)), value.F("partialTxn", value.NewBool(true)))})
		t.ahead += len(arr)
		t.arrays[i] = nil
		each()
	}
	t.arrays = t.arrays[n:]
}

// closeTransaction turns the collected operations into entries; all but the last are marked partialTxn. each is
// called after each of them.
func (u *UnitOfWork) closeTransaction(each func()) {
	t := u.log.txn
	if t == nil || t.done {
		return
	}
	t.done = true
	t.close()
	count := t.count
	t.count = 0
	if t.prepared {
		u.logDecision()
		return
	}
	for i, arr := range t.arrays {
		f := []value.Field{value.F("applyOps", value.NewArray(arr))}
		switch {
		case i < len(t.arrays)-1:
			f = append(f, value.F("partialTxn", value.NewBool(true)))
		case i > 0 || t.ahead > 0:
			f = append(f, value.F("count", value.NewInt64(int64(count))))
		}
		if m := u.log.images; m != nil && m.reserved != 0 && i == len(t.arrays)-1 {
			f = append(f, value.F(ImagesTime, m.reserved.Value()))
		}
		u.appendEntry(&OplogEntry{Op: 'c', NS: "admin.$cmd", O: value.Doc(f...), StmtID: -1})
		t.arrays[i] = nil
		each()
	}
	t.arrays = nil
}
