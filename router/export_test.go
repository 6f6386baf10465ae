package router

import "context"

// DropTemps is dropTemps for tests.
func (r *Router) DropTemps(ctx context.Context) { r.dropTemps(ctx) }
