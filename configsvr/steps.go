package configsvr

import (
	"context"

	"github.com/shoaldb/shoal/query/value"
)

// step is a part of a change of the list of shards. If a config server ends between two steps, the same command, sent again, does the rest.
type step struct {
	name string
	do   func() error
}

// inSteps executes the steps of an operation. The fail point that stops the coordinators of DDL operations stops them before a step, too.
func (m *Manager) inSteps(ctx context.Context, operation string, steps ...step) error {
	for _, s := range steps {
		if err := m.hang(ctx, operation, s.name); err != nil {
			return err
		}
		if err := s.do(); err != nil {
			return err
		}
	}
	return nil
}

// hang stops an operation before a step while the fail point is on for it.
func (m *Manager) hang(ctx context.Context, operation, step string) error {
	if m.Points == nil {
		return nil
	}
	return m.Points.Register("hangBeforeRunningShardingDDLPhase").PauseWhere(ctx, func(data []byte) bool {
		op, at := value.Lookup(data, "operationType"), value.Lookup(data, "phase")
		return (op.IsMissing() || op.Str() == operation) && (at.IsMissing() || at.Str() == step)
	})
}
