package replication

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

var (
	errNotSecondary  = mongoerr.New(mongoerr.NotSecondary, "cannot freeze node when primary or running for election. state: Primary")
	errMaintenance   = mongoerr.New(mongoerr.NotSecondary, "primaries can't modify maintenance mode")
	errNoMaintenance = mongoerr.New(mongoerr.OperationFailed, "already out of maintenance mode")
	errNotPrimary    = mongoerr.New(mongoerr.NotWritablePrimary, "not primary so can't step down")
	errLost          = mongoerr.New(mongoerr.CommandFailed, "Election failed.")
)

// follower is another voter, seen by the leader.
type follower struct {
	id    uint64
	match uint64
	lag   uint64
	alive bool // responds, and receives entries as they come
}

// followers returns the voters that this member leads; call it in the loop.
func (r *Raft) followers() (all []follower) {
	rn := r.loop.rn
	if rn == nil || rn.BasicStatus().RaftState != raft.StateLeader {
		return nil
	}
	last := uint64(0)
	rn.WithProgress(func(id uint64, _ raft.ProgressType, p tracker.Progress) {
		if id == r.id.Load() {
			last = p.Match
		}
	})
	rn.WithProgress(func(id uint64, typ raft.ProgressType, p tracker.Progress) {
		if id != r.id.Load() && typ == raft.ProgressTypePeer {
			f := follower{id: id, match: p.Match, alive: p.RecentActive && p.State == tracker.StateReplicate}
			if last > p.Match {
				f.lag = last - p.Match
			}
			all = append(all, f)
		}
	})
	return all
}

// nearLag is the maximum number of entries that a member may lack to be handed the leadership: they are sent while proposals
// wait.
const nearLag = 256

// successor picks the member to take over: among the electable ones that have nearly all entries, the one with the
// highest priority, then the one with the most entries. Call it in the loop.
func (r *Raft) successor(min float64) (uint64, bool) {
	cfg := r.Config()
	best, found := follower{}, false
	top := 0.0
	for _, f := range r.followers() {
		m := cfg.Member(int(f.id) - 1)
		if m == nil || !m.Electable() || m.Priority < min || !f.alive || f.lag > nearLag || !r.willing(f.id) {
			continue
		}
		if !found || m.Priority > top || m.Priority == top && f.match > best.match {
			best, found, top = f, true, m.Priority
		}
	}
	return best.id, found
}

// willing reports whether a member was heard from lately and would stand for election.
func (r *Raft) willing(id uint64) bool {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	s := r.peers.seen[id]
	return s != nil && s.report.flags&reportElectable != 0 && time.Since(s.at) < max(r.electionTimeout(), 2*r.beatInterval())
}

// StepDown hands over to a caught-up member and does not stand for election for period. It waits up to catchUp for a
// member to catch up; with force it steps down even without one.
func (r *Raft) StepDown(ctx context.Context, period, catchUp time.Duration, force bool) error {
	l := r.lead.Load()
	if l.state != raft.StateLeader || r.primary.Load() != l.term {
		return errNotPrimary
	}
	start := time.Now()
	before := r.frozenUntil()
	for {
		done, err := r.handOver(ctx, l.term, 0, start.Add(period))
		if done || err != nil {
			return err
		}
		if time.Since(start) >= catchUp {
			break
		}
		if err := r.wait(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	if !force {
		r.freezeUntil(before)
		return mongoerr.Newf(mongoerr.ExceededTimeLimit, "No electable secondaries caught up as of %s. Please use the replSetStepDown command with the argument {force: true} to force node to step down.",
			time.Now().UTC().Format("2006-01-02T15:04:05.000-0700"))
	}
	r.freezeUntil(start.Add(period))
	r.log.Warn().Msg("stepping down without a successor")
	err := r.do(func() { r.stepDownIn(l.term) })
	if err != nil {
		return err
	}
	_, err = r.awaitDeposed(ctx, l.term, time.Second, func() bool { return false })
	return err
}

// handOver transfers leadership to the best successor with a priority of at least min, if there is one; done
// reports whether the term is over. The time until which this member does not stand for election is set first, so
// that it does not win the leadership back.
//
// Invariant: while a transfer is under way nothing is proposed (propose), so that the successor can get all entries before it
// stands. The pause is short: a successor lacks at most nearLag entries and was heard from lately (successor).
//
// Hazard: the successor may not stand, because it was frozen or put into maintenance since it last reported. Raft would keep
// waiting, and every write with it, for an election timeout. The successor therefore reports at once that it does not stand, and refused cancels the transfer.
//
// Hazard: the successor passes over the message that asks it to stand, as it has yet to apply a configuration, or the message is lost in the response to a call of its own. Raft sends it again only behind new
// entries or a call that failed, and ignores a second transfer to the same member while the first is under way: everybody would wait for an election timeout here, too. The message is therefore
// sent again (urge), and a transfer that has come to nothing is cancelled before the next one.
//
// Rejected: stepping down first and leaving the rest to an election. Nobody accepts writes until a follower suspects the
// leader, which takes an election timeout, and whichever member stands first wins, whatever its priority. Only StepDown with force does that, when no
// member has caught up.
func (r *Raft) handOver(ctx context.Context, term uint64, min float64, frozen time.Time) (done bool, err error) {
	var t *transfer
	err = r.do(func() {
		if r.loop.rn == nil || r.lead.Load().term != term {
			return
		}
		id, ok := r.successor(min)
		if !ok {
			return
		}
		if !frozen.IsZero() {
			r.freezeUntil(frozen)
		}
		t = r.transferTo(id)
	})
	if t != nil {
		defer func() { r.in.push(input{f: func() { r.leave(t) }}) }()
	}
	if l := r.lead.Load(); l.term != term || l.state != raft.StateLeader {
		return true, err
	}
	if err != nil || t == nil {
		return false, err
	}
	limit := max(r.electionTimeout()/2, 100*time.Millisecond)
	urged := time.Now()
	return r.awaitDeposed(ctx, term, limit, func() bool {
		if now := time.Now(); now.Sub(urged) >= limit/urgings {
			urged = now
			r.in.push(input{f: func() { r.urge(t.to) }})
		}
		return t.refused.Load()
	})
}

// transfer is a transfer of leadership to a member. Several hand-overs may wait for one: raft has only one under way, and ignores a second one to the same member.
type transfer struct {
	to      uint64
	waiting int // hand-overs; belongs to the loop
	refused atomic.Bool
}

// transferTo begins a transfer to a member, or joins the one that is under way, for a hand-over that calls leave at its end. Call it in the loop.
func (r *Raft) transferTo(id uint64) *transfer {
	t := r.handing.Load()
	if t == nil || t.to != id || t.refused.Load() {
		t = &transfer{to: id}
		r.handing.Store(t)
	}
	t.waiting++
	r.loop.rn.TransferLeader(id)
	return t
}

// leave cancels a transfer when its last hand-over has ended; it does nothing if the leadership is transferred. Call it in the loop.
func (r *Raft) leave(t *transfer) {
	if t.waiting--; t.waiting == 0 {
		r.cancelTransfer(t)
	}
}

// urgings is the number of times that a member which is to take over is asked again to stand for election.
const urgings = 10

// urge asks a member to which leadership is being transferred once more to stand for election, if it has all entries; before, raft still has to ask it. One that is standing already ignores it. Call it in
// the loop.
func (r *Raft) urge(id uint64) {
	rn := r.loop.rn
	if rn == nil || rn.BasicStatus().LeadTransferee != id {
		return
	}
	for _, f := range r.followers() {
		if f.id == id && f.lag == 0 {
			r.send(&raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: new(r.id.Load()), To: new(id), Term: new(rn.BasicStatus().GetTerm())})
		}
	}
}

// cancelTransfer ends a transfer, unless another one has replaced it; call it in the loop.
func (r *Raft) cancelTransfer(t *transfer) {
	if !r.handing.CompareAndSwap(t, nil) {
		return
	}
	if rn := r.loop.rn; rn != nil && rn.BasicStatus().LeadTransferee == t.to {
		rn.TransferLeader(r.id.Load()) // to itself, which is how raft cancels a transfer
	}
}

// refused handles the report that a member that was asked to take over does not stand: it was frozen or put into
// maintenance since it was last heard from. Raft would otherwise block all writes for an election timeout.
func (r *Raft) refused(id uint64) {
	t := r.handing.Load()
	if t == nil || t.to != id || !t.refused.CompareAndSwap(false, true) {
		return
	}
	r.log.Info().Uint64("member", id-1).Msg("the member that was to take over does not stand for election")
	r.in.push(input{f: func() { r.cancelTransfer(t) }})
}

// awaitDeposed waits until this member no longer leads the term and the engine refuses writes, or the attempt is
// over.
func (r *Raft) awaitDeposed(ctx context.Context, term uint64, limit time.Duration, over func() bool) (bool, error) {
	for end := time.Now().Add(limit); ; {
		if l := r.lead.Load(); (l.term != term || l.state != raft.StateLeader) && r.primary.Load() != term {
			return true, nil
		}
		if time.Now().After(end) || over() {
			return false, nil
		}
		if err := r.wait(ctx, time.Millisecond); err != nil {
			return false, err
		}
	}
}

// stepDownIn makes raft follow a term that has no leader.
func (r *Raft) stepDownIn(term uint64) {
	rn := r.loop.rn
	st := rn.BasicStatus()
	if st.RaftState == raft.StateLeader && st.GetTerm() == term {
		id := r.id.Load()
		_ = rn.Step(&raftpb.Message{Type: raftpb.MsgAppResp.Enum(), From: new(id), To: new(id), Term: new(term + 1)})
	}
}

// StepUp stands for election now, and returns when this member is the primary.
func (r *Raft) StepUp(ctx context.Context) error {
	if r.announcedPrimary() {
		return nil
	}
	if m := r.self(); !r.hasLog() || m == nil || !m.Electable() || r.superseded() {
		return mongoerr.New(mongoerr.CommandFailed, "Election failed. This member cannot be elected.")
	}
	r.freezeUntil(time.Time{})
	r.election.because(byRequest)
	if done, err := r.campaign(ctx, false); done || err != nil {
		return err
	}
	if done, err := r.campaign(ctx, true); done || err != nil {
		return err
	}
	return errLost
}

// campaign asks the leader to transfer leadership or, as a rival, gets this member elected.
func (r *Raft) campaign(ctx context.Context, rival bool) (done bool, err error) {
	limit := max(r.electionTimeout()/5, 200*time.Millisecond)
	err = r.do(func() {
		rn := r.loop.rn
		if rn == nil {
			return
		}
		st := rn.BasicStatus()
		switch {
		case rival && st.RaftState == raft.StateFollower && st.Lead != raft.None:
			_ = rn.Step(&raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: new(st.Lead), To: new(r.id.Load()), Term: new(st.GetTerm())})
		case rival || st.Lead == raft.None:
			_ = rn.Campaign()
		case st.Lead != r.id.Load():
			rn.TransferLeader(r.id.Load())
		}
	})
	for end := time.Now().Add(limit); err == nil; err = r.wait(ctx, 2*time.Millisecond) {
		if r.announcedPrimary() {
			return true, nil
		}
		l := r.lead.Load()
		if time.Now().After(end) && l.state != raft.StateLeader {
			return false, nil
		}
		if time.Now().After(end.Add(5 * time.Second)) {
			return false, nil
		}
	}
	return false, err
}
