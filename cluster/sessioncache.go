package cluster

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// SessionStore is the sessions collection, config.system.sessions.
type SessionStore interface {
	// RefreshSessions stores that the sessions were used at the given time, creating missing records.
	RefreshSessions(ctx context.Context, ids []LogicalSessionID, at time.Time) error
	// RemoveSessions deletes records of ended sessions.
	RemoveSessions(ctx context.Context, ids []LogicalSessionID) error
	// MissingSessions returns those of the sessions that have no record.
	MissingSessions(ctx context.Context, ids []LogicalSessionID) ([]LogicalSessionID, error)
}

// SessionTimeout is localLogicalSessionTimeoutMinutes's default.
const SessionTimeout = 30 * time.Minute

// SessionCache remembers which sessions were used on this node since the last sync with the sessions collection. A session
// lives as long as its record, which every node that uses the session renews: no node ends a session that another one
// uses.
type SessionCache struct {
	store SessionStore
	now   func() time.Time
	ended func(LogicalSessionID)    // called for each session that ends or expires, to kill its cursors and transactions
	open  func() []LogicalSessionID // the sessions with cursors on this node; nil for none
	busy  func() []LogicalSessionID // the sessions with running operations on this node; nil for none
	idle  time.Duration             // how long an unused session lives
	most  int                       // maxSessions
	jobs  sessionJobs
	mu    struct {
		sync.Mutex
		synced int64                      // when the collection was last written to, Unix milliseconds
		live   map[LogicalSessionID]int64 // last use, Unix milliseconds
		ended  map[LogicalSessionID]struct{}
	}
}

// NewSessionCache returns an empty cache. If store is nil there is no collection, and idle time alone decides.
// ended may be nil.
func NewSessionCache(store SessionStore, now func() time.Time, ended func(LogicalSessionID)) *SessionCache {
	if now == nil {
		now = time.Now
	}
	c := &SessionCache{store: store, now: now, ended: ended, idle: SessionTimeout, most: 1000000}
	c.jobs.mu.synced, c.jobs.mu.reaped = now(), now() // as long as none has run
	c.mu.live = make(map[LogicalSessionID]int64)
	c.mu.ended = make(map[LogicalSessionID]struct{})
	return c
}

// SetTimeout changes how long an unused session lives. It must be called before the first use.
func (c *SessionCache) SetTimeout(d time.Duration) { c.idle = d }

// SetLimit changes how many sessions the cache holds (maxSessions). It must be called before the first use.
func (c *SessionCache) SetLimit(n int64) { c.most = int(n) }

// WithCursors makes a sync include the sessions that f lists, those of open cursors: they may not have been used
// on this node for a long time.
func (c *SessionCache) WithCursors(f func() []LogicalSessionID) { c.open = f }

// WithOperations makes a sync renew the sessions that f lists, those of running operations: they are in use, however long ago
// their operations began.
func (c *SessionCache) WithOperations(f func() []LogicalSessionID) { c.busy = f }

// Timeout returns how long an unused session lives.
func (c *SessionCache) Timeout() time.Duration { return c.idle }

// Touch records that a session is in use.
func (c *SessionCache) Touch(id LogicalSessionID) error {
	at := c.now().UnixMilli()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mu.live) >= c.most {
		if _, ok := c.mu.live[id]; !ok {
			return mongoerr.New(mongoerr.TooManyLogicalSessions, "Unable to add session into the cache because the number of active sessions is too high")
		}
	}
	c.mu.live[id] = at
	return nil
}

// End marks sessions as ended; the next Sync removes them from the collection.
func (c *SessionCache) End(ids []LogicalSessionID) {
	c.mu.Lock()
	for _, id := range ids {
		delete(c.mu.live, id)
		c.mu.ended[id] = struct{}{}
	}
	c.mu.Unlock()
	if c.ended != nil {
		for _, id := range ids {
			c.ended(id)
		}
	}
}

// Len returns the number of live sessions.
func (c *SessionCache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.live)
}

// Live lists the sessions in use, for $listLocalSessions.
func (c *SessionCache) Live() map[LogicalSessionID]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[LogicalSessionID]time.Time, len(c.mu.live))
	for id, at := range c.mu.live {
		out[id] = time.UnixMilli(at)
	}
	return out
}

// List returns the output of $listLocalSessions: the sessions in use whose owners shown admits.
func (c *SessionCache) List(shown func(owner [32]byte) bool) (docs [][]byte) {
	for id, at := range c.Live() {
		if shown(id.UID) {
			docs = append(docs, value.Doc(value.F("_id", value.NewDocument(id.Doc())), value.F("lastUse", value.NewTime(at))))
		}
	}
	return docs
}

// Sync writes to the collection which sessions were used and ended on this node since the last call, and ends the
// sessions here that have no record: they were not used, or another node ended them. Call it every
// logicalSessionRefreshMillis (5 minutes). If the collection cannot be read nothing expires.
func (c *SessionCache) Sync(ctx context.Context) error {
	began := c.now()
	c.jobs.beginSync(began)
	err := c.sync(ctx, began)
	c.jobs.endSync(c.now().Sub(began))
	return err
}

func (c *SessionCache) sync(ctx context.Context, now time.Time) error {
	if c.store == nil {
		c.expireIdle()
		return nil
	}
	c.mu.Lock()
	last := c.mu.synced
	c.mu.synced = now.UnixMilli()
	used := make(map[LogicalSessionID]bool)
	for id, at := range c.mu.live {
		if at >= last {
			used[id] = true
		}
	}
	removed := slices.Collect(maps.Keys(c.mu.ended))
	clear(c.mu.ended)
	c.mu.Unlock()
	if c.busy != nil {
		for _, id := range c.busy() {
			used[id.Parent()] = true
		}
	}
	err := c.store.RefreshSessions(ctx, slices.Collect(maps.Keys(used)), now)
	if err == nil {
		err = c.store.RemoveSessions(ctx, removed)
	}
	if err != nil { // the next Sync writes it
		c.mu.Lock()
		c.mu.synced = last
		for _, id := range removed {
			c.mu.ended[id] = struct{}{}
		}
		c.mu.Unlock()
		return err
	}
	c.jobs.synced(len(used), len(removed))
	return c.expire(ctx, used)
}

// expire ends the sessions without a record, except those that this node has just written.
func (c *SessionCache) expire(ctx context.Context, used map[LogicalSessionID]bool) error {
	began := c.now().UnixMilli()
	ask := make(map[LogicalSessionID]bool)
	c.mu.Lock()
	for id := range c.mu.live {
		ask[id] = !used[id]
	}
	c.mu.Unlock()
	if c.open != nil {
		for _, id := range c.open() {
			ask[id.Parent()] = !used[id.Parent()]
		}
	}
	maps.DeleteFunc(ask, func(_ LogicalSessionID, wanted bool) bool { return !wanted })
	gone, err := c.store.MissingSessions(ctx, slices.Collect(maps.Keys(ask)))
	if err != nil {
		return err
	}
	limit := c.now().Add(-2 * c.idle).UnixMilli() // later than the TTL index deletes the record of an unused session
	c.mu.Lock()
	gone = slices.DeleteFunc(gone, func(id LogicalSessionID) bool { return c.mu.live[id] >= began }) // used in the meantime
	for _, id := range gone {
		delete(c.mu.live, id)
	}
	maps.DeleteFunc(c.mu.live, func(_ LogicalSessionID, at int64) bool { return at < limit }) // in use elsewhere
	c.mu.Unlock()
	if c.ended != nil {
		for _, id := range gone {
			c.ended(id)
		}
	}
	return nil
}

// expireIdle ends the sessions that have been idle for too long, if there is no collection.
func (c *SessionCache) expireIdle() {
	limit := c.now().Add(-c.idle).UnixMilli()
	var expired []LogicalSessionID
	c.mu.Lock()
	for id, at := range c.mu.live {
		if at < limit {
			expired = append(expired, id)
			delete(c.mu.live, id)
		}
	}
	clear(c.mu.ended)
	c.mu.Unlock()
	if c.ended != nil {
		for _, id := range expired {
			c.ended(id)
		}
	}
}

// Missing returns those of the sessions that, according to the collection, have expired or were ended; all of
// them if there is no collection.
func (c *SessionCache) Missing(ctx context.Context, ids []LogicalSessionID) ([]LogicalSessionID, error) {
	if c.store == nil {
		return ids, nil
	}
	return c.store.MissingSessions(ctx, ids)
}
