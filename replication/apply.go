package replication

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// appendItem is one task for the appender: a message from raft, or work on the log that must not overlap with a
// write.
type appendItem struct {
	m *raftpb.Message
	f func() error
}

// runAppender writes the log. Everything that queues up during one sync shares the next.
func (r *Raft) runAppender() {
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.appends.wake:
		}
		if err := r.appendAll(r.appends.take()); err != nil {
			r.fail(fmt.Errorf("writing the raft log: %w", err))
			return
		}
	}
}

func (r *Raft) appendAll(items []appendItem) error {
	var ms []*raftpb.Message
	flush := func() error {
		if len(ms) == 0 {
			return nil
		}
		sync := false
		for _, m := range ms {
			sync = sync || r.rlog.mustSync(m)
		}
		// A message that only advances the commit index can wait for the next write: after a crash it is
		// determined again.
		if !sync {
			r.rlog.note(ms)
		} else if err := r.rlog.write(ms, true); err != nil {
			return err
		}
		for _, m := range ms {
			r.respond(m.GetResponses())
		}
		r.pending.Add(-int64(len(ms)))
		ms = ms[:0]
		return nil
	}
	for _, x := range items {
		if x.f == nil && x.m.GetSnapshot() == nil {
			ms = append(ms, x.m)
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		if x.f != nil {
			if err := x.f(); err != nil {
				return err
			}
			continue
		}
		if err := r.installStepped(x.m); err != nil {
			return err
		}
		ms = append(ms, x.m) // entries that follow the snapshot, and the answers
	}
	return flush()
}

// respond delivers raft's responses once what they depend on is durable.
func (r *Raft) respond(ms []*raftpb.Message) {
	var own []input
	for _, m := range ms {
		if m.GetTo() == r.id.Load() {
			own = append(own, input{m: m})
		} else {
			r.send(m)
		}
	}
	if len(own) > 0 {
		r.in.push(own...)
	}
}

// flight is a group of this member on its way through the log.
type flight struct {
	g    Group
	term uint64
}

// flights are the groups proposed and not yet applied, in log order: within a term only the primary adds entries,
// so the first of them is the next entry with data of that term.
type flights struct {
	mu    sync.Mutex
	queue []flight
}

func (f *flights) add(groups []flight) {
	f.mu.Lock()
	f.queue = append(f.queue, groups...)
	f.mu.Unlock()
}

// next removes and returns the group for an entry of a term; nil if the entry is not this member's own.
func (f *flights) next(term uint64) Group {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.queue) > 0 && f.queue[0].term < term {
		f.queue = f.queue[1:]
	}
	if len(f.queue) == 0 || f.queue[0].term != term {
		return nil
	}
	g := f.queue[0].g
	f.queue[0].g = nil
	f.queue = f.queue[1:]
	return g
}

func (f *flights) clear() {
	f.mu.Lock()
	f.queue = nil
	f.mu.Unlock()
}

// applyItem is one task for the applier: committed entries with the responses that raft waits for, or a task that
// must run between entries.
type applyItem struct {
	entries []*raftpb.Entry
	done    []*raftpb.Message
	node    uint64 // which incarnation of raft's node waits for the responses
	f       func() error
}

// applierState belongs to the applier.
type applierState struct {
	todo       []applyItem      // taken from the queue, in order
	restarting bool             // raft's node is being restarted
	primary    uint64           // the term in which the engine accepts writes
	due        <-chan time.Time // a deferred entry may be due; nil if there is none
}

// runApplier applies committed entries in order, while the log continues to be written.
func (r *Raft) runApplier() {
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.applies.wake:
		case <-r.applier.due:
		}
		if err := r.applyAll(r.applies.take()); err != nil {
			if r.ctx.Err() == nil {
				r.fail(fmt.Errorf("applying the raft log: %w", err))
			}
			return
		}
		r.afterApply()
	}
}

func (r *Raft) applyAll(items []applyItem) error {
	if err := r.applyQueued(items); err != nil {
		return err
	}
	return r.applyDue()
}

// applyQueued processes items. An item may itself call applyQueued for the ones after it: see drainAppender.
func (r *Raft) applyQueued(items []applyItem) error {
	a := &r.applier
	a.todo = append(a.todo, items...)
	for len(a.todo) > 0 {
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		x := a.todo[0]
		if a.todo = a.todo[1:]; len(a.todo) == 0 {
			a.todo = nil
		}
		if err := r.applyOne(&x); err != nil {
			return err
		}
	}
	return nil
}

// drainAppender waits, in the applier, until the appender has done everything it was given. That may include
// installing a snapshot, which in turn waits for the applier; the applier therefore goes on with the items after
// the one that calls this.
func (r *Raft) drainAppender() error {
	done := make(chan struct{})
	r.appends.push(appendItem{f: func() error {
		close(done)
		return nil
	}})
	for {
		if err := r.applyQueued(r.applies.take()); err != nil {
			return err
		}
		select {
		case <-done:
			return nil
		case <-r.applies.wake:
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		}
	}
}

func (r *Raft) applyOne(x *applyItem) error {
	if x.f != nil {
		return x.f()
	}
	for _, e := range x.entries {
		if e.GetIndex() <= r.applied.Load() {
			continue // handed out before raft's node was restarted
		}
		if err := r.applyEntry(e); err != nil {
			return fmt.Errorf("entry %d of term %d: %w", e.GetIndex(), e.GetTerm(), err)
		}
		r.applied.Store(e.GetIndex())
	}
	if x.node == r.nodes.Load() {
		r.respond(x.done)
	}
	return nil
}

// afterApply wakes the waiters for applied entries.
func (r *Raft) afterApply() {
	r.waits.check(r)
	r.reads.applied(r.applied.Load())
	l := r.lead.Load()
	if l.state == raft.StateLeader || l.lead == raft.None {
		return
	}
	r.roles.unreported.Store(true)
	if r.roles.eager.Load() {
		r.reportApplied()
	}
}

// reportApplied tells the leader how far this member has applied, unless it already knows.
func (r *Raft) reportApplied() {
	if r.roles.unreported.Swap(false) {
		if p := r.peer(r.lead.Load().lead); p != nil {
			p.call()
		}
	}
}

func (r *Raft) applyEntry(e *raftpb.Entry) error {
	index, term := e.GetIndex(), e.GetTerm()
	switch {
	case e.GetType() != raftpb.EntryNormal:
		if err := r.applyConf(e); err != nil || r.putsOff() {
			return err
		}
		return r.m.ApplyNothing(index, term)
	case r.putsOff():
		return nil
	case len(e.GetData()) == 0:
		if err := r.m.ApplyNothing(index, term); err != nil {
			return err
		}
		return r.ascend(term)
	case r.applier.primary == term:
		if g := r.flights.next(term); g != nil {
			return r.m.ApplyGroup(g, index, term)
		}
		return errors.New("the primary does not know an entry of its own term")
	}
	return r.m.ApplyEntry(e.GetData(), index, term)
}

// ascend makes the engine accept writes once the first entry of this member's own term is applied. Invariant: a primary
// prepares units of work only on a state that has everything that was ever acknowledged.
//
// Hazard: a leader that accepted writes as soon as it was elected would prepare them on a state that may lack committed entries of earlier
// terms: its checks for duplicates and conflicts, and its counters, would be wrong. Once an entry of the leader's own term is applied, so
// is every entry before it, and raft elects no member whose log lacks a committed entry. Rejected: waiting only until everything is
// applied that was known to be committed at the election. A new leader does not know how far its predecessors' entries are committed until
// one of its own term is.
func (r *Raft) ascend(term uint64) error {
	l := r.lead.Load()
	if l.state != raft.StateLeader || l.term != term || r.applier.primary == term || !r.mayBecomePrimary() {
		return nil
	}
	r.applier.primary = term
	r.becomeLeader(term)
	if err := r.m.BecomePrimary(int64(term), func(g Group) error { return r.enqueue(g, term) }); err != nil {
		return err
	}
	r.primary.Store(term)
	r.changes.push(func() { r.stepUpServices(term) })
	return nil
}

// enqueue takes a group from the engine. It does not wait: the end of the term is reported to the engine by Resign.
func (r *Raft) enqueue(g Group, term uint64) error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	r.in.push(input{p: &proposal{g, term}})
	return nil
}

// deposed is called by the loop as soon as this member no longer leads.
func (r *Raft) deposed() {
	r.writable.Store(false)
	r.resignLeader()
	r.waits.fail(errDeposed)
	r.reads.fail(errNotMain)
	r.applies.push(applyItem{f: r.resign})
}

// resign makes the engine refuse writes. Groups in flight may still be applied, like those of another member.
func (r *Raft) resign() error {
	if r.applier.primary == 0 {
		return nil
	}
	r.applier.primary = 0
	r.resignLeader() // deposed may have run before becomeLeader
	r.primary.Store(0)
	r.m.Resign(errDeposed)
	r.flights.clear()
	r.roleChanged()
	return nil
}

// applyConf puts a configuration into effect. A configuration that took effect before a crash is not applied
// again, and log entries from before a forced configuration do not change that one: the forced one replaces
// everything, wherever it stands in the log.
func (r *Raft) applyConf(e *raftpb.Entry) error {
	index, term := e.GetIndex(), e.GetTerm()
	cc := &raftpb.ConfChangeV2{}
	if err := proto.Unmarshal(e.GetData(), cc); err != nil {
		return err
	}
	rec := r.rlog.conf()
	if index > rec.index && epochOf(term) >= epochOf(rec.term) {
		next := confRecord{point: point{index, term}, doc: rec.doc}
		var ctx confContext
		if err := ctx.unmarshal(cc.GetContext()); err != nil {
			return err
		}
		if ctx.doc != nil {
			next.doc = ctx.doc
		}
		if err := r.do(func() { next.state = r.applyConfState(cc, &ctx, rec.state) }); err != nil {
			return err
		}
		if err := r.rlog.saveConf(next, nil); err != nil {
			return err
		}
		if err := r.adopt(&next); err != nil {
			return err
		}
	}
	return nil
}

// applyConfState changes raft's quorum. A forced change is not relative to the previous configuration; it replaces
// it.
func (r *Raft) applyConfState(cc *raftpb.ConfChangeV2, ctx *confContext, now *raftpb.ConfState) *raftpb.ConfState {
	if ctx.forcer == 0 {
		return r.loop.rn.ApplyConfChange(cc)
	}
	cfg, err := ParseConfig(ctx.doc)
	if err != nil {
		return now
	}
	if len(now.GetVotersOutgoing()) > 0 {
		now = r.loop.rn.ApplyConfChange(&raftpb.ConfChangeV2{})
	}
	changes := forcedChanges(now, cfg, ctx.forcer)
	if len(changes) == 0 {
		return now
	}
	r.loop.rn.ApplyConfChange(&raftpb.ConfChangeV2{
		Transition: raftpb.ConfChangeTransitionJointExplicit.Enum(), Changes: changes})
	return r.loop.rn.ApplyConfChange(&raftpb.ConfChangeV2{})
}
