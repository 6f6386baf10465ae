package configsvr

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A resharding gives a collection another key or other shards. It fills a temporary collection, which replaces the original
// once it has all writes:
//
//	initializing ► preparing-to-donate ► cloning ► applying ► blocking-writes ──► committing ► done ► quiesced
//	      └──────────────────┴──────────────┴──────────┴─────────────┴─ error ──► aborting ──────────────┘
//
// Each state is stored before its work begins, and its work may be repeated by the next primary. The primary shard of the database holds
// the collection's DDL lock meanwhile, and requests the removal of the document when it knows the outcome.

// reshardings holds the operations that this primary runs, by their ids, and completed ones whose caller has not received the outcome.
type reshardings = jobs[[16]byte, *resharding]

// resharding is one operation.
type resharding struct {
	job
	m   *Manager
	doc *reshardState // of the goroutine that drives it

	mu struct {
		sync.Mutex
		state   string
		abort   bool
		force   bool
		decided bool // it can no longer be aborted
		blocked time.Time
		since   map[string]time.Time // when this primary came to each state
		left    []int64              // what recipients have reported last of the milliseconds that remain; none before
	}
}

// LoadReshardings reads the operations that an earlier primary has not completed, before clients write.
func (m *Manager) LoadReshardings(ctx context.Context, term int64) error {
	docs, err := m.find(ctx, reshardingOps, doc())
	if err != nil {
		return err
	}
	runs := make(map[[16]byte]*resharding)
	for _, raw := range docs {
		d, err := readReshardState(raw)
		if err != nil {
			continue // skip documents that a client has inserted
		}
		d.takenOver(term)
		runs[d.id] = newResharding(m, d)
	}
	m.resharding.load(ctx, term, runs)
	return nil
}

// RunReshardings drives all operations until ctx ends.
func (m *Manager) RunReshardings(ctx context.Context) {
	wait := m.resharding.resume(ctx)
	m.tellUntold(ctx)
	<-ctx.Done()
	wait()
}

func newResharding(m *Manager, d *reshardState) *resharding {
	r := &resharding{job: newJob(), m: m, doc: d}
	r.reached(d.state)
	r.mu.force = d.force
	r.mu.decided = d.state == reshardCommitting || d.state == reshardDone
	return r
}

// runReshard begins an operation, or joins it, and waits for its end.
func (m *Manager) runReshard(op *command.Op, req *msg.ConfigReshard, dst []byte) ([]byte, error) {
	r, err := m.beginReshard(op, req)
	if err != nil || r == nil {
		return dst, err
	}
	select {
	case <-r.done:
	case <-op.Done():
		return dst, op.Err()
	}
	if r.err == nil || r.err == errNotPrimary {
		return dst, r.err
	}
	why := failureOf(r.err)
	return msg.AppendFields(dst, &msg.ConfigReshardReply{Code: int64(why.Code), Error: why.Message}), nil
}

// beginReshard returns the operation; nil if there is nothing to do.
func (m *Manager) beginReshard(ctx context.Context, req *msg.ConfigReshard) (*resharding, error) {
	s := &m.resharding
	if r, err := m.reshardOf(req.ID); r != nil || err != nil {
		return r, err
	}
	if _, e, err := m.entry(ctx, req.NS); err != nil {
		return nil, err
	} else if e != nil && e.UUID == req.ID {
		return nil, nil // it has ended, and its document was removed
	}
	var want msg.ConfigReshard
	if err := msg.Parse(msg.Doc(req), &want); err != nil { // copied: the document outlives the request
		return nil, err
	}
	p, same, err := m.planReshard(ctx, req.NS, &want.Reshard)
	if err != nil || same {
		return nil, err
	}
	db, _ := cluster.SplitNS(req.NS)
	d := &reshardState{
		id: req.ID, uuid: p.uuid, ns: req.NS, temp: db + ".system.resharding." + value.UUIDText(p.uuid), primary: p.db.Primary, tracked: p.entry != nil,
		want: want.Reshard, key: p.key.Doc(), collation: value.LookupDoc(p.options, "collation"), series: value.LookupDoc(p.options, "timeseries"),
		state: reshardInitializing, started: m.now().UnixMilli(),
	}
	if p.info.Sharded() {
		d.oldKey = p.info.Map.Key.Doc()
	}
	// The run of the database's primary shard has the operation's id, and holds the collection's DDL lock. A message that arrives after the run has ended, from
	// a primary that was paused, would begin an operation that excludes no other DDL.
	unlock, err := m.ddl.lock(ctx, req.NS)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := m.stillWanted(ctx, req.NS, &msg.RunOf{Coordinator: p.db.Primary, ID: req.ID}, true); err != nil {
		return nil, err
	}
	r := newResharding(m, d)
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.mu.runs[req.ID]; other != nil {
		return other, nil
	}
	for _, other := range s.mu.runs {
		if !other.ended() {
			return nil, mongoerr.Newf(mongoerr.ReshardCollectionInProgress, "Only one resharding operation is allowed to be active at a time, aborting resharding op for %s", req.NS)
		}
	}
	if err := s.primary(); err != nil {
		return nil, err
	}
	d.takenOver(s.mu.term)
	s.mu.runs[req.ID] = r
	s.start(s.mu.ctx, r)
	return r, nil
}

var errNotPrimary = mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted")

// reshardOf finds an operation by its id.
func (m *Manager) reshardOf(id [16]byte) (*resharding, error) {
	s := &m.resharding
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.primary(); err != nil {
		return nil, err
	}
	return s.mu.runs[id], nil
}

// reshardOn finds the operation on a collection that has not ended.
func (m *Manager) reshardOn(ns string, id *[16]byte) (*resharding, error) {
	s := &m.resharding
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.primary(); err != nil {
		return nil, err
	}
	for _, r := range s.mu.runs {
		if r.doc.named(ns) && !r.ended() && (id == nil || r.doc.id == *id) {
			return r, nil
		}
	}
	return nil, mongoerr.Newf(mongoerr.NoSuchReshardCollection, "Could not find in-progress resharding operation for namespace %s", ns)
}

// describeReshardings describes the operations that have not ended, as currentOp does.
func (m *Manager) describeReshardings(now time.Time) (out [][]value.Field) {
	s := &m.resharding
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.mu.runs {
		if r.ended() {
			continue
		}
		r.mu.Lock()
		state, blocked := r.mu.state, r.mu.blocked
		progress := r.progressFields(now)
		r.mu.Unlock()
		f := []value.Field{
			fld("type", str("op")), fld("desc", str("ReshardingCoordinatorService "+value.UUIDText(r.doc.id))), fld("op", str("command")), fld("ns", str(r.doc.ns)),
			fld("originatingCommand", value.NewDocument(r.doc.command())), fld("opStatus", str("running")),
			fld("totalOperationTimeElapsedSecs", value.NewInt64(int64(now.Sub(time.UnixMilli(r.doc.started))/time.Second))),
			fld("coordinatorState", str(state)),
		}
		f = append(f, progress...)
		if !blocked.IsZero() {
			f = append(f, fld("totalCriticalSectionTimeElapsedSecs", value.NewInt64(int64(now.Sub(blocked)/time.Second))))
		}
		out = append(out, f)
	}
	return out
}

// progressFields returns the times of the states up to now, and the recipients' estimates. r.mu must be held. A primary that continues an operation knows of no time before it.
func (r *resharding) progressFields(now time.Time) (out []value.Field) {
	for _, x := range []struct{ name, from, to string }{
		{"totalCopyTimeElapsedSecs", reshardCloning, reshardApplying}, {"totalApplyTimeElapsedSecs", reshardApplying, reshardBlocking},
	} {
		from, ok := r.mu.since[x.from]
		if !ok {
			continue
		}
		to, ok := r.mu.since[x.to]
		if !ok {
			to = now
		}
		out = append(out, fld(x.name, value.NewInt64(int64(to.Sub(from)/time.Second))))
	}
	if len(r.mu.left) > 0 && slices.Min(r.mu.left) >= 0 {
		secs := func(ms int64) value.Value { return value.NewInt64((ms + 999) / 1000) }
		out = append(out, fld("allShardsLowestRemainingOperationTimeEstimatedSecs", secs(slices.Min(r.mu.left))),
			fld("allShardsHighestRemainingOperationTimeEstimatedSecs", secs(slices.Max(r.mu.left))))
	}
	return out
}

// reshardStep is a state of an operation, and its work.
type reshardStep struct {
	state string
	do    func(r *resharding, ctx context.Context) error
	final bool // it can only be completed
}

func reshardSteps() []reshardStep {
	return []reshardStep{
		{state: reshardInitializing, do: (*resharding).initialize},
		{state: reshardPreparing, do: (*resharding).prepare},
		{state: reshardCloning, do: (*resharding).clone},
		{state: reshardApplying, do: (*resharding).catchUp},
		{state: reshardBlocking, do: (*resharding).block},
		{state: reshardCommitting, do: (*resharding).commit, final: true},
		{state: reshardDone, do: (*resharding).conclude, final: true},
	}
}

// drive executes the states from the stored one on. It returns the error to report to the operation's client.
//
// Invariant: a state is stored by a majority before its work begins, and its work can be repeated. Before "committing" is stored every
// error undoes the operation; afterwards no error does. Hazard: within their critical sections the shards replace the old collection by the
// new one before the catalog changes. A coordinator that undid the operation then would leave different collections under one name.
// Rejected: the change of the catalog as the decision. A new primary could not know whether shards have begun to rename, and would have to
// ask all of them, one of which may be down.
//
// Hazard: a primary that was deposed while it was paused continues where it was, for as long as it takes to learn of that, beside its successor. Its clock tells
// later times than its successor's decisions have. Each primary therefore stores its term first, with the state that it continues, and shards refuse the
// messages about their sections that have an earlier one (msg.ParticipantBlock).
func (r *resharding) drive(ctx context.Context) error {
	if r.doc.state == reshardQuiesced {
		return r.outcome()
	}
	steps := reshardSteps()
	from := max(0, slices.IndexFunc(steps, func(s reshardStep) bool { return s.state == r.doc.state }))
	for i := from; r.doc.failed == nil && r.doc.state != reshardAborting && i < len(steps); i++ {
		s := steps[i]
		if i == from || r.doc.state != s.state { // the first one with this primary's term
			if err := r.enter(ctx, s.state); err != nil {
				return errNotPrimary
			}
		}
		err := r.hang(ctx, s.state)
		if err == nil {
			err = r.retry(ctx, s.final, func() error { return s.do(r, ctx) })
		}
		if ctx.Err() != nil {
			return errNotPrimary
		}
		if err != nil {
			r.doc.failed = failureOf(err)
		}
	}
	if r.doc.failed != nil {
		if err := r.abort(ctx); err != nil {
			return errNotPrimary
		}
	}
	if err := r.enter(ctx, reshardQuiesced); err != nil {
		return errNotPrimary
	}
	r.logEnd(ctx)
	return r.outcome()
}

func (r *resharding) outcome() error {
	if r.doc.failed != nil {
		return r.doc.failed
	}
	return nil
}

func (r *resharding) abort(ctx context.Context) error {
	if err := r.enter(ctx, reshardAborting); err != nil {
		return err
	}
	if err := r.hang(ctx, reshardAborting); err != nil {
		return err
	}
	return r.retry(ctx, true, func() error { return r.undo(ctx) })
}

func failureOf(err error) *mongoerr.Error {
	var e *mongoerr.Error
	if errors.As(err, &e) {
		return e
	}
	return mongoerr.New(mongoerr.InternalError, err.Error())
}

// enter stores a state before its work begins. It returns an error only if ctx has ended.
func (r *resharding) enter(ctx context.Context, state string) error {
	r.doc.state = state
	if err := r.store(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	r.reached(state)
	r.mu.Unlock()
	return nil
}

// reached notes the state and its time. r.mu must be held.
func (r *resharding) reached(state string) {
	if r.mu.since == nil {
		r.mu.since = make(map[string]time.Time)
	}
	r.mu.state, r.mu.since[state] = state, r.m.now()
}

func (r *resharding) store(ctx context.Context) error {
	r.mu.Lock()
	r.doc.force = r.mu.force
	r.mu.Unlock()
	for try := 0; ; try++ {
		_, err := r.m.update(ctx, reshardingOps, doc(fld("_id", value.NewBinary(4, r.doc.id[:]))), value.NewDocument(r.doc.doc()), true)
		if err == nil {
			return ctx.Err()
		}
		if err := cluster.Backoff(ctx, try); err != nil {
			return err
		}
	}
}

// hang stops the operation at a state while the fail point is on.
func (r *resharding) hang(ctx context.Context, state string) error {
	if r.m.Points == nil {
		return nil
	}
	return r.m.Points.Register("reshardingPauseCoordinatorAtState").PauseWhere(ctx, func(data []byte) bool {
		at := value.Lookup(data, "state")
		return at.IsMissing() || at.Str() == state
	})
}

// permanent marks an error as permanent, regardless of its code.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// retry repeats f after transient errors; after the point of no return it retries every error.
func (r *resharding) retry(ctx context.Context, always bool, f func() error) error {
	for try := 0; ; try++ {
		if err := r.aborted(); err != nil && !always {
			return err
		}
		err := f()
		var final permanent
		if err == nil || ctx.Err() != nil || !always && (errors.As(err, &final) || !transient(err)) {
			return err
		}
		if err := cluster.Backoff(ctx, try); err != nil {
			return err
		}
	}
}

// transient reports whether a step that failed with this error may succeed when it is repeated. A server that has just started may not know yet that it is a
// shard.
func transient(err error) bool {
	return cluster.Transient(err, mongoerr.CommandNotFound, mongoerr.NotImplemented)
}

// aborted returns an error if a client has requested that the operation be aborted.
func (r *resharding) aborted() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.abort {
		return permanent{mongoerr.New(mongoerr.ReshardCollectionAborted, "aborted")}
	}
	return nil
}

// runAbortReshard requests that an operation be undone, and waits until it is.
func (m *Manager) runAbortReshard(op *command.Op, req *msg.AbortReshard, dst []byte) ([]byte, error) {
	if req.ID != nil { // an undo: an operation that is about to begin has begun by then, or never will
		unlock, err := m.ddl.lock(op, req.NS)
		if err != nil {
			return dst, err
		}
		unlock()
	}
	r, err := m.reshardOn(req.NS, req.ID)
	if err == nil && req.Provenance != "" && r.doc.want.Provenance != req.Provenance {
		err = mongoerr.Newf(mongoerr.IllegalOperation, "the operation on %s is a %s", req.NS, r.doc.want.Provenance)
	}
	if err != nil {
		return dst, err
	}
	r.mu.Lock()
	decided := r.mu.decided
	r.mu.abort = r.mu.abort || !decided
	r.mu.Unlock()
	if decided {
		return dst, mongoerr.Newf(mongoerr.ReshardCollectionCommitted, "Can't abort resharding operation after the decision to commit %s", req.NS)
	}
	select {
	case <-r.done:
	case <-op.Done():
		return dst, op.Err()
	}
	if r.err == errNotPrimary {
		return dst, r.err
	}
	return dst, nil
}

// runCommitReshard makes an operation block writes as soon as everything is cloned, and waits for its end.
func (m *Manager) runCommitReshard(op *command.Op, req *msg.CommitReshard, dst []byte) ([]byte, error) {
	r, err := m.reshardOn(req.NS, req.ID)
	if err != nil {
		return dst, err
	}
	r.mu.Lock()
	r.mu.force = true
	r.mu.Unlock()
	select {
	case <-r.done:
		return dst, r.err
	case <-op.Done():
		return dst, op.Err()
	}
}

// runForgetReshard removes the document of an operation whose outcome is known.
func (m *Manager) runForgetReshard(op *command.Op, req *msg.ForgetReshard, dst []byte) ([]byte, error) {
	r, err := m.reshardOf(req.ID)
	if err != nil {
		return dst, err
	}
	if r != nil && !r.ended() {
		return dst, mongoerr.Newf(mongoerr.ReshardCollectionInProgress, "the resharding of %s has not ended", req.NS)
	}
	if err := m.remove(op, reshardingOps, doc(fld("_id", value.NewBinary(4, req.ID[:])), fld("state", str(reshardQuiesced)))); err != nil {
		return dst, err
	}
	m.resharding.mu.Lock()
	delete(m.resharding.mu.runs, req.ID)
	m.resharding.mu.Unlock()
	return dst, nil
}

// runCleanupReshard removes what remains of an operation without a state document. None begins meanwhile (beginReshard): its table would be taken for such remains.
func (m *Manager) runCleanupReshard(op *command.Op, req *msg.CleanupReshard, dst []byte) ([]byte, error) {
	unlock, err := m.ddl.lock(op, req.NS, timeseries.BucketsOf(req.NS))
	if err != nil {
		return dst, err
	}
	defer unlock()
	if _, err := m.reshardOn(req.NS, nil); err == nil {
		return dst, mongoerr.Newf(mongoerr.ReshardCollectionInProgress, "a resharding of %s is in progress; abort it with abortReshardCollection", req.NS)
	} else if mongoerr.CodeOf(err) != mongoerr.NoSuchReshardCollection {
		return dst, err
	}
	_, e, err := m.entry(op, req.NS)
	if err == nil && e == nil {
		_, e, err = m.entry(op, timeseries.BucketsOf(req.NS))
	}
	if err != nil || e == nil {
		return dst, err
	}
	db, _ := cluster.SplitNS(req.NS)
	_, left, err := m.entry(op, db+".system.resharding."+value.UUIDText(e.UUID))
	if err == nil && left != nil {
		err = m.forget(op, left.NS, left.UUID, forgotten{})
	}
	return dst, err
}

// knowsReshard reports whether an operation has not ended, according to a majority of the config server: a deposed primary must
// not reply.
func (m *Manager) knowsReshard(ctx context.Context, id [16]byte) (bool, error) {
	docs, err := cluster.FindLinearizable(ctx, m.local, cluster.Find{NS: "config." + reshardingOps, Filter: value.Doc(fld("_id", value.NewBinary(4, id[:])))})
	if err != nil || len(docs) == 0 {
		return false, err
	}
	return value.Lookup(docs[0], "state").Str() != reshardQuiesced, nil
}
