package storage

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// replicaState is the engine's state as a member of a replica set with a replicated log. A group of the primary
// becomes an entry of that log; it is applied, and visible, once the log has committed it. Members that are not
// primary apply the same bytes. An engine that is not made a member commits on its own.
type replicaState struct {
	// gen changes with each change of role. A unit of work must end in the role that it began in: what it looked
	// up, such as RecordIDs and duplicates, may be outdated afterwards. It is written under mu.
	gen atomic.Uint64
	// writing is gen while the member may write, else notWriting.
	writing atomic.Uint64

	// mu guards the view. Making something visible requires holding it from the write to the store onwards.
	mu struct {
		sync.Mutex
		mode     replicaMode
		gen      uint64
		refuse   error // why replicated units are refused; nil if they are not
		propose  func(*Group) error
		inflight []*Group // in order; a group without a batch waits for the one before it
		bytes    int
		broken   bool // a group in between was not proposed: the tip is known once the others are applied
		follower *follower
		parked   *UnitOfWork // leads once fewer groups are in flight
		timer    *time.Timer // of a leader that gathers units; nil if none does
		late     bool        // the leader has gathered for long enough
	}
	gatherTime time.Duration           // how long a leader gathers units
	staging    stagingUnits            // this member's own units
	late       lateUnits               // this member's own and those that others staged
	agreed     agreedCommits           // of all members
	at         atomic.Pointer[applied] // written under mu
	observers  struct {
		sync.Mutex
		list []func(ApplyInfo)
	}
}

type replicaMode uint8

const (
	modeSingle   replicaMode = iota // commits on its own
	modePrimary                     // commits through the replicated log
	modeFollower                    // applies what others have committed
)

// applied is the newest entry of the replicated log that the store holds.
type applied struct {
	index, term uint64
	ts          Timestamp
}

// Bounds of what is proposed but not yet applied. Units beyond them wait in the queue, and form larger groups.
const (
	maxInFlight      = 16
	maxInFlightBytes = 32 << 20
	fewInFlightBytes = 64 << 10
	gatherDelay      = time.Millisecond
)

// ApplyInfo describes what an entry changed on a member that is not primary.
type ApplyInfo struct {
	Index   uint64
	TS      Timestamp
	Catalog bool // the catalog changed
	// Touched lists the collections whose documents changed.
	Touched []*catalog.Collection
	// Snapshot is set if a snapshot replaced everything; Touched is empty then.
	Snapshot bool
}

func (r *replicaState) init() {
	r.gatherTime = gatherDelay
	r.at.Store(&applied{})
}

func (r *replicaState) applied() applied { return *r.at.Load() }

// errNoMember is the error for units between the start and the first election.
var errNoMember = mongoerr.New(mongoerr.NotWritablePrimary, "not primary")

// BecomePrimary makes later commits go through propose, with term in their oplog entries. Every earlier entry of the
// log must have been applied. propose is called in commit order; it must not wait for the network, nor for anything
// that may be waiting for the engine. If it returns an error, the units of that group fail; later groups are still
// proposed.
func (e *Engine) BecomePrimary(term int64, propose func(*Group) error) error {
	r := &e.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := e.failure(); err != nil {
		return err
	}
	if r.mu.mode == modePrimary {
		return mongoerr.New(mongoerr.InternalError, "the storage engine is primary already")
	}
	e.forgetWriting()
	e.SetTerm(term)
	r.mu.mode, r.mu.refuse, r.mu.propose, r.mu.broken, r.mu.follower = modePrimary, nil, propose, false, nil
	r.turn()
	return nil
}

// turn begins a new role.
func (r *replicaState) turn() {
	r.mu.gen++
	r.gen.Store(r.mu.gen)
	if r.mu.mode == modeFollower {
		r.writing.Store(notWriting)
	} else {
		r.writing.Store(r.mu.gen)
	}
	r.staging.recheck()
	r.unpark()
}

// unpark makes the leader that found too much in flight check again. mu must be held.
func (r *replicaState) unpark() {
	if u := r.mu.parked; u != nil {
		r.mu.parked = nil
		u.wait.wake <- wakeLead
	}
}

// forgetWriting drops state that only a writer maintains, and that others may have changed since.
func (e *Engine) forgetWriting() {
	e.claims.forget(e.Visible())
	e.Catalog().Each(func(c *catalog.Collection) {
		if isLocal(c.Ident) {
			return
		}
		c.Counters.ForgetRecordIDs()
		for _, idx := range c.Indexes {
			idx.Tail.Forget()
		}
	})
}

// Resign makes Commit of replicated units fail with err from now on, including units in the queue and in flight.
// The log may still commit the groups in flight; they are then applied like those of other members.
func (e *Engine) Resign(err error) {
	r := &e.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	lost := r.mu.inflight
	r.mu.mode, r.mu.refuse, r.mu.propose = modeFollower, err, nil
	r.mu.inflight, r.mu.bytes = nil, 0
	r.turn()
	for _, g := range lost {
		e.failGroup(g, err)
	}
}

// failGroup fails the units of a group whose outcome this member no longer awaits.
func (e *Engine) failGroup(g *Group, err error) {
	for _, u := range g.units {
		if u.wait.err == nil {
			u.wait.err = err
		}
		u.wait.ts = 0
		u.undo()
	}
	g.close()
	g.batch = nil
	wakeAll(g)
}

func wakeAll(g *Group) {
	for _, u := range g.units {
		u.wait.wake <- wakeDone
	}
}

// admit returns an error if the member may not commit the unit.
func (t *tip) admit(u *UnitOfWork) error {
	if u.after != nil && u.after.refused {
		return u.after.wait.err
	}
	if u.gen == t.gen && t.refuse == nil || u.line == lineLocal || u.Empty() {
		return nil
	}
	if t.refuse != nil {
		return t.refuse
	}
	return errOtherRole
}

// notWriting is no unit's gen.
const notWriting = ^uint64(0)

// errOtherRole is the error of a unit that was begun before the member's role changed.
var errOtherRole = mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted")

// leadReplicated is lead with a replicated log: the group is proposed, and its units wait until it is applied. If
// too much is in flight the leader waits at the head of the queue. replica.mu must be held, and is released.
//
// prepareGroup runs without replica.mu, so that applying entries and preparing the next group overlap; the tip belongs
// to the leader, so nothing else changes it. If the role changes in between, enqueue sees another gen and fails the
// group, whose batch has not been proposed. A group is enqueued before it is proposed, because the log may commit it,
// and ApplyEntry look for it among those in flight, before propose returns. After a proposal was refused (withdraw),
// the tip contains effects that will never be applied; no further group is prepared until nothing is in flight and the
// tip can restart from the view.
func (e *Engine) leadReplicated(own *UnitOfWork) {
	r := &e.replica
	if r.mu.mode == modePrimary && (r.full() || r.gathers()) {
		r.mu.parked = own
		r.mu.Unlock()
		return
	}
	r.endGathering()
	e.takeGroup()
	gen, propose := r.mu.gen, r.mu.propose
	c := &e.commit
	if len(r.mu.inflight) == 0 || c.tip.gen != gen {
		c.tip.restart(e.view.Load(), gen, r.mu.refuse)
		r.mu.broken = false
	}
	r.mu.Unlock()
	g := e.prepareGroup(&c.tip, c.group)
	if g.batch != nil {
		g.seal()
	}
	if proposed := g.data != nil; e.enqueue(g, gen) && proposed {
		if err := propose(g); err != nil {
			e.withdraw(g, err)
		}
	}
	e.handLead()
}

// gathers reports whether the next group should wait for more units: little is in flight, and has been for less
// than gatherTime. Every group costs each member a sync and several messages; single writes of many clients, each a
// group of its own, would pay that in CPU time. Workloads with larger groups are not delayed, nor are writers of a
// set with distant members for longer than gatherTime. mu must be held.
func (r *replicaState) gathers() bool {
	if len(r.mu.inflight) == 0 || r.mu.bytes >= fewInFlightBytes || r.mu.late {
		return false
	}
	if r.mu.timer == nil {
		r.mu.timer = time.AfterFunc(r.gatherTime, func() {
			r.mu.Lock()
			r.mu.late = true
			r.unpark()
			r.mu.Unlock()
		})
	}
	return true
}

// endGathering is called when a group is about to be prepared. mu must be held.
func (r *replicaState) endGathering() {
	if r.mu.timer != nil {
		r.mu.timer.Stop()
		r.mu.timer = nil
	}
	r.mu.late = false
}

// full reports whether the next group has to wait.
func (r *replicaState) full() bool {
	n := len(r.mu.inflight)
	return n >= maxInFlight || r.mu.bytes >= maxInFlightBytes || n > 0 && r.mu.broken
}

// enqueue appends a group to those in flight. A group with nothing to write, because all its units failed, waits
// for the preceding ones: they may be why its units failed, and are not visible yet.
func (e *Engine) enqueue(g *Group, gen uint64) bool {
	r := &e.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case g.batch == nil && (r.mu.gen != gen || len(r.mu.inflight) == 0):
		e.publish(g)
		wakeAll(g)
		return false
	case r.mu.gen != gen:
		err := r.mu.refuse
		if err == nil {
			err = mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted")
		}
		e.failGroup(g, err)
		return false
	}
	r.mu.inflight = append(r.mu.inflight, g)
	r.mu.bytes += len(g.data)
	return true
}

// withdraw removes a group that was not proposed. It must be the last.
func (e *Engine) withdraw(g *Group, err error) {
	r := &e.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.mu.inflight)
	if n == 0 || r.mu.inflight[n-1] != g {
		return // failed by Resign meanwhile
	}
	r.mu.inflight = r.mu.inflight[:n-1]
	r.mu.bytes -= len(g.data)
	r.mu.broken = true
	e.failGroup(g, err)
	for _, u := range g.units {
		u.refused = true
	}
}

// ApplyGroup makes a group of this member visible, once the log has committed it as the entry at index. Groups
// must come in the order in which they were proposed. After Resign it does what ApplyEntry does.
func (e *Engine) ApplyGroup(g *Group, index, term uint64) error {
	return e.ApplyEntry(g.data, index, term)
}

// applyHead applies the first group in flight, and ends the groups after it that wait for it. replica.mu must be
// held.
func (e *Engine) applyHead(at applied) error {
	r := &e.replica
	defer r.unpark()
	g := r.mu.inflight[0]
	_ = g.batch.Set(metaKey(metaApplied), at.encode(), nil)
	if g.err = e.guard(func() error { return e.db.Apply(g.batch, pebble.NoSync) }); g.err != nil {
		e.fail(g.err)
	}
	for first := true; first || len(r.mu.inflight) > 0 && r.mu.inflight[0].data == nil; first = false {
		done := r.mu.inflight[0]
		r.mu.inflight[0] = nil
		r.mu.inflight = r.mu.inflight[1:]
		r.mu.bytes -= len(done.data)
		e.publish(done)
		done.close()
		if first && g.err == nil {
			r.at.Store(&at) // stored last: a reader that sees it finds the entry visible
		}
		wakeAll(done)
	}
	return g.err
}

func (a applied) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, a.index)
	b = binary.BigEndian.AppendUint64(b, a.term)
	return binary.BigEndian.AppendUint64(b, uint64(a.ts))
}

func (a *applied) decode(p []byte) {
	if len(p) == 24 {
		a.index, a.term = binary.BigEndian.Uint64(p), binary.BigEndian.Uint64(p[8:])
		a.ts = Timestamp(binary.BigEndian.Uint64(p[16:]))
	}
}

// AppliedIndex returns the log position of the newest entry that the store holds; zero if it never was a member.
func (e *Engine) AppliedIndex() (index, term uint64) {
	at := e.replica.applied()
	return at.index, at.term
}

// ApplyNothing advances the applied index over an entry that does not concern the engine: an empty one, or a
// membership change.
func (e *Engine) ApplyNothing(index, term uint64) error {
	r := &e.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	if index <= r.applied().index {
		return nil
	}
	if err := e.failure(); err != nil {
		return err
	}
	at := applied{index, term, e.Visible()}
	if err := e.guard(func() error { return e.db.Set(metaKey(metaApplied), at.encode(), pebble.NoSync) }); err != nil {
		e.fail(err)
		return err
	}
	r.at.Store(&at)
	return nil
}

// OnApply registers f to be called, in order, for every entry that ApplyEntry applied and for snapshots, once they
// are visible. f must be quick. Observers must register before the first entry.
func (e *Engine) OnApply(f func(ApplyInfo)) {
	o := &e.replica.observers
	o.Lock()
	o.list = append(o.list, f)
	o.Unlock()
}

func (r *replicaState) notify(info ApplyInfo) {
	r.observers.Lock()
	list := r.observers.list
	r.observers.Unlock()
	for _, f := range list {
		f(info)
	}
}

// writable reports whether the member accepts writes.
func (e *Engine) writable() bool {
	r := &e.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.refuse == nil
}

// Published returns the timestamp of the newest commit, after the hooks of all units up to it have run (OnCommit).
func (e *Engine) Published() Timestamp {
	e.replica.mu.Lock()
	defer e.replica.mu.Unlock()
	return e.Visible()
}

// replicated reports whether writes go through a replicated log.
func (e *Engine) replicated() bool { return e.replica.gen.Load() > 0 }
