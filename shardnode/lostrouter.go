package shardnode

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
)

// Transactions of routers that are gone. Who takes part in a transaction only its router knows, so nobody can go on with one
// whose router has died: until it had been open for as long as any may be, its claims held up the writers of its documents.
// A router that is there is always connected, by its monitors if by nothing else. Where the last connection of one is closed,
// and it does not come back within a moment, this node aborts what it began. A transaction that has promised to commit is its
// coordinator's: it stays.

// routerGrace is how long a router may be away: longer than its monitors take to connect again after a connection broke.
const routerGrace = 3 * time.Second

// routerLost is told when no connection of another process is left.
func (n *Node) routerLost(process [16]byte) {
	if n.txns.open.Load() == 0 {
		return
	}
	n.background(func(life context.Context) {
		tick := time.NewTicker(routerGrace)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-life.Done():
				return
			}
			if n.Service.HasProcess(process) || n.abortTxnsOf(process) {
				return
			}
		}
	})
}

// abortTxnsOf aborts the open transactions that a process began; false where some may be left, because a command is at work
// in their sessions.
func (n *Node) abortTxnsOf(process [16]byte) (all bool) {
	seen := 0
	n.retries.eachIdle(func(_ cluster.LogicalSessionID, s *retrySession) {
		seen++
		if s.txn != nil && s.txn.router == process {
			n.abortTxn(s)
		}
	})
	n.retries.mu.Lock()
	defer n.retries.mu.Unlock()
	return seen == len(n.retries.mu.sessions) || n.txns.open.Load() == 0
}
