package router

import (
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// sums adds up the numeric fields of documents by name, in the order in which the names were first seen.
type sums struct {
	names []string
	total map[string]float64
	ints  map[string]bool
	longs map[string]bool
}

func (s *sums) add(doc []byte, skip map[string]bool) {
	if s.total == nil {
		s.total, s.ints, s.longs = map[string]float64{}, map[string]bool{}, map[string]bool{}
	}
	for k, v := range value.Elements(doc) {
		if !v.T.Numeric() || skip[k] {
			continue
		}
		if _, ok := s.total[k]; !ok {
			s.names, s.ints[k] = append(s.names, k), true
		}
		s.total[k] += v.AsFloat64()
		s.ints[k] = s.ints[k] && v.T != value.Double && v.T != value.Decimal128
		s.longs[k] = s.longs[k] || v.T == value.Int64
	}
}

func (s *sums) value(name string) value.Value {
	if s.ints[name] && s.longs[name] {
		return value.NewInt64(int64(s.total[name]))
	}
	if s.ints[name] {
		return intValue(int64(s.total[name]))
	}
	return value.NewDouble(s.total[name])
}

// notSummed are fields of collStats and dbStats that concern a single shard or repeat the request.
var notSummed = map[string]bool{
	"ok": true, "scaleFactor": true, "max": true, "maxSize": true, "nindexes": true, "avgObjSize": true, "operationTime": true,
	"fsUsedSize": true, "fsTotalSize": true,
}

// collStats on a sharded collection adds up the shards' figures and shows each shard's under shards. For a time series, it asks the shards
// that have buckets.
func (r *Router) collStats(op *command.Op, dst []byte) ([]byte, error) {
	return r.onOwnersOrBuckets(op, appendCollStats, dst)
}

// onOwnersOrBuckets is onOwners; for a time series, it asks the shards that have buckets.
func (r *Router) onOwnersOrBuckets(op *command.Op, merge func(*cluster.CollectionInfo, []shardReply, []byte) ([]byte, error), dst []byte) ([]byte, error) {
	if ns, err := cmdNS(op); err == nil {
		info, err := r.collection(op, ns)
		if err != nil {
			return dst, err
		}
		if buckets, err := r.freshBuckets(op, info); err != nil {
			return dst, err
		} else if buckets != nil {
			return r.onBucketsOf(op, ns, merge, dst)
		}
	}
	return r.onOwners(op, false, dst, merge)
}

// onBucketsOf is onOwners for a time series collection whose buckets have an entry in the catalog.
func (r *Router) onBucketsOf(op *command.Op, ns string, merge func(*cluster.CollectionInfo, []shardReply, []byte) ([]byte, error), dst []byte) ([]byte, error) {
	op.Stats.NS, op.Stats.Type = ns, "command"
	from := len(dst)
	err := r.routed(op, timeseries.BucketsOf(ns), false, func(buckets *cluster.CollectionInfo) error {
		body := onBuckets(op.Req.Body, buckets)
		replies := r.scatter(op, buckets.Shards(), func(s string) ([]byte, []wire.Sequence) { return versioned(body, buckets, s), nil })
		err := firstError(replies)
		switch {
		case err != nil:
		case buckets.Sharded():
			dst, err = merge(buckets, replies, dst[:from])
		default:
			dst, err = firstReply(buckets, replies, dst[:from])
		}
		return err
	})
	return dst, err
}

// appendCollStats appends the sums of the shards' replies to collStats.
func appendCollStats(info *cluster.CollectionInfo, replies []shardReply, dst []byte) ([]byte, error) {
	var s sums
	for i := range replies {
		s.add(replies[i].body, notSummed)
	}
	first := replies[0].body
	dst = value.Append(dst, "sharded", value.NewBool(true))
	dst = value.Append(dst, "capped", value.NewBool(false))
	dst = value.Append(dst, "ns", value.Lookup(first, "ns"))
	if v := value.Lookup(first, "timeseries"); v.T == value.Document {
		f := []value.Field{value.F("bucketsNs", value.Lookup(v.Doc(), "bucketsNs"))}
		for k, n := range value.Elements(sumDocs(replies, "timeseries")) {
			f = append(f, value.F(k, n))
		}
		dst = value.Append(dst, "timeseries", value.NewDocument(value.Doc(f...)))
	}
	for _, n := range s.names {
		dst = value.Append(dst, n, s.value(n))
	}
	if n := s.total["count"]; n > 0 {
		dst = value.Append(dst, "avgObjSize", value.NewDouble(s.total["size"]/n))
	}
	dst = value.Append(dst, "indexSizes", value.NewDocument(sumDocs(replies, "indexSizes")))
	dst = value.Append(dst, "nindexes", value.Lookup(first, "nindexes"))
	dst = value.Append(dst, "scaleFactor", value.Lookup(first, "scaleFactor"))
	dst = value.Append(dst, "nchunks", value.NewInt32(int32(info.Map.Len())))
	return appendShards(dst, replies), nil
}

func sumDocs(replies []shardReply, field string) []byte {
	var s sums
	for i := range replies {
		s.add(value.Lookup(replies[i].body, field).Doc(), nil)
	}
	dst, m := value.Begin(nil)
	for _, n := range s.names {
		dst = value.Append(dst, n, s.value(n))
	}
	return value.End(dst, m)
}

func appendShards(dst []byte, replies []shardReply) []byte {
	dst, m := value.BeginKey(dst, value.Document, "shards")
	for i := range replies {
		dst = value.Append(dst, replies[i].shard, value.NewDocument(rebuild(replies[i].body, map[string]bool{"$clusterTime": true, "operationTime": true})))
	}
	return value.End(dst, m)
}

// dbStats adds up all shards' figures for a database.
func (r *Router) dbStats(op *command.Op, dst []byte) ([]byte, error) {
	if cluster.FixedDatabase(op.DB()) {
		return r.toPrimaryRead(op, dst)
	}
	replies, err := r.askAllShards(op)
	if err != nil {
		return dst, err
	}
	if dst, err = r.rawReplies(nil, replies, dst); err != nil {
		return dst, err
	}
	dst = value.Append(dst, "db", value.NewString(op.DB()))
	var s sums
	for i := range replies {
		s.add(replies[i].body, notSummed)
	}
	for _, n := range s.names {
		dst = value.Append(dst, n, s.value(n))
		if n == "objects" {
			avg := 0.0
			if s.total[n] > 0 {
				scale, _ := value.Lookup(replies[0].body, "scaleFactor").AsInt64()
				avg = s.total["dataSize"] * float64(max(scale, 1)) / s.total[n]
			}
			dst = value.Append(dst, "avgObjSize", value.NewDouble(avg))
		}
	}
	return value.Append(dst, "scaleFactor", value.Lookup(replies[0].body, "scaleFactor")), nil
}

// allShards lists the ids of all shards.
func (r *Router) allShards(op *command.Op) ([]string, error) {
	all, err := r.Registry.All(op)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(all))
	for i, s := range all {
		ids[i] = s.ID
	}
	return ids, nil
}

// dataSize adds up size and count over the shards; its value is a full namespace.
func (r *Router) dataSize(op *command.Op, dst []byte) ([]byte, error) {
	ns := op.Req.Cmd.Str()
	from := len(dst)
	err := r.routed(op, ns, false, func(info *cluster.CollectionInfo) error {
		var err error
		if !info.Sharded() {
			dst, err = r.toHome(op, info, dst[:from])
			return err
		}
		replies := r.scatter(op, info.Shards(), func(s string) ([]byte, []wire.Sequence) { return versioned(op.Req.Body, info, s), nil })
		if err := firstError(replies); err != nil {
			return err
		}
		var s sums
		for i := range replies {
			s.add(replies[i].body, notSummed)
		}
		dst = dst[:from]
		dst = value.Append(dst, "estimate", value.Lookup(replies[0].body, "estimate"))
		dst = value.Append(dst, "size", value.NewInt64(int64(s.total["size"])))
		dst = value.Append(dst, "numObjects", value.NewInt64(int64(s.total["numObjects"])))
		if slices.ContainsFunc(replies, func(r shardReply) bool { return value.Lookup(r.body, "maxReached").Truthy() }) {
			dst = value.Append(dst, "maxReached", value.NewBool(true))
		}
		dst = value.Append(dst, "millis", value.NewInt64(int64(s.total["millis"])))
		return nil
	})
	return dst, err
}
