package shardnode

import (
	"context"
	"maps"
	"time"

	"github.com/shoaldb/shoal/cluster"
)

// Transactions of routers that are gone. Who takes part in a transaction only its router knows, so nobody can go on with one
// whose router has died: until it had been open for as long as any may be, its claims held up the writers of its documents.
// A router that is there is always connected, by its monitors if by nothing else, and its monitors ask every node what it is
// every other second. Where the last connection of one is closed, and it does not come back within a moment, or where its
// connections stay and nothing comes, because its process is paused or its machine has no power, this node aborts what it
// began. A transaction that has promised to commit is its coordinator's: it stays.

const (
	// routerGrace is how long a router may be away: longer than its monitors take to connect again after a connection broke.
	routerGrace = 3 * time.Second
	// A router that is connected and has missed to be heard of so many times is taken to be gone. It is looked for so often.
	routerMisses = 3
	routerLook   = time.Second
)

// lostRouters ends a node's transactions whose routers are gone.
type lostRouters struct{ n *Node }

// disconnected is told when no connection of another process is left.
func (l lostRouters) disconnected(process [16]byte) {
	if l.n.txns.open.Load() == 0 {
		return
	}
	l.n.background(func(life context.Context) {
		tick := time.NewTicker(routerGrace)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-life.Done():
				return
			}
			if l.n.Service.HasProcess(process) || l.abort(process) {
				return
			}
		}
	})
}

// watch looks for routers that are silent for as long as transactions are open.
func (l lostRouters) watch() {
	watching := &l.n.txns.watching
	if l.n.background == nil || !watching.CompareAndSwap(false, true) {
		return
	}
	l.n.background(func(life context.Context) {
		l.look(life)
		watching.Store(false)
		if l.n.txns.open.Load() > 0 && life.Err() == nil {
			l.watch() // for one that was opened in between
		}
	})
}

func (l lostRouters) look(life context.Context) {
	tick := time.NewTicker(routerLook)
	defer tick.Stop()
	last, awake := time.Now(), time.Time{}
	ended := map[[16]byte]bool{}
	for l.n.txns.open.Load() > 0 {
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
		silent := l.n.Service.Silent(now, awake, routerMisses)
		for p := range silent {
			if !ended[p] {
				ended[p] = l.abort(p)
			}
		}
		maps.DeleteFunc(ended, func(p [16]byte, _ bool) bool { return !silent[p] })
	}
}

// abort ends the open transactions that a process began; false where some may be left, because a command is at work in
// their sessions.
func (l lostRouters) abort(process [16]byte) (all bool) {
	n, seen := l.n, 0
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
