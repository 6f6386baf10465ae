package shardnode

import (
	"strings"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// parseFields reads a document inside a command's arguments by a table of its fields. The values come in the table's
// order; null counts as not sent.
func parseFields(path string, doc []byte, fields []command.Field) ([]value.Value, error) {
	out := make([]value.Value, len(fields))
	for k, v := range value.Elements(doc) {
		i := fieldIndex(fields, k)
		switch {
		case i < 0:
			return nil, command.UnknownField(path + "." + k)
		case v.IsNullish():
		case !fields[i].Types.Accepts(v.T):
			return nil, command.WrongType(path+"."+k, v.T, fields[i].Types)
		default:
			out[i] = v
		}
	}
	for i, f := range fields {
		if f.Required && out[i].IsMissing() {
			return nil, command.MissingField(path + "." + f.Name)
		}
	}
	return out, nil
}

func fieldIndex(fields []command.Field, name string) int {
	for i := range fields {
		if fields[i].Name == name {
			return i
		}
	}
	return -1
}

// oneOf checks an enumeration.
func oneOf(path string, v value.Value, allowed ...string) error {
	if v.IsMissing() {
		return nil
	}
	for _, a := range allowed {
		if v.Str() == a {
			return nil
		}
	}
	return mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field '%s' is not a valid value.", v.Str(), path)
}

// inRange checks an integer argument.
func inRange(path string, v value.Value, low, high int64) (int64, error) {
	i := value.SafeInt64(v)
	if i < low {
		return 0, mongoerr.Newf(mongoerr.BadValue, "BSON field '%s' value must be >= %d, actual value '%d'", path, low, i)
	}
	if i > high {
		return 0, mongoerr.Newf(mongoerr.BadValue, "BSON field '%s' value must be <= %d, actual value '%d'", path, high, i)
	}
	return i, nil
}

// checkUUID compares a namespace's collection with the UUID that the client expects it to have.
func checkUUID(cat *catalog.Snapshot, ns string, want catalog.UUID) error {
	if c := cat.Lookup(ns); c != nil && c.UUID == want {
		return nil
	}
	actual := value.NewNull()
	if c := cat.LookupUUID(want); c != nil && c.DB() == catalog.DBOf(ns) {
		actual = value.NewString(c.Name())
	}
	return mongoerr.New(mongoerr.CollectionUUIDMismatch, "Collection UUID does not match that specified").WithDetails(value.Doc(
		value.F("db", value.NewString(catalog.DBOf(ns))), value.F("collectionUUID", want.Value()),
		value.F("expectedCollection", value.NewString(catalog.CollOf(ns))), value.F("actualCollection", actual)))
}

// checkCollectionUUID is checkUUID for a command's collectionUUID argument.
func (n *Node) checkCollectionUUID(op *command.Op, ns string) error {
	if !op.Req.Spec.Has("collectionUUID") { // bulkWrite: it has one for each of its namespaces
		return nil
	}
	id, err := op.Req.UUID("collectionUUID")
	if err != nil || id == nil {
		return err
	}
	return checkUUID(n.Engine.Catalog(), ns, *id)
}

// checkDBCase refuses a database whose name differs from another's in case alone.
func checkDBCase(cat *catalog.Snapshot, db string) error {
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

// noSuchCollection is what DDL commands answer for a namespace with nothing in it.
func noSuchCollection(ns string) error {
	return mongoerr.Newf(mongoerr.NamespaceNotFound, "ns does not exist: %s", ns)
}

// notOnView is what commands on collections answer for a view.
func notOnView(ns string) error {
	return mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", ns)
}

// indexSpec is an index's specification as listIndexes shows it.
func indexSpec(i *catalog.Index) []byte { return i.Spec.Raw }
