package router

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/spill"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// aggHost implements agg.Host for the merge part of a pipeline. It holds no operation: a cursor outlives the
// one that opened it, and each call passes the current one as its context.
type aggHost struct {
	r         *Router
	collation *collation.Spec // of the pipeline; nil for simple
}

// Resolve implements agg.Host: it asks the database's primary shard whether the namespace is a view.
func (h *aggHost) Resolve(ctx context.Context, ns agg.Namespace) (agg.Namespace, []value.Value, error) {
	op := command.FromContext(ctx)
	var pipeline []value.Value
	for depth := 0; depth < 20; depth++ {
		info, err := h.r.collection(op, ns.String())
		if err != nil || info.Map != nil {
			return ns, pipeline, err
		}
		def, err := h.r.viewDefinition(op, info, ns)
		if err != nil || def == nil {
			return ns, pipeline, err
		}
		pipeline = append(value.Values(value.Lookup(def, "pipeline").Doc()), pipeline...)
		ns.Coll = value.Lookup(def, "viewOn").Str()
	}
	return ns, nil, mongoerr.New(mongoerr.ViewDepthLimitExceeded, "View depth limit exceeded; maximum depth is 20")
}

// viewDefinition returns the options of a view ({viewOn, pipeline, collation}), nil if it is not a view.
func (r *Router) viewDefinition(op *command.Op, info *cluster.CollectionInfo, ns agg.Namespace) ([]byte, error) {
	if at := readsAt(op); at != 0 {
		return r.viewDefinitionAt(op, ns, at)
	}
	p, err := r.peer(op, info.DB.Primary)
	if err != nil {
		return nil, err
	}
	docs, err := cluster.FindAll(op, p, ns.DB, msg.Doc(&msg.ListCollections{DB: ns.DB, Filter: value.Doc(value.F("name", value.NewString(ns.Coll)))}))
	if err != nil || len(docs) == 0 {
		return nil, err
	}
	switch options := value.LookupDoc(docs[0], "options"); value.Lookup(docs[0], "type").Str() {
	case "view":
		return options, nil
	case "timeseries": // its shard unpacks the buckets, unless they are on others
		buckets, err := r.freshBuckets(op, info)
		if err != nil || buckets == nil {
			return nil, err
		}
		return unpackingView(buckets, value.LookupDoc(options, "timeseries")), nil
	}
	return nil, nil
}

// viewDefinitionAt is viewDefinition for a cluster time.
func (r *Router) viewDefinitionAt(op *command.Op, ns agg.Namespace, at uint64) ([]byte, error) {
	views := cluster.Find{NS: ns.DB + ".system.views", Filter: value.Doc(value.F("_id", value.NewString(ns.String()))), Limit: 1}
	info, err := r.collection(op, views.NS)
	if err != nil {
		return nil, err
	}
	p, err := r.peer(op, info.Home())
	if err != nil {
		return nil, err
	}
	concern := value.Append(nil, "readConcern", value.NewDocument(snapshotConcern(at).Doc))
	docs, err := cluster.FindAll(op, p, ns.DB, versioned(views.Doc(concern), info, info.Home()))
	if err != nil || len(docs) == 0 {
		return nil, err
	}
	if value.Lookup(docs[0], "viewOn").Str() == timeseries.BucketsPrefix+ns.Coll { // its shard unpacks the buckets, unless they are on others
		buckets, err := r.collection(op, timeseries.BucketsOf(ns.String()))
		if err != nil || buckets.Map == nil {
			return nil, err
		}
	}
	return docs[0], nil
}

// Find implements agg.Host.
func (h *aggHost) Find(ctx context.Context, ns agg.Namespace, q agg.Query) (agg.Source, error) {
	op := command.FromContext(ctx)
	find := cluster.Find{NS: ns.String(), Filter: q.Filter, Sort: q.Sort, Collation: q.Collation}
	if q.Limit > 0 {
		find.Limit = q.Limit + q.Skip
	}
	body := find.Doc(carried(op), concern(op))
	var c *mergeCursor
	err := h.r.routed(op, ns.String(), false, func(info *cluster.CollectionInfo) error {
		spec, err := collationFor(q.Collation, info)
		if err != nil {
			return err
		}
		c = &mergeCursor{extra: carried(op), skip: q.Skip, limit: q.Limit}
		if q.Sort != nil {
			if c.sort, err = newSortKeys(q.Sort, spec.Collator()); err != nil {
				return err
			}
		}
		shards, err := target(info, q.Filter, collatedBy(info, q.Collation))
		if err != nil {
			return err
		}
		c.remotes, err = h.r.openRemotes(op, shards, func(s string) []byte { return versioned(body, info, s) })
		return err
	})
	if err != nil {
		return nil, err
	}
	return &mergeSource{c: c, r: h.r}, nil
}

// concern returns the command's read concern for the other reads of its pipeline; nil in a transaction, whose
// participants have theirs.
func concern(op *command.Op) []byte {
	if transactionOf(op) != nil {
		return nil
	}
	return readConcern(op)
}

// RunHead implements agg.HeadRunner.
func (h *aggHost) RunHead(ctx context.Context, ns agg.Namespace, head agg.Split) (agg.Source, error) {
	op := command.FromContext(ctx)
	opts := head.Shard.Options()
	body := msg.With(&msg.Aggregate{
		DB: ns.DB, On: value.NewString(ns.Coll), Pipeline: head.Shard.Wire().Doc(), Cursor: new(msg.Cursor), FromRouter: true, NeedsMerge: true,
		Constants: opts.Scope.Env().Constants().Doc(), Collation: opts.Collation,
	}, carried(op), concern(op))
	var c *mergeCursor
	err := h.r.routed(op, ns.String(), false, func(info *cluster.CollectionInfo) error {
		spec, err := collationFor(opts.Collation, info)
		if err != nil {
			return err
		}
		c = &mergeCursor{extra: carried(op)}
		if head.MergeSort != nil {
			if c.sort, err = newSortKeys(head.MergeSort, spec.Collator()); err != nil {
				return err
			}
		}
		c.remotes, err = h.r.openRemotes(op, info.Shards(), func(s string) []byte { return versioned(body, info, s) })
		return err
	})
	if err != nil {
		return nil, err
	}
	return &mergeSource{c: c, r: h.r}, nil
}

// Info implements agg.Host: the shards report, the router concatenates.
func (h *aggHost) Info(ctx context.Context, ns agg.Namespace, stage string, spec value.Value) (agg.Source, error) {
	op := command.FromContext(ctx)
	coll := value.NewString(ns.Coll)
	if ns.Coll == "$cmd.aggregate" || ns.Coll == "" {
		coll = msg.Whole()
	}
	body := msg.Doc(&msg.Aggregate{DB: ns.DB, On: coll, Pipeline: value.ArrayOf(value.NewDocument(value.Doc(value.F(stage, spec)))), Cursor: new(msg.Cursor)})
	c := &mergeCursor{extra: carried(op)}
	err := h.r.routed(op, ns.String(), false, func(info *cluster.CollectionInfo) error {
		var err error
		c.remotes, err = h.r.openRemotes(op, info.Shards(), func(s string) []byte { return versioned(body, info, s) })
		return err
	})
	if err != nil {
		return nil, err
	}
	return &mergeSource{c: c, r: h.r}, nil
}

// Spill implements agg.Host.
func (h *aggHost) Spill() agg.Spiller { return spill.Pipelines{Store: spill.Dir(h.r.TempDir)} }

// Writer implements agg.Host.
func (h *aggHost) Writer(ctx context.Context, w agg.WriteSpec) (agg.Writer, error) {
	op := command.FromContext(ctx)
	if err := op.AdoptConcern(); err != nil {
		return nil, err
	}
	if w.Stage == "$out" {
		info, err := h.outTarget(op, w.NS)
		if err != nil {
			return nil, err
		}
		return newOutWriter(h, op, w, info)
	}
	info, err := h.r.collectionForWrite(op, w.NS.String())
	if err != nil {
		return nil, err
	}
	return newMergeWriter(h, op, w, info)
}

// outTarget returns the placement of the target of an $out as it is now, and refuses one that is sharded. Nothing is sent to the shards of such a target, so no stale
// error would ever tell the router that it is not sharded any more.
func (h *aggHost) outTarget(op *command.Op, ns agg.Namespace) (*cluster.CollectionInfo, error) {
	h.r.Catalog.InvalidateCollection(ns.String())
	info, err := h.r.collectionForWrite(op, ns.String())
	if err != nil {
		return nil, err
	}
	buckets, err := h.r.freshBuckets(op, info)
	switch {
	case err != nil:
		return nil, err
	case !info.Sharded() && (buckets == nil || !buckets.Sharded()):
		return info, nil
	case info.Late() != nil:
		return nil, info.Late()
	}
	return nil, mongoerr.Newf(mongoerr.NamespaceCannotBeSharded, "%s cannot be sharded", ns)
}

// maxMergeBatch is the maximum number of documents in a write of $out or $merge.
const maxMergeBatch = 1000

// runWrite routes a write of the router's own through the commands that clients use.
func (h *aggHost) runWrite(ctx context.Context, body []byte) error {
	return waited(h.runReply(ctx, body))
}

// waited returns the error of a command that waits for its write concern: its own, or that of the wait.
func waited(reply []byte, err error) error {
	if err != nil {
		return err
	}
	if e := cluster.WriteConcernErrorOf(reply); e != nil {
		return e
	}
	return nil
}

// runReply is runWrite for a caller that checks the reply's writeConcernError itself.
func (h *aggHost) runReply(ctx context.Context, body []byte) ([]byte, error) {
	reply, err := h.run(ctx, body)
	if err != nil {
		return nil, err
	}
	for _, e := range value.Values(value.Lookup(reply, "writeErrors").Doc()) {
		return nil, writeErrorOf(e.Doc())
	}
	return reply, nil
}

// run is runReply for a caller that checks the reply's writeErrors, too.
func (h *aggHost) run(ctx context.Context, body []byte) ([]byte, error) {
	m := wire.Message{OpCode: wire.OpMsg, Body: body}
	reply := h.r.Service.Run(ctx, h.r.internalClient(), &m, nil)
	return reply, cluster.ReplyError(reply)
}

// writeErrorOf returns an entry of writeErrors as an error.
func writeErrorOf(e []byte) error {
	code, _ := value.Lookup(e, "code").AsInt64()
	err := mongoerr.New(mongoerr.Code(code), value.Lookup(e, "errmsg").Str())
	if d := rebuildElements(e, map[string]bool{"code": true, "errmsg": true, "index": true}); len(d) > 0 {
		b, mark := value.Begin(nil)
		err = err.WithDetails(value.End(append(b, d...), mark))
	}
	return err
}
