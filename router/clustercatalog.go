package router

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// catalogList builds the documents of $listClusterCatalog: the output of listCollections for each collection,
// and its placement.
type catalogList struct {
	r                 *Router
	op                *command.Op
	shards, balancing bool
	chunkSizeMB       int64
	docs              [][]byte
}

// clusterCatalog lists the collections of the request's database, on admin those of all databases.
func (r *Router) clusterCatalog(op *command.Op, spec []byte) ([][]byte, error) {
	l := &catalogList{r: r, op: op, shards: value.Lookup(spec, "shards").Truthy(), balancing: value.Lookup(spec, "balancingConfiguration").Truthy()}
	if l.balancing {
		if err := l.readChunkSize(); err != nil {
			return nil, err
		}
	}
	if db := op.DB(); db != "admin" {
		return l.docs, l.database(db)
	}
	dbs, err := cluster.Find{NS: "config.databases", Sort: cluster.ByID()}.All(op, r.config)
	if err != nil {
		return nil, err
	}
	names := []string{"admin", "config"}
	for _, d := range dbs {
		names = append(names, value.Lookup(d, "_id").Str())
	}
	for _, db := range names {
		if err := l.database(db); err != nil {
			return nil, err
		}
	}
	return l.docs, nil
}

// readChunkSize reads the chunk size that the balancer uses, in megabytes.
func (l *catalogList) readChunkSize() error {
	l.chunkSizeMB = 128
	docs, err := cluster.Find{NS: "config.settings", Filter: value.Doc(value.F("_id", value.NewString("chunksize")))}.All(l.op, l.r.config)
	if len(docs) > 0 {
		if n, ok := value.Lookup(docs[0], "value").AsInt64(); ok {
			l.chunkSizeMB = n
		}
	}
	return err
}

// database lists one database as its primary shard has it: every collection exists there.
func (l *catalogList) database(name string) error {
	info, err := l.r.Catalog.Database(l.op, name)
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	p, err := l.r.peer(l.op, info.Primary)
	if err != nil {
		return err
	}
	colls, err := cluster.FindAll(l.op, p, name, msg.Doc(&msg.ListCollections{DB: name}))
	if err != nil {
		return err
	}
	for _, c := range colls {
		doc, err := l.entry(name, c)
		if err != nil {
			return err
		}
		l.docs = append(l.docs, doc)
	}
	return nil
}

func (l *catalogList) entry(db string, listed []byte) ([]byte, error) {
	ns := db + "." + value.Lookup(listed, "name").Str()
	info, err := l.r.Catalog.Collection(l.op, ns)
	if err != nil {
		return nil, err
	}
	d, m := value.Begin(nil)
	d = value.Append(d, "db", value.NewString(db))
	d = value.Append(d, "ns", value.NewString(ns))
	for k, v := range value.Elements(listed) {
		if k != "name" {
			d = value.Append(d, k, v)
		}
	}
	d = value.Append(d, "sharded", value.NewBool(info.Sharded()))
	if info.Sharded() {
		d = value.Append(d, "shardKey", value.NewDocument(info.Map.Key.Doc()))
	}
	if l.shards {
		var ids []value.Value
		for _, id := range info.Shards() {
			ids = append(ids, value.NewString(id))
		}
		d = value.Append(d, "shards", value.NewArray(value.ArrayOf(ids...)))
	}
	if l.balancing && info.Sharded() {
		d = l.appendBalancing(d, info.Entry)
	}
	return value.End(d, m), nil
}

// appendBalancing appends the balancer settings of an entry of config.collections.
func (l *catalogList) appendBalancing(d, entry []byte) []byte {
	yes := func(field string) bool {
		v := value.Lookup(entry, field)
		return v.IsMissing() || v.Truthy()
	}
	balance, migrate := !value.Lookup(entry, "noBalance").Truthy(), yes("permitMigrations") && yes("allowMigrations")
	d = value.Append(d, "balancingEnabled", value.NewBool(balance && migrate))
	d = value.Append(d, "balancingEnabledReason", value.NewDocument(value.Doc(
		value.F("enableBalancing", value.NewBool(balance)), value.F("allowMigrations", value.NewBool(migrate)))))
	d = value.Append(d, "autoMergingEnabled", value.NewBool(yes("enableAutoMerge")))
	return value.Append(d, "chunkSize", value.NewInt32(int32(l.chunkSizeMB)))
}
