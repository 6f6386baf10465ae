package migration

import (
	"context"
	"sync"
)

// cloneTableBytes is the size of what is stored in one unit of work as tables (storage.UnitOfWork.InsertTables), for less than half of the processor time that the journal, the memtables and
// their flushes take. Each unit makes one table of the collection and one of each index, and memory is taken for the documents and for their keys.
const cloneTableBytes = 16 << 20

// leastTableBytes is the least that is stored as tables: each is a file, and has to be synced.
const leastTableBytes = 4 << 20

// tableBatch has documents of the clone that are to be stored together.
type tableBatch struct {
	mu struct {
		sync.Mutex
		docs [][]byte
		size int
	}
}

func (t *tableBatch) add(b *fetched) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.docs = append(t.mu.docs, b.docs...)
	t.mu.size += b.size
}

// take removes the documents if they have that many bytes.
func (t *tableBatch) take(bytes int) (docs [][]byte, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.size < bytes {
		return nil, false
	}
	docs, t.mu.docs, t.mu.size = t.mu.docs, nil, 0
	return docs, true
}

func sizeOf(docs [][]byte) (n int) {
	for _, d := range docs {
		n += len(d)
	}
	return n
}

// insertTables stores documents of the clone as tables, in a unit of work that becomes visible at once and is made durable at the end like the others (run). stored is false, and nothing has been changed,
// if it was not possible: a document was there, or the collection or the member's role changed meanwhile. What goes through the journal can deal with that.
func (r *recipient) insertTables(ctx context.Context, docs [][]byte) (stored bool, err error) {
	c, err := r.collectionIn(r.m.Engine.Catalog())
	if err != nil {
		return false, err
	}
	u := r.m.Engine.NewUnitOfWork(nil)
	defer u.Rollback()
	u.SetFromMigrate()
	if ok, err := u.InsertTables(c, docs); err != nil || !ok {
		return false, err
	}
	ts, err := r.m.Docs.Set.Commit(ctx, u, r.throttle)
	if ts == 0 {
		return false, err
	}
	r.countCloned(docs, int64(len(docs)))
	return true, err
}
