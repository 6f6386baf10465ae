package coordinator

import (
	"context"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/consistency"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
)

// runCheckConsistency compares the catalog's entries of a database, or of one of its collections, with the shards' collections, while no DDL
// of this shard changes them.
func (m *Coordinators) runCheckConsistency(op *command.Op, req *msg.CheckConsistency, dst []byte) ([]byte, error) {
	wait := lockWait
	if req.LockMS != nil {
		wait = time.Duration(*req.LockMS) * time.Millisecond
	}
	names := []lockedName{{lock.Resource{Kind: lock.DDLDatabase, Name: req.DB}, lock.S}}
	ns := req.DB + ".$cmd"
	if req.Coll != "" {
		ns = req.DB + "." + req.Coll
		names = []lockedName{{lock.Resource{Kind: lock.DDLDatabase, Name: req.DB}, lock.IS}}
		for _, coll := range slices.Sorted(slices.Values(lockedWithBuckets(ns))) {
			names = append(names, lockedName{lock.Resource{Kind: lock.DDLCollection, Name: coll}, lock.S})
		}
	}
	h, err := m.lockNames(op, names, &held{reason: "checkMetadataConsistency"}, wait)
	if err != nil {
		return dst, err
	}
	defer m.unlock(h)
	if err := migration.WaitCritical(op, m.State.CheckVersion(op, ns)); err != nil {
		return dst, err
	}
	if _, series := m.seriesAt(ns); series && req.Coll != "" { // it is a view: its buckets are what the catalog and the shards have
		req.Coll = catalog.CollOf(timeseries.BucketsOf(ns))
	}
	primary, err := m.recordedPrimary(op, req.DB)
	if err != nil {
		return dst, err
	}
	c := &consistency.Check{Req: req, Registry: m.State.Registry, Primary: primary, Auxiliary: auxiliary}
	bad, err := c.Run(op)
	if err != nil {
		return dst, err
	}
	if err := m.stillAbsent(op, ns); err != nil {
		return dst, err
	}
	return msg.AppendFields(dst, &msg.CheckConsistencyReply{Found: bad}), nil
}

// recordedPrimary returns the primary shard that the catalog has for a database. It is this one, unless the entry is wrong: the other shard finds the database's collections misplaced.
func (m *Coordinators) recordedPrimary(ctx context.Context, db string) (string, error) {
	docs, err := cluster.FindConfig(ctx, m.State.Registry.Config(), cluster.Find{NS: "config.databases", Filter: value.Doc(value.F("_id", value.NewString(db)))}.Doc())
	if err != nil || len(docs) == 0 {
		return m.State.ID, err
	}
	return value.Lookup(docs[0], "primary").Str(), nil
}

// auxiliary returns what a shard's catalog says of a collection beside its options and indexes.
func auxiliary(ns string, options []byte) []byte {
	if !namespace.IsBuckets(ns) {
		return value.Doc()
	}
	return value.Doc(value.F(namespace.MixedSchema, value.NewBool(namespace.MixedSchemaIn(options))))
}
