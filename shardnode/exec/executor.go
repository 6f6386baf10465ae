package exec

import (
	"sync/atomic"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/extsort"
)

// Env is the executor's interface to the node that it runs on.
type Env interface {
	// Planning returns the planning state of a version of a collection, which all queries on it share.
	Planning(c *catalog.Collection) *Planning
	// Restrict applies the cluster's query settings to a query on a namespace that is about to be planned.
	Restrict(op *command.Op, ns string, pq *plan.Query)
	// QuerySettings returns the settings of an operation's query, nil if it has none.
	QuerySettings(op *command.Op) []byte
	// Observes reports whether statistics of each stage of an operation's plan are wanted.
	Observes(op *command.Op) bool
	// Now returns the time in milliseconds and the newest cluster time, for the variables of queries.
	Now() (ms int64, cluster uint64)
	// SortMemory returns the number of bytes that a blocking sort may hold.
	SortMemory() int64
	// Spill returns the store for sorts that may use the disk and exceed their memory.
	Spill() extsort.Store
}

// Executor plans and runs the queries of one node. Watch must be called before the first query.
type Executor struct {
	Filters  IndexFilters
	Counters Counters

	env   Env
	knobs atomic.Pointer[planKnobs]
}

// New makes the executor of a node.
func New(env Env) *Executor { return &Executor{env: env} }

// Spill returns the store for data that an operation cannot keep in memory.
func (x *Executor) Spill() extsort.Store { return x.env.Spill() }
