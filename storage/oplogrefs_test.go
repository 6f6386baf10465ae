package storage

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
)

// copyIn inserts documents in one unit, whose oplog entries refer to them or not.
func copyIn(t testing.TB, e *Engine, c *catalog.Collection, refer bool, docs [][]byte) {
	t.Helper()
	u := e.NewUnitOfWork(nil)
	u.SetFromMigrate()
	if refer {
		u.ReferToVersions()
	}
	if _, err := u.InsertMany(c, docs, NoInfo); err != nil {
		t.Fatal(err)
	}
	commit(t, e, u)
}

// copyDocs makes documents of a kilobyte, as many as fill several blocks of the oplog.
func copyDocs(from, n int) (docs [][]byte) {
	for i := range n {
		docs = append(docs, D("_id", from+i, "pad", strings.Repeat(string(rune('a'+(from+i)%26)), 1000)))
	}
	return docs
}

// refBlocks counts the blocks of the oplog that refer to documents, and their bytes; all is the size that the oplog's counters should have.
func refBlocks(t *testing.T, e *Engine) (n int, all int64) {
	t.Helper()
	lower, upper := identRange(identOplog)
	it, err := e.db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer closeQuietly(it)
	it.SetBounds(lower, upper)
	for ok := it.First(); ok; ok = it.Next() {
		if all += blockSize(it.Value()); isRefs(it.Value()) {
			n++
		}
	}
	return n, all
}

// A copy is logged by reference in a fraction of its size, reads back as if its entries had the documents, also when documents have been changed, removed
// or dropped since and their versions are gone, and after a restart at any time.
func TestCopiesAreLoggedByReference(t *testing.T) {
	for _, restart := range []bool{false, true} {
		var clock atomic.Int64
		clock.Store(1_700_000_000)
		o := Options{FS: vfs.NewMem(), Clock: func() time.Time { return time.Unix(clock.Load(), 0) }, CollectInterval: time.Hour, HistoryWindow: time.Second}
		e := openMem(t, o)
		c := create(t, e, "db.c", nil, spec("pad_1", D("pad", 1)))
		begin := len(oplogFrom(t, e, 0))
		copyIn(t, e, c, true, copyDocs(0, 500))
		copyIn(t, e, c, true, copyDocs(500, 300))
		want := oplogFrom(t, e, begin)
		if len(want) != 800 || !strings.Contains(want[0], `"fromMigrate": true`) && !strings.Contains(want[0], "fromMigrate: true") {
			t.Fatalf("%d entries, the first is %.200s", len(want), want[0])
		}
		for i, entry := range want {
			if doc := shellString(value.NewDocument(copyDocs(i, 1)[0])); !strings.Contains(entry, doc) {
				t.Fatalf("entry %d is %.200s, without %.100s", i, entry, doc)
			}
		}
		if n, all := refBlocks(t, e); n < 6 || all != e.oplog.counters.Load().DataSize.Load() {
			t.Fatalf("%d blocks are of references; the oplog has %d bytes, its counters say %d", n, all, e.oplog.counters.Load().DataSize.Load())
		}
		same := func(when string, refs bool) {
			t.Helper()
			if restart {
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
				e = openMem(t, o)
			}
			clock.Add(10)
			if err := e.collect(context.Background()); err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			if got := oplogFrom(t, e, begin)[:len(want)]; !slices.Equal(got, want) {
				t.Fatalf("%s the oplog reads differently", when)
			}
			if n, all := refBlocks(t, e); (n > 0) != refs || all != e.oplog.counters.Load().DataSize.Load() {
				t.Errorf("%s %d blocks are of references; the oplog has %d bytes, its counters say %d", when, n, all, e.oplog.counters.Load().DataSize.Load())
			}
		}
		same("later", true)
		s := e.Snapshot()
		c = e.Catalog().Lookup("db.c")
		u := e.NewUnitOfWork(s)
		for _, id := range []int{3, 700} {
			rid, old, _, err := s.FindByID(c, V(id))
			rid, old = rid.Clone(), slices.Clone(old)
			if err == nil && id == 3 {
				err = u.Update(c, rid, old, D("_id", id), NoInfo)
			} else if err == nil {
				err = u.Delete(c, rid, old, NoInfo)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		commit(t, e, u)
		s.Release()
		copyIn(t, e, c, true, copyDocs(1000, 300))
		want = oplogFrom(t, e, begin)
		same("after an update and a deletion", true)
		u = e.NewUnitOfWork(nil)
		if err := u.DropCollection(e.Catalog().Lookup("db.c")); err != nil {
			t.Fatal(err)
		}
		commit(t, e, u)
		create(t, e, "db.other", nil) // the drop is older than the newest commit
		same("after the drop", false)
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What is logged by reference takes up the space of the documents only once, in the journal as in the tables.
func TestCopiesAreWrittenOnce(t *testing.T) {
	written := func(refer bool) int64 {
		e := openMem(t, Options{CollectInterval: time.Hour})
		defer e.Close()
		c := create(t, e, "db.c", nil)
		before := e.db.Metrics().WAL.BytesIn
		docs := noiseDocs(2000, 500)
		for i := 0; i < len(docs); i += 500 {
			copyIn(t, e, c, refer, docs[i:i+500])
		}
		return int64(e.db.Metrics().WAL.BytesIn - before)
	}
	plain, by := written(false), written(true)
	if by*10 > plain*6 {
		t.Errorf("a copy writes %d bytes to the journal by reference, and %d with its documents", by, plain)
	}
}

// noiseDocs makes documents that cannot be compressed.
func noiseDocs(n, size int) (docs [][]byte) {
	r := newRand(5)
	for i := range n {
		pad := make([]byte, size)
		for j := range pad {
			pad[j] = byte('!' + r.IntN(90))
		}
		docs = append(docs, D("_id", i, "pad", string(pad)))
	}
	return docs
}

// The entries of a unit that inserts by reference and then makes other writes keep their order and their documents, and so do those of a unit that is too
// large for one entry of the replicated log.
func TestUnitsThatDoNotOnlyCopy(t *testing.T) {
	l := newTestLog(t, 2, Options{stageBytes: 64 << 10, chunkBytes: 16 << 10, CollectInterval: time.Hour})
	defer l.close()
	l.elect(l.members[0], 0)
	l.keepCommitting()
	e := l.members[0].e
	c := create(t, e, "db.c", nil)
	begin := len(oplogFrom(t, e, 0))
	s := e.Snapshot()
	defer s.Release()
	for round, n := range []int{3, 200} {
		u := e.NewUnitOfWork(s)
		u.ReferToVersions()
		for i, doc := range copyDocs(1000*round, n) {
			rid, err := u.Insert(c, doc, NoInfo)
			if err == nil && i == 1 {
				err = u.Update(c, rid, doc, D("_id", 1000*round+1, "x", 1), NoInfo)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		commit(t, e, u)
	}
	got := oplogFrom(t, e, begin)
	if len(got) != 3+1+200+1 {
		t.Fatalf("%d entries", len(got))
	}
	at := 0
	for round, n := range []int{3, 200} {
		for i, doc := range copyDocs(1000*round, n) {
			if !strings.Contains(got[at], shellString(value.NewDocument(doc))) {
				t.Errorf("entry %d is %.100s, not the insertion of %d", at, got[at], 1000*round+i)
			}
			if at++; i == 1 {
				at++ // the update
			}
		}
	}
	l.settle()
	l.same()
}

// Where the oplog has been truncated, nothing is remembered of the blocks that referred to documents, and what is counted of the oplog is what it has.
func TestTruncatedReferencesAreForgotten(t *testing.T) {
	e := openMem(t, Options{OplogSize: 256 << 10, CollectInterval: time.Hour})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	copyIn(t, e, c, true, copyDocs(0, 500))
	if len(e.oplog.refs.of(c.Ident)) != 1 {
		t.Fatalf("the spans are %v", e.oplog.refs.of(c.Ident))
	}
	copyIn(t, e, c, false, copyDocs(500, 500))
	if err := e.collect(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := e.loadRefs(); err != nil || len(e.oplog.refs.of(c.Ident)) != 0 {
		t.Errorf("the spans are %v, %v", e.oplog.refs.of(c.Ident), err)
	}
	if n, all := refBlocks(t, e); n != 0 || all != e.oplog.counters.Load().DataSize.Load() {
		t.Errorf("%d blocks are of references; the oplog has %d bytes, its counters say %d", n, all, e.oplog.counters.Load().DataSize.Load())
	}
}

// Who looks for the writes to one collection does not read the documents that were copied into others.
func TestCopiesOfOtherCollectionsAreSkipped(t *testing.T) {
	e := openMem(t, Options{FS: vfs.NewMem()})
	a, b := create(t, e, "db.a", nil), create(t, e, "db.b", nil)
	after := e.Visible()
	copyIn(t, e, a, true, copyDocs(0, 300))
	copyIn(t, e, b, false, copyDocs(0, 2))
	copyIn(t, e, b, true, copyDocs(2, 3))
	copyIn(t, e, a, true, copyDocs(300, 300))
	s := e.Snapshot()
	defer s.Release()
	oplog := s.Catalog().Lookup("local.oplog.rs")
	for _, c := range []struct {
		of           *catalog.Collection
		wantA, wantB int
		skipped      bool
		skippedLast  bool
	}{{nil, 600, 5, false, false}, {a, 600, 2, true, false}, {b, 0, 5, true, true}} {
		cur := s.Scan(oplog, ScanOptions{From: NewRecordID(int64(after) + 1), CopiesOf: c.of})
		n := map[string]int{}
		for cur.Next() {
			n[value.Lookup(cur.Doc(), "ns").Str()]++
		}
		if err := cur.Err(); err != nil {
			t.Fatal(err)
		}
		if n["db.a"] != c.wantA || n["db.b"] != c.wantB || len(n) > 2 {
			t.Errorf("copies of %v: %v", c.of, n)
		}
		if at := cur.Skipped(); (at > 0) != c.skipped || (at == s.Timestamp()) != c.skippedLast {
			t.Errorf("copies of %v: skipped up to %v of %v", c.of, at, s.Timestamp())
		}
		cur.Close()
	}
}
