package shardnode

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
)

// The history of sessions arrived with a chunk while the session table was being flushed: both inserted the record of a
// session that was new here, and the migration failed with 11000 on config.transactions. Now the second one updates what the
// first one inserted.
func TestSessionRecordsMeetEachOther(t *testing.T) {
	n := newTestNode(t)
	node := n.srv.Node
	record := func(id int32, by string) []byte {
		return value.Doc(value.F("_id", value.NewInt32(id)), value.F("by", value.NewString(by)))
	}
	const ns = "config.met"
	if err := node.Docs.Put(t.Context(), ns, record(0, "")); err != nil {
		t.Fatal(err)
	}
	puts := []func(s *storage.Snapshot, u *storage.UnitOfWork, doc []byte) error{
		func(s *storage.Snapshot, u *storage.UnitOfWork, doc []byte) error {
			return statedoc.PutIn(s, u, s.Catalog().Lookup(ns), doc)
		},
		func(s *storage.Snapshot, u *storage.UnitOfWork, doc []byte) error {
			return statedoc.PutRecord(s, u, s.Catalog().Lookup(ns), value.Lookup(doc, "_id"), doc)
		},
	}
	for i, put := range puts {
		id, tries := int32(i+1), 0
		err := node.Docs.WriteWith(t.Context(), replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			if tries++; tries == 1 {
				if err := node.Docs.Put(t.Context(), ns, record(id, "first")); err != nil {
					return err
				}
			}
			return put(s, u, record(id, "second"))
		})
		if err != nil || tries != 2 {
			t.Errorf("%d: %v after %d tries", i, err, tries)
		}
		doc, err := node.Docs.Get(ns, value.NewInt32(id))
		if by := value.Lookup(doc, "by"); err != nil || by.T != value.String || by.Str() != "second" {
			t.Errorf("%d: %s is there (%v)", i, value.ShowDoc(doc), err)
		}
	}
}
