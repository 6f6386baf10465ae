package shardnode

import (
	"github.com/shoaldb/shoal/storage/extsort"
	"github.com/shoaldb/shoal/storage/spill"
)

// spillStore is where operations of this node put what outgrows their memory.
func (n *Node) spillStore() extsort.Store { return spill.Dir(n.TempDir) }

// stageMemory is how many bytes a stage of a pipeline may hold.
func (n *Node) stageMemory(stage string) int64 {
	if n.Params == nil {
		return 100 << 20
	}
	return n.Params.StageMemory(stage)
}
