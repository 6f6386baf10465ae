package write

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// checkIdentityWrite returns an error for a client's change to a shard's identity. On a node that is not, or does not
// run as, a shard, an administrator may repair the document.
func checkIdentityWrite(w *Command, ns string, doc []byte) error {
	if ns != migration.IdentityNS || w.Op.Client.Internal || w.Op.Client.InProcess || w.writer.node.Sharding() == nil || value.Lookup(doc, "_id").Str() != "shardIdentity" {
		return nil
	}
	return mongoerr.New(40070, "cannot change or delete the shardIdentity document of a shard")
}
