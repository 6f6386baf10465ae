package storage

import "github.com/shoaldb/shoal/storage/catalog"

// Sizes describe how much storage a collection takes.
type Sizes struct {
	Records     int64
	DataSize    int64
	StorageSize int64            // bytes on disk of the records
	IndexSizes  map[string]int64 // bytes on disk by index name
}

// pageSize is the least that every table takes, like a file of the real server.
const pageSize = 4096

// CollectionSizes estimates the sizes from the store's files, and from the data for what is still in memtables.
func (e *Engine) CollectionSizes(c *catalog.Collection) (Sizes, error) {
	s := Sizes{Records: c.Counters.Records.Load(), DataSize: c.Counters.DataSize.Load(), IndexSizes: map[string]int64{}}
	var err error
	if s.StorageSize, err = e.tableSize(c.Ident, s.DataSize); err != nil {
		return s, err
	}
	for _, idx := range c.Indexes {
		if s.IndexSizes[idx.Name], err = e.tableSize(idx.Ident, s.Records*20); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (e *Engine) tableSize(id catalog.Ident, estimate int64) (int64, error) {
	lower, upper := identRange(id)
	n, err := e.db.EstimateDiskUsage(lower, upper)
	if err != nil {
		return 0, err
	}
	size := int64(n)
	if size == 0 {
		size = estimate / 2
	}
	return max(pageSize, (size+pageSize-1)/pageSize*pageSize), nil
}

// Compact rewrites a collection's tables to reclaim the space of dead versions. It returns how much was freed.
func (e *Engine) Compact(c *catalog.Collection) (freed int64, err error) {
	before, err := e.diskUsage(c)
	if err != nil {
		return 0, err
	}
	ids := []catalog.Ident{c.Ident}
	for _, idx := range c.Indexes {
		ids = append(ids, idx.Ident)
	}
	for _, id := range ids {
		lower, upper := identRange(id)
		if err := e.guard(func() error { return e.db.Compact(e.background.ctx, lower, upper, false) }); err != nil {
			return 0, err
		}
	}
	after, err := e.diskUsage(c)
	return max(0, before-after), err
}

func (e *Engine) diskUsage(c *catalog.Collection) (sum int64, err error) {
	ids := []catalog.Ident{c.Ident}
	for _, idx := range c.Indexes {
		ids = append(ids, idx.Ident)
	}
	for _, id := range ids {
		lower, upper := identRange(id)
		n, err := e.db.EstimateDiskUsage(lower, upper)
		if err != nil {
			return 0, err
		}
		sum += int64(n)
	}
	return sum, nil
}
