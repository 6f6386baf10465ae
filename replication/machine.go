package replication

import (
	"context"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// EngineMachine returns an engine as Options.Machine.
func EngineMachine(e *storage.Engine) StateMachine { return engineMachine{e} }

// EngineStore returns an engine's local tables as Options.Store.
func EngineStore(e *storage.Engine) LocalStore { return engineStore{e} }

type engineMachine struct{ *storage.Engine }

// WriteNoop implements StateMachine.
func (m engineMachine) WriteNoop(ctx context.Context, msg string) error {
	u := m.NewUnitOfWork(nil)
	u.Oplog(storage.OplogEntry{Op: 'n', O: value.Doc(value.F("msg", value.NewString(msg))), StmtID: -1})
	_, err := m.Commit(storage.WithReserve(ctx), u, false)
	return err
}

// BecomePrimary implements StateMachine.
func (m engineMachine) BecomePrimary(term int64, propose func(Group) error) error {
	return m.Engine.BecomePrimary(term, func(g *storage.Group) error { return propose(g) })
}

// ApplyGroup implements StateMachine.
func (m engineMachine) ApplyGroup(g Group, index, term uint64) error {
	own, ok := g.(*storage.Group)
	if !ok {
		return mongoerr.New(mongoerr.InternalError, "the group is not the engine's")
	}
	return m.Engine.ApplyGroup(own, index, term)
}

// EntryTime implements StateMachine.
func (m engineMachine) EntryTime(data []byte) storage.Timestamp { return storage.EntryTimestamp(data) }

// Files implements SnapshotMachine.
func (m engineMachine) Files() SnapshotFiles { return m.Engine.Files() }

// engineStore keeps the entries in one of the engine's local tables and everything else in another, because the
// keys of a table must have the same length.
type engineStore struct{ e *storage.Engine }

// Scan implements LocalStore.
func (s engineStore) Scan(lower, upper []byte, f func(key, value []byte) bool) error {
	goOn := true
	if lower[0] != keyEntry {
		err := s.e.LocalScan(storage.TableRaftMeta, lower, upper, func(k, v []byte) bool {
			goOn = f(k, v)
			return goOn
		})
		if err != nil || !goOn {
			return err
		}
	}
	if upper[0] < keyEntry || lower[0] > keyEntry {
		return nil
	}
	var from, to []byte
	if lower[0] == keyEntry {
		from = lower[1:]
	}
	if upper[0] == keyEntry {
		to = upper[1:]
	}
	key := []byte{keyEntry}
	return s.e.LocalScan(storage.TableRaftLog, from, to, func(k, v []byte) bool {
		return f(append(key[:1], k...), v)
	})
}

// Write implements LocalStore.
func (s engineStore) Write(b *LocalBatch, sync bool) error {
	out := s.e.NewLocalBatch()
	for i := range b.Ops {
		op := &b.Ops[i]
		table, key := storage.TableRaftMeta, op.Key
		if key[0] == keyEntry {
			table, key = storage.TableRaftLog, key[1:]
		}
		switch {
		case op.Upper == nil:
			out.Set(table, key, op.Head, op.Value)
		case table == storage.TableRaftLog && op.Upper[0] > keyEntry:
			out.DeleteRange(table, key, nil)
		case table == storage.TableRaftLog:
			out.DeleteRange(table, key, op.Upper[1:])
		default:
			out.DeleteRange(table, key, op.Upper)
		}
	}
	return out.Commit(sync)
}
