package cluster

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
)

// cacheOf keeps the entries of a bounded number of names, each refreshed by one caller at a time. Readers of
// frequently used names take no lock: they find them in an immutable map. A new name is first kept in a second
// map, under a lock. Both are merged into the next immutable map once the second one has been used as often as the
// merge costs, so that the cost of a new name does not depend on how many there are.
type cacheOf[T any] struct {
	all   atomic.Pointer[map[string]*cacheEntry[T]]
	limit atomic.Int64
	// loaded, if not nil, is called with each name whose value has been loaded.
	loaded func(name string)

	mu     sync.Mutex
	recent map[string]*cacheEntry[T] // entries not in all
	misses int                       // how often an entry of recent was looked up
}

type cacheEntry[T any] struct {
	cur  atomic.Pointer[cachedValue[T]]
	used atomic.Bool // set on use, cleared when evict passes
	mu   sync.Mutex  // held to store or invalidate
	gen  int64       // grows with each invalidation, so that a refresh begun before one does not hide it; guarded by mu
	// loading is full while a caller loads the value. It is a channel instead of a mutex so that waiting for it ends
	// with the operation that waits: by its maxTimeMS, killOp, or a disconnected client.
	loading chan struct{}
	begun   atomic.Int64 // the number of loads begun
	ended   atomic.Int64 // the number of the last load that succeeded
	onLoad  func()       // called after each load, if not nil
}

// cachedValue is a value with its own freshness. If the entry had one flag, a reader that paused between reading the value and the
// flag could take an invalidated value for fresh once another had replaced it.
type cachedValue[T any] struct {
	v     T
	stale atomic.Bool
}

func newCacheEntry[T any]() *cacheEntry[T] { return &cacheEntry[T]{loading: make(chan struct{}, 1)} }

func (c *cacheOf[T]) base() map[string]*cacheEntry[T] {
	if m := c.all.Load(); m != nil {
		return *m
	}
	return nil
}

// entry finds or makes the entry of a name.
func (c *cacheOf[T]) entry(name string) *cacheEntry[T] {
	if e := c.base()[name]; e != nil {
		e.touch()
		return e
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.find(name); e != nil {
		e.touch()
		if c.misses++; c.misses >= len(c.recent) {
			c.replace(c.merged())
		}
		return e
	}
	if int64(len(c.base())+len(c.recent)) >= c.limit.Load() {
		c.evict()
	}
	if c.recent == nil {
		c.recent = make(map[string]*cacheEntry[T])
	}
	e := newCacheEntry[T]()
	if c.loaded != nil {
		e.onLoad = func() { c.loaded(name) }
	}
	c.recent[name] = e
	return e
}

// len returns the number of entries.
func (c *cacheOf[T]) len() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.base()) + len(c.recent))
}

// find looks a name up; mu must be held.
func (c *cacheOf[T]) find(name string) *cacheEntry[T] {
	if e := c.base()[name]; e != nil {
		return e
	}
	return c.recent[name]
}

// merged returns a map of all entries; mu must be held.
func (c *cacheOf[T]) merged() map[string]*cacheEntry[T] {
	next := make(map[string]*cacheEntry[T], len(c.base())+len(c.recent))
	maps.Copy(next, c.base())
	maps.Copy(next, c.recent)
	return next
}

// replace replaces the immutable map and clears recent; mu must be held.
func (c *cacheOf[T]) replace(next map[string]*cacheEntry[T]) {
	c.all.Store(&next)
	c.recent, c.misses = nil, 0
}

// evict drops an eighth of the names, first those not used since the last eviction. mu must be held. A caller
// that still uses a dropped entry reads it again.
func (c *cacheOf[T]) evict() {
	next := c.merged()
	keep := int(c.limit.Load() * 7 / 8)
	for _, all := range []bool{false, true} {
		for name, e := range next {
			if len(next) <= keep {
				break
			}
			if all || !e.used.Load() {
				e.invalidate()
				delete(next, name)
			}
		}
	}
	for _, e := range next {
		e.used.Store(false)
	}
	c.replace(next)
}

// forget drops the entry of a name that does not exist.
func (c *cacheOf[T]) forget(name string, e *cacheEntry[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.invalidate()
	if c.recent[name] == e {
		delete(c.recent, name)
	} else if c.base()[name] == e {
		next := maps.Clone(c.base())
		delete(next, name)
		c.all.Store(&next)
	}
}

func (c *cacheOf[T]) peek(name string) *cacheEntry[T] {
	if e := c.base()[name]; e != nil {
		return e
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.find(name)
}

func (c *cacheOf[T]) each(f func(name string, e *cacheEntry[T])) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, e := range c.base() {
		f(n, e)
	}
	for n, e := range c.recent {
		f(n, e)
	}
}

func (c *cacheOf[T]) clear() {
	c.each(func(_ string, e *cacheEntry[T]) { e.invalidate() })
	c.mu.Lock()
	c.all.Store(nil)
	c.recent, c.misses = nil, 0
	c.mu.Unlock()
}

func (e *cacheEntry[T]) touch() {
	if !e.used.Load() {
		e.used.Store(true)
	}
}

// outdate makes the result of a load in progress count as stale, but not the present value.
func (e *cacheEntry[T]) outdate() {
	e.mu.Lock()
	e.gen++
	e.mu.Unlock()
}

func (e *cacheEntry[T]) invalidate() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gen++
	if p := e.cur.Load(); p != nil {
		p.stale.Store(true)
	}
}

// generation returns the number of invalidations so far.
func (e *cacheEntry[T]) generation() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gen
}

// store keeps a value whose load began at a generation.
func (e *cacheEntry[T]) store(v T, gen int64) {
	p := &cachedValue[T]{v: v}
	e.mu.Lock()
	defer e.mu.Unlock()
	p.stale.Store(e.gen != gen)
	e.cur.Store(p)
}

// replace replaces a value, if it is still the current one, by another that is as fresh.
func (e *cacheEntry[T]) replace(is func(T) bool, v T) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.cur.Load()
	if old == nil || !is(old.v) {
		return
	}
	p := &cachedValue[T]{v: v}
	p.stale.Store(old.stale.Load())
	e.cur.Store(p)
}

// last returns the last known value, nil if there is none, and whether it is fresh.
func (e *cacheEntry[T]) last() (v *T, fresh bool) {
	if p := e.cur.Load(); p != nil {
		return &p.v, !p.stale.Load()
	}
	return nil, false
}

// cached returns the value if it is known and fresh: get tries this first, because it needs no closure.
func (e *cacheEntry[T]) cached() (v T, ok bool) {
	if p, fresh := e.last(); fresh {
		return *p, true
	}
	return v, false
}

// get returns the cached value, or loads it. load receives the last known value, nil if there is none.
//
// Invariant: a value is fresh only if its load began after the last invalidation. A load in progress during an invalidation may have read
// the old state: its result is kept, so that the next load is a difference, and serves this caller, but the entry stays stale (gen).
// Hazard: without the generation, a stale error that arrives during a refresh would be lost at the end of the refresh, and with it the only
// sign of a migration.
//
// One caller loads and the others wait for it, so that a migration of a busy collection costs the config server one read per router instead
// of one per request. Rejected: serving the old value meanwhile. Its requests would all be refused by the shards, and each refusal
// invalidates again.
func (e *cacheEntry[T]) get(ctx context.Context, load func(old *T) (T, error)) (T, error) {
	return e.getUnless(ctx, func(T) bool { return true }, load)
}

// getUnless is get, except that it also loads if the fresh value does not satisfy good.
func (e *cacheEntry[T]) getUnless(ctx context.Context, good func(T) bool, load func(old *T) (T, error)) (T, error) {
	if v, ok := e.cached(); ok && good(v) {
		return v, nil
	}
	var zero T
	select {
	case e.loading <- struct{}{}:
	case <-ctx.Done():
		return zero, ctx.Err()
	}
	defer func() { <-e.loading }()
	if v, ok := e.cached(); ok && good(v) {
		return v, nil
	}
	return e.load(load)
}

// load loads the value; loading must be taken.
func (e *cacheEntry[T]) load(load func(old *T) (T, error)) (v T, err error) {
	gen, number := e.generation(), e.begun.Add(1)
	last, _ := e.last()
	if v, err = load(last); err != nil {
		return v, err
	}
	e.store(v, gen)
	e.ended.Store(number)
	if e.onLoad != nil {
		e.onLoad()
	}
	return v, nil
}

// reload loads the value, or waits for another caller's load that begins after the call.
func (e *cacheEntry[T]) reload(ctx context.Context, load func(old *T) (T, error)) error {
	asked := e.begun.Load()
	select {
	case e.loading <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-e.loading }()
	if e.ended.Load() > asked {
		return nil
	}
	_, err := e.load(load)
	return err
}
