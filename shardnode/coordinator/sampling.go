package coordinator

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command/sampling"
	"github.com/shoaldb/shoal/query/value"
)

// The sampling of a collection's queries ends when it is dropped or renamed. Its configuration is on the config server, which removes it
// with the collection's entry. A collection without an entry, which this shard alone drops or renames in one unit of work, needs a run for
// that if it is sampled: a crash between the two would leave the configuration behind.

// sampled reports whether there is a configuration for a collection. One for another collection of that name, which is gone, is removed.
func (r *run) sampled(ctx context.Context, ns string, uuid [16]byte) (bool, error) {
	docs, err := cluster.Find{NS: "config." + sampling.Configurations, Filter: value.Doc(value.F("_id", value.NewString(ns)))}.All(ctx, r.m.State.Registry.Config())
	if err != nil || len(docs) == 0 {
		return false, err
	}
	of := value.Lookup(docs[0], "collUuid")
	if value.Compare(of, value.NewBinary(4, uuid[:])) == 0 {
		return true, nil
	}
	return false, r.stopSampling(ctx, ns, of)
}

// stopSampling removes a collection's configuration at once.
func (r *run) stopSampling(ctx context.Context, ns string, uuid value.Value) error {
	_, err := cluster.RunWrite(ctx, r.m.State.Registry.Config(), msg.Doc(&msg.Delete{
		DB: "config", Coll: sampling.Configurations, Deletes: []msg.DeleteStatement{{Query: value.Doc(value.F("_id", value.NewString(ns)), value.F("collUuid", uuid))}},
	}))
	return err
}
