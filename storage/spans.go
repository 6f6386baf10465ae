package storage

import (
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/shoaldb/shoal/storage/catalog"
)

// tableSpans tells pebble where to end one file and begin the next. Inserts grow each large table at its end; when
// files end where tables end, the files of successive flushes do not overlap, and are never compacted. Without
// that, half the CPU time of a bulk insert went into compactions. Small tables share files.
type tableSpans struct {
	large atomic.Pointer[[]catalog.Ident] // in ascending order
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
		// Above all the log of the replica set: its entries are short-lived.
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

// update determines the large tables of a catalog.
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
