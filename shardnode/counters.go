package shardnode

import (
	"sync/atomic"

	"github.com/shoaldb/shoal/command"
)

// counters are serverStatus's opcounters and their like.
type counters struct {
	command.Opcounters
	work                  command.WorkCounters
	ttlPasses, ttlDeleted atomic.Int64
}
