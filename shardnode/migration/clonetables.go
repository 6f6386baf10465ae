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

// batches are documents that were fetched, from one or several replies.
type batches struct {
	docs    [][]byte
	replies [][]byte // which have them
	size    int      // of the replies
}

// tableBatch has batches of the clone that are to be stored together, and buffers of replies whose documents have been stored. A clone takes as many buffers as
// it has batches at a time, not one for each reply.
type tableBatch struct {
	mu struct {
		sync.Mutex
		batches
		free  [][]byte // replies
		spare [][]byte // memory for docs
		err   error    // the first of storing
	}
	storing sync.WaitGroup
	once    sync.Once
	turns   chan struct{} // of those that store
}

// tablesAtOnce is how many batches are stored as tables at a time, while the next is fetched: one is compressed while the disk has another. Their order does not matter.
const tablesAtOnce = 2

// beside calls store in a goroutine of its own as soon as less than tablesAtOnce are running. It returns the error of an earlier one.
func (t *tableBatch) beside(ctx context.Context, store func() error) error {
	t.once.Do(func() { t.turns = make(chan struct{}, tablesAtOnce) })
	select {
	case t.turns <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := t.failed(nil); err != nil {
		<-t.turns
		return err
	}
	t.storing.Go(func() {
		_ = t.failed(store())
		<-t.turns
	})
	return nil
}

// wait waits for all that were begun, and returns the first error.
func (t *tableBatch) wait() error {
	t.storing.Wait()
	return t.failed(nil)
}

// failed notes an error, and returns the first.
func (t *tableBatch) failed(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.err == nil {
		t.mu.err = err
	}
	return t.mu.err
}

func (t *tableBatch) add(b *fetched) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.docs = append(t.mu.docs, b.docs...)
	t.mu.replies = append(t.mu.replies, b.reply)
	t.mu.size += len(b.reply)
}

// take removes the batches if they have that many bytes.
func (t *tableBatch) take(bytes int) (all batches, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.size < bytes {
		return batches{}, false
	}
	all, t.mu.batches = t.mu.batches, batches{docs: t.mu.spare}
	t.mu.spare = nil
	return all, true
}

// buffer returns memory for a reply, nil if none is free.
func (t *tableBatch) buffer() (b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.mu.free); n > 0 {
		b, t.mu.free = t.mu.free[n-1], t.mu.free[:n-1]
	}
	return b
}

// reuse frees the replies of batches that have been stored: nothing refers to their documents any more.
func (t *tableBatch) reuse(b *batches) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.free, t.mu.spare = append(t.mu.free, b.replies...), b.docs[:0]
}

// end frees all memory.
func (t *tableBatch) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.batches, t.mu.free, t.mu.spare = batches{}, nil, nil
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
