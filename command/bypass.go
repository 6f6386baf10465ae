package command

import (
	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/query/value"
)

// mayBypass is the argument by which a member tells others that the client that it serves bypasses write blocks. Of others than members it is refused (memberElements).
const mayBypass = "mayBypassWriteBlocking"

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
	case from.Client.InProcess: // what a run of this process sends
		return value.Lookup(from.Req.Body, mayBypass).Truthy()
	case id == nil || !from.Service.enforces():
		return false
	case id.System && from.Client.Internal:
		return value.Lookup(from.Req.Body, mayBypass).Truthy()
	}
	return id.Grants.AllowCluster(bypassing)
}
