package coordinator

import (
	"context"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// DDL locks serialise the DDL of one database: an operation on a collection locks the database in IX and the collection in
// X, one on a database locks that in X; createIndexes, dropIndexes, create and migrations that begin lock the collection in IX. The locks are in the primary's memory;
// stored runs take theirs again at step-up.
//
// A createIndexes may take hours, in which other indexes can be dropped. The two exclude each other by a lock of their own, which a dropIndexes holds to its end and a createIndexes
// until it is a run (unlockIndexes): a dropIndexes finds all builds that have begun, ends those of its indexes (endBuilds), and none begins before it has ended.

// lockWait is the time that an operation waits for its DDL locks.
const lockWait = 5 * time.Minute

// held are the DDL locks of one operation.
type held struct {
	*lock.Locker
	op     operation    // nil for a migration
	list   []lockedName // guarded by m.mu, as is next
	next   *lockedName  // the one that is being taken
	reason string
}

type lockedName struct {
	res  lock.Resource
	mode lock.Mode
}

// namesOf lists what an operation locks: databases before collections, each in order of name, so that there are no deadlocks.
func namesOf(op operation) (out []lockedName) {
	db, colls := op.locks()
	if len(colls) == 0 {
		return []lockedName{{lock.Resource{Kind: lock.DDLDatabase, Name: db}, lock.X}}
	}
	colls = slices.Compact(slices.Sorted(slices.Values(colls)))
	for _, db := range databasesOf(op) {
		out = append(out, lockedName{lock.Resource{Kind: lock.DDLDatabase, Name: db}, lock.IX})
	}
	mode := lock.X
	switch op.name() {
	case createIndexesKind, dropIndexesKind: // migrations may begin during a build, which may take hours; commands of one kind queue in run
		mode = lock.IX
	case createKind: // it finds the collection that a createIndexes builds on; of several that create it, one succeeds on this shard
		mode = lock.IX
	}
	for _, ns := range colls {
		out = append(out, lockedName{lock.Resource{Kind: lock.DDLCollection, Name: ns}, mode})
	}
	if op.name() == createIndexesKind || op.name() == dropIndexesKind {
		for _, ns := range colls {
			out = append(out, lockedName{lock.Resource{Kind: lock.Mutex, Name: ns}, lock.X})
		}
	}
	return out
}

// databasesOf lists the databases that an operation concerns, in order of name.
func databasesOf(op operation) []string {
	db, colls := op.locks()
	if len(colls) == 0 {
		return []string{db}
	}
	var dbs []string
	for _, ns := range colls {
		db, _ := cluster.SplitNS(ns)
		dbs = append(dbs, db)
	}
	return slices.Compact(slices.Sorted(slices.Values(dbs)))
}

// storedNames lists what a stored run locks.
func storedNames(op operation) []lockedName {
	names := namesOf(op)
	if op.name() == createIndexesKind {
		names = slices.DeleteFunc(names, ofIndexes)
	}
	return names
}

func ofIndexes(n lockedName) bool { return n.res.Kind == lock.Mutex }

// unlockIndexes releases the lock that excludes a createIndexes and a dropIndexes, which a createIndexes that has begun no longer needs. m.mu must be held.
func (h *held) unlockIndexes() {
	if h.op.name() != createIndexesKind {
		return
	}
	for _, n := range slices.Backward(h.list) {
		if ofIndexes(n) {
			h.Unlock(n.res)
		}
	}
	h.list = slices.DeleteFunc(slices.Clone(h.list), ofIndexes)
}

// conflict reports whether the locks of two operations exclude each other.
func conflict(a, b []lockedName) bool {
	return slices.ContainsFunc(a, func(x lockedName) bool {
		return slices.ContainsFunc(b, func(y lockedName) bool { return x.res == y.res && !lock.Compatible(x.mode, y.mode) })
	})
}

// migrationWait is the time that a migration that begins waits for the DDL of its collection.
const migrationWait = 5 * time.Second

// LockForMigration takes the DDL locks of a collection for a migration that begins, which excludes other DDL except createIndexes, dropIndexes and create. The caller
// releases them once the migration is registered, since a later DDL stops migrations or excludes their commits. These locks exclude DDL only on
// the primary shard of the database; on other donors a DDL is noticed because the config server refuses their commit, or by its critical
// section on them.
func (m *Coordinators) LockForMigration(ctx context.Context, ns string) (unlock func(), err error) {
	names := []lockedName{{lock.Resource{Kind: lock.DDLDatabase, Name: catalog.DBOf(ns)}, lock.IX}, {lock.Resource{Kind: lock.DDLCollection, Name: ns}, lock.IX}}
	h, err := m.lockNames(ctx, names, &held{reason: "moveChunk"}, migrationWait)
	if err != nil {
		return nil, err
	}
	return func() { m.unlock(h) }, nil
}

// lock takes an operation's locks.
func (m *Coordinators) lock(ctx context.Context, op operation, wait time.Duration) (*held, error) {
	return m.lockNames(ctx, namesOf(op), &held{op: op, reason: op.name()}, wait)
}

// lockNames takes locks in their order. It takes none on a node that is not primary, is still stepping up, or steps down meanwhile. The client's operation is shown with
// them while it waits.
func (m *Coordinators) lockNames(ctx context.Context, names []lockedName, h *held, wait time.Duration) (*held, error) {
	m.mu.Lock()
	if m.mu.ctx.Err() != nil {
		m.mu.Unlock()
		return nil, errSteppedDown
	}
	h.Locker = m.locks.NewLocker()
	m.mu.held[h] = struct{}{}
	unread := m.mu.unread
	m.mu.Unlock()
	if err := m.admits(unread, names); err != nil {
		m.unlock(h)
		return nil, err
	}
	if op := command.FromContext(ctx); op != nil {
		op.ShowLocks(h.Locker)
		defer op.HideLocks(h.Locker)
	}
	if err := m.take(ctx, h, names, wait); err != nil {
		return nil, err
	}
	m.mu.Lock()
	_, ours := m.mu.held[h]
	ours = ours && m.mu.ctx.Err() == nil
	m.mu.Unlock()
	if !ours {
		m.unlock(h)
		return nil, errSteppedDown
	}
	return h, nil
}

// take takes an operation's locks, or none.
func (m *Coordinators) take(ctx context.Context, h *held, names []lockedName, wait time.Duration) error {
	h.SetTimeout(wait)
	for _, n := range names {
		m.mu.Lock()
		h.next = &n
		m.mu.Unlock()
		if err := h.Lock(ctx, n.res, n.mode); err != nil {
			m.unlock(h)
			if mongoerr.CodeOf(err) == mongoerr.LockTimeout {
				err = mongoerr.Newf(mongoerr.LockBusy, "Failed to acquire DDL lock for namespace '%s' in mode %s after %s with reason '%s'", n.res.Name, n.mode, wait, h.reason)
			}
			return err
		}
		m.mu.Lock()
		h.list, h.next = append(h.list, n), nil
		m.mu.Unlock()
	}
	return nil
}

// unlock releases an operation's locks, the last one first.
func (m *Coordinators) unlock(h *held) {
	m.mu.Lock()
	names := h.list
	delete(m.mu.held, h)
	m.mu.Unlock()
	for _, n := range slices.Backward(names) {
		h.Unlock(n.res)
	}
}
