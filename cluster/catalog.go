package cluster

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// DatabaseInfo is an entry of config.databases.
type DatabaseInfo struct {
	Name    string
	Primary string
	Version DatabaseVersion
	late    error // see CollectionInfo.Late
	seen    uint64
}

// CollectionInfo is a node's knowledge of a collection's placement. Map is nil for a collection without an entry in the catalog
// (or that does not exist), which lives on the database's primary shard.
type CollectionInfo struct {
	NS       string
	DB       *DatabaseInfo
	Map      *ChunkMap
	Entry    []byte // the entry of config.collections, nil if there is none
	whole    bool   // unsplittable: it is not sharded, and the only chunk of Map has its shard
	suffixes map[string][]byte
	stale    *atomic.Pointer[[]string] // the shards whose part is known to be out of date
	late     error

	seen  uint64         // the cluster time when it had been read: as long as nothing invalidates it, it is the placement from then on
	since *atomic.Uint64 // without a Map: the time since which there is none; 0 if that is not known yet
	asOf  uint64         // the cluster time as of which it was read from the config server's history; 0 for the current placement
}

// Late returns the error with which the refresh of an outdated placement failed, nil if it is up to date: with ServeStale the
// cache returns the last known placement. Shards still compare the versions of requests that are sent under it.
func (c *CollectionInfo) Late() error {
	if c.late == nil && c.DB != nil {
		return c.DB.late
	}
	return c.late
}

// Outdated reports whether the part of the placement that concerns a shard is known to be out of date. An operation that targets such
// a shard refreshes first (Catalog.Refresh); operations on other shards continue under this placement, whose versions the shards
// compare.
func (c *CollectionInfo) Outdated(shard string) bool {
	if c.stale == nil {
		return false
	}
	p := c.stale.Load()
	return p != nil && slices.Contains(*p, shard)
}

// outdate marks the part of a shard as outdated.
func (c *CollectionInfo) outdate(shard string) {
	for {
		old := c.stale.Load()
		next := []string{shard}
		if old != nil {
			if slices.Contains(*old, shard) {
				return
			}
			next = append(next, *old...)
		}
		if c.stale.CompareAndSwap(old, &next) {
			return
		}
	}
}

// newInfo prepares the version elements of requests to each shard, so that routing one builds nothing.
func newInfo(ns string, db *DatabaseInfo, entry []byte, m *ChunkMap) *CollectionInfo {
	c := &CollectionInfo{NS: ns, DB: db, Map: m, Entry: entry, since: new(atomic.Uint64)}
	if m == nil {
		if !db.Version.IsFixed() {
			b := AppendDatabaseVersion(AppendShardVersion(nil, Unsharded), db.Version)
			c.suffixes = map[string][]byte{db.Primary: b}
		}
		return c
	}
	c.stale = new(atomic.Pointer[[]string])
	c.suffixes = make(map[string][]byte, len(m.ids))
	for _, id := range m.ids {
		c.suffixes[id] = AppendShardVersion(nil, m.shards[id])
	}
	return c
}

// At returns the placement at a cluster time, 0 for now: with the chunks' owners of that time but the current
// versions, which shards compare.
func (c *CollectionInfo) At(at uint64) *CollectionInfo {
	if c.Map == nil {
		return c
	}
	m := c.Map.At(at)
	if m == c.Map {
		return c
	}
	past := *c
	past.Map = m
	return &past
}

// Sharded reports whether the collection is divided by a shard key. A collection that moveCollection or unshardCollection has
// placed on a shard has a routing table for the comparison of versions, but is not sharded.
func (c *CollectionInfo) Sharded() bool { return c.Map != nil && !c.whole }

// Home returns the shard of a collection that is not sharded.
func (c *CollectionInfo) Home() string {
	if c.Map == nil {
		return c.DB.Primary
	}
	return c.Map.Chunk(0).Shard
}

// KnownAt returns an error if the placement at a cluster time is unknown; 0 is now. For a sharded collection this is checked for
// each chunk when it is targeted.
func (c *CollectionInfo) KnownAt(at uint64) error {
	if !c.whole || at == 0 {
		return nil
	}
	_, err := c.Map.At(at).OwnerOf(c.Map.Chunk(0))
	return err
}

// ShardVersion returns the version of a shard; a nil placement is that of a collection without an entry in the catalog.
func (c *CollectionInfo) ShardVersion(shard string) ChunkVersion {
	if c == nil || c.Map == nil {
		return Unsharded
	}
	return c.Map.ShardVersion(shard)
}

// Suffix returns the version elements of a request to one shard, ready to be put before a command's terminator.
func (c *CollectionInfo) Suffix(shard string) []byte {
	if c.Past() && c.Map != nil {
		v := c.Map.ShardVersion(shard).Doc()
		v = value.End(value.Append(v[:len(v)-1], placementTime, value.NewTimestampU64(c.asOf)), 0)
		return value.Append(nil, "shardVersion", value.NewDocument(v))
	}
	if b, ok := c.suffixes[shard]; ok || c.Map == nil {
		return b
	}
	return AppendShardVersion(nil, c.Map.ShardVersion(shard))
}

// ClientSuffix returns the version elements of a client's write to one shard. Writes to a database that never moves have them, too: the config server tells the nodes' own writes from them.
func (c *CollectionInfo) ClientSuffix(shard string) []byte {
	if b := c.Suffix(shard); b != nil || !c.DB.Version.IsFixed() {
		return b
	}
	return fixedSuffix
}

var fixedSuffix = AppendDatabaseVersion(nil, DatabaseVersion{})

// Shards lists the shards that have the collection.
func (c *CollectionInfo) Shards() []string {
	if c.Map != nil {
		return c.Map.Shards()
	}
	return []string{c.DB.Primary}
}

// Catalog is the routing table cache: the last seen placement of databases and collections. It refreshes an entry on use
// if the entry was marked stale; readers of fresh entries take no lock.
type Catalog struct {
	config Peer
	dbs    cacheOf[*DatabaseInfo]
	colls  cacheOf[*CollectionInfo]
	// ServeStale makes the cache return the last known placement if it cannot be refreshed because no member of the config server
	// responds. It is for routers, whose requests the shards check: a shard that has given a range away must not use an old table.
	// It is set before the cache is used.
	ServeStale bool
	// Coarse makes a stale error of one shard mark the whole placement of a collection (enableFinerGrainedCatalogCacheRefresh:
	// false).
	Coarse bool
	// Clock is the node's. Without one, every read at a cluster time asks the config server since when a collection has been without an entry.
	Clock *VectorClock

	disk   Disk // where a shard keeps placements; nil for none
	past   pastPlacements
	stats  catalogStats
	series sync.Map // names of time series collections whose buckets had an entry in the catalog when last looked at
}

// SetDisk makes the cache of a shard store placements in d. It is called before the cache is used.
func (c *Catalog) SetDisk(d Disk) {
	c.disk, c.dbs.loaded, c.colls.loaded = d, d.Loaded, d.Loaded
}

// NewCatalog makes an empty cache over a config server.
func NewCatalog(config Peer) *Catalog {
	c := &Catalog{config: config}
	c.Limit(defaultCacheEntries, defaultCacheEntries)
	return c
}

// defaultCacheEntries is the maximum number of names in a cache unless Limit sets another.
const defaultCacheEntries = 10_000

// Limit sets how many collections and databases are cached (catalogCacheCollectionMaxEntries,
// catalogCacheDatabaseMaxEntries). The entries evicted first are those not used recently.
func (c *Catalog) Limit(collections, databases int64) {
	c.colls.limit.Store(collections)
	c.dbs.limit.Store(databases)
}

// FixedDatabase reports whether a database is always on the config server (admin, config).
func FixedDatabase(db string) bool { return db == "admin" || db == "config" }

// Database returns the placement of a database; NamespaceNotFound if it does not exist.
func (c *Catalog) Database(ctx context.Context, db string) (*DatabaseInfo, error) {
	if FixedDatabase(db) {
		return &DatabaseInfo{Name: db, Primary: ConfigShardID}, nil
	}
	e := c.dbs.entry(db)
	if info, ok := e.cached(); ok {
		return info, nil
	}
	info, err := e.get(ctx, c.databaseLoader(ctx, db))
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
		c.dbs.forget(db, e)
	}
	if old, _ := e.last(); err != nil && old != nil && c.mayServeStale(ctx, err) {
		late := **old
		late.late = err
		return &late, nil
	}
	return info, err
}

// mayServeStale reports whether the last known value remains in use after an error of a refresh. FindConfig has tried three times
// by then.
func (c *Catalog) mayServeStale(ctx context.Context, err error) bool {
	return c.ServeStale && ctx.Err() == nil && Retryable(err)
}

// databaseLoader returns the function that loads a database's placement.
func (c *Catalog) databaseLoader(ctx context.Context, db string) func(**DatabaseInfo) (*DatabaseInfo, error) {
	return func(**DatabaseInfo) (*DatabaseInfo, error) {
		info, err := c.loadDatabase(ctx, db)
		if err == nil {
			info.seen = c.time()
		}
		return info, err
	}
}

func (c *Catalog) loadDatabase(ctx context.Context, db string) (*DatabaseInfo, error) {
	if c.disk != nil {
		if doc, ok := c.disk.FollowDatabase(ctx, db); ok && doc != nil {
			return ParseDatabase(doc)
		} else if ok {
			return nil, noDatabase(db)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	info, err := readDatabase(ctx, c.newest, db)
	if err == nil && c.disk != nil {
		err = c.disk.AwaitDatabase(ctx, info)
	}
	if err != nil {
		return nil, err
	}
	return info, nil
}

// catalogReader reads documents of the sharding catalog: as they are now, or as they were at a cluster time.
type catalogReader func(ctx context.Context, f Find) ([][]byte, error)

// newest reads the sharding catalog as it is now.
func (c *Catalog) newest(ctx context.Context, f Find) ([][]byte, error) {
	return findPlacement(ctx, c.config, f)
}

func readDatabase(ctx context.Context, read catalogReader, db string) (*DatabaseInfo, error) {
	docs, err := read(ctx, Find{NS: "config.databases", Filter: value.Doc(value.F("_id", value.NewString(db))), Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(docs) == 0 {
		return nil, noDatabase(db)
	}
	return ParseDatabase(docs[0])
}

// ParseDatabase reads an entry of config.databases.
func ParseDatabase(doc []byte) (*DatabaseInfo, error) {
	id, primary := value.Lookup(doc, "_id"), value.Lookup(doc, "primary")
	if id.T != value.String || primary.T != value.String {
		return nil, mongoerr.New(mongoerr.FailedToParse, "an entry of config.databases lacks _id or primary")
	}
	v, err := ParseDatabaseVersion(value.Lookup(doc, "version"))
	return &DatabaseInfo{Name: id.Str(), Primary: primary.Str(), Version: v}, err
}

// Collection returns the placement of a collection. The database must exist.
func (c *Catalog) Collection(ctx context.Context, ns string) (*CollectionInfo, error) {
	e := c.colls.entry(ns)
	info, ok := e.cached()
	var err error
	if !ok {
		waited := c.stats.wait()
		info, err = e.get(ctx, c.loader(ctx, ns))
		waited()
		if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
			c.colls.forget(ns, e)
		}
		if old, _ := e.last(); err != nil && old != nil && c.mayServeStale(ctx, err) {
			late := **old
			late.late = err
			info, err = &late, nil
		}
	}
	if err != nil || info.Map != nil {
		return c.inDatabase(ctx, e, info, err)
	}
	if FixedDatabase(info.DB.Name) {
		if ns == SessionsNS {
			e.invalidate() // no version reveals that it becomes sharded, and it is rarely looked up before that
		}
		return info, nil
	}
	// The database may have been refreshed since: an unsharded collection follows its database's primary.
	db, err := c.Database(ctx, info.DB.Name)
	if err != nil {
		return nil, err
	}
	if db == info.DB {
		return info, nil
	}
	moved := newInfo(ns, db, nil, nil)
	moved.seen = max(info.seen, db.seen)
	moved.since.Store(info.since.Load())
	if moved.late = info.late; moved.Late() == nil {
		e.replace(func(i *CollectionInfo) bool { return i == info }, moved)
	}
	return moved, nil
}

// inDatabase returns a collection's table with the current state of its database: DDL is sent to the primary shard, which may have
// changed since the table was read. If the database cannot be read, the table is still correct for documents; if there is none any more, the collection
// was dropped with it. read is the error with which the table was read, if any.
func (c *Catalog) inDatabase(ctx context.Context, e *cacheEntry[*CollectionInfo], info *CollectionInfo, read error) (*CollectionInfo, error) {
	if info == nil || info.Map == nil || FixedDatabase(info.DB.Name) {
		return info, read
	}
	db, err := c.Database(ctx, info.DB.Name)
	switch {
	case mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound && read == nil:
		e.invalidate()
		return nil, err
	case err != nil || db == info.DB:
		return info, read
	}
	moved := *info
	moved.DB = db
	e.replace(func(i *CollectionInfo) bool { return i == info }, &moved)
	return &moved, read
}

// Buckets returns the placement of the buckets of a time series collection; nil if info's collection is not one, or the catalog has no
// entry for its buckets. A name is known to be such a collection once a shard has returned a stale error for the buckets (noteSeries),
// whose version shards check whenever the collection is named.
func (c *Catalog) Buckets(ctx context.Context, info *CollectionInfo) (*CollectionInfo, error) {
	if info.Map != nil {
		return nil, nil
	}
	if _, known := c.series.Load(info.NS); !known {
		return nil, nil
	}
	b, err := c.Collection(ctx, timeseries.BucketsOf(info.NS))
	if err != nil {
		return nil, err
	}
	if b.Map == nil {
		c.series.Delete(info.NS)
		return nil, nil
	}
	return b, nil
}

// noteSeries records that a shard has returned a stale error for the buckets of a time series collection.
func (c *Catalog) noteSeries(ns string) {
	if name, ok := timeseries.SeriesOf(ns); ok {
		c.series.Store(name, nil)
	}
}

// Refresh ensures that in the next placement that Collection returns the part of a shard is not known to be outdated. Operations that target
// other shards do not wait meanwhile.
func (c *Catalog) Refresh(ctx context.Context, ns, shard string) error {
	e := c.colls.peek(ns)
	if e == nil {
		return nil
	}
	if v, ok := e.cached(); !ok || !v.Outdated(shard) {
		return nil // it has been refreshed, or Collection will refresh it
	}
	_, err := e.getUnless(ctx, func(v *CollectionInfo) bool { return !v.Outdated(shard) }, c.loader(ctx, ns))
	return err
}

// Reload reads a collection's placement again; the read begins after the call, and concurrent callers share one. Unlike after
// InvalidateCollection, operations continue with the last placement meanwhile.
func (c *Catalog) Reload(ctx context.Context, ns string) error {
	e := c.colls.entry(ns)
	err := e.reload(ctx, c.loader(ctx, ns))
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
		c.colls.forget(ns, e)
	}
	return err
}

// ReloadDatabase is Reload for a database.
func (c *Catalog) ReloadDatabase(ctx context.Context, db string) error {
	e := c.dbs.entry(db)
	err := e.reload(ctx, c.databaseLoader(ctx, db))
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
		c.dbs.forget(db, e)
	}
	return err
}

// loader returns the function that loads a collection's placement, given the last known one.
func (c *Catalog) loader(ctx context.Context, ns string) func(**CollectionInfo) (*CollectionInfo, error) {
	return func(old **CollectionInfo) (*CollectionInfo, error) {
		var had *CollectionInfo
		if old != nil {
			had = *old
		}
		end := c.stats.refresh(had != nil && had.Map != nil)
		info, err := c.loadCollection(ctx, ns, had)
		if err == nil {
			info.seen = c.time()
		}
		end(err)
		return info, err
	}
}

func (c *Catalog) loadCollection(ctx context.Context, ns string, old *CollectionInfo) (*CollectionInfo, error) {
	name, _ := SplitNS(ns)
	db, err := c.Database(ctx, name)
	if err != nil {
		return nil, err
	}
	if FixedDatabase(name) && ns != SessionsNS {
		return newInfo(ns, db, nil, nil), nil
	}
	if c.disk != nil {
		var have *ChunkMap
		if old != nil {
			have = old.Map
		}
		if p, ok := c.disk.Follow(ctx, ns, have); ok {
			return p.info(ns, db)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if old == nil { // Base reads the whole table
			if p, ok := c.disk.Base(ns); ok {
				old, _ = p.info(ns, db) // the entry is compared with the config server's
			}
		}
	}
	var last error
	for try := 0; try < 10; try++ {
		info, err := readCollection(ctx, c.newest, ns, db, old)
		if err == nil && c.disk != nil && info.Map != nil {
			err = c.disk.Await(ctx, info.Map)
		}
		if err == nil {
			return info, nil
		}
		switch mongoerr.CodeOf(err) {
		case mongoerr.ConflictingOperationInProgress, mongoerr.StaleEpoch:
			// The chunks changed between two reads: start over without the old table.
			old, last = nil, err
			if err := Backoff(ctx, try); err != nil {
				return nil, err
			}
		default:
			return nil, err
		}
	}
	return nil, last
}

func readCollection(ctx context.Context, read catalogReader, ns string, db *DatabaseInfo, old *CollectionInfo) (*CollectionInfo, error) {
	docs, err := read(ctx, Find{NS: "config.collections", Filter: value.Doc(value.F("_id", value.NewString(ns))), Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(docs) == 0 {
		return newInfo(ns, db, nil, nil), nil
	}
	raw := append([]byte(nil), docs[0]...)
	entry, err := ParseCollectionEntry(raw)
	if err != nil {
		return nil, err
	}
	var base *ChunkMap
	if old != nil && old.Map != nil && old.Map.UUID == entry.UUID && old.Map.version.SameGeneration(entry.Generation) {
		base = old.Map
	}
	m, err := readTable(ctx, read, entry, base)
	if err != nil {
		return nil, err
	}
	info := newInfo(ns, db, raw, m)
	info.whole = entry.Unsplittable
	return info, nil
}

// info returns the CollectionInfo for a placement.
func (p Placement) info(ns string, db *DatabaseInfo) (*CollectionInfo, error) {
	info := newInfo(ns, db, p.Entry, p.Map)
	if p.Map == nil {
		return info, nil
	}
	entry, err := ParseCollectionEntry(p.Entry)
	if err != nil {
		return nil, err
	}
	info.whole = entry.Unsplittable
	return info, nil
}

// CollectionEntry is a parsed entry of config.collections.
type CollectionEntry struct {
	NS         string
	UUID       [16]byte
	Generation ChunkVersion
	Key        *ShardKeyPattern
	Unique     bool
	NoBalance  bool
	Frozen     bool // its chunks must not be migrated: a DDL is running (permitMigrations: false), or an administrator forbids it (allowMigrations: false)
	NoMerge    bool // the auto-merger skips it
	Defragment bool // it is being defragmented; the balancer and the auto-merger skip it
	// DefragmentPhase is the phase of the defragmentation; "" before the first.
	DefragmentPhase string
	// Unsplittable collections are not sharded: their only chunk has their shard.
	Unsplittable bool
	ChunkBytes   int64 // the collection's own chunk size; 0 for that of the cluster
}

// ParseCollectionEntry reads an entry of config.collections.
func ParseCollectionEntry(doc []byte) (*CollectionEntry, error) {
	e := &CollectionEntry{NS: value.Lookup(doc, "_id").Str()}
	epoch, ts, uuid := value.Lookup(doc, "lastmodEpoch"), value.Lookup(doc, "timestamp"), value.Lookup(doc, "uuid")
	if epoch.T != value.ObjectID || ts.T != value.Timestamp || len(uuid.Bytes()) != 16 {
		return nil, mongoerr.Newf(mongoerr.FailedToParse, "the entry of %s in config.collections is malformed", e.NS)
	}
	copy(e.UUID[:], uuid.Bytes())
	e.Generation = ChunkVersion{Epoch: epoch.ObjectID(), Timestamp: ts.TimestampU64()}
	e.Unique = value.Lookup(doc, "unique").Truthy()
	e.NoBalance, e.Unsplittable = value.Lookup(doc, "noBalance").Truthy(), value.Lookup(doc, "unsplittable").Truthy()
	for _, name := range []string{"permitMigrations", "allowMigrations"} {
		if p := value.Lookup(doc, name); !p.IsMissing() && !p.Truthy() {
			e.Frozen = true
		}
	}
	e.Defragment, e.DefragmentPhase = value.Lookup(doc, "defragmentCollection").Truthy(), value.Lookup(doc, "defragmentationPhase").Str()
	if merge := value.Lookup(doc, "enableAutoMerge"); merge.T == value.Boolean {
		e.NoMerge = !merge.Truthy()
	}
	if n, ok := value.Lookup(doc, "maxChunkSizeBytes").AsInt64(); ok && n > 0 {
		e.ChunkBytes = n
	}
	var err error
	e.Key, err = ParseShardKey(value.Lookup(doc, "key").Doc())
	return e, err
}

// readTable reads all chunks, or those changed since base was read.
//
// Invariant: a table covers the key space without gap and overlap, and its version is that of its newest chunk. The
// chunks that one operation changes are committed together, so a difference has all of them or none, and the chunks
// that it brings cover the ranges of those that it replaces.
//
// Hazard: the entry of the collection and its chunks are two reads, and the collection may be replaced in between.
// The chunks then contradict the entry (another generation, a gap), and loadCollection starts over without the old
// table. Rejected: one snapshot for both. A snapshot is of some time, not necessarily the newest, and the reads have
// to be linearizable.
func readTable(ctx context.Context, read catalogReader, e *CollectionEntry, base *ChunkMap) (*ChunkMap, error) {
	since := uint64(0)
	if base != nil {
		since = base.version.Combined()
	}
	filter, order := value.Doc(value.F("uuid", value.NewBinary(4, e.UUID[:]))), "min" // in this order the table is built in one pass
	if base != nil {
		filter, order = value.Doc(
			value.F("uuid", value.NewBinary(4, e.UUID[:])),
			value.F("lastmod", value.NewDocument(value.Doc(value.F("$gte", value.NewTimestampU64(since)))))), "lastmod"
	}
	docs, err := read(ctx, Find{NS: "config.chunks", Filter: filter, Sort: value.Doc(value.F(order, value.NewInt32(1)))})
	if err != nil {
		return nil, err
	}
	chunks := make([]*Chunk, 0, len(docs))
	for _, d := range docs {
		if value.Lookup(d, "lastmod").T != value.Timestamp {
			continue // not a valid chunk: a refresh skips it, too; a client may have written it
		}
		ch, err := ParseChunk(d, e.Generation)
		if err != nil {
			return nil, err
		}
		if len(e.Key.Parts) > 1 { // the key may have been refined, and the entry of the chunk not been written yet
			ch.Min, ch.Max = e.Key.ExtendBound(ch.Min), e.Key.ExtendBound(ch.Max)
		}
		chunks = append(chunks, ch)
	}
	if base != nil {
		if len(chunks) == 0 { // without even the newest chunk, or one that replaced it, this is another table
			return nil, mongoerr.New(mongoerr.ConflictingOperationInProgress, "the collection has no chunk as new as the newest one known")
		}
		return base.Update(chunks)
	}
	return NewChunkMap(e.UUID, e.Key, e.Unique, e.Generation, chunks)
}

// ParseChunk reads an entry of config.chunks.
func ParseChunk(doc []byte, generation ChunkVersion) (*Chunk, error) {
	return parseChunk(doc, value.Lookup(doc, "min"), generation)
}

func parseChunk(doc []byte, min value.Value, generation ChunkVersion) (*Chunk, error) {
	max := value.Lookup(doc, "max")
	shard, last := value.Lookup(doc, "shard"), value.Lookup(doc, "lastmod")
	if min.T != value.Document || max.T != value.Document || shard.T != value.String || last.T != value.Timestamp {
		return nil, mongoerr.New(mongoerr.FailedToParse, "an entry of config.chunks is malformed")
	}
	c := &Chunk{
		Min: min.Clone().Doc(), Max: max.Clone().Doc(), Shard: shard.Str(),
		Version: generation.WithCombined(last.TimestampU64()),
		Jumbo:   value.Lookup(doc, "jumbo").Truthy(),
		OnSince: value.Lookup(doc, "onCurrentShardSince").TimestampU64(),
	}
	c.parseHistory(value.Lookup(doc, "history"))
	return c, nil
}

// Cached returns a collection's cached entry, fresh or stale, without I/O.
func (c *Catalog) Cached(ns string) (*CollectionInfo, bool) {
	if e := c.colls.peek(ns); e != nil {
		if p, fresh := e.last(); p != nil {
			return *p, fresh
		}
	}
	return nil, false
}

// InvalidateCollection marks a collection as stale: the next use of it refreshes.
func (c *Catalog) InvalidateCollection(ns string) {
	if e := c.colls.peek(ns); e != nil {
		e.invalidate()
	}
}

// InvalidateDatabase marks a database as stale, but not its sharded collections.
func (c *Catalog) InvalidateDatabase(db string) {
	if e := c.dbs.peek(db); e != nil {
		e.invalidate()
	}
}

// PurgeDatabase marks a database and all its collections as stale: it was dropped, or flushRouterConfig named it.
func (c *Catalog) PurgeDatabase(db string) {
	c.InvalidateDatabase(db)
	c.colls.each(func(ns string, e *cacheEntry[*CollectionInfo]) {
		if strings.HasPrefix(ns, db) && len(ns) > len(db) && ns[len(db)] == '.' {
			e.invalidate()
		}
	})
}

// Clear drops all entries.
func (c *Catalog) Clear() {
	c.dbs.clear()
	c.colls.clear()
}

// OnStale processes a stale error: it marks the entry that the error concerns as stale, unless the cache has been
// refreshed since the request was made with the version that the shard received. If the collection is still the same
// one, only the part of the shard that answered is marked: operations that target other shards need not wait for a
// refresh because chunks of this one have moved.
//
// Hazard: a migration makes every request in flight stale at once. If each of their errors marked the entry, each would cause another
// refresh, of a table that is already correct. An error is therefore compared with the current table, and is obsolete if that differs from
// the request's version and has reached the one that the shard wants. If the versions cannot be compared the entry is marked: a needless
// refresh costs a read, a missed one costs the request its retries.
//
// Rejected: marking the whole entry whenever a shard answers stale. While chunks of one shard move one after the other, operations on
// all other shards would wait for refreshes that change nothing for them.
func (c *Catalog) OnStale(code mongoerr.Code, info StaleInfo) {
	c.stats.stale.Add(1)
	switch code {
	case mongoerr.StaleDbVersion:
		c.InvalidateDatabase(info.DB)
	case mongoerr.StaleConfig, mongoerr.StaleEpoch:
		c.noteSeries(info.Ns)
		e := c.colls.peek(info.Ns)
		if e == nil {
			return
		}
		p, fresh := e.last()
		if fresh && info.HasWanted && (*p).Map != nil {
			// The cache may be newer than the request: another request received the same stale error first.
			have := (*p).Map.ShardVersion(info.Shard)
			if o := have.Compare(info.Wanted); have != info.Received && (o == Same || o == Newer) {
				return
			}
		}
		if fresh && !c.Coarse && (*p).partOnly(info) {
			e.outdate()
			(*p).outdate(info.Shard)
			return
		}
		e.invalidate()
	}
}

// partOnly reports whether a stale error shows only that chunks of one shard have changed.
func (c *CollectionInfo) partOnly(info StaleInfo) bool {
	if c.stale == nil || c.whole || info.Shard == "" || !info.Received.SameGeneration(c.Map.version) {
		return false
	}
	return !info.HasWanted || info.Wanted.SameGeneration(c.Map.version)
}
