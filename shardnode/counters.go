package shardnode

import (
	"sync/atomic"

	"github.com/shoaldb/shoal/command"
)

// counters are serverStatus's opcounters and their like.
type counters struct {
	command.Opcounters
	ttlPasses, ttlDeleted atomic.Int64
}
