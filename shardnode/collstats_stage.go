package shardnode

import (
	"math"

	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// collStatsStage returns the one document of $collStats. ns may be a view, which has latency statistics only.
func (n *Node) collStatsStage(s *storage.Snapshot, ns string, spec []byte) ([]byte, error) {
	if series, ok := timeseries.SeriesOf(ns); ok && s.Catalog().Lookup(ns) != nil {
		ns = series // a router names the buckets
	}
	dst, m := value.Begin(nil)
	dst = value.Append(dst, "ns", value.NewString(ns))
	dst = n.appendShard(dst)
	dst = value.Append(dst, "host", value.NewString(n.Host))
	dst = value.Append(dst, "localTime", value.NewTime(n.now()))
	if v := asked(spec, "latencyStats"); v.T == value.Document {
		dst = n.latency.appendTo(dst, ns, value.Lookup(v.Doc(), "histograms").Truthy())
	}
	storageStats, count, exec := asked(spec, "storageStats"), asked(spec, "count"), asked(spec, "queryExecStats")
	if storageStats.T != value.Document && count.T != value.Document && exec.T != value.Document {
		return value.End(dst, m), nil
	}
	c, ts, err := namespace.FindCollection(s, ns)
	if b := namespace.Buckets(s.Catalog(), ns); b != nil && err == nil && c == nil { // the view is on the primary shard of the database
		c, ts = b, namespace.SeriesIn(b).Options
	}
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "Unable to retrieve storageStats in $collStats stage :: caused by :: Collection [%s] not found.", ns)
	}
	if storageStats.T == value.Document {
		var sm int
		dst, sm = value.BeginKey(dst, value.Document, "storageStats")
		if dst, err = n.appendCollStats(dst, c, ts, stageScale(storageStats.Doc())); err != nil {
			return nil, err
		}
		dst = value.End(dst, sm)
	}
	if count.T == value.Document {
		dst = value.Append(dst, "count", value.NewInt(c.Counters.Records.Load()))
	}
	if exec.T == value.Document {
		all := c.Counters.Scans.Load()
		scans := value.Doc(value.F("total", value.NewInt64(all)), value.F("nonTailable", value.NewInt64(all-c.Counters.TailScans.Load())))
		dst = value.Append(dst, "queryExecStats", value.NewDocument(value.Doc(value.F("collectionScans", value.NewDocument(scans)))))
	}
	return value.End(dst, m), nil
}

// asked returns the last field of that name whose value is a document.
func asked(spec []byte, name string) (found value.Value) {
	for k, v := range value.Elements(spec) {
		if k == name && v.T == value.Document {
			found = v
		}
	}
	return found
}

// stageScale returns the scale of storageStats, limited to an int32.
func stageScale(spec []byte) int64 {
	v := value.Lookup(spec, "scale")
	if !v.T.Numeric() {
		return 1
	}
	return min(max(value.SafeInt64(v), 1), math.MaxInt32)
}
