package coordinator

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// run is an operation that is stored and running.
type run struct {
	m       *Coordinators
	doc     *document // used only by the goroutine that executes the run
	locks   *held
	started bool
	stored  bool
	// continued means that another primary, or an earlier time of this one, has begun the run.
	continued bool
	unsure    error  // with which the command ended that has begun the run, if it has (settle)
	at        string // the current phase, for observers; guarded by m.mu

	blocking

	waiters   int                     // the requests that wait for the run; guarded by m.mu, as are the following five
	joined    joined                  // those that have joined it
	stop      context.CancelCauseFunc // ends the current step, if it can be aborted
	aborted   error                   // the reason why it has to end
	discarded bool                    // another operation removes what it makes
	stall     stall
	committed bool // the point of no return is passed: the operation will be completed; guarded by m.mu
	leaving
	makes makes

	done chan struct{}
	err  error // set before done is closed
}

// blocking describes the critical sections of a run.
type blocking struct {
	releases []string // the names whose sections on this shard end with the run
	entered  uint64   // a topology time before the messages by which all sets of the list of shards have entered the run's sections; 0 if another primary had them enter
	joining  []string // shards that may have entered the run's sections, beside those that the operation lists
}

// leaving describes the end of a run about indexes; guarded by m.mu.
type leaving struct {
	leaves bool         // it is past the point from which it needs chunks not to move
	thaw   bool         // and lets them move
	thawID catalog.UUID // identifies that decision; zero without it
}

func (r *run) key() string { return string(value.AppendGroupKey(nil, r.doc.ID(), nil)) }

// wait waits for a run, started by this request or another, and writes its reply. If the caller stops waiting, the run continues. The wtimeout of a caller is an error of its
// command before the point of no return, since the operation may still be undone, and one of its write concern after it.
// Operations that may take long, such as index builds, are aborted once no caller waits for them.
func (r *run) wait(op *command.Op, dst []byte) ([]byte, error) {
	r.m.mu.Lock()
	r.waiters++
	r.m.mu.Unlock()
	err := r.end(op, op)
	r.m.mu.Lock()
	interrupted := mongoerr.In(err, mongoerr.CategoryShutdown|mongoerr.CategoryNotPrimary) // by this node, which stops or steps down: the router sends the request again
	if r.waiters--; err != nil && err != errGoesOn && !interrupted && r.waiters == 0 && r.doc.op.name() == createIndexesKind {
		r.abort(errBuildAborted(err.Error()))
	}
	committed := r.committed
	r.m.mu.Unlock()
	switch {
	case err == errGoesOn && committed: // as on a set: done, but no majority has confirmed it in time
		op.SetWriteConcernError(errGoesOn)
	case err != nil:
		return dst, err
	case r.err != nil:
		return dst, r.err
	}
	op.AdvanceOperationTime(uint64(r.m.Engine.Visible()))
	return r.doc.op.reply(dst), nil
}

// undone reports whether the run has ended without effect.
func (r *run) undone() bool {
	select {
	case <-r.done:
		return r.err != nil && r.err != errSteppedDown
	default:
		return false
	}
}

// execute runs the phases from the stored one on, and ends the run; if the node steps down, the run is left as it is, for the
// next primary.
func (r *run) execute(ctx context.Context) {
	err := r.settle(ctx)
	if err == nil && (r.unsure == nil || r.doc.failed == nil) {
		err = r.through(ctx)
	}
	if err == nil {
		err = r.persist(ctx, func() error { return r.remove(ctx) })
	}
	r.m.mu.Lock()
	if r.m.mu.runs[r.key()] == r { // another one continues the run of an earlier term
		delete(r.m.mu.runs, r.key())
	}
	r.m.mu.Unlock()
	switch {
	case err != nil:
		r.err = errSteppedDown
	case r.doc.failed != nil:
		r.err = r.doc.failed
	}
	r.m.unlock(r.locks)
	close(r.done)
}

// through executes the remaining phases. It returns an error only if ctx has ended.
//
// Invariant: the state document names a phase before anything of the phase is done, and the set has it durably. A member that
// becomes primary repeats the phase that it finds, so each phase may be carried out several times, the last time by
// another node, and has to have the same result. The first phase marked final is the point of no return: an earlier error
// is stored (failed) and everything is undone, after a later error the step is repeated until it succeeds.
//
// A final phase may be unstored, as may be those behind it. A run that is continued at the phase before it may have reached it, so both then count as final. Repeated,
// the final phase finds some of its work done, and sections that some shards have already ended are entered again.
//
// Hazard: the primary that was replaced may still be at work on the same phase, and its messages arrive late.
// Participants therefore do only what the run that holds their critical section, and goes on, asks for (HoldsSection), and a message about the section itself has no effect
// if it is of an earlier term than the section: a primary that continues a run stores its term before it sends anything. Changes of the
// catalog name the collection by its UUID, so that a late one does not change a successor of the same name.
//
// Rejected: a time limit after which an operation without progress is given up. Some shards would have dropped the
// collection and others not, with no document left from which a primary could finish it.
func (r *run) through(ctx context.Context) error {
	phases := r.doc.op.phases()
	from := 0
	if r.continued = r.stored; r.continued {
		from = phaseIndex(r.doc.op, r.doc.phase)
		if err := r.persist(ctx, func() error { return r.store(ctx, nil) }); err != nil {
			return err
		}
	}
	for i := from; r.doc.failed == nil && i < len(phases); i++ {
		p := phases[i]
		if err := r.enter(ctx, &p); err != nil {
			return err
		}
		do := p.do
		if len(p.section) > 0 {
			do = func(ctx context.Context, r *run) error { return r.enterBlocked(ctx, &p) }
		}
		if p.opens {
			r.shut()
		}
		final := r.continued && i+1 < len(phases) && phases[i+1].final && phases[i+1].unstored
		for _, before := range phases[:i+1] {
			final = final || before.final
		}
		if final {
			r.m.mu.Lock()
			r.committed = true
			r.m.mu.Unlock()
		}
		err := r.retry(ctx, final, func() error { return r.reentering(ctx, phases[:i], do(ctx, r)) })
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			r.doc.failed = failure(err)
		}
	}
	if r.doc.failed == nil {
		return r.hang(ctx, "done")
	}
	if err := r.checkpoint(ctx, undoing, nil); err != nil {
		return err
	}
	return r.retry(ctx, true, func() error { return r.doc.op.undo(ctx, r) })
}

// reentering returns the error of a phase. If a shard does not hold the run's critical section, and the list of shards has changed since the earlier phases entered it, the section is
// entered on all shards again before the phase is repeated: another set may have been added under the name of a shard that was removed.
func (r *run) reentering(ctx context.Context, before []phase, err error) error {
	if mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress {
		return err
	}
	for _, p := range slices.Backward(before) {
		if len(p.section) > 0 && !p.alone {
			_ = r.blockListed(ctx, p.shards, p.kind(), p.section...) // if it fails, the phase does once more, and this is repeated
			break
		}
	}
	return err
}

func failure(err error) *mongoerr.Error {
	var e *mongoerr.Error
	if errors.As(err, &e) {
		return e
	}
	return mongoerr.New(mongoerr.InternalError, err.Error())
}

// enter begins a phase.
func (r *run) enter(ctx context.Context, p *phase) error {
	switch {
	case p.unstored:
		return r.reach(ctx, p.name)
	case len(p.section) > 0:
		return nil // enterBlocked stores it
	}
	return r.checkpoint(ctx, p.name, p.event)
}

// enterBlocked stores a phase with this shard's critical section, and enters those of the other shards meanwhile. It returns when all have been entered,
// also on sets that have joined the cluster since.
//
// A section changes nothing. If the document is not stored, because this node is no longer the primary, the other shards find that their sections belong to
// no run (ShardState.endLeftOver), as they do when a message comes too late.
func (r *run) enterBlocked(ctx context.Context, p *phase) error {
	r.doc.phase, r.entered = p.name, r.m.State.Registry.Topology()
	others := make(chan error, 1)
	ids := (*p.shards)[:len(*p.shards)-1] // this one is the last
	go func() { others <- r.block(ctx, p.kind(), ids, p.section...) }()
	err := r.storeBlocked(ctx, p)
	if err == nil {
		err = r.reach(ctx, p.name)
	}
	if oerr := <-others; err == nil { // after an error, too: undoing the run must not overtake these messages
		err = oerr
	}
	if err != nil || p.alone {
		return err
	}
	return r.blockListed(ctx, p.shards, p.kind(), p.section...)
}

// kind is what the phase's sections block.
func (p *phase) kind() string { return cmp.Or(p.blocks, msg.BlockReadsAndWrites) }

// storeBlocked stores a phase in the unit of work that enters this shard's critical section. Nothing is stored while another operation holds the section.
func (r *run) storeBlocked(ctx context.Context, p *phase) error {
	end := func() {}
	put, wrote := r.puts()
	err := r.m.sections().Enter(ctx, r.participantBlock(p.kind(), p.section...), func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		end = r.awaits() // from here on it waits for a majority, no longer for writers
		return put(s, u)
	})
	end()
	if err == nil {
		r.stored = true
		wrote()
	}
	return err
}

// checkpoint writes the state document of a phase, before anything of the phase is done.
func (r *run) checkpoint(ctx context.Context, phase string, ev func() event) error {
	if !r.stored || r.doc.phase != phase {
		r.doc.phase = phase
		if err := r.persist(ctx, func() error { return r.store(ctx, ev) }); err != nil {
			return err
		}
		r.stored = true
	}
	return r.reach(ctx, phase)
}

// reach records, for observers, that the run has reached a phase.
func (r *run) reach(ctx context.Context, phase string) error {
	r.m.mu.Lock()
	r.at = phase
	r.m.mu.Unlock()
	return r.hang(ctx, phase)
}

// store writes the state document, and the event of the phase with it. If an earlier attempt committed although it returned an
// error, there is nothing left to write.
func (r *run) store(ctx context.Context, ev func() event) error {
	put, wrote := r.puts()
	err := r.m.Docs.Write(ctx, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		if ev != nil {
			if was, ok, err := documents(r.m.Docs).Get(r.doc.ID()); err != nil || ok && was.phase == r.doc.phase {
				return err
			}
			e := ev()
			u.Oplog(storage.OplogEntry{Op: 'n', NS: e.ns, UUID: e.uuid, StmtID: -1, O2: e.doc, O: value.Doc(value.F("msg", value.NewDocument(e.doc)))})
		}
		return put(s, u)
	})
	if err == nil {
		wrote()
	}
	return err
}

// persist repeats a write of the state document until it succeeds, or ctx has ended.
func (r *run) persist(ctx context.Context, write func() error) error {
	defer r.awaits()()
	for try := 0; ; try++ {
		err := write()
		if err == nil {
			return nil
		}
		if werr := cluster.Backoff(ctx, try); werr != nil {
			return werr
		}
		if try%16 == 15 {
			r.warn("could not be stored", err)
		}
	}
}

// hang stops the run before a phase while the fail point is on.
func (r *run) hang(ctx context.Context, phase string) error {
	if r.m.Points == nil {
		return nil
	}
	return r.m.Points.Register(hangPoint).PauseWhere(ctx, func(data []byte) bool {
		op, at := value.Lookup(data, "operationType"), value.Lookup(data, "phase")
		return (op.IsMissing() || op.Str() == r.doc.op.name()) && (at.IsMissing() || at.Str() == phase)
	})
}

// hangPoint stops runs of the kind of operation in its data before the phase in its data.
const hangPoint = "hangBeforeRunningShardingDDLPhase"

// retry repeats f after transient errors; with always, after every error, because the operation can only be completed.
func (r *run) retry(ctx context.Context, always bool, f func() error) error {
	for try := 0; ; try++ {
		err := f()
		r.noteAttempt(err)
		var final permanent
		if err == nil || ctx.Err() != nil || !always && (errors.As(err, &final) || !cluster.Transient(err)) {
			return err
		}
		if try%16 == 15 {
			r.warn("is being retried", err)
		}
		if werr := cluster.Backoff(ctx, try); werr != nil {
			return werr
		}
	}
}

// permanent marks an error as permanent, regardless of its code.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// decided returns the outcome of a commit by the config server: one that is refused with one of the codes was not done. After any
// other error the request is repeated.
func (r *run) decided(err error, refused ...mongoerr.Code) error {
	if err == nil || slices.Contains(refused, mongoerr.CodeOf(err)) || cluster.Transient(err) {
		return err
	}
	r.warn("has a commit with an unknown outcome", err)
	return mongoerr.New(mongoerr.HostUnreachable, err.Error())
}

func (r *run) warn(what string, err error) {
	if r.m.Warn != nil {
		r.m.Warn("The operation "+r.doc.op.name()+" on "+r.doc.ns+" "+what, err)
	}
}

// message returns a message of the run, with what is passed on of its client's command.
func (r *run) message(m msg.Message) []byte { return msg.Doc(m, r.doc.forwarded.fields()...) }
