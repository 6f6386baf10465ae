package txn

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Coordinators of two-phase commits.
//
//	router ──coordinateCommitTransaction──► coordinator ── config.transaction_coordinators: the participants
//	                                             ├── prepareTransaction ──► every participant      1st sync
//	                                             ├── config.transaction_coordinators: the decision 2nd sync
//	                                             ├── commitTransaction or abortTransaction ──► every participant: 3rd sync
//	       ◄───────────── answer ────────────────┤
//	                                             └── its document is removed
//
// Each step may be repeated. A node that starts, or becomes primary, continues from the stored document: without a
// decision it asks for the votes again, and a participant that has lost its transaction votes to abort.

const CoordinatorsNS = "config.transaction_coordinators"

// Shard identifies a coordinator's shard, and gives access to its cluster.
type Shard struct {
	ID       string
	Registry *cluster.Registry
	Clock    *cluster.VectorClock
}

// Coordinators are the two-phase commits that a node coordinates.
type Coordinators struct {
	*Manager
	shard Shard
	stats coordinatorStats
	wg    sync.WaitGroup // running coordinators

	mu struct {
		sync.Mutex
		ctx     context.Context // canceled when the node steps down
		running map[string]*coordinator
	}
}

// NewCoordinators returns Coordinators that coordinate nothing before the node steps up.
func NewCoordinators(t *Manager, shard Shard) *Coordinators {
	m := &Coordinators{Manager: t, shard: shard}
	ended, end := context.WithCancel(context.Background())
	end()
	m.mu.ctx, m.mu.running = ended, make(map[string]*coordinator)
	t.coordinators = m
	return m
}

// recoverRetry is the time before a failed recovery of commits is repeated.
const recoverRetry = time.Second

// PrimaryOnly returns the coordinators as a primary-only service: it continues the commits that an earlier primary
// left, and stops its own when the node steps down.
func (m *Coordinators) PrimaryOnly() replication.Service {
	return replication.Service{
		Name: "TransactionCoordinator",
		StepUp: func(ctx context.Context, _ int64) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.mu.ctx = ctx
			return nil
		},
		Run: func(ctx context.Context, _ int64) {
			m.wg.Go(func() { m.inquire(ctx) })
			for m.recoverCoordinators() != nil {
				select {
				case <-time.After(recoverRetry):
					continue
				case <-ctx.Done():
				}
				break
			}
			<-ctx.Done()
			m.wg.Wait() // no further one starts
		},
	}
}

// coordinator coordinates one commit.
type coordinator struct {
	m            *Coordinators
	lsid         []byte
	number       int64
	participants []string
	recovered    bool // from a document of an earlier run
	abandoned    bool // only the own shard's vote exists: the commit is to be aborted

	progress *progress
	decided  chan struct{} // closed when the decision to commit is stored, and commit and ts are written
	done     chan struct{} // closed when the participants have executed the decision; the stored document is removed later
	// The following fields are written before done is closed.
	over   bool // there was nothing left to do
	commit bool
	ts     storage.Timestamp // the decision's time
	last   uint64            // operationTime of the participants' commits
	why    error             // why it was aborted
}

// commitDoc is the stored state of a commit.
type commitDoc struct {
	lsid         []byte
	number       int64
	participants []string
	decision     string            // commit, abort, or empty while the participants vote
	ts           storage.Timestamp // of a decision to commit
}

// ID implements statedoc.Doc.
func (d *commitDoc) ID() value.Value { return coordinatorKey(d.lsid, d.number) }

// Doc implements statedoc.Doc.
func (d *commitDoc) Doc() []byte {
	list := make([]value.Value, len(d.participants))
	for i, p := range d.participants {
		list[i] = value.NewString(p)
	}
	f := []value.Field{value.F("_id", d.ID()), value.F("participants", value.NewArray(value.ArrayOf(list...)))}
	if d.decision != "" {
		decided := []value.Field{value.F("decision", value.NewString(d.decision))}
		if d.decision == "commit" {
			decided = append(decided, value.F("commitTimestamp", d.ts.Value()))
		}
		f = append(f, value.F("decision", value.NewDocument(value.Doc(decided...))))
	}
	return value.Doc(f...)
}

func readCommitDoc(doc []byte) (*commitDoc, error) {
	decided := value.LookupDoc(doc, "decision")
	number, ok := value.Lookup(value.LookupDoc(doc, "_id"), "txnNumber").AsInt64()
	d := &commitDoc{
		lsid: value.LookupDoc(value.LookupDoc(doc, "_id"), "lsid"), number: number,
		decision: value.Lookup(decided, "decision").Str(), ts: storage.Timestamp(value.Lookup(decided, "commitTimestamp").TimestampU64()),
	}
	odd := func(what string) error { return mongoerr.New(mongoerr.BadValue, what) }
	if _, err := cluster.ParseLSID(d.lsid, cluster.NoUser); err != nil || !ok {
		return nil, odd("_id does not contain a valid lsid and txnNumber")
	}
	list := value.Lookup(doc, "participants")
	if list.T != value.Array {
		return nil, odd("it has no participants")
	}
	for _, v := range value.Values(list.Doc()) {
		if v.T != value.String {
			return nil, odd("a participant has no name")
		}
		d.participants = append(d.participants, v.Str())
	}
	switch {
	case value.Lookup(doc, "decision").IsMissing(), d.decision == "abort", d.decision == "commit" && d.ts != 0:
		return d, nil
	}
	return nil, odd("decision is neither commit nor abort")
}

// commits returns the entries of config.transaction_coordinators.
func (m *Coordinators) commits() statedoc.Collection[*commitDoc] {
	return statedoc.In(m.Docs, CoordinatorsNS, readCommitDoc)
}

func (m *Coordinators) Spec() command.Spec {
	s := command.Internal(m.runCoordinate)
	s.Roles, s.Txn, s.WriteConcern = command.Shard, true, true
	return s
}

// runCoordinate coordinates the commit of a transaction, or joins the coordinator that does. Without participants
// it returns the transaction's outcome.
func (m *Coordinators) runCoordinate(op *command.Op, req *msg.CoordinateCommit, dst []byte) ([]byte, error) {
	if err := m.node.NotPrimary(); err != nil {
		return dst, err
	}
	shards := req.Participants
	id, err := cluster.ParseLSID(op.Req.LSID, cluster.NoUser)
	if err != nil {
		return dst, err
	}
	limit, stop := untilWTimeout(op)
	defer stop()
	for {
		c := m.coordinatorOf(id.Doc(), op.Req.TxnNumber)
		if c == nil {
			state, ts, err := m.localOutcome(op, len(shards) == 0, limit)
			switch {
			case err == storage.ErrWaitTimeout:
				op.SetWriteConcernError(storage.ErrWaitTimeout)
				return dst, nil
			case err != nil:
				return dst, err
			case state == Committed:
				op.AdvanceOperationTime(uint64(ts))
				return dst, m.awaitDecision(op, ts)
			case state == Aborted:
				return dst, m.knows(op, aborted(op.Req.TxnNumber))
			}
			c = m.startCoordinator(&coordinator{m: m, lsid: id.Doc(), number: op.Req.TxnNumber, participants: shards})
		}
		select {
		case <-c.done:
		case <-m.answersAt(c): // readers after the commit's time wait for the participants
			op.AdvanceOperationTime(uint64(c.ts))
			return dst, m.awaitDecision(op, c.ts)
		case <-op.Done():
			return dst, op.Err()
		case <-limit: // perhaps a shard has no majority; a retried commit joins this one
			op.SetWriteConcernError(storage.ErrWaitTimeout)
			return dst, nil
		}
		switch {
		case c.over:
			continue
		case !c.commit:
			return dst, c.why
		}
		op.AdvanceOperationTime(c.last)
		return dst, m.awaitDecision(op, c.ts)
	}
}

// answersAt returns a channel that is closed when a coordinator's decision may be returned to the client before the participants have executed it.
func (m *Coordinators) answersAt(c *coordinator) <-chan struct{} {
	if !m.Params.Bool("coordinateCommitReturnImmediatelyAfterPersistingDecision") {
		return nil
	}
	return c.decided
}

// untilWTimeout returns a channel that fires when an operation's wtimeout has passed; nil for none.
func untilWTimeout(op *command.Op) (limit <-chan time.Time, stop func()) {
	wc := op.Req.AskedConcern()
	if wc.Timeout == 0 {
		return nil, func() {}
	}
	t := time.NewTimer(wc.Timeout)
	return t.C, func() { t.Stop() }
}

func aborted(number int64) error {
	return mongoerr.Newf(mongoerr.NoSuchTransaction, "Transaction with { txnNumber: %d } has been aborted.", number)
}

// awaitDecision waits until the decision satisfies the client's write concern.
func (m *Coordinators) awaitDecision(op *command.Op, ts storage.Timestamp) error {
	wc := op.Req.AskedConcern()
	if err := m.node.CheckConcern(op, wc); err != nil {
		return err
	}
	if err := m.Set.Await(op, min(ts, m.Engine.Visible()), wc.ForSet()); err != nil {
		op.SetWriteConcernError(mongoerr.From(err))
	}
	return nil
}

// localOutcome returns the outcome, as this node knows it, of a transaction that it no longer coordinates, or
// never did. A transaction that was never prepared is aborted by the request; one that is prepared is decided
// elsewhere, and waited for.
func (m *Coordinators) localOutcome(op *command.Op, recovery bool, limit <-chan time.Time) (State, storage.Timestamp, error) {
	for {
		state, ts, err := m.outcome(op, op.Req.TxnNumber)
		if err != nil || !recovery || state == Committed || state == Aborted {
			return state, ts, err
		}
		if state == Open {
			err := m.abortSession(op)
			return Aborted, 0, err
		}
		timer := time.NewTimer(5 * time.Millisecond)
		select {
		case <-timer.C:
		case <-limit:
			timer.Stop()
			return state, 0, storage.ErrWaitTimeout
		case <-op.Done():
			timer.Stop()
			return state, 0, op.Err()
		}
	}
}

func coordinatorKey(lsid []byte, number int64) value.Value {
	return value.NewDocument(value.Doc(value.F("lsid", value.NewDocument(lsid)), value.F("txnNumber", value.NewInt64(number))))
}

func (m *Coordinators) coordinatorOf(lsid []byte, number int64) *coordinator {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.running[string(coordinatorKey(lsid, number).Doc())]
}

// startCoordinator starts a coordinator, or returns the one that is running.
func (m *Coordinators) startCoordinator(c *coordinator) *coordinator {
	key := string(coordinatorKey(c.lsid, c.number).Doc())
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := m.mu.running[key]; have != nil {
		return have
	}
	c.done, c.decided, c.progress = make(chan struct{}), make(chan struct{}), &progress{}
	ctx := m.mu.ctx
	if ctx.Err() != nil {
		c.why = errNoCoordinator
		close(c.done)
		return c
	}
	m.mu.running[key] = c
	m.stats.begin()
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		ctx := storage.WithReserve(ctx)
		err := c.lead(ctx)
		if err != nil && !c.commit {
			if c.why = err; ctx.Err() != nil { // the next primary continues, and the commit is to be sent to it
				c.why = errNoCoordinator
			}
		}
		close(c.done)
		if err == nil && !c.over {
			c.forget(ctx)
		}
		m.enter(c, noStep)
		m.mu.Lock()
		delete(m.mu.running, key)
		m.mu.Unlock()
	}()
	return c
}

// errNoCoordinator is the error of a commit on a node that is stopping or no longer primary.
var errNoCoordinator = mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "node is no longer primary")

// recoverCoordinators continues the commits that an earlier run left.
func (m *Coordinators) recoverCoordinators() error {
	return m.commits().Each(func(d *commitDoc) error {
		m.startCoordinator(&coordinator{m: m, recovered: true, lsid: d.lsid, number: d.number})
		return nil
	})
}

// read loads the stored state of the commit; it returns false if the commit is over.
func (c *coordinator) read() (bool, error) {
	d, ok, err := c.m.commits().Get(coordinatorKey(c.lsid, c.number))
	if err != nil || !ok {
		return false, err
	}
	c.participants = d.participants
	switch d.decision {
	case "commit":
		c.commit, c.ts = true, d.ts
		c.m.decide(c)
	case "abort":
		c.why = aborted(c.number)
		c.m.decide(c)
	}
	return true, nil
}

// lead completes the commit whatever fails on the way, such as a full disk: no other node continues it as long as this one
// is primary, and the participants hold what they have voted for.
func (c *coordinator) lead(ctx context.Context) error {
	for try := 0; ; try++ {
		err := c.run(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if try == 0 {
			c.m.node.Warn("A two-phase commit is delayed", err)
		}
		if cluster.Backoff(ctx, try) != nil {
			return err
		}
	}
}

// run executes the commit, from its current state.
//
// Invariant: each step is durable before the next ends: the list of participants before the decision, because the own shard's vote follows the list
// in the same log, and the decision before it is sent to any participant. If the list is lost and a vote is durable, the voter settles it
// (inquiry.go); waiting for the list before asking for the votes would cost each commit a sync, or a majority.
//
// Hazard: a new primary knows only the step that the document shows as the last, and repeats it. It asks for votes again if there is no decision:
// participants that have voted reply the same, and one that has lost its transaction makes it abort, which is still possible because no
// participant has committed.
//
// Rejected: presuming abort after a time limit. A participant that has voted cannot end its transaction on its own, so an
// outcome decided in two places could differ.
func (c *coordinator) run(ctx context.Context) error {
	docs := c.m.commits()
	// A router's retry may arrive before the recovery of what an earlier primary decided.
	open, err := c.read()
	if err == nil && !open && c.abandoned {
		open, err = c.abandon(ctx)
	}
	if err != nil || !open && (c.recovered || c.abandoned) {
		c.over = err == nil
		return err
	}
	if !c.commit && c.why == nil {
		c.m.enter(c, writingParticipantList)
		listed, err := c.putParticipants(ctx, docs)
		if err != nil {
			return err
		}
		if err := c.m.pause(ctx, "hangBeforeSendingPrepare"); err != nil {
			return err
		}
		c.m.enter(c, waitingForVotes)
		ts, why, err := c.votes(ctx)
		if err == nil {
			err = listed()
		}
		if err != nil {
			return err
		}
		if err := c.m.pause(ctx, "hangBeforeWritingDecision"); err != nil {
			return err
		}
		c.m.enter(c, writingDecision)
		c.ts = ts
		decided := c.document("abort")
		if why == nil {
			decided = c.document("commit")
		}
		if err := docs.Put(ctx, decided); err != nil {
			return err
		}
		c.commit, c.why = why == nil, why
		c.m.decide(c)
		if err := c.m.pause(ctx, "hangBeforeSendingCommit"); err != nil {
			return err
		}
	}
	c.m.enter(c, waitingForDecisionAcks)
	return c.carryOut(ctx)
}

// abandon decides to abort if the own shard has its vote and nothing else. It returns false if the transaction is decided. The document is
// looked for once more, because read passes over one that a client has damaged.
func (c *coordinator) abandon(ctx context.Context) (bool, error) {
	docs, err := c.documentsOn(ctx, c.m.shard.ID)
	if err != nil || len(docs) > 0 || !c.m.voted(c) {
		return false, err
	}
	c.why = aborted(c.number)
	c.m.decide(c)
	return true, nil
}

// putParticipants stores the list of participants. If the own shard takes part, its vote makes the list durable: the list only has to
// be before it in the log. listed waits until a set of several members has it.
func (c *coordinator) putParticipants(ctx context.Context, docs statedoc.Collection[*commitDoc]) (listed func() error, err error) {
	listed = func() error { return nil }
	if !slices.Contains(c.participants, c.m.shard.ID) {
		return listed, docs.Put(ctx, c.document(""))
	}
	err = c.m.Docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		u.DetachAtOnce()
		return docs.PutIn(s, u, c.document(""))
	})
	if list, ok := IsDetached(err); ok {
		outcome := make(chan error, 1)
		list.Then(func(_ storage.Timestamp, err error) { outcome <- err })
		return func() error {
			select {
			case err := <-outcome:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}, nil
	}
	return listed, err
}

// forget removes the document of a commit that is over. The removal need not be durable: a primary that finds the document
// again repeats what the participants have done.
func (c *coordinator) forget(ctx context.Context) {
	c.m.enter(c, deletingCoordinatorDoc)
	for try := 0; ; try++ {
		err := c.m.Docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			return c.m.commits().RemoveIn(s, u, coordinatorKey(c.lsid, c.number))
		})
		if err == nil || cluster.Backoff(ctx, try) != nil {
			return
		}
	}
}

// pause stops a coordinator while a fail point of that name is on.
func (m *Coordinators) pause(ctx context.Context, name string) error {
	if m.Points == nil {
		return nil
	}
	return m.Points.Register(name).Pause(ctx)
}

// document returns the state to store for the commit, with the decision if there is one.
func (c *coordinator) document(decision string) *commitDoc {
	return &commitDoc{lsid: c.lsid, number: c.number, participants: c.participants, decision: decision, ts: c.ts}
}

// votes asks all participants to vote for the commit. why is the reason of one that refuses; ts is the time of the latest vote.
func (c *coordinator) votes(ctx context.Context) (ts storage.Timestamp, why error, err error) {
	type vote struct {
		ts       storage.Timestamp
		why, err error
	}
	votes := make([]vote, len(c.participants))
	c.each(func(i int, shard string) {
		v := &votes[i]
		var vote msg.PrepareTransactionReply
		reply, err := c.ask(ctx, shard, msg.Doc(&msg.PrepareTransaction{Coordinator: c.m.shard.ID}, c.inTransaction()...))
		if err == nil {
			err = msg.Parse(reply, &vote)
		}
		switch {
		case err == nil:
			v.ts = storage.Timestamp(vote.Timestamp)
		case ctx.Err() != nil:
			v.err = err
		default:
			v.why = err
		}
	})
	for _, v := range votes {
		if v.err != nil {
			return 0, nil, v.err
		}
		if v.why != nil && why == nil {
			why = v.why
		}
		ts = max(ts, v.ts)
	}
	return ts, why, nil
}

// carryOut sends the decision to all participants until each has acknowledged it.
func (c *coordinator) carryOut(ctx context.Context) error {
	var decision msg.Message = &msg.AbortTransaction{}
	if c.commit {
		decision = &msg.CommitTransaction{Timestamp: uint64(c.ts)}
	}
	cmd := msg.Doc(decision, append(c.inTransaction(), value.F("writeConcern", value.NewDocument(value.Doc(value.F("w", value.NewString("majority"))))))...)
	errs := make([]error, len(c.participants))
	times := make([]uint64, len(c.participants))
	c.each(func(i int, shard string) {
		for try := 0; ; try++ {
			reply, err := c.ask(ctx, shard, cmd)
			times[i] = value.Lookup(reply, "operationTime").TimestampU64()
			switch mongoerr.CodeOf(err) {
			case mongoerr.NoSuchTransaction, mongoerr.TransactionTooOld, mongoerr.TransactionCommitted,
				mongoerr.IncompleteTransactionHistory: // it has executed the decision already, which it may have forgotten
				err = nil
			case mongoerr.ShardNotFound: // it was removed, and its transactions with it
				err = nil
			}
			if errs[i] = err; err == nil || ctx.Err() != nil || cluster.Backoff(ctx, try) != nil {
				return
			}
		}
	})
	for i, err := range errs {
		c.last = max(c.last, times[i])
		if err != nil {
			return err
		}
	}
	c.last = max(c.last, uint64(c.ts), c.m.shard.Clock.ClusterTime())
	return nil
}

// each calls f for every participant, concurrently.
func (c *coordinator) each(f func(i int, shard string)) {
	var wg sync.WaitGroup
	for i, shard := range c.participants {
		wg.Add(1)
		go func() {
			defer wg.Done()
			f(i, shard)
		}()
	}
	wg.Wait()
}

// removed reports whether a shard that the registry does not know is no longer part of the cluster. The registry
// may have read from a config server member that lags.
func (m *Coordinators) removed(ctx context.Context, shard string) (bool, error) {
	docs, err := cluster.FindLinearizable(ctx, m.shard.Registry.Config(), cluster.Find{NS: "config.shards", Filter: value.Doc(value.F("_id", value.NewString(shard)))})
	return err == nil && len(docs) == 0, err
}

// inTransaction returns the arguments that make a command part of the transaction.
func (c *coordinator) inTransaction() []value.Field {
	return []value.Field{value.F("lsid", value.NewDocument(c.lsid)), value.F("txnNumber", value.NewInt64(c.number)), value.F("autocommit", value.NewBool(false))}
}

// ask sends a command on the transaction to a participant, and repeats it while it cannot be reached.
func (c *coordinator) ask(ctx context.Context, shard string, cmd []byte) ([]byte, error) {
	for try := 0; ; try++ {
		s, err := c.m.shard.Registry.Shard(ctx, shard)
		var reply []byte
		if err == nil {
			reply, err = cluster.Run(ctx, s.Peer, cmd)
		}
		gone := false
		if mongoerr.CodeOf(err) == mongoerr.ShardNotFound && s == nil {
			if gone, err = c.m.removed(ctx, shard); err == nil && !gone {
				err = mongoerr.Newf(mongoerr.HostUnreachable, "shard %s is not known to this node yet", shard)
			} else if gone {
				err = mongoerr.Newf(mongoerr.ShardNotFound, "Shard %s not found", shard)
			}
		}
		if err == nil || gone || !cluster.Retryable(err) {
			return reply, err
		}
		if cluster.Backoff(ctx, try) != nil {
			return nil, err
		}
	}
}
