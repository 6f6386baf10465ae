package exec

import "github.com/shoaldb/shoal/wire/mongoerr"

// During puts in whose execution an error came up before the error's message; what a router or a retry acts on is left as it is.
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
