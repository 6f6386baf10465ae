package command

import (
	"strings"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// runMerge implements the command with which mongorestore ends: it has written users and roles into collections
// of admin, which become the users and roles of one database, or of all. With drop, users and roles that are
// not among them are deleted.
func (a *Access) runMerge(op *Op, dst []byte) ([]byte, error) {
	users, roles := op.Req.Str("tempUsersCollection"), op.Req.Str("tempRolesCollection")
	if users == "" && roles == "" {
		return dst, mongoerr.New(mongoerr.BadValue, "Must provide at least one of \"tempUsersCollection\" and \"tempRolesCollection\"")
	}
	if users != "" {
		check := func(doc []byte) error { _, err := auth.ParseUser(doc); return err }
		if err := a.merge(op, users, "system.users", check); err != nil {
			return dst, err
		}
	}
	if roles != "" {
		check := func(doc []byte) error { _, err := auth.ParseRole(doc); return err }
		if err := a.merge(op, roles, "system.roles", check); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// merge copies the documents of one collection of admin into another.
func (a *Access) merge(op *Op, from, to string, check func(doc []byte) error) error {
	db := op.Req.Str("db")
	filter := value.Doc()
	if db != "" {
		filter = ofDB(db)
	}
	coll, ok := strings.CutPrefix(from, "admin.")
	if !ok {
		return mongoerr.Newf(mongoerr.BadValue, "%s is no collection of the admin database", from)
	}
	docs, err := a.find(op, coll, filter)
	if err != nil {
		return err
	}
	kept := make([]value.Value, len(docs))
	for i, d := range docs {
		if err := check(d); err != nil {
			return err
		}
		kept[i] = value.Lookup(d, "_id")
	}
	for i, d := range docs {
		u := value.Doc(value.F("q", value.NewDocument(value.Doc(value.F("_id", kept[i])))), value.F("u", value.NewDocument(d)), value.F("upsert", value.NewBool(true)))
		err := a.write(op, value.F("update", value.NewString(to)), value.F("updates", value.NewArray(value.ArrayOf(value.NewDocument(u)))))
		if err != nil {
			return err
		}
	}
	if !op.Bool("drop") {
		return nil
	}
	gone := []value.Field{value.F("_id", value.NewDocument(value.Doc(value.F("$nin", value.NewArray(value.ArrayOf(kept...))))))}
	if db != "" {
		gone = append(gone, value.F("db", value.NewString(db)))
	}
	_, err = a.remove(op, to, value.Doc(gone...))
	return err
}
