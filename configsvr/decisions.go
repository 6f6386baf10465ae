package configsvr

import (
	"context"
	"strings"
	"unicode"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// decisions are the locks under which this config server decides that a shard joins or leaves the list, that a database gets a name, and that data is placed on
// a shard.
//
// Invariant: a decision reads what it depends on from the store, and writes its outcome there, while it holds the locks of what it depends on:
//
//   - the name of a collection or, without its case (lockDatabase), of a database: creating it, registering it with a new shard, moving and dropping it. Only
//     these are held across calls: a collection's to its shards, a database's to the coordinator of an operation on it, and for askWait at most (stillWanted)
//   - a routing table, or all of them (tableLocks): a change of chunks or zones
//   - a shard, by its id (place): shared by whatever places data on it, and held alone by whatever starts or completes its removal
//   - the list of shards (lockList): a change of an entry of config.shards that depends on it or on others
//
// They are taken in this order, and chunks.history last. What needs another server, such as the databases of a new shard or the sizes of those to choose from,
// is asked before; if the decision then finds that the answer no longer holds, it is refused, or the operation asks again.
//
// Hazard: between a check and a write without the lock, the shard that was found in the list is removed, or the database's name is taken. Then chunks are on a
// shard that is gone, two databases differ only in case, or the entry of one is overwritten. And whoever holds a lock while it waits for a server that
// is frozen blocks all those who need the lock; some of them commit in a critical section, and stop reads and writes meanwhile.
//
// Rejected: one lock from the first read to the write, which is held while servers are asked. Comparing with the registry's copy of the list: it may be older than
// the store. Checking in the unit of work alone: removing a shard and placing a chunk on it write different documents, so neither conflicts
// with the other, unless each placement rewrites the shard's entry.
type decisions struct {
	ddl    nameLocks // databases and collections
	chunks tableLocks
	shards nameLocks // by id, and theList
}

// lockList locks the list of shards.
func (d *decisions) lockList(ctx context.Context) (unlock func(), err error) {
	return d.shards.lock(ctx, theList)
}

// lockedList locks the list of shards, and reads it.
func (m *Manager) lockedList(ctx context.Context) (all []*cluster.Shard, unlock func(), err error) {
	if unlock, err = m.lockList(ctx); err != nil {
		return nil, nil, err
	}
	if all, err = m.listedShards(ctx); err != nil {
		unlock()
		return nil, nil, err
	}
	return all, unlock, nil
}

// lockDatabase locks the names of databases, and with them all those that differ only in case.
func (d *decisions) lockDatabase(ctx context.Context, names ...string) (unlock func(), err error) {
	folded := make([]string, len(names))
	for i, name := range names {
		folded[i] = foldCase(name)
	}
	return d.ddl.lock(ctx, folded...)
}

// foldCase returns the same string for names that strings.EqualFold does not distinguish, and for no others.
func foldCase(name string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return least
	}, name)
}

// tableLocks serialises changes of routing tables: those of one collection's chunks by its name, concurrently with those of other collections, and changes of
// several collections, or of zones, by allTables.
type tableLocks struct {
	names nameLocks
	// history is held alone while entries of config.placementHistory are replaced, and shared while some are added.
	history nameLocks
}

const (
	theList    = "" // the list of shards, among their ids
	allTables  = "" // held with each routing table's name, and shared then
	theHistory = "" // the only name of its lock
)

// lockTable locks the table of one collection for a change of its chunks. Migrations commit within their critical section, and must not
// wait for operations on other collections.
func (d *decisions) lockTable(ctx context.Context, ns string) (unlock func(), err error) {
	leave, err := d.chunks.names.share(ctx, allTables)
	if err != nil {
		return nil, err
	}
	free, err := d.chunks.names.lock(ctx, ns)
	if err != nil {
		leave()
		return nil, err
	}
	return func() {
		free()
		leave()
	}, nil
}

// lockTables locks all routing tables.
func (d *decisions) lockTables(ctx context.Context) (unlock func(), err error) {
	return d.chunks.names.lock(ctx, allTables)
}

// lockHistory locks config.placementHistory while entries are replaced.
func (d *decisions) lockHistory(ctx context.Context) (unlock func(), err error) {
	return d.chunks.history.lock(ctx, theHistory)
}

// place runs a write that places data on shards. Until it has ended, none of them is removed, and none begins to drain; write gets their entries.
func (m *Manager) place(ctx context.Context, ids []string, write func(on []*cluster.Shard) error) error {
	unlock, err := m.shards.share(ctx, ids...)
	if err != nil {
		return err
	}
	defer unlock()
	listed, err := m.listedShards(ctx)
	if err != nil {
		return err
	}
	var on []*cluster.Shard
	for _, id := range ids {
		s := shardByID(listed, id)
		if s == nil {
			return mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s not found", id)
		}
		on = append(on, s)
	}
	return write(on)
}

// sameSet returns an error if a shard may be another set than the one to which data was sent. topology is a time at which whoever sent it had found that set in the list, 0 for no comparison.
//
// Hazard: a shard that receives data, and owns none yet, is removed, and another set is added under its name, before the commit: a set that has none of the data would own it.
//
// Rejected: comparing the entry's topologyTime with that of then. The removal of a third shard may change it (forgetShard), and all of the data was sent again.
func (m *Manager) sameSet(ctx context.Context, s *cluster.Shard, topology uint64) error {
	same, err := cluster.SameSet(ctx, m.local, s, topology)
	if same || err != nil {
		return err
	}
	return setChanged{cluster.ErrOtherSet(s.ID)}
}

// setChanged is the error of sameSet.
type setChanged struct{ error }

func (e setChanged) Unwrap() error { return e.error }

// listedShards reads the list of shards from the store. Invalid entries are omitted, as in the registry.
func (m *Manager) listedShards(ctx context.Context) (all []*cluster.Shard, err error) {
	docs, err := m.first(ctx, 0, "shards", doc(), fld("_id", value.NewInt32(1)))
	for _, d := range docs {
		if s, err := cluster.ParseShard(d); err == nil {
			all = append(all, s)
		}
	}
	return all, err
}

// topologyTime returns the time since which a list of shards, as it was read from the store, has been what it is: each addition and removal writes its own to one of the entries.
func topologyTime(all []*cluster.Shard) (at uint64) {
	for _, s := range all {
		at = max(at, s.Topology)
	}
	return at
}

func shardByID(all []*cluster.Shard, id string) *cluster.Shard {
	for _, s := range all {
		if s.ID == id {
			return s
		}
	}
	return nil
}
