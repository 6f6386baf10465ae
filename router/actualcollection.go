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
			names := actualNames{r: r, ctx: op}
			err = e.WithDetails(names.complete(e.Details))
		case err == nil && op.Req.Spec.Kind == command.Write && len(dst)-from > len(okTail):
			dst = r.nameInErrors(op, dst, from, inWriteErrors)
		}
		return dst, err
	}
}

// Where replies have the errors of single statements.
var (
	inWriteErrors = []string{"writeErrors"}
	inFirstBatch  = []string{"cursor", "firstBatch"}
	inNextBatch   = []string{"cursor", "nextBatch"}
)

// nameInErrors completes the errors of single statements in a reply, whose elements begin at from; path leads to the list that has them. A reply with nothing to complete is returned as it is.
func (r *Router) nameInErrors(op *command.Op, dst []byte, from int, path []string) []byte {
	list := value.Lookup(dst[from-4:], path[0])
	for _, name := range path[1:] {
		list = value.Lookup(list.Doc(), name)
	}
	if !someNameNone(list.Doc()) {
		return dst
	}
	names := actualNames{r: r, ctx: op}
	return append(dst[:from], names.elements(dst[from-4:], path)...)
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

// actualNames completes the errors of one reply. It looks a collection up once, however many errors there are about it.
type actualNames struct {
	r     *Router
	ctx   context.Context
	known map[collectionOf]string // "" if there is none, or it could not be looked up
}

// collectionOf identifies a collection of a database.
type collectionOf struct{ db, uuid string }

// elements returns the elements of a document with completed errors in the list to which path leads.
func (n *actualNames) elements(doc []byte, path []string) (out []byte) {
	for it := value.Walk(doc); ; {
		raw, k, v, ok := it.NextRaw()
		switch {
		case !ok:
			return out
		case string(k) != path[0]:
			out = append(out, raw...)
		case len(path) > 1:
			d, mark := value.Begin(nil)
			out = value.Append(out, path[0], value.NewDocument(value.End(append(d, n.elements(v.Doc(), path[1:])...), mark)))
		default:
			list := value.Values(v.Doc())
			for i, e := range list {
				list[i] = value.NewDocument(n.complete(e.Doc()))
			}
			out = value.Append(out, path[0], value.NewArray(value.ArrayOf(list...)))
		}
	}
}

// complete returns the document of an error, or its details, with the collection's name, if there is one. The error does not fail by what cannot be asked.
func (n *actualNames) complete(doc []byte) []byte {
	if !namesNone(doc) {
		return doc
	}
	name := n.of(value.Lookup(doc, "db").Str(), value.Lookup(doc, "collectionUUID"))
	if name == "" {
		return doc
	}
	var f []value.Field
	for k, v := range value.Elements(doc) {
		if k == actualField {
			v = value.NewString(name)
		}
		f = append(f, value.F(k, v))
	}
	return value.Doc(f...)
}

// of returns the name of the collection of a database that has a UUID.
func (n *actualNames) of(db string, uuid value.Value) string {
	key := collectionOf{db, string(uuid.Bytes())}
	name, known := n.known[key]
	if known {
		return name
	}
	name, err := n.r.actualCollection(n.ctx, db, uuid)
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
