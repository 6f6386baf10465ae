package resharding

import (
	"bytes"
	"context"
	"testing"

	"github.com/shoaldb/shoal/cluster"
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
	m := New(Config{Engine: e, Docs: &statedoc.Docs{Engine: e, Set: replication.NewSingle(e)}})
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
		return f(&applier{r: a.r, t: a.x, donor: donor, s: s, u: u, c: c, stash: s.Catalog().Lookup(stashNS(a.r.doc.id, donor))})
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
