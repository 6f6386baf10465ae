package storage

import (
	"context"
	"slices"
	"testing"
	"time"
)

// Deleting a document of each of many copies puts all their documents into the oplog, but not into memory at once.
func TestKeptBlocksAreWrittenInPieces(t *testing.T) {
	e := openMem(t, Options{CollectInterval: time.Hour})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	begin := len(oplogFrom(t, e, 0))
	var units []Timestamp
	docs := noiseDocs(40*600, 300)
	for i := 0; i < len(docs); i += 600 {
		copyIn(t, e, c, true, docs[i:i+600])
		units = append(units, e.Visible())
	}
	want := oplogFrom(t, e, begin)
	keep := blockKeeper{e: e}
	defer keep.close()
	for _, ts := range units {
		if err := keep.keep(c.Ident, ts); err != nil {
			t.Fatal(err)
		}
		if keep.size > 2<<20 {
			t.Fatalf("%d bytes are kept in memory", keep.size)
		}
	}
	b := e.db.NewBatch()
	defer closeQuietly(b)
	if err := keep.before(b); err != nil {
		t.Fatal(err)
	}
	if n, _ := refBlocks(t, e); n != 0 {
		t.Errorf("%d blocks still refer to documents", n)
	}
	if got := oplogFrom(t, e, begin); len(got) != len(want) || got[0] != want[0] || got[len(got)-1] != want[len(want)-1] {
		t.Error("the oplog reads differently")
	}
	if err := e.collect(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// A store that is closed while it drops a table does not first put all that was ever copied into it into the oplog.
func TestDroppingCopiesEndsWithTheStore(t *testing.T) {
	e := openMem(t, Options{CollectInterval: time.Hour})
	defer e.Close()
	c := create(t, e, "db.c", nil)
	begin := len(oplogFrom(t, e, 0))
	for i := range 5 {
		copyIn(t, e, c, true, copyDocs(i*300, 300))
	}
	want := oplogFrom(t, e, begin)
	refs, _ := refBlocks(t, e)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := e.dropTables(ctx, []pendingDrop{{ident: c.Ident}}, true); err == nil {
		t.Error("it goes on")
	}
	if n, _ := refBlocks(t, e); n != refs {
		t.Errorf("%d blocks refer to documents, before %d did", n, refs)
	}
	if got := oplogFrom(t, e, begin); !slices.Equal(got, want) {
		t.Error("the oplog reads differently")
	}
}
