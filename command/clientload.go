package command

import (
	"sync/atomic"
	"time"
)

// ClientLoad reports whether a node serves clients, to work in the background that gives way to them.
type ClientLoad struct {
	count atomic.Int64 // of what the node has done for clients
	seen  atomic.Int64 // when it had last grown, in nanoseconds
}

// BusyFor is the time after serving a client within which a node is expected to serve another. A batch is stored or fetched in a much shorter time, during which
// there is often no operation even at a thousand a second.
const BusyFor = 250 * time.Millisecond

// PauseFactor is the length of the pause after a unit of such work while clients are served, in multiples of the time that the unit took.
const PauseFactor = 4

// Begin forgets what the node has done for clients so far: they may be gone.
func (l *ClientLoad) Begin(c *Opcounters) { l.count.Store(served(c)) }

// served counts what a node has done for clients.
func served(c *Opcounters) int64 { return c.Writes() + c.Queries.Load() + c.Getmores.Load() }

// Busy reports whether a node serves clients: it has read or written for one between the previous call and now, or shortly before.
func (l *ClientLoad) Busy(c *Opcounters, now time.Time) bool {
	count, at := served(c), now.UnixNano()
	if l.count.Swap(count) != count {
		l.seen.Store(at)
		return true
	}
	return at-l.seen.Load() < int64(BusyFor)
}
