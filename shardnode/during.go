package shardnode

// duringFind, duringAggregate and duringGetMore name the execution that an error is attributed to; errors in the
// request itself are not attributed.
func duringFind(ns string) string { return "Executor error during find command: " + ns }

func duringAggregate(ns string) string {
	return "Executor error during aggregate command on namespace: " + ns
}

const (
	duringGetMore = "Executor error during getMore"
)
