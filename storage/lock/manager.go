package lock

import (
	"sync"
	"sync/atomic"
)

// Manager holds the locks of one node.
type Manager struct {
	heads  sync.Map // Resource → *head
	single [Database]*head
	next   atomic.Uint32
	stats  counters

	many     atomic.Int64 // approximate number of heads
	sweepAt  atomic.Int64 // number of heads that triggers a sweep
	sweeping sync.Mutex
}

// keptHeads is the number of unused heads that may remain: names that are locked again and again keep theirs, and a
// server on which names come and go does not grow.
const keptHeads = 1024

// NewManager returns a manager without locks.
func NewManager() *Manager {
	m := &Manager{}
	m.sweepAt.Store(keptHeads)
	for k := range m.single {
		m.single[k] = newHead(Resource{Kind: Kind(k)})
	}
	return m
}

func (m *Manager) head(res Resource) *head {
	if res.Kind < Database {
		return m.single[res.Kind]
	}
	if h, ok := m.heads.Load(res); ok {
		return h.(*head)
	}
	h, loaded := m.heads.LoadOrStore(res, newHead(res))
	if !loaded && m.many.Add(1) >= m.sweepAt.Load() {
		m.sweep()
	}
	return h.(*head)
}

// sweep removes the heads without holders and waiters. A locker that has looked one up but not locked it yet finds it
// retired, and looks it up again. The next sweep happens when there are twice as many as now, so that sweeping adds a
// constant cost per new head.
func (m *Manager) sweep() {
	if !m.sweeping.TryLock() {
		return
	}
	defer m.sweeping.Unlock()
	left := int64(0)
	m.heads.Range(func(res, h any) bool {
		if h.(*head).retire() {
			m.heads.CompareAndDelete(res, h)
			m.many.Add(-1)
		} else {
			left++
		}
		return true
	})
	m.sweepAt.Store(max(keptHeads, 2*left))
}

// Handle is a resource looked up once, for repeated locking.
type Handle struct{ h *head }

// Handle looks up a resource. Handles remain valid as long as the manager.
func (m *Manager) Handle(res Resource) Handle { return Handle{m.head(res)} }

// Queued returns the number of requests waiting for S or X, or behind such a request, over all resources, as
// serverStatus.globalLock.currentQueue counts readers and writers.
func (m *Manager) Queued() (readers, writers int) {
	count := func(h *head) {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, w := range h.mu.queue {
			if w.want == IX || w.want == X {
				writers++
			} else {
				readers++
			}
		}
	}
	for _, h := range m.single {
		count(h)
	}
	m.heads.Range(func(_, h any) bool { count(h.(*head)); return true })
	return readers, writers
}
