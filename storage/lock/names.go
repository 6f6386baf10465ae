package lock

import (
	"context"
	"slices"
	"strings"
	"sync"
)

// databaseOf returns the database of a namespace.
func databaseOf(ns string) string {
	db, _, _ := strings.Cut(ns, ".")
	return db
}

// Collection takes a collection, with the intents above it, and gives the function that lets it go.
func (m *Manager) Collection(ctx context.Context, ns string, mode Mode) (unlock func(), err error) {
	return m.take(func(l *Locker) error { return l.LockCollection(ctx, databaseOf(ns), ns, mode) })
}

// Database takes a whole database, as Collection does.
func (m *Manager) Database(ctx context.Context, db string, mode Mode) (unlock func(), err error) {
	return m.take(func(l *Locker) error { return l.LockDatabase(ctx, db, mode) })
}

// lockers are not in use: with its counts a Locker takes a kilobyte, as much as the rest of a small write together.
var lockers = sync.Pool{New: func() any { return new(Locker) }}

func (m *Manager) take(f func(*Locker) error) (unlock func(), err error) {
	l := lockers.Get().(*Locker)
	l.Init(m)
	unlock = func() {
		if l != nil { // a second call must not release what the locker's next user holds
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

// LockCollections takes several collections, each once, in order of name: whoever takes some of them too waits for the
// first that both want, and nobody for each other.
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
