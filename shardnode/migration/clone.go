package migration

import (
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fetched is a batch of the clone that is to be stored.
type fetched struct {
	docs  [][]byte
	reply []byte // which has them
	busy  bool   // the donor serves clients
}

// clone fetches the range as of the beginning of the migration and stores it. While batches are stored the next ones are fetched (cloneQueue);
// chunkMigrationConcurrency says how many batches are fetched, and how many stored, at a time.
func (r *recipient) clone(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer r.tables.end()
	n := r.m.Params.Int("chunkMigrationConcurrency")
	queue := newCloneQueue()
	var fetching sync.WaitGroup
	fetching.Go(func() {
		defer queue.end()
		if err := inParallel(ctx, n, func(ctx context.Context) (more bool, err error) { return r.fetch(ctx, queue) }); err != nil {
			cancel(err)
		}
	})
	err := inParallel(ctx, n, func(taking context.Context) (more bool, err error) {
		b, more, err := queue.take(taking)
		if err == nil && more {
			err = r.store(ctx, &b) // some of which goes on beside this
		}
		return more, err
	})
	if err != nil {
		cancel(err)
	}
	fetching.Wait()
	if err := r.storeRest(ctx); err != nil {
		cancel(err)
	}
	return context.Cause(ctx) // the first error: after one in fetching, the queue ends in the middle of the range
}

// storeRest waits for what is being stored as tables, and stores what has not been enough for one.
func (r *recipient) storeRest(ctx context.Context) error {
	err := r.tables.wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	if rest, _ := r.tables.take(0); err == nil {
		err = r.storeAll(ctx, &rest, false)
	}
	return err
}

// fetch asks the donor for the next batch.
func (r *recipient) fetch(ctx context.Context, to *cloneQueue) (more bool, err error) {
	var next msg.MigrateCloneReply
	body, err := r.ask(ctx, &msg.MigrateClone{Migration: r.header(), Busy: r.fetchLoad.Busy(r.m.Counts, r.m.Now())}, &next, r.tables.buffer())
	if err != nil {
		return false, err
	}
	docs := value.Documents(next.Objects)
	if len(docs) == 0 {
		return false, nil
	}
	r.mu.Lock()
	r.mu.clonedLen += int64(len(body))
	r.mu.Unlock()
	return true, to.put(ctx, fetched{docs, body, next.Busy})
}

// store stores a batch. Without clients it waits for others that are stored with it as tables (tableBatch).
func (r *recipient) store(ctx context.Context, b *fetched) error {
	c := r.m.Engine.Catalog().Lookup(r.ns)
	p := r.m.Params
	if b.busy || r.load.Busy(r.m.Counts, r.m.Now()) || c == nil || !r.m.Engine.MayInsertTables(c) ||
		p.Int("migrateCloneInsertionBatchSize") > 0 || p.Int("migrateCloneInsertionBatchDelayMS") > 0 {
		return r.storeUnits(ctx, b.docs, b.busy)
	}
	r.tables.add(b)
	if all, ok := r.tables.take(cloneTableBytes); ok {
		return r.tables.beside(ctx, func() error { return r.storeAll(ctx, &all, b.busy) })
	}
	return nil
}

// storeAll stores batches as tables if they are large, otherwise, or if that fails, in units.
func (r *recipient) storeAll(ctx context.Context, b *batches, busy bool) error {
	if b.size >= leastTableBytes {
		if stored, err := r.insertTables(ctx, b.docs); stored || ctx.Err() != nil {
			if stored && err == nil {
				r.tables.reuse(b)
			}
			return err
		}
	}
	return r.storeUnits(ctx, b.docs, busy)
}

// storeUnits stores documents in units of bounded size.
//
// While either shard serves clients, units are small, and a pause follows each, a multiple of the time that the unit took: clients' writes compete with
// the clone for the processor and the disk, and wait for the flushes of what is cloned. Without clients there are no pauses.
func (r *recipient) storeUnits(ctx context.Context, docs [][]byte, donorBusy bool) error {
	for rest := docs; len(rest) > 0; {
		size, busy := cloneUnitBytes, r.load.Busy(r.m.Counts, r.m.Now()) || donorBusy
		if busy {
			size = busyUnitBytes
		}
		batch, began := cloneUnit(rest, r.m.Params.Int("migrateCloneInsertionBatchSize"), size), time.Now()
		rest = rest[len(batch):]
		if err := r.insertBatch(ctx, batch); err != nil {
			return err
		}
		delay := time.Duration(r.m.Params.Int("migrateCloneInsertionBatchDelayMS")) * time.Millisecond
		if busy {
			delay = max(delay, command.PauseFactor*time.Since(began))
		}
		if err := cluster.Sleep(ctx, delay); err != nil {
			return err
		}
	}
	return nil
}

// inParallel runs n workers, each repeating a step until it reports that nothing is left; the first error stops all of them.
func inParallel(ctx context.Context, n int64, step func(context.Context) (more bool, err error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for more := true; more; {
				var err error
				if more, err = step(ctx); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx) // the first error, which has caused the others
}

// cloneUnitBytes limits how much of a clone is stored in one unit of work, which the writes of clients wait for. With the keys of its records and of two indexes a unit
// fits into a megabyte, up to which pebble reuses the memory of a batch.
const cloneUnitBytes = 704 << 10

// busyUnitBytes is cloneUnitBytes while clients are served.
const busyUnitBytes = 64 << 10

// cloneUnit returns the first documents of a clone that are stored together: at most limit, if that is not 0, and no more than the given bytes
// unless the first alone has more.
func cloneUnit(docs [][]byte, limit int64, bytes int) [][]byte {
	if limit > 0 && int64(len(docs)) > limit {
		docs = docs[:limit]
	}
	size := 0
	for i, d := range docs {
		if size += len(d); size > bytes && i > 0 {
			return docs[:i]
		}
	}
	return docs
}

// insertBatch stores documents of the clone, and waits for the write concern of secondaryThrottle. The range was empty, so that as a rule
// none of the documents is there.
func (r *recipient) insertBatch(ctx context.Context, docs [][]byte) error {
	added := int64(len(docs))
	err := r.m.Docs.WriteWith(ctx, r.throttle, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		u.SetFromMigrate()
		u.ReferToVersions()
		c, err := r.collection(s)
		if err == nil {
			_, err = u.InsertMany(c, docs, storage.NoInfo)
		}
		return err
	})
	if mongoerr.CodeOf(err) == mongoerr.DuplicateKey {
		added, err = r.apply(ctx, r.throttle, func(w *partWriter) error {
			for _, doc := range docs {
				if err := w.put(doc); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err == nil {
		r.countCloned(docs, added)
	}
	return err
}

// countCloned counts documents that have been stored, of which some are new.
func (r *recipient) countCloned(docs [][]byte, added int64) {
	r.m.state.counts.recipient.cloned(docs)
	r.mu.Lock()
	r.mu.cloned += int64(len(docs))
	r.mu.docs += added
	r.mu.Unlock()
}
