package queryanalysis

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/command/analyzer"
	"github.com/shoaldb/shoal/command/sampling"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Node is the manager's interface to its member.
type Node interface {
	// Lone reports whether the node is not a member of a replica set.
	Lone() bool
	// InCluster reports whether the node is a shard, or the config server.
	InCluster() bool
	// Own returns this member, and Primary the primary of its set, to run commands on.
	Own() cluster.Peer
	Primary() cluster.Peer
	Warn(msg string, err error)
}

// Documents reads the documents of the member's collections.
type Documents interface {
	Each(ns string, f func(doc []byte) error) error
}

// Options has the dependencies of a Manager.
type Options struct {
	Docs    Documents
	Service *command.Service
	Params  *cluster.Params
	Host    func() string
	Now     func() time.Time
}

// Manager executes one member's part in the sampling of queries.
type Manager struct {
	Options
	node    Node
	rates   sampling.Rates
	queries analyzer.Queries
}

// New returns the manager of a member, and sets its service's sampler.
func New(c Options, n Node) *Manager {
	m := &Manager{Options: c, node: n, queries: analyzer.Queries{Service: c.Service}}
	s := sampling.New(c.Params, c.Now)
	c.Service.Sampler = s
	s.StoreAtStop(m)
	c.Service.DescribeTasks(s.Tasks)
	c.Service.Status.Add(command.StatusSection{Name: "queryAnalyzers", Doc: func(*command.Op, value.Value) []byte { return s.Status() }})
	return m
}

// Specs returns the rows of the commands.
func (m *Manager) Specs() []command.Spec {
	refresh := command.Internal(m.runRefresh)
	refresh.Roles, refresh.PrimaryOnly, refresh.ArgTypes = command.Shard|command.Config, true, command.TAny
	return append(analyzer.New(m, m.Params).Specs(), refresh)
}

// Run refreshes the sampler and stores its samples until ctx ends.
func (m *Manager) Run(ctx context.Context) { m.Service.Sampler.Run(ctx, m) }

// forgotten is the number of missed refreshes after which a sampler loses its share of the rates.
const forgotten = 3

// runRefresh replies to a sampler with its share of the configurations.
func (m *Manager) runRefresh(_ *command.Op, q *msg.RefreshQueryAnalyzer, dst []byte) ([]byte, error) {
	timeout := forgotten * time.Duration(m.Params.Int("queryAnalysisSamplerConfigurationRefreshSecs")) * time.Second
	share := m.rates.Share(q.Sampler, q.Queries.AsFloat64(), m.Now(), timeout)
	reply := msg.RefreshQueryAnalyzerReply{Configurations: [][]byte{}}
	err := m.Docs.Each("config."+sampling.Configurations, func(doc []byte) error {
		if value.Lookup(doc, "mode").Str() == "full" {
			reply.Configurations = append(reply.Configurations, sampling.Doc(doc, share))
		}
		return nil
	})
	return msg.AppendFields(dst, &reply), err
}

// Refresh implements sampling.Backend.
func (m *Manager) Refresh(ctx context.Context) ([]sampling.Configuration, error) {
	if m.node.Lone() || m.node.InCluster() {
		return nil, nil
	}
	return analyzer.Ask(ctx, m.node.Primary(), m.Host(), m.queries.Rate())
}

// Keeper implements sampling.Backend: a member's samples are stored in its own set.
func (m *Manager) Keeper(context.Context, string) (cluster.Peer, error) { return m.node.Primary(), nil }

// Warn implements sampling.Backend.
func (m *Manager) Warn(msg string, err error) { m.node.Warn(msg, err) }

// Supports implements analyzer.Deployment.
func (m *Manager) Supports(what string) error {
	switch {
	case m.node.Lone():
		return mongoerr.Newf(mongoerr.IllegalOperation, "%s is not supported on a standalone mongod", what)
	case m.node.InCluster():
		return mongoerr.Newf(mongoerr.IllegalOperation, "%s is not supported on a shardsvr mongod: run it through a mongos", what)
	}
	return nil
}

// Data implements analyzer.Deployment.
func (m *Manager) Data() cluster.Peer { return m.node.Own() }

// Config implements analyzer.Deployment.
func (m *Manager) Config() cluster.Peer { return m.node.Primary() }

// Keepers implements analyzer.Deployment.
func (m *Manager) Keepers(context.Context) ([]cluster.Peer, error) {
	return []cluster.Peer{m.node.Own()}, nil
}

// Owner implements analyzer.Deployment.
func (m *Manager) Owner(*command.Op, string) (cluster.Peer, error) { return m.node.Own(), nil }
