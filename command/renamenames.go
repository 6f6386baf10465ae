package command

import (
	"strings"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// MaxNamespace is the maximum length of a namespace.
const MaxNamespace = 255

// maxShardedNamespace is the maximum length of the namespace of a sharded collection.
const maxShardedNamespace = 235

// CheckShardedNamespace checks the length of a sharded collection's namespace.
func CheckShardedNamespace(ns string) error {
	if len(ns) > maxShardedNamespace {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Fully qualified namespace is too long. Namespace: %s Max: %d", ns, maxShardedNamespace)
	}
	return nil
}

// CheckFullName checks a namespace given as one string.
func CheckFullName(ns string) error {
	db, coll, ok := strings.Cut(ns, ".")
	if !ok || db == "" || len(db) >= 64 || strings.ContainsAny(db, "/\\ \"\x00") || CheckCollName(db, coll) != nil {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified '%s'", ns)
	}
	return nil
}

// CheckRename checks the names of a renameCollection, given as database.collection each.
func CheckRename(from, to string) error {
	for _, ns := range []string{from, to} {
		if err := CheckFullName(ns); err != nil {
			return err
		}
	}
	illegal := func(format string, args ...any) error {
		return mongoerr.Newf(mongoerr.IllegalOperation, format, args...)
	}
	for i, ns := range []string{from, to} {
		side := []string{"source", "target"}[i]
		db, coll, _ := strings.Cut(ns, ".")
		switch {
		case len(ns) > MaxNamespace:
			return illegal("error with %s namespace: Fully qualified namespace is too long. Namespace: %s Max: %d", side, ns, MaxNamespace)
		case strings.Contains(ns, "$"):
			return illegal("error with %s namespace: Invalid namespace: %s", side, ns)
		case db == "local" && strings.HasPrefix(coll, "oplog."):
			return illegal("Cannot rename collections to or from the oplog")
		case strings.HasPrefix(coll, "system.") && !movableSystem(db, coll), ns == "config.transactions":
			return illegal("error with %s namespace: Cannot rename system collections: %s", side, ns)
		}
	}
	if strings.HasPrefix(from, "local.") != strings.HasPrefix(to, "local.") {
		return illegal("Cannot rename collections between a replicated and an unreplicated database")
	}
	return nil
}

// movableSystem reports whether a system collection may be renamed, as tools that restore a dump do.
func movableSystem(db, coll string) bool {
	return db == "admin" && (strings.HasPrefix(coll, "system.new_users") || strings.HasPrefix(coll, "system.backup_users"))
}
