package router

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// selfStage returns the source of a pipeline's first stage if the router produces its documents; ok is false
// otherwise.
func (r *Router) selfStage(op *command.Op, pipeline value.Value) (src agg.Source, ok bool, err error) {
	it := value.Walk(pipeline.Doc())
	_, first, _ := it.Next()
	if spec := value.Lookup(first.Doc(), "$listSampledQueries"); spec.T == value.Document && first.T == value.Document {
		o := &agg.Options{NS: agg.Namespace{DB: op.DB(), Coll: "$cmd.aggregate"}, Host: &aggHost{r: r}}
		if _, err := agg.Parse(pipeline, o); err != nil {
			return nil, false, err
		}
		src, err = r.sampledQueries(op, spec.Doc())
		return src, err == nil, err
	}
	docs, ok, err := r.selfDocs(op, pipeline)
	return agg.NewSliceSource(docs), ok, err
}

// selfDocs is selfStage for stages whose documents the router has itself.
func (r *Router) selfDocs(op *command.Op, pipeline value.Value) (docs [][]byte, ok bool, err error) {
	it := value.Walk(pipeline.Doc())
	_, first, there := it.Next()
	if !there || first.T != value.Document {
		return nil, false, nil
	}
	in := value.Walk(first.Doc())
	name, spec, _ := in.Next()
	if string(name) == "$currentOp" || string(name) == "$listLocalSessions" || string(name) == "$shardedDataDistribution" ||
		string(name) == "$listClusterCatalog" || string(name) == "$queryStats" || string(name) == "$querySettings" {
		o := &agg.Options{NS: agg.Namespace{DB: op.DB(), Coll: "$cmd.aggregate"}, Host: &aggHost{r: r}}
		if _, err := agg.Parse(pipeline, o); err != nil {
			return nil, false, err
		}
		if rc := op.Req.ReadConcern; rc != nil && rc.Given && rc.Level != "local" {
			return nil, false, mongoerr.Newf(mongoerr.InvalidOptions, "Aggregation stage %s cannot run with a readConcern other than 'local', or in a multi-document transaction. "+
				"Current readConcern: %s", name, rc.Level)
		}
	}
	switch string(name) {
	case "$currentOp":
		if spec.T != value.Document || op.DB() != "admin" {
			return nil, false, nil // a shard reports the error
		}
		if value.Lookup(spec.Doc(), "localOps").Truthy() {
			return r.localOps(op, spec.Doc()), true, nil
		}
		docs, err = r.shardOps(op, spec.Doc())
		return docs, true, err
	case "$listClusterCatalog":
		if op.Req.Cmd.T == value.String {
			return nil, false, nil // a shard reports that it cannot run on a collection
		}
		docs, err = r.clusterCatalog(op, spec.Doc())
		return docs, true, err
	case "$queryStats":
		return r.Service.QueryStats(spec.Doc()), true, nil
	case "$querySettings":
		docs, err = r.querySettingsDocs(op, first)
		return docs, true, err
	case "$shardedDataDistribution":
		docs, err = r.dataDistribution(op)
		return docs, true, err
	case "$listLocalSessions":
		if spec.T != value.Document || r.Sessions == nil {
			return nil, false, nil
		}
		return r.Sessions.List(op.SessionsShown(spec.Doc())), true, nil
	}
	return nil, false, nil
}

// asksMembers reports whether a pipeline begins with a stage that all members of the collection's shards execute, including secondaries.
func asksMembers(pipeline value.Value) bool {
	it := value.Walk(pipeline.Doc())
	_, first, _ := it.Next()
	if first.T != value.Document {
		return false
	}
	return value.Lookup(value.LookupDoc(first.Doc(), "$planCacheStats"), "allHosts").Bool() ||
		value.Lookup(value.LookupDoc(first.Doc(), "$collStats"), "targetAllNodes").Bool()
}

// aggregateMembers runs the first stage of a pipeline on every member of the collection's shards, and the remaining stages here.
func (r *Router) aggregateMembers(op *command.Op, a *aggCommand, dst []byte) ([]byte, error) {
	var docs [][]byte
	db, coll := cluster.SplitNS(a.ns)
	err := r.routed(op, a.ns, false, func(info *cluster.CollectionInfo) error {
		shards, err := target(info, nil, false)
		if err != nil {
			return err
		}
		nearest := value.Doc(value.F("mode", value.NewString("nearest")))
		body := msg.Doc(&msg.Aggregate{DB: db, On: value.NewString(coll), Pipeline: value.ArrayOf(value.Values(a.pipeline.Doc())[0]), Cursor: &msg.Cursor{BatchSize: 1 << 20}},
			value.F("$readPreference", value.NewDocument(nearest)))
		replies, err := r.askMembers(op, shards, func(shard string) []byte { return versioned(body, info, shard) })
		docs = nil
		for i := range replies {
			for _, v := range value.Values(value.Lookup(value.Lookup(replies[i].body, "cursor").Doc(), "firstBatch").Doc()) {
				docs = append(docs, v.Doc())
			}
		}
		return err
	})
	if err != nil {
		return dst, err
	}
	return r.aggregateSelf(op, a, agg.NewSliceSource(docs), dst)
}

// aggregateSelf runs the remaining stages of a pipeline over documents that the router produced.
func (r *Router) aggregateSelf(op *command.Op, a *aggCommand, src agg.Source, dst []byte) ([]byte, error) {
	db, _ := cluster.SplitNS(a.ns)
	rest := value.NewArray(value.ArrayOf(value.Values(a.pipeline.Doc())[1:]...))
	size, err := cursorSize(a.body)
	if err != nil {
		return dst, err
	}
	if value.Count(rest.Doc()) > 0 {
		spec, err := collationFor(value.LookupDoc(a.body, "collation"), &cluster.CollectionInfo{})
		if err != nil {
			return dst, err
		}
		scope, err := r.newScope(op, spec)
		if err != nil {
			return dst, err
		}
		p, err := agg.Parse(rest, &agg.Options{NS: agg.Namespace{DB: db, Coll: "router"}, Host: &aggHost{r: r, collation: spec}, Collation: explicit(spec), Scope: scope})
		if err != nil {
			return dst, err
		}
		if src, err = p.Run(src); err != nil {
			return dst, err
		}
	}
	return r.openMerged(op, a.ns, &mergeCursor{source: src}, size, false, dst)
}

// cursorSize reads the batch size of an aggregate's cursor argument.
func cursorSize(cmd []byte) (int64, error) {
	cur := value.Lookup(cmd, "cursor").Doc()
	if cur == nil {
		return 0, mongoerr.New(mongoerr.FailedToParse, "The 'cursor' option is required, except for aggregate with the explain argument")
	}
	if bs := value.Lookup(cur, "batchSize"); !bs.IsMissing() {
		n, _ := bs.AsInt64()
		if n < 0 {
			return 0, mongoerr.Newf(mongoerr.BadValue, "BSON field 'batchSize' value must be >= 0, actual value '%d'", n)
		}
		return n, nil
	}
	return defaultBatch, nil
}
