package migration

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/tables"
	"github.com/shoaldb/shoal/storage"
)

// newTables returns the shard's routing tables on disk.
func (m *Manager) newTables(shard *Shard) *tables.Tables {
	return tables.New(tables.Config{
		Docs: m.Docs, Catalog: m.state.Catalog, Config: m.state.Registry.Config(), Shard: m.state.ID,
		UnitChunks: func() int { return int(m.Params.Int("persistedChunkCacheUpdateMaxBatchSize")) },
		Primary:    func() bool { return shard.node.NotPrimary() == nil },
		AskPrimary: func(ctx context.Context, cmd []byte) ([]byte, error) {
			p, err := m.state.peerOf(ctx, m.state.ID)
			if err != nil {
				return nil, err
			}
			return cluster.Run(ctx, p, cmd)
		},
	})
}

// flushSpecs returns the commands that have a shard refresh its routing tables, and store them.
func (m *Manager) flushSpecs() []command.Spec {
	specs := []command.Spec{
		asked(command.Internal(m.runFlush)), command.Internal(m.runFlushDatabase),
		asked(command.Internal(m.runFlushDurably)), asked(command.Internal(m.runFlushDatabaseDurably)),
		asked(command.Internal(m.runCheckParticipant)),
	}
	specs[1].Roles, specs[1].PrimaryOnly = command.Shard, true
	return specs
}

func (m *Manager) runFlush(op *command.Op, req *msg.FlushRoutingTable, dst []byte) ([]byte, error) {
	if err := m.state.tables.Flush(op, req.NS); err != nil {
		return dst, err
	}
	return dst, m.dropSuperseded(op, req.NS)
}

func (m *Manager) runCheckParticipant(_ *command.Op, req *msg.CheckParticipant, dst []byte) ([]byte, error) {
	stored, err := m.state.tables.Stored(req.NS)
	return msg.AppendFields(dst, stored), err
}

// runFlushDatabase forgets a database that was dropped, here and on the shard's secondaries.
func (m *Manager) runFlushDatabase(op *command.Op, req *msg.FlushDatabase, dst []byte) ([]byte, error) {
	m.state.Catalog.PurgeDatabase(req.DB)
	err := m.Docs.WriteWith(op, replication.Visible, func(_ *storage.Snapshot, u *storage.UnitOfWork) error {
		u.Notice(placingNotice("dropped", value.NewString(req.DB), req.DB))
		u.Oplog(storage.OplogEntry{Op: 'n', StmtID: -1, O: value.Doc(value.F("msg", value.NewString("database "+req.DB+" was dropped")))})
		return nil
	})
	if err != nil {
		return dst, err
	}
	return dst, m.state.tables.FlushDatabase(op, req.DB)
}

// runFlushDurably lets a secondary learn of a placement: the secondary waits until the reply's time is visible and reads what is stored.
func (m *Manager) runFlushDurably(op *command.Op, req *msg.FlushRoutingTableDurably, dst []byte) ([]byte, error) {
	return m.stored(op, dst, m.state.tables.Flush(op, req.NS))
}

func (m *Manager) runFlushDatabaseDurably(op *command.Op, req *msg.FlushDatabaseDurably, dst []byte) ([]byte, error) {
	return m.stored(op, dst, m.state.tables.FlushDatabase(op, req.DB))
}

// stored returns the time by which everything that was stored is visible, once it is durable.
func (m *Manager) stored(ctx context.Context, dst []byte, err error) ([]byte, error) {
	if err == nil {
		err = m.Engine.Sync(ctx)
	}
	if err != nil {
		return dst, err
	}
	return msg.AppendFields(dst, &msg.FlushReply{Visible: uint64(m.Engine.Visible())}), nil
}
