package migration

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// shardSpecs are the commands that the config server's DDL sends to shards.
func (m *Manager) shardSpecs() []command.Spec {
	return []command.Spec{
		{
			Name: "_shardsvrCreateCollectionParticipant", Roles: command.Shard, Internal: true, ArgTypes: command.TString, Lenient: true, WriteConcern: true,
			Fields: []command.Field{command.Req("uuid", command.TOther), command.Opt("options", command.TObject), command.Opt("indexes", command.TArray)},
			Run:    m.runCreateParticipant,
		},
		{
			Name: "_shardsvrParticipantBlock", Roles: command.Shard, AdminOnly: true, Internal: true, ArgTypes: command.TString, Lenient: true,
			Fields: []command.Field{command.Req("blockType", command.TString), command.Opt("reason", command.TObject), command.Req("id", command.TOther)},
			Run:    m.runParticipantBlock,
		},
		{
			Name: "_shardsvrRenameCollectionParticipant", Roles: command.Shard, AdminOnly: true, Internal: true, ArgTypes: command.TString, Lenient: true, WriteConcern: true,
			Fields: []command.Field{command.Req("to", command.TString), command.Req("sourceUUID", command.TOther)},
			Run:    m.runRenameParticipant,
		},
	}
}

// runCreateParticipant makes a collection, with its UUID and indexes, as another shard has it. It may be repeated.
func (m *Manager) runCreateParticipant(op *command.Op, dst []byte) ([]byte, error) {
	ns := op.Req.Cmd.Str()
	uuid, ok := catalog.UUIDFrom(op.Arg("uuid"))
	if !ok {
		return dst, mongoerr.New(mongoerr.InvalidUUID, "uuid is no UUID")
	}
	unlock, err := m.Locks.Collection(op, ns, lock.X)
	if err != nil {
		return dst, err
	}
	defer unlock()
	return dst, m.Docs.WriteWith(op, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c := s.Catalog().Lookup(ns)
		if c != nil && c.UUID != uuid {
			// What an interrupted drop left behind: this shard is not the database's primary, and no entry of the
			// catalog names it.
			if err := u.DropCollection(c); err != nil {
				return err
			}
			c = nil
		}
		var err error
		if c == nil {
			if c, err = u.CreateCollection(storage.CollectionSpec{NS: ns, UUID: uuid, Options: append([]byte(nil), op.Req.Doc("options")...)}); err != nil {
				return err
			}
		}
		var specs [][]byte
		for _, v := range value.Values(op.Req.Doc("indexes")) {
			if name := value.Lookup(v.Doc(), "name").Str(); c.Index(name) == nil && name != "_id_" {
				specs = append(specs, append([]byte(nil), v.Doc()...))
			}
		}
		if len(specs) == 0 {
			return nil
		}
		if c.Counters.Records.Load() > 0 {
			return missingIndexes(len(specs))
		}
		_, err = u.CreateIndexes(c, specs)
		return err
	})
}

// missingIndexes refuses to receive documents of a collection whose indexes failed to build on this shard.
func missingIndexes(n int) error {
	return mongoerr.Newf(mongoerr.CannotCreateIndex, "aborting, shard is missing %d indexes and collection is not empty", n)
}

// runParticipantBlock begins or ends a critical section that the config server asks for around a DDL.
func (m *Manager) runParticipantBlock(op *command.Op, dst []byte) ([]byte, error) {
	ns := op.Req.Cmd.Str()
	why := value.Lookup(op.Req.Doc("reason"), "command").Str()
	id, ok := catalog.UUIDFrom(op.Arg("id"))
	if !ok {
		return dst, mongoerr.New(mongoerr.InvalidUUID, "id is no UUID")
	}
	switch kind := op.Req.Str("blockType"); kind {
	case "Unblock":
		m.state.forget(ns)
		m.state.EndDDL(ns, id)
	case "Writes", "ReadsAndWrites":
		take := m.Locks.Collection
		if catalog.CollOf(ns) == "" {
			take = m.Locks.Database
		}
		unlock, err := take(op, ns, lock.X)
		if err != nil {
			return dst, err
		}
		defer unlock()
		return dst, m.state.EnterDDL(ns, why, id, kind == "ReadsAndWrites")
	default:
		return dst, mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field 'blockType' is not a valid value.", kind)
	}
	return dst, nil
}

// runRenameParticipant renames what this shard has of a collection, and drops the target's part. It may be repeated: what has
// the source's UUID under the new name was renamed before.
func (m *Manager) runRenameParticipant(op *command.Op, dst []byte) ([]byte, error) {
	from, to := op.Req.Cmd.Str(), op.Req.Str("to")
	uuid, ok := catalog.UUIDFrom(op.Arg("sourceUUID"))
	if !ok {
		return dst, mongoerr.New(mongoerr.InvalidUUID, "sourceUUID is no UUID")
	}
	l := m.Locks.NewLocker()
	defer l.UnlockAll()
	if err := l.LockCollections(op, lock.X, from, to); err != nil {
		return dst, err
	}
	return dst, m.Docs.WriteWith(op, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c, target := s.Catalog().Lookup(from), s.Catalog().Lookup(to)
		if target != nil && target.UUID == uuid {
			return nil
		}
		if target != nil {
			m.node.Forget(u, target)
		}
		if c != nil && c.UUID == uuid {
			_, err := u.RenameCollection(c, to, target, false)
			return err
		}
		if target != nil {
			return u.DropCollection(target)
		}
		return nil
	})
}
