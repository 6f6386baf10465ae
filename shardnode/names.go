package shardnode

import (
	"strings"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// checkNewName checks the name of a collection to be made.
func checkNewName(ns string) error {
	coll := catalog.CollOf(ns)
	switch {
	case len(ns) > command.MaxNamespace:
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Fully qualified namespace is too long. Namespace: %s Max: %d", ns, command.MaxNamespace)
	case strings.Contains(coll, "$") && !strings.HasPrefix(coll, "$cmd"), strings.HasPrefix(coll, "."):
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid collection name: %s", coll)
	case strings.HasPrefix(coll, "system.") && !systemCollection(ns):
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid system namespace: %s", ns)
	}
	return nil
}

// systemCollection lists the names that begin with "system." and may exist.
func systemCollection(ns string) bool {
	db, coll := catalog.DBOf(ns), catalog.CollOf(ns)
	switch coll {
	case "system.js", "system.profile", "system.views", "system.users", "system.roles", "system.version", "system.keys",
		"system.new_users", "system.backup_users", "system.buckets", "system.sessions", "system.indexBuilds", "system.preimages",
		"system.replset", "system.rollback.id", "system.resharding":
		return true
	}
	return strings.HasPrefix(coll, "system.buckets.") || db == "config" || db == "local" || db == "admin"
}

func showNumber(v value.Value) string { return value.Show(v) }
