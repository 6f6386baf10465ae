package storage

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// spaceGuard tracks how full the disk is. It refuses writes when the free space is just enough for pebble's own
// work, because a store that runs out of disk space within its log cannot continue; and it makes the collector
// reclaim deleted space at once (reclaim.go).
type spaceGuard struct {
	checked atomic.Int64 // nanoseconds of the clock at the last measurement
	written atomic.Int64 // bytes committed since then
	avail   atomic.Int64 // bytes available
	low     atomic.Bool
	least   atomic.Bool   // not even writes that make room are accepted
	wake    chan struct{} // starts the collector's next round

	journals *journalFS // nil in memory
	gone     goneTables
	dead     deadBytes
}

type reserveKey struct{}

// WithReserve marks the few writes that a node needs to start and to become primary: they may use space that is
// refused to all others. Otherwise a server whose disk has filled up could not even serve reads again.
func WithReserve(ctx context.Context) context.Context {
	return context.WithValue(ctx, reserveKey{}, true)
}

func mayUseReserve(ctx context.Context) bool { return ctx.Value(reserveKey{}) != nil }

const (
	// leastShare is the fraction (1/n) of MinFreeDisk reserved for pebble's own work and WithReserve.
	leastShare = 4
	// checkShare is the fraction (1/n) of MinFreeDisk that may be written before the disk is measured again.
	checkShare = 16
	spaceCheck = 200 * time.Millisecond
)

// DiskLow reports whether the disk has less free space than Options.MinFreeDisk. Dispensable data, such as log
// entries that only spare others a copy, should be dropped then.
func (e *Engine) DiskLow() bool { return e.space.low.Load() }

// checkSpace refuses a write that the disk has no room for. Deletes and drops make room, and may use most of what
// is refused to others: without them a full disk could never be emptied. So may the state of what nodes do together: an operation that cannot store that it has ended
// blocks its collection on nodes whose disks have room, and a sharded collection could not be dropped.
func (e *Engine) checkSpace(needsRoom func() bool) error {
	g := &e.space
	now, last := e.opts.Clock().UnixNano(), g.checked.Load()
	due := now-last > int64(spaceCheck) || g.written.Load() > e.opts.MinFreeDisk/checkShare
	if due && g.checked.CompareAndSwap(last, now) {
		e.measureSpace()
	}
	if g.low.Load() && (g.least.Load() || needsRoom()) {
		return mongoerr.Newf(mongoerr.OutOfDiskSpace, "available disk space is less than required minimum of %d bytes", e.opts.MinFreeDisk)
	}
	return nil
}

// measureSpace measures the free space, and wakes the collector if the disk has become low.
func (e *Engine) measureSpace() {
	g := &e.space
	g.written.Store(0)
	du, err := e.opts.FS.GetDiskUsage(e.opts.Dir)
	free := int64(du.AvailBytes)
	g.avail.Store(free)
	g.least.Store(err == nil && free < e.opts.MinFreeDisk/leastShare)
	low := err == nil && free < e.opts.MinFreeDisk
	if g.low.Swap(low) == low || !low {
		return
	}
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// anyRoom is needsRoom for what fills the disk.
func anyRoom() bool { return true }

// needsRoom reports whether the unit does more than to delete documents, to drop or rename collections, to drop indexes, and to record the node's own state; writes that
// accompany those do not count.
func (u *UnitOfWork) needsRoom() bool {
	if u.catalogs.spare < len(u.catalogs.ops) || u.log.prepared.vote { // a vote has all that its transaction writes, and its commit may use the reserve
		return true
	}
	some := u.catalogs.spare > 0
	for i := range u.deltas {
		d := &u.deltas[i]
		switch {
		case d.aside:
			continue
		case d.records < 0:
			some = true
			continue
		}
		if c := collectionOf(u.Catalog(), d.ident); c != nil && u.ownState(c.NS) {
			some = true
		} else if d.records > 0 || d.bytes > 0 {
			return true
		}
	}
	if some {
		return false
	}
	return len(u.deltas) > 0 || u.writes() > 0 || u.Size() > smallNote // a short unit that only logs tells of what has been done
}

// smallNote is the size of a unit that only logs which passes for one that needs no room.
const smallNote = 64 << 10

// ownState reports whether what the unit writes to a collection is the state of what nodes do together.
func (u *UnitOfWork) ownState(ns string) bool { return !u.client && ownState(ns) }

// ownState reports whether a collection has the state of what nodes do together: few small documents, which end when the work ends. Others of "config" grow with what clients write, or are clients' own.
func ownState(ns string) bool {
	coll, ok := strings.CutPrefix(ns, "config.")
	if !ok {
		return false
	}
	switch coll {
	case "collections", "chunks", "databases", "shards", "tags", "placementHistory", "settings", "version", "changelog", "actionlog", "mongos", "reshardingOperations", "reshardingUntoldShards", "sharding_configsvr_coordinators", "clusterParameters", "queryAnalyzers",
		"user_writes_critical_sections", "collection_critical_sections", "rangeDeletions", "migrationCoordinators", "migrationRecipients", "movePrimaryRecipients", "transaction_coordinators",
		"system.sharding_ddl_coordinators", "system.sharding_ddl_outcomes", "system.droppedCollections":
		return true
	}
	return strings.HasPrefix(coll, "cache.") || strings.HasPrefix(coll, "localReshardingOperations.")
}

// CheckRoom refuses, as a commit would, what needs room on the disk.
func (e *Engine) CheckRoom() error { return e.checkSpace(anyRoom) }
