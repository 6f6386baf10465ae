package lock

import (
	"sync/atomic"
	"time"
)

// Count holds what serverStatus.locks and an operation's lockStats report for one kind and mode.
type Count struct {
	Acquires, Waits uint64
	WaitMicros      uint64
}

// Stats are counts by kind and mode.
type Stats [kinds][modes]Count

// Kinds lists the kinds that statistics show, in the order of Stats.
func Kinds() []Kind {
	return []Kind{ParallelBatchWriter, ReplicationState, Global, Database, Collection, Mutex, DDLDatabase, DDLCollection}
}

// Without returns the difference to earlier counts.
func (s Stats) Without(before *Stats) Stats {
	for k := range s {
		for m := range s[k] {
			c, b := &s[k][m], &before[k][m]
			c.Acquires, c.Waits, c.WaitMicros = c.Acquires-b.Acquires, c.Waits-b.Waits, c.WaitMicros-b.WaitMicros
		}
	}
	return s
}

type counters [kinds][modes]struct {
	acquires, waits, micros atomic.Uint64
}

func (c *counters) waited(k Kind, m Mode, d time.Duration) {
	c[k][m].waits.Add(1)
	c[k][m].micros.Add(uint64(d.Microseconds()))
}

// Stats returns the counts of all operations since the start; an operation's own counts are added when it ends.
func (m *Manager) Stats() (out Stats) {
	for k := range out {
		for i := range out[k] {
			c := &m.stats[k][i]
			out[k][i] = Count{c.acquires.Load(), c.waits.Load(), c.micros.Load()}
		}
	}
	return out
}

// localStats are one operation's counts, which save updating the shared ones on every lock. The operation alone writes them; currentOp
// reads them meanwhile.
type localStats struct {
	acquires [kinds][modes]uint32
	total    Stats
}

func (s *localStats) acquired(k Kind, m Mode) { atomic.AddUint32(&s.acquires[k][m], 1) }

func (s *localStats) waited(k Kind, m Mode, d time.Duration) {
	atomic.AddUint64(&s.total[k][m].Waits, 1)
	atomic.AddUint64(&s.total[k][m].WaitMicros, uint64(d.Microseconds()))
}

func (s *localStats) flush(to *counters) {
	for k := range s.acquires {
		for m := range s.acquires[k] {
			if n := s.acquires[k][m]; n != 0 {
				to[k][m].acquires.Add(uint64(n))
				atomic.AddUint64(&s.total[k][m].Acquires, uint64(n))
				atomic.StoreUint32(&s.acquires[k][m], 0)
			}
		}
	}
}

func (s *localStats) snapshot() (out Stats) {
	for k := range s.acquires {
		for m := range s.acquires[k] {
			t := &s.total[k][m]
			out[k][m] = Count{Acquires: atomic.LoadUint64(&t.Acquires) + uint64(atomic.LoadUint32(&s.acquires[k][m])),
				Waits: atomic.LoadUint64(&t.Waits), WaitMicros: atomic.LoadUint64(&t.WaitMicros)}
		}
	}
	return out
}
