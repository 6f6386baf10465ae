package shardnode

import (
	"sync/atomic"

	"github.com/shoaldb/shoal/command"
)

// opCounters has the counters of serverStatus.opcounters and related metrics.
type opCounters struct {
	command.Opcounters
	work                  command.WorkCounters
	ttlPasses, ttlDeleted atomic.Int64
}
