package router

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A CollectionUUIDMismatch names the collection of the database that has the UUID (actualCollection). A shard only knows the collections that it has itself; where it has named none, the router asks the
// sharding catalog, and then the primary shard of the database, which has all collections without an entry (SERVER-63285).

// namesActual returns a handler that completes the errors of another one.
func (r *Router) namesActual(run command.Handler) command.Handler {
	return func(op *command.Op, dst []byte) ([]byte, error) {
		from := len(dst)
		dst, err := run(op, dst)
		switch {
		case op.Client.InProcess: // a part of a client's command, in whose reply all errors are completed together
		case mongoerr.CodeOf(err) == mongoerr.CollectionUUIDMismatch:
			e := mongoerr.From(err)
			names := actualNames{r: r}
			details, _ := names.complete(op, e.Details)
			err = e.WithDetails(details)
		case err == nil && op.Req.Spec.Kind == command.Write && len(dst)-from > len(okTail):
			dst = r.nameInErrors(op, dst, from)
		}
		return dst, err
	}
}

// nameInErrors completes the writeErrors in a reply, whose elements begin at from. A reply with nothing to complete is returned as it is.
func (r *Router) nameInErrors(op *command.Op, dst []byte, from int) []byte {
	if !someNameNone(value.Lookup(dst[from-4:], "writeErrors").Doc()) {
		return dst
	}
	names := actualNames{r: r}
	var out []byte
	for it := value.Walk(dst[from-4:]); ; {
		raw, k, v, ok := it.NextRaw()
		switch {
		case !ok:
			return append(dst[:from], out...)
		case string(k) != "writeErrors":
			out = append(out, raw...)
		default:
			list := value.Values(v.Doc())
			for i, e := range list {
				d, _ := names.complete(op, e.Doc())
				list[i] = value.NewDocument(d)
			}
			out = value.Append(out, "writeErrors", value.NewArray(value.ArrayOf(list...)))
		}
	}
}

// someNameNone reports whether a list has a document that names no collection.
func someNameNone(list []byte) bool {
	for it := value.Walk(list); ; {
		_, v, ok := it.Next()
		if !ok {
			return false
		}
		if v.T == value.Document && namesNone(v.Doc()) {
			return true
		}
	}
}

// actualField is the field of the error with the collection's name.
const actualField = "actualCollection"

// namesNone reports whether a document has a CollectionUUIDMismatch, or its details, without the collection's name.
func namesNone(doc []byte) bool {
	return value.Lookup(doc, actualField).T == value.Null && value.Lookup(doc, "collectionUUID").T == value.Binary
}

// actualNames completes the errors of one reply, or cursor. It looks a collection up once, however many errors there are about it.
type actualNames struct {
	r     *Router
	known map[collectionOf]string // "" if there is none, or it could not be looked up
}

// collectionOf identifies a collection of a database.
type collectionOf struct{ db, uuid string }

// complete returns the document of an error, or its details, with the collection's name, if there is one. The error does not fail by what cannot be asked, nor does complete.
func (n *actualNames) complete(ctx context.Context, doc []byte) ([]byte, error) {
	if !namesNone(doc) {
		return doc, nil
	}
	name := n.of(ctx, value.Lookup(doc, "db").Str(), value.Lookup(doc, "collectionUUID"))
	if name == "" {
		return doc, nil
	}
	var f []value.Field
	for k, v := range value.Elements(doc) {
		if k == actualField {
			v = value.NewString(name)
		}
		f = append(f, value.F(k, v))
	}
	return value.Doc(f...), nil
}

// of returns the name of the collection of a database that has a UUID.
func (n *actualNames) of(ctx context.Context, db string, uuid value.Value) string {
	key := collectionOf{db, string(uuid.Bytes())}
	name, known := n.known[key]
	if known {
		return name
	}
	name, err := n.r.actualCollection(ctx, db, uuid)
	if err != nil {
		name = ""
	}
	if n.known == nil {
		n.known = make(map[collectionOf]string)
	}
	n.known[key] = name
	return name
}

// actualCollection returns the name of the collection of a database that has a UUID; "" for none.
func (r *Router) actualCollection(ctx context.Context, db string, uuid value.Value) (string, error) {
	entries, err := cluster.FindConfig(ctx, r.config, cluster.Find{NS: "config.collections", Filter: value.Doc(value.F("uuid", uuid))}.Doc())
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if in, coll := cluster.SplitNS(value.Lookup(e, "_id").Str()); in == db {
			return coll, nil
		}
	}
	info, err := r.Catalog.Database(ctx, db)
	if err != nil {
		return "", err
	}
	p, err := r.peer(ctx, info.Primary)
	if err != nil {
		return "", err
	}
	list, err := cluster.FindAll(ctx, p, db, msg.Doc(&msg.ListCollections{DB: db, Filter: value.Doc(value.F("info.uuid", uuid))}))
	if err != nil || len(list) == 0 {
		return "", err
	}
	return value.Lookup(list[0], "name").Str(), nil
}
