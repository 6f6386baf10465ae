package txn

import (
	"context"
	"maps"
	"time"

	"github.com/shoaldb/shoal/cluster"
)

// Transactions of routers that are gone. Only its router knows a transaction's participants, so no other node can
// continue one whose router has died; until it had been open for the maximum lifetime, its claims would block the
// writers of its documents. A live router always has a connection, if only from its monitors, which contact every node
// every other second. If its last connection is closed and it does not come back within a moment, or if its connections
// stay but are silent, because its process is paused or its machine has lost power, this node aborts the transactions
// that it began. A transaction that has voted to commit is left to its coordinator.

const (
	// routerGrace is the time that a router may be away: longer than its monitors take to connect again after a connection broke.
	routerGrace = 3 * time.Second
	// A connected router that has missed this many announced hellos is considered lost.
	routerMisses = 3
	// routerLook is the interval at which routers are checked.
	routerLook = time.Second
)

// RouterLost is called when no connection of another process is left.
func (m *Manager) RouterLost(process [16]byte) {
	if m.counters.Open.Load() == 0 {
		return
	}
	m.node.Background(func(life context.Context) {
		tick := time.NewTicker(routerGrace)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-life.Done():
				return
			}
			if m.Service.HasProcess(process) || m.AbortTxnsOf(process) {
				return
			}
		}
	})
}

// watchRouters looks for silent routers as long as transactions are open.
func (m *Manager) watchRouters() {
	watching := &m.counters.watching
	if !watching.CompareAndSwap(false, true) {
		return
	}
	m.node.Background(func(life context.Context) {
		m.lookForRouters(life)
		watching.Store(false)
		if m.counters.Open.Load() > 0 && life.Err() == nil {
			m.watchRouters() // for a transaction that was opened in between
		}
	})
}

func (m *Manager) lookForRouters(life context.Context) {
	tick := time.NewTicker(routerLook)
	defer tick.Stop()
	last, awake := time.Now(), time.Time{}
	ended := map[[16]byte]bool{}
	for m.counters.Open.Load() > 0 {
		select {
		case <-tick.C:
		case <-life.Done():
			return
		}
		now := time.Now()
		if now.Sub(last) > 2*routerLook {
			awake = now // it is this process that was paused
		}
		last = now
		silent := m.Service.Silent(now, awake, routerMisses)
		for p := range silent {
			if !ended[p] {
				ended[p] = m.AbortTxnsOf(p)
			}
		}
		maps.DeleteFunc(ended, func(p [16]byte, _ bool) bool { return !silent[p] })
	}
}

// AbortTxnsOf aborts the open transactions that a process began; it returns false if some may be left because
// a command is running in their sessions.
func (m *Manager) AbortTxnsOf(process [16]byte) (all bool) {
	seen := 0
	m.EachIdle(func(_ cluster.LogicalSessionID, s *Session) {
		seen++
		if s.Txn != nil && s.Txn.router == process {
			m.abortTxn(s)
		}
	})
	m.retries.mu.Lock()
	defer m.retries.mu.Unlock()
	return seen == len(m.retries.mu.sessions) || m.counters.Open.Load() == 0
}
