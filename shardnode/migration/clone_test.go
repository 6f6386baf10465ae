package migration

import (
	"strings"
	"testing"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// Beside clients of either shard the donor's replies are small, and the recipient learns of the donor's clients; the replies have every document of the
// range once, although they share a buffer.
func TestRepliesOfACloneBesideClients(t *testing.T) {
	m := newTestManager(t, &fakeNode{}, &fakeSessions{})
	const docs = 2200
	err := m.Docs.WriteWith(t.Context(), replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		_, err := u.CreateCollection(storage.CollectionSpec{NS: "d.c", UUID: catalog.UUID{1}, Options: value.Doc()})
		return err
	})
	if err == nil {
		err = m.Docs.WriteWith(t.Context(), replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			for i := range docs {
				d := value.Doc(value.F("_id", value.NewInt32(int32(i))), value.F("s", value.NewString(strings.Repeat("x", 1000))))
				if _, err := u.Insert(s.Catalog().Lookup("d.c"), d, storage.NoInfo); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	d := &donor{m: m, id: [16]byte{7}, ns: "d.c", rng: testRange(t, 0, docs)}
	d.mu.snap = m.Engine.Snapshot()
	m.mu.out = d
	defer m.endDonor(d)
	d.done = make(chan struct{})
	next, now := int32(0), time.Now()
	m.Now = func() time.Time { return now }
	for i, x := range []struct {
		recipient, donor bool // serve clients
		limit            int
	}{{false, false, cloneTransfer}, {true, false, busyTransfer}, {false, true, busyTransfer}, {false, false, cloneTransfer}, {false, false, cloneTransfer}} {
		now = now.Add(command.BusyFor)
		if x.donor {
			m.Counts.Inserts.Add(1)
		}
		reply := run(t, m, value.F("_migrateClone", value.NewString("d.c")), value.F("migrationId", value.NewBinary(4, d.id[:])), value.F("busy", value.NewBool(x.recipient)))
		objects := value.Lookup(reply, "objects").Doc()
		for _, doc := range value.Values(objects) {
			if id := value.Lookup(doc.Doc(), "_id"); value.Compare(id, value.NewInt32(next)) != 0 {
				t.Fatalf("reply %d has %s, want %d", i, value.Show(id), next)
			}
			next++
		}
		if n := len(objects); n > x.limit+2000 || next < docs && n < x.limit/2 {
			t.Errorf("reply %d has %d bytes, want about %d", i, n, x.limit)
		}
		if busy := value.Lookup(reply, "busy").Truthy(); busy != x.donor {
			t.Errorf("reply %d: busy %v", i, busy)
		}
	}
	if next != docs {
		t.Errorf("%d documents of %d", next, docs)
	}
}
