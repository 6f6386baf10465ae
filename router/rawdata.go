package router

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
)

// isTimeSeries reports whether a namespace is that of a time series collection, for commands with rawData: true. Unless the router has targeted
// the buckets before, it asks the primary shard of the database, which has the view on them wherever they are.
func (r *Router) isTimeSeries(op *command.Op, ns string) (series bool, err error) {
	err = r.routed(op, ns, false, func(info *cluster.CollectionInfo) error {
		series = false
		if info.Map != nil || info.DB.Version.IsFixed() {
			return nil
		}
		buckets, err := r.Catalog.Buckets(op, info)
		if err != nil || buckets != nil {
			series = buckets != nil
			return err
		}
		p, err := r.peer(op, info.DB.Primary)
		if err != nil {
			return err
		}
		db, coll := cluster.SplitNS(ns)
		list := msg.Doc(&msg.ListCollections{DB: db, Filter: value.Doc(value.F("name", value.NewString(coll)), value.F("type", value.NewString("timeseries")))})
		docs, err := cluster.FindAll(op, p, db, versioned(list, info, info.DB.Primary))
		series = len(docs) > 0
		return err
	})
	return series, err
}
