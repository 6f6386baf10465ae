package shardnode

// duringFind, duringAggregate and duringGetMore say in whose execution an error came up: what is wrong with a request
// itself is told without.
func duringFind(ns string) string { return "Executor error during find command: " + ns }

func duringAggregate(ns string) string {
	return "Executor error during aggregate command on namespace: " + ns
}

const (
	duringGetMore = "Executor error during getMore"
)
