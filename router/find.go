package router

import (
	"bytes"
	"context"
	"maps"
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/projection"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/viewquery"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// find implements the command. The documents of one shard are passed through; those of several are merged.
func (r *Router) find(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return r.relayAny(op, dst)
	}
	if !value.Lookup(op.Req.Body, mergeKeyOption).IsMissing() {
		return dst, command.UnknownField("FindCommandRequest." + mergeKeyOption)
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "query"
	return r.atSnapshot(op, dst, func(dst []byte) ([]byte, error) {
		return r.routedOrView(op, ns, dst, r.findOn, r.findOnView)
	})
}

func (r *Router) findOn(op *command.Op, info *cluster.CollectionInfo, dst []byte) ([]byte, error) {
	shards, err := target(info, op.Req.Doc("filter"), collatedBy(info, op.Req.Doc("collation")))
	if err != nil {
		return dst, err
	}
	r.targets.note(op.Req.Spec.Name, info, len(shards))
	if len(shards) == 1 {
		from := len(dst)
		out, at, err := r.relayAt(op, shards[0], nil, info.Suffix(shards[0]), dst)
		if err == nil {
			r.adopt(op, at, out, from)
		}
		return out, err
	}
	return r.findMerged(op, info, shards, dst)
}

// findMerged runs a find on several shards. Skip and projection are applied by the router where a shard cannot
// apply them by itself; limits are pushed down.
func (r *Router) findMerged(op *command.Op, info *cluster.CollectionInfo, shards []string, dst []byte) ([]byte, error) {
	c, size, err := r.newFindMerge(op, info)
	if err != nil {
		return dst, err
	}
	body, err := r.shardFind(op, info, c, size)
	if err != nil {
		return dst, err
	}
	if c.remotes, err = r.openRemotes(op, shards, func(s string) []byte { return versioned(body, info, s) }); err != nil {
		return dst, err
	}
	if c.unfinished() {
		c.extra = carried(op)
	}
	return r.openMerged(op, info.NS, c, size, op.Bool("singleBatch"), dst)
}

// newFindMerge checks the arguments that the router acts on and returns a merge for them, without remotes.
func (r *Router) newFindMerge(op *command.Op, info *cluster.CollectionInfo) (c *mergeCursor, size int64, err error) {
	c = &mergeCursor{}
	for _, f := range []struct {
		name string
		to   *int64
		def  int64
	}{{"skip", &c.skip, 0}, {"limit", &c.limit, 0}, {"batchSize", &size, defaultBatch}} {
		*f.to = op.Req.Int(f.name, f.def)
		if *f.to < 0 {
			return nil, 0, mongoerr.Newf(mongoerr.BadValue, "BSON field '%s' value must be >= 0, actual value '%d'", f.name, *f.to)
		}
	}
	if op.Bool("tailable") {
		return nil, 0, mongoerr.Newf(mongoerr.BadValue, "error processing query: ns=%s tailable cursor requested on non capped collection", info.NS)
	}
	spec, err := collationFor(op.Req.Doc("collation"), info)
	if err != nil {
		return nil, 0, err
	}
	order := op.Req.Doc("sort")
	if onlyShardsKnow(op.Req.Doc("filter"), order) {
		c.sort, c.shape = shardKeys{}, cutMergeKey
		return c, size, nil
	}
	if order == nil || value.Count(order) == 0 || isNatural(order) {
		return c, size, nil
	}
	keys, err := newSortKeys(order, spec.Collator())
	c.sort = keys
	return c, size, err
}

// onlyShardsKnow reports whether documents come in an order that their fields do not determine: by the distance of
// a $near, or by metadata such as the text score.
func onlyShardsKnow(filter, order []byte) bool {
	for _, v := range value.Elements(order) {
		if v.T == value.Document {
			return true
		}
	}
	if value.Count(order) > 0 || !bytes.Contains(filter, []byte("$near")) && !bytes.Contains(filter, []byte("$geoNear")) {
		return false
	}
	m, err := match.Compile(filter, &match.Options{})
	return err == nil && m.GeoNear() != nil
}

func isNatural(order []byte) bool { return !value.Lookup(order, "$natural").IsMissing() }

// collationFor returns the collation a command runs under: its own, or the collection's.
func collationFor(given []byte, info *cluster.CollectionInfo) (*collation.Spec, error) {
	if given == nil && info.Entry != nil {
		if d := value.Lookup(info.Entry, "defaultCollation"); d.T == value.Document {
			given = d.Doc()
		}
	}
	if given == nil || value.Count(given) == 0 {
		return nil, nil
	}
	return collation.Parse(given)
}

// notForShards are the fields of a find that the router acts on, or replaces.
var notForShards = map[string]bool{"skip": true, "limit": true, "batchSize": true, "singleBatch": true, "$clusterTime": true}

// shardFind rewrites a find for the shards. The projection is left to the router if it might drop a field that the
// merge sorts by.
func (r *Router) shardFind(op *command.Op, info *cluster.CollectionInfo, c *mergeCursor, size int64) (_ []byte, err error) {
	drop := notForShards
	var extra []byte
	if _, ok := c.sort.(shardKeys); ok {
		extra = value.Append(extra, mergeKeyOption, value.NewBool(true))
	} else if p := op.Req.Doc("projection"); p != nil && c.sort != nil && dropsFields(p, op.Req.Doc("sort")) {
		drop = maps.Clone(drop)
		drop["projection"] = true
		if c.shape, err = r.projector(op, info, p); err != nil {
			return nil, err
		}
	}
	if c.limit > 0 {
		extra = value.Append(extra, "limit", value.NewInt64(c.limit+c.skip))
	}
	if size == 0 || !op.Arg("batchSize").IsMissing() {
		extra = value.Append(extra, "batchSize", value.NewInt64(size))
	}
	return rebuild(op.Req.Body, drop, extra), nil
}

// dropsFields reports whether a projection may remove or change a field of the sort; one by $meta never can.
func dropsFields(proj, order []byte) bool {
	inclusion, exclusion := false, false
	for it := value.Walk(proj); ; {
		k, v, ok := it.Next()
		if !ok {
			break
		}
		if v.T == value.Document && !value.Lookup(v.Doc(), "$meta").IsMissing() {
			return false
		}
		if string(k) != "_id" {
			inclusion = inclusion || v.Truthy()
			exclusion = exclusion || !v.Truthy()
		}
	}
	if exclusion && !inclusion {
		for it := value.Walk(order); ; {
			k, _, ok := it.Next()
			if !ok {
				return false
			}
			for p := value.Walk(proj); ; {
				name, _, ok := p.Next()
				if !ok {
					break
				}
				if related(string(name), string(k)) {
					return true
				}
			}
		}
	}
	return true
}

// related reports whether one path equals the other or is a prefix of it.
func related(a, b string) bool {
	return a == b || strings.HasPrefix(a, b+".") || strings.HasPrefix(b, a+".")
}

// projector returns the client's projection, for documents that the router merges. It has the command's collation and variables.
func (r *Router) projector(op *command.Op, info *cluster.CollectionInfo, spec []byte) (func(ctx context.Context, doc []byte) ([]byte, error), error) {
	coll, err := collationFor(op.Req.Doc("collation"), info)
	if err != nil {
		return nil, err
	}
	scope, err := r.newScope(op, coll)
	if err != nil {
		return nil, err
	}
	scope.Env().Work = nil // later batches belong to other operations
	o := &projection.Options{Collator: coll.Collator(), Expr: scope}
	if filter := op.Req.Doc("filter"); filter != nil {
		if o.Filter, err = match.Compile(filter, &match.Options{Collator: coll.Collator(), Expr: scope}); err != nil {
			return nil, err
		}
	}
	p, err := projection.Compile(spec, o)
	if err != nil {
		return nil, err
	}
	var buf []byte
	return func(_ context.Context, doc []byte) (_ []byte, err error) {
		buf, err = p.Apply(buf[:0], doc, &projection.Meta{})
		return buf, err
	}, nil
}

// findOnView runs a find on a view as the aggregate that it translates to.
func (r *Router) findOnView(op *command.Op, view *viewDef, dst []byte) ([]byte, error) {
	pipeline, hint, err := viewquery.Find(op.Req.Body, op.Req.Int("skip", 0), op.Req.Int("limit", 0))
	if err != nil {
		return dst, err
	}
	extra := value.Append(nil, "hint", hint)
	for _, name := range []string{"collation", "comment", "maxTimeMS", "readConcern", "let", "allowDiskUse", querySettingsField} {
		extra = value.Append(extra, name, value.Lookup(op.Req.Body, name))
	}
	cur := value.Doc()
	if bs := op.Arg("batchSize"); !bs.IsMissing() {
		cur = value.Doc(value.F("batchSize", bs))
	}
	return r.aggregateOnView(op, view, pipeline, value.Append(extra, "cursor", value.NewDocument(cur)), dst)
}
