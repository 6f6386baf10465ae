package storage

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// block creates a block of n inserts.
func block(n int, s *session) *opBlock {
	b := &opBlock{}
	b.begin(1234, 5, s, true)
	for i := 0; i < n; i++ {
		b.add(&OplogEntry{Op: 'i', NS: "db.c", UUID: catalog.UUID{7}, O: D("_id", i, "s", "the same again and again"), StmtID: int32(i)}, false, false)
	}
	b.pack()
	return b
}

// Blocks read back as they were written, packed or not, and their size does not depend on it.
func TestBlocksReadBack(t *testing.T) {
	for _, n := range []int{1, 2, 1000} {
		for _, s := range []*session{nil, {lsid: D("id", "x"), number: 9, prev: OpTime{77, 4}}} {
			b := block(n, s)
			p := b.stored()
			if packed := p[0] == blockVersionPacked; packed != (n == 1000) || packed && len(p) > len(b.buf)/2 {
				t.Fatalf("%d entries of %d bytes are stored as version %d in %d bytes", n, len(b.buf), p[0], len(p))
			}
			if blockSize(p) != int64(len(b.buf)) {
				t.Fatalf("the size of %d entries is %d, not %d", n, blockSize(p), len(b.buf))
			}
			var o openBlock
			if err := o.read(100_000, p); err != nil {
				t.Fatal(err)
			}
			if len(o.entries) != n || o.term != 5 || o.wall != 1234 || s != nil && (o.number != 9 || o.prev != s.prev || !bytes.Equal(o.lsid, s.lsid)) {
				t.Fatalf("%d entries read as %d, %+v", n, len(o.entries), o)
			}
			for i, e := range o.entries {
				if !bytes.Equal(e.O, D("_id", i, "s", "the same again and again")) || e.NS != "db.c" || e.StmtID != int32(i) {
					t.Fatalf("entry %d is %+v", i, e)
				}
			}
		}
	}
}

// Damaged blocks are reported as such, whatever their bytes.
func TestDamagedBlocks(t *testing.T) {
	whole := block(1000, nil).stored()
	huge := binary.AppendUvarint(append([]byte(nil), whole[:blockHeader]...), 1<<31)
	cases := map[string][]byte{
		"empty": {}, "version": append([]byte{9}, whole[1:]...), "cut": whole[:len(whole)/2], "header": whole[:blockHeader], "huge": huge,
	}
	for name, p := range cases {
		var o openBlock
		if err := o.read(1, p); mongoerr.CodeOf(err) != mongoerr.DataCorruptionDetected {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The oplog as clients read it is the same for documents inserted at once, packed, and one by one.
func TestInsertManyKeepsOrder(t *testing.T) {
	e := openMem(t, Options{})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	var docs [][]byte
	for i := 0; i < 300; i++ {
		docs = append(docs, D("_id", 1000-i, "s", "the same again and again"))
	}
	// A duplicate inside the batch makes the unit read what it has staged so far.
	batch := append(append(append([][]byte(nil), docs[:200]...), docs[7]), docs[200:]...)
	u := e.NewUnitOfWork(nil)
	n, err := u.InsertMany(c, batch, NoInfo)
	if n != 200 || mongoerr.CodeOf(err) != mongoerr.DuplicateKey {
		t.Fatal(n, err)
	}
	if n, err = u.InsertMany(c, batch[201:], NoInfo); n != 100 || err != nil {
		t.Fatal(n, err)
	}
	commit(t, e, u)
	s := e.Snapshot()
	defer s.Release()
	oplog := s.Scan(s.Catalog().Lookup(OplogNS), ScanOptions{})
	defer oplog.Close()
	at := 0
	for oplog.Next() {
		o := value.Lookup(oplog.Doc(), "o").Doc()
		if at < len(docs) && bytes.Equal(o, docs[at]) {
			at++
		}
	}
	if at != len(docs) {
		t.Fatalf("the oplog has %d of the inserts in order", at)
	}
	for i, doc := range docs {
		if _, got, ok, err := s.FindByID(s.Catalog().Lookup("db.c"), V(1000-i)); !ok || err != nil || !bytes.Equal(got, doc) {
			t.Fatalf("document %d: %x %v %v", i, got, ok, err)
		}
	}
}
