package shardnode

import (
	"sync"

	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
)

// planCache is a collection's cache of plans. It is a new one whenever the set of indexes changes.
func (n *Node) planCache(c *catalog.Collection) *plan.Cache { return n.meta(c).cache }

// indexFilter allows queries of one shape certain indexes only (planCacheSetFilter). It lives in memory, as the real
// server's does.
type indexFilter struct {
	Query, Sort, Projection, Collation []byte
	Indexes                            []value.Value // names and key patterns
}

// allows tells whether the filter lets an index be used.
func (f *indexFilter) allows(x *plan.Index) bool {
	for _, v := range f.Indexes {
		if v.T == value.String && v.Str() == x.Name || v.T == value.Document && value.CompareDocs(v.Doc(), x.KeyPattern, nil) == 0 {
			return true
		}
	}
	return false
}

// indexFilters are a node's, by namespace and plan cache shape.
type indexFilters struct {
	mu struct {
		sync.RWMutex
		byNS map[string]map[string]*indexFilter
	}
}

// get gives the filter for a shape, nil where there is none.
func (f *indexFilters) get(ns, shape string) *indexFilter {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.mu.byNS[ns][shape]
}

// any reports whether a namespace has filters at all: queries need no shape where it has none.
func (f *indexFilters) any(ns string) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return len(f.mu.byNS[ns]) > 0
}

// set replaces the filter of a shape; a nil filter removes it, and the empty shape with it removes all.
func (f *indexFilters) set(ns, shape string, x *indexFilter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case x == nil && shape == "":
		delete(f.mu.byNS, ns)
	case x == nil:
		delete(f.mu.byNS[ns], shape)
	default:
		if f.mu.byNS == nil {
			f.mu.byNS = map[string]map[string]*indexFilter{}
		}
		if f.mu.byNS[ns] == nil {
			f.mu.byNS[ns] = map[string]*indexFilter{}
		}
		f.mu.byNS[ns][shape] = x
	}
}

// list gives a namespace's filters.
func (f *indexFilters) list(ns string) (out []*indexFilter) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, x := range f.mu.byNS[ns] {
		out = append(out, x)
	}
	return out
}

// applyFilters restricts a query to the indexes that a filter for its shape names. Such a filter is stronger than a hint.
func (n *Node) applyFilters(q *query, pq *plan.Query) {
	if !n.filters.any(q.ns) {
		return
	}
	find := *pq // a filter set for a find is one for counts and distincts, too
	find.Count, find.Distinct = false, ""
	if f := n.filters.get(q.ns, find.Shape()); f != nil {
		pq.Allowed, pq.Hint, q.filtered = f.allows, value.Value{}, true
	}
}

// planShape compiles the parts of a query shape as the plan cache's commands give them, and answers its shape.
func (n *Node) planShape(q *query, projection []byte) (string, error) {
	if err := q.compile(projection); err != nil {
		return "", err
	}
	return q.planQuery().Shape(), nil
}
