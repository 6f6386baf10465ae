package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
)

// writeTogetherSpec is how a config server changes several documents so that no reader sees a part of the change:
// {_writeTogether: ns, delete: [_id …], put: [document …], also: [{ns, delete, put} …]}.
func writeTogetherSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "_writeTogether", Roles: command.Config, AdminOnly: true, Internal: true, ArgTypes: command.TString, Kind: command.Write,
		Fields: []command.Field{command.Opt("delete", command.TArray), command.Opt("put", command.TArray), command.Opt("also", command.TArray)},
		Run:    n.runWriteTogether,
	}
}

func (n *Node) runWriteTogether(op *command.Op, dst []byte) ([]byte, error) {
	if err := n.mayWrite(op); err != nil {
		return dst, err
	}
	return dst, n.Docs.WriteWith(op, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		if err := writeInto(s, u, op.Req.Cmd.Str(), op.Req.Body); err != nil {
			return err
		}
		for _, more := range value.Values(op.Arg("also").Doc()) {
			if err := writeInto(s, u, value.Lookup(more.Doc(), "ns").Str(), more.Doc()); err != nil {
				return err
			}
		}
		return nil
	})
}

// writeInto deletes and puts what a document names in one collection.
func writeInto(s *storage.Snapshot, u *storage.UnitOfWork, ns string, doc []byte) error {
	c, err := statedoc.CollectionFor(s, u, ns)
	if err != nil {
		return err
	}
	for _, id := range value.Values(value.Lookup(doc, "delete").Doc()) {
		rid, old, ok, err := s.FindByID(c, id)
		if err == nil && ok {
			err = u.Delete(c, rid.Clone(), append([]byte(nil), old...), storage.NoInfo)
		}
		if err != nil {
			return err
		}
	}
	for _, d := range value.Values(value.Lookup(doc, "put").Doc()) {
		if err := statedoc.PutIn(s, u, c, d.Doc()); err != nil {
			return err
		}
	}
	return nil
}
