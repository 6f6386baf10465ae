package msg

// Commands between donor and recipient of a migration. All of them may be sent again.

// Migration is common to all of them: the collection, and the id that the donor assigned to the migration.
type Migration struct {
	NS string
	ID [16]byte
}

func (x *Migration) on(c *codec, command string) {
	c.on(command, &x.NS)
	c.uuid("migrationId", &x.ID)
}

// RecvChunkStart makes a shard the recipient of a range; from then on it clones the range by itself.
type RecvChunkStart struct {
	Migration
	From, To string
	Range
	ShardKey []byte
	UUID     [16]byte // of the collection
	Transfer Transfer
}

func (m *RecvChunkStart) fields(c *codec) {
	m.Migration.on(c, "_recvChunkStart")
	c.str("from", required, &m.From)
	c.str("to", optional, &m.To)
	m.Range.fields(c)
	c.doc("shardKeyPattern", required, &m.ShardKey)
	c.uuid("collectionUuid", &m.UUID)
	m.Transfer.fields(c)
}

// RecvChunkStatus asks for the recipient's progress.
type RecvChunkStatus struct{ Migration }

func (m *RecvChunkStatus) fields(c *codec) { m.Migration.on(c, "_recvChunkStatus") }

// RecvChunkStatusReply is the reply to RecvChunkStatus.
type RecvChunkStatusReply struct {
	Active   bool
	NS, From string
	Range
	ShardKey    []byte
	State       string
	Error       string // why it failed
	Cloned      int64  // number of documents
	ClonedBytes int64
}

func (m *RecvChunkStatusReply) fields(c *codec) {
	c.reply("_recvChunkStatus")
	c.boolean("active", required, &m.Active)
	c.str("ns", required, &m.NS)
	c.str("from", required, &m.From)
	m.Range.fields(c)
	c.doc("shardKeyPattern", required, &m.ShardKey)
	c.str("state", required, &m.State)
	c.str("errmsg", optional, &m.Error)
	c.sub("counts", func(c *codec) {
		c.int64("cloned", required, &m.Cloned)
		c.int64("clonedBytes", required, &m.ClonedBytes)
	})
}

// RecvChunkCommit informs the recipient that the range accepts no more writes. The recipient replies once it has the whole
// range durably and is in its critical section. Indexes and options are the donor's: a recipient with different ones refuses.
type RecvChunkCommit struct {
	Migration
	Indexes []byte   // an array of names
	Specs   [][]byte // of the same indexes
	Options []byte   // of the collection
}

func (m *RecvChunkCommit) fields(c *codec) {
	m.Migration.on(c, "_recvChunkCommit")
	c.array("indexes", Array, &m.Indexes)
	c.docs("specs", optional, &m.Specs)
	c.doc("options", optional, &m.Options)
}

// RecvChunkCommitReply has the number of documents in the range.
type RecvChunkCommitReply struct{ Docs int64 }

func (m *RecvChunkCommitReply) fields(c *codec) {
	c.reply("_recvChunkCommit")
	c.int64("docs", required, &m.Docs)
}

// RecvChunkReleaseCritSec informs the recipient that the config server has committed the migration: operations on the collection may continue
// there.
type RecvChunkReleaseCritSec struct{ Migration }

func (m *RecvChunkReleaseCritSec) fields(c *codec) { m.Migration.on(c, "_recvChunkReleaseCritSec") }

// RecvChunkAbort ends the recipient's work.
type RecvChunkAbort struct{ Migration }

func (m *RecvChunkAbort) fields(c *codec) { m.Migration.on(c, "_recvChunkAbort") }

// MigrateClone asks the donor for the next documents of the range, as of the beginning of the migration.
type MigrateClone struct {
	Migration
	Busy bool // the recipient has served clients since its previous request
}

func (m *MigrateClone) fields(c *codec) {
	m.Migration.on(c, "_migrateClone")
	c.flag("busy", false, &m.Busy)
}

// MigrateCloneReply has documents of the range; none once all have been sent.
type MigrateCloneReply struct {
	Objects []byte // an array
	Busy    bool   // the donor has served clients since its previous reply

	Build func(dst []byte) []byte // appends the array's elements in place of Objects
}

func (m *MigrateCloneReply) fields(c *codec) {
	c.reply("_migrateClone")
	c.built("objects", Documents, &m.Objects, m.Build)
	c.flag("busy", false, &m.Busy)
}

// TransferMods asks the donor for the changes to the range since the previous request.
type TransferMods struct{ Migration }

func (m *TransferMods) fields(c *codec) { m.Migration.on(c, "_transferMods") }

// TransferModsReply has changes to the range. More means that there are more to request, even if this reply is empty.
type TransferModsReply struct {
	Deleted [][]byte // documents with only an _id
	Reload  [][]byte // current documents
	More    bool
}

func (m *TransferModsReply) fields(c *codec) {
	c.reply("_transferMods")
	c.docs("deleted", required, &m.Deleted)
	c.docs("reload", required, &m.Reload)
	c.boolean("more", required, &m.More)
}

// GetNextSessionMods asks the donor for the next part of the history of the range's sessions.
type GetNextSessionMods struct{ Migration }

func (m *GetNextSessionMods) fields(c *codec) { m.Migration.on(c, "_getNextSessionMods") }

// GetNextSessionModsReply has entries of the oplog. More means that there are more to request, even if this reply is empty.
type GetNextSessionModsReply struct {
	Oplog []byte // an array
	More  bool
}

func (m *GetNextSessionModsReply) fields(c *codec) {
	c.reply("_getNextSessionMods")
	c.array("oplog", Documents, &m.Oplog)
	c.boolean("more", required, &m.More)
}

// MigrationDecision informs the recipient of the outcome of a migration: whether it owns the range or must delete it.
type MigrationDecision struct {
	Migration
	Committed bool
}

func (m *MigrationDecision) fields(c *codec) {
	m.Migration.on(c, "_shardsvrMigrationDecision")
	c.boolean("committed", required, &m.Committed)
}

// RecreateRangeDeletionTasks makes a shard create range deletion tasks for the ranges of a collection that it does not
// own.
type RecreateRangeDeletionTasks struct {
	NS        string
	SkipEmpty bool // no tasks for ranges without documents
}

func (m *RecreateRangeDeletionTasks) fields(c *codec) {
	c.on("_shardsvrRecreateRangeDeletionTasksParticipant", &m.NS)
	c.flag("skipEmptyRanges", false, &m.SkipEmpty)
}

// AutoSplitVector asks a shard for the keys at which a chunk is split into parts of a size.
type AutoSplitVector struct {
	DB, Coll string
	Key      []byte
	Range
	MaxChunkSizeBytes int64
	Limit             int64 // the maximum number of keys; 0 for no limit
}

func (m *AutoSplitVector) fields(c *codec) {
	c.on("autoSplitVector", &m.Coll)
	c.sentTo(&m.DB)
	c.doc("keyPattern", required, &m.Key)
	m.Range.fields(c)
	c.int64("maxChunkSizeBytes", required, &m.MaxChunkSizeBytes)
	c.int64("limit", optional, &m.Limit)
}

// AutoSplitVectorReply is the reply to AutoSplitVector.
type AutoSplitVectorReply struct {
	Keys [][]byte
	More bool // the reply cannot hold all keys
}

func (m *AutoSplitVectorReply) fields(c *codec) {
	c.reply("autoSplitVector")
	c.docs("splitKeys", required, &m.Keys)
	c.boolean("continuation", required, &m.More)
}
