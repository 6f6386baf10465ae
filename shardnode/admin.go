package shardnode

import (
	"sync/atomic"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/shardnode/coordinator"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/resharding"
)

// adminState is the state that administration commands set on a node, grouped by source file.
type adminState struct {
	fsync        fsyncLock
	coordinators atomic.Pointer[coordinator.Coordinators] // nil on a node that is no shard
	resharding   atomic.Pointer[resharding.Manager]       // likewise
}

// registerAdmin adds the administration and diagnostic commands that need the node.
func (n *Node) registerAdmin(t *command.Table) {
	for _, specs := range [][]command.Spec{
		n.fsyncSpecs(), n.settings.Specs(),
		n.topSpecs(), n.profiler.Specs(), n.lockInfoSpecs(), n.currentOpSpecs(), n.fileSpecs(), n.planCacheSpecs(),
		n.txns.Specs(), n.txns.MovedWriteSpecs(), migration.SplitSpecs(n.Engine), migration.StateSpecs(),
	} {
		t.Add(specs...)
	}
}

// admit is called before every command: it checks whether users may write, and applies the default read and write concerns.
func (n *Node) admit(op *command.Op) error {
	if err := n.settings.CheckBlocked(op); err != nil && !coordinator.SentAgain(op) && !op.MayBeRetried() { // these are checked once it is known what has been executed before
		return err
	}
	if err := n.Repl.CheckRole(op); err != nil {
		return err
	}
	if n.lone() {
		if err := n.Repl.CheckUnreplicated(op); err != nil {
			return err
		}
	}
	if err := n.settings.Apply(op); err != nil {
		return err
	}
	return n.checkAdmitted(op)
}
