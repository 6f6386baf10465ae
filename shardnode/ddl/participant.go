package ddl

import (
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage/catalog"
)

// dropCollectionParticipantSpec returns the row of the command with which a coordinator drops a sharded collection on each shard.
func dropCollectionParticipantSpec(cs *Commands) command.Spec {
	s := command.Internal(func(op *command.Op, req *msg.DropCollectionParticipant, dst []byte) ([]byte, error) {
		w, err := participantWrites(cs, op, req.FromMigrate)
		if err == nil {
			w.fenced = cs.fence(req.Section)
			_, err = w.dropNamespace(req.NS)
		}
		return dst, err
	})
	s.Roles, s.Kind = command.Shard|command.Config, command.DDL
	return s
}

// dropDatabaseParticipantSpec returns the row of the command with which a coordinator drops a database on each shard.
func dropDatabaseParticipantSpec(cs *Commands) command.Spec {
	s := command.Internal(func(op *command.Op, req *msg.DropDatabaseParticipant, dst []byte) ([]byte, error) {
		w, err := participantWrites(cs, op, req.FromMigrate)
		if err == nil {
			w.fenced = cs.fence(req.Section)
			err = w.dropDatabase(req.DB, !req.FromMigrate)
		}
		return dst, err
	})
	s.Roles, s.Kind = command.Shard|command.Config, command.DDL
	return s
}

// fence returns a check that refuses a message whose run does not hold the name's critical section here; nil if the message belongs to no run.
func (cs *Commands) fence(section *[16]byte) func(ns string) error {
	if section == nil {
		return nil
	}
	id := catalog.UUID(*section)
	return func(ns string) error { return cs.node.HoldsSection(ns, id) }
}

// participantWrites begins the writes of a shard's part in a coordinated operation.
func participantWrites(cs *Commands, op *command.Op, fromMigrate bool) (*operation, error) {
	if err := cs.writes.MayWrite(op); err != nil {
		return nil, err
	}
	w := &operation{Command: cs.writes.With(op, replication.Durable), ddl: cs}
	w.FromMigrate = fromMigrate
	return w, nil
}
