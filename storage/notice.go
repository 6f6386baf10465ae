package storage

import (
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"
)

// Notices are what a unit of work tells the observers of every member, in the order of commits: on the primary, and where
// its entry of the replicated log is applied. The observers hear them before the unit is visible, so that who sees a
// timestamp finds that they know everything up to it. A notice is not stored: it is log data of the unit's batch, and is
// not told again to a member that has applied the unit, nor to one that got it with a snapshot.

// notices are an engine's observers, all of them known before its first commit.
type notices struct {
	list []func(ts Timestamp, notice []byte)
}

// OnNotice has f told of every notice, with the timestamp of its unit. A nil notice says that a snapshot is about to
// replace everything that is known up to its timestamp. f must be quick, and not wait for the engine.
func (e *Engine) OnNotice(f func(ts Timestamp, notice []byte)) {
	e.replica.mu.Lock()
	e.notices.list = append(e.notices.list, f)
	e.replica.mu.Unlock()
}

// Notice adds a notice to the unit.
func (u *UnitOfWork) Notice(notice []byte) { u.notices = append(u.notices, notice) }

// stampNotices puts the unit's notices into its batch, for the other members.
func (u *UnitOfWork) stampNotices(b *pebble.Batch) {
	for _, p := range u.notices {
		_ = b.LogData(append(binary.BigEndian.AppendUint64(nil, uint64(u.wait.at)), p...), nil)
	}
}

// deliverNotices tells what the units of a group say. replica.mu is held.
func (e *Engine) deliverNotices(g *Group) {
	for _, u := range g.units {
		if u.wait.err == nil {
			for _, p := range u.notices {
				e.notices.tell(u.wait.at, p)
			}
		}
	}
}

// tellStamped tells a notice of another member's unit.
func (n *notices) tellStamped(p []byte) {
	if len(p) >= 8 {
		n.tell(Timestamp(binary.BigEndian.Uint64(p)), p[8:])
	}
}

func (n *notices) tell(ts Timestamp, p []byte) {
	for _, f := range n.list {
		f(ts, p)
	}
}
