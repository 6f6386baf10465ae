package coordinator

import (
	"context"
	"slices"
)

// Begun are the operations on some databases that have taken their DDL locks at a time, or wait for them: clients' commands, and runs, also those that an earlier primary has begun. Operations of
// users that take theirs later are refused under them if users have been blocked before (Config.Blocked).
type Begun struct {
	m    *Coordinators
	term context.Context // ends when the node steps down
	ops  []*held
}

// Begun returns the operations on the databases that which selects.
func (m *Coordinators) Begun(which func(db string) bool) *Begun {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := &Begun{m: m, term: m.mu.ctx}
	for h := range m.mu.held {
		if h.op != nil && slices.ContainsFunc(databasesOf(h.op), which) {
			b.ops = append(b.ops, h)
		}
	}
	return b
}

// Left reports whether some of the operations have not ended. Those that create indexes are aborted with an error, and undone.
func (b *Begun) Left(why error) (bool, error) {
	if b == nil {
		return false, nil
	}
	m := b.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if b.term.Err() != nil {
		return true, errSteppedDown
	}
	for _, r := range m.mu.runs {
		if r.doc.op.name() == createIndexesKind && slices.Contains(b.ops, r.locks) {
			r.discard(why)
		}
	}
	b.ops = slices.DeleteFunc(b.ops, func(h *held) bool {
		_, holds := m.mu.held[h]
		return !holds
	})
	return len(b.ops) > 0, nil
}

// Ended makes sure, when none of the operations is left, that no crash brings one back: the end of a run need not be durable (phase.harmless).
func (b *Begun) Ended(ctx context.Context) error {
	if b == nil {
		return nil
	}
	return b.m.confirm(ctx, "user writes are blocked")
}
