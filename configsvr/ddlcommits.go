package configsvr

import (
	"context"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// What the coordinators of DDL on shards ask of the catalog. Each may be sent again, also when the operation it is of has ended:
// it names the collection by its UUID, and finds that it is gone.

func (m *Manager) runRemoveCollection(op *command.Op, req *msg.RemoveCollection, dst []byte) ([]byte, error) {
	return dst, m.removeCollection(op, req.NS, req.UUID)
}

// removeCollection takes a collection out of the catalog.
func (m *Manager) removeCollection(ctx context.Context, ns string, uuid [16]byte) error {
	m.chunks.Lock()
	defer m.chunks.Unlock()
	_, e, err := m.entry(ctx, ns)
	if err != nil {
		return err
	}
	if e == nil || e.UUID != uuid {
		return m.removeChunks(ctx, uuid) // an earlier try may not have come to them
	}
	if err := m.forget(ctx, ns, uuid); err != nil {
		return err
	}
	m.log(ctx, "dropCollection", ns, doc())
	return nil
}

func (m *Manager) runSetAllowMigrations(op *command.Op, req *msg.SetAllowMigrations, dst []byte) ([]byte, error) {
	return dst, m.setAllowMigrations(op, req)
}

// setAllowMigrations has no migration of a collection begin or commit, or lets them again.
func (m *Manager) setAllowMigrations(ctx context.Context, req *msg.SetAllowMigrations) error {
	m.chunks.Lock()
	defer m.chunks.Unlock()
	field := doc(fld("permitMigrations", value.NewBool(false)))
	change := doc(fld("$set", field))
	if req.Allow {
		change = doc(fld("$unset", field))
	}
	_, err := m.update(ctx, "collections", doc(fld("_id", str(req.NS)), fld("uuid", value.NewBinary(4, req.UUID[:]))), change, false)
	return err
}

// errFrozen refuses to move chunks of a collection that a DDL is about.
func errFrozen(ns string) error {
	return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "Collection %s is undergoing changes and chunks cannot be moved", ns)
}
