package catalog

import "sync/atomic"

// Usage has the statistics that $indexStats reports for one index.
type Usage struct {
	Ops     atomic.Int64
	SinceMS int64 // when counting began, milliseconds of the epoch
}
