package catalog

import "sync/atomic"

// Usage is what $indexStats reports of one index.
type Usage struct {
	Ops     atomic.Int64
	SinceMS int64 // when counting began, milliseconds of the epoch
}
