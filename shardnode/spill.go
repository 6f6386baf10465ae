package shardnode

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/extsort"
	"github.com/shoaldb/shoal/storage/spill"
)

// nodeEnv implements exec.Env for the node.
type nodeEnv struct{ n *Node }

func (e nodeEnv) Planning(c *catalog.Collection) *exec.Planning { return e.n.metas.Of(c).Plans }

func (e nodeEnv) Restrict(op *command.Op, ns string, pq *plan.Query) {
	e.n.settings.Restrict(op, ns, pq)
}

func (e nodeEnv) QuerySettings(op *command.Op) []byte { return e.n.settings.OfQuery(op) }

func (e nodeEnv) Observes(op *command.Op) bool { return e.n.profiler.Observes(op.Req.DB) }

func (e nodeEnv) Now() (ms int64, cluster uint64) {
	if e.n.lone() {
		return e.n.now().UnixMilli(), 0 // a standalone server has no $$CLUSTER_TIME
	}
	return e.n.now().UnixMilli(), uint64(e.n.Engine.Visible())
}

func (e nodeEnv) SortMemory() int64 {
	if e.n.Params == nil {
		return 100 << 20
	}
	return e.n.Params.Int("internalQueryMaxBlockingSortMemoryUsageBytes")
}

func (e nodeEnv) Spill() extsort.Store { return e.n.spillStore() }

// spillStore returns the store for data that exceeds an operation's memory limit.
func (n *Node) spillStore() extsort.Store { return spill.Dir(n.TempDir) }

// limitLists applies the memory limits of accumulators that build lists.
func limitLists(p *cluster.Params, l *exec.Lang) {
	if p != nil {
		l.Env.MaxPushBytes, l.Env.MaxAddToSetBytes = p.ListMemory()
	}
}

// mayUseDisk reports whether a command may use files, by its allowDiskUse or the parameter allowDiskUseByDefault.
func mayUseDisk(p *cluster.Params, v value.Value) bool {
	if v.IsMissing() && p != nil {
		return p.Bool("allowDiskUseByDefault")
	}
	return v.IsMissing() || v.Truthy()
}

// maxStages returns the maximum number of stages of a client's pipeline; 0, no limit, for a pipeline from a router, which has checked it.
func maxStages(p *cluster.Params, fromRouter bool) int {
	if p == nil || fromRouter {
		return 0
	}
	return int(p.Int("internalPipelineLengthLimit"))
}

// stageMemory returns the number of bytes that a stage of a pipeline may hold.
func (n *Node) stageMemory(stage string) int64 {
	if n.Params == nil {
		return 100 << 20
	}
	return n.Params.StageMemory(stage)
}
