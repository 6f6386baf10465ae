package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// sessionRecords is a sessions collection that several nodes' caches share.
type sessionRecords struct {
	lastUse map[LogicalSessionID]time.Time
	down    bool
}

var errNoStore = errors.New("no primary")

func (r *sessionRecords) RefreshSessions(_ context.Context, ids []LogicalSessionID, at time.Time) error {
	if r.down {
		return errNoStore
	}
	for _, id := range ids {
		r.lastUse[id] = at
	}
	return nil
}

func (r *sessionRecords) RemoveSessions(_ context.Context, ids []LogicalSessionID) error {
	for _, id := range ids {
		delete(r.lastUse, id)
	}
	return nil
}

func (r *sessionRecords) MissingSessions(_ context.Context, ids []LogicalSessionID) (out []LogicalSessionID, err error) {
	if r.down {
		return nil, errNoStore
	}
	for _, id := range ids {
		if _, ok := r.lastUse[id]; !ok {
			out = append(out, id)
		}
	}
	return out, nil
}

// A shard used to end a session, and the cursor that a client kept open in it, by its own idle time, although the client's
// router renewed the session every few seconds.
func TestSessionsLiveAsLongAsAnyNodeUsesThem(t *testing.T) {
	now := time.Unix(1e9, 0)
	clock := func() time.Time { return now }
	records := &sessionRecords{lastUse: map[LogicalSessionID]time.Time{}}
	var ended []string
	var cursors []LogicalSessionID // of the shard
	node := func(name string) *SessionCache {
		return NewSessionCache(records, clock, func(id LogicalSessionID) {
			ended = append(ended, fmt.Sprint(name, id.ID[0]))
			cursors = slices.DeleteFunc(cursors, func(c LogicalSessionID) bool { return name == "shard " && c == id })
		})
	}
	router, shard, other := node("router "), node("shard "), node("other ")
	used, left, foreign := LogicalSessionID{ID: [16]byte{1}}, LogicalSessionID{ID: [16]byte{2}}, LogicalSessionID{ID: [16]byte{3}}
	cursors = []LogicalSessionID{used, left, foreign}
	shard.WithCursors(func() []LogicalSessionID { return cursors })
	for _, c := range []*SessionCache{router, shard} {
		for _, id := range []LogicalSessionID{used, left} {
			if err := c.Touch(id); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := other.Touch(foreign); err != nil {
		t.Fatal(err)
	}
	round := func() {
		for _, c := range []*SessionCache{router, other, shard} {
			if err := c.Sync(t.Context()); (err != nil) != records.down {
				t.Fatal(err)
			}
		}
		slices.Sort(ended)
	}
	for range 12 { // an hour, in which the TTL index removes what is not renewed
		round()
		now = now.Add(5 * time.Minute)
		for _, c := range []*SessionCache{router, other} {
			_ = c.Touch(map[*SessionCache]LogicalSessionID{router: used, other: foreign}[c])
		}
		for id, at := range records.lastUse {
			if now.Sub(at) > SessionTimeout {
				delete(records.lastUse, id)
			}
		}
	}
	round()
	if got := fmt.Sprint(ended); got != "[router 2 shard 2]" {
		t.Errorf("ended: %s", got)
	}
	// When the collection cannot be read, no session ends.
	ended, cursors, records.down = nil, []LogicalSessionID{used, foreign}, true
	now = now.Add(2 * SessionTimeout)
	round()
	if ended != nil {
		t.Errorf("ended without a readable collection: %v", ended)
	}
	records.down = false
	other.End([]LogicalSessionID{foreign})
	ended = nil
	round()
	if got := fmt.Sprint(ended); got != "[shard 3]" {
		t.Errorf("ended by the other router: %s", got)
	}
}

func TestMaxSessions(t *testing.T) {
	c := NewSessionCache(nil, nil, nil)
	c.SetLimit(2)
	for i := range 3 {
		if err := c.Touch(LogicalSessionID{ID: [16]byte{byte(i)}}); (err != nil) != (i == 2) {
			t.Errorf("session %d: %v", i, err)
		}
	}
	if err := c.Touch(LogicalSessionID{ID: [16]byte{1}}); err != nil {
		t.Errorf("a known session: %v", err)
	}
}

// The session of an operation that ran for longer than the session timeout used to be ended during the operation: only its beginning counted as a use.
func TestSessionsOfRunningOperationsAreRenewed(t *testing.T) {
	now := time.Unix(1e9, 0)
	records := &sessionRecords{lastUse: map[LogicalSessionID]time.Time{}}
	var ended []LogicalSessionID
	c := NewSessionCache(records, func() time.Time { return now }, func(id LogicalSessionID) { ended = append(ended, id) })
	running, left := LogicalSessionID{ID: [16]byte{1}}, LogicalSessionID{ID: [16]byte{2}}
	c.WithOperations(func() []LogicalSessionID { return []LogicalSessionID{running.Child(7)} })
	for _, id := range []LogicalSessionID{running, left} {
		if err := c.Touch(id); err != nil {
			t.Fatal(err)
		}
	}
	for range 12 { // an hour
		if err := c.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		now = now.Add(5 * time.Minute)
		for id, at := range records.lastUse {
			if now.Sub(at) > SessionTimeout {
				delete(records.lastUse, id)
			}
		}
	}
	if !slices.Equal(ended, []LogicalSessionID{left}) || records.lastUse[running].IsZero() {
		t.Errorf("ended %v, stored %v", ended, records.lastUse)
	}
}

// serverStatus shows the results of the session jobs, and the time since they ran.
func TestSessionJobsAreCounted(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := NewSessionCache(&sessionRecords{lastUse: map[LogicalSessionID]time.Time{}}, func() time.Time { return now }, nil)
	for i := range 3 {
		if err := c.Touch(LogicalSessionID{ID: [16]byte{byte(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	c.End([]LogicalSessionID{{ID: [16]byte{2}}})
	now = now.Add(time.Minute)
	if err := c.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.ClosedCursors(4)
	if err := c.Reap(t.Context(), func(context.Context) (int, error) { now = now.Add(time.Second); return 5, nil }); err != nil {
		t.Fatal(err)
	}
	const want = `{ activeSessionsCount: 2, sessionsCollectionJobCount: 1, lastSessionsCollectionJobDurationMillis: 0, ` +
		`lastSessionsCollectionJobTimestamp: new Date(1000000060000), lastSessionsCollectionJobEntriesRefreshed: 2, lastSessionsCollectionJobEntriesEnded: 1, ` +
		`lastSessionsCollectionJobCursorsClosed: 4, transactionReaperJobCount: 1, lastTransactionReaperJobDurationMillis: 1000, ` +
		`lastTransactionReaperJobTimestamp: new Date(1000000060000), lastTransactionReaperJobEntriesCleanedUp: 5, sessionCatalogSize: 6 }`
	if got := value.ShowDoc(c.Status(6)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
