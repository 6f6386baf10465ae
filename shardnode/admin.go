package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// adminState is what administration commands set on a node, by the file that keeps it.
type adminState struct {
	fsync    fsyncLock
	rw       rwDefaults
	block    writeBlock
	cluster  clusterParams
	profiler profiler
	settings querySettings
}

// registerAdmin adds the administration and diagnostic commands that need the node.
func (n *Node) registerAdmin(t *command.Table) {
	n.admin.profiler.init()
	for _, specs := range [][]command.Spec{
		n.fsyncSpecs(), n.rwConcernSpecs(), n.clusterParamSpecs(), n.fcvSpecs(), n.writeBlockSpecs(),
		n.topSpecs(), n.profileSpecs(), n.lockInfoSpecs(), n.currentOpSpecs(), n.fileSpecs(), n.planCacheSpecs(), n.querySettingsSpecs(),
		n.txns.Specs(), n.txns.MovedWriteSpecs(),
	} {
		t.Add(specs...)
	}
}

// loadAdmin reads the stored part of the administration's state: when the node opens, when it becomes primary, and when
// another member changed it.
func (n *Node) loadAdmin() error {
	if err := n.admin.rw.load(n); err != nil {
		return err
	}
	if err := n.admin.cluster.load(n); err != nil {
		return err
	}
	n.loadQuerySettings()
	if err := n.admin.block.load(n); err != nil {
		return err
	}
	return n.loadFCV()
}

// admit is asked before every command runs: whether users may write, and what concerns it runs with.
func (n *Node) admit(op *command.Op) error {
	if err := n.admin.block.check(op); err != nil {
		return err
	}
	if err := n.Repl.CheckRole(op); err != nil {
		return err
	}
	if err := n.admin.settings.reject(op); err != nil {
		return err
	}
	n.admin.rw.apply(op)
	n.admin.cluster.limitRead(op)
	return n.checkAdmitted(op)
}

// adminOnly is the row of a command of the admin database whose own value says nothing.
func adminOnly(name string, run command.Handler, fields ...command.Field) command.Spec {
	return command.Spec{Name: name, Roles: command.All, AdminOnly: true, Fields: fields, Run: run}
}

// needSet refuses on a standalone server what only replica sets have.
func (n *Node) needSet(what string) error {
	if n.Repl == nil || n.Repl.Name == "" {
		return mongoerr.Newf(51300, "'%s' is not supported on standalone nodes.", what)
	}
	return nil
}
