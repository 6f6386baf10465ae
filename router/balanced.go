package router

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/command"
)

// A client behind a load balancer that loses its connection gets another router with the next one: its cursors and
// transactions here can no longer be used (specification: Load Balancer Support), and end at once.

// noteLost queues a disconnected client for endLost. If very many disconnect at once, the cursors and transactions of some time out
// instead, as those of other clients do.
func (r *Router) noteLost(c *command.Client) {
	select {
	case r.lost <- c:
	default:
	}
}

// endLost ends the cursors and transactions of disconnected clients until ctx ends.
func (r *Router) endLost(ctx context.Context) {
	for {
		select {
		case c := <-r.lost:
			r.endOf(ctx, c)
		case <-ctx.Done():
			return
		}
	}
}

// endOf ends a client's cursors and transactions.
func (r *Router) endOf(ctx context.Context, client *command.Client) {
	for _, id := range r.cursors.matching(func(c *routerCursor) bool { return c.client == client }) {
		r.cursors.take(id)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, t := range r.txns.begunBy(ctx, client) {
		r.abortAll(ctx, t)
	}
}

// begunBy returns the open transactions of a client, marked as aborted. It waits for their running commands.
func (t *txnTable) begunBy(ctx context.Context, client *command.Client) (open []*transaction) {
	t.mu.Lock()
	var sessions []*txnSession
	for _, s := range t.mu.sessions {
		if s.client.CompareAndSwap(client, nil) {
			sessions = append(sessions, s)
		}
	}
	t.mu.Unlock()
	for _, s := range sessions {
		select {
		case <-s.busy:
			if s.txn != nil && !s.txn.ended && s.txn.commit == nil && s.txn.by.Client == client {
				open = append(open, s.txn)
				s.txn.ended = true
			}
			s.busy <- struct{}{}
		case <-ctx.Done():
			return open
		}
	}
	return open
}
