package exec

import (
	"sync"

	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/query/value"
)

// IndexFilter restricts queries of one shape to certain indexes (planCacheSetFilter). It is kept in memory only, as
// on the real server.
type IndexFilter struct {
	Query, Sort, Projection, Collation []byte
	Indexes                            []value.Value // names and key patterns
}

// Allows reports whether the filter lets an index be used.
func (f *IndexFilter) Allows(x *plan.Index) bool {
	for _, v := range f.Indexes {
		if v.T == value.String && v.Str() == x.Name || v.T == value.Document && value.CompareDocs(v.Doc(), x.KeyPattern, nil) == 0 {
			return true
		}
	}
	return false
}

// IndexFilters are a node's index filters, by namespace and plan cache shape.
type IndexFilters struct {
	mu struct {
		sync.RWMutex
		byNS map[string]map[string]*IndexFilter
	}
}

// Get returns the filter for a shape, nil if there is none.
func (f *IndexFilters) Get(ns, shape string) *IndexFilter {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.mu.byNS[ns][shape]
}

// any reports whether a namespace has any filters: if not, the shapes of its queries are not needed.
func (f *IndexFilters) any(ns string) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return len(f.mu.byNS[ns]) > 0
}

// Set replaces the filter of a shape. A nil filter removes it, or removes all filters if the shape is empty.
func (f *IndexFilters) Set(ns, shape string, x *IndexFilter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case x == nil && shape == "":
		delete(f.mu.byNS, ns)
	case x == nil:
		delete(f.mu.byNS[ns], shape)
	default:
		if f.mu.byNS == nil {
			f.mu.byNS = map[string]map[string]*IndexFilter{}
		}
		if f.mu.byNS[ns] == nil {
			f.mu.byNS[ns] = map[string]*IndexFilter{}
		}
		f.mu.byNS[ns][shape] = x
	}
}

// List returns a namespace's filters.
func (f *IndexFilters) List(ns string) (out []*IndexFilter) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, x := range f.mu.byNS[ns] {
		out = append(out, x)
	}
	return out
}

// applyFilters restricts a query to the indexes that a filter for its shape names. Such a filter takes precedence over a hint.
func (e *Executor) applyFilters(q *Query, pq *plan.Query) {
	if !e.Filters.any(q.NS) {
		return
	}
	find := *pq // a filter that was set for a find also applies to count and distinct
	find.Count, find.Distinct = false, ""
	if f := e.Filters.Get(q.NS, find.Shape()); f != nil {
		pq.Allowed, pq.Hint, q.filtered = f.Allows, value.Value{}, true
	}
}

// CompileShape compiles the parts of a query shape given by a plan cache command, and returns the shape.
func (q *Query) CompileShape(projection []byte) (string, error) {
	if err := q.Compile(projection); err != nil {
		return "", err
	}
	return q.planQuery().Shape(), nil
}
