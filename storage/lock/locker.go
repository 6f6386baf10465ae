package lock

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Locker is the set of locks of one operation.
type Locker struct {
	m       *Manager
	stripe  uint32
	held    []hold
	room    [4]hold
	timeout time.Duration
	stats   localStats
	summary atomic.Uint64 // four bits for each kind: the strongest mode held; bit 63: waiting
}

type hold struct {
	h    *head
	mode Mode
	n    int // how often it was requested
}

// NewLocker starts an operation's set of locks.
func (m *Manager) NewLocker() *Locker {
	l := &Locker{}
	l.Init(m)
	return l
}

// Init is NewLocker for a Locker that is embedded in another struct.
func (l *Locker) Init(m *Manager) {
	l.m, l.stripe = m, m.next.Add(1)
	l.held = l.room[:0]
	l.timeout = -1
}

// SetTimeout bounds how long each request may wait (maxTransactionLockRequestTimeoutMillis); negative for no bound
// beyond the context.
func (l *Locker) SetTimeout(d time.Duration) { l.timeout = d }

// LockGlobal locks the whole node, replication state first.
func (l *Locker) LockGlobal(ctx context.Context, mode Mode) error {
	if err := l.lock(ctx, l.m.single[ReplicationState], IX); err != nil {
		return err
	}
	return l.lock(ctx, l.m.single[Global], mode)
}

// LockDatabase locks a database and, by intent, what contains it.
func (l *Locker) LockDatabase(ctx context.Context, db string, mode Mode) error {
	if err := l.LockGlobal(ctx, mode.intent()); err != nil {
		return err
	}
	return l.lock(ctx, l.m.head(Resource{Database, db}), mode)
}

// LockCollection locks a collection, given by its namespace's database and its full namespace, and what contains it.
func (l *Locker) LockCollection(ctx context.Context, db, ns string, mode Mode) error {
	if err := l.LockDatabase(ctx, db, mode.intent()); err != nil {
		return err
	}
	return l.lock(ctx, l.m.head(Resource{Collection, ns}), mode)
}

// Lock locks one resource and nothing that contains it. A lock held already is strengthened where needed; each
// Lock needs its own Unlock.
func (l *Locker) Lock(ctx context.Context, res Resource, mode Mode) error {
	return l.lock(ctx, l.m.head(res), mode)
}

// LockHandle is Lock for a resource that was looked up before.
func (l *Locker) LockHandle(ctx context.Context, h Handle, mode Mode) error {
	return l.lock(ctx, h.h, mode)
}

func (l *Locker) lock(ctx context.Context, h *head, mode Mode) error {
	for i := range l.held {
		if e := &l.held[i]; e.h == h {
			if !e.mode.Covers(mode) {
				want := join(e.mode, mode)
				if _, err := l.lockSlow(ctx, h, want, e.mode); err != nil {
					return err
				}
				e.mode = want
				l.note(h.res.Kind, want)
			}
			e.n++
			return nil
		}
	}
	if mode > IX || !l.lockFast(h, mode) {
		var err error
		if h, err = l.lockSlow(ctx, h, mode, None); err != nil {
			return err
		}
	}
	l.stats.acquired(h.res.Kind, mode)
	l.held = append(l.held, hold{h, mode, 1})
	l.note(h.res.Kind, mode)
	return nil
}

// lockFast takes an intent lock if the gate is open.
func (l *Locker) lockFast(h *head, mode Mode) bool {
	s := &h.stripe(l.stripe).state
	for {
		old := s.Load()
		if old&closed != 0 {
			return false
		}
		if s.CompareAndSwap(old, old+unit(mode)) {
			return true
		}
	}
}

// lockSlow locks the resource of h, and returns the resource's head: another one if h was retired.
func (l *Locker) lockSlow(ctx context.Context, h *head, mode, held Mode) (*head, error) {
	w, ok := h.acquire(mode, held, l.stripe)
	for !ok {
		h = l.m.head(h.res)
		w, ok = h.acquire(mode, held, l.stripe)
	}
	if w == nil {
		return h, nil
	}
	return h, l.wait(ctx, h, w, mode)
}

func (l *Locker) wait(ctx context.Context, h *head, w *waiter, mode Mode) error {
	start := time.Now()
	l.summary.Or(waiting)
	defer func() {
		l.summary.And(^waiting)
		l.m.stats.waited(h.res.Kind, mode, time.Since(start))
		l.stats.waited(h.res.Kind, mode, time.Since(start))
	}()
	var expired <-chan time.Time
	if l.timeout >= 0 {
		t := time.NewTimer(l.timeout)
		defer t.Stop()
		expired = t.C
	}
	var err error
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-expired:
		err = mongoerr.Newf(mongoerr.LockTimeout, "Unable to acquire %s lock on '{%s, %s}' within %dms.",
			mode, h.res.Kind, h.res.Name, l.timeout.Milliseconds())
	}
	if h.abandon(w) {
		return nil
	}
	return err
}

// Unlock undoes one Lock of a resource; the last one releases it.
func (l *Locker) Unlock(res Resource) { l.unlock(l.m.head(res)) }

func (l *Locker) unlock(h *head) {
	for i := len(l.held) - 1; i >= 0; i-- {
		if e := &l.held[i]; e.h == h {
			if e.n--; e.n == 0 {
				l.release(e)
				l.held = append(l.held[:i], l.held[i+1:]...)
				l.renote()
			}
			return
		}
	}
}

// UnlockAll releases everything, the innermost first, and adds the operation's counts to the manager's.
func (l *Locker) UnlockAll() {
	for i := len(l.held) - 1; i >= 0; i-- {
		l.release(&l.held[i])
		l.held[i] = hold{}
	}
	l.held = l.held[:0]
	l.summary.Store(0)
	l.stats.flush(&l.m.stats)
}

func (l *Locker) release(e *hold) {
	if e.mode <= IX {
		s := &e.h.stripe(l.stripe).state
		for {
			old := s.Load()
			if old&closed != 0 {
				break
			}
			if s.CompareAndSwap(old, old-unit(e.mode)) {
				return
			}
		}
	}
	e.h.release(e.mode, l.stripe)
}

// Held returns the mode in which a resource is held, or None.
func (l *Locker) Held(res Resource) Mode {
	for i := range l.held {
		if l.held[i].h.res == res {
			return l.held[i].mode
		}
	}
	return None
}

const waiting = uint64(1) << 63

func (l *Locker) note(k Kind, m Mode) {
	sum := l.summary.Load()
	if Mode(sum>>(4*k)&15) < m {
		l.summary.Store(sum&^(15<<(4*k)) | uint64(m)<<(4*k))
	}
}

func (l *Locker) renote() {
	var sum uint64
	for i := range l.held {
		k, m := l.held[i].h.res.Kind, l.held[i].mode
		if Mode(sum>>(4*k)&15) < m {
			sum = sum&^(15<<(4*k)) | uint64(m)<<(4*k)
		}
	}
	l.summary.Store(sum)
}

// Summary returns what currentOp shows of an operation's locks: the strongest mode for each kind, and whether it
// waits. It may be called from any goroutine.
func (l *Locker) Summary() (byKind map[Kind]Mode, waitingForLock bool) {
	sum := l.summary.Load()
	byKind = map[Kind]Mode{}
	for k := Kind(0); k < kinds; k++ {
		if m := Mode(sum >> (4 * k) & 15); m != None {
			byKind[k] = m
		}
	}
	return byKind, sum&waiting != 0
}

// Stats returns the operation's own counts. It may be called from any goroutine.
func (l *Locker) Stats() Stats { return l.stats.snapshot() }
