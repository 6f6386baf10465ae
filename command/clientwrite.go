package command

import (
	"strings"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// CheckClientWrite refuses a client's writes to collections that nodes maintain themselves and rely on when they start: view definitions,
// and most of config.system. Writes to config.transactions, and deletions from config.image_collection, are allowed at the client's own
// risk, as on the real server: the sessions of the records are read again. A command that belongs to a session itself may not write
// there. Both routers and shards check, since a shard cannot distinguish a router's own writes from those that it relays.
func CheckClientWrite(op *Op, ns string) error {
	if op.Client.Internal || op.Client.InProcess {
		return nil
	}
	db, coll, _ := strings.Cut(ns, ".")
	drops := op.Req.Spec.Name == "drop"
	switch {
	case coll == "system.views" && !drops,
		db == "config" && strings.HasPrefix(coll, "system.") && coll != "system.sessions",
		ns == "config.transactions" && !writesRecords(op.Req.Spec.Name),
		ns == "config.image_collection" && drops:
		return mongoerr.Newf(mongoerr.InvalidNamespace, "cannot write to %s", ns)
	case ns == "config.transactions" && op.Req.LSID != nil:
		return mongoerr.New(directWriteOnSession, "Direct writes against config.transactions cannot be performed using a transaction or on a session.")
	}
	return nil
}

// ForClient reports whether an operation is executed for a client. Nodes of the cluster attach shard or database versions to operations for clients only, but for what a node
// does by itself on what it owns; a bulkWrite has them in its namespaces.
func (op *Op) ForClient() bool {
	if op.Client.Own {
		return false
	}
	return !op.Client.InProcess && !op.Client.Internal || op.Req.ShardVersion != nil || op.Req.DatabaseVer != nil || op.Req.Spec.Name == "bulkWrite"
}

// writesRecords reports whether a command may write to config.transactions. The state of sessions follows changes to its
// documents, and its drop.
func writesRecords(name string) bool {
	switch name {
	case "insert", "update", "delete", "findAndModify", "bulkWrite", "drop":
		return true
	}
	return false
}

// directWriteOnSession is the real server's code for this.
const directWriteOnSession mongoerr.Code = 40528
