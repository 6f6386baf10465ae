package command

import (
	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
)

var bypassing = auth.Actions("bypassWriteBlockingMode")

// BypassesWriteBlock reports whether the operation's client may write while users are blocked (setUserWriteBlockMode): it has the privilege, or a member says so of the client that it serves. Without
// authorization nobody does.
func (op *Op) BypassesWriteBlock() bool {
	from := op
	for from.Client.InProcess && from.parentOp != nil {
		from = from.parentOp
	}
	id := from.Client.login.Load()
	switch {
	case from.Client.InProcess: // sent by this process under a context that is no operation's
		if from.parent != nil {
			if bypasses, serves := from.parent.Value(cluster.BypassesWriteBlock).(bool); serves {
				return bypasses
			}
		}
		return value.Lookup(from.Req.Body, msg.BypassesWriteBlock).Truthy()
	case id == nil || !from.Service.enforces():
		return false
	case id.System && from.Client.Internal:
		return value.Lookup(from.Req.Body, msg.BypassesWriteBlock).Truthy()
	}
	return id.Grants.AllowCluster(bypassing)
}
