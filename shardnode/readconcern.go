package shardnode

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/txn"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// readSnapshot waits as the read concern requires and returns the snapshot to read from. In a set of several
// members only what a majority has becomes visible at all, so the levels differ only in what they wait for.
func (n *Node) readSnapshot(op *command.Op) (*storage.Snapshot, error) {
	if t := txn.Of(op); t != nil {
		return t.View.Clone(), nil
	}
	if op.Req.DB == "config" && op.Req.NS(op.Req.Cmd.Str()) == txn.TransactionsNS {
		n.txns.WriteRecords(op)
	}
	if op.Req.ReadConcern == nil {
		return n.Engine.Snapshot(), nil
	}
	rc := op.Req.ReadConcern
	if err := n.checkReplicated(rc); err != nil {
		if stage := checkStages(op, op.Req.Shared("pipeline")); stage != nil {
			err = stage // a stage's own refusal comes first, on every kind of server
		}
		return nil, err
	}
	if rc.AfterClusterTime != 0 {
		if err := n.waitFor(op, "afterClusterTime", storage.Timestamp(rc.AfterClusterTime)); err != nil {
			return nil, err
		}
	}
	after := storage.Timestamp(rc.AfterClusterTime)
	switch {
	case rc.AtClusterTime != 0:
		return snapshotAt(n, op, storage.Timestamp(rc.AtClusterTime))
	case rc.Level == "linearizable":
		if err := n.linearize(op); err != nil {
			return nil, err
		}
		after = n.Engine.Visible()
	}
	if after != 0 {
		var err error
		if after, err = n.txns.AwaitPreparedUpTo(op, after, n.soleCollection); err != nil {
			return nil, err
		}
	}
	if n.raft() != nil || rc.Level == "" || rc.Level == "local" || rc.Level == "available" {
		return n.Engine.Snapshot(), nil
	}
	if n.Engine.Durable() < after {
		if err := n.Engine.Sync(op); err != nil {
			return nil, err
		}
	}
	return n.Engine.MajoritySnapshot(), nil
}

// snapshotAt returns a snapshot at a cluster time that is read on other shards, too. It waits until the transactions
// that were prepared by then are decided.
func snapshotAt(n *Node, op *command.Op, ts storage.Timestamp) (*storage.Snapshot, error) {
	if err := n.waitFor(op, "atClusterTime", ts); err != nil {
		return nil, err
	}
	if err := n.txns.AwaitPrepared(op, ts); err != nil {
		return nil, err
	}
	return n.Engine.SnapshotAtClusterTime(ts)
}

// raft returns the set of several members that the node is in; nil for none.
func (n *Node) raft() *replication.Raft {
	if n.Repl == nil {
		return nil
	}
	return n.Repl.Raft()
}

// linearize makes sure that the node is still primary and has every write that was acknowledged before the read.
func (n *Node) linearize(ctx context.Context) error {
	if n.notPrimary() != nil {
		return mongoerr.New(mongoerr.NotWritablePrimary, "cannot satisfy linearizable read concern on non-primary node")
	}
	if raft := n.raft(); raft != nil {
		return raft.ReadIndex(ctx)
	}
	return nil
}

// waitFor returns once everything up to ts is visible. If the set has not written at or after ts, a no-op write on its
// primary gets it there, so that a causally consistent read does not wait for the next client write. name is the option that asks for ts.
func (n *Node) waitFor(ctx context.Context, name string, ts storage.Timestamp) error {
	if n.Engine.Visible() >= ts {
		return nil
	}
	if s, ok := n.Set.(clockedSet); ok {
		if err := s.clock.CheckRequested("readConcern "+name, uint64(ts)); err != nil {
			return err
		}
	}
	if n.notPrimary() != nil {
		return n.followTo(ctx, ts)
	}
	n.Engine.AdvanceClock(ts)
	u := n.Engine.NewUnitOfWork(nil)
	defer u.Rollback()
	u.Oplog(storage.OplogEntry{Op: 'n', StmtID: -1, O: value.Doc(value.F("msg", value.NewString("noop write for afterClusterTime read concern")))})
	_, err := n.Set.Commit(ctx, u, replication.WriteConcern{W: 1})
	return err
}

// noopAfter is the time that a secondary waits for a cluster time before it asks the primary for a no-op write
// (waitForSecondaryBeforeNoopWriteMS).
const noopAfter = 10 * time.Millisecond

// followTo waits on a secondary until it has applied everything up to ts.
func (n *Node) followTo(ctx context.Context, ts storage.Timestamp) error {
	short, cancel := context.WithTimeout(ctx, noopAfter)
	err := n.waitVisible(short, ts)
	cancel()
	if err == nil || ctx.Err() != nil {
		return err
	}
	n.Repl.AskForNoop(ctx, ts)
	return n.waitVisible(ctx, ts)
}

// waitVisible waits until ts is visible.
func (n *Node) waitVisible(ctx context.Context, ts storage.Timestamp) error {
	for {
		now := n.Engine.Visible()
		if now >= ts {
			return nil
		}
		if _, err := n.Engine.WaitVisible(ctx, now); err != nil {
			return err
		}
	}
}
