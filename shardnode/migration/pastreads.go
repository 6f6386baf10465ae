package migration

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Reads at a cluster time. Their versions are compared with those of that time (Catalog.CollectionAt), so a router that uses another placement, because
// it does not know of a DDL or does not read the catalog's history, is refused even if its version is the current one.
//
//	               section of the DDL on this shard
//	  ─────────────┬───────────────────────────────┬──────────────► cluster time
//	   the former  │  SnapshotUnavailable          │  the new one
//	   placement   │                               │
//
// While a DDL blocks reads, shards change one after the other, and the catalog in between. At a time within the section the shard's data may be that of
// before or of after, whatever the catalog says, so reads at such a time are refused. The stored sections have their own history, like all documents: the
// snapshot of the read shows them, on primaries and secondaries.

// A placement names shards, and another set may have had this one's name at that time (checkListed).

// transaction is the view of an operation's transaction that version checks need.
type transaction interface {
	// ReadTime returns the time that its statements read at, 0 if it has ended.
	ReadTime() storage.Timestamp
	// ReadView returns the snapshot that its statements read from.
	ReadView() *storage.Snapshot
	// ReadConcern returns the read concern that it was begun with.
	ReadConcern() *command.ReadConcern
}

// pastOf returns the cluster time at which an operation reads, its own or that of its transaction's snapshot,
// and whose placement it uses. It is 0 for operations that use the current placement: reads of the newest data,
// writes, and transactions with other read concern levels, whose participants each read at a time of their own.
func pastOf(op *command.Op) uint64 {
	rc := op.Req.ReadConcern
	if t, ok := op.Txn.(transaction); ok {
		rc = t.ReadConcern()
	}
	if rc == nil || op.Req.Spec.Kind != command.Read {
		return 0
	}
	return rc.AtClusterTime
}

// listed is when a set got its shard's name.
type listed struct {
	topology uint64 // the topology time that was known when it was read: a set that is removed and added again gets the name anew
	since    uint64
}

// checkListed refuses a read at a time before this set got its shard's name.
//
// Hazard: a set that is added under the name of a removed shard has none of the documents that the former one had, by the chunks' history or as a primary shard, at a time that may still be read. It would return
// nothing of them, as if they had not existed.
func (s *ShardState) checkListed(op *command.Op, ns string) error {
	at := pastOf(op)
	if at == 0 || s.ID == cluster.ConfigShardID { // which is always the same set
		return nil
	}
	topology := s.Clock.Topology()
	if at >= topology { // no set has got its name since
		return nil
	}
	l := s.listed.Load()
	if l == nil || l.topology < topology {
		members, err := cluster.ReadMembership(op, s.Registry.Config())
		if err != nil {
			return err
		}
		l = &listed{topology: topology, since: members.Since(s.ID)}
		s.listed.Store(l)
	}
	if at >= l.since {
		return nil
	}
	return mongoerr.Newf(mongoerr.SnapshotUnavailable, "%s was on a shard that has been removed since: shard %s is another set, or was not in the cluster then", ns, s.ID)
}

// ReadsPast reports whether an operation uses the placement at the cluster time of its read.
func (s *ShardState) ReadsPast(op *command.Op) bool { return pastOf(op) != 0 }

// placement returns the placement that an operation uses: that of the cluster time that it reads at, or the current one.
func (s *ShardState) placement(op *command.Op, ns string) (*cluster.CollectionInfo, error) {
	return s.Catalog.CollectionAt(op, ns, pastOf(op))
}

// CheckSnapshot implements Sharding: it compares a read's versions with those of its time once more, when the snapshot has been taken: at the
// first comparison that time may still have been in the future.
func (s *ShardState) CheckSnapshot(op *command.Op, ns string, snap *storage.Snapshot) error {
	if pastOf(op) == 0 {
		return nil
	}
	if err := s.checkUnblocked(snap, ns, op.Req.DatabaseVer != nil); err != nil {
		return err
	}
	if op.Req.DatabaseVer != nil {
		received, err := cluster.ParseDatabaseVersion(value.NewDocument(op.Req.DatabaseVer))
		if err != nil {
			return err
		}
		if err := s.compareDatabase(op, catalog.DBOf(ns), received); err != nil {
			return err
		}
	}
	if op.Req.ShardVersion == nil {
		return nil
	}
	received, err := cluster.ParseChunkVersion(value.NewDocument(op.Req.ShardVersion))
	if err != nil {
		return err
	}
	return s.compareShard(op, ns, received)
}

// checkMoment refuses a statement of a transaction whose snapshot lies within a DDL of the collection, or before this shard had all of its present ranges or
// the collection its present UUID and shard key, unless it reads by the placement of that time.
func (s *ShardState) checkMoment(op *command.Op, ns string) error {
	t, ok := op.Txn.(transaction)
	if !ok || t.ReadTime() == 0 {
		return nil
	}
	at := uint64(t.ReadTime())
	info, err := s.placement(op, ns)
	covers := false
	switch {
	case err == nil:
		if err := s.checkUnblocked(t.ReadView(), ns, info.Map == nil); err != nil || pastOf(op) != 0 {
			return err
		}
		covers, err = s.Catalog.Covers(op, info, at)
	case mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound:
		err = nil
	}
	if err != nil {
		return err
	}
	if !covers {
		return s.sameAt(op, ns, info, at)
	}
	if info.Map == nil || info.Map.Arrived(s.ID) <= at {
		return nil
	}
	return mongoerr.Newf(mongoerr.MigrationConflict, "Collection %s has undergone a data placement change and no longer satisfies the requirements for the current transaction", ns)
}

// sameAt returns an error unless a collection without an entry in the catalog was without one at an earlier time, too, with the same database version. info is nil if
// its database does not exist.
func (s *ShardState) sameAt(op *command.Op, ns string, info *cluster.CollectionInfo, at uint64) error {
	then, err := s.Catalog.CollectionAt(op, ns, at)
	switch {
	case mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound:
		return nil // there was nothing that could be missed
	case err != nil:
		return err
	case info != nil && info.Map == nil && then.Map == nil && info.DB.Version == then.DB.Version:
		return nil
	}
	return mongoerr.Newf(mongoerr.MigrationConflict, "Collection %s has undergone a catalog change operation and no longer satisfies the requirements"+
		" for the current transaction which requires %s. Transaction will be aborted", ns, storage.Timestamp(at))
}

// checkUnblocked returns an error for a snapshot within a DDL's critical section of a collection, or of its database where that has the collection's
// placement.
func (s *ShardState) checkUnblocked(snap *storage.Snapshot, ns string, inDatabase bool) error {
	if s.sections.Load() == 0 && uint64(snap.Timestamp()) >= s.sectionsUntil.Load() {
		return nil
	}
	c := snap.Catalog().Lookup(SectionsNS)
	if c == nil {
		return nil
	}
	for _, name := range []string{ns, catalog.DBOf(ns)} {
		_, doc, ok, err := snap.FindByID(c, value.NewString(name))
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		d, err := readSectionDoc(doc)
		if err != nil || !d.reads || d.receives() || name != ns && !d.all && !inDatabase {
			continue
		}
		return mongoerr.Newf(mongoerr.SnapshotUnavailable, "Unable to read from a snapshot due to pending collection catalog changes; please retry the operation."+
			" Snapshot timestamp is %v. %s of %s was under way", snap.Timestamp(), d.why, name)
	}
	return nil
}

// ForeignSharded implements Sharding.
func (s *ShardState) ForeignSharded(op *command.Op, ns string, snap *storage.Snapshot) (sharded bool, err error) {
	info, err := s.placement(op, ns)
	if mongoerr.CodeOf(err) == mongoerr.NamespaceNotFound {
		return false, nil
	}
	if err != nil || info.Map != nil {
		return err == nil, err
	}
	if cluster.FixedDatabase(info.DB.Name) {
		return false, nil
	}
	if info.DB.Primary != s.ID {
		s.Catalog.InvalidateDatabase(info.DB.Name)
		if info, err = s.placement(op, ns); err != nil || info.Map != nil {
			return err == nil, err
		}
		if info.DB.Primary != s.ID {
			return false, cluster.StaleDbVersion(info.DB.Name, cluster.DatabaseVersion{}, &info.DB.Version)
		}
	}
	if pastOf(op) != 0 {
		return false, s.checkUnblocked(snap, ns, true)
	}
	return false, s.checkMoment(op, ns)
}
