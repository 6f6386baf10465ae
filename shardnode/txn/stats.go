package txn

import (
	"sync/atomic"

	"github.com/shoaldb/shoal/query/value"
)

// Counters has the counters of serverStatus.transactions.
type Counters struct {
	Started, Committed, Aborted, Open atomic.Int64
	active                            atomic.Int64 // transactions in which a command is running
	prepared                          struct{ all, committed, aborted atomic.Int64 }
	// Retried counts commands with statements that had been executed before, and those statements.
	Retried  struct{ Commands, Statements atomic.Int64 }
	watching atomic.Bool // whether their routers are being watched
}

// Status returns serverStatus.transactions.
func (m *Manager) Status() []byte {
	c := &m.counters
	open, active := c.Open.Load(), c.active.Load()
	figures := []struct {
		name string
		n    int64
	}{
		{"retriedCommandsCount", c.Retried.Commands.Load()}, {"retriedStatementsCount", c.Retried.Statements.Load()},
		{"transactionsCollectionWriteCount", m.retries.written.Load()},
		{"currentActive", min(active, open)}, {"currentInactive", max(open-active, 0)}, {"currentOpen", open},
		{"totalAborted", c.Aborted.Load()}, {"totalCommitted", c.Committed.Load()}, {"totalStarted", c.Started.Load()},
		{"totalPrepared", c.prepared.all.Load()}, {"totalPreparedThenCommitted", c.prepared.committed.Load()},
		{"totalPreparedThenAborted", c.prepared.aborted.Load()}, {"currentPrepared", m.prepared.open()},
	}
	fields := make([]value.Field, len(figures))
	for i, f := range figures {
		fields[i] = value.F(f.name, value.NewInt64(f.n))
	}
	return value.Doc(fields...)
}
