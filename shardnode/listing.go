package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
)

// listStream yields documents that were all made when the cursor was opened.
type listStream struct{ docs [][]byte }

func (l *listStream) NextDoc(op *command.Op) ([]byte, bool, error) {
	if len(l.docs) == 0 {
		return nil, false, op.Check()
	}
	doc := l.docs[0]
	l.docs = l.docs[1:]
	return doc, true, nil
}

func (l *listStream) Stop()  {}
func (l *listStream) Close() {}

// replyList replies with a cursor over docs. The cursor is closed if they all fit into the first batch.
func (n *Node) replyList(op *command.Op, dst []byte, ns string, docs [][]byte, size int64) ([]byte, error) {
	all := 0
	for _, d := range docs {
		all += len(d) + 16
	}
	if (size >= 0 && int64(len(docs)) > size) || all > maxBatchBytes {
		return n.firstBatch(op, dst, &cursor{ns: ns, stream: &listStream{docs}}, size, false)
	}
	op.Stats.NReturned = int64(len(docs))
	dst, cm, bm := beginCursor(dst, "firstBatch")
	for i, d := range docs {
		dst = value.AppendIndex(dst, i, value.NewDocument(d))
	}
	return endCursor(dst, cm, bm, 0, ns, 0, nil), nil
}

var cursorFields = []command.Field{command.Opt("batchSize", command.TNumber)}

// batchSizeOf reads the cursor argument; -1 means no limit.
func batchSizeOf(op *command.Op) (int64, error) {
	path := op.Req.Spec.Name + ".cursor"
	f, err := command.ParseFields(path, op.Req.Doc("cursor"), cursorFields)
	if err != nil || f[0].IsMissing() {
		return -1, err
	}
	return command.InRange("batchSize", f[0], 0, 1<<63-1)
}

// listFilter compiles the filter of a listing command, nil for all.
func (n *Node) listFilter(op *command.Op) (*match.Matcher, error) {
	filter := op.Req.Doc("filter")
	if len(filter) <= 5 {
		return nil, nil
	}
	if err := exec.RefuseOperators(filter, "this context"); err != nil {
		return nil, err
	}
	l, err := n.exec.NewLang(op, nil, nil)
	if err != nil {
		return nil, err
	}
	l.Env.NoConstants = true
	return exec.CompileFilter(filter, l.Scope, nil)
}

func listCollectionsSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "listCollections", Roles: command.All, Kind: command.Read, API: true, ArgTypes: command.TAny, Run: n.runListCollections,
		Fields: []command.Field{
			command.Opt("filter", command.TObject), command.Opt("cursor", command.TObject), command.Opt("nameOnly", command.TBool),
			command.Opt("authorizedCollections", command.TBool), command.Opt("includePendingDrops", command.TSafeBool),
		},
	}
}

func (n *Node) runListCollections(op *command.Op, dst []byte) ([]byte, error) {
	size, err := batchSizeOf(op)
	if err != nil {
		return dst, err
	}
	filter, err := n.listFilter(op)
	if err != nil {
		return dst, err
	}
	op.Stats.NS, op.Stats.Type = op.DB()+".$cmd.listCollections", "command"
	s := n.Engine.Snapshot()
	defer s.Release()
	op.AdvanceOperationTime(uint64(s.Timestamp()))
	infos, err := collectionInfos(s, op.DB(), op.Bool("nameOnly"))
	if err != nil {
		return dst, err
	}
	docs := infos[:0]
	for _, d := range infos {
		if filter != nil {
			if ok, err := filter.Match(d); err != nil {
				return dst, err
			} else if !ok {
				continue
			}
		}
		docs = append(docs, d)
	}
	return n.replyList(op, dst, op.DB()+".$cmd.listCollections", docs, size)
}

// collectionInfos returns the documents of listCollections: collections first, then views.
func collectionInfos(s *storage.Snapshot, db string, nameOnly bool) (docs [][]byte, err error) {
	for _, c := range s.Catalog().Collections(db) {
		if !txn.Own(c.NS) && c.NS != migration.DroppedNS {
			docs = append(docs, collectionInfo(c, nameOnly))
		}
	}
	views, err := namespace.ViewsOf(s, db)
	if err != nil {
		return nil, err
	}
	for _, v := range views {
		docs = append(docs, viewInfo(s.Catalog(), v, nameOnly))
	}
	return docs, nil
}

// listedSpec returns an index as listIndexes shows it: the bounds of a 2d index are doubles there, whatever type
// they were given in.
func listedSpec(idx *catalog.Index) []byte {
	if idx.Spec.Kind != indexkey.Geo2D {
		return idx.Spec.Raw
	}
	dst, m := value.Begin(nil)
	for k, v := range value.Elements(idx.Spec.Raw) {
		if (k == "min" || k == "max") && v.T.Numeric() {
			v = value.NewDouble(v.AsFloat64())
		}
		dst = value.Append(dst, k, v)
	}
	return value.End(dst, m)
}

// clusterCatalog returns the documents of $listClusterCatalog: the output of listCollections for one database, or
// for all if the database is admin.
func (n *Node) clusterCatalog(op *command.Op, s *storage.Snapshot, db string, spec []byte) (docs [][]byte, err error) {
	dbs := []string{db}
	if db == "admin" {
		dbs = s.Catalog().Databases()
	}
	for _, db := range dbs {
		infos, err := collectionInfos(s, db, false)
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			docs = append(docs, n.clusterEntry(op, db, info, spec))
		}
	}
	return docs, nil
}

func (n *Node) clusterEntry(op *command.Op, db string, info, spec []byte) []byte {
	ns := db + "." + value.Lookup(info, "name").Str()
	dst, m := value.Begin(nil)
	dst = value.Append(dst, "db", value.NewString(db))
	dst = value.Append(dst, "ns", value.NewString(ns))
	for k, v := range value.Elements(info) {
		if k != "name" {
			dst = value.Append(dst, k, v)
		}
	}
	dst = value.Append(dst, "sharded", value.NewBool(n.Sharding() != nil && n.Sharding().Sharded(op, ns)))
	if value.Lookup(spec, "shards").Truthy() {
		dst = value.Append(dst, "shards", value.NewArray(value.ArrayOf()))
	}
	return value.End(dst, m)
}

func infoHead(name, kind string) ([]byte, int) {
	dst, m := value.Begin(nil)
	dst = value.Append(dst, "name", value.NewString(name))
	return value.Append(dst, "type", value.NewString(kind)), m
}

func collectionInfo(c *catalog.Collection, nameOnly bool) []byte {
	dst, m := infoHead(c.Name(), "collection")
	if nameOnly {
		return value.End(dst, m)
	}
	options := c.Options
	if options == nil {
		options = value.Doc()
	}
	dst = value.Append(dst, "options", value.NewDocument(options))
	dst = value.Append(dst, "info", value.NewDocument(value.Doc(value.F("readOnly", value.NewBool(false)), value.F("uuid", c.UUID.Value()))))
	if id := c.IDIndex(); id != nil {
		dst = value.Append(dst, "idIndex", value.NewDocument(id.Spec.Raw))
	}
	return value.End(dst, m)
}

func viewInfo(cat *catalog.Snapshot, v *namespace.View, nameOnly bool) []byte {
	b := namespace.Buckets(cat, v.NS)
	if b == nil || !v.IsTimeseries() {
		dst, m := infoHead(catalog.CollOf(v.NS), "view")
		if nameOnly {
			return value.End(dst, m)
		}
		o := namespace.Options{"viewOn": value.NewString(v.On), "pipeline": v.Pipeline}
		if v.Collation != nil {
			o["collation"] = value.NewDocument(v.Collation)
		}
		dst = value.Append(dst, "options", value.NewDocument(o.Doc()))
		return value.End(value.Append(dst, "info", value.NewDocument(value.Doc(value.F("readOnly", value.NewBool(true))))), m)
	}
	dst, m := infoHead(catalog.CollOf(v.NS), "timeseries")
	if nameOnly {
		return value.End(dst, m)
	}
	o := namespace.OptionsOf(b.Options)
	for _, name := range []string{"validator", "validationLevel", "validationAction", "clusteredIndex"} {
		delete(o, name)
	}
	dst = value.Append(dst, "options", value.NewDocument(o.Doc()))
	return value.End(value.Append(dst, "info", value.NewDocument(value.Doc(value.F("readOnly", value.NewBool(false))))), m)
}

func listDatabasesSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "listDatabases", Roles: command.All, Kind: command.Read, API: true, AdminOnly: true, ArgTypes: command.TAny, Run: n.runListDatabases,
		Fields: []command.Field{
			command.Opt("filter", command.TObject), command.Opt("nameOnly", command.TSafeBool), command.Opt("authorizedDatabases", command.TBool),
		},
	}
}

func (n *Node) runListDatabases(op *command.Op, dst []byte) ([]byte, error) {
	filter, err := n.listFilter(op)
	if err != nil {
		return dst, err
	}
	nameOnly := op.Bool("nameOnly")
	s := n.Engine.Snapshot()
	defer s.Release()
	op.AdvanceOperationTime(uint64(s.Timestamp()))
	dst, m := value.BeginKey(dst, value.Array, "databases")
	var total int64
	i := 0
	for _, db := range s.Catalog().Databases() {
		f := []value.Field{value.F("name", value.NewString(db))}
		var size int64
		if !nameOnly {
			t, err := n.databaseTotals(s.Catalog().Collections(db))
			if err != nil {
				return dst, err
			}
			size = t.storage + t.indexSize
			f = append(f, value.F("sizeOnDisk", value.NewInt64(size)), value.F("empty", value.NewBool(false)))
		}
		doc := value.Doc(f...)
		if filter != nil {
			if ok, err := filter.Match(doc); err != nil {
				return dst, err
			} else if !ok {
				continue
			}
		}
		dst = value.AppendIndex(dst, i, value.NewDocument(doc))
		total += size
		i++
	}
	dst = value.End(dst, m)
	if !nameOnly {
		dst = value.Append(dst, "totalSize", value.NewInt64(total))
		dst = value.Append(dst, "totalSizeMb", value.NewInt64(total>>20))
	}
	return dst, nil
}

func listIndexesSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "listIndexes", Roles: command.All, Kind: command.Read, Namespace: true, ArgTypes: command.TString | command.TOther, API: true, Run: n.runListIndexes,
		Fields: []command.Field{
			command.Opt("cursor", command.TObject), command.Opt("includeBuildUUIDs", command.TSafeBool),
			command.Opt("includeIndexBuildInfo", command.TSafeBool), command.Opt("collectionUUID", command.TAny),
			command.Opt("isTimeseriesNamespace", command.TSafeBool),
		},
	}
}

func (n *Node) runListIndexes(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	size, err := batchSizeOf(op)
	if err != nil {
		return dst, err
	}
	build := listBuilds{uuids: op.Bool("includeBuildUUIDs"), info: op.Bool("includeIndexBuildInfo")}
	if build.uuids && build.info {
		return dst, command.BadOption("Only one of includeBuildUUIDs or includeIndexBuildInfo may be specified")
	}
	s := n.Engine.Snapshot()
	defer s.Release()
	op.AdvanceOperationTime(uint64(s.Timestamp()))
	c, ts, err := namespace.FindFor(op, s, ns)
	if err != nil {
		return dst, err
	}
	if c == nil {
		return dst, namespace.NotFound(ns)
	}
	return n.replyList(op, dst, ns, indexList(c, ts, build), size)
}

// listBuilds selects how listIndexes shows indexes that are being built.
type listBuilds struct{ uuids, info bool }

// indexList returns the documents of listIndexes.
func indexList(c *catalog.Collection, ts *namespace.SeriesOptions, b listBuilds) (docs [][]byte) {
	add := func(spec []byte, idx *catalog.Index) {
		building := idx != nil && !idx.Ready
		switch {
		case b.info && building:
			spec = value.Doc(value.F("spec", value.NewDocument(spec)),
				value.F("indexBuildInfo", value.NewDocument(value.Doc(value.F("buildUUID", idx.Build.UUID.Value())))))
		case b.info:
			spec = value.Doc(value.F("spec", value.NewDocument(spec)))
		case b.uuids && building:
			spec = value.Doc(value.F("spec", value.NewDocument(spec)), value.F("buildUUID", idx.Build.UUID.Value()))
		}
		docs = append(docs, spec)
	}
	if spec := clusteredSpec(c); spec != nil {
		add(spec, nil)
	}
	for _, idx := range c.Indexes {
		spec := listedSpec(idx)
		if ts != nil {
			spec = namespace.UserIndexSpec(ts, spec)
		}
		add(spec, idx)
	}
	return docs
}

// clusteredSpec returns the clustered index as listIndexes shows it; nil if the collection has none, or holds
// the buckets of a time series.
func clusteredSpec(c *catalog.Collection) []byte {
	v := value.Lookup(c.Options, "clusteredIndex")
	if v.T != value.Document {
		return nil
	}
	return value.WithField(v.Doc(), "clustered", value.NewBool(true))
}
