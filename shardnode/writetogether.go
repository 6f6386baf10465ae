package shardnode

import (
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
)

// writeTogetherSpec returns the command by which a config server changes several documents atomically.
func writeTogetherSpec(n *Node) command.Spec {
	s := command.Internal(n.runWriteTogether)
	s.Roles, s.Kind = command.Config, command.Write
	return s
}

func (n *Node) runWriteTogether(op *command.Op, req *msg.WriteTogether, dst []byte) ([]byte, error) {
	if err := n.writes.MayWrite(op); err != nil {
		return dst, err
	}
	return dst, n.Docs.WriteWith(op, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		err := writeInto(s, u, req.NS, &req.Changes)
		if err == nil && req.AlsoNS != "" {
			err = writeInto(s, u, req.AlsoNS, &req.Also)
		}
		if err == nil && len(req.Placement) > 0 {
			err = writeInto(s, u, "config.placementHistory", &msg.Changes{Put: req.Placement})
		}
		if err == nil && len(req.Zones) > 0 {
			err = writeInto(s, u, "config.tags", &msg.Changes{Put: req.Zones})
		}
		if err == nil && len(req.Chunks) > 0 {
			err = writeInto(s, u, "config.chunks", &msg.Changes{Delete: req.Chunks})
		}
		if err == nil && len(req.Analyzers) > 0 {
			err = writeInto(s, u, "config.queryAnalyzers", &msg.Changes{Delete: req.Analyzers})
		}
		return err
	})
}

// writeInto deletes and replaces documents of one collection.
func writeInto(s *storage.Snapshot, u *storage.UnitOfWork, ns string, changes *msg.Changes) error {
	c, err := statedoc.CollectionFor(s, u, ns)
	if err != nil {
		return err
	}
	for _, id := range changes.Delete {
		rid, old, ok, err := s.FindByID(c, id)
		if err == nil && ok {
			err = u.Delete(c, rid.Clone(), append([]byte(nil), old...), storage.NoInfo)
		}
		if err != nil {
			return err
		}
	}
	for _, d := range changes.Put {
		if err := statedoc.PutIn(s, u, c, d); err != nil {
			return err
		}
	}
	return nil
}
