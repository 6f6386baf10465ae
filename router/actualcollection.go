package router

import (
	"context"
	"slices"

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
		case mongoerr.CodeOf(err) == mongoerr.CollectionUUIDMismatch:
			e := mongoerr.From(err)
			err = e.WithDetails(r.withActual(op, e.Details))
		case err == nil && op.Req.Spec.Kind == command.Write && len(dst)-from > len(okTail):
			dst = r.nameInErrors(op, dst, from)
		}
		return dst, err
	}
}

// nameInErrors completes the errors of single statements in a reply, whose elements begin at from: those of a batch, or the results of a bulkWrite.
func (r *Router) nameInErrors(op *command.Op, dst []byte, from int) []byte {
	reply := dst[from-4:]
	list := value.Lookup(reply, "writeErrors")
	if list.IsMissing() {
		list = value.Lookup(value.LookupDoc(reply, "cursor"), "firstBatch")
	}
	if !slices.ContainsFunc(value.Values(list.Doc()), func(e value.Value) bool { return namesNone(e.Doc()) }) {
		return dst
	}
	return append(dst[:from:from], r.named(op, reply)...)
}

// named returns the elements of a reply, or of its cursor, with completed errors.
func (r *Router) named(op *command.Op, doc []byte) (out []byte) {
	for k, v := range value.Elements(doc) {
		switch k {
		case "writeErrors", "firstBatch":
			list := value.Values(v.Doc())
			for i, e := range list {
				list[i] = value.NewDocument(r.withActual(op, e.Doc()))
			}
			v = value.NewArray(value.ArrayOf(list...))
		case "cursor":
			d, mark := value.Begin(nil)
			v = value.NewDocument(value.End(append(d, r.named(op, v.Doc())...), mark))
		}
		out = value.Append(out, k, v)
	}
	return out
}

// actualField is the field of the error with the collection's name.
const actualField = "actualCollection"

// namesNone reports whether a document has a CollectionUUIDMismatch, or its details, without the collection's name.
func namesNone(doc []byte) bool {
	return value.Lookup(doc, actualField).T == value.Null && value.Lookup(doc, "collectionUUID").T == value.Binary
}

// withActual returns the document of an error, or its details, with the collection's name, if there is one. The error does not fail by what cannot be asked.
func (r *Router) withActual(ctx context.Context, doc []byte) []byte {
	if !namesNone(doc) {
		return doc
	}
	name, err := r.actualCollection(ctx, value.Lookup(doc, "db").Str(), value.Lookup(doc, "collectionUUID"))
	if err != nil || name == "" {
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
