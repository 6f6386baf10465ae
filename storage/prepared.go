package storage

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Prepared transactions. A participant of a two-phase commit logs its operations when it votes, in a unit of work of their
// own, and its decision later:
//
//	applyOps [...] partialTxn: true  …  applyOps [...] prepare: true     LogPrepare: the vote
//	commitTransaction, commitTimestamp   or   abortTransaction           LogCommit, LogAbort: the decision
//
// The entries are linked by prevOpTime. What a large transaction has sent ahead of its vote (staged.go) is not written again:
// the entries of the vote refer to it. The versions stay with the transaction's own unit, which remains open; a new primary
// applies the operations again, from the oplog (PreparedOps).
//
// From the vote to the decision the meta table has a key for the transaction:
//
//	'p' timestamp of the vote → timestamp of the first entry, name of the coordinator's shard
//
// It names the transactions that a new primary has to open again, and keeps the oplog from being truncated past their
// entries, whatever its size. The coordinator's name shows which shard to ask for the decision.
//
// Invariant: the store has the key exactly while the transaction is prepared, because the unit of the vote writes it and the
// unit of the decision deletes it. As long as the key is there, so are the entries of the vote.
//
// Hazard: what the transaction has staged is in the memory of one primary. If an entry of the vote were truncated, the next
// primary could not apply the operations again, although other shards may have committed their part on the strength of the
// vote. TruncateOplog therefore reads the keys a second time, after it has chosen what to delete: transactions vote meanwhile.
//
// Rejected: the operations as documents of a collection of their own, from which the commit logged them as an ordinary
// applyOps. That wrote each transaction twice; the documents of a large one were stored and removed one after the other, so
// that a crash left parts to clear away; since they were removed after the commit, recovery had to tell votes that were
// carried out from those that were not; and readers of the oplog never saw that a transaction was prepared.

// preparedLog is the state of a unit's vote or decision.
type preparedLog struct {
	vote        bool      // the unit's entries are one
	coordinator string    // of the vote
	decides     Timestamp // the vote whose outcome the unit's entry decides, 0 for none
	record      catalog.Ident
}

// RecordIn declares that the only document that the unit writes to a collection is the record of its vote or decision. It is not logged:
// the entries have the same content. If it has the fields lastWriteOpTime and startOpTime with a ts, these get the timestamps
// of the unit and of its first entry. RecordIn is called before the write.
func (u *UnitOfWork) RecordIn(c *catalog.Collection) { u.log.prepared.record = c.Ident }

// logs reports whether the unit's writes to a collection are in the oplog.
func (u *UnitOfWork) logs(c *catalog.Collection) bool {
	return c.Replicated && !u.e.opts.Standalone && u.log.prepared.record != c.Ident
}

// holds reports whether a staged key is that of the record.
func (l *preparedLog) holds(kind pebble.InternalKeyKind, k []byte) bool {
	return l.record != 0 && kind == pebble.InternalKeyKindSet && identOf(k) == l.record
}

// setTimes puts the timestamps into the record, in place.
func (l *preparedLog) setTimes(record []byte, at Timestamp, entries int) {
	for field, ts := range map[string]Timestamp{"lastWriteOpTime": at, "startOpTime": at - Timestamp(entries) + 1} {
		if t := value.LookupDoc(record, field); len(t) > opTimeTSAt+8 {
			binary.LittleEndian.PutUint64(t[opTimeTSAt:], uint64(ts))
		}
	}
}

// opTimeTSAt is the offset of the timestamp in an optime's document: after its length, and the type and name of the element.
const opTimeTSAt = 4 + 1 + 3

func preparedKey(vote Timestamp) []byte {
	return metaKey(metaPrepared, binary.BigEndian.AppendUint64(nil, uint64(vote))...)
}

// stamp adds to a unit's batch what a vote, or the decision about one, changes in the meta table.
func (l *preparedLog) stamp(b *pebble.Batch, at Timestamp, entries int) {
	if l.vote {
		first := at - Timestamp(entries) + 1
		_ = b.Set(preparedKey(at), append(binary.BigEndian.AppendUint64(nil, uint64(first)), l.coordinator...), nil)
	}
	if l.decides != 0 {
		_ = b.Delete(preparedKey(l.decides), nil)
	}
}

// LogPrepare makes the operations of u's transaction the entries of p, which is new and votes for it; coordinator is the shard
// that asked for the vote. It may be called again for another unit if p fails; SetPrepared follows p's commit.
func (u *UnitOfWork) LogPrepare(p *UnitOfWork, coordinator string) {
	t := u.log.txn
	t.close()
	p.log.session, p.log.begun = u.log.session, u.log.begun
	p.log.refs, p.log.staged = slices.Clip(u.log.refs), u.log.staged
	p.log.prepared.vote, p.log.prepared.coordinator = true, coordinator
	arrays := t.arrays
	if len(arrays) == 0 {
		arrays = [][]byte{value.ArrayOf()}
	}
	for i, ops := range arrays {
		f := []value.Field{value.F("applyOps", value.NewArray(ops))}
		if i < len(arrays)-1 {
			f = append(f, value.F("partialTxn", value.NewBool(true)))
		} else {
			f = append(f, value.F("prepare", value.NewBool(true)))
			if i > 0 || t.ahead > 0 {
				f = append(f, value.F("count", value.NewInt64(int64(t.count))))
			}
		}
		p.appendEntry(&OplogEntry{Op: 'c', NS: "admin.$cmd", O: value.Doc(f...), StmtID: -1})
	}
}

// SetPrepared records that the operations of the unit's transaction are in the oplog, up to an entry of that time. What the unit
// writes from then on is not logged; it ends by LogCommit or LogAbort.
func (u *UnitOfWork) SetPrepared(at OpTime) {
	l := &u.log
	of := *l.session
	of.prev = at
	l.session, l.begun, l.refs, l.staged = &of, false, nil, 0
	l.txn.prepared, l.txn.arrays = true, nil
	if u.bulk != nil {
		u.bulk.logged = true
	}
}

// LogCommit makes a prepared unit log the decision to commit.
func (u *UnitOfWork) LogCommit(decided Timestamp) {
	u.log.txn.decision = []value.Field{value.F("commitTransaction", value.NewInt32(1)), value.F("commitTimestamp", decided.Value())}
	u.log.prepared.decides = u.log.session.prev.TS
}

// logDecision adds the entry of a decision. It stays in the unit, whatever its size: the pieces of the vote are deleted with the
// vote's entries, and others of the unit would go with them.
func (u *UnitOfWork) logDecision() {
	f := u.log.txn.decision
	if f == nil {
		return
	}
	if m := u.log.images; m != nil && m.reserved != 0 {
		f = append(f, value.F(ImagesTime, m.reserved.Value()))
	}
	u.appendEntry(&OplogEntry{Op: 'c', NS: "admin.$cmd", O: value.Doc(f...), StmtID: -1})
}

// LogAbort makes another unit log the decision to abort the prepared transaction of u.
func (u *UnitOfWork) LogAbort(a *UnitOfWork) {
	a.log.session, a.log.txn = u.log.session, &txnLog{prepared: true, decision: []value.Field{value.F("abortTransaction", value.NewInt32(1))}}
	a.log.prepared.decides = u.log.session.prev.TS
}

// PreparedTxn is a transaction that has voted to commit and is not decided.
type PreparedTxn struct {
	At          OpTime // of the vote
	LSID        []byte
	Number      int64
	Coordinator string // the shard that asked for the vote
}

// Prepared returns the transactions that are prepared.
func (e *Engine) Prepared() (list []PreparedTxn, err error) {
	s := e.Snapshot()
	defer s.Release()
	err = e.eachPrepared(func(vote, _ Timestamp, coordinator string) error {
		doc, err := s.oplogEntry(vote)
		if err != nil {
			return err
		}
		number, _ := value.Lookup(doc, "txnNumber").AsInt64()
		term, _ := value.Lookup(doc, "t").AsInt64()
		list = append(list, PreparedTxn{OpTime{vote, term}, value.LookupDoc(doc, "lsid"), number, coordinator})
		return nil
	})
	return list, err
}

func (e *Engine) eachPrepared(f func(vote, first Timestamp, coordinator string) error) error {
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: metaKey(metaPrepared), UpperBound: metaKey(metaPrepared + 1)})
	if err != nil {
		return err
	}
	defer closeQuietly(it)
	for ok := it.First(); ok; ok = it.Next() {
		val, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if k := it.Key(); len(k) == len(preparedKey(0)) && len(val) >= 8 {
			if err := f(Timestamp(binary.BigEndian.Uint64(k[identLen+1:])), Timestamp(binary.BigEndian.Uint64(val)), string(val[8:])); err != nil {
				return err
			}
		}
	}
	return it.Error()
}

// firstPrepared returns the timestamp of the oldest entry of a transaction that is prepared, the largest timestamp if there is none.
func (e *Engine) firstPrepared() (Timestamp, error) {
	oldest := MaxTimestamp
	err := e.eachPrepared(func(_, first Timestamp, _ string) error { oldest = min(oldest, first); return nil })
	return oldest, err
}

// oplogEntry returns a copy of an entry that must be there.
func (s *Snapshot) oplogEntry(at Timestamp) ([]byte, error) {
	doc, ok, err := s.e.oplogGet(s, NewRecordID(int64(at)))
	if err == nil && !ok {
		err = positionLost(at)
	}
	return bytes.Clone(doc), err
}

// PreparedOps calls f with the operations of a prepared transaction as applyOps arrays, in order; at is the time of its vote.
// One entry is in memory at a time. f must not retain an array.
func (s *Snapshot) PreparedOps(at Timestamp, f func(ops []byte) error) error {
	var parts []Timestamp
	var lsid []byte
	for next := at; next != 0; {
		doc, err := s.oplogEntry(next)
		if err != nil {
			return err
		}
		o := value.LookupDoc(doc, "o")
		belongs := value.Lookup(o, "partialTxn").Truthy()
		if lsid == nil {
			lsid, belongs = value.LookupDoc(doc, "lsid"), value.Lookup(o, "prepare").Truthy()
		}
		if !belongs || !bytes.Equal(lsid, value.LookupDoc(doc, "lsid")) {
			break
		}
		parts = append(parts, next)
		next = Timestamp(value.Lookup(value.LookupDoc(doc, "prevOpTime"), "ts").TimestampU64())
	}
	if len(parts) == 0 {
		return mongoerr.Newf(mongoerr.InternalError, "the entry of the oplog at %v prepares no transaction", at)
	}
	for _, ts := range slices.Backward(parts) {
		doc, err := s.oplogEntry(ts)
		if err != nil {
			return err
		}
		if err := f(value.Lookup(value.LookupDoc(doc, "o"), "applyOps").Doc()); err != nil {
			return err
		}
	}
	return nil
}
