package exec

import "github.com/shoaldb/shoal/wire/mongoerr"

// During prefixes an error's message with the execution that it is attributed to; errors that a router or a retry
// acts on are left unchanged.
func During(during string, err error) error {
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
