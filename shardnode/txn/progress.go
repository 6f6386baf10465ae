package txn

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Progress of two-phase commits: rows of $currentOp, and the section twoPhaseCommitCoordinator of serverStatus.

// commitStep is the step at which a coordinator is.
type commitStep int

const (
	writingParticipantList commitStep = iota
	waitingForVotes
	writingDecision
	waitingForDecisionAcks
	deletingCoordinatorDoc
	noStep
)

var stepNames = [noStep]string{"writingParticipantList", "waitingForVotes", "writingDecision", "waitingForDecisionAcks", "deletingCoordinatorDoc"}

// state returns the step's name in $currentOp's field state.
func (s commitStep) state() string {
	if s == waitingForDecisionAcks {
		return "waitingForDecisionAck"
	}
	return stepNames[s]
}

// action returns $currentOp's name for what the step does to the participants.
func (s commitStep) action(commit bool) string {
	switch {
	case s == waitingForVotes:
		return "sendingPrepare"
	case s == waitingForDecisionAcks && commit:
		return "sendingCommit"
	case s == waitingForDecisionAcks:
		return "sendingAbort"
	}
	return stepNames[s]
}

// progress is the part of a coordinator's state that others may read at any time.
type progress struct {
	mu struct {
		sync.Mutex
		step         commitStep
		begun        time.Time // of the whole; zero before the first step
		at           time.Time // of the step
		took         [noStep]time.Duration
		participants int
		decided      bool
		commit       bool
		ts           value.Value // of a decision to commit
		why          error       // of one to abort
	}
}

// coordinatorStats has the counters of serverStatus.twoPhaseCommitCoordinator.
type coordinatorStats struct {
	created, started, committed, aborted atomic.Int64
	steps                                [noStep]atomic.Int64
}

func (s *coordinatorStats) begin() { s.created.Add(1) }

// enter records that a coordinator begins a step, or has ended.
func (m *Coordinators) enter(c *coordinator, step commitStep) {
	p, now := c.progress, m.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.begun.IsZero() {
		if step == noStep {
			return
		}
		p.mu.begun = now
		m.stats.started.Add(1)
	} else if p.mu.step != noStep {
		p.mu.took[p.mu.step] += now.Sub(p.mu.at)
		m.stats.steps[p.mu.step].Add(-1)
	}
	p.mu.step, p.mu.at, p.mu.participants = step, now, len(c.participants)
	if step != noStep {
		m.stats.steps[step].Add(1)
	}
}

// decide records the decision of a coordinator, once it is stored.
func (m *Coordinators) decide(c *coordinator) {
	p := c.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.decided {
		return
	}
	p.mu.decided, p.mu.commit, p.mu.ts, p.mu.why = true, c.commit, c.ts.Value(), c.why
	if !c.commit {
		m.stats.aborted.Add(1)
		return
	}
	m.stats.committed.Add(1)
	close(c.decided)
}

// CoordinatorStatus returns serverStatus.twoPhaseCommitCoordinator; nil if the node is not a shard.
func (t *Manager) CoordinatorStatus() []byte {
	m := t.coordinators
	if m == nil {
		return nil
	}
	i64 := func(name string, n *atomic.Int64) value.Field { return value.F(name, value.NewInt64(n.Load())) }
	var steps []value.Field
	for i, name := range stepNames {
		steps = append(steps, i64(name, &m.stats.steps[i]))
	}
	return value.Doc(i64("totalCreated", &m.stats.created), i64("totalStartedTwoPhaseCommit", &m.stats.started),
		i64("totalCommittedTwoPhaseCommit", &m.stats.committed), i64("totalAbortedTwoPhaseCommit", &m.stats.aborted),
		value.F("currentInSteps", value.NewDocument(value.Doc(steps...))))
}

// DescribeCommits returns $currentOp's rows for the running commits: for each, one for the whole commit and one for its current step.
func (t *Manager) DescribeCommits(host string) (out [][]byte) {
	m := t.coordinators
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.mu.running {
		whole, action := c.describe(m.Now())
		if whole == nil {
			continue
		}
		for _, row := range []struct {
			desc   string
			fields []byte
		}{{"transaction coordinator", whole}, {"TransactionCoordinator", action}} {
			out = append(out, value.Doc(value.F("type", value.NewString("op")), value.F("host", value.NewString(host)),
				value.F("desc", value.NewString(row.desc)), value.F("active", value.NewBool(true)),
				value.F("twoPhaseCommitCoordinator", value.NewDocument(row.fields))))
		}
	}
	return out
}

// describe returns the description of a commit and of its step; nil before the first.
func (c *coordinator) describe(now time.Time) (whole, action []byte) {
	p := c.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.begun.IsZero() || p.mu.step == noStep {
		return nil, nil
	}
	id := []value.Field{value.F("lsid", value.NewDocument(cluster.ShownLSID(c.lsid))), value.F("txnNumber", value.NewInt64(c.number))}
	var took []value.Field
	for i := range p.mu.step + 1 {
		d := p.mu.took[i]
		if i == p.mu.step {
			d += now.Sub(p.mu.at)
		}
		took = append(took, value.F(stepNames[i]+"Micros", value.NewInt64(d.Microseconds())))
	}
	took = append(took, value.F("totalCommitDurationMicros", value.NewInt64(now.Sub(p.mu.begun).Microseconds())))
	f := append(id[:2:2], value.F("numParticipants", value.NewInt64(int64(p.mu.participants))), value.F("state", value.NewString(p.mu.step.state())),
		value.F("commitStartTime", value.NewTime(p.mu.begun)), value.F("hasRecoveredFromFailover", value.NewBool(c.recovered)),
		value.F("stepDurations", value.NewDocument(value.Doc(took...))))
	if p.mu.decided {
		f = append(f, value.F("decision", value.NewDocument(p.decision())))
	}
	return value.Doc(f...), value.Doc(append(id, value.F("action", value.NewString(p.mu.step.action(p.mu.commit))),
		value.F("startTime", value.NewTime(p.mu.at)))...)
}

// decision describes what was decided. mu must be held.
func (p *progress) decision() []byte {
	if p.mu.commit {
		return value.Doc(value.F("decision", value.NewString("commit")), value.F("commitTimestamp", p.mu.ts))
	}
	why := mongoerr.From(p.mu.why)
	return value.Doc(value.F("decision", value.NewString("abort")), value.F("abortStatus", value.NewDocument(value.Doc(
		value.F("code", value.NewInt32(int32(why.Code))), value.F("codeName", value.NewString(why.Code.Name())), value.F("errmsg", value.NewString(why.Message))))))
}
