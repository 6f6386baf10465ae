package command

import (
	"slices"
	"strings"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// runMerge implements the command by which mongorestore restores users and roles from temporary collections of admin to which it has written
// them: they become the users and roles of one database, or of all. Without drop, existing ones are kept unchanged, since mongorestore only
// inserts (manual: mongorestore Behavior). With drop, existing ones are replaced, and those that are not among the restored ones are
// deleted.
func (a *Access) runMerge(op *Op, dst []byte) ([]byte, error) {
	users, roles := op.Req.Str("tempUsersCollection"), op.Req.Str("tempRolesCollection")
	if users == "" && roles == "" {
		return dst, mongoerr.New(mongoerr.BadValue, "Must provide at least one of \"tempUsersCollection\" and \"tempRolesCollection\"")
	}
	if users != "" {
		check := func(doc []byte) (string, error) {
			u, err := auth.ParseUser(doc)
			if err != nil {
				return "", err
			}
			return u.Name.ID(), nil
		}
		if err := a.merge(op, users, "system.users", check); err != nil {
			return dst, err
		}
	}
	if roles != "" {
		check := func(doc []byte) (string, error) {
			r, err := auth.ParseRole(doc)
			if err != nil {
				return "", err
			}
			return r.Name.ID(), nil
		}
		if err := a.merge(op, roles, "system.roles", check); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// merge copies the documents of one collection of admin into another. A replaced user keeps its userId, as after updateUser, so that open
// connections remain authenticated, among them mongorestore's own, which creates indexes after the users.
func (a *Access) merge(op *Op, from, to string, check func(doc []byte) (id string, err error)) error {
	db := op.Req.Str("db")
	filter := value.Doc()
	if db != "" {
		filter = ofDB(db)
	}
	coll, ok := strings.CutPrefix(from, "admin.")
	if !ok {
		return mongoerr.Newf(mongoerr.BadValue, "%s is not a collection of the admin database", from)
	}
	docs, err := a.find(op, coll, filter)
	if err != nil {
		return err
	}
	kept := make([]value.Value, len(docs))
	for i, d := range docs {
		id, err := check(d)
		if err != nil {
			return err
		}
		if kept[i] = value.Lookup(d, "_id"); kept[i].T != value.String || kept[i].Str() != id {
			return mongoerr.Newf(mongoerr.BadValue, "%s has a document whose _id is not \"%s\"", from, id)
		}
	}
	drop := op.Bool("drop")
	for i, d := range docs {
		was, err := a.read(op, to, kept[i].Str())
		switch {
		case err != nil:
			return err
		case was == nil:
			err = a.insert(op, to, d)
		case drop:
			err = a.replace(op, to, kept[i].Str(), sameUser(d, was))
		}
		if err != nil {
			return err
		}
	}
	if !drop {
		return nil
	}
	gone := []value.Field{value.F("_id", value.NewDocument(value.Doc(value.F("$nin", value.NewArray(value.ArrayOf(kept...))))))}
	if db != "" {
		gone = append(gone, value.F("db", value.NewString(db)))
	}
	_, err = a.remove(op, to, value.Doc(gone...))
	return err
}

// sameUser returns a restored document with the userId of the one that it replaces. Roles have none.
func sameUser(doc, was []byte) []byte {
	id := value.Lookup(was, "userId")
	switch {
	case id.IsMissing():
		return doc
	case value.Lookup(doc, "userId").IsMissing(): // dumped from a server of a line before 3.6
		return value.End(value.Append(slices.Clone(doc[:len(doc)-1]), "userId", id), 0)
	}
	return replaceField(doc, "userId", id)
}
