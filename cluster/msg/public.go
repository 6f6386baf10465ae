package msg

import "github.com/shoaldb/shoal/query/value"

// The commands of this file are open to clients, too: the node that executes one reads it as it does a client's, with a client's errors.
// TestNodesKeepToThePublicCommands compares their fields with the rows of the command table.

// DataSize asks for the size of a range of the shard key. The computation ends once the size exceeds MaxSize.
type DataSize struct {
	NS  string
	Key []byte
	Range
	Estimate bool
	MaxSize  int64
}

func (m *DataSize) fields(c *codec) {
	c.on("dataSize", &m.NS)
	c.doc("keyPattern", required, &m.Key)
	m.Range.fields(c)
	c.flag("estimate", false, &m.Estimate)
	c.int64("maxSize", optional, &m.MaxSize)
}

// DataSizeReply is the reply to DataSize.
type DataSizeReply struct {
	Estimate   bool
	Size       int64
	NumObjects int64
	MaxReached bool
	Millis     int64
}

func (m *DataSizeReply) fields(c *codec) {
	c.reply("dataSize")
	c.flag("estimate", false, &m.Estimate)
	c.int64("size", required, &m.Size)
	c.int64("numObjects", required, &m.NumObjects)
	c.flag("maxReached", false, &m.MaxReached)
	c.int64("millis", optional, &m.Millis)
}

// SplitVector asks for the key in the middle of a chunk.
type SplitVector struct {
	DB, NS string
	Key    []byte
	Range
	Force bool
}

func (m *SplitVector) fields(c *codec) {
	c.on("splitVector", &m.NS)
	c.sentTo(&m.DB)
	c.doc("keyPattern", required, &m.Key)
	m.Range.fields(c)
	c.flag("force", false, &m.Force)
}

// SplitVectorReply is the reply to SplitVector.
type SplitVectorReply struct{ Keys [][]byte }

func (m *SplitVectorReply) fields(c *codec) {
	c.reply("splitVector")
	c.docs("splitKeys", required, &m.Keys)
}

// ListCollections asks for the collections of a database that a filter selects.
type ListCollections struct {
	DB     string
	Filter []byte
}

func (m *ListCollections) fields(c *codec) {
	c.plain("listCollections")
	c.sentTo(&m.DB)
	c.doc("filter", optional, &m.Filter)
}

// ListedUUID returns the UUID of the collection that a reply to ListCollections has first; ok is false if it has none.
func ListedUUID(reply []byte) (uuid [16]byte, ok bool) {
	first := value.Lookup(value.Lookup(value.LookupDoc(reply, "cursor"), "firstBatch").Doc(), "0")
	id := value.Lookup(value.LookupDoc(first.Doc(), "info"), "uuid")
	if ok = id.T == value.Binary && len(id.Bytes()) == len(uuid); ok {
		copy(uuid[:], id.Bytes())
	}
	return uuid, ok
}

// ListIndexes asks for the indexes of a collection.
type ListIndexes struct {
	DB, Coll string
	Builds   bool // show which are being built
}

func (m *ListIndexes) fields(c *codec) {
	c.on("listIndexes", &m.Coll)
	c.flag("includeIndexBuildInfo", false, &m.Builds)
	c.sentTo(&m.DB)
}

// Find reads documents of a collection.
type Find struct {
	NS                       string
	Filter, Sort, Projection []byte // nil for none
	Collation, Let           []byte // nil for none
	Hint                     value.Value
	Limit                    int64  // 0 for none
	BatchSize                int64  // of the first batch, 0 for the usual size
	SingleBatch              bool   // no cursor stays open
	RecordIDs                bool   // documents come with their record ids
	ReadConcern              string // its level, empty for the default
}

func (m *Find) fields(c *codec) {
	c.in("find", &m.NS)
	c.doc("filter", optional, &m.Filter)
	c.doc("sort", optional, &m.Sort)
	c.doc("projection", optional, &m.Projection)
	c.doc("collation", optional, &m.Collation)
	c.doc("let", optional, &m.Let)
	c.any("hint", &m.Hint)
	c.int64("limit", optional, &m.Limit)
	c.int64("batchSize", optional, &m.BatchSize)
	c.flag("singleBatch", false, &m.SingleBatch)
	c.flag("showRecordId", false, &m.RecordIDs)
	c.nested("readConcern", optional, m.ReadConcern == "", func(c *codec) { c.str("level", required, &m.ReadConcern) })
}

// GetMore asks for the next batch of a cursor.
type GetMore struct {
	DB, Coll string
	Cursor   int64
}

func (m *GetMore) fields(c *codec) {
	c.command("getMore", Long, func() value.Value { return value.NewInt64(m.Cursor) }, func(v value.Value) { m.Cursor, _ = v.AsInt64() })
	c.sentTo(&m.DB)
	c.str("collection", required, &m.Coll)
}

// KillCursors closes cursors.
type KillCursors struct {
	DB, Coll string
	Cursors  []value.Value // their numbers
}

func (m *KillCursors) fields(c *codec) {
	c.on("killCursors", &m.Coll)
	c.sentTo(&m.DB)
	c.values("cursors", required, &m.Cursors)
}

// Count counts the documents of a collection.
type Count struct{ DB, Coll string }

func (m *Count) fields(c *codec) {
	c.on("count", &m.Coll)
	c.sentTo(&m.DB)
}

// Aggregate runs a pipeline. What only some pipelines have follows as elements of their own (With).
type Aggregate struct {
	DB       string
	On       value.Value // the collection's name, or Whole
	Pipeline []byte      // as an array
	Cursor   *Cursor     // nil if a client's follows among the elements of its own
	// FromRouter means that the shard is one of several, NeedsMerge that a router merges the pipeline's results.
	FromRouter, NeedsMerge bool
	Constants              []byte // the values of NOW and its like, nil for the shard's own
	Collation              []byte
	Hint                   value.Value
	DiskUse                bool  // allowDiskUse, if it is to be sent
	ViewStages             int64 // how many of the stages are those of a view; 0 for none
}

// Cursor has the options of an aggregate's cursor.
type Cursor struct{ BatchSize int64 } // of the first batch, 0 for the usual size

// Whole is the value of an aggregate on a database as a whole.
func Whole() value.Value { return value.NewInt32(1) }

func (m *Aggregate) fields(c *codec) {
	c.value("aggregate", &m.On)
	c.sentTo(&m.DB)
	c.array("pipeline", Array, &m.Pipeline)
	opt(c, "cursor", &m.Cursor, func(c *codec, x *Cursor) { c.int64("batchSize", optional, &x.BatchSize) })
	c.flag("fromRouter", false, &m.FromRouter)
	c.flag("needsMerge", false, &m.NeedsMerge)
	c.doc("runtimeConstants", optional, &m.Constants)
	c.doc("collation", optional, &m.Collation)
	c.any("hint", &m.Hint)
	c.flag("allowDiskUse", false, &m.DiskUse)
	c.int64("viewStages", optional, &m.ViewStages)
}

// Explain asks how a command would be executed.
type Explain struct {
	DB        string
	Command   []byte
	Verbosity value.Value // missing for the default
}

func (m *Explain) fields(c *codec) {
	c.command("explain", Document, func() value.Value { return value.NewDocument(m.Command) }, func(v value.Value) { m.Command = v.Doc() })
	c.sentTo(&m.DB)
	c.any("verbosity", &m.Verbosity)
}

// ListDatabases asks for the databases of a shard.
type ListDatabases struct{ NameOnly bool }

func (m *ListDatabases) fields(c *codec) {
	c.plain("listDatabases")
	c.flag("nameOnly", false, &m.NameOnly)
}

// Create creates a collection.
type Create struct {
	DB, Coll string
	Temp     bool // the next primary drops it
	// Collation and TimeSeries are nil for none; other options follow as elements of their own (With).
	Collation, TimeSeries []byte
}

func (m *Create) fields(c *codec) {
	c.on("create", &m.Coll)
	c.sentTo(&m.DB)
	c.flag("temp", false, &m.Temp)
	c.doc("collation", optional, &m.Collation)
	c.doc("timeseries", optional, &m.TimeSeries)
}

// CollMod changes a collection's options, which follow as elements of their own (With).
type CollMod struct{ DB, Coll string }

func (m *CollMod) fields(c *codec) {
	c.on("collMod", &m.Coll)
	c.sentTo(&m.DB)
}

// Drop drops a collection.
type Drop struct{ DB, Coll string }

func (m *Drop) fields(c *codec) {
	c.on("drop", &m.Coll)
	c.sentTo(&m.DB)
}

// Rename renames a collection.
type Rename struct {
	From, To   string // namespaces
	DropTarget bool
}

func (m *Rename) fields(c *codec) {
	c.on("renameCollection", &m.From)
	c.str("to", required, &m.To)
	c.flag("dropTarget", false, &m.DropTarget)
}

// RenameIfMatch makes the primary replace the target of a secondary's $out by the collection that it has filled, if the target has not changed.
type RenameIfMatch struct {
	From, To string // namespaces
	There    bool   // whether there was a target, which then had these options and indexes
	Options  []byte
	Indexes  [][]byte
}

func (m *RenameIfMatch) fields(c *codec) {
	c.plain("internalRenameIfOptionsAndIndexesMatch")
	c.str("from", required, &m.From)
	c.str("to", required, &m.To)
	c.flag("targetExists", false, &m.There)
	c.doc("collectionOptions", optional, &m.Options)
	c.docs("indexes", optional, &m.Indexes)
}

// CreateIndexes creates indexes of a collection.
type CreateIndexes struct {
	DB, Coll string
	Indexes  [][]byte
	// Measurements means that Coll has the buckets of a time series collection, and that the indexes are of its measurements.
	Measurements bool
	// Quorum is the commit quorum as a number; nil for the default.
	Quorum *int64
}

// NoQuorum is the commit quorum of indexes that a node creates for itself: they wait for no member that is down.
func NoQuorum() *int64 { return new(int64) }

func (m *CreateIndexes) fields(c *codec) {
	c.on("createIndexes", &m.Coll)
	c.sentTo(&m.DB)
	c.docs("indexes", required, &m.Indexes)
	c.flag("isTimeseriesNamespace", false, &m.Measurements)
	c.optionalInt64("commitQuorum", &m.Quorum)
}

// DropIndex drops an index of a collection.
type DropIndex struct {
	DB, Coll, Index string
	UUID            [16]byte
}

func (m *DropIndex) fields(c *codec) {
	c.on("dropIndexes", &m.Coll)
	c.sentTo(&m.DB)
	c.str("index", required, &m.Index)
	c.uuid("collectionUUID", &m.UUID)
}

// Insert inserts documents.
type Insert struct {
	DB, Coll  string
	Documents []byte // as an array
	Unordered bool   // continues after a document that cannot be inserted
	Bypass    bool   // inserts documents that the collection's validator rejects
	// KeepEmptyTimestamps inserts empty timestamps as they are.
	KeepEmptyTimestamps bool
}

func (m *Insert) fields(c *codec) {
	c.on("insert", &m.Coll)
	c.sentTo(&m.DB)
	c.array("documents", Array, &m.Documents)
	c.ordered(&m.Unordered)
	c.flag("bypassDocumentValidation", false, &m.Bypass)
	c.flag("bypassEmptyTsReplacement", false, &m.KeepEmptyTimestamps)
}

// Update updates documents.
type Update struct {
	DB, Coll  string
	Updates   []UpdateStatement
	Unordered bool   // goes on after a statement that fails
	Bypass    bool   // writes documents that the collection's validator rejects
	Let       []byte // nil for none
}

// UpdateStatement is a statement of Update.
type UpdateStatement struct {
	Query         []byte
	Change        value.Value // operators, a replacement, or a pipeline
	Upsert, Multi bool
	Collation     []byte // nil for the collection's
	// Constants are the variables of a pipeline. With UpsertSupplied, its upsert inserts the variable new; without, the pipeline's result for an
	// empty document.
	Constants      []byte
	UpsertSupplied bool
}

// Size estimates the size of the statement in a command.
func (s *UpdateStatement) Size() int {
	return len(s.Query) + len(s.Change.Bytes()) + len(s.Collation) + len(s.Constants) + 64
}

func (m *Update) fields(c *codec) {
	c.on("update", &m.Coll)
	c.sentTo(&m.DB)
	subs(c, "updates", &m.Updates, func(c *codec, s *UpdateStatement) {
		c.doc("q", required, &s.Query)
		c.any("u", &s.Change)
		c.flag("upsert", false, &s.Upsert)
		c.flag("multi", false, &s.Multi)
		c.doc("collation", optional, &s.Collation)
		c.doc("c", optional, &s.Constants)
		c.flag("upsertSupplied", false, &s.UpsertSupplied)
	})
	c.ordered(&m.Unordered)
	c.flag("bypassDocumentValidation", false, &m.Bypass)
	c.doc("let", optional, &m.Let)
}

// FindAndModify updates one document and returns its previous version.
type FindAndModify struct {
	DB, Coll string
	Query    []byte
	Change   value.Value // operators, a replacement, or a pipeline
	Upsert   bool
}

func (m *FindAndModify) fields(c *codec) {
	c.on("findAndModify", &m.Coll)
	c.sentTo(&m.DB)
	c.doc("query", required, &m.Query)
	c.any("update", &m.Change)
	c.flag("upsert", false, &m.Upsert)
}

// Delete deletes documents.
type Delete struct {
	DB, Coll  string
	Deletes   []DeleteStatement
	Unordered bool // goes on after a statement that fails
}

// DeleteStatement is a statement of Delete.
type DeleteStatement struct {
	Query     []byte
	Limit     int64 // 1 for one document, 0 for all
	Hint      value.Value
	Collation []byte // nil for the collection's
}

func (m *Delete) fields(c *codec) {
	c.on("delete", &m.Coll)
	c.sentTo(&m.DB)
	subs(c, "deletes", &m.Deletes, func(c *codec, s *DeleteStatement) {
		c.doc("q", required, &s.Query)
		c.int64("limit", required, &s.Limit)
		c.any("hint", &s.Hint)
		c.doc("collation", optional, &s.Collation)
	})
	c.ordered(&m.Unordered)
}

// ordered is the field ordered of a write, whose default is true.
func (c *codec) ordered(unordered *bool) {
	in := !*unordered
	c.flag("ordered", true, &in)
	*unordered = !in
}

// CollStats asks for the statistics of a collection.
type CollStats struct{ DB, Coll string }

func (m *CollStats) fields(c *codec) {
	c.on("collStats", &m.Coll)
	c.sentTo(&m.DB)
}

// SetStatus asks a member for the state of its replica set.
type SetStatus struct{}

func (m *SetStatus) fields(c *codec) { c.plain("replSetGetStatus") }

// SetConfig asks a member for the configuration of its replica set.
type SetConfig struct{}

func (m *SetConfig) fields(c *codec) { c.plain("replSetGetConfig") }

// SplitChunk asks a shard to split one of its chunks.
type SplitChunk struct {
	NS, From string // From is the shard that owns the chunk
	Key      []byte
	Epoch    [12]byte
	Range
	Points    [][]byte
	Timestamp uint64 // 0 for none
}

func (m *SplitChunk) fields(c *codec) {
	c.on("splitChunk", &m.NS)
	c.str("from", required, &m.From)
	c.doc("keyPattern", required, &m.Key)
	c.objectID("epoch", required, &m.Epoch)
	m.Range.fields(c)
	c.docs("splitKeys", required, &m.Points)
	c.timestamp("timestamp", optional, &m.Timestamp)
}

// CreateUser creates a user of a database, with roles of the same one.
type CreateUser struct {
	DB, Name, Password string
	Roles              []string
}

func (m *CreateUser) fields(c *codec) {
	c.on("createUser", &m.Name)
	c.sentTo(&m.DB)
	c.str("pwd", required, &m.Password)
	c.strs("roles", required, &m.Roles)
}
