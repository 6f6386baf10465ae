package cluster

import (
	"context"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Placement is a collection's placement according to config.collections and config.chunks. Both fields are nil if it has no entry
// there.
type Placement struct {
	Entry []byte
	Map   *ChunkMap
}

// Disk stores the placements that one member of a shard has read from the config server for all members
// (config.cache.*).
type Disk interface {
	// Base returns the stored placement of a collection; ok is false if there is none, or it is incomplete. The first refresh of a
	// primary begins with it, and reads only later changes.
	Base(ns string) (p Placement, ok bool)
	// Follow returns, without asking the config server, a placement that is at least as new as the call; ok is false if the config
	// server must be asked. old is the last known table, or nil.
	Follow(ctx context.Context, ns string, old *ChunkMap) (p Placement, ok bool)
	// Await waits until the node has the documents of what a table from the config server gives its shard. A secondary may be behind.
	Await(ctx context.Context, m *ChunkMap) error
	// AwaitDatabase is Await for a database of which the config server says that the shard is its primary shard.
	AwaitDatabase(ctx context.Context, db *DatabaseInfo) error
	// FollowDatabase is Follow for a database; doc is nil if there is no such database.
	FollowDatabase(ctx context.Context, db string) (doc []byte, ok bool)
	// Loaded is called when a placement has been read from the config server; it does not block. name is a namespace or database.
	Loaded(name string)
}

// CacheDoc returns a chunk as a document of config.cache.chunks.<namespace>.
func (c *Chunk) CacheDoc() []byte {
	f := []value.Field{
		value.F("_id", value.NewDocument(c.Min)), value.F("max", value.NewDocument(c.Max)), value.F("shard", value.NewString(c.Shard)),
		value.F("lastmod", value.NewTimestampU64(c.Version.Combined())),
	}
	if c.OnSince != 0 {
		f = append(f, value.F("onCurrentShardSince", value.NewTimestampU64(c.OnSince)), value.F("history", HistoryValue(c.History())))
	}
	return value.Doc(f...)
}

// ParseCachedChunk reads a document of config.cache.chunks.<namespace>.
func ParseCachedChunk(doc []byte, generation ChunkVersion) (*Chunk, error) {
	return parseChunk(doc, value.Lookup(doc, "_id"), generation)
}

// onlyAtConfig has the fields of config.collections that shards do not use; they change without a new version.
var onlyAtConfig = map[string]bool{
	"lastmod": true, "noBalance": true, "maxChunkSizeBytes": true, "enableAutoMerge": true, "defragmentCollection": true, "defragmentationPhase": true,
	"balancerShouldMergeChunks": true, "dropped": true,
}

// Fields of config.cache.collections about the cache itself.
const (
	cachedRefreshing = "refreshing"
	cachedVersion    = "lastRefreshedCollectionMajorMinorVersion"
	cachedSum        = "chunksChecksum"
)

// CachedEntry is a document of config.cache.collections.
type CachedEntry struct {
	Entry []byte // as in config.collections, as far as shards use it
	// Refreshing is true while the chunks are being written.
	Refreshing bool
	Version    uint64 // of the table whose chunks are stored
	Sum        uint64 // the sum of the hashes of all their documents, which reveals changes by others
}

// NewCachedEntry returns the stored form of an entry of config.collections.
func NewCachedEntry(entry []byte, version, sum uint64) *CachedEntry {
	out, m := value.Begin(nil)
	for k, v := range value.Elements(entry) {
		if !onlyAtConfig[k] {
			out = value.Append(out, k, v)
		}
	}
	return &CachedEntry{Entry: value.End(out, m), Version: version, Sum: sum}
}

// ID implements statedoc.Doc.
func (e *CachedEntry) ID() value.Value { return value.Lookup(e.Entry, "_id") }

// Doc implements statedoc.Doc.
func (e *CachedEntry) Doc() []byte {
	out, m := value.Begin(nil)
	for k, v := range value.Elements(e.Entry) {
		if k == "lastmodEpoch" {
			k = "epoch"
		}
		out = value.Append(out, k, v)
	}
	out = value.Append(out, cachedRefreshing, value.NewBool(e.Refreshing))
	out = value.Append(out, cachedVersion, value.NewTimestampU64(e.Version))
	return value.End(value.Append(out, cachedSum, value.NewInt64(int64(e.Sum))), m)
}

// ParseCachedEntry reads a document of config.cache.collections.
func ParseCachedEntry(doc []byte) (*CachedEntry, error) {
	e := &CachedEntry{Refreshing: value.Lookup(doc, cachedRefreshing).Truthy(), Version: value.Lookup(doc, cachedVersion).TimestampU64()}
	if id := value.Lookup(doc, "_id"); id.T != value.String {
		return nil, mongoerr.New(mongoerr.FailedToParse, "an entry of config.cache.collections has no namespace as its _id")
	}
	sum, _ := value.Lookup(doc, cachedSum).AsInt64()
	e.Sum = uint64(sum)
	out, m := value.Begin(nil)
	for k, v := range value.Elements(doc) {
		switch k {
		case cachedRefreshing, cachedVersion, cachedSum:
			continue
		case "epoch":
			k = "lastmodEpoch"
		}
		out = value.Append(out, k, v)
	}
	e.Entry = value.End(out, m)
	return e, nil
}
