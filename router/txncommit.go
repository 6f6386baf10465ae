package router

import (
	"context"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// txnSpecs are commitTransaction and abortTransaction.
func (r *Router) txnSpecs() []command.Spec {
	specs := command.TxnSpecs(func(op *command.Op) error {
		return mongoerr.Newf(mongoerr.NoSuchTransaction, "Given transaction number %d does not match any in-progress transactions.", op.Req.TxnNumber)
	})
	for i := range specs {
		outside, commit := specs[i].Run, specs[i].Name == "commitTransaction"
		specs[i].Run = func(op *command.Op, dst []byte) ([]byte, error) {
			t := transactionOf(op)
			switch {
			case t == nil:
				return outside(op, dst)
			case commit:
				return dst, r.commitTxn(op, t)
			}
			return dst, r.abortTxn(op, t)
		}
	}
	return specs
}

func (r *Router) abortTxn(op *command.Op, t *transaction) error {
	if t.ended {
		return mongoerr.Newf(mongoerr.NoSuchTransaction, "Transaction with { txnNumber: %d } has been aborted.", t.number)
	}
	if t.commit != nil && len(t.parts()) == 0 {
		// Begun through another router, which alone knows the participants: this one was only asked for the outcome.
		return mongoerr.Newf(mongoerr.NoSuchTransaction, "Given transaction number %d does not match any in-progress transactions.", t.number)
	}
	if t.commit != nil {
		return mongoerr.Newf(mongoerr.TransactionCommitted, "Transaction %d has been committed.", t.number)
	}
	replies := r.abortAll(op, t)
	collectWriteConcernErrors(op, replies)
	return firstError(replies)
}

// commitTxn commits a transaction in the way that its participants require. A commit that is retried asks those
// that know the outcome: the shard that wrote, or the coordinator.
func (r *Router) commitTxn(op *command.Op, t *transaction) error {
	if t.ended {
		return mongoerr.Newf(mongoerr.NoSuchTransaction, "Transaction with { txnNumber: %d } has been aborted.", t.number)
	}
	if t.commit == nil {
		t.commit = r.howToCommit(t)
		r.dropTxnCursors(t)
	}
	wc := op.Req.AskedConcern()
	if !wc.ForSet().BeyondMajority() {
		return r.txnStat.commit(op, t, writeConcern(op))
	}
	if err := r.txnStat.commit(op, t, concernOf(op, "w", value.NewString("majority"))); err != nil || op.WriteConcernError() != nil {
		return err
	}
	return r.awaitCommitted(op, t, wc.Timeout)
}

// awaitCommitted waits until a committed transaction satisfies its write concern, which requires more than the majority and may
// take long while a member is down. The session is released meanwhile, so that the same commit, retried with another concern,
// does not wait for this one.
func (r *Router) awaitCommitted(op *command.Op, t *transaction, limit time.Duration) error {
	commit := t.commit
	t.releaseSession()
	concern := writeConcern(op)
	if limit > 0 {
		left := max(limit-time.Since(op.Start), time.Millisecond)
		concern = concernOf(op, "wtimeout", value.NewInt64(left.Milliseconds()))
	}
	err := commit(op, concern)
	switch mongoerr.CodeOf(err) {
	case mongoerr.NoSuchTransaction, mongoerr.TransactionTooOld: // but it has committed: the session has begun another transaction meanwhile
		op.SetWriteConcernError(mongoerr.New(mongoerr.WriteConcernTimeout, "the session has begun another transaction while this one's commit waited for its write concern"))
		return nil
	}
	return err
}

// concernOf returns the command's write concern with one field replaced, as an element.
func concernOf(op *command.Op, field string, v value.Value) []byte {
	return value.Append(nil, "writeConcern", value.NewDocument(rebuild(op.Req.WriteConcern.Doc, map[string]bool{field: true}, value.Append(nil, field, v))))
}

// howToCommit chooses between a commit that one shard decides and one that several have to agree on. The latter is
// coordinated by the shard that the recovery token names: it has written, so that it knows the outcome after a
// restart too, which a participant that only read does not.
func (r *Router) howToCommit(t *transaction) func(op *command.Op, concern []byte) error {
	parts := t.parts()
	var readers, writers []*participant
	for _, p := range parts {
		if p.wrote {
			writers = append(writers, p)
		} else {
			readers = append(readers, p)
		}
	}
	switch {
	case len(parts) == 0:
		return func(*command.Op, []byte) error { return nil }
	case len(writers) <= 1:
		return func(op *command.Op, concern []byte) error {
			if err := r.commitReaders(op, t, readers, len(writers) == 0, concern); err != nil {
				return err
			}
			return r.commitOn(op, t, writers, concern)
		}
	}
	return func(op *command.Op, concern []byte) error {
		err := r.coordinate(op, t, t.recoveryShard(), parts, concern)
		if mongoerr.CodeOf(err) == mongoerr.NoSuchTransaction { // perhaps before any other participant was sent the commit
			r.abortAll(context.WithoutCancel(op), t)
		}
		return err
	}
}

// commitReaders commits the participants that only read, before the one that wrote. Each is sent the commit until it has
// committed. again means that a retried commit still waits for the write concern there.
//
// Invariant: if a participant has lost the transaction, nothing of it is written. Hazard: a participant that only read keeps nothing: after a restart
// it knows nothing of the transaction, which may have committed nevertheless. Its answer therefore counts only until it has committed.
//
// Rejected: a two-phase commit whenever several shards take part. It waits for three syncs instead of one, to make durable the votes of
// shards that have nothing to lose. Rejected, too: sending the commit to all at once. The writer could commit while a
// reader replies that it has lost the transaction, and the client would repeat committed writes.
func (r *Router) commitReaders(op *command.Op, t *transaction, readers []*participant, again bool, concern []byte) error {
	var ask []*participant
	for _, p := range readers {
		if again || !p.committed.Load() {
			ask = append(ask, p)
		}
	}
	if len(ask) == 0 {
		return nil
	}
	replies := r.endOn(op, t, ask, &msg.CommitTransaction{}, concern)
	lost := false
	for i, p := range ask {
		gone := mongoerr.CodeOf(replies[i].err) == mongoerr.NoSuchTransaction
		if gone && p.committed.Load() {
			replies[i].err = nil
		}
		if replies[i].err == nil {
			p.committed.Store(true)
		}
		lost = lost || gone && !p.committed.Load()
	}
	err := r.answered(op, replies)
	if lost {
		r.abortAll(context.WithoutCancel(op), t)
	}
	return err
}

// commitOn sends the commit to participants.
func (r *Router) commitOn(op *command.Op, t *transaction, parts []*participant, concern []byte) error {
	if len(parts) == 0 {
		return nil
	}
	return r.answered(op, r.endOn(op, t, parts, &msg.CommitTransaction{}, concern))
}

// answered processes the replies to a commit.
func (r *Router) answered(op *command.Op, replies []shardReply) error {
	for i := range replies {
		if ts := value.Lookup(replies[i].body, "operationTime"); ts.T == value.Timestamp {
			op.AdvanceOperationTime(ts.TimestampU64())
		}
	}
	collectWriteConcernErrors(op, replies)
	return firstError(replies)
}

func writeConcern(op *command.Op) []byte {
	if op.Req.WriteConcern == nil {
		return nil
	}
	return value.Append(nil, "writeConcern", value.NewDocument(op.Req.WriteConcern.Doc))
}

// coordinate makes a shard coordinate a two-phase commit over all participants; with nil participants it asks for the outcome of one.
func (r *Router) coordinate(op *command.Op, t *transaction, shard string, parts []*participant, concern []byte) error {
	m := &msg.CoordinateCommit{}
	for _, p := range parts {
		m.Participants = append(m.Participants, p.shard)
	}
	body, err := r.sendEnd(op, t, shard, m, concern)
	return r.answered(op, []shardReply{{shard: shard, body: body, err: err}})
}

// recoverCommit handles the commit of a transaction that this router does not know: the shard that the client's
// token names returns the outcome.
func (r *Router) recoverCommit(op *command.Op, t *transaction, concern []byte) error {
	token := op.Req.Doc("recoveryToken")
	if token == nil {
		return mongoerr.Newf(mongoerr.NoSuchTransaction, "Given transaction number %d does not match any in-progress transactions.", op.Req.TxnNumber)
	}
	shard := value.Lookup(token, "recoveryShardId")
	if shard.T != value.String {
		return mongoerr.New(mongoerr.NoSuchTransaction, "Recovery token is empty, meaning the transaction only performed reads and can be safely retried")
	}
	if shard.Str() == cluster.ConfigShardID { // a config server that is no shard has no client's transactions, and coordinates none
		ids, err := r.allShards(op)
		if err != nil {
			return err
		}
		if !slices.Contains(ids, cluster.ConfigShardID) {
			return mongoerr.Newf(mongoerr.NoSuchTransaction, "Given transaction number %d does not match any in-progress transactions.", op.Req.TxnNumber)
		}
	}
	t.mu.Lock()
	t.mu.recovery = shard.Str() // the reply names it again: drivers use the newest token
	t.mu.Unlock()
	if _, err := r.Registry.Shard(op, shard.Str()); err != nil {
		return err
	}
	return r.coordinate(op, t, shard.Str(), nil, concern)
}
