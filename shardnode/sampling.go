package shardnode

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/queryanalysis"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// newAnalysis makes the manager of the node's part in the sampling of queries, and registers its commands.
func newAnalysis(n *Node) *queryanalysis.Manager {
	m := queryanalysis.New(queryanalysis.Options{Docs: n.Docs, Service: n.Service, Params: n.Params, Host: n.host, Now: n.now}, analysisNode{n})
	n.Service.Table.Add(m.Specs()...)
	return m
}

// analysisNode implements what the sampling of queries needs from the node.
type analysisNode struct{ n *Node }

func (a analysisNode) Lone() bool { return a.n.lone() }

func (a analysisNode) InCluster() bool { return a.n.ConfigServer || a.n.shard.State() != nil }

func (a analysisNode) Own() cluster.Peer {
	client := command.OwnClient()
	return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
		return a.n.Service.Direct(ctx, client, m, dst)
	})
}

func (a analysisNode) Primary() cluster.Peer {
	if a.n.notPrimary() == nil {
		return a.Own()
	}
	return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
		reply, err := a.n.Repl.AskPrimary(ctx, m.Body)
		return append(dst, reply...), err
	})
}

func (a analysisNode) Warn(msg string, err error) { a.n.warn(msg, err) }

// sampledQueries returns the documents of $listSampledQueries.
func sampledQueries(n *Node, op *command.Op, s *storage.Snapshot, spec []byte) ([][]byte, error) {
	if n.lone() {
		return nil, mongoerr.New(mongoerr.IllegalOperation, "$listSampledQueries is not supported on a standalone mongod")
	}
	if n.Sharding() != nil && !op.Client.InProcess && !op.Client.Internal {
		return nil, mongoerr.New(mongoerr.IllegalOperation, "$listSampledQueries is not supported on a shardsvr mongod: run it through a mongos")
	}
	docs, err := allDocs(s, "config.sampledQueries")
	ns := value.Lookup(spec, "namespace")
	if err != nil || ns.IsMissing() {
		return docs, err
	}
	var out [][]byte
	for _, d := range docs {
		if value.Compare(value.Lookup(d, "ns"), ns) == 0 {
			out = append(out, d)
		}
	}
	return out, nil
}
