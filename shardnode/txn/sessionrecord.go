package txn

import (
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// The stored form of a session's history. config.transactions has what the real server's records have; which statements were executed, and
// what the upserts among them made, is in documents of StatementsNS, one for each statementBytes of them: one command may upsert
// 100,000 documents, whose _ids may have 48 MB together.
//
//	config.transactions                 {_id: lsid, txnNum, lastWriteOpTime, lastWriteDate, state, startOpTime, parentLsid}
//	config.system.retryableStatements   {_id: {lsid, part: 0, 1, 2, …}, txnNum, statements: [{from, to, op, id}, …]}
//
// A history of which a part is not known (inRecord) has incomplete: true in part 0. They are written in one unit of work. Those of another
// txnNum than the record's are left over, and ignored.
//
// Earlier versions stored the first part, and incomplete, in the record itself. It is still read there, and the next flush moves it (LoadRetries).

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

// record returns a session's record for config.transactions; its number is that of the newest retryable write that has written, or of a
// committed transaction. mu must be held.
func (s *Session) record(used time.Time) []byte {
	h := s.newest()
	fields := []value.Field{value.F("_id", value.NewDocument(s.LSID)), value.F("txnNum", value.NewInt64(h.number)),
		value.F("lastWriteOpTime", h.last.Value()), value.F("lastWriteDate", value.NewTime(used))}
	if h.committed {
		fields = append(fields, value.F("state", value.NewString("committed")))
	}
	return value.Doc(append(fields, s.parentField()...)...)
}

// parentField returns the field of the record of an internal transaction's session that names its client's session.
func (s *Session) parentField() []value.Field {
	if s.parent == nil {
		return nil
	}
	return []value.Field{value.F("parentLsid", value.NewDocument(s.parent.LSID))}
}

// fields returns what is stored of executed statements.
func (h *history) fields(part value.Value) []value.Field {
	fields := []value.Field{value.F("statements", part)}
	if h.torn {
		fields = append(fields, value.F(tornField, value.NewBool(true)))
	}
	return fields
}

const tornField = "incomplete"

// statementDocs writes the documents with the statements of records, in the records' unit of work.
type statementDocs struct {
	snap *storage.Snapshot
	u    *storage.UnitOfWork
	coll *catalog.Collection
}

// put replaces the documents of a session, docs of which exist, and returns the new value of docs; h is nil if it has no history any more.
func (c *statementDocs) put(lsid []byte, h *history, docs int) (now int, err error) {
	var parts []value.Value
	if h != nil && !h.committed {
		parts = h.statements()
	}
	if now = len(parts) + 1; c.coll == nil {
		if c.coll = c.snap.Catalog().Lookup(StatementsNS); c.coll == nil && len(parts) == 0 {
			return now, nil
		}
	}
	if c.coll == nil {
		// Like pre-images they belong to other writes: members have them with those, without entries in the oplog. Clustered, they have no index.
		spec := storage.CollectionSpec{NS: StatementsNS, Unreplicated: true, Options: value.Doc(value.F("clusteredIndex", value.NewBool(true)))}
		if c.coll, err = c.u.CreateCollection(spec); err != nil {
			return 0, err
		}
	}
	for n := 0; ; n++ {
		if n >= len(parts) && docs > 0 && n >= docs-1 {
			return now, nil
		}
		id := value.NewDocument(value.Doc(value.F("lsid", value.NewDocument(lsid)), value.F("part", value.NewInt32(int32(n)))))
		var doc []byte
		if n < len(parts) {
			doc = value.Doc(append([]value.Field{value.F("_id", id), value.F("txnNum", value.NewInt64(h.number))}, h.fields(parts[n])...)...)
		} else if _, _, there, err := c.snap.FindByID(c.coll, id); err != nil || !there && n > 0 {
			return now, err
		} else if !there {
			continue // an earlier version began with part 1
		}
		if err := statedoc.PutRecord(c.snap, c.u, c.coll, id, doc); err != nil {
			return 0, err
		}
	}
}

// storedDocs returns docs.
func (s *Session) storedDocs() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.docs
}

func (s *Session) setDocs(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.docs = n
}

// readStatementDoc adds the statements of a document to its session, whose record has been read.
func (m *Manager) readStatementDoc(sessions map[cluster.LogicalSessionID]*Session, doc []byte) {
	id, err := cluster.ParseLSID(value.LookupDoc(value.LookupDoc(doc, "_id"), "lsid"), cluster.NoUser)
	if err != nil {
		return
	}
	s := sessions[id]
	if s == nil || s.Txn != nil || s.Number != value.SafeInt64(value.Lookup(doc, "txnNum")) {
		return
	}
	if err := s.readStatements(doc); err != nil {
		m.node.Warn("A document of "+StatementsNS+" cannot be read", err)
		s.lose()
	}
}
