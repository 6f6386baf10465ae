package shardnode

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Identity is what a shard knows of the cluster it belongs to: the document {_id: "shardIdentity"} of
// admin.system.version.
type Identity struct {
	Shard     string
	ClusterID [12]byte
	ConfigDB  string
}

const identityNS = "admin.system.version"

func parseIdentity(doc []byte) (id Identity, err error) {
	name, cluster, config := value.Lookup(doc, "shardName"), value.Lookup(doc, "clusterId"), value.Lookup(doc, "configsvrConnectionString")
	if name.T != value.String || cluster.T != value.ObjectID || config.T != value.String {
		return id, mongoerr.New(mongoerr.FailedToParse, "a shard identity needs shardName, clusterId and configsvrConnectionString")
	}
	return Identity{Shard: name.Str(), ClusterID: cluster.ObjectID(), ConfigDB: config.Str()}, nil
}

// doc is the identity as it is stored.
func (id *Identity) doc() []byte {
	return value.Doc(value.F("_id", value.NewString("shardIdentity")), value.F("shardName", value.NewString(id.Shard)),
		value.F("clusterId", value.NewObjectID(id.ClusterID)), value.F("configsvrConnectionString", value.NewString(id.ConfigDB)))
}

// ConfigSet is the name of the config server's set.
func (id *Identity) ConfigSet() string {
	set, _ := cluster.SplitHosts(id.ConfigDB)
	return set
}

// Identity reads the stored identity; ok is false on a node that belongs to no cluster.
func (s *Server) Identity() (id Identity, ok bool, err error) {
	doc, err := s.Node.Docs.Get(identityNS, value.NewString("shardIdentity"))
	if err != nil || doc == nil {
		return id, false, err
	}
	id, err = parseIdentity(doc)
	return id, err == nil, err
}

// OnJoin registers what a node that was started as a shard server does when a cluster takes it in. join makes the
// node's sharding state; it is called with an identity that is durable already.
func (s *Server) OnJoin(join func(Identity) (*ShardState, error)) {
	s.joins.Store(&join)
	s.Service.Table.Add(command.Spec{
		Name: "_addShard", Roles: command.Shard, AdminOnly: true, Internal: true, PrimaryOnly: true, Lenient: true, WriteConcern: true, ArgTypes: command.TAny,
		Fields: []command.Field{command.Req("shardIdentity", command.TObject)},
		Run: func(op *command.Op, dst []byte) ([]byte, error) {
			return dst, s.join(op, op.Req.Doc("shardIdentity"), join)
		},
	})
}

func (s *Server) join(op *command.Op, doc []byte, join func(Identity) (*ShardState, error)) error {
	id, err := parseIdentity(doc)
	if err != nil {
		return err
	}
	have, ok, err := s.Identity()
	if err != nil {
		return err
	}
	if ok {
		if have.Shard != id.Shard || have.ClusterID != id.ClusterID {
			return mongoerr.Newf(mongoerr.IncompatibleShardingMetadata, "this node is shard %s of another cluster or name already", have.Shard)
		}
	} else {
		if err := s.Node.Docs.Put(op, identityNS, id.doc()); err != nil {
			return err
		}
	}
	return s.becomeShard(id, join)
}

// shardSpecs are the commands that the config server's DDL sends to shards.
func (m *migrations) shardSpecs() []command.Spec {
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
func (m *migrations) runCreateParticipant(op *command.Op, dst []byte) ([]byte, error) {
	ns := op.Req.Cmd.Str()
	uuid, ok := catalog.UUIDFrom(op.Arg("uuid"))
	if !ok {
		return dst, mongoerr.New(mongoerr.InvalidUUID, "uuid is no UUID")
	}
	unlock, err := m.n.locks.Collection(op, ns, lock.X)
	if err != nil {
		return dst, err
	}
	defer unlock()
	return dst, m.n.Docs.WriteWith(op, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
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
func (m *migrations) runParticipantBlock(op *command.Op, dst []byte) ([]byte, error) {
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
		take := m.n.locks.Collection
		if catalog.CollOf(ns) == "" {
			take = m.n.locks.Database
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
func (m *migrations) runRenameParticipant(op *command.Op, dst []byte) ([]byte, error) {
	from, to := op.Req.Cmd.Str(), op.Req.Str("to")
	uuid, ok := catalog.UUIDFrom(op.Arg("sourceUUID"))
	if !ok {
		return dst, mongoerr.New(mongoerr.InvalidUUID, "sourceUUID is no UUID")
	}
	l := m.n.locks.NewLocker()
	defer l.UnlockAll()
	if err := l.LockCollections(op, lock.X, from, to); err != nil {
		return dst, err
	}
	return dst, m.n.Docs.WriteWith(op, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c, target := s.Catalog().Lookup(from), s.Catalog().Lookup(to)
		if target != nil && target.UUID == uuid {
			return nil
		}
		if target != nil {
			m.n.forget(u, target)
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
