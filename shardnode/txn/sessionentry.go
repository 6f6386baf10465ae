package txn

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// The history of sessions moves with the documents that it is about, as entries of the oplog. An entry is sent without what a retry
// does not need: of a document only its key.
//
//	{lsid, txnNumber, op: i | d, ns, ui, o: <key>, stmtId, ts, t, wall}                          a statement
//	{lsid, txnNumber, op: u, ns, ui, o: {}, o2: <key>, stmtId, ts, t, wall}                      a statement
//	{lsid, txnNumber, op: n, o: <the document>, ts, t}, and then one with pre- or postImageOpTime  a findAndModify
//	{…, op: n, o: {$sessionMigrateInfo: 1}, o2: {op, ns, ui, o, o2}, stmtId}                    a statement that another shard has executed
//	{…, op: n, o: {$sessionMigrateInfo: 1}, o2: {$incompleteOplogHistory: 1}, stmtId: -1}       the number has history that is not known
//
// The new owner logs statements in the third form, whatever form they came in, each in the unit that records it in its session: they are
// part of its oplog as if it had executed them, through restarts and elections, and move on with the document.
const (
	migratedTag   = "$sessionMigrateInfo"
	incompleteTag = "$incompleteOplogHistory"
)

func tag(name string) []byte { return value.Doc(value.F(name, value.NewInt32(1))) }

// statementEntry is an entry about statements: as the shard that executed them logged it, or as one that has adopted them did.
type statementEntry struct {
	of    storage.OplogEntry // what was executed; an adopted insert is without its document
	stmts []value.Value
	id    value.Value // the _id of an inserted document; missing for others
	lost  bool        // it only records that the history is incomplete
	image string      // the kind of document that the statement returned, "" for none
}

// statementOf reads an entry; ok is false if it is about no statement of a retryable write. What it returns borrows from the entry.
func statementOf(e *storage.OplogEntry) (s statementEntry, ok bool) {
	s = statementEntry{of: *e, stmts: []value.Value{value.NewInt32(e.StmtID)}, image: value.Lookup(e.Extra, "needsRetryImage").Str()}
	if list := value.Lookup(e.Extra, "stmtId"); list.T == value.Array { // measurements that were written to buckets together
		s.stmts = value.Values(list.Doc())
	}
	ok = len(s.stmts) > 0 && value.SafeInt64(s.stmts[0]) >= 0
	switch {
	case e.Op == 'n' && !value.Lookup(e.O, migratedTag).IsMissing():
		s.of = operationOf(e.O2)
		s.lost = !value.Lookup(e.O2, incompleteTag).IsMissing()
		if s.of.Op == 'i' {
			s.id, s.of.O2, s.of.O = value.Lookup(s.of.O, "_id"), s.of.O, nil
		}
		return s, ok || s.lost
	case e.Op == 'i':
		s.id = value.Lookup(e.O, "_id")
	case e.Op != 'u' && e.Op != 'd':
		return s, false
	}
	return s, ok
}

// operationOf reads an operation from its document.
func operationOf(doc []byte) storage.OplogEntry {
	e := storage.OplogEntry{NS: value.Lookup(doc, "ns").Str(), O: value.LookupDoc(doc, "o"), O2: value.LookupDoc(doc, "o2"), StmtID: -1}
	if op := value.Lookup(doc, "op").Str(); len(op) == 1 {
		e.Op = op[0]
	}
	e.UUID, _ = catalog.UUIDFrom(value.Lookup(doc, "ui"))
	return e
}

// runs returns the statements as the session records them.
func (s *statementEntry) runs() (runs []Run) {
	if s.lost {
		return nil
	}
	var id value.Value
	if len(s.stmts) == 1 {
		id = s.id
	}
	for _, v := range s.stmts {
		stmt := int32(value.SafeInt64(v))
		runs = append(runs, Run{stmt, stmt, s.of.Op, id})
	}
	return runs
}

// operation returns what was executed with the document's key in place of the document: {op, ns, ui, o, o2}. The key appears
// once, since an _id may be nearly as large as a document.
func (s *statementEntry) operation(key []byte) []value.Field {
	f := []value.Field{value.F("op", value.NewStringBytes([]byte{s.of.Op}))}
	if s.of.NS != "" {
		f = append(f, value.F("ns", value.NewString(s.of.NS)))
	}
	if !s.of.UUID.IsZero() {
		f = append(f, value.F("ui", s.of.UUID.Value()))
	}
	switch {
	case key == nil && !s.id.IsMissing():
		key = value.Doc(value.F("_id", s.id))
	case key == nil:
		key = value.Doc()
	}
	if s.of.Op == 'u' {
		return append(f, value.F("o", value.NewDocument(value.Doc())), value.F("o2", value.NewDocument(key)))
	}
	return append(f, value.F("o", value.NewDocument(key)))
}

// key returns the key of the document that was written to, as far as the entry has it.
func (s *statementEntry) key() []byte {
	if s.of.Op == 'd' {
		return s.of.O
	}
	return s.of.O2
}

// stmtID returns the value of the entry's field stmtId.
func (s *statementEntry) stmtID() value.Value {
	switch {
	case s.lost:
		return value.NewInt32(-1)
	case len(s.stmts) == 1:
		return s.stmts[0]
	}
	return value.NewArray(value.ArrayOf(s.stmts...))
}

// adopted returns the entry with which a shard logs what another one has executed.
func (s *statementEntry) adopted() storage.OplogEntry {
	e := storage.OplogEntry{Op: 'n', NS: s.of.NS, UUID: s.of.UUID, O: tag(migratedTag), O2: tag(incompleteTag), StmtID: -1}
	if !s.lost {
		e.O2 = value.Doc(s.operation(s.key())...)
	}
	var extra []value.Field
	if !s.lost && len(s.stmts) == 1 {
		e.StmtID = int32(value.SafeInt64(s.stmts[0]))
	} else {
		extra = append(extra, value.F("stmtId", s.stmtID()))
	}
	if s.image != "" {
		extra = append(extra, value.F("needsRetryImage", value.NewString(s.image)))
	}
	if extra != nil {
		e.Extra = value.Doc(extra...)
	}
	return e
}

// statementsAtOnce is the maximum number of statements that an entry lists.
const statementsAtOnce = 1000

// entriesOf returns entries for statements about which nothing is known except that they were executed.
func entriesOf(runs []Run) (out []statementEntry) {
	for _, r := range runs {
		for from := int64(r.From); from <= int64(r.To); from += statementsAtOnce {
			s := statementEntry{of: storage.OplogEntry{Op: r.Op}, id: r.ID}
			for id := from; id <= min(int64(r.To), from+statementsAtOnce-1); id++ {
				s.stmts = append(s.stmts, value.NewInt32(int32(id)))
			}
			out = append(out, s)
		}
	}
	return out
}
