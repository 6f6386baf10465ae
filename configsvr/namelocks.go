package configsvr

import (
	"context"
	"slices"
	"sync"
)

// nameLocks are locks by name, which an operation holds alone or shares with others. A lock waits at most until the operation ends. The zero value has no holders.
type nameLocks struct {
	mu   sync.Mutex
	held map[string]*nameLock
}

// nameLock is a lock that is held or waited for.
type nameLock struct {
	alone  bool
	shared int           // the holders that share it
	wanted int           // the operations that wait to hold it alone: no others come to share it meanwhile
	free   chan struct{} // closed when one of these changes, and replaced; nil while nobody waits
}

// lock takes names for the caller alone, all of them at once: while it waits for one, it holds none. unlock may be called again.
func (l *nameLocks) lock(ctx context.Context, names ...string) (unlock func(), err error) {
	return l.take(ctx, true, names)
}

// share is lock for a caller that shares the names with others.
func (l *nameLocks) share(ctx context.Context, names ...string) (unlock func(), err error) {
	return l.take(ctx, false, names)
}

func (l *nameLocks) take(ctx context.Context, alone bool, names []string) (unlock func(), err error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		name, busy := l.busy(alone, names)
		if !busy {
			break
		}
		if err := l.wait(ctx, alone, name); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		l.change(name, alone, 1)
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, name := range names {
			l.change(name, alone, -1)
		}
	}), nil
}

// busy returns the first of some names that cannot be taken now.
func (l *nameLocks) busy(alone bool, names []string) (name string, busy bool) {
	for _, name := range names {
		if h := l.held[name]; h != nil && (h.alone || alone && h.shared > 0 || !alone && h.wanted > 0) {
			return name, true
		}
	}
	return "", false
}

// wait waits until something about a name changes. l.mu is not held meanwhile.
func (l *nameLocks) wait(ctx context.Context, alone bool, name string) error {
	h := l.held[name]
	if h.free == nil {
		h.free = make(chan struct{})
	}
	free := h.free
	if alone {
		h.wanted++
	}
	l.mu.Unlock()
	var err error
	select {
	case <-free:
	case <-ctx.Done():
		err = ctx.Err()
	}
	l.mu.Lock()
	if alone {
		if h.wanted--; h.wanted == 0 { // those who want to share the name waited for this operation, which may not take it now
			l.changed(name, h)
		}
	}
	return err
}

// change counts one holder of a name more, or one less.
func (l *nameLocks) change(name string, alone bool, by int) {
	if l.held == nil {
		l.held = make(map[string]*nameLock)
	}
	h := l.held[name]
	if h == nil {
		h = &nameLock{}
		l.held[name] = h
	}
	if alone {
		h.alone = by > 0
	} else {
		h.shared += by
	}
	if by < 0 {
		l.changed(name, h)
	}
}

// changed wakes those who wait for a name, and forgets the lock if nobody needs it.
func (l *nameLocks) changed(name string, h *nameLock) {
	if h.free != nil {
		close(h.free)
		h.free = nil
	}
	if !h.alone && h.shared == 0 && h.wanted == 0 {
		delete(l.held, name)
	}
}
