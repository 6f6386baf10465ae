package migration

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// tablesDoc is a document of about a kilobyte.
func tablesDoc(i int, more ...value.Field) []byte {
	return value.Doc(append([]value.Field{value.F("_id", value.NewInt32(int32(i))), value.F("s", value.NewString(strings.Repeat("x", 1000)))}, more...)...)
}

// newTablesRecipient is the recipient of a range of d.c on a store with files.
func newTablesRecipient(t *testing.T, docs int) *recipient {
	t.Helper()
	m := newTestManagerOn(t, &fakeNode{}, &fakeSessions{}, storage.Options{FS: vfs.NewMem(), Dir: "db", MinFreeDisk: 1})
	r := &recipient{m: m, ns: "d.c", uuid: catalog.UUID{1}, rng: testRange(t, 0, int32(docs)), throttle: replication.Visible}
	r.mu.changed = make(chan struct{})
	r.load.begin(m.Counts)
	err := m.Docs.WriteWith(t.Context(), replication.Durable, func(_ *storage.Snapshot, u *storage.UnitOfWork) error {
		_, err := u.CreateCollection(storage.CollectionSpec{NS: "d.c", UUID: r.uuid, Options: value.Doc()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// feed stores documents as a clone does, in replies of a megabyte, in the buffers that are free.
func (r *recipient) feed(t *testing.T, docs int, before func(reply int)) {
	t.Helper()
	for i := 0; i < docs; {
		b := fetched{reply: r.tables.buffer()[:0]}
		for ; i < docs && len(b.reply) < 1<<20; i++ {
			b.reply = append(b.reply, tablesDoc(i)...)
		}
		for rest := b.reply; len(rest) > 0; {
			n := binary.LittleEndian.Uint32(rest)
			b.docs, rest = append(b.docs, rest[:n]), rest[n:]
		}
		before(i)
		if err := r.store(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
	}
	rest, _ := r.tables.take(0)
	if err := r.storeAll(t.Context(), &rest, false); err != nil {
		t.Fatal(err)
	}
}

// A large clone is stored as tables, except beside clients, where its pace is set by a parameter, and where a document is there already: the copy from the donor
// replaces that one. Each document is there once and counted once, and what changed after the clone wins.
func TestCloneAsTables(t *testing.T) {
	const docs = 22_000
	for _, x := range []struct {
		name   string
		tables bool
		there  int // documents of the range that are there before, with a mark
		before func(r *recipient)
	}{
		{"alone", true, 0, func(*recipient) {}},
		{"beside clients", false, 0, func(r *recipient) { r.m.Counts.Inserts.Add(1) }},
		{"by number", false, 0, func(r *recipient) {
			r.m.Params.Store("migrateCloneInsertionBatchSize", value.NewInt32(500))
		}},
		{"over documents", true, 3, func(*recipient) {}},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := newTablesRecipient(t, docs)
			added, err := r.apply(t.Context(), replication.Durable, func(w *partWriter) error {
				for i := range x.there {
					if err := w.put(tablesDoc(i*7, value.F("old", value.NewBool(true)))); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			r.feed(t, docs, func(int) { x.before(r) })
			if got := r.m.Engine.Stats().IngestedBytes > 0; got != x.tables {
				t.Errorf("as tables: %v, want %v", got, x.tables)
			}
			if got := len(r.tables.mu.free) > 0; got != x.tables {
				t.Errorf("replies are used again: %v, want %v", got, x.tables)
			}
			if _, err := r.apply(t.Context(), replication.Durable, func(w *partWriter) error {
				if err := w.put(tablesDoc(1, value.F("new", value.NewBool(true)))); err != nil {
					return err
				}
				return w.remove(value.NewInt32(2))
			}); err != nil {
				t.Fatal(err)
			}
			r.check(t, docs, added)
		})
	}
}

// check looks for each document of the clone but 2, which was deleted.
func (r *recipient) check(t *testing.T, docs int, before int64) {
	t.Helper()
	s := r.m.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup("d.c")
	n := 0
	cur := s.Scan(c, storage.ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		n++
		if !value.Lookup(cur.Doc(), "old").IsMissing() {
			t.Errorf("%s was not replaced", value.Show(value.Lookup(cur.Doc(), "_id")))
		}
	}
	if cur.Err() != nil || n != docs-1 || c.Counters.Records.Load() != int64(docs-1) || r.mu.cloned != int64(docs) || r.mu.docs+before != int64(docs) {
		t.Errorf("%d documents, %d by their counter, %d cloned, %d new: %v", n, c.Counters.Records.Load(), r.mu.cloned, r.mu.docs, cur.Err())
	}
	for i := range docs {
		_, doc, ok, err := s.FindByID(c, value.NewInt32(int32(i)))
		if err != nil || ok != (i != 2) || i == 1 && value.Lookup(doc, "new").IsMissing() {
			t.Fatalf("document %d: there %v, %v", i, ok, err)
		}
	}
}
