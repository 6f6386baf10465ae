package msg

import "github.com/shoaldb/shoal/query/value"

// Commands from the config server and routers to shards concerning the catalog.

// Join makes a server that was started as a shard join the cluster.
type Join struct {
	Shard     string
	ClusterID [12]byte
	ConfigDB  string // the config server's connection string

	Params [][]byte // the cluster parameters that are set, which take the place of the server's own; nil leaves those
}

func (m *Join) fields(c *codec) {
	c.plain("_addShard")
	c.sub("shardIdentity", func(c *codec) {
		c.str("shardName", required, &m.Shard)
		c.objectID("clusterId", required, &m.ClusterID)
		c.str("configsvrConnectionString", required, &m.ConfigDB)
	})
	c.docs("clusterParameters", optional, &m.Params)
}

// CreateCollectionParticipant creates a collection as it is on another shard: options, UUID and indexes.
type CreateCollectionParticipant struct {
	NS      string
	UUID    [16]byte
	Options []byte
	Indexes [][]byte
	Section *[16]byte // the run that must hold the name, or its database; nil for none
}

func (m *CreateCollectionParticipant) fields(c *codec) {
	c.on("_shardsvrCreateCollectionParticipant", &m.NS)
	c.uuid("uuid", &m.UUID)
	c.doc("options", optional, &m.Options)
	c.docs("indexes", optional, &m.Indexes)
	c.optionalUUID("section", &m.Section)
}

// DropCollectionParticipant drops a shard's part of a collection.
type DropCollectionParticipant struct {
	NS          string
	FromMigrate bool      // change streams get the event from another shard's entry
	Section     *[16]byte // the run that must hold the name; nil for none
	ForGood     bool      // no other shard keeps the collection
}

func (m *DropCollectionParticipant) fields(c *codec) {
	c.on("_shardsvrDropCollectionParticipant", &m.NS)
	c.flag("fromMigrate", false, &m.FromMigrate)
	c.optionalUUID("section", &m.Section)
	c.flag("forGood", false, &m.ForGood)
}

// NotifyShardingEvent makes a shard write the event of a resharding, whose critical section it holds, to its oplog, for change streams. It may be sent again.
type NotifyShardingEvent struct {
	NS    string
	UUID  [16]byte // of the resharding, which is the collection's new one
	Event []byte   // the event's type with the namespace, then its description
}

func (m *NotifyShardingEvent) fields(c *codec) {
	c.on("_shardsvrNotifyShardingEvent", &m.NS)
	c.uuid("uuid", &m.UUID)
	c.doc("event", required, &m.Event)
}

// DropDatabaseParticipant drops a shard's part of a database.
type DropDatabaseParticipant struct {
	DB          string
	FromMigrate bool      // change streams get the event from another shard's entry
	Section     *[16]byte // the run that must hold the name; nil for none
}

func (m *DropDatabaseParticipant) fields(c *codec) {
	c.on("_shardsvrDropDatabaseParticipant", &m.DB)
	c.flag("fromMigrate", false, &m.FromMigrate)
	c.optionalUUID("section", &m.Section)
}

// RenameCollectionParticipant renames a shard's part of a collection.
type RenameCollectionParticipant struct {
	NS, To      string
	UUID        [16]byte // the source's
	StayTemp    bool     // a temporary source remains one
	FromMigrate bool     // change streams get the event from another shard's entry
	Section     [16]byte // the run that must hold the names
	ForGood     bool     // a target that is dropped does not go on under another UUID, as a resharded one does
}

func (m *RenameCollectionParticipant) fields(c *codec) {
	c.on("_shardsvrRenameCollectionParticipant", &m.NS)
	c.str("to", required, &m.To)
	c.uuid("sourceUUID", &m.UUID)
	c.flag("stayTemp", false, &m.StayTemp)
	c.flag("fromMigrate", false, &m.FromMigrate)
	c.uuid("section", &m.Section)
	c.flag("forGood", false, &m.ForGood)
}

// What a ParticipantBlock blocks.
const (
	BlockWrites         = "Writes"
	BlockReadsAndWrites = "ReadsAndWrites"
	Unblock             = "Unblock"
)

// ParticipantBlock begins or ends a critical section around a DDL.
type ParticipantBlock struct {
	NS      string
	Type    string // BlockWrites, BlockReadsAndWrites or Unblock
	Command string // the DDL
	Owner   string // the shard that coordinates it
	ID      [16]byte

	AllCollections bool // for a database: its sharded collections are blocked, too
	// Also are further collections whose sections begin or end in the same unit of work.
	Also []string
	// Term is that of the primary that sends the message on behalf of the run: each primary that continues a run has a later term than those before it, and
	// stores it with the run before it sends anything. A message of an earlier term than the section's has no effect. 0 is sent by earlier versions.
	Term int64
	// At is the time of the run's decision, 0 for a run that begins and ends a section only once: of two messages of a term the later one
	// counts.
	At uint64
	// NoBuilds means that the section is refused while an index of one of its collections is being built.
	NoBuilds bool
}

func (m *ParticipantBlock) fields(c *codec) {
	c.on("_shardsvrParticipantBlock", &m.NS)
	c.str("blockType", required, &m.Type)
	c.sub("reason", func(c *codec) {
		c.str("command", optional, &m.Command)
		c.str("coordinator", required, &m.Owner)
	})
	c.flag("allCollections", false, &m.AllCollections)
	c.strs("also", optional, &m.Also)
	c.uuid("id", &m.ID)
	c.int64("coordinatorTerm", optional, &m.Term)
	c.timestamp("decidedAt", optional, &m.At)
	c.flag("noIndexBuilds", false, &m.NoBuilds)
}

// EndLeftSections makes a shard that has been added again end the critical sections of runs that have ended without it.
type EndLeftSections struct{}

func (m *EndLeftSections) fields(c *codec) { c.plain("_shardsvrEndLeftCriticalSections") }

// FlushRoutingTable informs a shard that the placement of a collection has changed.
type FlushRoutingTable struct{ NS string }

func (m *FlushRoutingTable) fields(c *codec) { c.on("_flushRoutingTableCacheUpdates", &m.NS) }

// FlushDatabase informs a shard that a database was dropped or moved.
type FlushDatabase struct{ DB string }

func (m *FlushDatabase) fields(c *codec) { c.on("_flushDatabaseCacheUpdates", &m.DB) }

// FlushRoutingTableDurably makes a shard's primary read the placement of a collection again and store it.
type FlushRoutingTableDurably struct{ NS string }

func (m *FlushRoutingTableDurably) fields(c *codec) {
	c.on("_flushRoutingTableCacheUpdatesWithWriteConcern", &m.NS)
}

// CheckParticipant asks a shard's primary for the routing table of a collection that it has stored (config.cache.*).
type CheckParticipant struct{ NS string }

func (m *CheckParticipant) fields(c *codec) {
	c.on("_shardsvrCheckMetadataConsistencyParticipant", &m.NS)
}

// CheckParticipantReply describes a stored table.
type CheckParticipantReply struct {
	Entry   []byte // as of config.collections; nil if none is stored, or it is being written
	Version uint64 // of the table that the chunks should be
	Damaged bool   // they are not
	Sum     int64  // of what the chunks are (consistency.Sum)
}

func (m *CheckParticipantReply) fields(c *codec) {
	c.reply("_shardsvrCheckMetadataConsistencyParticipant")
	c.doc("entry", optional, &m.Entry)
	c.timestamp("version", optional, &m.Version)
	c.flag("damaged", false, &m.Damaged)
	c.int64("sum", optional, &m.Sum)
}

// FlushDatabaseDurably is FlushRoutingTableDurably for a database.
type FlushDatabaseDurably struct{ DB string }

func (m *FlushDatabaseDurably) fields(c *codec) {
	c.on("_flushDatabaseCacheUpdatesWithWriteConcern", &m.DB)
}

// FlushReply is the reply to both.
type FlushReply struct{ Visible uint64 } // a time by which what was stored is visible

func (m *FlushReply) fields(c *codec) {
	c.reply("_flushRoutingTableCacheUpdatesWithWriteConcern")
	c.timestamp("visible", required, &m.Visible)
}

// SetClusterParameter sends a shard a cluster parameter as the config server stores it.
type SetClusterParameter struct{ Param []byte }

func (m *SetClusterParameter) fields(c *codec) {
	c.command("_shardsvrSetClusterParameter", Document, func() value.Value { return value.NewDocument(m.Param) },
		func(v value.Value) { m.Param = v.Doc() })
}

// SetOneParameter sets a cluster parameter, {name: value}, as clients do.
type SetOneParameter struct{ Param []byte }

func (m *SetOneParameter) fields(c *codec) {
	c.command("setClusterParameter", Document, func() value.Value { return value.NewDocument(m.Param) },
		func(v value.Value) { m.Param = v.Doc() })
}

// SetUserWriteBlock blocks users' writes, or lets them through, as clients request it.
type SetUserWriteBlock struct {
	Global bool
	Reason string
}

func (m *SetUserWriteBlock) fields(c *codec) {
	c.plain("setUserWriteBlockMode")
	c.boolean("global", required, &m.Global)
	c.str("reason", optional, &m.Reason)
}

// The phases in which users' writes are blocked on a cluster.
const (
	PrepareBlock  = "prepare"  // no new DDL begins
	CompleteBlock = "complete" // nothing is written
)

// ShardSetUserWriteBlock is a node's part in SetUserWriteBlock on a cluster.
type ShardSetUserWriteBlock struct {
	Global bool
	Reason string
	Phase  string
}

func (m *ShardSetUserWriteBlock) fields(c *codec) {
	c.plain("_shardsvrSetUserWriteBlockMode")
	c.boolean("global", required, &m.Global)
	c.str("reason", required, &m.Reason)
	c.str("phase", required, &m.Phase)
}

// SetFeatureVersion sets the feature compatibility version.
type SetFeatureVersion struct {
	Version string
	Confirm bool
}

func (m *SetFeatureVersion) fields(c *codec) {
	c.on("setFeatureCompatibilityVersion", &m.Version)
	c.flag("confirm", false, &m.Confirm)
}

// ShardMoveRange asks the shard that owns a range to move it.
type ShardMoveRange struct {
	Move
	Epoch [12]byte // that of the collection whose range it is
}

func (m *ShardMoveRange) fields(c *codec) {
	c.on("_shardsvrMoveRange", &m.NS)
	m.Move.fields(c)
	c.objectID("epoch", required, &m.Epoch)
}

// ShardMoveRangeReply reports what was moved and how long the donor's steps took.
type ShardMoveRangeReply struct {
	Range
	Docs, Bytes int64
	Steps       []byte // an array of milliseconds
}

func (m *ShardMoveRangeReply) fields(c *codec) {
	c.reply("_shardsvrMoveRange")
	m.Range.fields(c)
	c.int64("docs", optional, &m.Docs)
	c.int64("bytes", optional, &m.Bytes)
	c.array("stepMillis", Array, &m.Steps)
}

// CollectionID identifies a collection in the catalog.
type CollectionID struct {
	NS   string
	UUID [16]byte
}

func (x *CollectionID) fields(c *codec) {
	c.str("ns", required, &x.NS)
	c.uuid("UUID", &x.UUID)
}

// BalancingStats asks a shard for the sizes of its parts of some collections.
type BalancingStats struct{ Collections []CollectionID }

func (m *BalancingStats) fields(c *codec) {
	c.plain("_shardsvrGetStatsForBalancing")
	subs(c, "collections", &m.Collections, func(c *codec, x *CollectionID) { x.fields(c) })
}

// CollectionBytes is the size of a shard's part of a collection, without orphans.
type CollectionBytes struct {
	NS    string
	Bytes int64
}

// BalancingStatsReply has an entry for each collection that was asked for, in the same order.
type BalancingStatsReply struct{ Bytes []CollectionBytes }

func (m *BalancingStatsReply) fields(c *codec) {
	c.reply("_shardsvrGetStatsForBalancing")
	subs(c, "stats", &m.Bytes, func(c *codec, x *CollectionBytes) {
		c.str("namespace", required, &x.NS)
		c.int64("collSize", required, &x.Bytes)
	})
}

// Changes are documents to be deleted, by their _ids, and to be inserted or replaced, in one collection.
type Changes struct {
	Delete []value.Value
	Put    [][]byte
}

func (x *Changes) fields(c *codec) {
	c.values("delete", optional, &x.Delete)
	c.docs("put", optional, &x.Put)
}

// WriteTogether atomically changes documents of one collection, or of two, and notes the placements that this changes.
type WriteTogether struct {
	NS      string
	Changes Changes
	AlsoNS  string // "" if there is no second collection
	Also    Changes
	// Placement are entries of config.placementHistory that are inserted.
	Placement [][]byte
	// Zones are entries of config.tags that are replaced.
	Zones [][]byte
	// Chunks are the _ids of entries of config.chunks that are deleted.
	Chunks []value.Value
	// Analyzers are the _ids of entries of config.queryAnalyzers that are deleted.
	Analyzers []value.Value
}

func (m *WriteTogether) fields(c *codec) {
	c.on("_writeTogether", &m.NS)
	m.Changes.fields(c)
	c.str("alsoNS", optional, &m.AlsoNS)
	c.values("alsoDelete", optional, &m.Also.Delete)
	c.docs("alsoPut", optional, &m.Also.Put)
	c.docs("placement", optional, &m.Placement)
	c.docs("zones", optional, &m.Zones)
	c.values("deleteChunks", optional, &m.Chunks)
	c.values("deleteAnalyzers", optional, &m.Analyzers)
}
