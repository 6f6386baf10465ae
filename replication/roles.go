package replication

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/storage"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// roleState is this member's state apart from raft.
type roleState struct {
	hasLog      atomic.Bool   // it is or was in a set
	inForce     atomic.Uint64 // index of the configuration that adopt last put into effect
	receiving   atomic.Bool   // a snapshot is replacing its store
	maintenance atomic.Int32
	expelled    atomic.Bool // others have said that it is no longer a member
	eager       atomic.Bool // the primary wants to know at once what is applied
	unreported  atomic.Bool
	forced      forcedState
	fatal       atomic.Pointer[error]
	changing    sync.Mutex // held while the set is initiated, or its configuration is changed by force

	mu           sync.Mutex
	last         RoleChange
	notified     bool
	frozen       time.Time // until when it does not stand for election
	initiated    time.Time
	leadless     time.Time // since when no leader is known; zero while one is
	leaderTerm   uint64    // the term that leaderCtx belongs to
	leaderCtx    context.Context
	resignLeader context.CancelFunc
}

func (r *Raft) hasLog() bool { return r.roles.hasLog.Load() }

// role returns what this member is now.
func (r *Raft) role() Role {
	l := r.lead.Load()
	switch {
	case r.roles.fatal.Load() != nil:
		return Recovering
	case !r.hasLog() && r.roles.receiving.Load():
		return Startup2
	case !r.hasLog():
		return Startup
	case r.self() == nil || r.roles.expelled.Load():
		return Removed
	case l.state == raft.StateLeader && r.primary.Load() == l.term:
		return Primary
	case r.roles.maintenance.Load() > 0 || r.roles.receiving.Load() || r.unproven():
		return Recovering
	}
	return Secondary
}

// leader returns the _id of the primary: raft's leader, once it has reported that it accepts writes.
func (r *Raft) leader() int {
	l := r.lead.Load()
	switch {
	case l.lead == raft.None:
		return NoMember
	case l.lead == r.id.Load():
		if r.role() != Primary {
			return NoMember
		}
		return int(l.lead) - 1
	}
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	if s := r.peers.seen[l.lead]; s == nil || s.report.role != Primary || s.report.term != l.term {
		return NoMember
	}
	return int(l.lead) - 1
}

// roleChanged reports a changed role to the observers. Any goroutine may call it.
func (r *Raft) roleChanged() {
	s := &r.roles
	s.mu.Lock()
	defer s.mu.Unlock()
	now := RoleChange{Role: r.role(), Term: r.Term(), Leader: r.leader(), Writable: r.writable.Load()}
	if s.notified && now == s.last || now.Role == Primary && !now.Writable {
		return // stepUpServices reports a primary that is not writable yet
	}
	if s.initiated.IsZero() && r.hasLog() {
		s.initiated = time.Now()
	}
	if now.Leader == NoMember && (s.last.Leader != NoMember || !s.notified) {
		s.leadless = time.Now()
	} else if now.Leader != NoMember {
		s.leadless = time.Time{}
	}
	s.last, s.notified = now, true
	r.changes.push(func() { r.observe(now) })
	r.callAll()
}

// observe runs the node's observer.
func (r *Raft) observe(now RoleChange) {
	if f := r.opts.OnRole; f != nil {
		f(now)
	}
	if now.Writable && r.writable.Load() && uint64(now.Term) == r.primary.Load() {
		r.announced.Store(uint64(now.Term))
	}
}

// announcedPrimary reports whether this member is the primary and its observer knows it.
func (r *Raft) announcedPrimary() bool {
	return r.writable.Load() && r.announced.Load() == r.primary.Load()
}

// runObservers runs callbacks that may take their time or write, in order.
func (r *Raft) runObservers() {
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.changes.wake:
		}
		for _, f := range r.changes.take() {
			if r.ctx.Err() != nil {
				return
			}
			f()
		}
	}
}

// stepUpServices takes a new primary from the end of the drain to the first client's write: first the entry "new
// primary", then the primary-only services, then the clients.
func (r *Raft) stepUpServices(term uint64) {
	if r.primary.Load() != term {
		return
	}
	_, at := r.m.AppliedIndex()
	caughtUp := opTime(r.m.Visible(), at)
	if err := r.m.WriteNoop(r.ctx, "new primary"); err != nil {
		r.log.Info().Err(err).Uint64("term", term).Msg("stepping up ended early")
		return
	}
	r.election.note(r.m.Visible(), caughtUp, time.Now())
	r.observe(RoleChange{Role: Primary, Term: int64(term), Leader: int(r.id.Load()) - 1})
	r.roles.mu.Lock()
	l := r.lead.Load()
	if r.primary.Load() == term && l.term == term && l.state == raft.StateLeader && r.ctx.Err() == nil {
		r.writable.Store(true)
	}
	r.roles.mu.Unlock()
	if l := r.lead.Load(); l.term != term || l.state != raft.StateLeader {
		r.writable.Store(false) // deposed in the meantime
	}
	r.roleChanged()
	r.log.Info().Uint64("term", term).Msg("this member is the primary now")
}

// LeaderContext returns a context that ends as soon as this member no longer leads the term, before any observer is
// notified: what a new primary does before clients write may wait for others, and must not delay what the member
// becomes next.
func (r *Raft) LeaderContext(term int64) context.Context {
	s := &r.roles
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaderCtx != nil && s.leaderTerm == uint64(term) {
		return s.leaderCtx
	}
	over, cancel := context.WithCancel(r.ctx)
	cancel()
	return over
}

// becomeLeader begins the leader's context, in the applier; resignLeader ends it, in whichever goroutine learns that the term is over.
func (r *Raft) becomeLeader(term uint64) {
	s := &r.roles
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaderTerm = term
	s.leaderCtx, s.resignLeader = context.WithCancel(r.ctx)
}

func (r *Raft) resignLeader() {
	s := &r.roles
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resignLeader != nil {
		s.resignLeader()
	}
}

// Freeze keeps the member from standing for election for d; zero ends that.
func (r *Raft) Freeze(d time.Duration) error {
	if r.role() == Primary {
		return errNotSecondary
	}
	r.freezeUntil(time.Now().Add(d))
	return nil
}

func (r *Raft) freezeUntil(t time.Time) {
	r.roles.mu.Lock()
	r.roles.frozen = t
	r.roles.mu.Unlock()
}

func (r *Raft) frozenUntil() time.Time {
	r.roles.mu.Lock()
	defer r.roles.mu.Unlock()
	return r.roles.frozen
}

// SetMaintenance puts a secondary into RECOVERING and back, and waits until the observers know, so that hello and
// reads answer accordingly once it has returned. Calls are counted: each `on` must be undone by an `off`.
func (r *Raft) SetMaintenance(ctx context.Context, on bool) error {
	if r.role() == Primary {
		return errMaintenance
	}
	if on {
		r.roles.maintenance.Add(1)
	} else if r.roles.maintenance.Add(-1) < 0 {
		r.roles.maintenance.Add(1)
		return errNoMaintenance
	}
	r.roleChanged()
	reported := make(chan struct{})
	r.changes.push(func() { close(reported) }) // after what roleChanged has to report
	select {
	case <-reported:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.ctx.Done():
		return errStopped
	}
}

// electable reports whether this member would become primary.
func (r *Raft) electable() bool {
	m := r.self()
	return m != nil && m.Electable() && r.roles.maintenance.Load() == 0 && !r.roles.receiving.Load() &&
		!r.roles.expelled.Load() && !r.superseded() && !time.Now().Before(r.frozenUntil())
}

// soleVoter reports whether this member is the whole quorum.
func (r *Raft) soleVoter() bool {
	s := r.rlog.conf().state
	return len(s.GetVoters()) == 1 && len(s.GetVotersOutgoing()) == 0 && s.GetVoters()[0] == r.id.Load()
}

// mayBecomePrimary reports whether this member, leading raft, becomes primary.
func (r *Raft) mayBecomePrimary() bool {
	return r.electable() || r.soleVoter() && r.self() != nil && r.self().Electable()
}

// mayStand reports whether a vote request may be sent. A member that must not become primary does not stand,
// unless the set has had no leader for long: it may be the only one with everything that was acknowledged. It then
// leads without accepting writes until an electable member has caught up. The same holds for a member that is
// leaving, if the step that ends its membership is only in its own log.
func (r *Raft) mayStand(m *raftpb.Message) bool {
	if string(m.GetContext()) == "CampaignTransfer" || r.electable() {
		return true
	}
	gone := r.role() == Removed && !slices.Contains(r.rlog.conf().state.GetVotersOutgoing(), r.id.Load())
	return r.leadlessFor() > 5*r.electionTimeout()/2 && r.roles.maintenance.Load() == 0 && !gone && !r.superseded()
}

func (r *Raft) leadlessFor() time.Duration {
	r.roles.mu.Lock()
	defer r.roles.mu.Unlock()
	if r.roles.leadless.IsZero() {
		return 0
	}
	return time.Since(r.roles.leadless)
}

func (r *Raft) electionTimeout() time.Duration {
	if c := r.Config(); c != nil {
		return c.Settings.ElectionTimeout
	}
	return DefaultSettings().ElectionTimeout
}

// electionState holds electionMetrics and the details of the last election.
type electionState struct {
	mu sync.Mutex
	ElectionStatus
	reason electionReason // why the next one is held
}

type electionReason int

const (
	byTimeout electionReason = iota
	byRequest
)

// note is called when this member has become primary.
func (e *electionState) note(ts storage.Timestamp, caughtUp OpTime, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.LastElectionTS, e.CaughtUpOpTime, e.PrimarySince = ts, caughtUp, now
	e.CaughtUp++ // raft never elects a member that lacks what was acknowledged
}

func (e *electionState) won() (storage.Timestamp, uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.LastElectionTS, uint64(e.PrimarySince.UnixMilli())
}

func (e *electionState) because(why electionReason) {
	e.mu.Lock()
	e.reason = why
	e.mu.Unlock()
}

// noteElection counts elections as the loop sees raft's state change.
func (r *Raft) noteElection(old, now *lead) {
	e := &r.election
	e.mu.Lock()
	defer e.mu.Unlock()
	at := time.Now()
	standing := func(s raft.StateType) bool { return s == raft.StateCandidate || s == raft.StatePreCandidate }
	called, won := &e.Called, &e.Won
	if e.reason == byRequest {
		called, won = &e.StepUpCalled, &e.StepUpWon
	}
	if now.state != raft.StateFollower && !standing(old.state) && old.state != raft.StateLeader {
		*called++
		e.LastElection = at
		if e.LastReason = "electionTimeout"; e.reason == byRequest {
			e.LastReason = "stepUpRequest"
		}
	}
	if now.state == raft.StateLeader && old.state != raft.StateLeader {
		*won++
		e.LastTransition = at
		r.log.Info().Uint64("term", now.term).Msg("election won")
	}
	if now.state == raft.StateFollower {
		e.reason = byTimeout
	}
	if old.state == raft.StateLeader && now.state != raft.StateLeader {
		e.StepDowns++
		e.LastStepDown, e.LastTransition = at, at
		r.log.Info().Uint64("term", now.term).Msg("stepped down: no longer primary")
	}
}
