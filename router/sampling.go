package router

import (
	"context"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/command/analyzer"
	"github.com/shoaldb/shoal/command/sampling"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// sampleQueries gives the router's service a sampler, and registers the commands of the analysis.
func (r *Router) sampleQueries(s *command.Service) {
	s.Sampler = sampling.New(r.Params, time.Now)
	s.Sampler.StoreAtStop(samplingRouter{r: r})
	s.DescribeTasks(s.Sampler.Tasks)
	s.Status.Add(command.StatusSection{Name: "queryAnalyzers", Doc: func(*command.Op, value.Value) []byte { return s.Sampler.Status() }})
	s.Table.Add(analyzer.New(samplingRouter{r: r}, r.Params).Specs()...)
}

// samplingRouter implements what the sampling of queries needs from the router.
type samplingRouter struct {
	r       *Router
	queries *analyzer.Queries
}

// Refresh implements sampling.Backend.
func (s samplingRouter) Refresh(ctx context.Context) ([]sampling.Configuration, error) {
	return analyzer.Ask(ctx, s.r.config, s.r.Service.Host, s.queries.Rate())
}

// Keeper implements sampling.Backend: the samples of a collection are stored on a shard that has it.
func (s samplingRouter) Keeper(ctx context.Context, ns string) (cluster.Peer, error) {
	info, err := s.r.Catalog.Collection(ctx, ns)
	if err != nil {
		return nil, err
	}
	shards := info.Shards()
	if len(shards) == 0 {
		return nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "no shard has %s", ns)
	}
	return s.r.peer(ctx, slices.Min(shards))
}

// Warn implements sampling.Backend: the samples that could not be stored are kept and tried again.
func (s samplingRouter) Warn(string, error) {}

// Supports implements analyzer.Deployment.
func (s samplingRouter) Supports(string) error { return nil }

// Data implements analyzer.Deployment.
func (s samplingRouter) Data() cluster.Peer {
	client := s.r.internalClient()
	return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
		return s.r.Service.Run(ctx, client, m, dst), nil
	})
}

// Config implements analyzer.Deployment.
func (s samplingRouter) Config() cluster.Peer { return s.r.config }

// Keepers implements analyzer.Deployment.
func (s samplingRouter) Keepers(ctx context.Context) (out []cluster.Peer, err error) {
	all, err := s.r.Registry.All(ctx)
	for _, sh := range all {
		out = append(out, sh.Peer)
	}
	return out, err
}

// Owner implements analyzer.Deployment.
func (s samplingRouter) Owner(op *command.Op, ns string) (cluster.Peer, error) {
	return s.Keeper(op, ns)
}

// sampledQueries opens the samples of all shards: the documents of $listSampledQueries.
func (r *Router) sampledQueries(op *command.Op, spec []byte) (agg.Source, error) {
	shards, err := r.allShards(op)
	if err != nil {
		return nil, err
	}
	filter := value.Doc()
	if ns := value.Lookup(spec, "namespace"); ns.T == value.String {
		filter = value.Doc(value.F("ns", ns))
	}
	body := cluster.Find{NS: "config." + sampling.Queries, Filter: filter}.Doc()
	c := &mergeCursor{extra: carried(op)}
	if c.remotes, err = r.openRemotes(op, shards, func(string) []byte { return body }); err != nil {
		return nil, err
	}
	return &mergeSource{c: c, r: r}, nil
}
