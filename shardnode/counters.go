package shardnode

import (
	"sync/atomic"

	"github.com/shoaldb/shoal/command"
)

// opCounters are serverStatus's opcounters and the metrics beside them.
type opCounters struct {
	command.Opcounters
	work                  command.WorkCounters
	ttlPasses, ttlDeleted atomic.Int64
}
