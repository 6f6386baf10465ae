package coordinator

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A collection that moveCollection or unshardCollection has placed on a shard is sharded where it is: it is examined and gets the index on that
// shard, its home, instead of the primary shard of the database, and the catalog's entry is replaced.

// checkPlaced is check for such a collection.
func (s *shard) checkPlaced(ctx context.Context, r *run, key *cluster.ShardKeyPattern, uuid [16]byte) error {
	r.m.State.Catalog.InvalidateCollection(s.ns())
	info, err := r.m.State.Catalog.Collection(ctx, s.ns())
	if err != nil {
		return err
	}
	if info.Map == nil || info.Sharded() || info.Map.UUID != uuid {
		return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "the placement of %s is changing", s.ns())
	}
	s.at.UUID, s.at.Home, s.at.NewEpoch = uuid, info.Home(), cluster.NewObjectID()
	if s.at.Shards, err = r.shardIDs(ctx); err != nil {
		return err
	}
	_, err = s.lookThere(ctx, r, key)
	return err
}

// lookThere reads the collection from its home, and reports whether it needs an index for the key.
func (s *shard) lookThere(ctx context.Context, r *run, key *cluster.ShardKeyPattern) (needed bool, err error) {
	ns := s.ns()
	list, err := r.findAt(ctx, s.at.Home, ns, msg.Doc(&msg.ListCollections{DB: catalog.DBOf(ns), Filter: value.Doc(value.F("name", value.NewString(catalog.CollOf(ns))))}))
	if err != nil {
		return false, err
	}
	if len(list) != 1 || string(value.Lookup(value.LookupDoc(list[0], "info"), "uuid").Bytes()) != string(s.at.UUID[:]) {
		return false, mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s is not on shard %s", ns, s.at.Home)
	}
	s.at.Options = value.LookupDoc(list[0], "options")
	if value.Lookup(s.at.Options, "capped").Truthy() {
		return false, mongoerr.New(mongoerr.InvalidOptions, "can't shard a capped collection")
	}
	if err := s.checkCollation(s.at.Options); err != nil {
		return false, err
	}
	specs, err := r.findAt(ctx, s.at.Home, ns, msg.Doc(&msg.ListIndexes{DB: catalog.DBOf(ns), Coll: catalog.CollOf(ns)}))
	if err != nil {
		return false, err
	}
	s.at.Indexes = nil
	for _, spec := range specs {
		if value.Lookup(spec, "name").Str() != "_id_" {
			s.at.Indexes = append(s.at.Indexes, spec)
		}
		if s.req.Enforce && !key.AdmitsIndex(spec) {
			return false, mongoerr.Newf(mongoerr.InvalidOptions, "can't shard collection '%s' with unique index on %s and proposed shard key. Uniqueness can't be maintained unless shard key is a prefix",
				ns, value.Lookup(spec, "name").Str())
		}
	}
	first, err := r.findAt(ctx, s.at.Home, ns, cluster.Find{NS: ns, Limit: 1}.Doc())
	if err != nil {
		return false, err
	}
	s.at.Empty = len(first) == 0
	err = r.onRecipient(ctx, s.at.Home, &msg.ValidateShardKey{NS: ns, UUID: s.at.UUID, Key: s.keyDoc(), Unique: s.req.Unique})
	if mongoerr.CodeOf(err) != mongoerr.InvalidOptions {
		return false, err
	}
	return true, s.mayAddIndex(s.at.Empty)
}

// findAt reads with a command about a collection on a shard.
func (r *run) findAt(ctx context.Context, shard, ns string, cmd []byte) ([][]byte, error) {
	s, err := r.m.State.Registry.Shard(ctx, shard)
	if err != nil {
		return nil, err
	}
	return cluster.FindAll(ctx, s.Peer, catalog.DBOf(ns), cmd)
}

// makeThere creates the index that the key needs.
func (s *shard) makeThere(ctx context.Context, r *run, key *cluster.ShardKeyPattern) error {
	needed, err := s.lookThere(ctx, r, key)
	if err != nil || !needed {
		return err
	}
	if err := r.runAt(ctx, s.at.Home, s.indexOn(r, s.at.Options, key)); err != nil {
		return err
	}
	_, err = s.lookThere(ctx, r, key)
	return err
}

// undoPlaced removes what the config server may have created on shards that did not have the collection before. Its entry is
// replaced in one unit of work, so either it is the old one, or the run has passed the point of no return.
func (s *shard) undoPlaced(ctx context.Context, r *run) error {
	// This takes the name's lock on the config server: a commit that comes after it is refused.
	if err := r.allowMigrations(ctx, s.ns(), s.at.UUID, true); err != nil {
		return err
	}
	for _, id := range s.at.Shards {
		if id == s.at.Home || id == r.m.State.ID {
			continue
		}
		err := r.onShard(ctx, id, &msg.DropCollectionParticipant{NS: s.ns(), FromMigrate: true, Section: (*[16]byte)(&r.doc.id)})
		if err != nil && mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress { // which means that it holds no section there, and has created nothing
			return err
		}
	}
	for _, id := range []string{s.at.Home, r.m.State.ID} { // the primary shard has the collection too, without documents
		if s.at.NewIndex == "" {
			break
		}
		if err := r.dropIndexAt(ctx, id, s.ns(), s.at.UUID, s.at.NewIndex); err != nil {
			return err
		}
	}
	return r.block(ctx, msg.Unblock, s.at.Shards, s.names()...)
}
