package cluster

import (
	"context"
	"math"
	"sync"
	"sync/atomic"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The placement at a cluster time.
//
//	              since          seen           now
//	───────────────┼──────────────┼──────────────┼──►
//	  loadAt       │  the current placement, with the chunks' history
//
// A cached placement is that of every time since it came into force: since the timestamp of the collection's incarnation or, without an entry in the
// catalog, since its database came to this primary shard and the namespace last lost an entry (config.placementHistory). Before, the collection was
// another one, or elsewhere: its placement is the catalog as of that time, which the config server reads from its own history. What the catalog was at
// a past time never changes, so it is cached without any invalidation, and routers and shards that ask for it get the same. They use it for exactly that
// time: in the history of its chunk, a migration has a time before its commit, so that a table of a later time may place a range
// differently, and one side would skip documents that the other does not return.
//
// Invariant: a read at a time is targeted, versioned and filtered by the placement of that time, on routers and shards alike. DDL changes the catalog
// while it blocks reads on all shards that it concerns, so that the old placement holds at any time before the section, and the new one at
// any time after it; shards refuse times within it (ShardState.checkUnblocked).
//
// Rejected: keeping the placements of dropped collections, or deriving them from config.placementHistory, which has shards but no chunks.

// CollectionAt returns the placement of a collection at a cluster time, 0 for now. The database must have existed then.
func (c *Catalog) CollectionAt(ctx context.Context, ns string, at uint64) (*CollectionInfo, error) {
	info, err := c.Collection(ctx, ns)
	if at == 0 || err != nil && mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		return info, err
	}
	if err == nil {
		covers, err := c.Covers(ctx, info, at)
		if err != nil {
			return nil, err
		}
		if covers {
			return info.At(at), nil
		}
	}
	if info, known := c.past.colls.get(ns, at); known {
		if info == nil {
			return nil, noDatabase(ns)
		}
		return info, nil
	}
	info, err = c.loadAt(ctx, ns, at)
	if err == nil || mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
		cost := 1
		if err == nil && info.Map != nil {
			cost += info.Map.Len() / chunksPerCost
		}
		c.past.colls.put(ns, at, info, cost)
	}
	return info, err
}

// DatabaseAt returns the placement of a database at a cluster time, 0 for now; NamespaceNotFound if it did not exist then.
func (c *Catalog) DatabaseAt(ctx context.Context, db string, at uint64) (*DatabaseInfo, error) {
	info, err := c.Database(ctx, db)
	if at == 0 || err == nil && info.Version.Timestamp <= at || err != nil && mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		return info, err
	}
	if info, known := c.past.dbs.get(db, at); known {
		if info == nil {
			return nil, noDatabase(db)
		}
		return info, nil
	}
	info, err = readDatabase(ctx, c.asOf(at), db)
	if err == nil || mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
		c.past.dbs.put(db, at, info, 1)
	}
	return info, err
}

// Covers reports whether a current placement, with the chunks' owners at an earlier cluster time (At), is that of this time, too.
func (c *Catalog) Covers(ctx context.Context, info *CollectionInfo, at uint64) (bool, error) {
	switch {
	case FixedDatabase(info.DB.Name):
		return true, nil
	case info.Map != nil:
		return info.Map.version.Timestamp <= at, nil
	case at < info.DB.Version.Timestamp:
		return false, nil
	case at >= info.seen:
		return true, nil
	}
	since := info.since.Load()
	if since == 0 {
		var err error
		if since, err = c.untrackedSince(ctx, info.NS); err != nil {
			return false, err
		}
		info.since.Store(since)
	}
	return since <= at, nil
}

// untrackedSince returns the time since which a namespace has had no entry in the catalog, as far as the history of placements shows it: that of its
// newest entry, or when the history begins.
func (c *Catalog) untrackedSince(ctx context.Context, ns string) (uint64, error) {
	latest := uint64(1)
	for _, nss := range []string{ns, ""} {
		docs, err := findPlacement(ctx, c.config, Find{
			NS: "config.placementHistory", Filter: value.Doc(value.F("nss", value.NewString(nss))), Sort: value.Doc(value.F("timestamp", value.NewInt32(-1))), Limit: 1,
		})
		if err != nil {
			return 0, err
		}
		for _, d := range docs {
			latest = max(latest, value.Lookup(d, "timestamp").TimestampU64())
		}
	}
	return latest, nil
}

// loadAt reads a placement from the history of the config server.
func (c *Catalog) loadAt(ctx context.Context, ns string, at uint64) (*CollectionInfo, error) {
	name, _ := SplitNS(ns)
	db, err := c.DatabaseAt(ctx, name, at)
	if err != nil {
		return nil, err
	}
	info, err := readCollection(ctx, c.asOf(at), ns, db, nil)
	if err != nil {
		return nil, err
	}
	info.asOf = at
	return info, nil
}

// Past reports whether the placement is not the current one with its chunks' history, but one that was in force before it: its versions are
// of an earlier time, too.
func (c *CollectionInfo) Past() bool { return c.asOf != 0 }

// WithoutDatabase returns the placement of a collection whose database does not exist, for a statement of a transaction, which any shard may answer. It
// has a version, so that the shard checks whether the database existed when the transaction began.
func WithoutDatabase(ns, shard string) *CollectionInfo {
	db, _ := SplitNS(ns)
	return &CollectionInfo{
		NS: ns, DB: &DatabaseInfo{Name: db, Primary: shard}, since: new(atomic.Uint64),
		suffixes: map[string][]byte{shard: AppendShardVersion(nil, Unsharded)},
	}
}

// asOf returns a reader of the sharding catalog as it was at a cluster time.
func (c *Catalog) asOf(at uint64) catalogReader {
	return func(ctx context.Context, f Find) ([][]byte, error) { return findConfigAt(ctx, c.config, f, at) }
}

func noDatabase(ns string) error {
	db, _ := SplitNS(ns)
	return mongoerr.Newf(mongoerr.NamespaceNotFound, "database %s not found", db)
}

// pastPlacements are placements that are no longer in force.
type pastPlacements struct {
	colls pastCache[*CollectionInfo]
	dbs   pastCache[*DatabaseInfo]
}

// pastCache keeps what was in force at times of the past, nil for nothing. It is emptied when it is full: what readers still need is read again.
type pastCache[T any] struct {
	mu   sync.Mutex
	of   map[pastKey]T
	cost int
}

type pastKey struct {
	name string
	at   uint64
}

const (
	// maxPastCost limits a pastCache.
	maxPastCost = 10_000
	// chunksPerCost is the number of chunks that cost as much as a placement without any.
	chunksPerCost = 100
)

func (c *pastCache[T]) get(name string, at uint64) (v T, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, known = c.of[pastKey{name, at}]
	return v, known
}

func (c *pastCache[T]) put(name string, at uint64, v T, cost int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil || c.cost+cost > maxPastCost {
		c.of, c.cost = make(map[pastKey]T), 0
	}
	c.of[pastKey{name, at}] = v
	c.cost += cost
}

// time returns the cluster time that the node knows of; without a clock, the maximum.
func (c *Catalog) time() uint64 {
	if c.Clock == nil {
		return math.MaxUint64
	}
	return c.Clock.ClusterTime()
}
