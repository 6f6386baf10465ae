package storage

import (
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"
)

// Notices are messages from a unit of work to the observers on every member, in commit order: on the primary when
// it commits, elsewhere when its entry of the replicated log is applied. Observers are called before the unit is
// visible, so that a reader that sees a timestamp can rely on their having processed everything up to it. A notice
// is not stored: it is log data in the unit's batch, and is not repeated to a member that has applied the unit,
// nor delivered to one that received the unit with a snapshot.

// notices holds an engine's observers, all registered before its first commit.
type notices struct {
	list []func(ts Timestamp, notice []byte)
}

// OnNotice registers f to be called with every notice and the timestamp of its unit. A nil notice announces that a
// snapshot is about to replace all state up to its timestamp. f must be quick, and must not wait for the engine.
func (e *Engine) OnNotice(f func(ts Timestamp, notice []byte)) {
	e.replica.mu.Lock()
	e.notices.list = append(e.notices.list, f)
	e.replica.mu.Unlock()
}

// Notice adds a notice to the unit.
func (u *UnitOfWork) Notice(notice []byte) { u.notices = append(u.notices, notice) }

// stampNotices adds the unit's notices to its batch, for the other members.
func (u *UnitOfWork) stampNotices(b *pebble.Batch) {
	for _, p := range u.notices {
		_ = b.LogData(append(binary.BigEndian.AppendUint64(nil, uint64(u.wait.at)), p...), nil)
	}
}

// deliverNotices passes the notices of a group's units to the observers. replica.mu must be held.
func (e *Engine) deliverNotices(g *Group) {
	for _, u := range g.units {
		if u.wait.err == nil {
			for _, p := range u.notices {
				e.notices.deliver(u.wait.at, p)
			}
		}
	}
}

// deliverStamped passes on a notice of another member's unit.
func (n *notices) deliverStamped(p []byte) {
	if len(p) >= 8 {
		n.deliver(Timestamp(binary.BigEndian.Uint64(p)), p[8:])
	}
}

func (n *notices) deliver(ts Timestamp, p []byte) {
	for _, f := range n.list {
		f(ts, p)
	}
}
