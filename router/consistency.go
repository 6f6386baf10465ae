package router

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
)

// checkMetadataConsistency compares the sharding catalog with what the shards have: every shard that owns chunks of a
// collection must have it, under the catalog's UUID. Its value is 1 on admin for the whole cluster, 1 on another
// database for that one, or the name of a collection.
func (r *Router) checkMetadataConsistency(op *command.Op, dst []byte) ([]byte, error) {
	filter := value.Doc()
	ns := op.DB() + ".$cmd.aggregate"
	switch {
	case op.Req.Cmd.T == value.String:
		coll, err := op.Req.Coll()
		if err != nil {
			return dst, err
		}
		ns = op.Req.NS(coll)
		filter = value.Doc(value.F("_id", value.NewString(ns)))
	case op.DB() != "admin":
		ends := value.Doc(value.F("$gt", value.NewString(op.DB()+".")), value.F("$lt", value.NewString(op.DB()+"/")))
		filter = value.Doc(value.F("_id", value.NewDocument(ends)))
	}
	entries, err := cluster.FindConfig(op, r.config, value.Doc(
		value.F("find", value.NewString("collections")), value.F("filter", value.NewDocument(filter)), value.F("$db", value.NewString("config"))))
	if err != nil {
		return dst, err
	}
	var found [][]byte
	for _, d := range entries {
		bad, err := r.checkCollection(op, d)
		if err != nil {
			return dst, err
		}
		found = append(found, bad...)
	}
	size := int64(defaultBatch)
	if cur := op.Req.Doc("cursor"); cur != nil {
		if n, ok := value.Lookup(cur, "batchSize").AsInt64(); ok {
			size = n
		}
	}
	return r.openMerged(op, ns, &mergeCursor{source: agg.NewSliceSource(found)}, size, false, dst)
}

// checkCollection compares one entry of config.collections with the shards that own chunks of it.
func (r *Router) checkCollection(op *command.Op, entry []byte) (bad [][]byte, err error) {
	ns := value.Lookup(entry, "_id").Str()
	db, coll := cluster.SplitNS(ns)
	r.Catalog.InvalidateCollection(ns)
	info, err := r.Catalog.Collection(op, ns)
	if err != nil || info.Map == nil {
		return nil, err
	}
	uuid := value.Lookup(entry, "uuid")
	for _, id := range info.Shards() {
		p, err := r.peer(op, id)
		if err != nil {
			return nil, err
		}
		local, err := cluster.FindAll(op, p, db, value.Doc(
			value.F("listCollections", value.NewInt32(1)),
			value.F("filter", value.NewDocument(value.Doc(value.F("name", value.NewString(coll))))),
			value.F("$db", value.NewString(db))))
		if err != nil {
			return nil, err
		}
		details := []value.Field{value.F("namespace", value.NewString(ns)), value.F("shard", value.NewString(id)), value.F("uuid", uuid)}
		switch {
		case len(local) == 0:
			bad = append(bad, inconsistency("MissingLocalCollection", "Found a collection registered on the sharding catalog, but missing on a shard that owns data of it", details))
		case !value.Equal(value.Lookup(value.Lookup(local[0], "info").Doc(), "uuid"), uuid):
			bad = append(bad, inconsistency("CollectionUUIDMismatch", "Found collection on a shard with a different UUID than the sharding catalog", details))
		}
	}
	return bad, nil
}

func inconsistency(kind, text string, details []value.Field) []byte {
	return value.Doc(
		value.F("type", value.NewString(kind)), value.F("description", value.NewString(text)),
		value.F("details", value.NewDocument(value.Doc(details...))))
}
