package migration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire"
)

// tablesDoc is a document of about a kilobyte.
func tablesDoc(i int, more ...value.Field) []byte {
	return value.Doc(append([]value.Field{value.F("_id", value.NewInt32(int32(i))), value.F("s", value.NewString(strings.Repeat("x", 1000)))}, more...)...)
}

// newTablesRecipient is the recipient of a range of d.c on a store with files.
func newTablesRecipient(t *testing.T, docs int) *recipient {
	t.Helper()
	m := newTestManagerOn(t, &fakeNode{}, &fakeSessions{}, storage.Options{FS: vfs.NewMem(), Dir: "db", MinFreeDisk: 1})
	now := time.Now()
	m.Now = func() time.Time { return now } // a client that was served is remembered, however long a batch takes
	r := &recipient{m: m, ns: "d.c", uuid: catalog.UUID{1}, rng: testRange(t, 0, int32(docs)), throttle: replication.Visible}
	r.mu.changed = make(chan struct{})
	r.load.Begin(m.Counts)
	err := m.Docs.WriteWith(t.Context(), replication.Durable, func(_ *storage.Snapshot, u *storage.UnitOfWork) error {
		_, err := u.CreateCollection(storage.CollectionSpec{NS: "d.c", UUID: r.uuid, Options: value.Doc()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// feed clones documents from a donor whose replies have a megabyte. It calls before with each of its requests, and reports whether replies were put into the buffers of
// earlier ones.
func (r *recipient) feed(t *testing.T, docs int, before func(reply int)) (again bool) {
	t.Helper()
	sent := 0
	donor := cluster.LocalPeer(func(_ context.Context, _ *wire.Message, dst []byte) ([]byte, error) {
		before(sent)
		again = again || cap(dst) > 0
		var batch []value.Value
		for size := 0; sent < docs && size < 1<<20; sent++ {
			d := tablesDoc(sent)
			batch, size = append(batch, value.NewDocument(d)), size+len(d)
		}
		return append(dst, value.Doc(value.F("objects", value.NewArray(value.ArrayOf(batch...))), value.F("ok", value.NewDouble(1)))...), nil
	})
	r.from, r.m.state.Registry = "b", cluster.NewRegistry(listOf(value.Doc(value.F("_id", value.NewString("b")), value.F("host", value.NewString("b/h:1")))), nil,
		func(string, []string) (cluster.Peer, error) { return donor, nil })
	if err := r.clone(t.Context()); err != nil {
		t.Fatal(err)
	}
	return again
}

// A large clone is stored as tables, except beside clients, where its pace is set by a parameter, and where a document is there already: the copy from the donor
// replaces that one. Each document is there once and counted once, and what changed after the clone wins.
func TestCloneAsTables(t *testing.T) {
	const docs = 70_000 // four batches and more
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
			again := r.feed(t, docs, func(int) { x.before(r) })
			if got := r.m.Engine.Stats().IngestedBytes > 0; got != x.tables {
				t.Errorf("as tables: %v, want %v", got, x.tables)
			}
			if again != x.tables {
				t.Errorf("buffers are used again: %v, want %v", again, x.tables)
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

// At most tablesAtOnce batches are stored at a time. The first error ends the clone: later batches are not begun, and whoever waits gets it.
func TestBatchesStoredBesideEachOther(t *testing.T) {
	var b tableBatch
	release, running, failure := make(chan struct{}), make(chan int, tablesAtOnce), errors.New("no room")
	for i := range tablesAtOnce {
		if err := b.beside(t.Context(), func() error {
			running <- i
			<-release
			return failure
		}); err != nil {
			t.Fatal(err)
		}
	}
	for range tablesAtOnce {
		<-running
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errGivenUp)
	if err := b.beside(ctx, func() error { t.Error("one too many is stored"); return nil }); err != errGivenUp {
		t.Errorf("beyond the limit: %v", err)
	}
	close(release)
	if err := b.wait(); err != failure {
		t.Errorf("the wait ends with %v", err)
	}
	if err := b.beside(t.Context(), func() error { t.Error("a batch is stored after a failure"); return nil }); err != failure {
		t.Errorf("after a failure: %v", err)
	}
}

var errGivenUp = errors.New("cancelled")
