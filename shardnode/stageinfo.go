package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// stageInfo returns the documents of stages that report on the server.
func (n *Node) stageInfo(op *command.Op, s *storage.Snapshot, ns, stage string, spec value.Value) ([][]byte, error) {
	switch stage {
	case "$indexStats":
		return n.indexStats(s, ns)
	case "$collStats":
		doc, err := n.collStatsStage(s, ns, spec.Doc())
		return [][]byte{doc}, err
	case "$currentOp":
		if n.Sharding() == nil && value.Lookup(spec.Doc(), "targetAllNodes").Truthy() {
			return nil, mongoerr.New(mongoerr.FailedToParse, "$currentOp supports the targetAllNodes parameter only for sharded clusters")
		}
		return n.currentOps(op, spec.Doc()), nil
	case "$planCacheStats":
		if err := n.checkPlanCacheStats(s, ns, spec.Doc()); err != nil {
			return nil, err
		}
		return n.planCacheStats(s, ns), nil
	case "$listSessions":
		return storedSessions(s, n.ownership(op, s.Catalog().Lookup(ns)), op.SessionsShown(spec.Doc()))
	case "$listSampledQueries":
		return sampledQueries(n, op, s, spec.Doc())
	case "$listClusterCatalog":
		return n.clusterCatalog(op, s, catalog.DBOf(ns), spec.Doc())
	case "$listLocalSessions":
		return n.localSessions(op.SessionsShown(spec.Doc())), nil
	case "$queryStats":
		return n.Service.QueryStats(spec.Doc()), nil
	case "$listCatalog":
		return n.listCatalog(s, ns), nil
	case "$shardedDataDistribution":
		return nil, mongoerr.New(6789101, "The $shardedDataDistribution stage can only be run on router nodes of a sharded cluster")
	case "$querySettings":
		return n.settings.QuerySettingsStage(spec.Doc()), nil
	}
	return nil, command.NotImplemented("stage %s", stage)
}

// listCatalog returns the catalog's entries: of one collection, or of all if the stage runs on the database admin.
func (n *Node) listCatalog(s *storage.Snapshot, ns string) (docs [][]byte) {
	dbs := []string{catalog.DBOf(ns)}
	all := catalog.CollOf(ns) == agg.DatabaseAggregate
	if all {
		dbs = s.Catalog().Databases()
	}
	for _, db := range dbs {
		for _, c := range s.Catalog().Collections(db) {
			if all || c.NS == ns {
				docs = append(docs, catalogEntry(db, c))
			}
		}
	}
	return docs
}

func catalogEntry(db string, c *catalog.Collection) []byte {
	var indexes []value.Value
	for _, x := range c.Indexes {
		indexes = append(indexes, value.NewDocument(value.Doc(value.F("spec", value.NewDocument(x.Spec.Raw)), value.F("ready", value.NewBool(x.Ready)))))
	}
	options := append([]byte(nil), c.Options...)
	if options == nil {
		options = value.Doc()
	}
	options = value.End(value.Append(options[:len(options)-1], "uuid", c.UUID.Value()), 0)
	md := value.Doc(value.F("ns", value.NewString(c.NS)), value.F("options", value.NewDocument(options)), value.F("indexes", value.NewArray(value.ArrayOf(indexes...))))
	kind := "collection"
	if namespace.IsBuckets(c.NS) {
		kind = "timeseries"
		md = value.WithField(md, namespace.MixedSchema, value.NewBool(namespace.MayHaveMixedSchema(c)))
	}
	return value.Doc(value.F("db", value.NewString(db)), value.F("name", value.NewString(c.Name())), value.F("type", value.NewString(kind)),
		value.F("md", value.NewDocument(md)), value.F("ns", value.NewString(c.NS)))
}

// checkPlanCacheStats refuses $planCacheStats if there is no collection, and allHosts if this node is not in a
// cluster.
func (n *Node) checkPlanCacheStats(s *storage.Snapshot, ns string, spec []byte) error {
	if n.Sharding() == nil && value.Lookup(spec, "allHosts").Truthy() {
		return mongoerr.New(4503200, "$planCacheStats stage supports allHosts parameter only for sharded clusters")
	}
	if s.Catalog().Lookup(ns) == nil {
		return mongoerr.Newf(50933, "collection '%s' does not exist", ns)
	}
	return nil
}

// allDocs returns copies of all documents of a small collection.
func allDocs(s *storage.Snapshot, ns string) (docs [][]byte, err error) {
	c := s.Catalog().Lookup(ns)
	if c == nil {
		return nil, nil
	}
	cur := s.Scan(c, storage.ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		docs = append(docs, append([]byte(nil), cur.Doc()...))
	}
	return docs, cur.Err()
}

// localSessions lists the sessions that this node has seen in use.
func (n *Node) localSessions(shown func(owner [32]byte) bool) [][]byte {
	if n.Sessions == nil {
		return nil
	}
	return n.Sessions.List(shown)
}

func (n *Node) indexStats(s *storage.Snapshot, ns string) ([][]byte, error) {
	c := s.Catalog().Lookup(ns)
	if c == nil {
		return nil, nil
	}
	var out [][]byte
	for _, i := range c.Indexes {
		d, m := value.Begin(nil)
		d = value.Append(d, "name", value.NewString(i.Name))
		d = value.Append(d, "key", value.NewDocument(i.Spec.KeyPattern))
		d = value.Append(d, "host", value.NewString(n.host()))
		var am int
		d, am = value.BeginKey(d, value.Document, "accesses")
		d = value.Append(d, "ops", value.NewInt64(i.Usage.Ops.Load()))
		d = value.Append(d, "since", value.NewDateTime(i.Usage.SinceMS))
		d = n.appendShard(value.End(d, am))
		d = value.Append(d, "spec", value.NewDocument(i.Spec.Raw))
		if !i.Ready {
			d = value.Append(d, "building", value.NewBool(true))
		}
		out = append(out, value.End(d, m))
	}
	return out, nil
}

func (n *Node) host() string { return n.Host }

// appendShard adds the shard's name to a report if the node is a shard, so that clients of a router can tell the
// reports apart.
func (n *Node) appendShard(dst []byte) []byte {
	if s := n.shard.State(); s != nil {
		dst = value.Append(dst, "shard", value.NewString(s.ID))
	}
	return dst
}
