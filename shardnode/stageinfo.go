package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
)

// stageInfo gives the documents of stages that report on the server.
func (n *Node) stageInfo(op *command.Op, s *storage.Snapshot, ns, stage string, spec value.Value) ([][]byte, error) {
	switch stage {
	case "$indexStats":
		return n.indexStats(s, ns)
	case "$collStats":
		doc, err := n.collStatsStage(s, ns, spec.Doc())
		return [][]byte{doc}, err
	case "$currentOp":
		return n.currentOps(op, spec.Doc()), nil
	case "$planCacheStats":
		return nil, nil
	}
	return nil, command.NotImplemented("stage %s", stage)
}

func (n *Node) indexStats(s *storage.Snapshot, ns string) ([][]byte, error) {
	c := s.Catalog().Lookup(ns)
	if c == nil {
		return nil, nil
	}
	var out [][]byte
	for _, i := range c.Indexes {
		d, m := value.Begin(nil)
		d = value.Append(d, "name", value.NewString(i.Name))
		d = value.Append(d, "key", value.NewDocument(i.Spec.KeyPattern))
		d = value.Append(d, "host", value.NewString(n.host()))
		var am int
		d, am = value.BeginKey(d, value.Document, "accesses")
		d = value.Append(d, "ops", value.NewInt64(i.Usage.Ops.Load()))
		d = value.Append(d, "since", value.NewDateTime(i.Usage.SinceMS))
		d = value.End(d, am)
		d = value.Append(d, "spec", value.NewDocument(i.Spec.Raw))
		if !i.Ready {
			d = value.Append(d, "building", value.NewBool(true))
		}
		out = append(out, value.End(d, m))
	}
	return out, nil
}

// currentOps describes the running operations.
func (n *Node) currentOps(_ *command.Op, _ []byte) [][]byte {
	var out [][]byte
	n.Service.EachOp(func(op *command.Op) {
		d, m := value.Begin(nil)
		d = value.Append(d, "type", value.NewString("op"))
		d = value.Append(d, "host", value.NewString(n.host()))
		d = value.Append(d, "desc", value.NewString("conn"+itoa(int(op.Client.ID))))
		d = value.Append(d, "connectionId", value.NewInt32(int32(op.Client.ID)))
		d = value.Append(d, "client", value.NewString(op.Client.Remote))
		d = value.Append(d, "active", value.NewBool(true))
		d = value.Append(d, "opid", value.NewInt32(op.ID))
		d = value.Append(d, "secs_running", value.NewInt64(int64(op.Elapsed().Seconds())))
		d = value.Append(d, "microsecs_running", value.NewInt64(op.Elapsed().Microseconds()))
		d = value.Append(d, "op", value.NewString("command"))
		out = append(out, value.End(d, m))
	})
	return out
}

func (n *Node) host() string { return n.Host }
