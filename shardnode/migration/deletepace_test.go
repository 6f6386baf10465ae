package migration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// pacedSet counts units of work and how long the store is left alone between them. Each commit takes a millisecond, in which clients may write.
type pacedSet struct {
	replication.Set
	counts *command.Opcounters // nil if there are no clients
	units  int
	idle   time.Duration
	last   time.Time
}

func (p *pacedSet) Commit(ctx context.Context, u *storage.UnitOfWork, wc replication.WriteConcern) (storage.Timestamp, error) {
	if p.units++; !p.last.IsZero() {
		p.idle += time.Since(p.last)
	}
	time.Sleep(time.Millisecond) // as a disk takes
	if p.counts != nil {
		p.counts.Updates.Add(1)
	}
	defer func() { p.last = time.Now() }()
	return p.Set.Commit(ctx, u, wc)
}

// Beside clients the range deleter removes fewer documents at a time and leaves the store to the clients in between, unless rangeDeleterHighPriority says
// otherwise; without clients it does not pause.
func TestRangeDeletionBesideClients(t *testing.T) {
	const docs = 2100
	for _, x := range []struct {
		clients, priority bool
		units             int
	}{{false, false, 5}, {true, false, 17}, {true, true, 5}} {
		t.Run(fmt.Sprintf("clients %v priority %v", x.clients, x.priority), func(t *testing.T) {
			m := newTestManager(t, &fakeNode{}, &fakeSessions{})
			if _, err := m.Params.SetRuntime([]value.Field{value.F("rangeDeleterHighPriority", value.NewBool(x.priority))}); err != nil {
				t.Fatal(err)
			}
			uuid := catalog.UUID{1}
			err := m.Docs.WriteWith(t.Context(), replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
				c, err := u.CreateCollection(storage.CollectionSpec{NS: "d.c", UUID: uuid, Options: value.Doc()})
				for i := range docs {
					if err == nil {
						_, err = u.Insert(c, value.Doc(value.F("_id", value.NewInt32(int32(i)))), storage.NoInfo)
					}
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			set := &pacedSet{Set: m.Docs.Set}
			if x.clients {
				set.counts = m.Counts
			}
			m.Docs.Set = set
			if err := m.removeRange(m.Service.Background(t.Context(), command.OwnClient()), uuid, testRange(t, 0, docs), nil); err != nil {
				t.Fatal(err)
			}
			if n := m.Engine.Catalog().LookupUUID(uuid).Counters.Records.Load(); n != 0 {
				t.Errorf("%d documents are left", n)
			}
			// Of the units beside clients, the first is of full size: nothing has been done for them before it.
			if set.units != x.units {
				t.Errorf("%d units, want %d", set.units, x.units)
			}
			if throttled := x.clients && !x.priority; throttled && set.idle < time.Duration(x.units-3)*command.PauseFactor*time.Millisecond {
				t.Errorf("the store is left to clients for %v in %d units of at least a millisecond", set.idle, x.units)
			}
		})
	}
}
