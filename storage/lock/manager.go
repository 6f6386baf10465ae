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
}

// NewManager makes a manager without locks.
func NewManager() *Manager {
	m := &Manager{}
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
	h, _ := m.heads.LoadOrStore(res, newHead(res))
	return h.(*head)
}

// Handle is a resource looked up once, for who locks it often.
type Handle struct{ h *head }

// Handle looks up a resource. Handles of one resource are good as long as the manager.
func (m *Manager) Handle(res Resource) Handle { return Handle{m.head(res)} }

// Queued is the number of requests waiting for S or X, or behind such, over all resources: readers and writers, as
// serverStatus.globalLock.currentQueue has them.
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
