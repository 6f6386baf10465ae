package migration

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A message that begins a migration may arrive late: its sender was paused, was deposed meanwhile, and continues for a moment
// before it learns that. By then its successor has aborted the migration and informed the recipient, and may have moved the same
// range by another migration. A recipient that believed the message would delete documents that it owns, and wait forever for
// the outcome of a migration that no node knows.

// mayReceive checks that the donor knows the migration that left belongs to, and that this shard owns nothing of its range. It
// is called when this migration is registered as the one that the shard receives and no earlier migration of the range is
// undecided, so that after the check no part of the range can become this shard's except by this migration.
func (m *Manager) mayReceive(ctx context.Context, left *rangeDeletion) error {
	known, err := m.donorKnows(ctx, left)
	if err != nil {
		return err
	}
	if !known {
		return mongoerr.Newf(mongoerr.OperationFailed, "shard %s does not know the migration of a range of %s that it asked to begin", left.donor, left.ns)
	}
	owned, err := m.ownsPart(ctx, left)
	if err == nil && owned {
		err = mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "this shard owns documents of the range of %s that it is to receive", left.ns)
	}
	return err
}

// donorKnows asks the donor of a migration whether it still has the migration's coordinator document. The read is linearizable:
// a deposed primary must not answer, and the primary that answers has everything that an earlier one wrote before it began the
// migration.
func (m *Manager) donorKnows(ctx context.Context, left *rangeDeletion) (bool, error) {
	s, err := m.state.Registry.Shard(ctx, left.donor)
	if mongoerr.CodeOf(err) == mongoerr.ShardNotFound {
		return false, nil // it was removed, and owned no chunk then: nothing that it began can still be committed, and the placement shows what was
	}
	if err != nil {
		return false, err
	}
	docs, err := cluster.FindLinearizable(ctx, s.Peer, cluster.Find{NS: "config.migrationCoordinators", Filter: value.Doc(value.F("_id", left.id))})
	return len(docs) > 0, err
}

// askAgain is the time that this shard waits before it asks a donor again about an undecided migration.
const askAgain = 5 * time.Second

// forget concludes the migrations to this shard that their donors do not know, or no longer know: nobody will report their
// outcome. next is the time until the next check, 0 if nothing is undecided.
func (m *Manager) forget(op *command.Op) (next time.Duration, err error) {
	if err := m.forgetFailed(op); err != nil {
		return askAgain, err
	}
	err = m.rangeDeletions().Each(func(d *rangeDeletion) error {
		if !d.pending || d.donor == m.state.ID {
			return nil
		}
		next = askAgain
		if m.receiving(d.id) {
			return nil // if it fails, forgetFailed concludes it
		}
		known, err := m.donorKnows(op, d)
		if err != nil || known {
			return err
		}
		return m.settle(op, d)
	})
	return next, err
}

// settle decides a pending range deletion by the current owner of the range.
func (m *Manager) settle(op *command.Op, d *rangeDeletion) error {
	defer m.rangesChanged()
	owned, err := m.ownsPart(op, d)
	switch {
	case err != nil:
		return err
	case owned:
		return m.rangeDeletions().Remove(op, d.id)
	}
	if err := m.clearPending(op, d.id); err != nil {
		return err
	}
	m.wakeDeleter()
	return nil
}

// receiving reports whether a migration is the one that this shard is receiving.
func (m *Manager) receiving(id value.Value) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.in != nil && string(m.mu.in.id[:]) == string(id.Bytes())
}

// forgetFailed makes room for the next migration if the current one to this shard has failed, or waits for its outcome, and its donor
// no longer knows it.
func (m *Manager) forgetFailed(ctx context.Context) error {
	m.mu.Lock()
	r := m.mu.in
	m.mu.Unlock()
	if r == nil {
		return nil
	}
	if state, _, _ := r.status(); state != recvFail && state != recvEntered {
		return nil
	}
	known, err := m.donorKnows(ctx, &rangeDeletion{id: value.NewBinary(4, r.id[:]), ns: r.ns, donor: r.from})
	if err != nil || known {
		return err
	}
	m.mu.Lock()
	if m.mu.in == r {
		m.mu.in = nil
	}
	m.mu.Unlock()
	return m.sections().leave(ctx, &sectionDoc{name: r.ns, id: r.id})
}
