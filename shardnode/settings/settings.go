package settings

import (
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Config is what the settings of a node work with.
type Config struct {
	Engine *storage.Engine
	Docs   *statedoc.Docs
	Params *cluster.Params
	Now    func() time.Time
	// Lone tells whether the node is a member of no replica set.
	Lone func() bool
}

// Settings are those of one node.
type Settings struct {
	Config

	rw      rwDefaults
	block   writeBlock
	cluster clusterParams
	queries querySettings
}

func New(c Config) *Settings { return &Settings{Config: c} }

// Specs are the rows of the commands that set and show them.
func (n *Settings) Specs() (all []command.Spec) {
	for _, s := range [][]command.Spec{n.rwConcernSpecs(), n.clusterParamSpecs(), n.fcvSpecs(), n.writeBlockSpecs(), n.querySettingsSpecs()} {
		all = append(all, s...)
	}
	return all
}

// Load reads what is stored: when the node opens, when it becomes primary, and when another member changed it.
func (n *Settings) Load() error {
	if err := n.rw.load(n); err != nil {
		return err
	}
	if err := n.cluster.load(n); err != nil {
		return err
	}
	n.loadQuerySettings()
	if err := n.block.load(n); err != nil {
		return err
	}
	return n.loadFCV()
}

// StoredIn tells whether settings are kept in a collection.
func StoredIn(ns string) bool { return ns == settingsNS || ns == clusterParamsNS }

// CheckBlocked refuses a client's writes and catalog changes while users may not write.
func (n *Settings) CheckBlocked(op *command.Op) error { return n.block.check(op) }

// CheckTarget is CheckBlocked for the target of $out and $merge, and for a namespace of a bulkWrite.
func (n *Settings) CheckTarget(op *command.Op, ns string) error { return n.block.checkTarget(op, ns) }

// Apply gives an operation the concerns and the time limit that it names none of itself, and refuses a query that may not
// run.
func (n *Settings) Apply(op *command.Op) error {
	if err := n.queries.reject(op); err != nil {
		return err
	}
	n.rw.apply(op)
	n.cluster.limitRead(op)
	return nil
}

// Restrict applies the query settings to a query on a namespace that is about to be planned.
func (n *Settings) Restrict(op *command.Op, ns string, pq *plan.Query) { n.queries.apply(op, ns, pq) }

// OfQuery are the settings of the query that an operation runs; nil for none.
func (n *Settings) OfQuery(op *command.Op) []byte { return n.queries.of(op) }

// ClusterParameter is a parameter's value: the stored document with its name and time, or what it is before it is set.
func (n *Settings) ClusterParameter(name string) []byte { return n.cluster.get(name) }

// AppendConcerns appends the default concerns as getDefaultRWConcern answers them.
func (n *Settings) AppendConcerns(dst []byte) []byte { return n.rw.append(dst) }

// needSet refuses on a standalone server what only replica sets have.
func (n *Settings) needSet(what string) error {
	if n.Lone() {
		return mongoerr.Newf(51300, "'%s' is not supported on standalone nodes.", what)
	}
	return nil
}
