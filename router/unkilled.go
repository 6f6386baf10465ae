package router

import (
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
)

// unkilled has the cursors of members that could not be told to end them. Such a cursor keeps the range deleter waiting, until the member's own timeout
// or, with noCursorTimeout, as long as the session lives: the router sends the killCursors again until the member replies.
type unkilled struct {
	mu struct {
		sync.Mutex
		list []memberCursor
	}
}

// memberCursor is a cursor that is open on a member.
type memberCursor struct {
	at cluster.Peer
	ns string
	id int64
}

// maxUnkilled bounds what is remembered for members that do not come back; more than that is left to their timeouts.
const maxUnkilled = 10_000

// kill ends the cursor.
func (c memberCursor) kill(ctx context.Context) error {
	db, coll := cluster.SplitNS(c.ns)
	_, err := cluster.Run(ctx, c.at, msg.Doc(&msg.KillCursors{DB: db, Coll: coll, Cursors: []value.Value{value.NewInt64(c.id)}}))
	return err
}

// killOn kills a member's cursor; if the member is not reached, that is repeated (killAgain).
func (r *Router) killOn(ctx context.Context, p cluster.Peer, ns string, id int64) {
	c := memberCursor{p, ns, id}
	if err := c.kill(ctx); err != nil && (cluster.Retryable(err) || ctx.Err() != nil) {
		r.cursors.unkilled.add(c)
	}
}

func (u *unkilled) add(list ...memberCursor) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.list = append(u.mu.list, list[:min(len(list), max(0, maxUnkilled-len(u.mu.list)))]...)
}

// killAgain kills the cursors whose members were not reached. Members are asked at the same time.
func (r *Router) killAgain(ctx context.Context) {
	u := &r.cursors.unkilled
	u.mu.Lock()
	list := u.mu.list
	u.mu.list = nil
	u.mu.Unlock()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, c := range list {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			bounded, cancel := context.WithTimeout(ctx, memberTimeout)
			defer cancel()
			if err := c.kill(bounded); err != nil && (cluster.Retryable(err) || bounded.Err() != nil) {
				u.add(c)
			}
		})
	}
	wg.Wait()
}

// killing repeats killAgain until ctx ends.
func (r *Router) killing(ctx context.Context) {
	for cluster.Sleep(ctx, killAgainEvery) == nil {
		r.killAgain(ctx)
	}
}

// killAgainEvery is the interval at which members that were not reached are sent killCursors again.
const killAgainEvery = 2 * time.Second
