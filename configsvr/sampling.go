package configsvr

import (
	"context"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command/sampling"
	"github.com/shoaldb/shoal/query/value"
)

// The sampling of a collection's queries ends when the collection is dropped or its name or UUID changes: the unit of work that changes
// its entry removes its configuration. For a collection without an entry a coordinator requests only the removal. A configuration is
// identified by name and UUID, so that a message that arrives late does not end the sampling of a successor.

// analyzers returns the _ids of the configurations of a collection: one, or none.
func (m *Manager) analyzers(ctx context.Context, ns string, uuid [16]byte) (ids []value.Value, err error) {
	return m.analyzersWhere(ctx, doc(fld("_id", str(ns)), fld("collUuid", value.NewBinary(4, uuid[:]))))
}

// analyzersIn returns the _ids of the configurations of a database's collections.
func (m *Manager) analyzersIn(ctx context.Context, db string) (ids []value.Value, err error) {
	return m.analyzersWhere(ctx, doc(fld("_id", doc(fld("$gt", str(db+".")), fld("$lt", str(db+"/"))))))
}

func (m *Manager) analyzersWhere(ctx context.Context, filter value.Value) (ids []value.Value, err error) {
	docs, err := m.findOnly(ctx, sampling.Configurations, filter)
	for _, d := range docs {
		ids = append(ids, value.Lookup(d, "_id").Clone())
	}
	return ids, err
}

// stopSampling ends the sampling of a collection with the changes.
func (w *catalogWrites) stopSampling(ctx context.Context, ns string, uuid [16]byte) error {
	ids, err := w.m.analyzers(ctx, ns, uuid)
	w.analyzers = append(w.analyzers, ids...)
	return err
}

// stopSampling ends the sampling of a collection that has no entry.
func (m *Manager) stopSampling(ctx context.Context, ns string, uuid [16]byte) error {
	ids, err := m.analyzers(ctx, ns, uuid)
	if err != nil || len(ids) == 0 {
		return err
	}
	return m.writePlaced(ctx, &msg.WriteTogether{NS: "config." + sampling.Configurations, Analyzers: ids})
}
