package shardnode

import (
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Coordinators of two-phase commits.
//
//	router ──coordinateCommitTransaction──► coordinator ── config.transaction_coordinators: who takes part
//	                                             ├── prepareTransaction ──► every participant
//	                                             ├── config.transaction_coordinators: the decision
//	                                             ├── commitTransaction or abortTransaction ──► every participant
//	                                             └── its document is removed
//
// Each step may be repeated. A node that starts, or becomes primary, goes on where the stored document says: without a
// decision it asks for the votes again, and a participant that has lost its transaction votes to abort.

const txnCoordinatorsNS = "config.transaction_coordinators"

// coordinators are those at work on a node.
type coordinators struct {
	mu struct {
		sync.Mutex
		running map[string]*coordinator
	}
}

// coordinator leads one commit.
type coordinator struct {
	m            *migrations
	lsid         []byte
	number       int64
	participants []string
	recovered    bool // from a document of an earlier run

	done chan struct{} // closed when the participants have carried out the decision
	// What follows is written before done is closed.
	over   bool // there was nothing left to do
	commit bool
	ts     storage.Timestamp // the decision's time
	last   uint64            // operationTime of the participants' commits
	why    error             // why it was aborted
}

func (m *migrations) coordinatorSpec() command.Spec {
	return command.Spec{
		Name: "coordinateCommitTransaction", Roles: command.Shard, AdminOnly: true, Internal: true, Txn: true, WriteConcern: true,
		Fields: []command.Field{command.Req("participants", command.TArray)}, Run: m.runCoordinate,
	}
}

// runCoordinate leads the commit of a transaction, or joins who does. Without participants it tells what became of one.
func (m *migrations) runCoordinate(op *command.Op, dst []byte) ([]byte, error) {
	if err := m.n.notPrimary(); err != nil {
		return dst, err
	}
	var shards []string
	for _, v := range value.Values(op.Req.Doc("participants")) {
		shards = append(shards, value.Lookup(v.Doc(), "shardId").Str())
	}
	id, err := cluster.ParseLSID(op.Req.LSID, cluster.NoUser)
	if err != nil {
		return dst, err
	}
	limit, stop, err := untilWTimeout(op)
	if err != nil {
		return dst, err
	}
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
			case state == txnCommitted:
				op.AdvanceOperationTime(uint64(ts))
				return dst, m.awaitDecision(op, ts)
			case state == txnAborted:
				return dst, m.n.knows(op, aborted(op.Req.TxnNumber))
			}
			c = m.startCoordinator(&coordinator{m: m, lsid: id.Doc(), number: op.Req.TxnNumber, participants: shards})
		}
		select {
		case <-c.done:
		case <-op.Done():
			return dst, op.Err()
		case <-limit: // some shard has no majority, perhaps; who sends the commit again joins in
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

// untilWTimeout gives a channel that tells that the wtimeout of an operation has passed; nil for none.
func untilWTimeout(op *command.Op) (limit <-chan time.Time, stop func(), err error) {
	wc, err := command.ParseWriteConcern(op.Req.WriteConcern)
	if err != nil || wc.Timeout == 0 {
		return nil, func() {}, err
	}
	t := time.NewTimer(wc.Timeout)
	return t.C, func() { t.Stop() }, nil
}

func aborted(number int64) error {
	return mongoerr.Newf(mongoerr.NoSuchTransaction, "Transaction with { txnNumber: %d } has been aborted.", number)
}

// awaitDecision waits for what the client's write concern asks.
func (m *migrations) awaitDecision(op *command.Op, ts storage.Timestamp) error {
	wc, err := command.ParseWriteConcern(op.Req.WriteConcern)
	if err != nil {
		return err
	}
	if err := m.n.checkConcern(op, wc); err != nil {
		return err
	}
	if err := m.n.Set.Await(op, min(ts, m.n.Engine.Visible()), replConcern(wc)); err != nil {
		op.SetWriteConcernError(mongoerr.From(err))
	}
	return nil
}

// localOutcome is what this node knows of a transaction that it coordinates no more, or never did. A transaction that is
// asked after and was never prepared is aborted; one that is prepared is decided elsewhere, and waited for.
func (m *migrations) localOutcome(op *command.Op, recovery bool, limit <-chan time.Time) (txnState, storage.Timestamp, error) {
	for {
		state, ts, err := m.n.outcome(op, op.Req.TxnNumber)
		if err != nil || !recovery || state == txnCommitted || state == txnAborted {
			return state, ts, err
		}
		if state == txnOpen {
			err := m.n.abortSession(op)
			return txnAborted, 0, err
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

// abortSession aborts the open transaction that an operation names.
func (n *Node) abortSession(op *command.Op) error {
	s, release, err := n.retries.take(op)
	if err != nil {
		return err
	}
	defer release()
	if s.number == op.Req.TxnNumber {
		n.abortTxn(s)
	}
	return nil
}

func coordinatorKey(lsid []byte, number int64) value.Value {
	return value.NewDocument(value.Doc(value.F("lsid", value.NewDocument(lsid)), value.F("txnNumber", value.NewInt64(number))))
}

func (m *migrations) coordinatorOf(lsid []byte, number int64) *coordinator {
	c := &m.coordinators
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.running[string(coordinatorKey(lsid, number).Doc())]
}

// startCoordinator sets a coordinator to work, or gives the one that is.
func (m *migrations) startCoordinator(c *coordinator) *coordinator {
	key := string(coordinatorKey(c.lsid, c.number).Doc())
	t := &m.coordinators
	t.mu.Lock()
	defer t.mu.Unlock()
	if have := t.mu.running[key]; have != nil {
		return have
	}
	if t.mu.running == nil {
		t.mu.running = make(map[string]*coordinator)
	}
	c.done = make(chan struct{})
	m.mu.Lock()
	ctx := m.mu.ctx
	ended := ctx.Err() != nil
	if !ended {
		m.wg.Add(1)
	}
	m.mu.Unlock()
	if ended {
		c.why = mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "the node is no primary any more")
		close(c.done)
		return c
	}
	t.mu.running[key] = c
	go func() {
		defer m.wg.Done()
		if err := c.run(ctx); err != nil && !c.commit {
			c.why = err // the node stops, or is no primary any more: whoever is next goes on
		}
		t.mu.Lock()
		delete(t.mu.running, key)
		t.mu.Unlock()
		close(c.done)
	}()
	return c
}

// recoverCoordinators goes on with the commits that an earlier run left.
func (m *migrations) recoverCoordinators() error {
	return m.n.eachDoc(txnCoordinatorsNS, func(doc []byte) error {
		id := value.Lookup(doc, "_id").Doc()
		m.startCoordinator(&coordinator{m: m, recovered: true, lsid: value.Lookup(id, "lsid").Doc(), number: safeInt64(value.Lookup(id, "txnNumber"))})
		return nil
	})
}

// read takes up what is stored of the commit; false where it is over.
func (c *coordinator) read() (bool, error) {
	doc, err := c.m.n.getDoc(txnCoordinatorsNS, coordinatorKey(c.lsid, c.number))
	if err != nil || doc == nil {
		return false, err
	}
	c.participants = nil
	for _, v := range value.Values(value.Lookup(doc, "participants").Doc()) {
		c.participants = append(c.participants, v.Str())
	}
	switch d := value.Lookup(doc, "decision").Doc(); value.Lookup(d, "decision").Str() {
	case "commit":
		c.commit, c.ts = true, storage.Timestamp(value.Lookup(d, "commitTimestamp").TimestampU64())
	case "abort":
		c.why = aborted(c.number)
	}
	return true, nil
}

// run leads the commit, from where it stands.
func (c *coordinator) run(ctx context.Context) error {
	n := c.m.n
	// A router that asks again may come before the recovery of what an earlier primary decided.
	if open, err := c.read(); err != nil || !open && c.recovered {
		c.over = err == nil
		return err
	}
	if !c.commit && c.why == nil {
		if err := n.putDoc(ctx, txnCoordinatorsNS, c.document()); err != nil {
			return err
		}
		if err := c.m.pause(ctx, "hangBeforeSendingPrepare"); err != nil {
			return err
		}
		ts, why, err := c.votes(ctx)
		if err != nil {
			return err
		}
		if err := c.m.pause(ctx, "hangBeforeWritingDecision"); err != nil {
			return err
		}
		commit := why == nil
		doc := c.document(decision(commit, ts))
		if err := n.putDoc(ctx, txnCoordinatorsNS, doc); err != nil {
			return err
		}
		c.commit, c.ts, c.why = commit, ts, why
		if err := c.m.pause(ctx, "hangBeforeSendingCommit"); err != nil {
			return err
		}
	}
	if err := c.carryOut(ctx); err != nil {
		return err
	}
	return n.removeDoc(ctx, txnCoordinatorsNS, coordinatorKey(c.lsid, c.number))
}

// pause stops a coordinator while a fail point of that name is on.
func (m *migrations) pause(ctx context.Context, name string) error {
	if m.n.Points == nil {
		return nil
	}
	return m.n.Points.Register(name).Pause(ctx)
}

func decision(commit bool, ts storage.Timestamp) value.Field {
	f := []value.Field{value.F("decision", value.NewString("abort"))}
	if commit {
		f = []value.Field{value.F("decision", value.NewString("commit")), value.F("commitTimestamp", ts.Value())}
	}
	return value.F("decision", value.NewDocument(value.Doc(f...)))
}

// document is what is stored of the commit.
func (c *coordinator) document(more ...value.Field) []byte {
	list := make([]value.Value, len(c.participants))
	for i, p := range c.participants {
		list[i] = value.NewString(p)
	}
	return value.Doc(append([]value.Field{value.F("_id", coordinatorKey(c.lsid, c.number)),
		value.F("participants", value.NewArray(value.ArrayOf(list...)))}, more...)...)
}

// votes asks all participants to promise the commit. why is the reason of one that does not; ts is not before any promise.
func (c *coordinator) votes(ctx context.Context) (ts storage.Timestamp, why error, err error) {
	type vote struct {
		ts       storage.Timestamp
		why, err error
	}
	votes := make([]vote, len(c.participants))
	c.each(func(i int, shard string) {
		v := &votes[i]
		reply, err := c.ask(ctx, shard, "prepareTransaction", value.F("coordinatorId", value.NewString(c.m.state.ID)))
		switch {
		case err == nil:
			v.ts = storage.Timestamp(value.Lookup(reply, "prepareTimestamp").TimestampU64())
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

// carryOut tells all participants the decision, until each has heard it.
func (c *coordinator) carryOut(ctx context.Context) error {
	name, more := "abortTransaction", []value.Field(nil)
	if c.commit {
		name, more = "commitTransaction", []value.Field{value.F("commitTimestamp", c.ts.Value())}
	}
	more = append(more, value.F("writeConcern", value.NewDocument(value.Doc(value.F("w", value.NewString("majority"))))))
	errs := make([]error, len(c.participants))
	times := make([]uint64, len(c.participants))
	c.each(func(i int, shard string) {
		for try := 0; ; try++ {
			reply, err := c.ask(ctx, shard, name, more...)
			times[i] = value.Lookup(reply, "operationTime").TimestampU64()
			switch mongoerr.CodeOf(err) {
			case mongoerr.NoSuchTransaction, mongoerr.TransactionTooOld, mongoerr.TransactionCommitted: // it has heard before, and gone on
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
	c.last = max(c.last, uint64(c.ts), c.m.state.Clock.ClusterTime())
	return nil
}

// each calls f for every participant, all at once.
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

// ask sends a participant a command on the transaction, again while it cannot be reached.
func (c *coordinator) ask(ctx context.Context, shard, name string, more ...value.Field) ([]byte, error) {
	f := append([]value.Field{value.F(name, value.NewInt32(1)), value.F("lsid", value.NewDocument(c.lsid)),
		value.F("txnNumber", value.NewInt64(c.number)), value.F("autocommit", value.NewBool(false))}, more...)
	cmd := value.Doc(append(f, value.F("$db", value.NewString("admin")))...)
	for try := 0; ; try++ {
		s, err := c.m.state.Registry.Shard(ctx, shard)
		var reply []byte
		if err == nil {
			reply, err = cluster.Run(ctx, s.Peer, cmd)
		}
		if err == nil || !cluster.Retryable(err) && mongoerr.CodeOf(err) != mongoerr.ShardNotFound {
			return reply, err
		}
		if cluster.Backoff(ctx, try) != nil {
			return nil, err
		}
	}
}
