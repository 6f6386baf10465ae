package router

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/distinct"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/viewquery"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// count implements the command: it returns the sum of the shards' counts, with skip and limit applied to the sum.
func (r *Router) count(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return r.relayAny(op, dst)
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	return r.routedOrView(op, ns, dst, r.countOn, r.countOnView)
}

func (r *Router) countOn(op *command.Op, info *cluster.CollectionInfo, dst []byte) ([]byte, error) {
	shards, err := target(info, op.Req.Doc("query"), collatedBy(info, op.Req.Doc("collation")))
	if err != nil {
		return dst, err
	}
	if len(shards) == 1 {
		return r.relay(op, shards[0], nil, info.Suffix(shards[0]), dst)
	}
	skip, limit := op.Req.Int("skip", 0), op.Req.Int("limit", 0)
	if skip < 0 {
		return dst, mongoerr.Newf(mongoerr.BadValue, "BSON field 'skip' value must be >= 0, actual value '%d'", skip)
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

// intValue returns an int if it fits, else a long, as counts are reported.
func intValue(n int64) value.Value {
	if n == int64(int32(n)) {
		return value.NewInt32(int32(n))
	}
	return value.NewInt64(n)
}

// countOnView counts with the aggregate that the view translates to.
func (r *Router) countOnView(op *command.Op, view *viewDef, dst []byte) ([]byte, error) {
	docs, err := r.viewDocs(op, view, viewquery.Count(op.Req.Body, op.Req.Int("skip", 0), op.Req.Int("limit", 0)))
	if err != nil {
		return dst, err
	}
	n := int64(0)
	if len(docs) > 0 {
		n, _ = value.Lookup(docs[0], "count").AsInt64()
	}
	return value.Append(dst, "n", intValue(n)), nil
}

// distinct implements the command: it returns the union of the shards' values.
func (r *Router) distinct(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return r.relayAny(op, dst)
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	return r.atSnapshot(op, dst, func(dst []byte) ([]byte, error) {
		return r.routedOrView(op, ns, dst, r.distinctOn, r.distinctOnView)
	})
}

func (r *Router) distinctOn(op *command.Op, info *cluster.CollectionInfo, dst []byte) ([]byte, error) {
	shards, err := target(info, op.Req.Doc("query"), collatedBy(info, op.Req.Doc("collation")))
	if err != nil {
		return dst, err
	}
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
	all := distinct.New("", spec.Collator())
	for i := range replies {
		if err := all.AddArray(value.Lookup(replies[i].body, "values").Doc()); err != nil {
			return dst, err
		}
	}
	dst = value.Append(dst, "values", value.NewArray(all.Sorted()))
	return appendSnapshotTime(dst, op), nil
}

// distinctOnView finds distinct values with the aggregate that the view translates to.
func (r *Router) distinctOnView(op *command.Op, view *viewDef, dst []byte) ([]byte, error) {
	spec, err := collationFor(viewCollation(op.Req.Body, view).Doc(), &cluster.CollectionInfo{})
	if err != nil {
		return dst, err
	}
	docs, err := r.viewDocs(op, view, viewquery.Distinct(op.Req.Body))
	if err != nil {
		return dst, err
	}
	all := distinct.New("", spec.Collator())
	if len(docs) > 0 {
		if err := all.AddArray(value.Lookup(docs[0], "distinct").Doc()); err != nil {
			return dst, err
		}
	}
	op.IntOK = true
	return appendSnapshotTime(value.Append(dst, "values", value.NewArray(all.Sorted())), op), nil
}
