package shardnode

import (
	"crypto/md5"
	"encoding/hex"
	"math"
	"syscall"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func collStatsSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "collStats", Aliases: []string{"collstats"}, Roles: command.All, Kind: command.Read, Namespace: true, ReadConcern: true, Run: n.runCollStats,
		Fields: []command.Field{command.Opt("scale", command.TNumber), command.Opt("isTimeseriesNamespace", command.TSafeBool)},
	}
}

// scaleOf reads a scale argument: a positive integer.
func scaleOf(op *command.Op) (int64, error) {
	v := op.Arg("scale")
	if v.IsMissing() {
		return 1, nil
	}
	return command.InRange("scale", v, 1, math.MaxInt64)
}

func (n *Node) runCollStats(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	scale, err := scaleOf(op)
	if err != nil {
		return dst, err
	}
	s := n.Engine.Snapshot()
	defer s.Release()
	c, ts, err := namespace.FindFor(op, s, ns)
	if err != nil {
		return dst, err
	}
	if series, ok := timeseries.SeriesOf(ns); ok && ts != nil {
		ns = series
	}
	dst = value.Append(dst, "ns", value.NewString(ns))
	return n.appendCollStats(dst, c, ts, scale)
}

// appendCollStats appends the statistics of a collection, as collStats and $collStats show them. c is nil if
// there is no collection.
func (n *Node) appendCollStats(dst []byte, c *catalog.Collection, ts *namespace.SeriesOptions, scale int64) ([]byte, error) {
	if c == nil {
		for _, name := range []string{"size", "count", "storageSize", "totalSize", "nindexes", "totalIndexSize"} {
			dst = value.Append(dst, name, value.NewInt32(0))
		}
		dst = value.Append(dst, "indexDetails", value.NewDocument(value.Doc()))
		dst = value.Append(dst, "indexSizes", value.NewDocument(value.Doc()))
		return value.Append(dst, "scaleFactor", value.NewInt(scale)), nil
	}
	sz, err := n.Engine.CollectionSizes(c)
	if err != nil {
		return dst, err
	}
	count, size := c.Counters.Records.Load(), c.Counters.DataSize.Load()
	dst = value.Append(dst, "size", value.NewInt(size/scale))
	if ts != nil {
		dst = value.Append(dst, "timeseries", value.NewDocument(value.Doc(
			value.F("bucketsNs", value.NewString(c.NS)), value.F("bucketCount", value.NewInt(count)))))
	} else {
		dst = value.Append(dst, "count", value.NewInt(count))
		dst = value.Append(dst, "numOrphanDocs", value.NewInt(migration.OrphanDocs(n.Docs, c)))
		if count > 0 {
			dst = value.Append(dst, "avgObjSize", value.NewInt(size/count))
		}
	}
	dst = value.Append(dst, "storageSize", value.NewInt(sz.StorageSize/scale))
	dst = value.Append(dst, "freeStorageSize", value.NewInt32(0))
	dst = value.Append(dst, "capped", value.NewBool(c.Capped))
	if c.Capped {
		dst = value.Append(dst, "max", value.NewInt(c.CappedMax))
		size := c.CappedSize
		if c.Oplog { // the oplog's maximum size is a setting of the server
			size = n.Engine.OplogLimit()
		}
		dst = value.Append(dst, "maxSize", value.NewInt(size/scale))
	}
	return appendIndexStats(dst, c, sz, scale), nil
}

func appendIndexStats(dst []byte, c *catalog.Collection, sz storage.Sizes, scale int64) []byte {
	var total int64
	building := []value.Value{}
	for _, idx := range c.Indexes {
		total += sz.IndexSizes[idx.Name]
		if !idx.Ready {
			building = append(building, value.NewString(idx.Name))
		}
	}
	dst = value.Append(dst, "nindexes", value.NewInt32(int32(len(c.Indexes))))
	dst, m := value.BeginKey(dst, value.Document, "indexDetails")
	for _, idx := range c.Indexes {
		dst = value.Append(dst, idx.Name, value.NewDocument(value.Doc(value.F("metadata", value.NewDocument(value.Doc(value.F("formatVersion", value.NewInt32(8))))))))
	}
	dst = value.End(dst, m)
	dst = value.Append(dst, "indexBuilds", value.NewArray(value.ArrayOf(building...)))
	dst = value.Append(dst, "totalIndexSize", value.NewInt(total/scale))
	dst = value.Append(dst, "totalSize", value.NewInt((total+sz.StorageSize)/scale))
	dst, m = value.BeginKey(dst, value.Document, "indexSizes")
	for _, idx := range c.Indexes {
		dst = value.Append(dst, idx.Name, value.NewInt(sz.IndexSizes[idx.Name]/scale))
	}
	dst = value.End(dst, m)
	return value.Append(dst, "scaleFactor", value.NewInt(scale))
}

// totals are the figures of a database.
type totals struct {
	collections, objects, data, storage, indexes, indexSize int64
}

func (n *Node) databaseTotals(list []*catalog.Collection) (t totals, err error) {
	for _, c := range list {
		sz, err := n.Engine.CollectionSizes(c)
		if err != nil {
			return t, err
		}
		t.collections++
		t.objects += c.Counters.Records.Load()
		t.data += c.Counters.DataSize.Load()
		t.storage += sz.StorageSize
		t.indexes += int64(len(c.Indexes))
		for _, b := range sz.IndexSizes {
			t.indexSize += b
		}
	}
	return t, nil
}

func dbStatsSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "dbStats", Aliases: []string{"dbstats"}, Roles: command.All, Kind: command.Read, ArgTypes: command.TAny, Run: n.runDBStats,
		Fields: []command.Field{command.Opt("scale", command.TNumber), command.Opt("freeStorage", command.TSafeBool)},
	}
}

func (n *Node) runDBStats(op *command.Op, dst []byte) ([]byte, error) {
	scale, err := scaleOf(op)
	if err != nil {
		return dst, err
	}
	s := n.Engine.Snapshot()
	defer s.Release()
	t, err := n.databaseTotals(s.Catalog().Collections(op.DB()))
	if err != nil {
		return dst, err
	}
	views, err := namespace.ViewsOf(s, op.DB())
	if err != nil {
		return dst, err
	}
	avg := 0.0
	if t.objects > 0 {
		avg = float64(t.data) / float64(t.objects)
	}
	scaled := func(i int64) value.Value { return value.NewDouble(float64(i) / float64(scale)) }
	dst = value.Append(dst, "db", value.NewString(op.DB()))
	dst = value.Append(dst, "collections", value.NewInt64(t.collections))
	dst = value.Append(dst, "views", value.NewInt64(int64(len(views))))
	dst = value.Append(dst, "objects", value.NewInt64(t.objects))
	dst = value.Append(dst, "avgObjSize", value.NewDouble(avg))
	dst = value.Append(dst, "dataSize", scaled(t.data))
	dst = value.Append(dst, "storageSize", scaled(t.storage))
	if op.Bool("freeStorage") {
		dst = value.Append(dst, "freeStorageSize", scaled(0))
	}
	dst = value.Append(dst, "indexes", value.NewInt64(t.indexes))
	dst = value.Append(dst, "indexSize", scaled(t.indexSize))
	if op.Bool("freeStorage") {
		dst = value.Append(dst, "indexFreeStorageSize", scaled(0))
	}
	dst = value.Append(dst, "totalSize", scaled(t.storage+t.indexSize))
	if op.Bool("freeStorage") {
		dst = value.Append(dst, "totalFreeStorageSize", scaled(0))
	}
	dst = value.Append(dst, "scaleFactor", value.NewInt64(scale))
	used, total := diskSpace()
	dst = value.Append(dst, "fsUsedSize", scaled(used))
	return value.Append(dst, "fsTotalSize", scaled(total)), nil
}

// diskSpace returns the file system's used and total size.
func diskSpace() (used, total int64) {
	var st syscall.Statfs_t
	if syscall.Statfs(".", &st) != nil {
		return 0, 0
	}
	total = int64(st.Blocks) * int64(st.Bsize)
	return total - int64(st.Bfree)*int64(st.Bsize), total
}

func dataSizeSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "dataSize", Aliases: []string{"datasize"}, Roles: command.All, Kind: command.Read, Run: n.runDataSize,
		Fields: []command.Field{
			command.Opt("keyPattern", command.TObject), command.Opt("min", command.TObject), command.Opt("max", command.TObject),
			command.Opt("estimate", command.TSafeBool), command.Opt("maxSize", command.TNumber), command.Opt("maxObjects", command.TNumber),
		},
	}
}

func (n *Node) runDataSize(op *command.Op, dst []byte) ([]byte, error) {
	v := op.Req.Cmd
	switch {
	case v.IsNullish():
		return dst, command.MissingField("dataSize.dataSize")
	case v.T != value.String:
		return dst, command.WrongType("dataSize.dataSize", v.T, command.TString)
	}
	ns := v.Str()
	if err := command.CheckFullName(ns); err != nil {
		return dst, err
	}
	low, high := op.Arg("min"), op.Arg("max")
	switch {
	case low.IsMissing() != high.IsMissing():
		return dst, mongoerr.New(mongoerr.BadValue, "min and max must be both specified or both not specified")
	case !low.IsMissing() && op.Arg("keyPattern").IsMissing():
		return dst, mongoerr.New(mongoerr.OperationFailed, "couldn't find valid index containing key pattern")
	}
	s := n.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(ns)
	if c == nil {
		if view, err := namespace.ViewIn(s, ns); err != nil {
			return dst, err
		} else if view != nil {
			return dst, namespace.NotOnView(ns)
		}
	}
	var size, count int64
	reached := false
	estimate := op.Bool("estimate")
	if c != nil {
		size, count = c.Counters.DataSize.Load(), c.Counters.Records.Load()
		if !low.IsMissing() {
			var err error
			limit := migration.RangeLimit{Bytes: op.Req.Int("maxSize", 0), Docs: op.Req.Int("maxObjects", 0)}
			if size, count, reached, err = rangeSize(op, s, c, estimate, limit); err != nil {
				return dst, err
			}
		}
	}
	dst = value.Append(dst, "estimate", value.NewBool(estimate))
	dst = value.Append(dst, "size", value.NewInt64(size))
	dst = value.Append(dst, "numObjects", value.NewInt64(count))
	if reached {
		dst = value.Append(dst, "maxReached", value.NewBool(true))
	}
	return value.Append(dst, "millis", value.NewInt64(op.Elapsed().Milliseconds())), nil
}

// rangeSize returns the size of the data in the range of a dataSize command: by an index on its key, or else by reading the whole collection.
func rangeSize(op *command.Op, s *storage.Snapshot, c *catalog.Collection, estimate bool, limit migration.RangeLimit) (size, count int64, reached bool, err error) {
	key, low, high := op.Req.Doc("keyPattern"), op.Req.Doc("min"), op.Req.Doc("max")
	size, count, reached, ok, err := migration.SizeOfRange(op, s, c, [3][]byte{key, low, high}, estimate, limit)
	if ok || err != nil {
		return size, count, reached, err
	}
	size, count, err = sizeBetween(op, s, c, key, low, high)
	return size, count, limit.Reached(size, count), err
}

// sizeBetween adds up the documents whose fields of the key pattern lie between two bounds.
func sizeBetween(op *command.Op, s *storage.Snapshot, c *catalog.Collection, key, low, high []byte) (size, count int64, err error) {
	cur := s.Scan(c, storage.ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		if err := op.Check(); err != nil {
			return 0, 0, err
		}
		doc := cur.Doc()
		if comparePattern(doc, key, low) >= 0 && comparePattern(doc, key, high) < 0 {
			size += int64(len(doc))
			count++
		}
	}
	return size, count, cur.Err()
}

// comparePattern compares a document's fields with a bound, in the order of the key pattern.
func comparePattern(doc, key, bound []byte) int {
	for k, dir := range value.Elements(key) {
		a, b := value.Lookup(doc, k), value.Lookup(bound, k)
		if a.IsMissing() {
			a = value.NewNull()
		}
		if b.IsMissing() {
			return 0
		}
		if c := value.Compare(a, b); c != 0 {
			if dir.AsFloat64() < 0 {
				return -c
			}
			return c
		}
	}
	return 0
}

func dbHashSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "dbHash", Aliases: []string{"dbhash"}, Roles: command.Shard | command.Config, Kind: command.Read, ArgTypes: command.TAny, Lenient: true,
		ReadConcern: true, Run: n.runDBHash, Fields: []command.Field{command.Opt("collections", command.TAny)},
	}
}

func (n *Node) runDBHash(op *command.Op, dst []byte) ([]byte, error) {
	want := map[string]bool{}
	if v := op.Arg("collections"); v.T == value.Array {
		for _, e := range value.Values(v.Doc()) {
			if e.T != value.String {
				return dst, mongoerr.New(mongoerr.BadValue, "collections entries have to be strings")
			}
			want[e.Str()] = true
		}
	}
	s, err := n.readSnapshot(op)
	if err != nil {
		return dst, err
	}
	defer s.Release()
	total := md5.New() //nolint:gosec
	var hashes, uuids []value.Field
	var capped []value.Value
	for _, c := range s.Catalog().Collections(op.DB()) {
		if len(want) > 0 && !want[c.Name()] || isSystemUnhashed(c.Name()) {
			continue
		}
		if c.Capped {
			capped = append(capped, value.NewString(c.Name()))
		}
		sum, err := hashCollection(op, s, c)
		if err != nil {
			return dst, err
		}
		hashes = append(hashes, value.F(c.Name(), value.NewString(sum)))
		uuids = append(uuids, value.F(c.Name(), c.UUID.Value()))
		total.Write([]byte(sum))
	}
	dst = value.Append(dst, "host", value.NewString(n.Host))
	dst = value.Append(dst, "collections", value.NewDocument(value.Doc(hashes...)))
	dst = value.Append(dst, "capped", value.NewArray(value.ArrayOf(capped...)))
	dst = value.Append(dst, "uuids", value.NewDocument(value.Doc(uuids...)))
	dst = value.Append(dst, "md5", value.NewString(hex.EncodeToString(total.Sum(nil))))
	return value.Append(dst, "timeMillis", value.NewInt64(op.Elapsed().Milliseconds())), nil
}

// isSystemUnhashed reports whether dbHash skips a system collection, because it differs between members.
func isSystemUnhashed(name string) bool {
	switch name {
	case catalog.Profile, "system.indexBuilds", "system.preimages":
		return true
	}
	return false
}

// hashCollection returns the MD5 sum of a collection's documents in order of _id.
func hashCollection(op *command.Op, s *storage.Snapshot, c *catalog.Collection) (string, error) {
	h := md5.New() //nolint:gosec
	id := c.IDIndex()
	if id == nil || c.Capped {
		cur := s.Scan(c, storage.ScanOptions{})
		defer cur.Close()
		for cur.Next() {
			if err := op.Check(); err != nil {
				return "", err
			}
			h.Write(cur.Doc())
		}
		return hex.EncodeToString(h.Sum(nil)), cur.Err()
	}
	cur := s.IndexScan(c, id, false)
	defer cur.Close()
	for cur.Next() {
		if err := op.Check(); err != nil {
			return "", err
		}
		doc, ok, err := s.Get(c, cur.RecordID())
		if err != nil {
			return "", err
		}
		if ok {
			h.Write(doc)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), cur.Err()
}
