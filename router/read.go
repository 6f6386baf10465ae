package router

import (
	"sort"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// count is the command: the sum of the shards' counts, with skip and limit applied to the sum.
func (r *Router) count(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return r.relayAny(op, dst)
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	from := len(dst)
	err = r.routed(op, ns, false, func(info *cluster.CollectionInfo) error {
		var err error
		dst, err = r.countOn(op, info, dst[:from])
		return err
	})
	if mongoerr.CodeOf(err) == mongoerr.CommandOnShardedViewNotSupportedOnMongod {
		return r.countOnView(op, err.(*mongoerr.Error), dst[:from])
	}
	return dst, err
}

func (r *Router) countOn(op *command.Op, info *cluster.CollectionInfo, dst []byte) ([]byte, error) {
	shards := target(info, op.Req.Doc("query"), collatedBy(info, op.Req.Doc("collation")))
	if len(shards) == 1 {
		return r.relay(op, shards[0], nil, info.Suffix(shards[0]), dst)
	}
	skip, limit := op.Req.Int("skip", 0), op.Req.Int("limit", 0)
	if skip < 0 {
		return dst, mongoerr.Newf(51024, "BSON field 'skip' value must be >= 0, actual value '%d'", skip)
	}
	if limit < 0 {
		limit = -limit
	}
	var extra []byte
	if limit > 0 {
		extra = value.Append(extra, "limit", value.NewInt64(limit+skip))
	}
	body := rebuild(op.Req.Body, map[string]bool{"skip": true, "limit": true}, extra)
	replies := r.scatter(op, shards, func(s string) ([]byte, []wire.Sequence) { return versioned(body, info, s), nil })
	if err := firstError(replies); err != nil {
		return dst, err
	}
	n := int64(0)
	for i := range replies {
		c, _ := value.Lookup(replies[i].body, "n").AsInt64()
		n += c
	}
	n = max(0, n-skip)
	if limit > 0 {
		n = min(n, limit)
	}
	return value.Append(dst, "n", intValue(n)), nil
}

// intValue is an int where it fits, else a long: how counts are reported.
func intValue(n int64) value.Value {
	if n == int64(int32(n)) {
		return value.NewInt32(int32(n))
	}
	return value.NewInt64(n)
}

// countOnView counts by the aggregate that the view stands for.
func (r *Router) countOnView(op *command.Op, e *mongoerr.Error, dst []byte) ([]byte, error) {
	view, err := resolvedView(e)
	if err != nil {
		return dst, err
	}
	var stages []value.Value
	stage := func(name string, v value.Value) {
		stages = append(stages, value.NewDocument(value.Doc(value.F(name, v))))
	}
	if q := op.Req.Doc("query"); q != nil {
		stage("$match", value.NewDocument(q))
	}
	if n := op.Req.Int("skip", 0); n > 0 {
		stage("$skip", value.NewInt64(n))
	}
	if n := op.Req.Int("limit", 0); n != 0 {
		stage("$limit", value.NewInt64(max(n, -n)))
	}
	stage("$count", value.NewString("count"))
	docs, err := r.viewDocs(op, view, stages)
	if err != nil {
		return dst, err
	}
	n := int64(0)
	if len(docs) > 0 {
		n, _ = value.Lookup(docs[0], "count").AsInt64()
	}
	return value.Append(dst, "n", intValue(n)), nil
}

// distinct is the command: the union of the shards' values.
func (r *Router) distinct(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return r.relayAny(op, dst)
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	return r.atSnapshot(op, dst, func(dst []byte) ([]byte, error) { return r.distinctIn(op, ns, dst) })
}

func (r *Router) distinctIn(op *command.Op, ns string, dst []byte) ([]byte, error) {
	from := len(dst)
	err := r.routed(op, ns, false, func(info *cluster.CollectionInfo) error {
		var err error
		dst, err = r.distinctOn(op, info, dst[:from])
		return err
	})
	if mongoerr.CodeOf(err) == mongoerr.CommandOnShardedViewNotSupportedOnMongod {
		return r.distinctOnView(op, err.(*mongoerr.Error), dst[:from])
	}
	return dst, err
}

func (r *Router) distinctOn(op *command.Op, info *cluster.CollectionInfo, dst []byte) ([]byte, error) {
	shards := target(info, op.Req.Doc("query"), collatedBy(info, op.Req.Doc("collation")))
	if len(shards) == 1 {
		return r.relay(op, shards[0], nil, info.Suffix(shards[0]), dst)
	}
	spec, err := collationFor(op.Req.Doc("collation"), info)
	if err != nil {
		return dst, err
	}
	replies := r.scatter(op, shards, func(s string) ([]byte, []wire.Sequence) { return versioned(op.Req.Body, info, s), nil })
	if err := firstError(replies); err != nil {
		return dst, err
	}
	var all []value.Value
	seen := make(map[string]struct{})
	var key []byte
	for i := range replies {
		for _, v := range value.Values(value.Lookup(replies[i].body, "values").Doc()) {
			key = value.AppendGroupKey(key[:0], v, spec.Collator())
			if _, dup := seen[string(key)]; !dup {
				seen[string(key)] = struct{}{}
				all = append(all, v)
			}
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return value.CompareCollated(all[i], all[j], spec.Collator()) < 0 })
	dst = value.Append(dst, "values", value.NewArray(value.ArrayOf(all...)))
	return appendSnapshotTime(dst, op), nil
}

// distinctOnView finds distinct values by the aggregate that the view stands for.
func (r *Router) distinctOnView(op *command.Op, e *mongoerr.Error, dst []byte) ([]byte, error) {
	view, err := resolvedView(e)
	if err != nil {
		return dst, err
	}
	var stages []value.Value
	stage := func(name string, v value.Value) {
		stages = append(stages, value.NewDocument(value.Doc(value.F(name, v))))
	}
	if q := op.Req.Doc("query"); q != nil {
		stage("$match", value.NewDocument(q))
	}
	path := "$" + op.Req.Str("key")
	stage("$unwind", value.NewDocument(value.Doc(value.F("path", value.NewString(path)), value.F("preserveNullAndEmptyArrays", value.NewBool(false)))))
	stage("$group", value.NewDocument(value.Doc(value.F("_id", value.NewNull()),
		value.F("distinct", value.NewDocument(value.Doc(value.F("$addToSet", value.NewString(path))))))))
	docs, err := r.viewDocs(op, view, stages)
	if err != nil {
		return dst, err
	}
	vals := value.NewArray(value.ArrayOf())
	if len(docs) > 0 {
		all := value.Values(value.Lookup(docs[0], "distinct").Doc())
		sort.SliceStable(all, func(i, j int) bool { return value.Compare(all[i], all[j]) < 0 })
		vals = value.NewArray(value.ArrayOf(all...))
	}
	op.IntOK = true
	return value.Append(dst, "values", vals), nil
}
