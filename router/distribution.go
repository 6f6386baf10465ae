package router

import (
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// dataDistribution is $shardedDataDistribution: for each sharded collection, the amount of data on its shards.
func (r *Router) dataDistribution(op *command.Op) (docs [][]byte, err error) {
	sharded := value.Doc(value.F("unsplittable", value.NewDocument(value.Doc(value.F("$ne", value.NewBool(true))))))
	colls, err := cluster.FindConfig(op, r.config, cluster.Find{NS: "config.collections", Filter: sharded, Sort: cluster.ByID()}.Doc())
	if err != nil {
		return nil, err
	}
	for _, c := range colls {
		doc, err := r.distributionOf(op, value.Lookup(c, "_id").Str())
		if err != nil {
			return nil, err
		}
		if doc != nil {
			docs = append(docs, doc)
		}
	}
	return docs, nil
}

func (r *Router) distributionOf(op *command.Op, ns string) (doc []byte, err error) {
	db, coll := cluster.SplitNS(ns)
	body := msg.Doc(&msg.CollStats{DB: db, Coll: coll})
	err = r.routed(op, ns, false, func(info *cluster.CollectionInfo) error {
		if !info.Sharded() {
			return nil // dropped in the meantime
		}
		all, err := r.allShards(op)
		if err != nil {
			return err
		}
		replies := r.scatter(op, all, func(s string) ([]byte, []wire.Sequence) { return versioned(body, info, s), nil })
		if err := firstError(replies); err != nil {
			return err
		}
		var shards []value.Value
		owners := info.Map.Shards()
		for i := range replies {
			count, _ := value.Lookup(replies[i].body, "count").AsInt64()
			orphans, _ := value.Lookup(replies[i].body, "numOrphanDocs").AsInt64()
			if !slices.Contains(owners, replies[i].shard) {
				if orphans == 0 {
					continue // it has nothing, or receives its first chunk
				}
				count = orphans
			}
			each, _ := value.Lookup(replies[i].body, "avgObjSize").AsInt64()
			shards = append(shards, value.NewDocument(value.Doc(value.F("shardName", value.NewString(replies[i].shard)),
				value.F("numOrphanedDocs", value.NewInt64(orphans)), value.F("numOwnedDocuments", value.NewInt64(count-orphans)),
				value.F("ownedSizeBytes", value.NewInt64((count-orphans)*each)), value.F("orphanedSizeBytes", value.NewInt64(orphans*each)))))
		}
		doc = value.Doc(value.F("ns", value.NewString(ns)), value.F("shards", value.NewArray(value.ArrayOf(shards...))))
		return nil
	})
	return doc, err
}
