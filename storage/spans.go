package storage

import (
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/shoaldb/shoal/storage/catalog"
)

// tableSpans tells pebble where to end one file and begin the next. Inserts grow each large table at its end; when files
// end where tables end, the files of successive flushes do not overlap, and are never merged. Without it, half the
// processor time of a bulk insert went into merging. Small tables share files.
type tableSpans struct {
	large atomic.Pointer[[]catalog.Ident] // sorted
}

// largeTable is the data size from which a collection's tables have files of their own.
const largeTable = 16 << 20

// policy is pebble's SpanPolicyFunc.
func (t *tableSpans) policy(start []byte) (p pebble.SpanPolicy, end []byte, err error) {
	id := identOf(start)
	switch {
	case id < identOplog:
		return p, appendUnversioned(appendIdent(nil, identOplog)), nil
	case id >= identLocal && id < identLocalFirst:
		// The log of the replica set, above all: its entries are soon gone again.
		return p, appendUnversioned(appendIdent(nil, identLocalFirst)), nil
	case id == identOplog:
		return p, appendUnversioned(appendIdent(nil, identOplog+1)), nil
	}
	large := t.large.Load()
	if large == nil {
		return p, nil, nil
	}
	i, found := slices.BinarySearch(*large, id)
	switch {
	case found:
		return p, appendUnversioned(appendIdent(nil, id+1)), nil
	case i < len(*large):
		return p, appendUnversioned(appendIdent(nil, (*large)[i])), nil
	}
	return p, nil, nil
}

// update looks for the large tables of a catalog.
func (t *tableSpans) update(cat *catalog.Snapshot) {
	var large []catalog.Ident
	cat.Each(func(c *catalog.Collection) {
		if c.Oplog || c.Counters.DataSize.Load() < largeTable {
			return
		}
		large = append(large, c.Ident)
		for _, idx := range c.Indexes {
			large = append(large, idx.Ident)
		}
	})
	slices.Sort(large)
	t.large.Store(&large)
}
