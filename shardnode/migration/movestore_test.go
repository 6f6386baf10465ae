package migration

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// The clone of a database that moves is written once: the oplog refers to its documents, and returns them. It used to contain them as well.
func TestMovedClonesAreWrittenOnce(t *testing.T) {
	m := newTestManager(t, &fakeNode{}, &fakeSessions{})
	part := func(req msg.MovePrimaryStore) (unit int) {
		t.Helper()
		req.DB, req.Section, req.Attempt = "d", catalog.UUID{1}, 7
		err := m.Docs.WriteWith(t.Context(), replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			_, err := m.storePart(s, u, &req)
			unit = u.Size()
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return unit
	}
	noise, size := rand.NewChaCha8([32]byte{}), 0
	var docs []value.Value
	for i := range int32(200) {
		pad := make([]byte, 1000)
		_, _ = noise.Read(pad)
		docs = append(docs, value.NewDocument(value.Doc(value.F("_id", value.NewInt32(i)), value.F("pad", value.NewBinary(0, pad)))))
		size += len(docs[i].Doc())
	}
	uuid := catalog.UUID{2}
	part(msg.MovePrimaryStore{})
	part(msg.MovePrimaryStore{NS: "d.c", UUID: uuid, Create: true, Part: 1})
	if unit := part(msg.MovePrimaryStore{NS: "d.c", UUID: uuid, Stored: value.ArrayOf(docs...), Fresh: true, Part: 2}); unit > size*3/2 {
		t.Errorf("a unit of %d bytes stores documents of %d", unit, size)
	}
	if again := part(msg.MovePrimaryStore{NS: "d.c", UUID: uuid, Stored: value.ArrayOf(docs...), Fresh: true, Part: 2}); again != 0 {
		t.Errorf("a part that is sent again writes %d bytes", again)
	}
	s := m.Engine.Snapshot()
	defer s.Release()
	logged := 0
	cur := s.Scan(s.Catalog().Lookup(storage.OplogNS), storage.ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		if e := cur.Doc(); value.Lookup(e, "ns").Str() == "d.c" && value.Lookup(e, "op").Str() == "i" {
			if !bytes.Equal(value.LookupDoc(e, "o"), docs[logged].Doc()) {
				t.Fatalf("entry %d of the oplog is %s", logged, value.ShowDoc(e))
			}
			logged++
		}
	}
	if err := cur.Err(); err != nil || logged != len(docs) {
		t.Errorf("the oplog has %d inserts, want %d: %v", logged, len(docs), err)
	}
}
