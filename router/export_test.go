package router

import "context"

// DropTemps is dropTemps for tests.
func (r *Router) DropTemps(ctx context.Context) { r.dropTemps(ctx) }

// LoadQuerySettings is what Run does first.
func (r *Router) LoadQuerySettings(ctx context.Context) error {
	_, err := r.loadClusterParams(ctx)
	return err
}

// SetStreamWindow bounds what the streams of one shape share of the newest events.
func (r *Router) SetStreamWindow(size int) { r.hubs.window = size }
