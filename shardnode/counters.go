package shardnode

import "sync/atomic"

// counters are serverStatus's opcounters and their like.
type counters struct {
	inserts, queries, updates, deletes, getmores, commands atomic.Int64
	ttlPasses, ttlDeleted                                  atomic.Int64
}
