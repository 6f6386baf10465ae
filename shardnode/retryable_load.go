package shardnode

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// The durable half of the retryable writes' table: see retryTable.

// loadRetries rebuilds the table when the node opens: what was written down, then the oplog from there on.
func (n *Node) loadRetries() error {
	t := &n.retries
	t.mu.sessions = make(map[cluster.LogicalSessionID]*retrySession)
	err := n.eachDoc(transactionsNS, func(doc []byte) error {
		s := n.retries.known(value.Lookup(doc, "_id").Doc())
		if s == nil {
			return nil
		}
		s.number = safeInt64(value.Lookup(doc, "txnNum"))
		s.used = value.Lookup(doc, "lastWriteDate").Time()
		if value.Lookup(doc, "state").Str() == "committed" {
			ts := value.Lookup(value.Lookup(doc, "lastWriteOpTime").Doc(), "ts")
			s.txn = &openTxn{number: s.number, state: txnCommitted, ts: storage.Timestamp(ts.TimestampU64())}
		}
		for _, v := range value.Values(value.Lookup(doc, "statements").Doc()) {
			d := v.Doc()
			s.runs = append(s.runs, stmtRun{
				from: int32(safeInt64(value.Lookup(d, "from"))), to: int32(safeInt64(value.Lookup(d, "to"))),
				op: value.Lookup(d, "op").Str()[0], id: value.Lookup(d, "id").Clone(),
			})
		}
		return nil
	})
	if err != nil {
		return err
	}
	from, err := n.getDoc(retryProgressNS, value.NewString("complete"))
	if err != nil {
		return err
	}
	t.flushed = storage.Timestamp(value.Lookup(from, "ts").TimestampU64())
	if err := n.replayOplog(t.flushed); err != nil {
		return err
	}
	return n.eachDoc(imagesNS, func(doc []byte) error {
		s := n.retries.known(value.Lookup(doc, "_id").Doc())
		if s != nil && s.number == safeInt64(value.Lookup(doc, "txnNum")) {
			s.image = value.Lookup(doc, "image").Doc()
		}
		return nil
	})
}

// known finds or makes a session by its stored id; nil where that is none.
func (t *retryTable) known(lsid []byte) *retrySession {
	id, err := cluster.ParseLSID(lsid, cluster.NoUser)
	if err != nil {
		return nil
	}
	s := t.mu.sessions[id]
	if s == nil {
		s = newRetrySession()
		s.lsid = id.Doc()
		t.mu.sessions[id] = s
	}
	return s
}

// replayOplog notes the retryable writes of all entries after a time.
func (n *Node) replayOplog(after storage.Timestamp) error {
	s := n.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup("local.oplog.rs")
	if c == nil {
		return nil
	}
	cur := s.Scan(c, storage.ScanOptions{From: storage.NewRecordID(int64(after))})
	defer cur.Close()
	for cur.Next() {
		n.retries.noteEntry(cur.Doc())
	}
	return cur.Err()
}

func (s *retrySession) has(stmt int32) bool {
	_, ok := s.executed(stmt)
	return ok
}

// noteEntry notes an oplog entry, where it is a statement of a retryable write or the commit of a transaction.
func (t *retryTable) noteEntry(doc []byte) {
	if o := value.Lookup(doc, "o").Doc(); !value.Lookup(o, "applyOps").IsMissing() {
		t.noteCommit(doc, o)
		return
	}
	stmt, number := value.Lookup(doc, "stmtId"), value.Lookup(doc, "txnNumber")
	list := stmt.T == value.Array // measurements that went into buckets together
	if stmt.IsMissing() || number.IsMissing() || !list && safeInt64(stmt) < 0 {
		return
	}
	s := t.known(value.Lookup(doc, "lsid").Doc())
	if s == nil || number.Int64() < s.number {
		return
	}
	if number.Int64() > s.number {
		s.number, s.runs, s.image, s.txn = number.Int64(), nil, nil, nil
	}
	s.used = value.Lookup(doc, "wall").Time()
	if list {
		for _, v := range value.Values(stmt.Doc()) {
			if id := int32(safeInt64(v)); !s.has(id) {
				s.ran('i', id, id, value.Value{})
			}
		}
		return
	}
	id := int32(safeInt64(stmt))
	if s.has(id) {
		return
	}
	op, made := value.Lookup(doc, "op").Str(), value.Value{}
	if op == "" || op[0] != 'i' && op[0] != 'u' && op[0] != 'd' {
		return
	}
	if op[0] == 'i' {
		made = value.Lookup(value.Lookup(doc, "o").Doc(), "_id")
	}
	s.ran(op[0], id, id, made)
}

// noteCommit notes the entry of a committed transaction; the last of several counts.
func (t *retryTable) noteCommit(doc, o []byte) {
	number := value.Lookup(doc, "txnNumber")
	if number.IsMissing() || value.Lookup(o, "partialTxn").Truthy() {
		return
	}
	s := t.known(value.Lookup(doc, "lsid").Doc())
	if s == nil || number.Int64() < s.number {
		return
	}
	s.number, s.runs, s.image, s.dirty = number.Int64(), nil, nil, true
	s.used = value.Lookup(doc, "wall").Time()
	s.txn = &openTxn{number: s.number, state: txnCommitted, ts: storage.Timestamp(value.Lookup(doc, "ts").TimestampU64())}
}

// flushRetries writes the sessions that changed to config.transactions, and forgets those that nobody used for as long as
// a session lives.
func (n *Node) flushRetries(ctx context.Context) error {
	t := &n.retries
	seen := n.Engine.Visible()
	limit := n.now().Add(-cluster.SessionTimeout)
	type record struct{ id, doc []byte }
	var records []record
	t.mu.Lock()
	for id, s := range t.mu.sessions {
		select {
		case <-s.busy:
		default:
			continue // it is at work: the next flush has it
		}
		switch {
		case s.used.Before(limit):
			records = append(records, record{id: s.lsid})
			delete(t.mu.sessions, id)
		case s.dirty:
			records = append(records, record{s.lsid, s.record()})
			s.dirty = false
		}
		s.busy <- struct{}{}
	}
	t.mu.Unlock()
	for len(records) > 0 {
		batch := records[:min(len(records), 500)]
		records = records[len(batch):]
		err := n.writeUnit(ctx, relaxed, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			c, err := collectionFor(s, u, transactionsNS)
			for _, r := range batch {
				if err == nil {
					err = putRecord(s, u, c, value.NewDocument(r.id), r.doc)
				}
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	// A command that was at work during this flush is in the table by the next one, so the table is complete up to what the
	// flush before this one saw.
	writes := n.sizes.inserts.Load() + n.sizes.updates.Load() + n.sizes.deletes.Load()
	idle := writes == t.writes && len(records) == 0 && t.flushed == t.pending
	t.writes, t.flushed, t.pending = writes, t.pending, seen
	if t.flushed == 0 || idle {
		return nil
	}
	return n.writeUnit(ctx, relaxed, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c, err := localCollectionFor(s, u, retryProgressNS)
		if err != nil {
			return err
		}
		return putRecord(s, u, c, value.NewString("complete"), value.Doc(value.F("_id", value.NewString("complete")), value.F("ts", t.flushed.Value())))
	})
}

// record is a session as config.transactions keeps it.
func (s *retrySession) record() []byte {
	runs := make([]value.Value, len(s.runs))
	for i, r := range s.runs {
		f := []value.Field{value.F("from", value.NewInt32(r.from)), value.F("to", value.NewInt32(r.to)), value.F("op", value.NewStringBytes([]byte{r.op}))}
		if !r.id.IsMissing() {
			f = append(f, value.F("id", r.id))
		}
		runs[i] = value.NewDocument(value.Doc(f...))
	}
	fields := []value.Field{value.F("_id", value.NewDocument(s.lsid)), value.F("txnNum", value.NewInt64(s.number)),
		value.F("lastWriteDate", value.NewTime(s.used)), value.F("statements", value.NewArray(value.ArrayOf(runs...)))}
	if s.txn != nil && s.txn.state == txnCommitted {
		fields = append(fields, value.F("state", value.NewString("committed")),
			value.F("lastWriteOpTime", value.NewDocument(value.Doc(value.F("ts", s.txn.ts.Value())))))
	}
	return value.Doc(fields...)
}

// localCollectionFor is collectionFor for collections that are no part of the oplog.
func localCollectionFor(s *storage.Snapshot, u *storage.UnitOfWork, ns string) (*catalog.Collection, error) {
	if c := s.Catalog().Lookup(ns); c != nil {
		return c, nil
	}
	return u.CreateCollection(storage.CollectionSpec{NS: ns, Unreplicated: true})
}

// putRecord replaces the document with an _id, or removes it where doc is nil.
func putRecord(s *storage.Snapshot, u *storage.UnitOfWork, c *catalog.Collection, id value.Value, doc []byte) error {
	rid, old, ok, err := s.FindByID(c, id)
	if err != nil {
		return err
	}
	rid, old = rid.Clone(), append([]byte(nil), old...)
	switch {
	case ok && doc == nil:
		return u.Delete(c, rid, old, storage.NoInfo)
	case ok:
		return u.Update(c, rid, old, doc, storage.NoInfo)
	case doc == nil:
		return nil
	}
	_, err = u.Insert(c, doc, storage.NoInfo)
	return err
}

// runRetryFlush writes the table down every so often until ctx ends, and once more then.
func (n *Node) runRetryFlush(ctx context.Context) {
	tick := time.NewTicker(retryFlushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			n.expireTxns()
			if n.Repl != nil && n.Repl.Writable() && n.Set.IsPrimary() {
				_ = n.flushRetries(ctx) // the oplog still has what was not written down
			}
		case <-ctx.Done():
			return
		}
	}
}
