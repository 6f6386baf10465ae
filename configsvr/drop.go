package configsvr

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// checkUUID compares a collection's UUID with the one that a client expects, if any.
func checkUUID(ns string, have [16]byte, want *[16]byte) error {
	if want == nil || have == *want {
		return nil
	}
	db, coll := cluster.SplitNS(ns)
	return mongoerr.New(mongoerr.CollectionUUIDMismatch, "Collection UUID does not match that specified").WithDetails(value.Doc(
		fld("db", str(db)), fld("collectionUUID", value.NewBinary(4, want[:])), fld("expectedCollection", str(coll)), fld("actualCollection", value.NewNull())))
}

// entry reads a sharded collection's entry; nil if there is none.
func (m *Manager) entry(ctx context.Context, ns string) ([]byte, *cluster.CollectionEntry, error) {
	docs, err := m.find(ctx, "collections", doc(fld("_id", str(ns))))
	if err != nil || len(docs) == 0 {
		return nil, nil, err
	}
	e, err := cluster.ParseCollectionEntry(docs[0])
	return docs[0], e, err
}

// dropCollection removes the sessions collection, whose DDL no shard coordinates, from the catalog, and then from all shards.
//
// It has no state document. Invariant: whatever interrupts it, the collection exists as before, or it has no entry and the next node that writes its sessions has it created, which takes over what is left of it on
// shards (createSessions, adopt). Its documents are written again by those who use the sessions. The critical sections, which keep out those who know the former entry, end with the primary that holds them.
//
// Hazard: a message to a slow shard arrives when the client has given up, and the collection has been created again. It would drop the shard's part of the new one. It is refused, as its section has ended.
//
// Hazard: with the entry removed last, a drop that was interrupted left an entry of a collection that shards did not have, and no session of their ranges could be stored any more.
func (m *Manager) dropCollection(ctx context.Context, ns string, expected *[16]byte) error {
	unlock, err := m.ddl.lock(ctx, ns)
	if err != nil {
		return err
	}
	defer unlock()
	_, e, err := m.entry(ctx, ns)
	if err != nil || e == nil { // dropped in the meantime
		return err
	}
	if err := checkUUID(ns, e.UUID, expected); err != nil {
		return err
	}
	ids, err := m.shardIDs(ctx)
	if err == nil {
		err = m.registry.Complete()
	}
	if err != nil {
		return err
	}
	section, unblock, err := m.block(ctx, "drop", ids, ns)
	if err != nil {
		return err
	}
	defer unblock()
	reporter, err := m.eventShard(ctx, ns)
	if err != nil {
		return err
	}
	if err := m.forget(ctx, ns, e.UUID, forgotten{}); err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := m.onShard(ctx, id, &msg.DropCollectionParticipant{NS: ns, FromMigrate: id != reporter, Section: &section}); err != nil {
			return err
		}
	}
	m.refreshShards(ctx, ns, ids)
	m.log(ctx, "dropCollection", ns, doc())
	return nil
}

// forgotten describes what remains of a collection that is removed from the catalog.
type forgotten struct {
	goesOn     bool // it continues to exist without an entry, and is sampled as before
	keepsZones bool // so does its name
}

// forget removes a collection from the catalog: its entry, its zones and its chunks together. Chunks beyond those that fit in a
// unit of work are deleted afterwards; without the entry they are not read.
func (m *Manager) forget(ctx context.Context, ns string, uuid [16]byte, left forgotten) error {
	w := &catalogWrites{m: m, placed: []placing{{nss: ns, uuid: uuid}}}
	if !left.goesOn {
		if err := w.stopSampling(ctx, ns, uuid); err != nil {
			return err
		}
	}
	if !left.keepsZones {
		if err := w.dropZones(ctx, ns); err != nil {
			return err
		}
		if series, ok := timeseries.SeriesOf(ns); ok { // its zones have either name, as those of a series without an entry
			if err := w.dropZones(ctx, series); err != nil {
				return err
			}
		}
	}
	w.entries.Delete = append(w.entries.Delete, str(ns))
	return w.commitWithout(ctx, uuid)
}

// chunksTogether limits the number of chunks that are deleted in one unit of work with the entry of their collection.
const chunksTogether = 1000

// commitWithout commits, and deletes the chunks of a collection that has no entry any more.
func (w *catalogWrites) commitWithout(ctx context.Context, uuid [16]byte) error {
	m := w.m
	docs, err := cluster.Find{
		NS: "config.chunks", Filter: value.Doc(fld("uuid", value.NewBinary(4, uuid[:]))), Projection: cluster.ByID(), Limit: chunksTogether + 1,
	}.All(ctx, m.local)
	if err != nil {
		return err
	}
	if len(docs) > chunksTogether {
		if err := w.commit(ctx); err != nil {
			return err
		}
		return m.removeChunks(ctx, uuid)
	}
	for _, d := range docs {
		w.chunks = append(w.chunks, value.Lookup(d, "_id").Clone())
	}
	return w.commit(ctx)
}

func (m *Manager) removeChunks(ctx context.Context, uuid [16]byte) error {
	return m.remove(ctx, "chunks", doc(fld("uuid", value.NewBinary(4, uuid[:]))))
}

// catalogWrites are atomic changes of collections' entries and zones.
type catalogWrites struct {
	m              *Manager
	entries, zones msg.Changes
	chunks         []value.Value // the _ids of those that are deleted
	analyzers      []value.Value // likewise of the configurations of sampling
	placed         []placing
}

// dropZones removes a namespace's zones.
func (w *catalogWrites) dropZones(ctx context.Context, ns string) error {
	docs, err := w.m.findOnly(ctx, "tags", doc(fld("ns", str(ns))))
	for _, d := range docs {
		w.zones.Delete = append(w.zones.Delete, value.Lookup(d, "_id").Clone())
	}
	return err
}

// moveZones transfers a namespace's zones to another namespace.
func (w *catalogWrites) moveZones(ctx context.Context, from, to string) error {
	docs, err := w.m.find(ctx, "tags", doc(fld("ns", str(from))))
	for _, d := range docs {
		w.zones.Put = append(w.zones.Put, value.Doc(withField(d, "ns", str(to))...))
	}
	return err
}

func (w *catalogWrites) commit(ctx context.Context) error {
	return w.m.writePlaced(ctx, &msg.WriteTogether{NS: "config.collections", Changes: w.entries, AlsoNS: "config.tags", Also: w.zones, Chunks: w.chunks, Analyzers: w.analyzers}, w.placed...)
}

// withField returns a document with one field's value replaced, or added.
func withField(d []byte, name string, v value.Value) (out []value.Field) {
	there := false
	for k, old := range value.Elements(d) {
		if k == name {
			old, there = v, true
		}
		out = append(out, fld(k, old))
	}
	if !there {
		out = append(out, fld(name, v))
	}
	return out
}

// eventShard returns the shard whose oplog entry reports an event on all shards to change streams: the primary shard of
// its database, which has each of its collections. The other shards' entries are marked as a migration's, which streams
// skip.
func (m *Manager) eventShard(ctx context.Context, ns string) (string, error) {
	db, _ := cluster.SplitNS(ns)
	info, err := m.database(ctx, db)
	if err != nil {
		return "", err
	}
	return info.Primary, nil
}
