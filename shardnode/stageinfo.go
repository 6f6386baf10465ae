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
		return n.planCacheStats(s, ns), nil
	case "$listLocalSessions":
		return n.localSessions(), nil
	case "$querySettings":
		return n.querySettingsStage(spec.Doc()), nil
	}
	return nil, command.NotImplemented("stage %s", stage)
}

// localSessions lists the sessions that this node has seen in use.
func (n *Node) localSessions() [][]byte {
	if n.Sessions == nil {
		return nil
	}
	var out [][]byte
	for id, at := range n.Sessions.Live() {
		out = append(out, value.Doc(value.F("_id", value.NewDocument(id.Doc())), value.F("lastUse", value.NewTime(at))))
	}
	return out
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

func (n *Node) host() string { return n.Host }
