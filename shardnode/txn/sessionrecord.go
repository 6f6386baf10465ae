package txn

import (
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// The stored form of a session's history. One command may upsert 100,000 documents, whose _ids are part of the history and may have
// 48 MB together. A record with all of them would be no valid document, nor would its oplog entry, at which every reader of the
// oplog would stop: it has statementBytes of them, and documents in StatementsNS have the others:
//
//	config.transactions                 {_id: lsid, txnNum, lastWriteOpTime, lastWriteDate, statements: [{from, to, op, id}, …]}
//	config.system.retryableStatements   {_id: {lsid, part: 1, 2, …}, txnNum, statements: […]}
//
// A history of which a part is not known (inRecord) is stored with incomplete: true. They are written in one unit of work. Those of another txnNum than the record's are left over, and ignored.

// statementBytes is the size of the statements in one document; one with a larger _id has a document of its own.
const statementBytes = 4 << 20

// statements returns the history's statements as arrays for one document each, the first of which may be empty.
func (h *history) statements() (parts []value.Value) {
	for i := 0; ; {
		list, mark := value.Begin(nil)
		for n := 0; i < len(h.runs); n++ {
			r := &h.runs[i]
			f := []value.Field{value.F("from", value.NewInt32(r.From)), value.F("to", value.NewInt32(r.To)), value.F("op", value.NewStringBytes([]byte{r.Op}))}
			if !r.ID.IsMissing() {
				f = append(f, value.F("id", r.ID))
			}
			doc := value.Doc(f...)
			if n > 0 && len(list)+len(doc) > statementBytes {
				break
			}
			list = value.AppendIndex(list, n, value.NewDocument(doc))
			i++
		}
		parts = append(parts, value.NewArray(value.End(list, mark)))
		if i == len(h.runs) {
			return parts
		}
	}
}

// record returns a session's record for config.transactions with some of its statements; its number is that of the newest
// retryable write that has written, or of a committed transaction. mu must be held.
func (s *Session) record(used time.Time, statements value.Value) []byte {
	h := s.newest()
	fields := []value.Field{value.F("_id", value.NewDocument(s.LSID)), value.F("txnNum", value.NewInt64(h.number)),
		value.F("lastWriteOpTime", h.last.Value()), value.F("lastWriteDate", value.NewTime(used))}
	if h.committed {
		return value.Doc(append(fields, value.F("state", value.NewString("committed")))...)
	}
	return value.Doc(append(fields, h.fields(statements)...)...)
}

// fields returns what a record says of executed statements.
func (h *history) fields(statements value.Value) []value.Field {
	fields := []value.Field{value.F("statements", statements)}
	if h.torn {
		fields = append(fields, value.F(tornField, value.NewBool(true)))
	}
	return fields
}

const tornField = "incomplete"

// continuations writes the documents that continue records, in one unit of work.
type continuations struct {
	snap *storage.Snapshot
	u    *storage.UnitOfWork
	coll *catalog.Collection
}

// put replaces the continuations of a session's record.
func (c *continuations) put(lsid []byte, number value.Value, parts []value.Value) error {
	if c.coll == nil {
		if c.coll = c.snap.Catalog().Lookup(StatementsNS); c.coll == nil && len(parts) == 0 {
			return nil
		}
	}
	if c.coll == nil {
		var err error
		if c.coll, err = statedoc.CollectionFor(c.snap, c.u, StatementsNS); err != nil {
			return err
		}
	}
	for n := 0; ; n++ {
		id := value.NewDocument(value.Doc(value.F("lsid", value.NewDocument(lsid)), value.F("part", value.NewInt32(int32(n+1)))))
		var doc []byte
		if n < len(parts) {
			doc = value.Doc(value.F("_id", id), value.F("txnNum", number), value.F("statements", parts[n]))
		} else if _, there, err := c.snap.LookupID(c.coll, id); err != nil || !there {
			return err
		}
		if err := statedoc.PutRecord(c.snap, c.u, c.coll, id, doc); err != nil {
			return err
		}
	}
}

// readContinuation adds the statements of a continuation to its session, whose record has been read.
func (m *Manager) readContinuation(sessions map[cluster.LogicalSessionID]*Session, doc []byte) {
	id, err := cluster.ParseLSID(value.LookupDoc(value.LookupDoc(doc, "_id"), "lsid"), cluster.NoUser)
	if err != nil {
		return
	}
	s := sessions[id]
	if s == nil || s.committed || s.Number != value.SafeInt64(value.Lookup(doc, "txnNum")) {
		return
	}
	if err := s.readStatements(doc); err != nil {
		m.node.Warn("A document of "+StatementsNS+" cannot be read", err)
		s.lose()
	}
}
