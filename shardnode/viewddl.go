package shardnode

import (
	"bytes"
	"strconv"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// maxViewPipeline is the size of a view's pipeline in bytes.
const maxViewPipeline = 16 * 1000 * 1000

// maxStages is how many stages a pipeline may have.
const maxStages = 1000

// parseViewPipeline reads the pipeline argument of create and collMod: null elements are left out.
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

// viewDoc is a view's document in system.views.
func (v *view) makeDoc() []byte {
	f := []value.Field{value.F("_id", value.NewString(v.ns)), value.F("viewOn", value.NewString(v.on)), value.F("pipeline", v.pipeline)}
	if v.collation != nil {
		f = append(f, value.F("collation", value.NewDocument(v.collation)))
	}
	return value.Doc(f...)
}

func (v *view) isTimeseries() bool { return v.on == bucketsPrefix+catalog.CollOf(v.ns) }

// sameView compares definitions.
func sameView(a, b *view) bool {
	return a.on == b.on && bytes.Equal(a.pipeline.Doc(), b.pipeline.Doc()) && bytes.Equal(a.collation, b.collation)
}

// checkView checks a view's definition: its pipeline, what it reads, and how deep it stands on other views.
func (n *Node) checkView(s *storage.Snapshot, v *view) error {
	db := catalog.DBOf(v.ns)
	if v.on == "" {
		return mongoerr.New(mongoerr.BadValue, "'viewOn' cannot be empty")
	}
	if err := checkViewOn(db, v.on); err != nil {
		return err
	}
	size := 0
	for _, s := range value.Values(v.pipeline.Doc()) {
		size += len(s.Doc())
	}
	if size > maxViewPipeline {
		return mongoerr.Newf(mongoerr.ViewPipelineMaxSizeExceeded, "View pipeline exceeds maximum size; maximum size is %d", maxViewPipeline)
	}
	if value.Count(v.pipeline.Doc()) > maxStages {
		return mongoerr.Newf(7749501, "Pipeline length must be no longer than %d stages.", maxStages)
	}
	reads, err := n.checkViewPipeline(v)
	if err != nil {
		return err
	}
	g := viewGraph{snap: s, changed: v, deps: append([]string{db + "." + v.on}, reads...)}
	below, err := g.depth(v.ns, 1)
	if err != nil {
		return err
	}
	above, err := g.above(v.ns)
	if err != nil {
		return err
	}
	if below+above > maxViewDepth {
		return mongoerr.Newf(mongoerr.ViewDepthLimitExceeded, "View depth limit exceeded; maximum depth is %d", maxViewDepth)
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

// notInViews are stages that a view's pipeline may not hold at its top level.
var notInViews = map[string]bool{"$out": true, "$merge": true, "$changeStream": true}

// ownSources are stages that make their documents without reading a collection.
var ownSources = map[string]bool{
	"$currentOp": true, "$listSessions": true, "$listLocalSessions": true, "$documents": true, "$listCatalog": false,
}

func (n *Node) checkViewPipeline(v *view) (reads []string, err error) {
	ns := agg.Namespace{DB: catalog.DBOf(v.ns), Coll: v.on}
	for i, s := range value.Values(v.pipeline.Doc()) {
		it := value.Walk(s.Doc())
		k, _, _ := it.Next()
		if i == 0 && ownSources[string(k)] {
			return nil, mongoerr.Newf(mongoerr.InvalidNamespace, "%s is not valid within a view definition", k)
		}
	}
	p, err := agg.Parse(v.pipeline, &agg.Options{NS: ns, Collation: v.collation, InView: true, Lone: n.lone()})
	if err != nil {
		return nil, err
	}
	for _, s := range value.Values(v.pipeline.Doc()) {
		it := value.Walk(s.Doc())
		if k, _, _ := it.Next(); notInViews[string(k)] {
			return nil, mongoerr.Newf(mongoerr.OptionNotSupportedOnView, "%s cannot be used in a view definition", k)
		}
	}
	from, _ := p.Namespaces()
	for _, r := range from {
		reads = append(reads, r.String())
	}
	return reads, nil
}

// viewGraph is the views of a snapshot with one of them changed.
type viewGraph struct {
	snap    *storage.Snapshot
	changed *view
	deps    []string // of the changed view
}

// dependencies lists what a namespace reads; none where it is no view.
func (g *viewGraph) dependencies(ns string) ([]string, *view, error) {
	if ns == g.changed.ns {
		return g.deps, g.changed, nil
	}
	if g.snap.Catalog().Lookup(ns) != nil {
		return nil, nil, nil
	}
	v, err := viewFor(g.snap, ns)
	if err != nil || v == nil {
		return nil, nil, err
	}
	deps := []string{catalog.DBOf(ns) + "." + v.on}
	if p, err := agg.Parse(v.pipeline, &agg.Options{NS: agg.Namespace{DB: catalog.DBOf(ns), Coll: v.on}}); err == nil {
		reads, _ := p.Namespaces()
		for _, r := range reads {
			deps = append(deps, r.String())
		}
	}
	return deps, v, nil
}

// depth is the number of views on the longest way down from ns; coming back to the changed view is a cycle.
func (g *viewGraph) depth(ns string, level int) (int, error) {
	deps, v, err := g.dependencies(ns)
	if err != nil || v == nil {
		return 0, err
	}
	if level > maxViewDepth+1 {
		return 0, mongoerr.Newf(mongoerr.ViewDepthLimitExceeded, "View depth limit exceeded; maximum depth is %d", maxViewDepth)
	}
	longest := 0
	for _, d := range deps {
		if d == g.changed.ns {
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

// above is the number of views on the longest chain that stands on ns.
func (g *viewGraph) above(ns string) (int, error) {
	views, err := viewsOf(g.snap, catalog.DBOf(ns))
	if err != nil {
		return 0, err
	}
	on := map[string][]string{}
	for _, v := range views {
		on[catalog.DBOf(v.ns)+"."+v.on] = append(on[catalog.DBOf(v.ns)+"."+v.on], v.ns)
	}
	var climb func(ns string, level int) int
	climb = func(ns string, level int) (longest int) {
		if level > maxViewDepth {
			return 0
		}
		for _, up := range on[ns] {
			longest = max(longest, 1+climb(up, level+1))
		}
		return longest
	}
	return climb(ns, 0), nil
}

// checkCollations refuses a view on a view of another collation.
func (g *viewGraph) checkCollations() error {
	for _, d := range g.deps {
		_, v, err := g.dependencies(d)
		if err != nil {
			return err
		}
		if v != nil && !v.isTimeseries() && !bytes.Equal(v.collation, g.changed.collation) {
			return mongoerr.Newf(mongoerr.OptionNotSupportedOnView, "View %s has a collation that does not match the collation of view %s", g.changed.ns, d)
		}
	}
	return nil
}

// viewsOf lists a database's views in order of name.
func viewsOf(s *storage.Snapshot, db string) ([]*view, error) {
	c := s.Catalog().Lookup(db + ".system.views")
	if c == nil {
		return nil, nil
	}
	cur := s.Scan(c, storage.ScanOptions{})
	defer cur.Close()
	var out []*view
	for cur.Next() {
		out = append(out, parseView(append([]byte(nil), cur.Doc()...)))
	}
	return out, cur.Err()
}
