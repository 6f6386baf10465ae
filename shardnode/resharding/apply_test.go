package resharding

import (
	"bytes"
	"context"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// applied is a recipient of two donors, one with the keys below 10 and one with the others.
type applied struct {
	t *testing.T
	r *recipient
	x *tables
}

func newApplied(t *testing.T) *applied {
	t.Helper()
	e, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	m := New(Config{Engine: e, Docs: &statedoc.Docs{Engine: e, Set: replication.NewSingle(e)}, Counts: &command.Opcounters{}})
	id := catalog.UUID{7}
	r := newRecipient(m, &recipientDoc{about: about{id: id, ns: "d.c", temp: "d.system.resharding.x"}, donors: []string{"low", "high"}, state: applying})
	err = m.Docs.Write(context.Background(), func(_ *storage.Snapshot, u *storage.UnitOfWork) error {
		_, err := u.CreateCollection(storage.CollectionSpec{NS: r.doc.temp, UUID: id})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	key, err := cluster.ParseShardKey(value.Doc(value.F("k", value.NewInt32(1))))
	if err != nil {
		t.Fatal(err)
	}
	gen := cluster.ChunkVersion{Major: 1, Epoch: cluster.NewObjectID(), Timestamp: 1}
	ten := value.Doc(value.F("k", value.NewInt32(10)))
	old, err := cluster.NewChunkMap([16]byte{1}, key, false, gen, []*cluster.Chunk{
		{Min: key.GlobalMin(), Max: ten, Shard: "low", Version: gen}, {Min: ten, Max: key.GlobalMax(), Shard: "high", Version: gen.IncMinor()},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &applied{t, r, &tables{old: old}}
}

func (a *applied) apply(donor string, f func(*applier) error) {
	a.t.Helper()
	err := a.r.m.Docs.Write(context.Background(), func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c, err := a.r.collection(s)
		if err != nil {
			return err
		}
		var did changes
		defer func() { a.r.mu.figures.changes.add(did) }()
		return f(&applier{did: &did, r: a.r, t: a.x, donor: donor, s: s, u: u, c: c, stash: s.Catalog().Lookup(stashNS(a.r.doc.id, donor))})
	})
	if err != nil {
		a.t.Fatal(err)
	}
}

func numbered(id, k, v int32) []byte {
	return value.Doc(value.F("_id", value.NewInt32(id)), value.F("k", value.NewInt32(k)), value.F("v", value.NewInt32(v)))
}

func (a *applied) put(donor string, id, k, v int32) {
	a.t.Helper()
	a.apply(donor, func(p *applier) error { return p.put(numbered(id, k, v)) })
}

func (a *applied) remove(donor string, id int32) {
	a.t.Helper()
	a.apply(donor, func(p *applier) error { return p.remove(value.NewInt32(id)) })
}

// has checks what the collection has of an _id; a nil document is none.
func (a *applied) has(id int32, want []byte) {
	a.t.Helper()
	s := a.r.m.Engine.Snapshot()
	defer s.Release()
	_, doc, ok, err := s.FindByID(s.Catalog().Lookup(a.r.doc.temp), value.NewInt32(id))
	if err != nil || ok != (want != nil) || !bytes.Equal(doc, want) {
		a.t.Errorf("_id %d is %s (%v, %v), it should be %s", id, value.ShowDoc(doc), ok, err, value.ShowDoc(want))
	}
}

// A document that moves from one donor to the other is seen by the recipient in either order, and is there once in the end.
func TestDocumentsThatMoveBetweenDonors(t *testing.T) {
	a := newApplied(t)
	a.put("low", 1, 5, 1)
	a.put("high", 1, 15, 2) // its deletion on the other donor comes later
	a.has(1, numbered(1, 5, 1))
	a.put("high", 1, 16, 3)
	a.has(1, numbered(1, 5, 1))
	a.put("low", 1, 6, 4) // of before it moved
	a.has(1, numbered(1, 6, 4))
	a.remove("low", 1)
	a.has(1, numbered(1, 16, 3))
	a.remove("low", 1) // reported again
	a.has(1, numbered(1, 16, 3))
	if err := a.r.checkStashes(); err != nil {
		t.Error(err)
	}
	a.put("high", 1, 17, 5)
	a.has(1, numbered(1, 17, 5))
	a.remove("high", 1)
	a.has(1, nil)
	// The stash took the second and third, and gave the third away; currentOp shows the numbers.
	if got, want := a.r.mu.figures.changes, (changes{inserts: 1, updates: 2, deletes: 2, stashed: 3}); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

// A deletion concerns the documents of its donor: another donor's with the same _id stays, and one that waits in a stash is removed alone.
func TestDeletionsAreOfOneDonor(t *testing.T) {
	a := newApplied(t)
	a.put("low", 1, 5, 1)
	a.remove("high", 1)
	a.has(1, numbered(1, 5, 1))
	a.put("high", 1, 15, 2)
	a.remove("high", 1)
	a.has(1, numbered(1, 5, 1))
	a.remove("low", 1)
	a.has(1, nil)
	a.remove("low", 2)
	a.has(2, nil)
}

// Two documents with the same _id cannot be on one shard: the operation fails, and names the _id.
func TestTwoDocumentsOfOneIDAreRefused(t *testing.T) {
	a := newApplied(t)
	a.put("low", 1, 5, 1)
	a.put("high", 1, 15, 2)
	if err := a.r.checkStashes(); mongoerr.CodeOf(err) != mongoerr.DuplicateKey {
		t.Errorf("%v", err)
	}
}

// unique makes a unique index on the old shard key and v.
func (a *applied) unique() {
	a.t.Helper()
	err := a.r.m.Docs.Write(context.Background(), func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		one := value.NewInt32(1)
		_, err := u.CreateIndexes(s.Catalog().Lookup(a.r.doc.temp), [][]byte{value.Doc(value.F("v", value.NewInt32(2)),
			value.F("key", value.NewDocument(value.Doc(value.F("k", one), value.F("v", one)))), value.F("name", value.NewString("k_v")), value.F("unique", value.NewBool(true)))})
		return err
	})
	if err != nil {
		a.t.Fatal(err)
	}
}

// puts applies several documents of a donor together.
func (a *applied) puts(donor string, docs ...[]byte) {
	a.t.Helper()
	a.apply(donor, func(p *applier) error {
		for _, d := range docs {
			if err := p.put(d); err != nil {
				return err
			}
		}
		return nil
	})
}

// Documents exchange the values of a unique index, and are applied together or one at a time. This used to end a resharding with a duplicate key.
func TestUniqueValuesAreExchanged(t *testing.T) {
	a := newApplied(t)
	a.unique()
	a.puts("low", numbered(5, 1, 5), numbered(6, 1, 6), numbered(7, 1, 7))
	a.puts("low", numbered(5, 1, 6), numbered(6, 1, 5))
	a.has(5, numbered(5, 1, 6))
	a.has(6, numbered(6, 1, 5))
	a.put("low", 5, 1, 7) // 7 has changed, too: its change follows
	a.has(7, nil)
	a.put("low", 7, 1, 6)
	a.has(5, numbered(5, 1, 7))
	a.has(7, numbered(7, 1, 6))
}

// A unique value passes between a document that waits for another donor's deletion and one that does not wait: the older state gives way, and what
// waited for it in turn takes its place.
func TestUniqueValuesPassToAndFromWaitingDocuments(t *testing.T) {
	a := newApplied(t)
	a.unique()
	a.puts("low", numbered(1, 1, 1), numbered(2, 1, 2), numbered(3, 1, 3))
	a.put("high", 1, 11, 7) // waits
	a.put("high", 4, 11, 7) // 1 has changed since
	a.remove("low", 1)
	a.has(1, nil)
	a.put("high", 1, 11, 8)
	a.has(1, numbered(1, 11, 8))
	a.put("high", 2, 11, 8) // waits, and 1 has changed since
	a.has(1, nil)
	a.put("high", 1, 11, 9)
	a.remove("low", 2)
	a.has(2, numbered(2, 11, 8))
	a.put("high", 3, 11, 5)                             // waits
	a.puts("low", numbered(5, 1, 3), numbered(3, 1, 4)) // 3 gave its value to 5; high has not deleted its own yet
	a.has(5, numbered(5, 1, 3))
	a.has(3, numbered(3, 11, 5))
	a.remove("high", 3)
	a.has(3, numbered(3, 1, 4))
	if err := a.r.checkStashes(); err != nil {
		t.Error(err)
	}
}

// A document whose _id is another number of the same value replaces the earlier one, and its index entry. Reads that the index covers used to return the former _id.
func TestAnotherTypeOfID(t *testing.T) {
	a := newApplied(t)
	double := func(k int32) []byte {
		return value.Doc(value.F("_id", value.NewDouble(1)), value.F("k", value.NewInt32(k)), value.F("v", value.NewInt32(0)))
	}
	check := func(want value.Type) {
		t.Helper()
		s := a.r.m.Engine.Snapshot()
		defer s.Release()
		c := s.Catalog().Lookup(a.r.doc.temp)
		found, err := s.Validate(context.Background(), c, func(_ storage.RecordID, doc []byte) {
			if got := value.Lookup(doc, "_id").T; got != want {
				t.Errorf("the _id is a %v, want %v", got, want)
			}
		})
		if err != nil || !found.Valid() || found.Records != 1 || found.CountWrong {
			t.Errorf("%+v: %v", found, err)
		}
	}
	a.put("low", 1, 5, 0)
	a.puts("low", double(5))
	check(value.Double)
	a.put("low", 1, 5, 0)
	check(value.Int32)
	a.puts("high", double(15))
	a.remove("low", 1)
	check(value.Double)
}
