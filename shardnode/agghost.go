package shardnode

import (
	"context"
	"strings"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/spill"
)

// aggHost implements agg.Host on this node. All its reads use the aggregate's own snapshot.
type aggHost struct {
	n *Node
	// versioned means that the aggregate came through a router, which can run what this shard cannot.
	versioned bool
	snap      *storage.Snapshot
	lang      *exec.Lang
	bound     map[string]bool // the other collections that bind has accepted
}

// bind returns an error for a collection besides the aggregate's own that this shard does not have all of. It asks once about each.
//
// Invariant: what an aggregate may read when it begins it reads to its end, as its snapshot has it. A cursor keeps the metadata that it began with: the snapshot has
// the documents of a collection that is moved, sharded or dropped later, and a router cannot run the rest of a pipeline of which it has returned the first results.
func (h *aggHost) bind(op *command.Op, ns string) error {
	if !h.versioned || h.bound[ns] {
		return nil
	}
	sharded, err := foreignSharded(h.n, op, ns, h.snap)
	if err != nil {
		return err
	}
	if sharded {
		return namespace.ShardedForeign(ns)
	}
	if h.bound == nil {
		h.bound = map[string]bool{}
	}
	h.bound[ns] = true
	return nil
}

// bindAll binds the collections that an aggregate's stages read, and those that the views among them read, so that an error does not come in the middle of the results.
func (h *aggHost) bindAll(op *command.Op, from []agg.Namespace, opts *agg.Options) error {
	if !h.versioned {
		return nil
	}
	for seen := map[agg.Namespace]bool{}; len(from) > 0; from = from[1:] {
		f := from[0]
		if seen[f] {
			continue
		}
		seen[f] = true
		ns := f.String()
		if r, err := namespace.Resolve(h.snap, ns); err == nil && r != nil {
			ns = r.NS
			from = append(from, agg.Reads(r.Pipeline, opts)...)
		}
		if err := h.bind(op, ns); err != nil {
			return err
		}
	}
	return nil
}

func namespaceOf(ns string) agg.Namespace {
	return agg.Namespace{DB: catalog.DBOf(ns), Coll: catalog.CollOf(ns)}
}

// Resolve implements agg.Host.
func (h *aggHost) Resolve(ctx context.Context, ns agg.Namespace) (agg.Namespace, []value.Value, error) {
	r, err := namespace.Resolve(h.snap, ns.String())
	if err != nil || r == nil {
		return ns, nil, err
	}
	return namespaceOf(r.NS), r.Pipeline, r.Allows(h.lang.Coll)
}

// Find implements agg.Host.
func (h *aggHost) Find(ctx context.Context, ns agg.Namespace, q agg.Query) (agg.Source, error) {
	op := command.FromContext(ctx)
	if err := h.bind(op, ns.String()); err != nil {
		return nil, err
	}
	coll := h.snap.Catalog().Lookup(ns.String())
	var spec *collation.Spec
	if q.Collation != nil {
		var err error
		if spec, err = collation.Parse(q.Collation); err != nil {
			return nil, err
		}
	}
	l, err := h.n.exec.NewLang(op, spec, nil)
	if err != nil {
		return nil, err
	}
	inner := &exec.Query{NS: ns.String(), Coll: coll, Snap: h.snap, Collation: spec, Scope: l.Scope, Filter: q.Filter, Sort: q.Sort, Skip: q.Skip, Limit: q.Limit, AllowDiskUse: true}
	if err := inner.Compile(nil); err != nil {
		return nil, err
	}
	stream, err := h.n.exec.Execute(op, inner)
	if err != nil {
		return nil, err
	}
	return exec.NewSource(stream, nil), nil
}

// Indexed implements agg.IndexChecker.
func (h *aggHost) Indexed(ns agg.Namespace, path string, _ []byte) bool {
	coll := h.snap.Catalog().Lookup(ns.String())
	if coll == nil || path == "_id" {
		return true
	}
	for _, ix := range coll.Indexes {
		if !ix.Ready || ix.Hidden || ix.Spec.PartialFilter != nil {
			continue
		}
		it := value.Walk(ix.Spec.KeyPattern)
		if k, _, ok := it.Next(); ok && (string(k) == path || strings.HasSuffix(string(k), "$**")) {
			return true
		}
	}
	return false
}

// NearPath implements agg.NearFinder.
func (h *aggHost) NearPath(ns agg.Namespace) (string, error) {
	return exec.NearPath(ns.String(), h.snap.Catalog().Lookup(ns.String()))
}

// Info implements agg.Host.
func (h *aggHost) Info(ctx context.Context, ns agg.Namespace, stage string, spec value.Value) (agg.Source, error) {
	docs, err := h.n.stageInfo(command.FromContext(ctx), h.snap, ns.String(), stage, spec)
	if err != nil {
		return nil, err
	}
	return agg.NewSliceSource(docs), nil
}

// Writer implements agg.Host.
func (h *aggHost) Writer(ctx context.Context, spec agg.WriteSpec) (agg.Writer, error) {
	return h.n.writes.Output(command.FromContext(ctx), spec, h.lang.Coll)
}

// Spill implements agg.Host.
func (h *aggHost) Spill() agg.Spiller {
	if w, ok := h.lang.Env.Work.(*command.Work); ok {
		w.UsedDisk()
	}
	return spill.Pipelines{Store: h.n.spillStore()}
}
