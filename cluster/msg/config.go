package msg

import (
	"time"

	"github.com/shoaldb/shoal/cluster/version"
	"github.com/shoaldb/shoal/query/value"
)

// Commands from routers and shards to the config server.

// CreateDatabase creates a database's entry, on the given shard or on the least loaded one.
type CreateDatabase struct {
	DB      string
	Primary string // "" lets the config server choose
}

func (m *CreateDatabase) fields(c *codec) {
	c.on("_configsvrCreateDatabase", &m.DB)
	c.str("primaryShardId", optional, &m.Primary)
}

// AddShard adds a replica set to the cluster.
type AddShard struct {
	Connection string // set/host:port,host:port
	Name       string // "" for the name of its set
}

func (m *AddShard) fields(c *codec) {
	c.on("_configsvrAddShard", &m.Connection)
	c.str("name", optional, &m.Name)
}

// RemoveShard drains a shard, or reports the progress of its draining.
type RemoveShard struct {
	Shard string
	// Starts means that a router sends the request again, and that the shard was not draining before it sent it first: the draining that it finds is what the request
	// has started.
	Starts bool
}

func (m *RemoveShard) fields(c *codec) {
	c.on("_configsvrRemoveShard", &m.Shard)
	c.flag("starts", false, &m.Starts)
}

// TransitionFromDedicated makes the config server a shard, too.
type TransitionFromDedicated struct{}

func (m *TransitionFromDedicated) fields(c *codec) {
	c.plain("_configsvrTransitionFromDedicatedConfigServer")
}

// TransitionToDedicated drains the config server as a shard, or reports the progress of its draining.
type TransitionToDedicated struct{ Starts bool } // see RemoveShard

func (m *TransitionToDedicated) fields(c *codec) {
	c.plain("_configsvrTransitionToDedicatedConfigServer")
	c.flag("starts", false, &m.Starts)
}

// ShardCollection describes how to shard a collection.
type ShardCollection struct {
	NS            string
	Key           []byte
	Unique        bool
	Chunks        int64 // the initial number; 0 lets the config server choose
	Collation     []byte
	ImplicitIndex bool   // create the index that the key needs
	Enforce       bool   // refuse unique indexes of which the key is not a prefix
	Presplit      bool   // several chunks of each zone
	TimeSeries    []byte // time series options; nil for other collections
	// Unsplittable means that the collection is not sharded: it gets an entry with one chunk, on DataShard, or the primary shard of the database.
	Unsplittable bool
	DataShard    string
	Create       []byte // the options with which a client creates it, as create has them; nil for none
}

func (m *ShardCollection) arguments(c *codec) {
	c.doc("key", required, &m.Key)
	c.flag("unique", false, &m.Unique)
	c.int64("numInitialChunks", optional, &m.Chunks)
	c.doc("collation", optional, &m.Collation)
	c.flag("implicitlyCreateIndex", true, &m.ImplicitIndex)
	c.flag("enforceUniquenessCheck", true, &m.Enforce)
	c.flag("presplitHashedZones", false, &m.Presplit)
	c.doc("timeseries", optional, &m.TimeSeries)
	c.flag("unsplittable", false, &m.Unsplittable)
	c.str("dataShard", optional, &m.DataShard)
	c.doc("create", optional, &m.Create)
}

// CommitShardCollection makes a collection on its database's primary shard a sharded one. It may be sent again.
type CommitShardCollection struct {
	ShardCollection
	UUID     [16]byte
	Options  []byte
	Indexes  [][]byte
	Empty    bool
	NewEpoch [12]byte
	Home     string // the shard that the catalog has placed the collection on; "" if it has no entry
	Run      RunOf
}

func (m *CommitShardCollection) fields(c *codec) {
	c.on("_configsvrCommitShardCollection", &m.NS)
	m.arguments(c)
	c.uuid("collectionUUID", &m.UUID)
	c.doc("options", optional, &m.Options)
	c.docs("indexes", optional, &m.Indexes)
	c.flag("empty", false, &m.Empty)
	c.objectID("newEpoch", required, &m.NewEpoch)
	c.str("home", optional, &m.Home)
	m.Run.fields(c)
}

// DropCollection drops a sharded collection.
type DropCollection struct {
	NS   string
	UUID *[16]byte // the UUID that the client expects; nil if it sent none
}

func (m *DropCollection) fields(c *codec) {
	c.on("_configsvrDropCollection", &m.NS)
	c.optionalUUID("collectionUUID", &m.UUID)
}

// RemoveCollection removes a collection from the catalog. It may be sent again.
type RemoveCollection struct {
	NS      string
	UUID    [16]byte
	Untrack bool   // the collection continues to exist, on the primary shard of its database
	Zones   bool   // it had no entry, and its zones are removed
	Run     *RunOf // of an untracking: the UUID may have an entry again after it; of a removal of zones: the name may have zones again
	Undo    bool   // the run is being undone: the entry is its own
}

func (m *RemoveCollection) fields(c *codec) {
	c.on("_configsvrRemoveCollection", &m.NS)
	c.uuid("collectionUUID", &m.UUID)
	c.flag("untrack", false, &m.Untrack)
	c.flag("zones", false, &m.Zones)
	opt(c, "run", &m.Run, func(c *codec, x *RunOf) { x.ids(c) })
	c.flag("undo", false, &m.Undo)
}

// RunOf identifies the run of a DDL that requests a change of the catalog. The config server asks its coordinator whether the run
// still requests it: a message that arrives after the run has ended, or has begun to be undone, has no effect.
type RunOf struct {
	Coordinator string // its shard
	ID          [16]byte
	Phase       string // in which the run requests it, and in no other one; empty for any
}

func (x *RunOf) fields(c *codec) {
	c.sub("run", x.ids)
}

func (x *RunOf) ids(c *codec) {
	c.str("coordinator", required, &x.Coordinator)
	c.uuid("id", &x.ID)
	c.str("phase", optional, &x.Phase)
}

// RunArgument is the argument with which a coordinator sends a client's command to a shard: the RunMessage of its run.
const RunArgument = "$ddlRun"

// RunMessage identifies the run that sends a client's command. Before the shard changes anything, it asks the run's coordinator whether the run still requests it.
type RunMessage struct {
	RunOf
	Undo bool // the command is part of the undoing of the run
	Idle bool // the shard owns nothing of the collection: change streams have the events of those that do
}

func (m *RunMessage) fields(c *codec) {
	c.reply(RunArgument)
	m.ids(c)
	c.flag("undo", false, &m.Undo)
	c.flag("idle", false, &m.Idle)
}

// ResetPlacementHistory begins config.placementHistory anew.
type ResetPlacementHistory struct{}

func (m *ResetPlacementHistory) fields(c *codec) { c.plain("_configsvrResetPlacementHistory") }

// GetHistoricalPlacement asks which shards had data of a namespace at a time.
type GetHistoricalPlacement struct {
	NS           string // a collection or a database
	At           uint64
	WholeCluster bool // of all namespaces
	UntilNow     bool // and at any time since
}

func (m *GetHistoricalPlacement) fields(c *codec) {
	c.on("_configsvrGetHistoricalPlacement", &m.NS)
	c.timestamp("at", required, &m.At)
	c.flag("targetWholeCluster", false, &m.WholeCluster)
	c.flag("untilNow", false, &m.UntilNow)
}

// GetHistoricalPlacementReply lists these shards.
type GetHistoricalPlacementReply struct {
	Shards  []string
	Exact   bool     // otherwise they are those at the time at which the history begins
	Removed []string // of which of them the set that had the data is no longer in the cluster
	Members [][]byte // since then: entries of config.placementHistory (cluster.Membership)
}

func (m *GetHistoricalPlacementReply) fields(c *codec) {
	c.reply("_configsvrGetHistoricalPlacement")
	c.strs("shards", required, &m.Shards)
	c.flag("isExact", false, &m.Exact)
	c.strs("removed", optional, &m.Removed)
	c.docs("members", optional, &m.Members)
}

// AllowMigrations allows or forbids migrations of a collection for an administrator.
type AllowMigrations struct {
	NS    string
	Allow bool
}

func (m *AllowMigrations) fields(c *codec) {
	c.on("_configsvrAllowMigrations", &m.NS)
	c.boolean("allowMigrations", required, &m.Allow)
}

// SetAllowMigrations forbids or allows migrations of a collection.
type SetAllowMigrations struct {
	NS    string
	UUID  [16]byte
	Allow bool
	Run   RunOf

	TimeSeries []byte // the new time series options of a collection of buckets; nil for no change
}

func (m *SetAllowMigrations) fields(c *codec) {
	c.on("_configsvrSetAllowMigrations", &m.NS)
	c.uuid("collectionUUID", &m.UUID)
	c.boolean("allowMigrations", required, &m.Allow)
	m.Run.fields(c)
	c.doc("timeseriesFields", optional, &m.TimeSeries)
}

// RenameMetadata renames a collection in the catalog, replacing the target. It may be sent again.
type RenameMetadata struct {
	NS, To  string
	UUID    [16]byte // the source's
	Sharded bool     // whether the source is sharded
	Target  *[16]byte
	RenamedZones
	Run *RunOf // the collection may have its old name again after it
}

func (m *RenameMetadata) fields(c *codec) {
	c.on("_configsvrRenameCollectionMetadata", &m.NS)
	c.str("to", required, &m.To)
	c.uuid("sourceUUID", &m.UUID)
	c.flag("sourceIsSharded", false, &m.Sharded)
	c.optionalUUID("targetUUID", &m.Target)
	m.zones(c)
	opt(c, "run", &m.Run, func(c *codec, x *RunOf) { x.ids(c) })
}

// RenamedZones tells what becomes of zones when a collection without an entry in the catalog is renamed. Those of one with an entry go along anyway.
type RenamedZones struct {
	MoveZones bool // the source has zones, which replace the target's
	DropZones bool // the target that is dropped has zones, and the source has none
}

func (z *RenamedZones) zones(c *codec) {
	c.flag("moveZones", false, &z.MoveZones)
	c.flag("dropZones", false, &z.DropZones)
}

// RemoveDatabase removes a database from the catalog, if it still has the given version.
type RemoveDatabase struct {
	DB      string
	Version [16]byte // its UUID
}

func (m *RemoveDatabase) fields(c *codec) {
	c.on("_configsvrRemoveDatabase", &m.DB)
	c.uuid("databaseVersion", &m.Version)
}

// CommitChunkSplit splits a chunk at one or several keys.
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

// MergeAllChunksOnShard merges all chunks of a collection on one shard that can be merged. A missing limit means none.
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

// CommitChunkMigration assigns a copied range to its new owner. Version is that of the chunk when the migration
// began: a commit that comes too late finds another version.
type CommitChunkMigration struct {
	NS       string
	From, To string
	Range
	Version  uint64 // major and minor combined; 0 for no comparison
	Epoch    version.Epoch
	Topology uint64 // the topology time of the list of shards in which To was found; 0 for no comparison
}

func (m *CommitChunkMigration) fields(c *codec) {
	c.on("_configsvrCommitChunkMigration", &m.NS)
	c.str("fromShard", required, &m.From)
	c.str("toShard", required, &m.To)
	c.timestamp("toTopologyTime", optional, &m.Topology)
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
	Version version.Chunk
}

func (m *EnsureChunkVersion) fields(c *codec) {
	c.on("_configsvrEnsureChunkVersionIsGreaterThan", &m.NS)
	c.doc("minKey", required, &m.Min)
	c.version("version", &m.Version)
}

// Transfer has the options of a migration's transfer.
type Transfer struct {
	Throttle bool   // each batch waits for secondaries
	Concern  []byte // the write concern for that; nil for the default
}

func (t *Transfer) fields(c *codec) {
	c.flag("secondaryThrottle", false, &t.Throttle)
	c.doc("throttleConcern", optional, &t.Concern)
}

// Range is the keys from Min, inclusive, to Max, exclusive.
type Range struct{ Min, Max []byte }

func (x *Range) fields(c *codec) {
	c.doc("min", required, &x.Min)
	c.doc("max", required, &x.Max)
}

// Move describes what is moved, where to, and how. If a bound is missing, the range extends to MaxBytes of data or to the end of the chunk.
type Move struct {
	NS            string
	To            string // "" in a request to the config server: it chooses
	Min, Max      []byte
	WaitForDelete bool
	MaxBytes      int64 // the collection's chunk size; 0 for no limit
	ForceJumbo    bool  // a range of more than MaxBytes may be moved
	Transfer      Transfer
}

func (x *Move) fields(c *codec) {
	c.str("toShard", optional, &x.To)
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

// ClearJumboFlag allows a chunk to be moved again. The chunk is the one that contains Find, or the one with these Bounds.
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

// BalancerStart enables the balancer.
type BalancerStart struct{}

func (m *BalancerStart) fields(c *codec) { c.plain("_configsvrBalancerStart") }

// BalancerStop disables the balancer.
type BalancerStop struct{}

func (m *BalancerStop) fields(c *codec) { c.plain("_configsvrBalancerStop") }

// BalancerStatus asks for the state of the balancer.
type BalancerStatus struct{}

func (m *BalancerStatus) fields(c *codec) { c.plain("_configsvrBalancerStatus") }

// BalancerCollectionStatus asks whether a collection is balanced.
type BalancerCollectionStatus struct{ NS string }

func (m *BalancerCollectionStatus) fields(c *codec) {
	c.on("_configsvrBalancerCollectionStatus", &m.NS)
}

// ConfigureBalancing changes a collection's balancing settings. Fields that are not sent remain unchanged.
type ConfigureBalancing struct {
	NS        string
	ChunkMB   *int64 // 0 resets it to the cluster's chunk size
	Balance   *bool
	AutoMerge *bool
	// Defragment starts a defragmentation, or stops the current one.
	Defragment *bool
}

func (m *ConfigureBalancing) fields(c *codec) {
	c.on("_configsvrConfigureCollectionBalancing", &m.NS)
	c.optionalInt64("chunkSize", &m.ChunkMB)
	c.optionalBool("enableBalancing", &m.Balance)
	c.optionalBool("enableAutoMerger", &m.AutoMerge)
	c.optionalBool("defragmentCollection", &m.Defragment)
}

// AddShardToZone adds a shard to a zone.
type AddShardToZone struct{ Shard, Zone string }

func (m *AddShardToZone) fields(c *codec) {
	c.on("_configsvrAddShardToZone", &m.Shard)
	c.str("zone", required, &m.Zone)
}

// RemoveShardFromZone removes a shard from a zone.
type RemoveShardFromZone struct{ Shard, Zone string }

func (m *RemoveShardFromZone) fields(c *codec) {
	c.on("_configsvrRemoveShardFromZone", &m.Shard)
	c.str("zone", required, &m.Zone)
}

// UpdateZoneKeyRange assigns a range to a zone, or to none.
type UpdateZoneKeyRange struct {
	NS string
	Range
	Zone string // "" removes the range from its zone
}

func (m *UpdateZoneKeyRange) fields(c *codec) {
	c.on("_configsvrUpdateZoneKeyRange", &m.NS)
	m.Range.fields(c)
	c.str("zone", optional, &m.Zone)
}

// HoldsCriticalSection asks the coordinator of a DDL whether a run still holds its critical sections or, with Forward, whether
// it is still going forward: one that is being undone holds its sections, but requests no more changes.
type HoldsCriticalSection struct {
	ID      [16]byte
	Forward bool
	Phase   string // in which the run has to be; empty for any
}

func (m *HoldsCriticalSection) fields(c *codec) {
	c.command("_holdsCriticalSection", UUID, func() value.Value { return value.NewBinary(4, m.ID[:]) },
		func(v value.Value) { copy(m.ID[:], v.Bytes()) })
	c.flag("forward", false, &m.Forward)
	c.str("phase", optional, &m.Phase)
}

// PartPhases has, for operations that let others use their names before they end, the phases in which shards do their parts, in the order in which a run reaches them. In the other phases the names
// may be others'.
var PartPhases = map[string][]string{
	"dropDatabase": {"dropDatabase"},
	"movePrimary":  {"clone", "blockWrites", "undo"},
}

// PauseLease is the time after which a PauseMigrations that is not repeated lapses.
const PauseLease = 10 * time.Second

// PauseMigrations prevents migrations of a collection from committing until the lease ID ends. Sent again, it renews the lease.
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

// CreateDatabaseReply has the placement of a database.
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
