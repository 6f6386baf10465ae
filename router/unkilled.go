package router

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
)

// unkilled holds the cursors of members that killCursors did not reach. Such a cursor keeps the range deleter waiting until the member's own timeout
// or, with noCursorTimeout, until the session ends: the router sends the killCursors again until the member replies.
//
// A member that is gone for good never replies. It is asked less and less often, one call at a time, so that no other member waits behind it, and
// forgotten after unkilledFor.
type unkilled struct {
	mu struct {
		sync.Mutex
		members map[any]*unreached
		cursors int // of all members
	}
}

// unreached is a member that has not replied.
type unreached struct {
	at    cluster.Peer
	list  []memberCursor
	since time.Time     // of the first attempt
	due   time.Time     // of the next attempt
	pause time.Duration // between two attempts
}

// memberCursor is a cursor that is open on a member.
type memberCursor struct {
	ns string
	id int64
}

const (
	// maxUnkilled bounds the cursors that are remembered; any others are left to the members' timeouts.
	maxUnkilled = 10_000
	// maxUnkilledOf bounds those of one member.
	maxUnkilledOf = 2_000
	// unkilledFor is the time after which the router gives up on a member.
	unkilledFor = 24 * time.Hour
	// killAgainEvery is the time before a member that was not reached is sent killCursors again. It doubles with each attempt, up to killAgainMax.
	killAgainEvery = 2 * time.Second
	killAgainMax   = time.Minute
)

// killOn kills a member's cursor; if the member is not reached, that is repeated (killAgain).
func (r *Router) killOn(ctx context.Context, p cluster.Peer, ns string, id int64) {
	if err := killCursors(ctx, p, ns, id); notReached(ctx, err) {
		r.cursors.unkilled.add(p, memberCursor{ns, id}, time.Now())
	}
}

func killCursors(ctx context.Context, p cluster.Peer, ns string, ids ...int64) error {
	db, coll := cluster.SplitNS(ns)
	m := &msg.KillCursors{DB: db, Coll: coll}
	for _, id := range ids {
		m.Cursors = append(m.Cursors, value.NewInt64(id))
	}
	_, err := cluster.Run(ctx, p, msg.Doc(m))
	return err
}

// notReached reports whether a member may not have received what it was sent.
func notReached(ctx context.Context, err error) bool {
	return err != nil && (cluster.Retryable(err) || ctx.Err() != nil)
}

// add remembers a cursor.
func (u *unkilled) add(p cluster.Peer, c memberCursor, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mu.members == nil {
		u.mu.members = make(map[any]*unreached)
	}
	key := memberKey(p)
	m := u.mu.members[key]
	if m == nil {
		m = &unreached{at: p, since: now, due: now.Add(killAgainEvery), pause: killAgainEvery}
	}
	if u.mu.cursors >= maxUnkilled || len(m.list) >= maxUnkilledOf {
		return
	}
	u.mu.members[key] = m
	m.list = append(m.list, c)
	u.mu.cursors++
}

// memberKey identifies a member. A node of the same process is a function, which has no identity, and is always reached.
func memberKey(p cluster.Peer) any {
	if reflect.TypeOf(p).Comparable() {
		return p
	}
	return new(byte)
}

// due returns the members whose next attempt is due, and forgets those that are given up.
func (u *unkilled) due(now time.Time) (keys []any) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for key, m := range u.mu.members {
		switch {
		case now.Sub(m.since) >= unkilledFor:
			u.mu.cursors -= len(m.list)
			delete(u.mu.members, key)
		case !now.Before(m.due):
			keys = append(keys, key)
		}
	}
	return keys
}

// killAgain sends killCursors again to the members whose next attempt is due, to all at the same time.
func (r *Router) killAgain(ctx context.Context, now time.Time) {
	var wg sync.WaitGroup
	for _, key := range r.cursors.unkilled.due(now) {
		wg.Go(func() { r.cursors.unkilled.killOf(ctx, key, now) })
	}
	wg.Wait()
}

// killOf kills the cursors of a member, those of one collection with one command, until one does not reach it.
func (u *unkilled) killOf(ctx context.Context, key any, now time.Time) {
	for {
		u.mu.Lock()
		m := u.mu.members[key]
		if m == nil || len(m.list) == 0 {
			delete(u.mu.members, key)
			u.mu.Unlock()
			return
		}
		ns, ids := m.list[0].ns, []int64(nil)
		for _, c := range m.list {
			if c.ns == ns {
				ids = append(ids, c.id)
			}
		}
		u.mu.Unlock()
		bounded, cancel := context.WithTimeout(ctx, memberTimeout)
		err := killCursors(bounded, m.at, ns, ids...)
		lost := notReached(bounded, err)
		cancel()
		u.mu.Lock()
		if lost {
			m.pause = min(2*m.pause, killAgainMax)
			m.due = now.Add(m.pause)
			u.mu.Unlock()
			return
		}
		u.ended(m, ns, ids)
		u.mu.Unlock()
	}
}

// ended removes a member's cursors that have ended. u.mu must be held.
func (u *unkilled) ended(m *unreached, ns string, ids []int64) {
	gone := make(map[memberCursor]bool, len(ids))
	for _, id := range ids {
		gone[memberCursor{ns, id}] = true
	}
	left := m.list[:0]
	for _, c := range m.list {
		if !gone[c] {
			left = append(left, c)
		}
	}
	u.mu.cursors -= len(m.list) - len(left)
	m.list = left
}

// killing repeats killAgain until ctx ends.
func (r *Router) killing(ctx context.Context) {
	for cluster.Sleep(ctx, killAgainEvery) == nil {
		r.killAgain(ctx, time.Now())
	}
}
