package msg

import (
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

// Commands from routers and shards to the config server.

// CreateDatabase makes a database's entry, on a shard that is named or on the least loaded one.
type CreateDatabase struct {
	DB      string
	Primary string // "" lets the config server choose
}

func (m *CreateDatabase) fields(c *codec) {
	c.on("_configsvrCreateDatabase", &m.DB)
	c.str("primaryShardId", optional, &m.Primary)
}

// AddShard takes a replica set into the cluster.
type AddShard struct {
	Connection string // set/host:port,host:port
	Name       string // "" names it after its set
}

func (m *AddShard) fields(c *codec) {
	c.on("_configsvrAddShard", &m.Connection)
	c.str("name", optional, &m.Name)
}

// RemoveShard drains a shard, or tells how far its draining is.
type RemoveShard struct{ Shard string }

func (m *RemoveShard) fields(c *codec) { c.on("_configsvrRemoveShard", &m.Shard) }

// ShardCollection shards a collection.
type ShardCollection struct {
	NS            string
	Key           []byte
	Unique        bool
	Chunks        int64 // how many at first; 0 lets the config server choose
	Collation     []byte
	ImplicitIndex bool // make the index that the key needs
}

func (m *ShardCollection) fields(c *codec) {
	c.on("_configsvrShardCollection", &m.NS)
	m.arguments(c)
}

func (m *ShardCollection) arguments(c *codec) {
	c.doc("key", required, &m.Key)
	c.flag("unique", false, &m.Unique)
	c.int64("numInitialChunks", optional, &m.Chunks)
	c.doc("collation", optional, &m.Collation)
	c.flag("implicitlyCreateIndex", true, &m.ImplicitIndex)
}

// DropCollection drops a sharded collection.
type DropCollection struct {
	NS   string
	UUID *[16]byte // that the client expects it to have; nil if it names none
}

func (m *DropCollection) fields(c *codec) {
	c.on("_configsvrDropCollection", &m.NS)
	c.optionalUUID("collectionUUID", &m.UUID)
}

// RemoveCollection takes a collection out of the catalog. Sent again, it finds it gone.
type RemoveCollection struct {
	NS   string
	UUID [16]byte
}

func (m *RemoveCollection) fields(c *codec) {
	c.on("_configsvrRemoveCollection", &m.NS)
	c.uuid("collectionUUID", &m.UUID)
}

// SetAllowMigrations has a collection's chunks stay where they are, or lets them move again.
type SetAllowMigrations struct {
	NS    string
	UUID  [16]byte
	Allow bool
}

func (m *SetAllowMigrations) fields(c *codec) {
	c.on("_configsvrSetAllowMigrations", &m.NS)
	c.uuid("collectionUUID", &m.UUID)
	c.boolean("allowMigrations", required, &m.Allow)
}

// RenameMetadata renames a collection in the catalog, in the place of a target. Sent again, it finds that done.
type RenameMetadata struct {
	NS, To  string
	UUID    [16]byte // the source's
	Sharded bool     // the source is
	Target  *[16]byte
}

func (m *RenameMetadata) fields(c *codec) {
	c.on("_configsvrRenameCollectionMetadata", &m.NS)
	c.str("to", required, &m.To)
	c.uuid("sourceUUID", &m.UUID)
	c.flag("sourceIsSharded", false, &m.Sharded)
	c.optionalUUID("targetUUID", &m.Target)
}

// RemoveDatabase takes a database out of the catalog, where it is still the one of a version.
type RemoveDatabase struct {
	DB      string
	Version [16]byte // its UUID
}

func (m *RemoveDatabase) fields(c *codec) {
	c.on("_configsvrRemoveDatabase", &m.DB)
	c.uuid("databaseVersion", &m.Version)
}

// CommitChunkSplit cuts a chunk at one or several keys.
type CommitChunkSplit struct {
	NS string
	Range
	Points [][]byte
}

func (m *CommitChunkSplit) fields(c *codec) {
	c.on("_configsvrCommitChunkSplit", &m.NS)
	m.Range.fields(c)
	c.docs("splitPoints", required, &m.Points)
}

// CommitChunksMerge merges the chunks of a range, all of them on one shard.
type CommitChunksMerge struct {
	NS string
	Range
}

func (m *CommitChunksMerge) fields(c *codec) {
	c.on("_configsvrCommitChunksMerge", &m.NS)
	c.sub("chunkRange", m.Range.fields)
}

// MergeAllChunksOnShard merges all chunks of a collection on one shard that can be merged. What is not there is no limit.
type MergeAllChunksOnShard struct {
	NS        string
	Shard     string
	MaxChunks *int64 // that become part of others
	MaxTimeMS *int64 // after which no further ones are begun
}

func (m *MergeAllChunksOnShard) fields(c *codec) {
	c.on("_configsvrCommitMergeAllChunksOnShard", &m.NS)
	c.str("shard", required, &m.Shard)
	c.optionalInt64("maxNumberOfChunksToMerge", &m.MaxChunks)
	c.optionalInt64("maxTimeProcessingChunksMS", &m.MaxTimeMS)
}

// CommitChunkMigration assigns a copied range to its new owner. Version is what its chunk had when the migration
// began: a commit that was overtaken finds another version.
type CommitChunkMigration struct {
	NS       string
	From, To string
	Range
	Version uint64 // major and minor as one; 0 compares nothing
	Epoch   cluster.Epoch
}

func (m *CommitChunkMigration) fields(c *codec) {
	c.on("_configsvrCommitChunkMigration", &m.NS)
	c.str("fromShard", required, &m.From)
	c.str("toShard", required, &m.To)
	c.sub("migratedChunk", func(c *codec) {
		m.Range.fields(c)
		c.timestamp("lastmod", optional, &m.Version)
		c.objectID("lastmodEpoch", required, (*[12]byte)(&m.Epoch))
	})
}

// EnsureChunkVersion ensures that the commit of a migration that began at a version, and may still be in flight,
// will be rejected.
type EnsureChunkVersion struct {
	NS      string
	Min     []byte
	Version cluster.ChunkVersion
}

func (m *EnsureChunkVersion) fields(c *codec) {
	c.on("_configsvrEnsureChunkVersionIsGreaterThan", &m.NS)
	c.doc("minKey", required, &m.Min)
	c.version("version", &m.Version)
}

// Transfer is how a migration goes about its work.
type Transfer struct {
	Throttle bool   // each batch waits for secondaries
	Concern  []byte // the write concern by which it waits; nil is the default one
}

func (t *Transfer) fields(c *codec) {
	c.flag("secondaryThrottle", false, &t.Throttle)
	c.doc("throttleConcern", optional, &t.Concern)
}

// Range is the keys from Min up to, and without, Max.
type Range struct{ Min, Max []byte }

func (x *Range) fields(c *codec) {
	c.doc("min", required, &x.Min)
	c.doc("max", required, &x.Max)
}

// Move says what is moved, where to and how. A bound that is not there is where MaxBytes of data end, or the chunk does.
type Move struct {
	NS            string
	To            string
	Min, Max      []byte
	WaitForDelete bool
	MaxBytes      int64 // the collection's chunk size; 0 for no bound
	ForceJumbo    bool  // a range of more than MaxBytes may be moved
	Transfer      Transfer
}

func (x *Move) fields(c *codec) {
	c.str("toShard", required, &x.To)
	c.doc("min", optional, &x.Min)
	c.doc("max", optional, &x.Max)
	c.flag("waitForDelete", false, &x.WaitForDelete)
	c.int64("maxChunkSizeBytes", optional, &x.MaxBytes)
	c.flag("forceJumbo", false, &x.ForceJumbo)
	x.Transfer.fields(c)
}

// MoveRange moves a range to another shard.
type MoveRange struct{ Move }

func (m *MoveRange) fields(c *codec) {
	c.on("_configsvrMoveRange", &m.NS)
	m.Move.fields(c)
}

// ClearJumboFlag lets a chunk be moved again. The chunk is the one that holds Find, or the one between Bounds.
type ClearJumboFlag struct {
	NS     string
	Find   []byte
	Bounds [][]byte
}

func (m *ClearJumboFlag) fields(c *codec) {
	c.on("_configsvrClearJumboFlag", &m.NS)
	c.doc("find", optional, &m.Find)
	c.docs("bounds", optional, &m.Bounds)
}

// BalancerStart lets the balancer run.
type BalancerStart struct{}

func (m *BalancerStart) fields(c *codec) { c.plain("_configsvrBalancerStart") }

// BalancerStop stops the balancer.
type BalancerStop struct{}

func (m *BalancerStop) fields(c *codec) { c.plain("_configsvrBalancerStop") }

// BalancerStatus asks how the balancer is doing.
type BalancerStatus struct{}

func (m *BalancerStatus) fields(c *codec) { c.plain("_configsvrBalancerStatus") }

// BalancerCollectionStatus asks what the balancer would do with a collection.
type BalancerCollectionStatus struct{ NS string }

func (m *BalancerCollectionStatus) fields(c *codec) {
	c.on("_configsvrBalancerCollectionStatus", &m.NS)
}

// ConfigureBalancing sets how the balancer treats a collection. What is not there stays as it is.
type ConfigureBalancing struct {
	NS        string
	ChunkMB   *int64 // 0 goes back to the cluster's chunk size
	Balance   *bool
	AutoMerge *bool
}

func (m *ConfigureBalancing) fields(c *codec) {
	c.on("_configsvrConfigureCollectionBalancing", &m.NS)
	c.optionalInt64("chunkSize", &m.ChunkMB)
	c.optionalBool("enableBalancing", &m.Balance)
	c.optionalBool("enableAutoMerger", &m.AutoMerge)
}

// AddShardToZone puts a shard into a zone.
type AddShardToZone struct{ Shard, Zone string }

func (m *AddShardToZone) fields(c *codec) {
	c.on("_configsvrAddShardToZone", &m.Shard)
	c.str("zone", required, &m.Zone)
}

// RemoveShardFromZone takes a shard out of a zone.
type RemoveShardFromZone struct{ Shard, Zone string }

func (m *RemoveShardFromZone) fields(c *codec) {
	c.on("_configsvrRemoveShardFromZone", &m.Shard)
	c.str("zone", required, &m.Zone)
}

// UpdateZoneKeyRange assigns a range to a zone, or to none.
type UpdateZoneKeyRange struct {
	NS string
	Range
	Zone string // "" takes the range out of its zone
}

func (m *UpdateZoneKeyRange) fields(c *codec) {
	c.on("_configsvrUpdateZoneKeyRange", &m.NS)
	m.Range.fields(c)
	c.str("zone", optional, &m.Zone)
}

// HoldsCriticalSection asks where a DDL is coordinated whether it still holds its critical sections.
type HoldsCriticalSection struct{ ID [16]byte }

func (m *HoldsCriticalSection) fields(c *codec) {
	c.command("_holdsCriticalSection", UUID, func() value.Value { return value.NewBinary(4, m.ID[:]) },
		func(v value.Value) { copy(m.ID[:], v.Bytes()) })
}

// PauseLease is how long migrations stay paused by a PauseMigrations that is not repeated.
const PauseLease = 10 * time.Second

// PauseMigrations has no migration of a collection commit until the lease ID ends. Sent again, it renews the lease.
type PauseMigrations struct {
	NS string
	ID [16]byte
}

func (m *PauseMigrations) fields(c *codec) {
	c.on("_configsvrPauseMigrations", &m.NS)
	c.uuid("id", &m.ID)
}

// ResumeMigrations ends a lease of PauseMigrations.
type ResumeMigrations struct {
	NS string
	ID [16]byte
}

func (m *ResumeMigrations) fields(c *codec) {
	c.on("_configsvrResumeMigrations", &m.NS)
	c.uuid("id", &m.ID)
}

// CreateDatabaseReply says where a database is.
type CreateDatabaseReply struct {
	Primary string
	Version []byte
}

func (m *CreateDatabaseReply) fields(c *codec) {
	c.reply("_configsvrCreateDatabase")
	c.str("primaryShard", required, &m.Primary)
	c.doc("databaseVersion", required, &m.Version)
}

// HoldsCriticalSectionReply is the reply to HoldsCriticalSection.
type HoldsCriticalSectionReply struct{ Held bool }

func (m *HoldsCriticalSectionReply) fields(c *codec) {
	c.reply("_holdsCriticalSection")
	c.boolean("held", required, &m.Held)
}
