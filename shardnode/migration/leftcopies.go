package migration

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A resharding drops the collection with its former UUID on all shards but those that do not answer. The collection on such a shard is empty,
// or the shard would have been a donor. The shard drops it itself, when the config server tells it that the placement of the collection has changed, when it has a primary again, and
// periodically.

// leftCopiesInterval is the interval at which a primary looks for such collections.
const leftCopiesInterval = 10 * time.Minute

func (m *Manager) sweepLeftCopies(ctx context.Context) {
	t := time.NewTicker(leftCopiesInterval)
	defer t.Stop()
	for {
		if err := m.dropLeftCopies(ctx); err != nil && ctx.Err() == nil {
			m.node.Warn("The search for leftover copies of resharded collections failed", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// dropLeftCopies drops empty collections that the catalog has under another UUID.
func (m *Manager) dropLeftCopies(ctx context.Context) error {
	s := m.Docs.Snapshot()
	defer s.Release()
	for _, db := range s.Catalog().Databases() {
		if cluster.FixedDatabase(db) || db == "local" {
			continue
		}
		for _, c := range s.Catalog().Collections(db) {
			if err := m.dropIfSuperseded(ctx, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropSuperseded is dropLeftCopies for one name.
func (m *Manager) dropSuperseded(ctx context.Context, ns string) error {
	s := m.Docs.Snapshot()
	defer s.Release()
	if c := s.Catalog().Lookup(ns); c != nil && !cluster.FixedDatabase(catalog.DBOf(ns)) {
		return m.dropIfSuperseded(ctx, c)
	}
	return nil
}

// dropIfSuperseded drops a collection if it is empty and the catalog has it under another UUID. The primary shard of the database takes part in every resharding.
func (m *Manager) dropIfSuperseded(ctx context.Context, c *catalog.Collection) error {
	if c.Counters.Records.Load() > 0 {
		return nil
	}
	info, err := m.state.Catalog.Database(ctx, catalog.DBOf(c.NS))
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound || err == nil && info.Primary == m.state.ID {
		return nil
	}
	if err != nil {
		return err
	}
	superseded, err := m.state.superseded(ctx, c.NS, c.UUID)
	if err == nil && superseded {
		err = m.dropLeftCopy(ctx, c.NS, c.UUID)
	}
	return err
}

// superseded reports whether the catalog has a collection under another UUID.
func (s *ShardState) superseded(ctx context.Context, ns string, uuid catalog.UUID) (bool, error) {
	docs, err := cluster.FindConfig(ctx, s.Registry.Config(), cluster.Find{NS: "config.collections", Filter: value.Doc(value.F("_id", value.NewString(ns)))}.Doc())
	if err != nil || len(docs) == 0 {
		return false, err
	}
	have, ok := catalog.UUIDFrom(value.Lookup(docs[0], "uuid"))
	return ok && have != uuid, nil
}

// dropLeftCopy drops a collection if it is empty and still superseded.
//
// Hazard: during a resharding or a rename this shard may have the new collection while the catalog still has the old one. Their critical sections cover
// that time, and begin only under the exclusive lock.
func (m *Manager) dropLeftCopy(ctx context.Context, ns string, uuid catalog.UUID) error {
	unlock, err := m.Locks.Collection(ctx, ns, lock.X)
	if err != nil {
		return err
	}
	defer unlock()
	held := m.state.ddlSections()
	if held[ns] != nil || held[catalog.DBOf(ns)] != nil {
		return nil
	}
	if still, err := m.state.superseded(ctx, ns, uuid); err != nil || !still {
		return err
	}
	return m.dropEmpty(ctx, ns, uuid)
}

// dropEmpty drops a collection if it is empty.
func (m *Manager) dropEmpty(ctx context.Context, ns string, uuid catalog.UUID) error {
	return m.Docs.WriteWith(ctx, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c := s.Catalog().Lookup(ns)
		if c == nil || c.UUID != uuid || c.Counters.Records.Load() > 0 {
			return nil
		}
		u.SetFromMigrate()
		m.node.Forget(u, c)
		return u.DropCollection(c)
	})
}
