package replication

import "sync"

// queue passes items from many goroutines to one, which takes everything that is there at once.
type queue[T any] struct {
	mu    sync.Mutex
	items []T
	wake  chan struct{}
}

func (q *queue[T]) init() { q.wake = make(chan struct{}, 1) }

func (q *queue[T]) push(items ...T) {
	q.mu.Lock()
	q.items = append(q.items, items...)
	q.mu.Unlock()
	q.notify()
}

func (q *queue[T]) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue[T]) take() []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items = nil
	return items
}
