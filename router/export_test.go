package router

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/command/analyzer"
)

// DropTemps is dropTemps for tests.
func (r *Router) DropTemps(ctx context.Context) { r.dropTemps(ctx) }

// Heartbeat registers the router, as Run does periodically.
func (r *Router) Heartbeat(ctx context.Context) error { return r.heartbeat(ctx) }

// LoadQuerySettings reads the query settings, as Run does first.
func (r *Router) LoadQuerySettings(ctx context.Context) error {
	_, err := r.loadClusterParams(ctx)
	return err
}

// SetStreamWindow limits the size of the window of events that the streams of one shape share.
func (r *Router) SetStreamWindow(size int) { r.hubs.window = size }

// SetStreamOpening limits the time in which one shard's stream is opened once more.
func (r *Router) SetStreamOpening(limit time.Duration) { r.hubs.opening = limit }

// RefreshSampling fetches the configurations of query sampling, and FlushSamples stores what is sampled.
func (r *Router) RefreshSampling(ctx context.Context, queries float64) error {
	list, err := analyzer.Ask(ctx, r.config, r.Service.Host, queries)
	r.Service.Sampler.Install(list)
	return err
}

func (r *Router) FlushSamples(ctx context.Context) error {
	return r.Service.Sampler.Flush(ctx, samplingRouter{r: r})
}

// SamplingRate returns the router's share of a collection's rate.
func (r *Router) SamplingRate(ns string) float64 {
	for _, f := range r.Service.Sampler.Tasks(time.Now()) {
		if f[1].Val.Str() == ns {
			return f[3].Val.AsFloat64()
		}
	}
	return 0
}

// KillAgain is killAgain for tests.
func (r *Router) KillAgain(ctx context.Context) { r.killAgain(ctx, time.Now().Add(killAgainMax)) }
