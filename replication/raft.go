package replication

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Raft is a set of several members, which agree on the order of writes by raft. doc.go draws its goroutines.
type Raft struct {
	opts    Options
	log     zerolog.Logger
	m       StateMachine
	rlog    *raftLog
	started time.Time

	queues
	standing
	loop     loopState    // the loop's own
	applier  applierState // the applier's own
	flights  flights
	roles    roleState
	peers    peerTable
	waits    ackWaits
	reads    readWaits
	election electionState
	snaps    snapshotState
	flow     flowControl

	lifetime
}

// queues lead to the member's goroutines.
type queues struct {
	in      queue[input]      // to the loop
	appends queue[appendItem] // to the appender
	applies queue[applyItem]  // to the applier
	changes queue[func()]     // to the observers: OnRole, OnConfig
	pending atomic.Int64      // messages the appender has not processed yet
}

// standing has the state of the member and its set that any goroutine may read.
type standing struct {
	id       atomic.Uint64        // raft id; 0 before it is known
	nodes    atomic.Uint64        // how often raft's node was started
	lead     atomic.Pointer[lead] // as the loop last saw it
	config   atomic.Pointer[SetConfig]
	primary  atomic.Uint64 // the term in which the engine takes writes; 0 for none
	writable atomic.Bool
	// announced is the term in which the observer was notified that this member is writable.
	announced atomic.Uint64
	together  atomic.Bool              // all members are closing at once
	handing   atomic.Pointer[transfer] // to the member asked to take over, nil for none
	growing   atomic.Bool              // some members of the configuration should vote and do not yet
	applied   atomic.Uint64            // last index handed out by raft; a delayed member's engine is behind it
}

// lifetime ends the member's goroutines.
type lifetime struct {
	ctx  context.Context // ends when the member stops
	stop context.CancelCauseFunc
	wg   sync.WaitGroup
	once sync.Once
}

// lead describes the leader, as raft sees it.
type lead struct {
	state raft.StateType
	term  uint64
	lead  uint64
}

// input is one task for the loop.
type input struct {
	m *raftpb.Message
	p *proposal
	f func()
}

// proposal is a group that goes into the log if the term is still the same.
type proposal struct {
	g    Group
	term uint64
}

var (
	errStopped  = mongoerr.New(mongoerr.ShutdownInProgress, "The server is in quiesce mode and will shut down")
	errDeposed  = mongoerr.New(mongoerr.PrimarySteppedDown, "Primary stepped down while waiting for replication")
	errNotMain  = mongoerr.New(mongoerr.NotWritablePrimary, "not primary")
	errNoConfig = mongoerr.New(mongoerr.NotYetInitialized, "no replset config has been received")
)

var _ Set = (*Raft)(nil)

// OpenRaft starts the member from the content of its store. A member that was never in a set waits for Initiate,
// or for the primary of a set of its name to add it.
func OpenRaft(o Options) (*Raft, error) {
	if o.LogSize == 0 {
		o.LogSize = 256 << 20
		if o.Store == nil {
			o.LogSize = 64 << 20
		}
	}
	if o.Params == nil {
		o.Params = DefaultParams
	}
	r := &Raft{opts: o, m: o.Machine, log: zerolog.Nop(), started: time.Now()}
	if o.Logger != nil {
		r.log = *o.Logger
	}
	r.ctx, r.stop = context.WithCancelCause(context.Background())
	r.in.init()
	r.appends.init()
	r.applies.init()
	r.changes.init()
	r.peers.byID = map[uint64]*peer{}
	r.peers.seen = map[uint64]*seen{}
	r.snaps.init()
	r.lead.Store(&lead{})
	r.flow.init()
	if err := r.load(); err != nil {
		return nil, err
	}
	r.m.Resign(errNotMain)
	for _, f := range []func(){r.runLoop, r.runAppender, r.runApplier, r.runObservers, r.runHousekeeping} {
		r.spawn(f)
	}
	return r, nil
}

// HasRaft reports whether a store belongs to a member of a set kept by raft.
func HasRaft(s LocalStore) (found bool, err error) {
	if s == nil {
		return false, nil
	}
	err = s.Scan([]byte{keyConf}, []byte{keyConf + 1}, func(_, _ []byte) bool {
		found = true
		return false
	})
	return found, err
}

// load reads log and configuration.
func (r *Raft) load() (err error) {
	if r.rlog, err = openLog(r.opts.Store, r.opts.LogSize); err != nil {
		return err
	}
	r.rlog.appliedIndex = r.engineIndex
	applied, term := r.m.AppliedIndex()
	if err := r.rlog.finishInstall(point{applied, term}); err != nil {
		return err
	}
	if err := r.rlog.check(applied); err != nil {
		return err
	}
	r.snaps.clean(r)
	rec := r.rlog.conf()
	if !r.rlog.started() {
		return nil
	}
	cfg, err := ParseConfig(rec.doc)
	if err != nil {
		return fmt.Errorf("the configuration stored by this member cannot be read: %w", err)
	}
	r.applied.Store(applied)
	r.id.Store(r.rlog.id)
	r.config.Store(cfg)
	r.lead.Store(&lead{term: r.rlog.mu.hard.GetTerm()})
	if r.opts.OnConfig != nil {
		r.changes.push(func() { r.opts.OnConfig(cfg) })
	}
	r.setPeers(cfg, &rec)
	r.noteGrowth(cfg, rec.state)
	r.loop.resume = true
	r.roles.hasLog.Store(true)
	return nil
}

// EndWithSet announces that the other members are about to close too, so that Close need not look for a successor.
func (r *Raft) EndWithSet() { r.together.Store(true) }

// Close transfers leadership to another member if it can, and stops. The engine must be closed afterwards.
func (r *Raft) Close() error {
	if r.writable.Load() && !r.together.Load() {
		ctx, cancel := context.WithTimeout(r.ctx, 2*time.Second)
		_ = r.StepDown(ctx, time.Minute, 0, false) // stopping without a successor is fine too
		cancel()
	}
	return r.Stop()
}

// Stop is Close without a transfer of leadership: the whole set ends.
func (r *Raft) Stop() error {
	r.shut(errStopped)
	r.wg.Wait()
	return nil
}

// shut ends all goroutines, without waiting for them.
func (r *Raft) shut(why error) {
	r.once.Do(func() {
		r.writable.Store(false)
		r.stop(why)
		r.m.Resign(why)
		r.waits.fail(why)
		r.reads.fail(why)
	})
}

// fail stops the member permanently, because its disk or its log can no longer be trusted.
func (r *Raft) fail(err error) {
	if r.ctx.Err() != nil {
		return
	}
	r.roles.fatal.Store(&err)
	r.log.Error().Err(err).Msg("the member of the replica set cannot continue")
	r.shut(err)
	if f := r.opts.OnFatal; f != nil {
		go f(err)
	}
}

func (r *Raft) spawn(f func()) {
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		f()
	}()
}

// Config returns the configuration in force, nil before there is one. A removed member keeps its last one.
func (r *Raft) Config() *SetConfig { return r.config.Load() }

// self returns this member's entry in the configuration in force, nil if it is not in it.
func (r *Raft) self() *MemberConfig {
	c, id := r.config.Load(), r.id.Load()
	if c == nil || id == 0 {
		return nil
	}
	return c.Member(int(id) - 1)
}

// IsPrimary implements Set.
func (r *Raft) IsPrimary() bool { return r.writable.Load() }

// Term implements Set.
func (r *Raft) Term() int64 { return int64(r.lead.Load().term) }

// MajorityCommitted implements Set: nothing is visible before a majority has it.
func (r *Raft) MajorityCommitted() storage.Timestamp { return r.m.Visible() }

// do runs f in the loop and waits for it.
func (r *Raft) do(f func()) error {
	done := make(chan struct{})
	r.in.push(input{f: func() { f(); close(done) }})
	select {
	case <-done:
		return nil
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}

// inApplier runs f in the applier, after the entries that it still has to apply, and waits for it. An error of f
// stops the member.
func (r *Raft) inApplier(f func() error) error {
	done := make(chan error, 1)
	r.applies.push(applyItem{f: func() error {
		err := f()
		done <- err
		return err
	}})
	select {
	case err := <-done:
		return err
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}

// wait pauses for d; it returns early with an error when ctx or the member ends.
func (r *Raft) wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}
