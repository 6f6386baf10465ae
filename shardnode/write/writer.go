package write

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
)

// Config has the dependencies of a Writer.
type Config struct {
	Engine   *storage.Engine
	Set      replication.Set
	Docs     *statedoc.Docs
	Params   *cluster.Params
	Points   *cluster.FailPoints // nil for none
	Service  *command.Service
	Exec     *exec.Executor
	Compiled *namespace.Cache
	Locks    *lock.Manager
	Txns     *txn.Manager
	Counts   *command.Opcounters
	Now      func() time.Time
	// ListMemory limits the bytes of a statement's list of records in memory, beyond which it continues in a file; 0 is
	// 1 MB.
	ListMemory int
}

// Node is a Writer's interface to the node that it runs on.
type Node interface {
	// Lone reports whether the node is not a member of a replica set: then it has no retryable writes.
	Lone() bool
	// NotPrimary returns the error of a write on a member that is not primary; nil on the primary.
	NotPrimary() error
	// CheckConcern checks whether a write concern can be satisfied.
	CheckConcern(op *command.Op, wc command.WriteConcern) error
	// AskPrimary makes the set's primary run a command.
	AskPrimary(ctx context.Context, cmd []byte) (reply []byte, err error)
	// Sharding returns the node's part in a cluster; nil if the node is not a shard.
	Sharding() Sharding
	// CheckBlocked returns an error for an operation's write to a namespace while users' writes are blocked.
	CheckBlocked(op *command.Op, ns string) error
	// Observes reports whether an operation on a database may be recorded by the profiler.
	Observes(db string) bool
	// Notes reports whether the log or the profiler records a statement of this duration on a database.
	Notes(db string, took time.Duration) bool
	// NoteStatement reports a statement to the log and the profiler.
	NoteStatement(op *command.Op, x *Executed)
	// ReplyCursor replies with a cursor over documents, of which the first batch holds at most size.
	ReplyCursor(op *command.Op, dst []byte, ns string, docs [][]byte, size int64) ([]byte, error)
}

// Sharding is the node's part in the sharding protocols as writes need it.
type Sharding interface {
	// CheckVersion returns StaleConfig or StaleDbVersion if the request's versions are not this shard's.
	CheckVersion(op *command.Op, ns string) error
	// CheckUntracked returns StaleConfig if the sharding catalog has an entry for a collection of which the request is not
	// aware.
	CheckUntracked(op *command.Op, ns string) error
	// CheckTarget returns StaleConfig or StaleDbVersion if a collection without an entry in the sharding catalog is not written to on this
	// shard. It ignores the request's versions, which are of another collection.
	CheckTarget(op *command.Op, ns string) error
	// Sharded reports whether a collection is sharded, as far as this shard knows.
	Sharded(op *command.Op, ns string) bool
	// Ownership returns a filter that rejects documents of other shards; nil if there is nothing to filter.
	Ownership(op *command.Op, c *catalog.Collection) func(doc []byte) (bool, error)
	// ReadFilter is Ownership for a command's own collection, with the routing table of the filter, nil for none;
	// it returns StaleConfig if the request's version is not this shard's.
	ReadFilter(op *command.Op, c *catalog.Collection) (owned func(doc []byte) (bool, error), table *cluster.ChunkMap, err error)
	// CheckUpdate returns an error for changes of a document's shard key that are not allowed, and for those that move
	// the document.
	CheckUpdate(op *command.Op, c *catalog.Collection, old, next []byte, multi bool) error
	// CheckUpsert returns an error for a new document that belongs to another shard.
	CheckUpsert(op *command.Op, ns string, doc []byte) error
	// DocumentKey returns the function that makes the document keys in a sharded collection's oplog entries; nil
	// if the key is the _id alone.
	DocumentKey(op *command.Op, ns string) func(doc []byte) []byte
	// NoteWritten counts an inserted or rewritten document for the chunk that it belongs to.
	NoteWritten(ns string, doc []byte)
}

// Writer executes the write commands of one node.
type Writer struct {
	Config
	node Node

	filledTS atomic.Uint64 // the last timestamp that replaced an empty one
	buckets  openBuckets
}

// New makes the writer of a node.
func New(c Config, node Node) *Writer {
	return &Writer{Config: c, node: node}
}

// Specs returns the rows of the commands that write documents.
func (wr *Writer) Specs() []command.Spec {
	return []command.Spec{insertSpec(wr), updateSpec(wr), deleteSpec(wr), findAndModifySpec(wr), bulkWriteSpec(wr), applyOpsSpec(wr)}
}

// ForgetBuckets clears the list of open buckets: another primary may have written to them.
func (wr *Writer) ForgetBuckets() { wr.buckets.clear() }

// MayWrite returns an error for a write on a member that does not accept writes. The node's own work also writes while
// the node steps up: for it the commit decides. The local database is the member's own.
func (wr *Writer) MayWrite(op *command.Op) error {
	if op.Client.Own || op.Req.DB == "local" {
		return nil
	}
	return wr.node.NotPrimary()
}

// checkVersions compares the versions in a request with this shard's. A request that names a time series collection assumes that the
// sharding catalog has no entry for its buckets.
func (wr *Writer) checkVersions(op *command.Op, ns string) error {
	s := wr.node.Sharding()
	if s == nil || (op.Req.ShardVersion == nil && op.Req.DatabaseVer == nil) {
		return nil
	}
	if err := s.CheckVersion(op, ns); err != nil {
		return err
	}
	if b := namespace.Buckets(wr.Engine.Catalog(), ns); b != nil && op.Req.ShardVersion != nil {
		return s.CheckUntracked(op, b.NS)
	}
	return nil
}
