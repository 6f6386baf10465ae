package migration

import (
	"context"
	"sync"
)

// cloneAhead is the size of the part of a clone that is fetched before it can be stored. Fetching and storing stall at different times, the one for disk reads, the
// other for WAL rotation: with a single batch between them they waited for each other a quarter of the time.
const cloneAhead = 4 << 20

// cloneQueue has the batches that are fetched and not stored yet.
type cloneQueue struct {
	mu struct {
		sync.Mutex
		list    []fetched
		bytes   int
		ended   bool
		changed chan struct{} // closed and replaced at each change
	}
}

func newCloneQueue() *cloneQueue {
	q := &cloneQueue{}
	q.mu.changed = make(chan struct{})
	return q
}

// change calls f, which reports whether it has changed the queue. If not, change returns a channel that is closed at the next change.
func (q *cloneQueue) change(f func() bool) (wait <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !f() {
		return q.mu.changed
	}
	close(q.mu.changed)
	q.mu.changed = make(chan struct{})
	return nil
}

// until repeats a change until it is made.
func (q *cloneQueue) until(ctx context.Context, f func() bool) error {
	for {
		wait := q.change(f)
		if wait == nil {
			return nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// put adds a batch once less than cloneAhead is in the queue.
func (q *cloneQueue) put(ctx context.Context, b fetched) error {
	return q.until(ctx, func() bool {
		if q.mu.bytes >= cloneAhead {
			return false
		}
		q.mu.list = append(q.mu.list, b)
		q.mu.bytes += len(b.reply)
		return true
	})
}

// take removes the oldest batch; ok is false if there is none and will be none.
func (q *cloneQueue) take(ctx context.Context) (b fetched, ok bool, err error) {
	err = q.until(ctx, func() bool {
		if len(q.mu.list) == 0 {
			return q.mu.ended
		}
		b, ok = q.mu.list[0], true
		q.mu.list = q.mu.list[1:]
		q.mu.bytes -= len(b.reply)
		return true
	})
	return b, ok, err
}

// end declares that put is not called any more.
func (q *cloneQueue) end() {
	q.change(func() bool {
		q.mu.ended = true
		return true
	})
}
