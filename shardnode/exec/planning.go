package exec

import (
	"sync"

	"github.com/shoaldb/shoal/query/bsontext"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/plan"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexscan"
)

// Planning is the planning state of one version of a collection: its indexes as the planner sees them, and the
// plan cache, which is thus replaced whenever the set of indexes changes.
type Planning struct {
	coll      *catalog.Collection
	collation *collation.Spec
	cache     *plan.Cache

	once    sync.Once
	planned *plan.Collection
	err     error
}

// NewPlanning returns a Planning with an empty plan cache. spec is the collection's collation, nil for none.
func NewPlanning(c *catalog.Collection, spec *collation.Spec) *Planning {
	return &Planning{coll: c, collation: spec, cache: plan.NewCache(0)}
}

// Cache returns the collection's plan cache.
func (m *Planning) Cache() *plan.Cache { return m.cache }

// planIndexes returns the planner's view of a collection's indexes, made once for each version of the collection.
func (m *Planning) planIndexes() (*plan.Collection, error) {
	m.once.Do(func() {
		pc := &plan.Collection{NS: m.coll.NS, Clustered: m.coll.Clustered, Oplog: m.coll.Oplog, CollationDoc: m.collation.Document()}
		for _, i := range m.coll.Indexes {
			if !i.Ready {
				continue
			}
			d, err := indexscan.Describe(i.Spec)
			if err != nil {
				m.err = err
				return
			}
			d.Summary = " " + bsontext.Doc(d.KeyPattern)
			d.ScanSummary = plan.IndexScan.String() + d.Summary
			d.Hidden, d.Multikey, d.ArrayPaths, d.Handle = i.Hidden, i.Multikey, i.ArrayPaths, i
			if i.MultikeyPaths != nil {
				d.MultikeyPaths = i.MultikeyPaths
			} else if i.Multikey {
				d.MultikeyPaths = nil
			}
			pc.Indexes = append(pc.Indexes, d)
		}
		m.planned = pc
	})
	return m.planned, m.err
}
