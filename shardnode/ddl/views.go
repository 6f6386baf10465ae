package ddl

import (
	"bytes"
	"strconv"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxViewPipeline is the maximum size of a view's pipeline in bytes.
const maxViewPipeline = 16 * 1000 * 1000

// maxStages is the maximum number of a pipeline's stages.
const maxStages = 1000

// parseViewPipeline reads the pipeline argument of create and collMod: null elements are dropped.
func parseViewPipeline(path string, v value.Value) ([]byte, error) {
	if v.IsMissing() {
		return value.ArrayOf(), nil
	}
	var stages []value.Value
	for i, s := range value.Values(v.Doc()) {
		switch s.T {
		case value.Null:
		case value.Document:
			stages = append(stages, s)
		default:
			return nil, command.WrongType(path+"."+strconv.Itoa(i), s.T, command.TObject)
		}
	}
	return value.ArrayOf(stages...), nil
}

// checkView checks a view's definition: its pipeline, what it reads, and its nesting on other views.
func (cs *Commands) checkView(s *storage.Snapshot, v *namespace.View) error {
	db := catalog.DBOf(v.NS)
	if v.On == "" {
		return mongoerr.New(mongoerr.BadValue, "'viewOn' cannot be empty")
	}
	if err := checkViewOn(db, v.On); err != nil {
		return err
	}
	size := 0
	for _, s := range value.Values(v.Pipeline.Doc()) {
		size += len(s.Doc())
	}
	if size > maxViewPipeline {
		return mongoerr.Newf(mongoerr.ViewPipelineMaxSizeExceeded, "View pipeline exceeds maximum size; maximum size is %d", maxViewPipeline)
	}
	if value.Count(v.Pipeline.Doc()) > maxStages {
		return mongoerr.Newf(7749501, "Pipeline length must be no longer than %d stages.", maxStages)
	}
	reads, err := cs.checkViewPipeline(v)
	if err != nil {
		return err
	}
	g := viewGraph{snap: s, changed: v, deps: append([]string{db + "." + v.On}, reads...)}
	below, err := g.depth(v.NS, 1)
	if err != nil {
		return err
	}
	above, err := g.above(v.NS)
	if err != nil {
		return err
	}
	if below+above > namespace.MaxViewDepth {
		return mongoerr.Newf(mongoerr.ViewDepthLimitExceeded, "View depth limit exceeded; maximum depth is %d", namespace.MaxViewDepth)
	}
	return g.checkCollations()
}

func checkViewOn(db, on string) error {
	if err := command.CheckCollName(db, on); err != nil {
		return err
	}
	if on[0] == '$' {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace for 'viewOn': %s.%s", db, on)
	}
	return nil
}

func (cs *Commands) checkViewPipeline(v *namespace.View) (reads []string, err error) {
	ns := agg.Namespace{DB: catalog.DBOf(v.NS), Coll: v.On}
	for i, s := range value.Values(v.Pipeline.Doc()) {
		it := value.Walk(s.Doc())
		k, _, _ := it.Next()
		if i == 0 && agg.Has(string(k), agg.NotFirstInView) {
			return nil, mongoerr.Newf(mongoerr.InvalidNamespace, "%s is not valid within a view definition", k)
		}
	}
	lang := cs.writes.Exec.Standing(nil) // whether scripts are allowed
	p, err := agg.Parse(v.Pipeline, &agg.Options{NS: ns, Collation: v.Collation, Scope: lang.Scope, InView: true, Lone: cs.node.Lone()})
	if err != nil {
		return nil, err
	}
	from, _ := p.Namespaces()
	for _, r := range from {
		reads = append(reads, r.String())
	}
	return reads, nil
}

// viewGraph has the views of a snapshot, with one of them changed.
type viewGraph struct {
	snap    *storage.Snapshot
	changed *namespace.View
	deps    []string // of the changed view
}

// dependencies lists the namespaces that a view reads; none if ns is not a view.
func (g *viewGraph) dependencies(ns string) ([]string, *namespace.View, error) {
	if ns == g.changed.NS {
		return g.deps, g.changed, nil
	}
	if g.snap.Catalog().Lookup(ns) != nil {
		return nil, nil, nil
	}
	v, err := namespace.ViewIn(g.snap, ns)
	if err != nil || v == nil {
		return nil, nil, err
	}
	deps := []string{catalog.DBOf(ns) + "." + v.On}
	if p, err := agg.Parse(v.Pipeline, &agg.Options{NS: agg.Namespace{DB: catalog.DBOf(ns), Coll: v.On}}); err == nil {
		reads, _ := p.Namespaces()
		for _, r := range reads {
			deps = append(deps, r.String())
		}
	}
	return deps, v, nil
}

// depth returns the number of views on the longest path down from ns; reaching the changed view again is a cycle.
func (g *viewGraph) depth(ns string, level int) (int, error) {
	deps, v, err := g.dependencies(ns)
	if err != nil || v == nil {
		return 0, err
	}
	if level > namespace.MaxViewDepth+1 {
		return 0, mongoerr.Newf(mongoerr.ViewDepthLimitExceeded, "View depth limit exceeded; maximum depth is %d", namespace.MaxViewDepth)
	}
	longest := 0
	for _, d := range deps {
		if d == g.changed.NS {
			return 0, mongoerr.Newf(mongoerr.GraphContainsCycle, "View cycle detected: %s => %s", ns, d)
		}
		n, err := g.depth(d, level+1)
		if err != nil {
			return 0, err
		}
		longest = max(longest, n)
	}
	return longest + 1, nil
}

// above returns the number of views in the longest chain on top of ns.
func (g *viewGraph) above(ns string) (int, error) {
	views, err := namespace.ViewsOf(g.snap, catalog.DBOf(ns))
	if err != nil {
		return 0, err
	}
	on := map[string][]string{}
	for _, v := range views {
		on[catalog.DBOf(v.NS)+"."+v.On] = append(on[catalog.DBOf(v.NS)+"."+v.On], v.NS)
	}
	var climb func(ns string, level int) int
	climb = func(ns string, level int) (longest int) {
		if level > namespace.MaxViewDepth {
			return 0
		}
		for _, up := range on[ns] {
			longest = max(longest, 1+climb(up, level+1))
		}
		return longest
	}
	return climb(ns, 0), nil
}

// checkCollations refuses a view on a view with another collation.
func (g *viewGraph) checkCollations() error {
	for _, d := range g.deps {
		_, v, err := g.dependencies(d)
		if err != nil {
			return err
		}
		if v != nil && !v.IsTimeseries() && !bytes.Equal(v.Collation, g.changed.Collation) {
			return mongoerr.Newf(mongoerr.OptionNotSupportedOnView, "View %s has a collation that does not match the collation of view %s", g.changed.NS, d)
		}
	}
	return nil
}
