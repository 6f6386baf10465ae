package replication

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Ticks of raft's clock. Its timeouts are drawn from [electionTicks, 2*electionTicks), which is 0.55 to 1.1 of
// electionTimeoutMillis: with the votes, a killed primary is replaced well within that time and two seconds.
const (
	electionTicks  = 50
	heartbeatTicks = 5
)

// loopState belongs to the loop.
type loopState struct {
	rn      *raft.RawNode
	resume  bool        // there is a log to start with
	first   int         // ticks until the first election after a start
	held    []*proposal // while leadership is being transferred
	conf    confAttempt
	tick    *time.Ticker
	every   time.Duration
	ticked  time.Time // up to when raft's clock has been advanced
	entries []*raftpb.Entry
	last    uint64 // the newest entry given to the appender since the start
}

// runLoop is the only goroutine that touches raft's state.
func (r *Raft) runLoop() {
	l := &r.loop
	l.every = tickOf(r.Config())
	l.tick, l.ticked = time.NewTicker(l.every), time.Now()
	defer l.tick.Stop()
	if l.resume {
		r.guarded(r.startNode)
		// If all members were down, there is no need to wait until a leader's silence becomes suspicious: a candidate
		// that is too early is refused by members that hear from a leader.
		if l.first = 3 + rand.IntN(electionTicks/5); r.soleVoter() {
			l.first = 1
		}
	}
	r.roleChanged()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.in.wake:
		case <-l.tick.C:
			r.guarded(r.catchUp)
		}
		r.guarded(r.turn)
	}
}

// guarded turns a panic of the raft library, raised when its log contradicts its input, into the end of this member.
func (r *Raft) guarded(f func()) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if bad, ok := p.(contradiction); ok {
			r.fail(brokenLog(string(bad)))
			return
		}
		r.fail(fmt.Errorf("internal error of the replica set's loop: %v\n%s", p, debug.Stack()))
	}()
	f()
}

func tickOf(c *SetConfig) time.Duration {
	t := DefaultSettings().ElectionTimeout
	if c != nil && c.Settings.ElectionTimeout > 0 {
		t = c.Settings.ElectionTimeout
	}
	return max(t*55/100/electionTicks, time.Millisecond)
}

// startNode creates raft's node from the log.
func (r *Raft) startNode() {
	rn, err := raft.NewRawNode(&raft.Config{
		ID: r.id.Load(), ElectionTick: electionTicks, HeartbeatTick: heartbeatTicks,
		Storage: r.rlog, Applied: r.applied.Load(), AsyncStorageWrites: true,
		MaxSizePerMsg: 4 << 20, MaxCommittedSizePerReady: 16 << 20,
		MaxInflightMsgs: 256, MaxInflightBytes: maxLogCache, // entries that are no longer in the cache are read for it
		CheckQuorum: true, PreVote: true, DisableProposalForwarding: true, StepDownOnRemoval: true,
		Logger: raftLogger{r.log},
	})
	if err != nil {
		r.fail(err)
		return
	}
	r.loop.rn = rn
	r.nodes.Add(1)
}

// setPace applies the configuration's election timeout.
func (r *Raft) setPace(c *SetConfig) {
	if d := tickOf(c); d != r.loop.every {
		r.loop.every, r.loop.ticked = d, time.Now()
		r.loop.tick.Reset(d)
	}
}

// maxLate bounds the ticks by which raft's clock is advanced at once: a fifth of the shortest timeout. A process that
// was paused thus processes what has arrived meanwhile before it suspects any member.
const maxLate = electionTicks / 5

// catchUp advances raft's clock by the time that has passed. A ticker drops ticks that are not received in time: on a
// machine that runs the loop only every 200 ms, counting ticks would make an election take ten times as long.
func (r *Raft) catchUp() {
	l := &r.loop
	now := time.Now()
	n := int((now.Sub(l.ticked) + l.every/2) / l.every)
	if n > maxLate {
		n, l.ticked = maxLate, now
	} else {
		l.ticked = l.ticked.Add(time.Duration(n) * l.every)
	}
	if n > 1 {
		r.turn() // process first what has arrived
	}
	for ; n > 0; n-- {
		r.tick()
	}
}

func (r *Raft) tick() {
	l := &r.loop
	if l.rn == nil || r.superseded() {
		return
	}
	if st := l.rn.BasicStatus(); st.RaftState != raft.StateLeader && !r.electable() && r.soleVoter() {
		return // it would elect itself at once
	}
	l.rn.Tick()
	if l.first > 0 {
		if l.first--; l.first == 0 && l.rn.BasicStatus().Lead == raft.None {
			_ = l.rn.Campaign()
		}
	}
}

// turn processes what has arrived and does what raft requests.
func (r *Raft) turn() {
	l := &r.loop
	for _, x := range r.in.take() {
		switch {
		case x.m != nil:
			r.step(x.m)
		case x.p != nil:
			l.held = append(l.held, x.p)
		default:
			x.f()
		}
	}
	if l.rn == nil {
		return
	}
	r.propose()
	if r.growing.Load() {
		r.promote()
	}
	for l.rn.HasReady() && r.ctx.Err() == nil {
		r.handle(l.rn.Ready())
	}
	r.publish()
}

// step passes a message to raft, except those this member must not follow.
func (r *Raft) step(m *raftpb.Message) {
	if r.loop.rn == nil {
		return
	}
	if m.GetType() == raftpb.MsgTimeoutNow && !r.electable() {
		if p := r.peer(m.GetFrom()); p != nil {
			p.call() // its report will say so
		}
		return
	}
	_ = r.loop.rn.Step(m) // it refuses outdated messages
}

// propose appends the groups that the engine has prepared, all in one message. Groups of another term are dropped: by
// then the engine has been instructed to resign.
func (r *Raft) propose() {
	l := &r.loop
	if len(l.held) == 0 {
		return
	}
	st := l.rn.BasicStatus()
	if st.RaftState == raft.StateLeader && st.LeadTransferee != raft.None {
		return // until the other member has taken over, or has failed to
	}
	l.entries = l.entries[:0]
	var groups []flight
	for _, p := range l.held {
		if st.RaftState == raft.StateLeader && p.term == st.GetTerm() {
			l.entries = append(l.entries, &raftpb.Entry{Data: p.g.Data()})
			groups = append(groups, flight{p.g, p.term})
		}
	}
	l.held = nil
	if len(groups) == 0 {
		return
	}
	r.flights.add(groups)
	err := l.rn.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(r.id.Load()), Entries: l.entries})
	if err != nil {
		// raft drops proposals only if this member does not lead or is transferring leadership, which was checked
		// above.
		panic(fmt.Sprintf("proposals of term %d were dropped: %v", st.GetTerm(), err))
	}
	l.entries = nil
}

// handle does what raft requests: write, apply, send.
func (r *Raft) handle(rd raft.Ready) {
	for i := range rd.ReadStates {
		r.reads.ready(r, &rd.ReadStates[i])
	}
	for _, m := range rd.Messages {
		switch m.GetTo() {
		case raft.LocalAppendThread:
			if n := len(m.GetEntries()); n > 0 {
				r.loop.last = m.GetEntries()[n-1].GetIndex()
				if r.loop.conf.index == 0 {
					r.loop.conf.index = r.loop.last
				}
			}
			r.append(m)
		case raft.LocalApplyThread:
			r.applies.push(applyItem{entries: m.GetEntries(), done: m.GetResponses(), node: r.nodes.Load()})
		default:
			if p := r.peer(m.GetTo()); p != nil && r.mayWait(m) {
				p.add(m)
			} else {
				r.send(m)
			}
		}
	}
}

// mayWait reports whether a message can be sent together with the next one. A message that only advances the
// commit index can, as long as more is in flight: a higher commit index follows soon, with raft's heartbeat at
// the latest, and only readers on other members wait for it.
func (r *Raft) mayWait(m *raftpb.Message) bool {
	return m.GetType() == raftpb.MsgApp && len(m.GetEntries()) == 0 && m.GetCommit() < r.loop.last && !r.waits.some()
}

// append passes entries and hard state to the appender or, in memory, stores them at once.
func (r *Raft) append(m *raftpb.Message) {
	if m.GetSnapshot() != nil {
		r.expect(m)
	}
	if r.opts.Store != nil || m.GetSnapshot() != nil || r.pending.Load() > 0 {
		r.pending.Add(1)
		r.appends.push(appendItem{m: m})
		return
	}
	if err := r.rlog.write([]*raftpb.Message{m}, false); err != nil {
		r.fail(err)
		return
	}
	for _, x := range m.GetResponses() {
		if x.GetTo() == r.id.Load() {
			_ = r.loop.rn.Step(x)
		} else {
			r.send(x)
		}
	}
}

// publish tells this member's other goroutines what has changed.
func (r *Raft) publish() {
	st := r.loop.rn.BasicStatus()
	now := lead{st.RaftState, st.GetTerm(), st.Lead}
	old := r.lead.Load()
	if *old != now {
		r.lead.Store(&now)
		r.noteElection(old, &now)
		if old.state == raft.StateLeader && (now.state != raft.StateLeader || now.term != old.term) {
			r.deposed()
		}
		r.roleChanged()
	}
}

// contradiction is the panic value of the raft library's logger.
type contradiction string

// raftLogger forwards the library's log to the server's.
type raftLogger struct{ log zerolog.Logger }

func (l raftLogger) Debug(v ...any)                   {}
func (l raftLogger) Debugf(format string, v ...any)   {}
func (l raftLogger) Info(v ...any)                    { l.log.Debug().Msg(fmt.Sprint(v...)) }
func (l raftLogger) Infof(format string, v ...any)    { l.log.Debug().Msgf(format, v...) }
func (l raftLogger) Warning(v ...any)                 { l.log.Warn().Msg(fmt.Sprint(v...)) }
func (l raftLogger) Warningf(format string, v ...any) { l.log.Warn().Msgf(format, v...) }
func (l raftLogger) Error(v ...any)                   { l.log.Error().Msg(fmt.Sprint(v...)) }
func (l raftLogger) Errorf(format string, v ...any)   { l.log.Error().Msgf(format, v...) }
func (l raftLogger) Fatal(v ...any)                   { panic(contradiction(fmt.Sprint(v...))) }
func (l raftLogger) Fatalf(format string, v ...any)   { panic(contradiction(fmt.Sprintf(format, v...))) }
func (l raftLogger) Panic(v ...any)                   { panic(contradiction(fmt.Sprint(v...))) }
func (l raftLogger) Panicf(format string, v ...any)   { panic(contradiction(fmt.Sprintf(format, v...))) }
