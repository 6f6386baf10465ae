package ddl

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
)

// quorumWait is the wait of an index build for its commit quorum, on the primary. The members get a build's keys through the replicated log, so one that has
// applied the build's last unit of work is ready to commit: its report of how far it has applied is its vote. Votes are stored only if the quorum is
// not there at once, which in a set whose members are up it is.
//
// Invariant: the build commits only if enough members, by the configuration and the quorum in force at that moment, are ready or have a stored vote.
// Hazard: a primary that steps down and does not notice would abort or commit a build that the next primary has taken over. Both are units of work, which the
// engine of a member that is not the primary refuses; the wait then ends without aborting anything. Rejected: members that send their votes. Each would have to
// learn where the primary is and try again until it has answered, to tell it what it knows already.
type quorumWait struct {
	cs    *Commands
	b     *storage.IndexBuild
	entry *storage.BuildEntry
	q     replication.CommitQuorum

	mu             sync.Mutex
	ready, missing []string // hosts
}

// While a build waits, members report at once what they have applied for the time of a look; they are asked again after a pause.
const (
	firstLook, look         = 200 * time.Millisecond, 50 * time.Millisecond
	firstPause, longestWait = 20 * time.Millisecond, time.Second
)

var errNoQuorum = errors.New("the commit quorum is not satisfied yet")

// AwaitQuorum waits until an index build may commit. It ends with ctx, with this member's time as primary, and with the build.
func (cs *Commands) AwaitQuorum(ctx context.Context, b *storage.IndexBuild) error {
	w := &quorumWait{cs: cs, b: b}
	var shown []string
	for n, pause := 0, firstPause; ; n, pause = n+1, min(2*pause, longestWait) {
		limit := look
		if n == 0 {
			limit = firstLook
		}
		if err := w.look(ctx, limit); !errors.Is(err, errNoQuorum) {
			return err
		}
		ready, missing := w.members()
		if slices.ContainsFunc(ready, func(host string) bool { return !slices.Contains(w.entry.Ready, host) }) {
			if err := b.Vote(ctx, ready); err != nil {
				return err
			}
		}
		if n == 0 || !slices.Equal(missing, shown) {
			shown = missing
			cs.node.BuildWaits(b, w.q, missing)
		}
		if err := pauseFor(ctx, pause, b.Changed()); err != nil {
			return err
		}
	}
}

func pauseFor(ctx context.Context, d time.Duration, changed <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// look waits for the quorum for some time.
func (w *quorumWait) look(ctx context.Context, limit time.Duration) (err error) {
	if w.entry, err = w.b.Entry(); err != nil {
		return err
	}
	if w.q, err = replication.ParseCommitQuorum(w.entry.Quorum); err != nil || w.q.Disabled() {
		return err // without a quorum also in the step-up of a service, before the member is a writable primary
	}
	if err = w.cs.node.Primary(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errNoQuorum)
	defer cancel()
	return w.cs.node.AwaitMembers(ctx, w.b.Loaded(), w.met)
}

// met decides on the members that have applied all of the build, and notes which they are.
func (w *quorumWait) met(c *replication.SetConfig, has func(id int) bool) bool {
	var ready, missing []string
	voted := func(id int) bool {
		m := c.Member(id)
		return m != nil && (has(id) || slices.Contains(w.entry.Ready, m.Host))
	}
	for i := range c.Members {
		switch m := &c.Members[i]; {
		case m.ArbiterOnly:
		case voted(m.ID):
			ready = append(ready, m.Host)
		default:
			missing = append(missing, m.Host)
		}
	}
	w.mu.Lock()
	w.ready, w.missing = ready, missing
	w.mu.Unlock()
	return c.QuorumMet(w.q, voted)
}

func (w *quorumWait) members() (ready, missing []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ready, w.missing
}
