package sdam

import (
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Monitors are the replica sets that a process monitors, one Set for any number of users. Two sets have the same name while one of them takes the other's place in a cluster: they
// have no member in common.
type Monitors struct {
	net      Network
	times    atomic.Pointer[Timing]
	matching atomic.Pointer[func() Matching]
	moved    atomic.Pointer[[]func(set, conn string, version int64)] // read under a set's lock, so it has none of its own

	mu struct {
		sync.Mutex
		sets   map[string][]*followed // by name
		closed bool
	}
}

type followed struct {
	*Set
	handles int
	seeds   []string // the addresses by which it was dialled: members may list themselves under others
}

// has reports whether one of some hosts is a member of the set, as far as is known, or an address at which it is looked for.
func (f *followed) has(hosts []string) bool {
	t := f.topo.Load()
	for _, h := range hosts {
		if slices.Contains(t.hosts, h) || slices.Contains(f.seeds, h) || t.server(h) != nil {
			return true
		}
	}
	return false
}

// NewMonitors returns monitors that reach members through net.
func NewMonitors(net Network, timing Timing) *Monitors {
	ms := &Monitors{net: net}
	ms.times.Store(&timing)
	ms.mu.sets = make(map[string][]*followed)
	return ms
}

// Timing returns the intervals in force.
func (ms *Monitors) Timing() Timing { return *ms.times.Load() }

// Retime changes intervals from now on. It must not be called concurrently.
func (ms *Monitors) Retime(change func(t *Timing)) {
	t := *ms.times.Load()
	change(&t)
	ms.times.Store(&t)
}

// OnMove registers f for changes of a set's membership. f must not block.
func (ms *Monitors) OnMove(f func(set, conn string, version int64)) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	fs := []func(set, conn string, version int64){f}
	if old := ms.moved.Load(); old != nil {
		fs = append(slices.Clone(*old), f)
	}
	ms.moved.Store(&fs)
}

func (ms *Monitors) notify(set, conn string, version int64) {
	if fs := ms.moved.Load(); fs != nil {
		for _, f := range *fs {
			f(set, conn, version)
		}
	}
}

// Handle is one user's reference to a Set; closing the last one ends the monitoring.
type Handle struct {
	*Set
	close func()
}

// Close releases the set. A running call may fail.
func (h *Handle) Close() { h.close() }

// Dial returns a set by its name and one of its members, and begins to monitor it, starting with hosts. A standalone server has no name and
// is identified by its address.
func (ms *Monitors) Dial(name string, hosts []string) (*Handle, error) {
	if len(hosts) == 0 {
		return nil, mongoerr.New(mongoerr.FailedToParse, "a replica set needs at least one host")
	}
	key := name
	if key == "" {
		key = hosts[0]
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.mu.closed {
		return nil, errClosed
	}
	var f *followed
	for _, o := range ms.mu.sets[key] {
		if o.has(hosts) {
			f = o
			f.Seed(hosts)
			break
		}
	}
	if f == nil {
		f = &followed{Set: newSet(name, hosts, ms.net, &ms.times, ms.notify)}
		ms.mu.sets[key] = append(ms.mu.sets[key], f)
	}
	for _, h := range hosts {
		if !slices.Contains(f.seeds, h) {
			f.seeds = append(f.seeds, h)
		}
	}
	f.handles++
	var once sync.Once
	return &Handle{Set: f.Set, close: func() { once.Do(func() { ms.release(key, f) }) }}, nil
}

func (ms *Monitors) release(key string, f *followed) {
	ms.mu.Lock()
	f.handles--
	last := f.handles == 0
	if last {
		ms.mu.sets[key] = slices.DeleteFunc(ms.mu.sets[key], func(o *followed) bool { return o == f })
		if len(ms.mu.sets[key]) == 0 {
			delete(ms.mu.sets, key)
		}
	}
	ms.mu.Unlock()
	if last {
		f.Set.close()
	}
}

// Sets lists the monitored sets by name (command connPoolStats).
func (ms *Monitors) Sets() []*Set {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	out := make([]*Set, 0, len(ms.mu.sets))
	for _, named := range ms.mu.sets {
		for _, f := range named {
			out = append(out, f.Set)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].name < out[j].name })
	return out
}

// Connections counts the pooled connections by host.
func (ms *Monitors) Connections() []wire.HostStats { return ms.net.Connections() }

// Drop closes the pooled connections to hosts that are not in use (command dropConnections).
func (ms *Monitors) Drop(hosts []string) {
	for _, h := range hosts {
		ms.net.Drop(h)
	}
}

// Close ends all monitoring.
func (ms *Monitors) Close() {
	ms.mu.Lock()
	ms.mu.closed = true
	sets := ms.mu.sets
	ms.mu.sets = map[string][]*followed{}
	ms.mu.Unlock()
	for _, named := range sets {
		for _, f := range named {
			f.Set.close()
		}
	}
}
