package namespace

import (
	"strings"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// CheckNew checks the name of a collection to be created.
func CheckNew(ns string) error {
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

// systemCollection reports whether a name that begins with "system." may exist.
func systemCollection(ns string) bool {
	db, coll := catalog.DBOf(ns), catalog.CollOf(ns)
	switch coll {
	case "system.js", "system.profile", "system.views", "system.users", "system.roles", "system.version", "system.keys",
		"system.new_users", "system.backup_users", "system.buckets", "system.sessions", "system.indexBuilds", "system.preimages",
		"system.replset", "system.rollback.id", "system.resharding":
		return true
	}
	restored := strings.HasPrefix(coll, "system.new_users") || strings.HasPrefix(coll, "system.backup_users") // by tools, see command.CheckRename
	return strings.HasPrefix(coll, "system.buckets.") || db == "admin" && restored || db == "config" || db == "local"
}

// CheckCreate refuses names under which a write may not create a collection.
func CheckCreate(ns string) error {
	if err := command.CheckDBName(catalog.DBOf(ns)); err != nil {
		return err
	}
	return CheckNew(ns)
}

// CheckUUID compares a namespace's collection with the UUID that the client expects it to have.
func CheckUUID(cat *catalog.Snapshot, ns string, want catalog.UUID) error {
	if c := cat.Lookup(ns); c != nil && c.UUID == want {
		return nil
	}
	return UUIDMismatch(cat, ns, want)
}

// UUIDMismatch returns the error of a command whose collection does not have the UUID that the client expects. It says which collection of the database has.
func UUIDMismatch(cat *catalog.Snapshot, ns string, want catalog.UUID) error {
	actual := value.NewNull()
	if c := cat.LookupUUID(want); c != nil && c.DB() == catalog.DBOf(ns) {
		actual = value.NewString(c.Name())
	}
	return mongoerr.New(mongoerr.CollectionUUIDMismatch, "Collection UUID does not match that specified").WithDetails(value.Doc(
		value.F("db", value.NewString(catalog.DBOf(ns))), value.F("collectionUUID", want.Value()),
		value.F("expectedCollection", value.NewString(catalog.CollOf(ns))), value.F("actualCollection", actual)))
}

// CheckCollectionUUID is CheckUUID for a command's collectionUUID argument.
func CheckCollectionUUID(op *command.Op, cat *catalog.Snapshot, ns string) error {
	if !op.Req.Spec.Has("collectionUUID") { // bulkWrite: it has one for each of its namespaces
		return nil
	}
	id, err := op.Req.UUID("collectionUUID")
	if err != nil || id == nil {
		return err
	}
	return CheckUUID(cat, ns, *id)
}

// CheckDBCase refuses a database whose name differs from another's only in case.
func CheckDBCase(cat *catalog.Snapshot, db string) error {
	if cat.HasDatabase(db) {
		return nil
	}
	for _, have := range cat.Databases() {
		if strings.EqualFold(have, db) {
			return mongoerr.Newf(mongoerr.DatabaseDifferCase, "db already exists with different case already have: [%s] trying to create [%s]", have, db)
		}
	}
	return nil
}

// NotFound returns the error of DDL commands for a namespace that does not exist.
func NotFound(ns string) error {
	return mongoerr.Newf(mongoerr.NamespaceNotFound, "ns does not exist: %s", ns)
}

// NotOnView returns the error of commands on collections for a view.
func NotOnView(ns string) error {
	return mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", ns)
}

// IsSystemDB reports whether a namespace is in a database that is reserved for the server.
func IsSystemDB(ns string) bool {
	switch catalog.DBOf(ns) {
	case "admin", "config", "local":
		return true
	}
	return false
}
