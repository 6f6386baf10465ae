package migration

import (
	"bytes"
	"context"
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// shardSpecs returns the commands that the config server's DDL sends to shards.
func (m *Manager) shardSpecs() []command.Spec {
	create, block, rename := command.Internal(m.runCreateParticipant), command.Internal(m.runParticipantBlock), command.Internal(m.runRenameParticipant)
	store, forget, adopt := command.Internal(m.runMovePrimaryStore), command.Internal(m.runMovePrimaryForget), command.Internal(m.runAdoptSessions)
	specs := []command.Spec{create, block, rename, command.Internal(m.runNotifyShardingEvent), store, forget, adopt}
	for i := range specs {
		specs[i].WriteConcern = true
	}
	specs = append(specs, command.Internal(m.runEndLeftSections), command.Internal(m.runValidateShardKey))
	for i := range specs {
		specs[i].Roles, specs[i].PrimaryOnly = command.Shard, true
	}
	return specs
}

// certain calls try, which returns true if it has changed something, and, if there was nothing to change, once more after making sure that this node is the primary.
//
// Hazard: one that was deposed and has not learned of it may lack what the message is about. Its sender, which still takes it for the primary, would believe that its part was done: a section would
// remain on its successor, whose run has ended.
func (m *Manager) certain(ctx context.Context, try func() (did bool, err error)) error {
	did, err := try()
	if err != nil || did {
		return err
	}
	if err := m.Linearize(ctx); err != nil {
		return err
	}
	_, err = try()
	return err
}

// runCreateParticipant makes a collection, with its UUID and indexes, as another shard has it. It may be repeated.
//
// Every migration to this shard begins with it, usually with nothing left to make. It checks that first, while writers continue: an exclusive
// lock waits for the longest transaction that has written here, and all other writers wait behind it.
func (m *Manager) runCreateParticipant(op *command.Op, req *msg.CreateCollectionParticipant, dst []byte) ([]byte, error) {
	if req.Section == nil && m.complete(req.UUID, req.NS, req.Options, req.Indexes) {
		if err := m.Linearize(op); err != nil {
			return dst, err
		}
		if m.complete(req.UUID, req.NS, req.Options, req.Indexes) {
			return dst, m.Docs.WriteWith(op, replication.Durable, func(*storage.Snapshot, *storage.UnitOfWork) error { return nil })
		}
	}
	// Within a section, too: that of a movePrimary does not concern sharded collections, which alone have orphans.
	if err := m.deleteOrphans(op, req.UUID); err != nil {
		return dst, err
	}
	kept, err := m.createPart(op, req)
	if err == nil && kept {
		err = m.Linearize(op)
	}
	return dst, err
}

// createPart makes a collection for a participant. It returns true if this shard owns chunks of it, so that what is here stays: the caller has to make sure, without the lock that writers wait for, that this
// node is the primary.
func (m *Manager) createPart(op *command.Op, req *msg.CreateCollectionParticipant) (kept bool, err error) {
	if req.Section == nil {
		m.state.endLeft(op, req.NS)
	}
	unlock, err := m.Locks.Collection(op, req.NS, lock.X)
	if err != nil {
		return false, err
	}
	defer unlock()
	options := value.Doc()
	if req.Options != nil {
		options = bytes.Clone(req.Options)
	}
	create := func(s *storage.Snapshot, u *storage.UnitOfWork, owns bool) error {
		u.SetFromMigrate() // change streams get the event from the shard that had the collection before
		c := s.Catalog().Lookup(req.NS)
		if c != nil && c.UUID != req.UUID {
			// Left behind by an interrupted drop: this shard is not the database's primary, and the sharding
			// catalog has no entry for the collection.
			if err := u.DropCollection(c); err != nil {
				return err
			}
			c = nil
		}
		var err error
		if c == nil {
			if c, err = u.CreateCollection(storage.CollectionSpec{NS: req.NS, UUID: req.UUID, Options: options}); err != nil {
				return err
			}
		}
		return m.matchDefinition(u, c, options, req.Indexes, owns)
	}
	if req.Section == nil {
		return false, m.makeCopy(op, req.NS, req.UUID, create)
	}
	if err := m.state.HoldsSection(op, req.NS, *req.Section); err != nil {
		return false, err
	}
	// The primary shard of a database that moves may own nothing of the collection. What an owner has stays: it has had each collMod, and all commands about indexes.
	if c := m.Engine.Catalog().Lookup(req.NS); c != nil && c.UUID == req.UUID {
		owns, err := m.state.owns(op, req.UUID)
		if err != nil {
			return false, err
		}
		if owns {
			return true, nil
		}
	}
	return false, m.Docs.WriteWith(op, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		return create(s, u, false) // chunks are assigned after this
	})
}

// makeCopy creates a collection, or indexes of it, for a migration or a resharding. The collection must be locked exclusively.
//
// Hazard: a resharding forbids migrations of the collection, and then looks for copies on shards that take no part in it, which its commit drops; they have no
// critical section before that. A copy that is created after the look, because this shard has read the entry before migrations were forbidden, would stay under
// the former UUID.
//
// Invariant: either the resharding finds the copy, or the copy is dropped here: the entry is read again once the copy is visible. A request for the list that
// does not show it yet has brought the config time of the prohibition, which that read waits for.
//
// create is told whether this shard owns chunks of the collection.
func (m *Manager) makeCopy(ctx context.Context, ns string, uuid catalog.UUID, create func(s *storage.Snapshot, u *storage.UnitOfWork, owns bool) error) error {
	if err := m.state.admitsCopy(ctx, ns, uuid); err != nil {
		return err
	}
	before, owns := m.Engine.Catalog().Lookup(ns), false
	if before != nil && before.UUID == uuid {
		var err error
		if owns, err = m.state.owns(ctx, uuid); err != nil {
			return err
		}
	}
	err := m.Docs.WriteWith(ctx, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error { return create(s, u, owns) })
	if before != nil && before.UUID == uuid {
		return err
	}
	if err == nil {
		err = m.state.admitsCopy(ctx, ns, uuid)
	}
	if err != nil { // a unit whose wait has failed may be visible all the same
		if err := m.dropEmpty(context.WithoutCancel(ctx), ns, uuid); err != nil {
			m.node.Warn("A collection that was created for a migration which may not begin is left behind", err)
		}
	}
	return err
}

// admitsCopy returns an error unless this shard may create a collection, or indexes of it, for a migration or a resharding, which hold none of its critical
// sections. The collection must be locked exclusively.
//
// Hazard: the sender has read the collection's definition before, and the collection may have been dropped or renamed since. The collection would come back under
// its old name, empty, and on the primary shard of its database for everyone to see.
//
// Invariant: a collection that is created has its entry in the catalog at that time, and a drop or rename of it has yet to block it here, and then finds it. If one
// blocks the name now, the creation is refused; if one did before, the message that ended the block carried a config time by which the entry is gone.
func (s *ShardState) admitsCopy(ctx context.Context, ns string, uuid catalog.UUID) error {
	if cluster.FixedDatabase(catalog.DBOf(ns)) {
		return nil // the collection of sessions gets its entry after its copies, and is dropped by the config server
	}
	held := s.ddlSections()
	c := held[ns]
	if of := held[catalog.DBOf(ns)]; c == nil && of != nil && of.all { // the section of a movePrimary does not concern sharded collections
		c = of
	}
	if c != nil {
		return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "%s is in a critical section: %s", ns, c.why)
	}
	docs, err := cluster.FindConfig(ctx, s.Registry.Config(), cluster.Find{NS: "config.collections", Filter: value.Doc(value.F("_id", value.NewString(ns)))}.Doc())
	if err != nil {
		return err
	}
	if len(docs) == 1 {
		if have, ok := catalog.UUIDFrom(value.Lookup(docs[0], "uuid")); ok && have == uuid {
			return mayMove(ns, docs[0])
		}
	}
	return mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s was dropped, or is another one now", ns)
}

// mayMove returns an error if an operation forbids migrations of a collection, which cannot commit then. The temporary collection of a resharding, of which nothing
// is ever migrated, is created on its recipients in spite of that.
func mayMove(ns string, entry []byte) error {
	permit := value.Lookup(entry, "permitMigrations")
	if permit.IsMissing() || permit.Truthy() || strings.HasPrefix(catalog.CollOf(ns), "system.resharding.") {
		return nil
	}
	return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "Collection %s is undergoing changes and chunks cannot be moved", ns)
}

// complete reports whether a collection is here already, with exactly these options and indexes.
func (m *Manager) complete(uuid catalog.UUID, ns string, options []byte, indexes [][]byte) bool {
	s := m.Docs.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(ns)
	if c == nil || c.UUID != uuid || !sameOptions(c.Options, options) {
		return false
	}
	missing, other := compareIndexes(c, indexes)
	return len(missing)+len(other) == 0
}

// compareIndexes returns those of the indexes, as listIndexes shows them, that a collection does not have, and the names of those that only it has. An index of the
// same name with another definition, in whose fields the order does not count (a collMod appends), is both. A clustered one is the collection itself.
func compareIndexes(c *catalog.Collection, indexes [][]byte) (missing [][]byte, other []string) {
	same := map[string]bool{}
	for _, spec := range indexes {
		name := value.Lookup(spec, "name").Str()
		if name == "_id_" || value.Lookup(spec, "clustered").Truthy() {
			continue
		}
		if i := c.Index(name); i != nil && (!i.Ready || value.SameFields(i.Spec.Raw, spec)) {
			same[name] = true
			continue
		}
		missing = append(missing, bytes.Clone(spec))
	}
	for _, i := range c.Indexes {
		if i.Ready && !i.IsID && !same[i.Name] {
			other = append(other, i.Name)
		}
	}
	return missing, other
}

// sameOptions compares the options of a collection on two shards; a collMod may have changed them in another order.
func sameOptions(a, b []byte) bool {
	return catalog.SameOptions(a, b) || a != nil && b != nil && value.SameFields(a, b)
}

// matchDefinition gives a collection the options and indexes that another shard has, as listCollections and listIndexes show them there. The collection must be locked
// exclusively.
//
// A shard that owns nothing of a collection is not asked to change its options, either. Those of an owner stay: it has had each collMod.
func (m *Manager) matchDefinition(u *storage.UnitOfWork, c *catalog.Collection, options []byte, indexes [][]byte, owns bool) error {
	if !owns && !sameOptions(c.Options, options) {
		var err error
		if c, err = u.SetCollectionOptions(c, options, nil, nil); err != nil { // no entry: it is no change of the collection, of which change streams tell
			return err
		}
		m.node.Forget(u, c)
	}
	return m.matchIndexes(u, c, indexes, owns)
}

// matchIndexes gives a collection the indexes that another shard has. The collection must be locked exclusively.
//
// A shard that owns nothing of a collection is not asked to drop an index of it, and keeps one on its empty copy. Without documents, of chunks or left by them, such
// indexes are dropped: no chunk could come here otherwise, as the donor finds other indexes than its own. On a shard with documents they stay, and the migration
// fails by them: there they are an inconsistency that a migration does not decide.
//
// Hazard: the list is older than a createIndexes that has run since, and this shard owns chunks, all of them empty. It would lose the index that all owners must
// have. Only a shard that owns nothing drops indexes (owns), and a migration that makes it an owner meanwhile compares them before it commits.
func (m *Manager) matchIndexes(u *storage.UnitOfWork, c *catalog.Collection, indexes [][]byte, owns bool) error {
	missing, other := compareIndexes(c, indexes)
	empty := c.Counters.Records.Load() == 0
	if len(other) > 0 && empty && !owns {
		var err error
		if c, err = u.DropIndexes(c, other); err != nil {
			return err
		}
		missing, _ = compareIndexes(c, indexes)
	}
	if len(missing) == 0 {
		return nil
	}
	if !empty {
		return missingIndexes(len(missing))
	}
	_, err := u.CreateIndexes(c, missing)
	return err
}

// owns asks the config server whether this shard has chunks of a collection.
func (s *ShardState) owns(ctx context.Context, uuid catalog.UUID) (bool, error) {
	docs, err := cluster.FindConfig(ctx, s.Registry.Config(), cluster.Find{NS: "config.chunks", Limit: 1,
		Filter: value.Doc(value.F("uuid", uuid.Value()), value.F("shard", value.NewString(s.ID)))}.Doc())
	return len(docs) > 0, err
}

// deleteOrphans deletes what earlier migrations have left of a collection that lacks indexes here, whether that is due or not: indexes can be
// created only if the collection is empty then.
func (m *Manager) deleteOrphans(op *command.Op, uuid catalog.UUID) error {
	if c := m.Engine.Catalog().LookupUUID(uuid); c == nil || c.Counters.Records.Load() == 0 || m.paused() != nil {
		return nil
	}
	return m.rangeDeletions().Each(func(d *rangeDeletion) error {
		if d.uuid != uuid || d.pending {
			return nil
		}
		return m.deleteRange(op, d.id)
	})
}

// missingIndexes refuses to receive documents of a collection whose indexes failed to build on this shard.
func missingIndexes(n int) error {
	return mongoerr.Newf(mongoerr.CannotCreateIndex, "aborting, shard is missing %d indexes and collection is not empty", n)
}

// runRenameParticipant renames this shard's part of a collection, and drops its part of the target. It may be repeated: a
// collection that has the source's UUID under the new name was renamed before.
func (m *Manager) runRenameParticipant(op *command.Op, req *msg.RenameCollectionParticipant, dst []byte) ([]byte, error) {
	from, to, uuid := req.NS, req.To, catalog.UUID(req.UUID)
	l := m.Locks.NewLocker()
	defer l.UnlockAll()
	if err := l.LockCollections(op, lock.X, from, to); err != nil {
		return dst, err
	}
	for _, ns := range []string{from, to} {
		if err := m.state.HoldsSection(op, ns, req.Section); err != nil {
			return dst, err
		}
	}
	return dst, m.Docs.WriteWith(op, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		if req.FromMigrate {
			u.SetFromMigrate()
		}
		c, target := s.Catalog().Lookup(from), s.Catalog().Lookup(to)
		if target != nil && target.UUID == uuid {
			return nil
		}
		if target != nil {
			m.node.Forget(u, target)
			if req.ForGood {
				if err := NoteDropped(s, u, target); err != nil {
					return err
				}
			}
		}
		if c != nil && c.UUID == uuid {
			_, err := u.RenameCollection(c, to, target, req.StayTemp)
			return err
		}
		if target != nil {
			return u.DropCollection(target)
		}
		return nil
	})
}

// runNotifyShardingEvent logs the event of a resharding in the oplog. It may be repeated: the document of the resharding's critical section has, from the same
// unit of work on, that the event was logged. The section ends when the event is known to be logged, so that a message without one is late.
func (m *Manager) runNotifyShardingEvent(op *command.Op, req *msg.NotifyShardingEvent, dst []byte) ([]byte, error) {
	docs := sectionDocs(m.Docs)
	return dst, m.certain(op, func() (logs bool, err error) {
		err = m.Docs.WriteWith(op, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			d, ok, err := docs.GetIn(s, value.NewString(req.NS))
			if logs = err == nil && ok && d.id == catalog.UUID(req.UUID) && !d.noted; !logs {
				return err
			}
			logEvent(u, req.NS, req.UUID, req.Event)
			d.noted = true
			return docs.PutIn(s, u, d)
		})
		return logs, err
	})
}

// noteEvent writes an entry without effect whose o2 is the event.
func (m *Manager) noteEvent(ctx context.Context, ns string, uuid catalog.UUID, event []byte) error {
	return m.Docs.WriteWith(ctx, replication.Durable, func(_ *storage.Snapshot, u *storage.UnitOfWork) error {
		logEvent(u, ns, uuid, event)
		return nil
	})
}

// logEvent stages an entry without effect whose o2 is the event.
func logEvent(u *storage.UnitOfWork, ns string, uuid catalog.UUID, event []byte) {
	u.Oplog(storage.OplogEntry{Op: 'n', NS: ns, UUID: uuid, StmtID: -1, O2: bytes.Clone(event),
		O: value.Doc(value.F("msg", value.NewDocument(bytes.Clone(event))))})
}
