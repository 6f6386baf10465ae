package configsvr

import (
	"context"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// This file implements the changes of the catalog that DDL coordinators on shards request. Each request may be repeated, even
// after its operation has ended: it identifies the collection by its UUID, and has no effect if that no longer exists.

func (m *Manager) runRemoveCollection(op *command.Op, req *msg.RemoveCollection, dst []byte) ([]byte, error) {
	unlock, err := m.ddl.lock(op, req.NS)
	if err != nil {
		return dst, err
	}
	defer unlock()
	if err := m.stillWanted(op, req.NS, req.Run, !req.Undo); err != nil {
		return dst, err
	}
	if err := m.removeCollection(op, req); err != nil || !req.Zones {
		return dst, err
	}
	return dst, m.removeZones(op, doc(fld("ns", doc(fld("$in", arr(str(req.NS), str(timeseries.BucketsOf(req.NS))))))))
}

// removeZones removes zones of collections that have no entry. Those with an entry lose them with it when they are dropped.
func (m *Manager) removeZones(ctx context.Context, filter value.Value) error {
	unlock, err := m.lockTables(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return m.remove(ctx, "tags", filter)
}

// removeCollection removes a collection from the catalog; with Untrack the collection itself continues to exist. The name's DDL lock must be held.
//
// Only a drop removes its zones, too. They may be set for any namespace, in advance of its sharding: those of a collection that is not tracked any more, and those of
// one that could not be sharded, are for the next time.
func (m *Manager) removeCollection(ctx context.Context, req *msg.RemoveCollection) error {
	ns, uuid, untrack := req.NS, req.UUID, req.Untrack
	unlock, err := m.lockTables(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	_, e, err := m.entry(ctx, ns)
	if err != nil {
		return err
	}
	if e == nil || e.UUID != uuid {
		if err := m.removeChunks(ctx, uuid); err != nil || untrack { // an earlier attempt may have ended before this
			return err
		}
		return m.stopSampling(ctx, ns, uuid)
	}
	if err := m.forget(ctx, ns, uuid, forgotten{goesOn: untrack, keepsZones: untrack || req.Undo}); err != nil {
		return err
	}
	what := "dropCollection"
	if untrack {
		what = "untrackCollection"
	}
	m.log(ctx, what, ns, doc())
	return nil
}

// runAllowMigrations sets an administrator's permission for migrations, which is independent of the one that DDL
// operations set and clear.
func (m *Manager) runAllowMigrations(op *command.Op, req *msg.AllowMigrations, dst []byte) ([]byte, error) {
	unlock, err := m.ddl.lock(op, req.NS)
	if err != nil {
		return dst, err
	}
	defer unlock()
	free, err := m.lockTable(op, req.NS)
	if err != nil {
		return dst, err
	}
	defer free()
	raw, e, err := m.entry(op, req.NS)
	if err == nil && (e == nil || e.Unsplittable) {
		err = mongoerr.Newf(mongoerr.NamespaceNotSharded, "Collection %s is not sharded", req.NS)
	}
	if err == nil {
		err = m.setPermission(op, raw, e, "allowMigrations", req.Allow)
	}
	if err == nil {
		m.log(op, "setAllowMigrations", req.NS, doc(fld("allowMigrations", value.NewBool(req.Allow))))
	}
	return dst, err
}

func (m *Manager) runSetAllowMigrations(op *command.Op, req *msg.SetAllowMigrations, dst []byte) ([]byte, error) {
	return dst, m.setAllowMigrations(op, req)
}

// setAllowMigrations prevents migrations of a collection from beginning and committing, or allows them again.
func (m *Manager) setAllowMigrations(ctx context.Context, req *msg.SetAllowMigrations) error {
	unlock, err := m.ddl.lock(ctx, req.NS)
	if err != nil {
		return err
	}
	defer unlock()
	if err := m.stillWanted(ctx, req.NS, &req.Run, !req.Allow); err != nil {
		if req.Allow && mongoerr.CodeOf(err) == mongoerr.StaleEpoch {
			return nil // it has allowed them before it ended, and another operation may have forbidden them since
		}
		return err
	}
	if req.TimeSeries != nil {
		set := doc(fld("$set", doc(fld("timeseriesFields", value.NewDocument(req.TimeSeries)))))
		if _, err := m.update(ctx, "collections", doc(fld("_id", str(req.NS)), fld("uuid", value.NewBinary(4, req.UUID[:]))), set, false); err != nil {
			return err
		}
	}
	return m.permitMigrations(ctx, req.NS, req.UUID, req.Allow)
}

// permitMigrations allows or forbids migrations of a collection's chunks.
func (m *Manager) permitMigrations(ctx context.Context, ns string, uuid [16]byte, allow bool) error {
	unlock, err := m.lockTable(ctx, ns)
	if err != nil {
		return err
	}
	defer unlock()
	raw, e, err := m.entry(ctx, ns)
	if err != nil || e == nil || e.UUID != uuid {
		return err
	}
	return m.setPermission(ctx, raw, e, "permitMigrations", allow)
}

// setPermission sets a field of a collection's entry that allows its migrations, or forbids them, and with it, atomically, gives a chunk the next minor version, by which nodes that
// compare versions notice that the entry has changed. The lock of the collection's table must be held.
func (m *Manager) setPermission(ctx context.Context, raw []byte, e *cluster.CollectionEntry, field string, allow bool) error {
	w := &msg.WriteTogether{NS: "config.collections", Changes: msg.Changes{Put: [][]byte{value.Doc(permitted(raw, field, allow)...)}}, AlsoNS: "config.chunks"}
	if was := value.Lookup(raw, field); (was.IsMissing() || was.Truthy()) == allow {
		return m.writePlaced(ctx, w) // an earlier attempt may not be durable yet
	}
	newest, err := m.first(ctx, 1, "chunks", doc(fld("uuid", value.NewBinary(4, e.UUID[:]))), fld("lastmod", value.NewInt32(-1)))
	if err != nil {
		return err
	}
	for _, c := range newest { // none while the collection is being created
		v := e.Generation.WithCombined(value.Lookup(c, "lastmod").TimestampU64()).IncMinor()
		w.Also.Put = append(w.Also.Put, value.Doc(withField(c, "lastmod", lastmod(v).Val)...))
	}
	return m.writePlaced(ctx, w)
}

// permitted returns the fields of a collection's entry with one that allows migrations, or forbids them. Allowed is what has no such field.
func permitted(raw []byte, field string, allow bool) (out []value.Field) {
	if !allow {
		return withField(raw, field, value.NewBool(false))
	}
	for k, v := range value.Elements(raw) {
		if k != field {
			out = append(out, fld(k, v))
		}
	}
	return out
}

// askWait is the time limit for a coordinator to reply whether its run still requests the change of the catalog.
const askWait = 5 * time.Second

// stillWanted returns an error for a late message of a run that has ended, has left the phase that the message is of, or, with forward, is being undone. name is the collection's or the database's. The caller holds the name's DDL lock
// until it returns, and an undo begins with a message that takes the lock, so that a change made after a positive reply precedes
// its reversal. A message without a run is not late.
func (m *Manager) stillWanted(ctx context.Context, name string, run *msg.RunOf, forward bool) error {
	if run == nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	reply, err := m.onShard(bounded, run.Coordinator, &msg.HoldsCriticalSection{ID: run.ID, Forward: forward, Phase: run.Phase})
	var answer msg.HoldsCriticalSectionReply
	if err == nil {
		err = msg.Parse(reply, &answer)
	}
	if err == nil && !answer.Held {
		err = mongoerr.Newf(mongoerr.StaleEpoch, "the operation on %s has ended", name)
	}
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		err = mongoerr.Newf(mongoerr.HostUnreachable, "shard %s does not answer", run.Coordinator)
	}
	return err
}

// errFrozen returns the error of a migration of a collection on which a DDL is running.
func errFrozen(ns string) error {
	return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "Collection %s is undergoing changes and chunks cannot be moved", ns)
}

func (m *Manager) runRemoveDatabase(op *command.Op, req *msg.RemoveDatabase, dst []byte) ([]byte, error) {
	unlock, err := m.lockDatabase(op, req.DB)
	if err != nil {
		return dst, err
	}
	defer unlock()
	have, err := m.database(op, req.DB)
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound || err == nil && have.Version.UUID != req.Version {
		return dst, nil
	}
	if err == nil {
		err = m.removeDatabase(op, req.DB)
	}
	if err == nil {
		m.log(op, "dropDatabase", req.DB, doc())
	}
	return dst, err
}

// removeDatabase removes a database from the catalog, with the zones of its collections that have no entry.
func (m *Manager) removeDatabase(ctx context.Context, db string) error {
	unlock, err := m.lockTables(ctx) // so that no zone is changed meanwhile
	if err != nil {
		return err
	}
	defer unlock()
	sampled, err := m.analyzersIn(ctx, db)
	if err != nil {
		return err
	}
	w := &msg.WriteTogether{NS: "config.databases", Changes: msg.Changes{Delete: []value.Value{str(db)}}, AlsoNS: "config.tags", Analyzers: sampled}
	zones, err := m.findOnly(ctx, "tags", doc(fld("ns", doc(fld("$gt", str(db+".")), fld("$lt", str(db+"/"))))))
	if err != nil {
		return err
	}
	for _, d := range zones {
		w.Also.Delete = append(w.Also.Delete, value.Lookup(d, "_id").Clone())
	}
	return m.writePlaced(ctx, w, placing{nss: db})
}

// runRenameMetadata renames a collection in the catalog. A message that arrives after its run has ended would rename it once more if it has its old
// name again: the shards would have it under one name, and the catalog under the other.
func (m *Manager) runRenameMetadata(op *command.Op, req *msg.RenameMetadata, dst []byte) ([]byte, error) {
	for _, ns := range slices.Compact(slices.Sorted(slices.Values([]string{req.NS, req.To}))) { // the way back has the same names
		unlock, err := m.ddl.lock(op, ns)
		if err != nil {
			return dst, err
		}
		defer unlock()
	}
	if err := m.stillWanted(op, req.NS, req.Run, true); err != nil {
		return dst, err
	}
	free, err := m.lockTables(op)
	if err != nil {
		return dst, err
	}
	defer free()
	if err := m.renameMetadata(op, req); err != nil {
		return dst, err
	}
	m.log(op, "renameCollection", req.NS, doc(fld("to", str(req.To))))
	return dst, nil
}

// renameMetadata renames a collection's entry and zones, replacing the target's, and deletes the target's chunks, atomically.
func (m *Manager) renameMetadata(ctx context.Context, req *msg.RenameMetadata) error {
	w := &catalogWrites{m: m}
	if req.Sharded {
		raw, e, err := m.entry(ctx, req.NS)
		if err != nil {
			return err
		}
		if e != nil && e.UUID == req.UUID {
			w.entries = msg.Changes{Delete: []value.Value{str(req.NS)}, Put: [][]byte{m.renamedEntry(raw, req.To)}}
			if err := w.dropZones(ctx, req.To); err != nil {
				return err
			}
			if err := w.moveZones(ctx, req.NS, req.To); err != nil {
				return err
			}
			on, err := m.ownersOf(ctx, req.NS)
			if err != nil {
				return err
			}
			w.placed = []placing{{nss: req.NS, uuid: req.UUID}, {nss: req.To, uuid: req.UUID, shards: on}}
			if err := w.stopSampling(ctx, req.NS, req.UUID); err != nil {
				return err
			}
			if req.Target == nil {
				return w.commit(ctx)
			}
			if err := w.stopSampling(ctx, req.To, *req.Target); err != nil {
				return err
			}
			return w.commitWithout(ctx, *req.Target)
		}
	}
	if err := m.stopSampling(ctx, req.NS, req.UUID); err != nil {
		return err
	}
	if req.Target != nil {
		if err := m.forgetTarget(ctx, req.To, *req.Target); err != nil {
			return err
		}
	}
	return m.renameZones(ctx, req)
}

// forgetTarget removes the target of a rename, whose source has no entry, from the catalog, without its zones: renameZones decides about those.
func (m *Manager) forgetTarget(ctx context.Context, ns string, uuid [16]byte) error {
	if _, e, err := m.entry(ctx, ns); err != nil {
		return err
	} else if e != nil && e.UUID == uuid {
		w := &catalogWrites{m: m, placed: []placing{{nss: ns, uuid: uuid}}, entries: msg.Changes{Delete: []value.Value{str(ns)}}}
		if err := w.stopSampling(ctx, ns, uuid); err != nil {
			return err
		}
		return w.commitWithout(ctx, uuid)
	}
	if err := m.removeChunks(ctx, uuid); err != nil {
		return err
	}
	return m.stopSampling(ctx, ns, uuid)
}

// renameZones gives the target of a rename the zones of a source that has no entry, or removes those of a target that is dropped. What was found when
// the rename began decides: when the message is repeated, the source has no zones any more, and the target those that it got.
func (m *Manager) renameZones(ctx context.Context, req *msg.RenameMetadata) error {
	w := &catalogWrites{m: m}
	if req.MoveZones {
		if err := w.moveZones(ctx, req.NS, req.To); err != nil || len(w.zones.Put) == 0 {
			return err
		}
	}
	if req.MoveZones || req.DropZones {
		if err := w.dropZones(ctx, req.To); err != nil {
			return err
		}
		return w.commit(ctx)
	}
	return nil
}

// renamedEntry returns a collection's entry with another name, and with migrations allowed again.
func (m *Manager) renamedEntry(raw []byte, to string) []byte {
	var out []value.Field
	for _, f := range withField(raw, "_id", str(to)) {
		switch f.Key {
		case "timestamp":
			f.Val = value.NewTimestampU64(m.tick())
		case "permitMigrations":
			continue
		}
		out = append(out, f)
	}
	return value.Doc(out...)
}

// runReplaceUnsplittable gives an unsharded collection another UUID, a new epoch and another chunk.
func (m *Manager) runReplaceUnsplittable(op *command.Op, req *msg.ReplaceUnsplittable, dst []byte) ([]byte, error) {
	unlock, err := m.ddl.lock(op, req.NS)
	if err != nil {
		return dst, err
	}
	defer unlock()
	free, err := m.lockTables(op)
	if err != nil {
		return dst, err
	}
	defer free()
	raw, e, err := m.entry(op, req.NS)
	if err != nil || e == nil || e.UUID != req.UUID {
		return dst, err // an earlier attempt has replaced it
	}
	old, err := m.find(op, "chunks", doc(fld("uuid", value.NewBinary(4, req.UUID[:]))))
	if err != nil {
		return dst, err
	}
	if len(old) != 1 {
		return dst, mongoerr.Newf(mongoerr.InternalError, "collection %s is not sharded, and has %d chunks", req.NS, len(old))
	}
	sampled, err := m.analyzers(op, req.NS, req.UUID)
	if err != nil {
		return dst, err
	}
	gen, on := cluster.ChunkVersion{Major: 1, Epoch: req.NewEpoch, Timestamp: m.tick()}, value.Lookup(old[0], "shard").Str()
	chunk := chunkDoc(cluster.NewObjectID(), req.NewUUID, placed{min: value.LookupDoc(old[0], "min"), max: value.LookupDoc(old[0], "max"), shard: on}, gen,
		[]cluster.Owner{{ValidAfter: gen.Timestamp, Shard: on}})
	var entry []value.Field
	for _, f := range withField(raw, "uuid", value.NewBinary(4, req.NewUUID[:])) {
		switch f.Key {
		case "lastmodEpoch":
			f.Val = value.NewObjectID(gen.Epoch)
		case "lastmod":
			f.Val = value.NewTime(m.now())
		case "timestamp":
			f.Val = value.NewTimestampU64(gen.Timestamp)
		}
		entry = append(entry, f)
	}
	w := &msg.WriteTogether{
		NS: "config.chunks", Changes: msg.Changes{Delete: []value.Value{value.Lookup(old[0], "_id")}, Put: [][]byte{chunk.Doc()}},
		AlsoNS: "config.collections", Also: msg.Changes{Put: [][]byte{value.Doc(entry...)}}, Analyzers: sampled,
	}
	err = m.place(op, []string{on}, func([]*cluster.Shard) error {
		return m.writePlaced(op, w, placing{nss: req.NS, uuid: req.NewUUID, shards: []string{on}})
	})
	if err != nil {
		return dst, err
	}
	m.log(op, "convertToCapped.commit", req.NS, doc())
	return dst, nil
}

// runCommitMovePrimary sets a database's new primary shard, which cannot be removed, nor begin to drain, at the same time. An undo sets it back if a message of
// the run that was sent earlier, and arrived later than the one that was refused, has changed it: reads and writes of the database are still blocked then.
func (m *Manager) runCommitMovePrimary(op *command.Op, req *msg.CommitMovePrimary, dst []byte) ([]byte, error) {
	was, err := cluster.ParseDatabaseVersion(value.NewDocument(req.Version))
	if err != nil {
		return dst, err
	}
	unlock, err := m.lockDatabase(op, req.DB)
	if err != nil {
		return dst, err
	}
	defer unlock()
	if err := m.stillWanted(op, req.DB, req.Run, !req.Undo); err != nil {
		return dst, err
	}
	db, err := m.database(op, req.DB)
	if err != nil {
		return dst, err
	}
	changed := db.Version.UUID == was.UUID && db.Version.LastMod == was.LastMod+1
	switch {
	case req.Undo && (!changed || db.Primary == req.To):
		return dst, nil
	case req.Undo:
		was = db.Version
	case changed && db.Primary == req.To:
		return dst, nil // a repeated commit
	}
	if db.Version != was {
		return dst, mongoerr.Newf(mongoerr.IllegalOperation, "the database %s changed while it was moved", req.DB)
	}
	return dst, m.place(op, []string{req.To}, func(to []*cluster.Shard) error {
		if to[0].Draining && !req.Undo {
			return mongoerr.Newf(mongoerr.IllegalOperation, "Shard %s is currently draining and cannot be the primary of a database", req.To)
		}
		if err := sameEntry(to[0], req.Topology); err != nil {
			return err
		}
		return m.writePrimary(op, db, req.To)
	})
}

// writePrimary writes the next version of a database's entry, with another primary shard.
func (m *Manager) writePrimary(ctx context.Context, db *cluster.DatabaseInfo, to string) error {
	v := cluster.DatabaseVersion{UUID: db.Version.UUID, Timestamp: m.tick(), LastMod: db.Version.LastMod + 1}
	docs, err := m.find(ctx, "databases", doc(fld("_id", str(db.Name)), fld("version", value.NewDocument(db.Version.Doc()))))
	if err == nil && len(docs) == 0 {
		err = mongoerr.Newf(mongoerr.WriteConflict, "the entry of %s changed meanwhile", db.Name)
	}
	if err != nil {
		return err
	}
	entry := value.Doc(withField(value.Doc(withField(docs[0], "primary", str(to))...), "version", value.NewDocument(v.Doc()))...)
	err = m.writePlaced(ctx, &msg.WriteTogether{NS: "config.databases", Changes: msg.Changes{Put: [][]byte{entry}}}, placing{nss: db.Name, shards: []string{to}})
	if err == nil {
		m.log(ctx, "movePrimary.commit", db.Name, doc(fld("from", str(db.Primary)), fld("to", str(to))))
	}
	return err
}
