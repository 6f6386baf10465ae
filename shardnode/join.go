package shardnode

import (
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Identity reads the stored identity; ok is false on a node that does not belong to a cluster. A node whose
// document does not name a shard is treated likewise: it serves no requests with versions until it is added again.
func (s *Server) Identity() (id migration.Identity, ok bool, err error) {
	doc, err := s.Node.Docs.Get(migration.IdentityNS, value.NewString("shardIdentity"))
	if err != nil || doc == nil {
		return id, false, err
	}
	if id, err = migration.ParseIdentity(doc); err != nil {
		s.Node.Docs.Unreadable(migration.IdentityNS, doc, err)
		return id, false, nil
	}
	return id, true, nil
}

// OnJoin registers the command that adds a node started as a shard server to a cluster. join makes
// the node's sharding state; the identity that it receives is durable already.
func (s *Server) OnJoin(join func(migration.Identity) (*migration.ShardState, error)) {
	s.joins.Store(&join)
	spec := command.Internal(func(op *command.Op, m *msg.Join, dst []byte) ([]byte, error) {
		if m.Params != nil {
			if err := s.Node.settings.TakeOver(op, m.Params); err != nil {
				return dst, err
			}
		}
		return dst, s.join(op, migration.Identity{Shard: m.Shard, ClusterID: m.ClusterID, ConfigDB: m.ConfigDB}, join)
	})
	spec.Roles, spec.PrimaryOnly, spec.WriteConcern = command.Shard|command.Config, true, true
	s.Service.Table.Add(spec)
}

// sharded returns an error unless the node is part of a sharded cluster.
func (s *Server) sharded() error {
	switch {
	case s.Node.ConfigServer || s.Node.Sharding() != nil:
		return nil
	case s.joins.Load() == nil:
		return mongoerr.New(mongoerr.NoShardingEnabled, "Cannot accept sharding commands if not started with --shardsvr")
	}
	return mongoerr.New(mongoerr.ShardingStateNotInitialized,
		"Cannot accept sharding commands if sharding state has not been initialized with a shardIdentity document")
}

func (s *Server) join(op *command.Op, id migration.Identity, join func(migration.Identity) (*migration.ShardState, error)) error {
	have, ok, err := s.Identity()
	if err != nil {
		return err
	}
	if ok {
		if have.Shard != id.Shard || have.ClusterID != id.ClusterID {
			return mongoerr.Newf(mongoerr.IncompatibleShardingMetadata, "this node is already shard %s, of another cluster or under another name", have.Shard)
		}
	} else {
		if err := s.Node.Docs.Put(op, migration.IdentityNS, id.Doc()); err != nil {
			return err
		}
	}
	return s.becomeShard(id, join)
}
