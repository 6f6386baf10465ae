package settings

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Config has the settings' dependencies on their node.
type Config struct {
	Engine *storage.Engine
	Docs   *statedoc.Docs
	Locks  *lock.Manager // writers hold their collections in IX
	Params *cluster.Params
	Now    func() time.Time
	Audit  *command.Audit // nil without an audit log
	// Lone reports whether the node is not a member of a replica set.
	Lone func() bool
	// IsShard reports whether the node is part of a shard of a cluster.
	IsShard func() bool
	// Cluster returns the cluster of which the node is a shard; nil on other nodes, and on the config server.
	Cluster func() Cluster
	// Drain makes the index builds of users' databases fail with an error, and waits for their end and that of the DDL of users' databases that has begun.
	Drain func(ctx context.Context, why error) error
	// Coordinate has the whole cluster store a setting that a client has sent to the config server; nil on other nodes. It sends this node's part back as the node's own command.
	Coordinate func(op *command.Op, setting msg.Message) error
}

// Settings holds the settings of one node.
type Settings struct {
	Config

	rw      rwDefaults
	block   writeBlock
	cluster clusterParams
	queries querySettings
	order   order
}

func New(c Config) *Settings {
	st := &Settings{Config: c}
	st.cluster.audit = c.Audit
	return st
}

// Specs returns the rows of the commands that set and show them.
func (st *Settings) Specs() (all []command.Spec) {
	for _, s := range [][]command.Spec{st.rwConcernSpecs(), st.clusterParamSpecs(), st.fcvSpecs(), st.writeBlockSpecs(), st.querySettingsSpecs()} {
		all = append(all, s...)
	}
	return all
}

// Load reads the stored settings: when the node opens, when it becomes primary, and when another member has changed them.
func (st *Settings) Load() error {
	st.order.changes.Add(1)
	if err := st.rw.load(st); err != nil {
		return err
	}
	if err := st.cluster.load(st); err != nil {
		return err
	}
	st.loadQuerySettings()
	if err := st.block.load(st); err != nil {
		return err
	}
	return st.loadFCV()
}

// StoredIn reports whether settings are stored in a collection.
func StoredIn(ns string) bool { return ns == settingsNS || ns == clusterParamsNS }

// CheckBlocked returns an error for a client's writes and catalog changes while users' writes are blocked.
func (st *Settings) CheckBlocked(op *command.Op) error { return st.block.check(op) }

// CheckTarget is CheckBlocked for the target of $out and $merge, for a namespace of a bulkWrite, and for what a command has locked.
func (st *Settings) CheckTarget(op *command.Op, ns string) error { return st.block.checkTarget(op, ns) }

// Apply applies the default concerns and time limit to an operation that has none itself, and returns an error for a
// rejected query.
func (st *Settings) Apply(op *command.Op) error {
	if err := st.queries.reject(op); err != nil {
		return err
	}
	st.rw.apply(op)
	st.cluster.limitRead(op)
	return nil
}

// Restrict applies the query settings to a query on a namespace that is about to be planned.
func (st *Settings) Restrict(op *command.Op, ns string, pq *plan.Query) { st.queries.apply(op, ns, pq) }

// OfQuery returns the settings of the query that an operation runs; nil for none.
func (st *Settings) OfQuery(op *command.Op) []byte { return st.queries.of(op) }

// ClusterParameter returns a parameter's value: the stored document with its name and time, or the initial
// value.
func (st *Settings) ClusterParameter(name string) []byte { return st.cluster.get(name) }

// AppendConcerns appends the default concerns as getDefaultRWConcern returns them.
func (st *Settings) AppendConcerns(dst []byte) []byte { return st.rw.append(dst) }

// coordinated reports whether a command concerns the whole cluster, and is not the node's own part of it. It has been carried out then, if err is nil.
func (st *Settings) coordinated(op *command.Op, setting msg.Message) (is bool, err error) {
	if st.Coordinate == nil || op.Client.Own {
		return false, nil
	}
	if err := st.Coordinate(op, setting); err != nil {
		return true, err
	}
	op.AdvanceOperationTime(uint64(st.Engine.Visible()))
	return true, nil
}

// needSet returns an error on a standalone server, and for a client on a shard.
func (st *Settings) needSet(op *command.Op, what string) error {
	if st.Lone() {
		return mongoerr.Newf(51300, "'%s' is not supported on standalone nodes.", what)
	}
	return st.checkNotOnShard(op, false, 51301, "'"+what+"' is not supported on shard nodes.")
}

// checkNotOnShard refuses a client's command on a shard, which would have a setting of its own then: those of a cluster are set through a router. With config it is
// refused on the config server, too.
func (st *Settings) checkNotOnShard(op *command.Op, config bool, code mongoerr.Code, message string) error {
	onConfig := op.Service.Role == command.Config
	if op.Client.Internal || op.Client.InProcess || onConfig && !config || !onConfig && !st.IsShard() {
		return nil
	}
	return mongoerr.New(code, message)
}
