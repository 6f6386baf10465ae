package shardnode

import "github.com/shoaldb/shoal/wire/mongoerr"

// duringFind, duringAggregate and duringGetMore say in whose execution an error came up: what is wrong with a request
// itself is told without.
func duringFind(ns string) string { return "Executor error during find command: " + ns }

func duringAggregate(ns string) string {
	return "Executor error during aggregate command on namespace: " + ns
}

const (
	duringGetMore       = "Executor error during getMore"
	duringUpdate        = "Plan executor error during update"
	duringFindAndModify = "Plan executor error during findAndModify"
)

// executing puts that before the error's message; what a router or a retry acts on is left as it is.
func executing(during string, err error) error {
	if err == nil || during == "" {
		return err
	}
	switch mongoerr.CodeOf(err) {
	case mongoerr.StaleConfig, mongoerr.StaleDbVersion, mongoerr.StaleEpoch, mongoerr.CannotImplicitlyCreateCollection, mongoerr.WouldChangeOwningShard,
		mongoerr.CommandOnShardedViewNotSupportedOnMongod, mongoerr.WriteConflict:
		return err
	}
	return mongoerr.From(err).Prefix(during + " :: caused by :: ")
}
