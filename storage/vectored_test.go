package storage

import (
	"bytes"
	"slices"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
)

// insertTogether inserts n documents as an insert command does, each with a pad of some bytes, as statements from first on of a session's
// number, or outside of sessions if that is 0.
func insertTogether(t *testing.T, e *Engine, c *catalog.Collection, n, pad, number, first int, prev OpTime) Timestamp {
	t.Helper()
	u := e.NewUnitOfWork(nil)
	info := OpInfo{StmtID: -1, Vectored: true}
	if number != 0 {
		u.SetSession(D("id", "x"), int64(number), prev)
		info.StmtID = int32(first)
	}
	var docs [][]byte
	for i := range n {
		docs = append(docs, D("_id", number*10000+first+i, "pad", string(bytes.Repeat([]byte("x"), pad))))
	}
	if done, err := u.InsertMany(c, docs, info); done != n || err != nil {
		t.Fatal(done, err)
	}
	return commit(t, e, u)
}

// vectorSizes returns the number of operations of each entry after a time; 0 stands for a plain one.
func vectorSizes(t *testing.T, e *Engine, after Timestamp) (sizes []int) {
	t.Helper()
	s := e.Snapshot()
	defer s.Release()
	rc := s.Scan(s.Catalog().Lookup(OplogNS), ScanOptions{From: NewRecordID(int64(after) + 1)})
	defer rc.Close()
	for last := after; rc.Next(); {
		doc := rc.Doc()
		if at := Timestamp(value.Lookup(doc, "ts").TimestampU64()); at <= last {
			t.Errorf("the entry at %v comes after %v", at, last)
		} else {
			last = at
		}
		ops := value.Lookup(value.LookupDoc(doc, "o"), "applyOps")
		vectored := value.Lookup(doc, "multiOpType").Truthy()
		if vectored != (ops.T == value.Array) || vectored && (value.Lookup(doc, "op").Str() != "c" || value.Lookup(doc, "ns").Str() != "admin.$cmd") {
			t.Errorf("an entry is %s", value.ShowDoc(doc))
		}
		sizes = append(sizes, len(value.Values(ops.Doc())))
	}
	return sizes
}

// The documents of an insert command are one entry of the oplog, up to 500 of them, or as many as reach 256 KiB. A single one has an
// entry of its own, and so have those of capped collections.
func TestInsertsAreVectored(t *testing.T) {
	e := openMem(t, Options{})
	defer e.Close()
	c, capped := create(t, e, "db.c", nil), create(t, e, "db.capped", D("capped", true, "size", 1<<20))
	start := e.Visible()
	insertTogether(t, e, c, 1, 10, 1, 0, NoOpTime)
	insertTogether(t, e, c, 3, 10, 2, 0, NoOpTime)
	insertTogether(t, e, c, 1201, 10, 3, 0, NoOpTime)
	insertTogether(t, e, c, 5, 100<<10, 4, 0, NoOpTime)
	insertTogether(t, e, c, 2, 4<<20, 5, 0, NoOpTime)
	insertTogether(t, e, capped, 2, 10, 6, 0, NoOpTime)
	if got, want := vectorSizes(t, e, start), []int{0, 3, 500, 500, 201, 3, 2, 0, 0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("the entries have %v operations, want %v", got, want)
	}
	if n, records := len(vectorSizes(t, e, 0)), e.oplog.counters.Load().Records.Load(); int64(n) != records {
		t.Errorf("%d entries are counted as %d", n, records)
	}
}

// A vectored insert of a session has its number, the statements of its documents, and the place of the entry before it: in the form of
// the real server's.
func TestVectoredInsertOfASession(t *testing.T) {
	e := openMem(t, Options{})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	first := insertTogether(t, e, c, 2, 1, 7, 0, NoOpTime)
	insertTogether(t, e, c, 2, 1, 7, 2, OpTime{first, e.Term()})
	s := e.Snapshot()
	defer s.Release()
	doc, ok, err := s.Get(s.Catalog().Lookup(OplogNS), NewRecordID(int64(e.Visible())))
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	op := func(id, stmt int) value.Value {
		return value.NewDocument(value.Doc(value.F("op", V("i")), value.F("ns", V("db.c")), value.F("ui", c.UUID.Value()),
			value.F("o", V(D("_id", id, "pad", "x"))), value.F("o2", V(D("_id", id))), value.F("stmtId", V(stmt))))
	}
	want := value.Doc(value.F("lsid", V(D("id", "x"))), value.F("txnNumber", value.NewInt64(7)), value.F("op", V("c")), value.F("ns", V("admin.$cmd")),
		value.F("o", value.NewDocument(value.Doc(value.F("applyOps", value.NewArray(value.ArrayOf(op(70002, 2), op(70003, 3))))))),
		value.F("ts", e.Visible().Value()), value.F("t", value.NewInt64(e.Term())), value.F("v", value.NewInt64(2)), value.F("wall", value.Lookup(doc, "wall")),
		value.F("prevOpTime", OpTime{first, e.Term()}.Value()), value.F("multiOpType", V(1)))
	if !bytes.Equal(doc, want) {
		t.Errorf("the entry is\n%s, want\n%s", value.ShowDoc(doc), value.ShowDoc(want))
	}
}

// The history of a session has each statement of a vectored insert, read forwards and by the entries' chain, across units and entries.
func TestHistoryOfVectoredInserts(t *testing.T) {
	e := openMem(t, Options{})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	first := insertTogether(t, e, c, 1100, 300, 1, 0, NoOpTime)
	last := insertTogether(t, e, c, 700, 300, 1, 1100, OpTime{first, e.Term()})
	s := e.Snapshot()
	defer s.Release()
	seen := map[int32]int{}
	note := func(entry *SessionEntry) bool {
		if id := value.Lookup(entry.O, "_id").Int32(); entry.Op != 'i' || id != 10000+entry.StmtID || entry.Number != 1 {
			t.Errorf("%+v", entry)
		}
		seen[entry.StmtID]++
		return true
	}
	if err := s.SessionEntries(0, func(entry *SessionEntry) error { note(entry); return nil }); err != nil || len(seen) != 1800 {
		t.Errorf("forwards there are %d statements: %v", len(seen), err)
	}
	if whole, err := s.SessionHistory(OpTime{last, e.Term()}, note); !whole || err != nil {
		t.Errorf("backwards the history is whole: %v, %v", whole, err)
	}
	for stmt, n := range seen {
		if n != 2 {
			t.Errorf("statement %d was seen %d times", stmt, n)
		}
	}
}

// Vectored inserts of a unit that is sent ahead in pieces, and of one that stops at a duplicate, are whole.
func TestVectoredInsertsOfLargeUnits(t *testing.T) {
	e := openMem(t, Options{stageBytes: 1 << 20, chunkBytes: 256 << 10})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	start := e.Visible()
	insertTogether(t, e, c, 4000, 1000, 1, 0, NoOpTime)
	sum := 0
	for _, n := range vectorSizes(t, e, start) {
		sum += n
	}
	if sum != 4000 {
		t.Errorf("the entries have %d operations", sum)
	}
	start = e.Visible()
	u := e.NewUnitOfWork(nil)
	docs := [][]byte{D("_id", 1), D("_id", 2), D("_id", 1), D("_id", 3), D("_id", 4)}
	n, err := u.InsertMany(c, docs, OpInfo{StmtID: -1, Vectored: true})
	if n != 2 || err == nil {
		t.Fatal(n, err)
	}
	if _, err := u.InsertMany(c, docs[3:], OpInfo{StmtID: -1, Vectored: true}); err != nil {
		t.Fatal(err)
	}
	commit(t, e, u)
	if got, want := vectorSizes(t, e, start), []int{2, 2}; !slices.Equal(got, want) {
		t.Errorf("around a duplicate the entries have %v operations, want %v", got, want)
	}
}
