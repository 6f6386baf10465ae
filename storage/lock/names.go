package lock

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// databaseOf returns the database of a namespace.
func databaseOf(ns string) string {
	db, _, _ := strings.Cut(ns, ".")
	return db
}

// Collection locks a collection, with intent locks above it, and returns the function that unlocks it.
func (m *Manager) Collection(ctx context.Context, ns string, mode Mode) (unlock func(), err error) {
	return m.CollectionWithin(ctx, ns, mode, -1)
}

// Database locks a whole database, like Collection.
func (m *Manager) Database(ctx context.Context, db string, mode Mode) (unlock func(), err error) {
	return m.DatabaseWithin(ctx, db, mode, -1)
}

// lockers recycles Lockers: with its counts a Locker takes a kilobyte, as much as everything else that a small
// write allocates.
var lockers = sync.Pool{New: func() any { return new(Locker) }}

// Holder is an operation, as a context, that shows others its locks.
type Holder interface {
	// ShowLocks shows the newest of the operation's Lockers, from before it waits until HideLocks.
	ShowLocks(l *Locker)
	HideLocks(l *Locker)
}

// CollectionWithin is Collection that waits for each lock at most for a duration, without a bound if it is negative.
func (m *Manager) CollectionWithin(ctx context.Context, ns string, mode Mode, wait time.Duration) (unlock func(), err error) {
	return m.take(ctx, func(l *Locker) error {
		l.SetTimeout(wait)
		return l.LockCollection(ctx, databaseOf(ns), ns, mode)
	})
}

// DatabaseWithin is Database that waits for each lock at most for a duration, like CollectionWithin.
func (m *Manager) DatabaseWithin(ctx context.Context, db string, mode Mode, wait time.Duration) (unlock func(), err error) {
	return m.take(ctx, func(l *Locker) error {
		l.SetTimeout(wait)
		return l.LockDatabase(ctx, db, mode)
	})
}

func (m *Manager) take(ctx context.Context, f func(*Locker) error) (unlock func(), err error) {
	l := lockers.Get().(*Locker)
	l.Init(m)
	holder, _ := ctx.(Holder)
	if holder != nil {
		holder.ShowLocks(l)
	}
	unlock = func() {
		if l != nil { // a second call must not release the locks of the locker's next user
			if holder != nil {
				holder.HideLocks(l)
			}
			l.UnlockAll()
			*l = Locker{}
			lockers.Put(l)
			l = nil
		}
	}
	if err := f(l); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// LockCollections locks several collections, each once, in name order, so that operations with overlapping sets
// cannot deadlock.
func (l *Locker) LockCollections(ctx context.Context, mode Mode, names ...string) error {
	names = slices.Clone(names)
	slices.Sort(names)
	for _, ns := range slices.Compact(names) {
		if err := l.LockCollection(ctx, databaseOf(ns), ns, mode); err != nil {
			return err
		}
	}
	return nil
}

// UnlockCollection undoes one LockCollection of a collection, with its intent locks. A lock that another call has taken, too, remains held.
func (l *Locker) UnlockCollection(ns string) {
	for _, h := range []*head{l.m.head(Resource{Collection, ns}), l.m.head(Resource{Database, databaseOf(ns)}), l.m.single[Global], l.m.single[ReplicationState]} {
		l.unlock(h)
	}
}
