package ddl

import (
	"context"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/write"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
)

// Node is the catalog commands' interface to the node that they run on.
type Node interface {
	// Lone reports whether the node is not a member of a replica set.
	Lone() bool
	// SetConfig returns the configuration of the node's set, nil if it is in none.
	SetConfig() *replication.SetConfig
	// CheckVersion compares the versions in a request with this shard's, and waits for a critical section.
	CheckVersion(op *command.Op, ns string) error
	// Forget makes the node drop its cached state of a collection, once a unit of work that drops or changes the collection has committed.
	Forget(u *storage.UnitOfWork, c *catalog.Collection)
	// NoteDropped records, in the unit of work that drops collections, that they are gone, for migrations. It is called once per unit.
	NoteDropped(s *storage.Snapshot, u *storage.UnitOfWork, dropped ...*catalog.Collection) error
	// HoldsSection returns an error unless the run of a DDL over shards holds the critical section of a name on this
	// shard, and may still have it do something.
	HoldsSection(ctx context.Context, name string, id catalog.UUID) error
	// RunGoesOn returns an error for a coordinator's message that its run no longer wants executed.
	RunGoesOn(ctx context.Context, ns string, of *msg.RunMessage) error
	// ShardKeyIndexes lists the indexes of a collection that support its shard key, and reports whether the key requires one; none if it is not sharded.
	ShardKeyIndexes(ctx context.Context, c *catalog.Collection) (names []string, required bool, err error)
	// Primary returns an error unless this node accepts writes.
	Primary() error
	// Linearize makes sure, by asking a majority, that this node is the primary.
	Linearize(ctx context.Context) error
	// AwaitMembers waits until met returns true for the members of the set that have applied everything up to ts.
	AwaitMembers(ctx context.Context, ts storage.Timestamp, met func(c *replication.SetConfig, has func(id int) bool) bool) error
	// BuildWaits logs that an index build waits for its commit quorum, and which members are not ready.
	BuildWaits(b *storage.IndexBuild, q replication.CommitQuorum, missing []string)
	// Background runs work that outlives its command.
	Background(f func(life context.Context))
}

// Commands executes the commands that change a node's catalog.
type Commands struct {
	Engine *storage.Engine
	writes *write.Writer
	node   Node

	compaction autoCompaction
}

func New(eng *storage.Engine, writes *write.Writer, node Node) *Commands {
	return &Commands{Engine: eng, writes: writes, node: node}
}

// operation is a catalog command in progress: a write command with further state.
type operation struct {
	*write.Command
	ddl    *Commands
	fenced func(ns string) error // checks under the locks whether a coordinator's message is still valid; nil for a client's command
	// forGood means that no other shard keeps what the message of a coordinator drops.
	forGood bool
	forget  func(u *storage.UnitOfWork) error // stages the removal of further state with the dropped collection; nil for none
	checks  bool                              // the command is only checked: its unit is not committed
	// unfinished are indexes that may be dropped by the undo of what creates them.
	unfinished []string
	builds     [][]byte // createIndexes commands that a dropIndexes would end
	absent     []string // indexes that a dropIndexes lists beside others and the collection does not have
}

// begin checks that the node accepts writes, and reads the write concern.
func (cs *Commands) begin(op *command.Op) (*operation, error) {
	w, err := cs.writes.Begin(op)
	if err != nil {
		return nil, err
	}
	if w.Concern.BeyondMajority() {
		w.Concern = replication.WriteConcern{W: replication.Visible.W, Timeout: w.Concern.Timeout} // for the rest, see unlocked
	}
	return &operation{Command: w, ddl: cs}, nil
}

// beginOn begins the change of one collection: it checks that it has the UUID that the client expects, so that a client that is wrong waits for
// nobody, and locks it.
func (cs *Commands) beginOn(op *command.Op, ns string) (w *operation, unlock func(), err error) {
	if w, err = cs.begin(op); err != nil {
		return nil, nil, err
	}
	if err = w.checkUUID(ns); err != nil {
		return nil, nil, err
	}
	unlock, err = w.lockFor(ns)
	return w, unlock, err
}

// checkUUID checks that a collection has the UUID that the client expects. Only under the collection's lock does the answer hold: while a command waits for
// the lock, the collection may be dropped, and another one be created under its name.
func (w *operation) checkUUID(ns string) error {
	return namespace.CheckCollectionUUID(w.Op, w.Catalog(), ns)
}

// lockFor locks a collection under the version and the UUID that came with the request. If a coordinator has sent the command, its run must still want it.
func (w *operation) lockFor(ns string) (unlock func(), err error) {
	if unlock, err = w.LockVersioned(ns, ns); err != nil {
		return nil, err
	}
	if sent := w.Op.Req.Shared(msg.RunArgument); !sent.IsMissing() {
		of := &msg.RunMessage{}
		if err = msg.Parse(sent.Doc(), of); err == nil {
			err = w.ddl.node.RunGoesOn(w.Op, ns, of)
		}
		w.FromMigrate = w.FromMigrate || of.Idle
	}
	if err == nil {
		err = w.checkUUID(ns)
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// byCoordinator is the argument by which a coordinator identifies its run in a client's command.
var byCoordinator = command.Opt(msg.RunArgument, command.TObject)

// unlocked makes a command wait for members beyond the majority only once it has released its locks: writers of the collection
// must not wait for a member that is down.
func (cs *Commands) unlocked(run command.Handler) command.Handler {
	return func(op *command.Op, dst []byte) ([]byte, error) {
		dst, err := run(op, dst)
		if wc := op.Req.AskedConcern().ForSet(); err == nil && wc.BeyondMajority() && op.Txn == nil && op.WriteConcernError() == nil {
			cs.writes.With(op, wc).Finish()
		}
		return dst, err
	}
}

// Specs returns the rows of the commands that change the catalog.
func (cs *Commands) Specs() []command.Spec {
	specs := append([]command.Spec{
		createSpec(cs), dropSpec(cs), dropDatabaseSpec(cs), renameSpec(cs), renameIfMatchSpec(cs), collModSpec(cs), createIndexesSpec(cs), dropIndexesSpec(cs),
		convertToCappedSpec(cs), cloneAsCappedSpec(cs), compactSpec(cs), autoCompactSpec(cs), reIndexSpec(cs), commitQuorumSpec(cs),
		dropCollectionParticipantSpec(cs), convertParticipantSpec(cs), dropDatabaseParticipantSpec(cs), checkCommandSpec(cs),
	}, cs.encryptionSpecs()...)
	for i := range specs {
		specs[i].Run = cs.unlocked(specs[i].Run)
	}
	return specs
}
