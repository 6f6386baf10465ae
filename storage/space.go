package storage

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// spaceGuard knows how full the disk is. It refuses writes while the disk has room left for pebble's own work alone, because
// a store that hits the end of the disk within its log cannot go on, and has what was deleted given back at once (reclaim).
type spaceGuard struct {
	checked atomic.Int64 // nanoseconds of the clock
	written atomic.Int64 // bytes of commits since
	avail   atomic.Int64 // bytes
	low     atomic.Bool
	least   atomic.Bool   // not even what makes room is written
	wake    chan struct{} // the disk has become low

	journals *journalFS // nil in memory
	gone     goneTables
	dead     deadBytes
}

type reserveKey struct{}

// WithReserve marks the little that a node has to write to come up and to become primary: it may use the room that is
// refused to all others. Otherwise a server whose disk has filled up would not even serve reads again.
func WithReserve(ctx context.Context) context.Context {
	return context.WithValue(ctx, reserveKey{}, true)
}

func mayUseReserve(ctx context.Context) bool { return ctx.Value(reserveKey{}) != nil }

const (
	// leastShare is the part of MinFreeDisk that is left to pebble's own work and to WithReserve.
	leastShare = 4
	// checkShare is the part of MinFreeDisk that may be written before the disk is looked at again.
	checkShare = 16
	spaceCheck = 200 * time.Millisecond
)

// DiskLow tells whether the disk has less room than Options.MinFreeDisk. Whoever keeps what can be done without, such as
// entries of a log that only spare others a copy, lets go of it then.
func (e *Engine) DiskLow() bool { return e.space.low.Load() }

// checkSpace refuses what the disk has no room for. Deletes and drops make room, and may use most of what is refused to others:
// without them a full disk could never be emptied.
func (e *Engine) checkSpace(makesRoom bool) error {
	g := &e.space
	now, last := e.opts.Clock().UnixNano(), g.checked.Load()
	due := now-last > int64(spaceCheck) || g.written.Load() > e.opts.MinFreeDisk/checkShare
	if due && g.checked.CompareAndSwap(last, now) {
		e.measureSpace()
	}
	if g.low.Load() && (!makesRoom || g.least.Load()) {
		return mongoerr.Newf(mongoerr.OutOfDiskSpace, "available disk space is less than required minimum of %d bytes", e.opts.MinFreeDisk)
	}
	return nil
}

// measureSpace looks at the disk, and wakes the collector when it has become low.
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

// makesRoom tells whether the unit only deletes documents, or drops collections or indexes; what accompanies that does not count.
func (u *UnitOfWork) makesRoom() bool {
	if u.catalogs.dropped < len(u.catalogs.ops) {
		return false
	}
	some := u.catalogs.dropped > 0
	for i := range u.deltas {
		d := &u.deltas[i]
		if d.aside {
			continue
		}
		if d.records > 0 || d.records == 0 && d.bytes > 0 {
			return false
		}
		some = some || d.records < 0
	}
	return some
}
