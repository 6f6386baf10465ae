package router

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Multi-document transactions through a router. Every request that a command of a transaction sends to a shard
// passes attach, which makes the shard a participant: its first request starts the transaction there, at the read
// concern of the client's first command. The router keeps the list of participants in memory; the shards store
// what they need to know.

// txnTable holds the transactions of the sessions that use this router.
type txnTable struct {
	mu struct {
		sync.Mutex
		sessions map[cluster.LogicalSessionID]*txnSession
	}
}

// txnSession is a session's newest transaction. The remaining fields are guarded by busy.
type txnSession struct {
	busy chan struct{}
	txn  *transaction // nil before the first
	used time.Time
	// client is the client that used the session last, if that is behind a load balancer.
	client atomic.Pointer[command.Client]
}

// transaction is one transaction.
type transaction struct {
	number         int64
	lsid           []byte
	readConcern    *command.ReadConcern // what participants begin with; nil for the default
	asked          []byte               // the client's own read concern
	chosen         bool                 // whether this router chose the time of its snapshot
	after          uint64               // the lower bound of that time
	by             command.Caller
	started        time.Time
	active         time.Duration // time spent in its commands
	statement      int           // counts the client's commands
	failed         bool          // a statement of the running command failed
	ended          bool          // aborted
	commit         func(op *command.Op, concern []byte) error
	releaseSession func() // releases the session before the command ends; the session must be held
	phase          txnPhase
	stats          *txnStats

	mu struct { // requests to several shards go out at once
		sync.Mutex
		participants []*participant
		recovery     string // the first shard that the transaction wrote to
	}
}

// participant is a shard's part in a transaction.
type participant struct {
	shard string
	first int  // the statement that made the shard a participant
	last  int  // the last statement sent to it
	wrote bool // as far as is known, see note
	// committed means that a participant which only read has acknowledged a commit.
	committed atomic.Bool
}

// transactionOf returns the transaction that an operation belongs to; nil for none.
func transactionOf(op *command.Op) *transaction {
	t, _ := op.Txn.(*transaction)
	return t
}

// take acquires an operation's session and returns the function that releases it.
func (t *txnTable) take(op *command.Op) (s *txnSession, release func(), err error) {
	id, err := cluster.ParseLSID(op.Req.LSID, cluster.NoUser)
	if err != nil {
		return nil, nil, err
	}
	t.mu.Lock()
	if t.mu.sessions == nil {
		t.mu.sessions = make(map[cluster.LogicalSessionID]*txnSession)
	}
	s = t.mu.sessions[id]
	if s == nil {
		s = &txnSession{busy: make(chan struct{}, 1)}
		s.busy <- struct{}{}
		t.mu.sessions[id] = s
	}
	s.used = op.Start
	if op.Client.Via != "" {
		s.client.Store(op.Client)
	}
	t.mu.Unlock()
	select {
	case <-s.busy:
		return s, func() { s.busy <- struct{}{} }, nil
	case <-op.Done():
		return nil, nil, op.Err()
	}
}

// forget drops the sessions for which f returns true or that have not been used since limit, and returns
// their idle transactions.
func (t *txnTable) forget(limit time.Time, f func(cluster.LogicalSessionID) bool) (left []*transaction) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, s := range t.mu.sessions {
		if !s.used.Before(limit) && !f(id.Parent()) {
			continue
		}
		select {
		case <-s.busy:
			if s.txn != nil && !s.txn.ended && s.txn.commit == nil {
				left = append(left, s.txn)
			}
			delete(t.mu.sessions, id)
			s.busy <- struct{}{}
		default:
		}
	}
	return left
}

// len returns the number of sessions.
func (t *txnTable) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.mu.sessions)
}

// drop forgets the session of an internal transaction that has ended.
func (t *txnTable) drop(id cluster.LogicalSessionID) {
	t.mu.Lock()
	delete(t.mu.sessions, id)
	t.mu.Unlock()
}

// BeginTxn attaches an operation to its transaction; end detaches it with the operation's outcome.
func (r *Router) BeginTxn(op *command.Op) (end func(err error), err error) {
	if err := command.CheckTxnOp(op); err != nil {
		return nil, err
	}
	s, release, err := r.txns.take(op)
	if err != nil {
		return nil, err
	}
	t, err := r.enterTxn(op, s)
	if err != nil {
		release()
		return nil, err
	}
	began := time.Now() // the command may have waited for others of its session
	op.Txn = t
	t.show(op, began)
	r.txnStat.active.Add(1)
	t.statement++
	t.failed = false
	gone := false
	t.releaseSession = func() {
		t.active += time.Since(began)
		gone = true
		release()
	}
	return func(err error) {
		defer r.txnStat.active.Add(-1)
		if !gone {
			defer t.releaseSession()
		}
		if (err != nil || t.failed) && !op.EndsTransaction() {
			r.txnStat.abort(t, abortCause(err))
			r.abortAll(context.WithoutCancel(op), t)
		}
		if err == nil {
			t.appendToken(op)
		}
	}, nil
}

// enterTxn begins a session's transaction, or finds it.
func (r *Router) enterTxn(op *command.Op, s *txnSession) (*transaction, error) {
	req := &op.Req
	last := int64(-1)
	if s.txn != nil {
		last = s.txn.number
	}
	switch {
	case req.TxnNumber < last:
		return nil, mongoerr.Newf(mongoerr.TransactionTooOld, "txnNumber %d is less than last txnNumber %d seen in session %s", req.TxnNumber, last, value.ShowDoc(req.LSID))
	case req.StartTxn && req.TxnNumber == last:
		return nil, mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "txnNumber %d for session %s already started", req.TxnNumber, value.ShowDoc(req.LSID))
	case req.StartTxn:
		r.abortReplaced(op, s)
		s.txn = newTransaction(op)
		s.txn.stats = &r.txnStat
		r.txnStat.begin(s.txn)
		return s.txn, s.txn.setReadConcern(r, op)
	case req.TxnNumber == last:
		if s.txn.ended && !op.EndsTransaction() {
			return nil, mongoerr.Newf(mongoerr.NoSuchTransaction, "Transaction with { txnNumber: %d } has been aborted.", req.TxnNumber)
		}
		if s.txn.commit != nil && !op.EndsTransaction() {
			// A failed statement would abort the transaction on all shards, but only the coordinator may decide that now.
			return nil, mongoerr.Newf(mongoerr.TransactionCommitted, "Transaction %d has been committed.", req.TxnNumber)
		}
		return s.txn, nil
	case req.Spec.Name == "commitTransaction": // begun through another router
		r.abortReplaced(op, s)
		t := newTransaction(op)
		t.commit = func(op *command.Op, concern []byte) error { return r.recoverCommit(op, t, concern) }
		s.txn = t
		return t, nil
	}
	return nil, mongoerr.Newf(mongoerr.NoSuchTransaction, "cannot continue txnId %d for session %s with txnId %d", last, value.ShowDoc(req.LSID), req.TxnNumber)
}

func newTransaction(op *command.Op) *transaction {
	return &transaction{number: op.Req.TxnNumber, lsid: append([]byte(nil), op.Req.LSID...), by: op.Caller(), started: op.Start}
}

// abortReplaced aborts the transaction that a newer one of the session replaces.
func (r *Router) abortReplaced(op *command.Op, s *txnSession) {
	if s.txn != nil && !s.txn.ended && s.txn.commit == nil {
		r.abortAll(context.WithoutCancel(op), s.txn)
	}
}

// setReadConcern keeps the read concern of the first command for all participants. A snapshot read gets one time
// for all shards here: the newest that this router knows, which is not before anything the client has seen.
func (t *transaction) setReadConcern(r *Router, op *command.Op) error {
	if op.Req.ReadConcern == nil {
		return nil
	}
	rc := op.Req.ReadConcern
	t.readConcern = rc.Clone()
	t.asked = t.readConcern.Doc
	if rc.Level == "snapshot" && rc.AtClusterTime == 0 {
		t.chosen, t.after = true, rc.AfterClusterTime
		t.chooseTime(r)
	}
	op.Req.ReadConcern = nil // the participants have it from attach
	return nil
}

// chooseTime chooses the newest time that the router knows for the snapshot.
func (t *transaction) chooseTime(r *Router) {
	t.readConcern = snapshotConcern(max(r.Clock.ClusterTime(), t.after))
}

// atFirst runs a command. The first command of a transaction is retried at a later snapshot time if shards cannot
// answer at the one that the router chose, because another transaction was being committed or a range was moving then:
// no data as of that time has been read yet.
func (r *Router) atFirst(op *command.Op, run func() error) error {
	t := transactionOf(op)
	for try := 0; ; try++ {
		err := run()
		if t == nil || !t.chosen || t.statement != 1 || op.Client.InProcess || !mongoerr.In(err, mongoerr.CategorySnapshot) ||
			try >= maxSnapshotTries || cluster.Backoff(op, try/2) != nil || !t.mayRetry(op, r, err) {
			return err
		}
		t.failed = false
		t.chooseTime(r)
		t.show(op, t.started)
	}
}

// replaced are the elements of a request that attach rewrites.
var replaced = map[string]bool{
	"lsid": true, "txnNumber": true, "autocommit": true, "startTransaction": true, "coordinator": true, "readConcern": true,
	"stmtIds": true, "stmtId": true,
}

// attach makes a request to a shard part of the operation's transaction; outside of a transaction it returns the request unchanged.
func (t *transaction) attach(op *command.Op, shard string, body []byte) []byte {
	if t == nil {
		return body
	}
	t.mu.Lock()
	p := t.participant(shard)
	if starts := p == nil; starts {
		p = &participant{shard: shard, first: t.statement}
		t.mu.participants = append(t.mu.participants, p)
	}
	starts := p.last == 0
	if t.stats != nil {
		t.stats.targeted.Add(1)
		if starts {
			t.stats.contacted.Add(1)
		}
	}
	coordinator := t.mu.participants[0] == p
	p.last = t.statement
	if op.Req.Spec.Kind == command.Write || op.Req.Spec.Kind == command.DDL {
		p.wrote = true
		if t.mu.recovery == "" {
			t.mu.recovery = shard
		}
	}
	t.mu.Unlock()
	more := t.fields()
	if starts {
		more = value.Append(more, "startTransaction", value.NewBool(true))
		if t.readConcern != nil {
			more = value.Append(more, "readConcern", value.NewDocument(t.readConcern.Doc))
		}
		if coordinator {
			more = value.Append(more, "coordinator", value.NewBool(true))
		}
	}
	return rebuild(body, replaced, more)
}

// anyParticipant returns a shard of the transaction, or another one if it has none yet.
func (t *transaction) anyParticipant(other string) string {
	if parts := t.parts(); len(parts) > 0 {
		return parts[0].shard
	}
	return other
}

// participant finds a shard's part; mu must be held.
func (t *transaction) participant(shard string) *participant {
	for _, p := range t.mu.participants {
		if p.shard == shard {
			return p
		}
	}
	return nil
}

// fields returns the fields that every request of the transaction has.
func (t *transaction) fields() []byte {
	f := value.Append(nil, "lsid", value.NewDocument(t.lsid))
	f = value.Append(f, "txnNumber", value.NewInt64(t.number))
	return value.Append(f, "autocommit", value.NewBool(false))
}

// note processes a participant's reply: a statement that failed has aborted the transaction there. The reply reports whether
// the participant has written anything; until it has replied, it is assumed to have executed its statements.
func (t *transaction) note(shard string, reply []byte) {
	if t == nil {
		return
	}
	if v := value.Lookup(reply, "readOnly"); v.T == value.Boolean {
		t.mu.Lock()
		if p := t.participant(shard); p != nil && p.wrote == v.Truthy() {
			p.wrote = !p.wrote
			if t.mu.recovery == "" || t.mu.recovery == shard {
				t.mu.recovery = t.firstWriter()
			}
		}
		t.mu.Unlock()
	}
	n, _ := value.Lookup(reply, "nErrors").AsInt64()
	if n == 0 && value.Lookup(reply, "writeErrors").IsMissing() {
		return
	}
	t.fail()
}

// fail records that a statement of the running command has failed: the transaction ends with the command.
func (t *transaction) fail() {
	t.mu.Lock()
	t.failed = true
	t.mu.Unlock()
}

// mayRetry reports whether the running statement may be sent again after a stale answer, which has aborted the
// transaction on the shard that returned it: only if no earlier participant was involved. It removes the
// statement's own participants from the transaction, so that they start again.
//
// Nor is it sent again if the shard has waited for a critical section in vain, and there are earlier participants: a DDL whose section that is may wait for the locks that they hold.
//
// Invariant: a commit includes all statements whose results the client has received. Hazard: a participant that took part before this
// statement may hold earlier writes of the transaction. The stale error has aborted its part, and starting it again would silently drop
// those writes from the commit. Participants that the statement itself brought in hold nothing else, so they can start again. The real server
// repeats no statement of a transaction at all (SERVER-39704). Rejected:
// repeating the whole transaction. The router does not keep earlier statements, and their results have been returned to the client, which
// may have acted on them.
func (t *transaction) mayRetry(op *command.Op, r *Router, err error) bool {
	stale, _ := cluster.ParseStaleInfo(mongoerr.From(err).Details)
	t.mu.Lock()
	var again, keep []*participant
	for _, p := range t.mu.participants {
		switch {
		case p.first == t.statement:
			again = append(again, p)
		case p.last == t.statement, stale.Blocked:
			t.mu.Unlock()
			return false
		default:
			keep = append(keep, p)
		}
	}
	t.mu.participants = keep
	t.mu.recovery = t.firstWriter()
	t.mu.Unlock()
	r.endOn(op, t, again, &msg.AbortTransaction{})
	return true
}

// firstWriter returns the first participant that has written, empty for none. t.mu must be held.
func (t *transaction) firstWriter() string {
	for _, p := range t.mu.participants {
		if p.wrote {
			return p.shard
		}
	}
	return ""
}

// parts returns a copy of the list of participants.
func (t *transaction) parts() []*participant {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]*participant(nil), t.mu.participants...)
}

// abortAll ends the transaction on all its participants. On a shard that is not reached, the transaction times out.
func (r *Router) abortAll(ctx context.Context, t *transaction) []shardReply {
	t.ended = true
	r.txnStat.abort(t, abortCause(nil))
	r.dropTxnCursors(t)
	return r.endOn(ctx, t, t.parts(), &msg.AbortTransaction{})
}

// endOn sends the command that ends the transaction to participants, to all at once.
func (r *Router) endOn(ctx context.Context, t *transaction, parts []*participant, m msg.Message, more ...[]byte) []shardReply {
	out := make([]shardReply, len(parts))
	var wg sync.WaitGroup
	for i, p := range parts {
		wg.Add(1)
		go func() {
			defer wg.Done()
			out[i].shard = p.shard
			out[i].body, out[i].err = r.sendEnd(ctx, t, p.shard, m, more...)
		}()
	}
	wg.Wait()
	return out
}

// sendEnd sends a command on the whole transaction to one shard.
func (r *Router) sendEnd(ctx context.Context, t *transaction, shard string, m msg.Message, more ...[]byte) ([]byte, error) {
	p, err := r.peer(ctx, shard)
	if err != nil {
		return nil, err
	}
	b := msg.Doc(m)
	b = append(b[:len(b)-1], t.fields()...)
	for _, elements := range more {
		b = append(b, elements...)
	}
	return cluster.Run(ctx, p, value.End(b, 0))
}

// appendToken appends the recovery token: the shard that knows the transaction's outcome, for a commit that is sent to another router.
func (t *transaction) appendToken(op *command.Op) {
	token := value.Doc()
	if shard := t.recoveryShard(); shard != "" {
		token = value.Doc(value.F("recoveryShardId", value.NewString(shard)))
	}
	op.AddTopLevel("recoveryToken", value.NewDocument(token))
}

// recoveryShard returns the first shard that the transaction wrote to, empty for none.
func (t *transaction) recoveryShard() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.recovery
}

// dropTxnCursors drops the cursors of a transaction; on the shards they end with it.
func (r *Router) dropTxnCursors(t *transaction) {
	for _, id := range r.cursors.matching(func(c *routerCursor) bool { return c.txn == t }) {
		r.cursors.drop(id)
	}
}

// EndSessionTxns aborts the open transactions of the sessions for which f returns true.
func (r *Router) EndSessionTxns(f func(cluster.LogicalSessionID) bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, t := range r.txns.forget(time.Time{}, f) {
		r.abortAll(ctx, t)
	}
}
