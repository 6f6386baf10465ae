package msg

import "github.com/shoaldb/shoal/query/value"

// Resharding: a collection gets another key, or other shards. Its coordinator is the config server's primary.

// The commands that request a resharding.
const (
	ReshardCollection = "reshardCollection"
	MoveCollection    = "moveCollection"
	UnshardCollection = "unshardCollection"
)

// Reshard describes the target state of a collection.
type Reshard struct {
	Provenance string // ReshardCollection, MoveCollection or UnshardCollection
	Key        []byte // nil if it is to be on one shard
	To         string // that shard; "" lets the config server choose
	Chunks     int64  // the initial number; 0 lets the config server choose
	Samples    int64  // the number of documents that are sampled for each chunk; 0 lets the config server choose
	Collation  []byte
	Zones      [][]byte // nil keeps the existing ones, if the key remains the same
	Index      []byte   // the specification of the index to create if none supports the key; nil is that of the key's fields
	Force      bool     // the key may be the current one
	// Distribution are documents of a shard and, optionally, the range of the new key that it takes; nil spreads the collection over all shards.
	Distribution [][]byte
}

func (x *Reshard) fields(c *codec) {
	c.str("provenance", required, &x.Provenance)
	c.doc("key", optional, &x.Key)
	c.str("toShard", optional, &x.To)
	c.int64("numInitialChunks", optional, &x.Chunks)
	c.int64("numSamplesPerChunk", optional, &x.Samples)
	c.doc("collation", optional, &x.Collation)
	c.docs("zones", optional, &x.Zones)
	c.doc("keyIndex", optional, &x.Index)
	c.flag("forceRedistribution", false, &x.Force)
	c.docs("shardDistribution", optional, &x.Distribution)
}

// ShardReshard makes the primary shard of the database lock the collection's name for a resharding.
type ShardReshard struct {
	NS string
	Reshard
}

func (m *ShardReshard) fields(c *codec) {
	c.on("_shardsvrReshardCollection", &m.NS)
	m.Reshard.fields(c)
}

// ReshardFound has the state before a resharding. For a time series collection: its buckets, which are resharded, and the request in terms
// of buckets.
type ReshardFound struct {
	Buckets string // their namespace; "" for other collections
	Key     []byte
	Zones   [][]byte
	Index   []byte
	Ranges  [][]byte // of the request's shardDistribution
}

func (m *ReshardFound) fields(c *codec) {
	c.reply("_shardsvrReshardCollection")
	c.str("bucketsNamespace", optional, &m.Buckets)
	c.doc("bucketsKey", optional, &m.Key)
	c.docs("bucketsZones", optional, &m.Zones)
	c.doc("bucketsKeyIndex", optional, &m.Index)
	c.docs("bucketsDistribution", optional, &m.Ranges)
}

// ConfigReshard reshards a collection. Sent again, it waits for the same operation.
type ConfigReshard struct {
	NS string
	ID [16]byte // of the operation, and of the collection as it will be
	Reshard
}

func (m *ConfigReshard) fields(c *codec) {
	c.on("_configsvrReshardCollection", &m.NS)
	c.uuid("reshardingUUID", &m.ID)
	m.Reshard.fields(c)
}

// ConfigReshardReply is the reply to ConfigReshard once the operation has ended. The operation's error is not an error of the request,
// since the caller would repeat that.
type ConfigReshardReply struct {
	Code  int64 // 0 if the operation has succeeded
	Error string
}

func (m *ConfigReshardReply) fields(c *codec) {
	c.reply("_configsvrReshardCollection")
	c.int64("code", optional, &m.Code)
	c.str("errmsg", optional, &m.Error)
}

// ForgetReshard removes the config server's state of a resharding that has ended.
type ForgetReshard struct {
	NS string
	ID [16]byte
}

func (m *ForgetReshard) fields(c *codec) {
	c.on("_configsvrForgetReshardCollection", &m.NS)
	c.uuid("reshardingUUID", &m.ID)
}

// AbortReshard undoes the resharding of a collection, and returns when that is done.
type AbortReshard struct {
	NS         string
	ID         *[16]byte // of the operation; nil for any
	Provenance string    // "" for any
}

func (m *AbortReshard) fields(c *codec) {
	c.on("_configsvrAbortReshardCollection", &m.NS)
	c.optionalUUID("reshardingUUID", &m.ID)
	c.str("provenance", optional, &m.Provenance)
}

// CommitReshard makes the resharding of a collection block writes now, however much remains to be applied.
type CommitReshard struct {
	NS string
	ID *[16]byte // of the operation; nil for any
}

func (m *CommitReshard) fields(c *codec) {
	c.on("_configsvrCommitReshardCollection", &m.NS)
	c.optionalUUID("reshardingUUID", &m.ID)
}

// CleanupReshard removes the remains of an unknown resharding from the catalog.
type CleanupReshard struct{ NS string }

func (m *CleanupReshard) fields(c *codec) { c.on("_configsvrCleanupReshardCollection", &m.NS) }

// Resharding is common to the commands to participants: the collection, and the operation.
type Resharding struct {
	NS string
	ID [16]byte
}

func (x *Resharding) on(c *codec, command string) {
	c.on(command, &x.NS)
	c.uuid("reshardingUUID", &x.ID)
}

// ReshardDonate makes a shard a donor: it keeps its oplog from now on.
type ReshardDonate struct {
	Resharding
	UUID       [16]byte // of the collection as it is
	Temp       string   // the collection that recipients fill
	Command    []byte   // as currentOp shows it
	Recipients []string
}

func (m *ReshardDonate) fields(c *codec) {
	m.Resharding.on(c, "_shardsvrReshardingDonorStart")
	c.uuid("sourceUUID", &m.UUID)
	c.str("tempNs", required, &m.Temp)
	c.doc("originatingCommand", required, &m.Command)
	c.strs("recipientShards", required, &m.Recipients)
}

// ReshardDonateReply has the time from which the oplog is kept, and the amount of the donor's data.
type ReshardDonateReply struct {
	MinFetch    uint64
	Docs, Bytes int64
}

func (m *ReshardDonateReply) fields(c *codec) {
	c.reply("_shardsvrReshardingDonorStart")
	c.timestamp("minFetchTimestamp", required, &m.MinFetch)
	c.int64("documents", optional, &m.Docs)
	c.int64("bytes", optional, &m.Bytes)
}

// ReshardReceive makes a shard a recipient, which from then on fetches by itself the documents that it will own.
type ReshardReceive struct {
	Resharding
	UUID        [16]byte // of the collection as it is
	Temp        string
	Command     []byte // as currentOp shows it
	Donors      []string
	CloneAt     uint64 // the time of the snapshot that is fetched first
	Docs, Bytes int64  // the estimated amount of data that it will have
}

func (m *ReshardReceive) fields(c *codec) {
	m.Resharding.on(c, "_shardsvrReshardingRecipientStart")
	c.uuid("sourceUUID", &m.UUID)
	c.str("tempNs", required, &m.Temp)
	c.doc("originatingCommand", required, &m.Command)
	c.strs("donorShards", required, &m.Donors)
	c.timestamp("cloneTimestamp", required, &m.CloneAt)
	c.int64("approxDocumentsToCopy", optional, &m.Docs)
	c.int64("approxBytesToCopy", optional, &m.Bytes)
}

// ReshardProgress asks a recipient for its progress.
type ReshardProgress struct{ Resharding }

func (m *ReshardProgress) fields(c *codec) { m.Resharding.on(c, "_shardsvrReshardingOperationTime") }

// ReshardProgressReply is the reply to ReshardProgress.
type ReshardProgressReply struct {
	State     string
	Code      int64 // of the error that ended its work; 0 for none
	Error     string
	Elapsed   int64 // milliseconds
	Remaining int64 // milliseconds until it has caught up; -1 if unknown
	Docs      int64 // cloned
	Bytes     int64
}

func (m *ReshardProgressReply) fields(c *codec) {
	c.reply("_shardsvrReshardingOperationTime")
	c.str("state", required, &m.State)
	c.int64("code", optional, &m.Code)
	c.str("errmsg", optional, &m.Error)
	c.int64("elapsedMillis", optional, &m.Elapsed)
	c.int64("remainingMillis", optional, &m.Remaining)
	c.int64("documentsCopied", optional, &m.Docs)
	c.int64("bytesCopied", optional, &m.Bytes)
}

// ReshardFinish informs a recipient that writes to the collection have ended. It replies when it has all of them
// durably.
type ReshardFinish struct{ Resharding }

func (m *ReshardFinish) fields(c *codec) { m.Resharding.on(c, "_shardsvrReshardingRecipientFinish") }

// ReshardEnd ends a shard's part. If the operation was aborted, the received documents are dropped.
type ReshardEnd struct {
	Resharding
	Temp      string
	Committed bool
}

func (m *ReshardEnd) fields(c *codec) {
	m.Resharding.on(c, "_shardsvrReshardingEnd")
	c.str("tempNs", required, &m.Temp)
	c.boolean("committed", required, &m.Committed)
}

// ReshardFetchDocuments asks a donor for documents as of the clone's time that the recipient will own.
type ReshardFetchDocuments struct {
	Resharding
	Recipient string
	At        uint64
	After     value.Value // the RecordId after which to continue; missing for the beginning
}

func (m *ReshardFetchDocuments) fields(c *codec) {
	m.Resharding.on(c, "_shardsvrReshardingFetchDocuments")
	c.str("recipient", required, &m.Recipient)
	c.timestamp("atClusterTime", required, &m.At)
	c.any("after", &m.After)
}

// ReshardFetchDocumentsReply has some documents, and the position at which to continue; without one, it is the last
// reply.
type ReshardFetchDocumentsReply struct {
	Documents []byte // an array
	Next      value.Value
}

func (m *ReshardFetchDocumentsReply) fields(c *codec) {
	c.reply("_shardsvrReshardingFetchDocuments")
	c.array("documents", Documents, &m.Documents)
	c.any("next", &m.Next)
}

// ReshardFetchChanges asks a donor for the documents that were written after a time of its oplog. Final is set once the donor has
// blocked writes. Ahead is set by a recipient that fetches their _ids alone, as Rest: it has not cloned yet, or has more of them than it has applied.
type ReshardFetchChanges struct {
	Resharding
	Recipient string
	After     uint64
	Stored    uint64 // the time with which the recipient's next primary may continue: the donor keeps its oplog from there on
	Final     bool
	Ahead     bool
	IDs       [][]byte // of documents that are still to be sent, instead of those in the oplog; nil for none
}

func (m *ReshardFetchChanges) fields(c *codec) {
	m.Resharding.on(c, "_shardsvrReshardingFetchChanges")
	c.str("recipient", required, &m.Recipient)
	c.timestamp("after", required, &m.After)
	c.timestamp("stored", required, &m.Stored)
	c.boolean("final", optional, &m.Final)
	c.boolean("ahead", optional, &m.Ahead)
	c.docs("ids", optional, &m.IDs)
}

// ReshardFetchChangesReply has the documents as they are now.
type ReshardFetchChangesReply struct {
	Deleted [][]byte // documents with only an _id, which the recipient must not have from this donor
	Reload  [][]byte
	Rest    [][]byte // documents with only an _id, for those that did not fit
	UpTo    uint64   // of the oplog, when all of them have been fetched
	Now     uint64   // the donor's newest commit
	Entries int64    // of the oplog, about the collection
	More    bool     // there is more already
	// Oldest is the _id before which a capped collection has no documents; missing for others, and for an empty one. What such a collection
	// removes is not in the oplog.
	Oldest value.Value
}

func (m *ReshardFetchChangesReply) fields(c *codec) {
	c.reply("_shardsvrReshardingFetchChanges")
	c.docs("deleted", required, &m.Deleted)
	c.docs("reload", required, &m.Reload)
	c.docs("rest", optional, &m.Rest)
	c.timestamp("upTo", required, &m.UpTo)
	c.timestamp("now", required, &m.Now)
	c.int64("entries", optional, &m.Entries)
	c.boolean("more", required, &m.More)
	c.any("oldest", &m.Oldest)
}

// ReshardFetchSessions asks a donor for the history of its retryable writes.
type ReshardFetchSessions struct {
	Resharding
	Recipient string
	Reading   int64 // as the donor has named it
	Parts     int64 // the number of its parts that the recipient has; 0 begins a new reading
}

func (m *ReshardFetchSessions) fields(c *codec) {
	m.Resharding.on(c, "_shardsvrReshardingFetchSessions")
	c.str("recipient", required, &m.Recipient)
	c.int64("reading", optional, &m.Reading)
	c.int64("parts", optional, &m.Parts)
}

// ReshardFetchSessionsReply has a part of the history of sessions.
type ReshardFetchSessionsReply struct {
	Sessions []byte // an array of entries of the oplog
	Reading  int64
	More     bool // there is more at this moment
	Restart  bool // the reading belonged to another primary, or fell behind the oplog: the recipient begins a new one
}

func (m *ReshardFetchSessionsReply) fields(c *codec) {
	c.reply("_shardsvrReshardingFetchSessions")
	c.array("sessions", Documents, &m.Sessions)
	c.int64("reading", optional, &m.Reading)
	c.boolean("more", optional, &m.More)
	c.boolean("restart", optional, &m.Restart)
}
