package msg

import "github.com/shoaldb/shoal/query/value"

// Commands from routers to the primary shard of a database, which coordinates them, and the content of its state documents.

// ShardDropCollection drops a collection on all its shards.
type ShardDropCollection struct {
	DB, Coll string
	UUID     *[16]byte // the UUID that the client expects; nil if it sent none
}

func (m *ShardDropCollection) fields(c *codec) {
	c.on("_shardsvrDropCollection", &m.Coll)
	c.sentTo(&m.DB)
	c.optionalUUID("collectionUUID", &m.UUID)
}

// DropFound has the state before a drop.
type DropFound struct {
	UUID    [16]byte
	Indexes int64
	Shards  []string // all shards of the cluster then, the coordinator last; only that one with Alone
	Buckets string   // the namespace of the buckets of a time series collection that is dropped; "" for others
	Zones   bool     // there is no entry in the catalog, but zones
	Alone   bool     // no other shard is concerned
}

func (m *DropFound) fields(c *codec) {
	c.reply("_shardsvrDropCollection")
	c.uuid("collectionUUID", &m.UUID)
	c.int64("nIndexesWas", optional, &m.Indexes)
	c.strs("shards", required, &m.Shards)
	c.str("bucketsNamespace", optional, &m.Buckets)
	c.flag("zones", false, &m.Zones)
	c.flag("alone", false, &m.Alone)
}

// ShardDropDatabase drops a database on all shards.
type ShardDropDatabase struct{ DB string }

func (m *ShardDropDatabase) fields(c *codec) {
	c.plain("_shardsvrDropDatabase")
	c.sentTo(&m.DB)
}

// Tracked is a collection that has an entry in the catalog.
type Tracked struct {
	NS   string
	UUID [16]byte
}

// DropDatabaseFound has the state before a drop of a database.
type DropDatabaseFound struct {
	Version     [16]byte // the UUID of the database's version
	Collections []Tracked
	Shards      []string // all shards of the cluster then, the coordinator last
}

func (m *DropDatabaseFound) fields(c *codec) {
	c.reply("_shardsvrDropDatabase")
	c.uuid("databaseVersion", &m.Version)
	subs(c, "collections", &m.Collections, func(c *codec, x *Tracked) {
		c.str("ns", required, &x.NS)
		c.uuid("uuid", &x.UUID)
	})
	c.strs("shards", required, &m.Shards)
}

// ShardRename renames a collection on all its shards.
type ShardRename struct {
	NS, To     string
	DropTarget value.Value // as the client sent it
	StayTemp   bool
	UUID       *[16]byte // the UUID that the client expects the source to have; nil if it sent none
	// Out means that an $out puts its temporary collection in place of its target. Then Options and Indexes are what listCollections and
	// listIndexes have returned of the target before, nil if there was none: they must not have changed.
	Out     bool
	Options []byte
	Indexes [][]byte
}

func (m *ShardRename) fields(c *codec) {
	c.on("_shardsvrRenameCollection", &m.NS)
	c.str("to", required, &m.To)
	c.any("dropTarget", &m.DropTarget)
	c.boolean("stayTemp", optional, &m.StayTemp)
	c.optionalUUID("collectionUUID", &m.UUID)
	c.flag("out", false, &m.Out)
	c.doc("targetOptions", optional, &m.Options)
	c.docs("targetIndexes", optional, &m.Indexes)
}

// RenameFound has the state before a rename.
type RenameFound struct {
	UUID    [16]byte // the source's
	Sharded bool     // whether the source is sharded
	Target  *[16]byte
	Shards  []string // all shards of the cluster then, the coordinator last; only that one with Alone
	Alone   bool     // no other shard is concerned
	Copied  bool     // this shard has copied the source into another database, and the zones remain to be renamed
	RenamedZones
}

func (m *RenameFound) fields(c *codec) {
	c.reply("_shardsvrRenameCollection")
	c.uuid("sourceUUID", &m.UUID)
	c.flag("sourceIsSharded", false, &m.Sharded)
	c.optionalUUID("targetUUID", &m.Target)
	c.strs("shards", required, &m.Shards)
	c.flag("alone", false, &m.Alone)
	c.flag("copied", false, &m.Copied)
	m.zones(c)
}

// ShardShardCollection shards a collection.
type ShardShardCollection struct{ ShardCollection }

func (m *ShardShardCollection) fields(c *codec) {
	c.on("_shardsvrShardCollection", &m.NS)
	m.arguments(c)
}

// ShardRefine extends a collection's shard key by more fields.
type ShardRefine struct {
	NS      string
	Key     []byte
	Enforce bool // refuse unique indexes of which the new key is not a prefix
}

func (m *ShardRefine) fields(c *codec) {
	c.on("_shardsvrRefineCollectionShardKey", &m.NS)
	c.doc("key", required, &m.Key)
	c.flag("enforceUniquenessCheck", true, &m.Enforce)
}

// RefineFound has the state before a refinement of a shard key.
type RefineFound struct {
	UUID     [16]byte
	Key      []byte   // the old key
	Unique   bool     // whether the key is unique
	Epoch    [12]byte // the collection's current epoch
	NewEpoch [12]byte // the epoch afterwards
	Shards   []string // all shards of the cluster then, the coordinator last

	// Of a time series collection: the namespace of its buckets, and the new key in terms of buckets.
	Buckets   string
	BucketKey []byte
}

func (m *RefineFound) fields(c *codec) {
	c.reply("_shardsvrRefineCollectionShardKey")
	c.uuid("collectionUUID", &m.UUID)
	c.doc("oldKey", required, &m.Key)
	c.flag("unique", false, &m.Unique)
	c.objectID("oldEpoch", required, &m.Epoch)
	c.objectID("newEpoch", required, &m.NewEpoch)
	c.strs("shards", required, &m.Shards)
	c.str("bucketsNamespace", optional, &m.Buckets)
	c.doc("bucketsKey", optional, &m.BucketKey)
}

// CommitRefine extends a collection's shard key in the catalog, if it still has the given epoch. It may be sent again.
type CommitRefine struct {
	NS       string
	UUID     [16]byte
	Key      []byte
	Epoch    [12]byte // the epoch that the collection must have
	NewEpoch [12]byte
	Run      RunOf
}

func (m *CommitRefine) fields(c *codec) {
	c.on("_configsvrCommitRefineCollectionShardKey", &m.NS)
	c.uuid("collectionUUID", &m.UUID)
	c.doc("key", required, &m.Key)
	c.objectID("oldEpoch", required, &m.Epoch)
	c.objectID("newEpoch", required, &m.NewEpoch)
	m.Run.fields(c)
}

// ValidateShardKey asks a shard whether its indexes of a collection support a key as shard key.
type ValidateShardKey struct {
	NS      string
	UUID    [16]byte
	Key     []byte
	Unique  bool
	Enforce bool
	Confirm bool // the shard makes sure that it has not been deposed, which it cannot without a majority
}

func (m *ValidateShardKey) fields(c *codec) {
	c.on("_shardsvrValidateShardKeyCandidate", &m.NS)
	c.uuid("collectionUUID", &m.UUID)
	c.doc("key", required, &m.Key)
	c.flag("unique", false, &m.Unique)
	c.flag("enforceUniquenessCheck", true, &m.Enforce)
	c.flag("confirmPrimary", false, &m.Confirm)
}

// ShardFound has the state before a shardCollection.
type ShardFound struct {
	Looked  bool // the name is locked, and the following fields are set
	Existed bool // there was a collection before
	UUID    [16]byte
	Options []byte
	Indexes [][]byte
	Empty   bool

	NewEpoch [12]byte // the epoch afterwards
	Shards   []string // all shards of the cluster then, the coordinator last
	Home     string   // the shard that the catalog has placed the collection on; "" if it has no entry
	NewIndex string   // the name of the index that the key needs on an existing collection; "" if there is one

	// Of a time series collection: the namespace of its buckets, which are what is sharded, and the key in terms of buckets.
	Buckets   string
	BucketKey []byte
}

func (m *ShardFound) fields(c *codec) {
	c.reply("_shardsvrShardCollection")
	c.flag("looked", false, &m.Looked)
	c.flag("existed", false, &m.Existed)
	c.uuid("collectionUUID", &m.UUID)
	c.doc("options", optional, &m.Options)
	c.docs("indexes", optional, &m.Indexes)
	c.flag("empty", false, &m.Empty)
	c.objectID("newEpoch", required, &m.NewEpoch)
	c.strs("shards", required, &m.Shards)
	c.str("home", optional, &m.Home)
	c.str("newIndex", optional, &m.NewIndex)
	c.str("bucketsNamespace", optional, &m.Buckets)
	c.doc("bucketsKey", optional, &m.BucketKey)
}

// ShardMovePrimary moves a database to another primary shard, which is named by its id.
type ShardMovePrimary struct{ DB, To string }

func (m *ShardMovePrimary) fields(c *codec) {
	c.plain("_shardsvrMovePrimary")
	c.sentTo(&m.DB)
	c.str("toShardId", required, &m.To)
}

// MovedCollection is a collection of a database that is moved.
type MovedCollection struct {
	NS      string
	UUID    [16]byte
	Sharded bool // its documents are not moved
	// Definition is a hash of the options and indexes.
	Definition int64
}

// MovePrimaryFound has the state before a movePrimary.
type MovePrimaryFound struct {
	Version     []byte // the database's
	From        string // the old primary shard
	Topology    uint64 // the topology time of the list of shards in which the new one was found; 0 if not known
	Attempt     uint64 // the time of the clone; 0 before it
	History     uint64 // the time up to which the new primary shard has the history of sessions; 0 before it has all of it
	Collections []MovedCollection
}

func (m *MovePrimaryFound) fields(c *codec) {
	c.reply("_shardsvrMovePrimary")
	c.doc("databaseVersion", required, &m.Version)
	c.str("from", optional, &m.From)
	c.timestamp("toTopologyTime", optional, &m.Topology)
	c.timestamp("attempt", optional, &m.Attempt)
	c.timestamp("history", optional, &m.History)
	subs(c, "collections", &m.Collections, func(c *codec, x *MovedCollection) {
		c.str("ns", required, &x.NS)
		c.uuid("uuid", &x.UUID)
		c.flag("sharded", false, &x.Sharded)
		c.int64("definition", optional, &x.Definition)
	})
}

// CommitMovePrimary sets a database's new primary shard, if the database still has the given version. It may be sent again, and arrive late.
type CommitMovePrimary struct {
	DB, To   string
	Version  []byte // the version that the database had
	Topology uint64 // the topology time of the list of shards in which To was found; 0 for no comparison
	Run      *RunOf
	Undo     bool // the run is being undone: To, the former primary shard, becomes it again if the run has changed it
}

func (m *CommitMovePrimary) fields(c *codec) {
	c.on("_configsvrCommitMovePrimary", &m.DB)
	c.doc("expectedDatabaseVersion", required, &m.Version)
	c.str("to", required, &m.To)
	c.timestamp("toTopologyTime", optional, &m.Topology)
	opt(c, "run", &m.Run, func(c *codec, x *RunOf) { x.ids(c) })
	c.flag("undo", false, &m.Undo)
}

// MovePrimaryStore sends a part of a database to its new primary shard. The parts of an attempt are numbered and stored once each, in
// order. It may be sent again, and arrive late.
type MovePrimaryStore struct {
	DB      string
	Section [16]byte // of the run that must hold the database
	Attempt uint64   // a time; a later attempt replaces an earlier one
	Part    int64    // 0 begins the attempt
	UpTo    uint64   // what was written up to then has been sent with this part
	Durable bool     // everything up to this part is to be durable

	NS     string // of the collection that the part is about; "" for none
	UUID   [16]byte
	Drop   bool // drop any collection of that name first
	Create bool // then create the collection
	// Of the collection that is created.
	Options []byte
	Indexes [][]byte

	Oldest  value.Value // the _id before which a capped collection has no documents; missing for no change
	Deleted []byte      // array of documents that have an _id
	Stored  []byte      // array of documents
	Fresh   bool        // they are of the clone: the collection has none of them
}

func (m *MovePrimaryStore) fields(c *codec) {
	c.on("_shardsvrMovePrimaryStore", &m.DB)
	c.uuid("section", &m.Section)
	c.timestamp("attempt", required, &m.Attempt)
	c.int64("part", required, &m.Part)
	c.timestamp("upTo", required, &m.UpTo)
	c.flag("durable", false, &m.Durable)
	c.str("ns", optional, &m.NS)
	c.uuid("uuid", &m.UUID)
	c.flag("drop", false, &m.Drop)
	c.flag("create", false, &m.Create)
	c.doc("options", optional, &m.Options)
	c.docs("indexes", optional, &m.Indexes)
	c.any("oldest", &m.Oldest)
	c.array("deleted", Documents, &m.Deleted)
	c.array("stored", Documents, &m.Stored)
	c.flag("fresh", false, &m.Fresh)
}

// MovePrimaryStoreReply has the progress of the new primary shard.
type MovePrimaryStoreReply struct {
	Part int64
	UpTo uint64
}

func (m *MovePrimaryStoreReply) fields(c *codec) {
	c.reply("_shardsvrMovePrimaryStore")
	c.int64("part", required, &m.Part)
	c.timestamp("upTo", required, &m.UpTo)
}

// MovePrimaryForget discards what the new primary shard of a database keeps about an attempt.
type MovePrimaryForget struct {
	DB      string
	Section [16]byte
}

func (m *MovePrimaryForget) fields(c *codec) {
	c.on("_shardsvrMovePrimaryForget", &m.DB)
	c.uuid("section", &m.Section)
}

// AdoptSessions sends a shard the history of retryable writes of another one.
type AdoptSessions struct{ Sessions []byte }

func (m *AdoptSessions) fields(c *codec) {
	c.plain("_shardsvrAdoptSessions")
	c.array("sessions", Documents, &m.Sessions)
}

// CheckConsistency makes the primary shard of a database compare the catalog with what the shards have.
type CheckConsistency struct {
	DB      string
	Coll    string // "" is all
	Indexes bool
	LockMS  *int64 // time limit for the locks; nil for that of DDL
}

func (m *CheckConsistency) fields(c *codec) {
	c.plain("_shardsvrCheckMetadataConsistency")
	c.sentTo(&m.DB)
	c.str("collection", optional, &m.Coll)
	c.flag("checkIndexes", false, &m.Indexes)
	c.optionalInt64("dbMetadataLockMaxTimeMS", &m.LockMS)
}

// CheckConsistencyReply has the inconsistencies that were found.
type CheckConsistencyReply struct{ Found [][]byte }

func (m *CheckConsistencyReply) fields(c *codec) {
	c.reply("_shardsvrCheckMetadataConsistency")
	c.docs("inconsistencies", required, &m.Found)
}

// ShardCommand is a client's command about one collection that the primary shard of its database executes under the collection's DDL
// lock, on all shards that have the collection.
type ShardCommand struct {
	DB, Coll string
	Command  []byte // without the arguments that any command may have
}

func (m *ShardCommand) rest(c *codec) {
	c.sentTo(&m.DB)
	c.doc("command", required, &m.Command)
}

// ShardCreate creates a collection or view.
type ShardCreate struct{ ShardCommand }

func (m *ShardCreate) fields(c *codec) {
	c.on("_shardsvrCreateCollection", &m.Coll)
	m.rest(c)
}

// ShardConvertToCapped makes a collection capped.
type ShardConvertToCapped struct{ ShardCommand }

func (m *ShardConvertToCapped) fields(c *codec) {
	c.on("_shardsvrConvertToCapped", &m.Coll)
	m.rest(c)
}

// ConvertFound has the state before a convertToCapped of a collection that moveCollection or unshardCollection has placed.
type ConvertFound struct {
	UUID, NewUUID [16]byte // the collection's, and that of its capped copy
	NewEpoch      [12]byte // the epoch afterwards
	Home          string   // the shard that has the documents
	Shards        []string // all shards of the cluster then, the coordinator last
}

func (m *ConvertFound) fields(c *codec) {
	c.reply("_shardsvrConvertToCapped")
	c.uuid("collectionUUID", &m.UUID)
	c.uuid("targetUUID", &m.NewUUID)
	c.objectID("newEpoch", required, &m.NewEpoch)
	c.str("home", required, &m.Home)
	c.strs("shards", required, &m.Shards)
}

// ConvertToCappedParticipant puts a capped copy in place of a shard's part of a collection, and makes the copy if there is none. It may be sent again.
type ConvertToCappedParticipant struct {
	NS            string
	UUID, NewUUID [16]byte // the collection's, and that of its copy
	Size          value.Value
	FromMigrate   bool     // change streams get the event from another shard's entry
	Section       [16]byte // the run that must hold the name; with Discard it need not any more
	Copy          bool     // make the copy, and no more
	Discard       bool     // drop the copy, and no more
}

func (m *ConvertToCappedParticipant) fields(c *codec) {
	c.on("_shardsvrConvertToCappedParticipant", &m.NS)
	c.uuid("collectionUUID", &m.UUID)
	c.uuid("targetUUID", &m.NewUUID)
	c.any("size", &m.Size)
	c.flag("fromMigrate", false, &m.FromMigrate)
	c.uuid("section", &m.Section)
	c.flag("copy", false, &m.Copy)
	c.flag("discard", false, &m.Discard)
}

// ReplaceUnsplittable gives a collection that is not sharded another UUID in the catalog. It may be sent again.
type ReplaceUnsplittable struct {
	NS            string
	UUID, NewUUID [16]byte
	NewEpoch      [12]byte
}

func (m *ReplaceUnsplittable) fields(c *codec) {
	c.on("_configsvrReplaceUnsplittableCollection", &m.NS)
	c.uuid("collectionUUID", &m.UUID)
	c.uuid("targetUUID", &m.NewUUID)
	c.objectID("newEpoch", required, &m.NewEpoch)
}

// ShardCollMod changes the options of a collection or its indexes.
type ShardCollMod struct{ ShardCommand }

func (m *ShardCollMod) fields(c *codec) {
	c.on("_shardsvrCollMod", &m.Coll)
	m.rest(c)
}

// ShardDropIndexes drops indexes.
type ShardDropIndexes struct{ ShardCommand }

func (m *ShardDropIndexes) fields(c *codec) {
	c.on("_shardsvrDropIndexes", &m.Coll)
	m.rest(c)
}

// ShardCreateIndexes creates indexes.
type ShardCreateIndexes struct{ ShardCommand }

func (m *ShardCreateIndexes) fields(c *codec) {
	c.on("_shardsvrCreateIndexes", &m.Coll)
	m.rest(c)
}

// CheckCommand makes a shard check whether it would execute a client's command that changes a collection. Nothing is changed.
type CheckCommand struct {
	ShardCommand
	Unfinished []string // indexes that serve no shard key yet, since what creates them may be undone
	Builds     [][]byte // createIndexes commands in progress that a dropIndexes would end; they may not have begun on this shard
}

func (m *CheckCommand) fields(c *codec) {
	c.on("_shardsvrCheckCommand", &m.Coll)
	m.rest(c)
	c.strs("unfinishedIndexes", optional, &m.Unfinished)
	c.docs("builds", optional, &m.Builds)
}

// CheckCommandReply describes what the command would do.
type CheckCommandReply struct {
	Missing []string // the names of the indexes that a createIndexes would create, or that a dropIndexes lists and the collection does not have
	Indexes int64    // the number of the collection's indexes, for a dropIndexes
	Enforce []byte   // the key of the index that a collMod would make refuse duplicates; nil for none
	Changes []byte   // what a collMod would report as changed; nil for nothing
}

func (m *CheckCommandReply) fields(c *codec) {
	c.reply("_shardsvrCheckCommand")
	c.strs("missing", optional, &m.Missing)
	c.int64("nIndexes", optional, &m.Indexes)
	c.doc("enforcesKey", optional, &m.Enforce)
	c.doc("changes", optional, &m.Changes)
}

// ShardUntrack removes the catalog's entry of a collection that is not sharded.
type ShardUntrack struct{ NS string }

func (m *ShardUntrack) fields(c *codec) { c.on("_shardsvrUntrackUnsplittableCollection", &m.NS) }

// UntrackFound has the state before an untrackUnshardedCollection.
type UntrackFound struct {
	UUID    [16]byte
	Shards  []string // all shards of the cluster then, the coordinator last
	Buckets string   // the namespace of the buckets of a time series collection; "" for others
}

func (m *UntrackFound) fields(c *codec) {
	c.reply("_shardsvrUntrackUnsplittableCollection")
	c.uuid("collectionUUID", &m.UUID)
	c.strs("shards", required, &m.Shards)
	c.str("bucketsNamespace", optional, &m.Buckets)
}

// ShardIndexes are indexes of a shard.
type ShardIndexes struct {
	Shard string
	Names []string
}

// ShardCount is a number of a shard.
type ShardCount struct {
	Shard string
	N     int64
}

// ShardAnswer is a shard's reply to a client's command.
type ShardAnswer struct {
	Shard string
	Reply []byte
}

// ForwardFound has the state before a client's command, and the shards' replies.
type ForwardFound struct {
	UUID    [16]byte
	Shards  []string
	Home    string // the shard of a collection that is not sharded
	Idle    string // this shard, if it has the collection but owns no part of it: its reply is not returned to clients
	Answers []ShardAnswer
	Missing []ShardIndexes // what a createIndexes creates, and what a dropIndexes lists that a shard does not have
	Buckets string         // the name of the buckets of a time series collection; "" for others
	Ended   []string       // the indexes whose builds a dropIndexes has ended
	Nothing bool           // it has nothing else to do
	Were    []ShardCount   // the number of indexes of each shard that has some of those that a dropIndexes names, before it
	Changes []ShardAnswer  // what a collMod changes, by the shards' ids
	Was     int64          // the number of indexes before a dropIndexes that an earlier version has begun, which did not tell shards apart
}

func (m *ForwardFound) fields(c *codec) {
	c.reply("_shardsvrCollMod")
	c.uuid("collectionUUID", &m.UUID)
	c.strs("shards", required, &m.Shards)
	c.str("home", optional, &m.Home)
	subs(c, "answers", &m.Answers, func(c *codec, x *ShardAnswer) {
		c.str("shard", required, &x.Shard)
		c.doc("reply", required, &x.Reply)
	})
	c.str("idle", optional, &m.Idle)
	c.str("buckets", optional, &m.Buckets)
	c.strs("endedBuilds", optional, &m.Ended)
	c.flag("nothing", false, &m.Nothing)
	subs(c, "nIndexesWere", &m.Were, func(c *codec, x *ShardCount) {
		c.str("shard", required, &x.Shard)
		c.int64("n", required, &x.N)
	})
	c.int64("nIndexesWas", optional, &m.Was)
	subs(c, "changes", &m.Changes, func(c *codec, x *ShardAnswer) {
		c.str("shard", required, &x.Shard)
		c.doc("reply", required, &x.Reply)
	})
	subs(c, "missing", &m.Missing, func(c *codec, x *ShardIndexes) {
		c.str("shard", required, &x.Shard)
		c.strs("names", required, &x.Names)
	})
}
