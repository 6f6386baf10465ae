package coordinator

import (
	"bytes"
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// shard makes a collection sharded: with writes blocked, it creates the collection and its index here, if they are missing, and has the
// config server lay out the chunks, create the collection on the shards that get any, and write its entry last.
type shard struct {
	req *msg.ShardShardCollection
	at  msg.ShardFound
}

func (m *Coordinators) shard(op *command.Op, req *msg.ShardShardCollection, dst []byte) ([]byte, error) {
	return m.run(op, req, "", dst)
}

func (s *shard) name() string              { return "shardCollection" }
func (s *shard) locks() (string, []string) { return catalog.DBOf(s.req.NS), []string{s.req.NS} }
func (s *shard) found() msg.Message        { return &s.at }

func (s *shard) check(ctx context.Context, r *run) (local bool, err error) {
	ns := s.req.NS
	if catalog.CollOf(ns) == "" {
		return false, mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified '%s'", ns)
	}
	key, err := cluster.ParseShardKey(s.req.Key)
	if err != nil {
		return false, err
	}
	if key.IsHashed() && s.req.Unique {
		return false, mongoerr.New(mongoerr.InvalidOptions, "Hashed shard keys cannot be declared unique. It's possible to ensure uniqueness on the hashed field by declaring an additional (non-hashed) unique index on the field.")
	}
	_, e, err := r.m.entry(ctx, ns)
	if err != nil {
		return false, err
	}
	if e != nil {
		if e.Unsplittable {
			return false, s.checkPlaced(ctx, r, key, e.UUID)
		}
		if value.CompareDocs(e.Key.Doc(), key.Doc(), nil) == 0 && e.Unique == s.req.Unique {
			return false, errAlreadyDone
		}
		return false, mongoerr.Newf(mongoerr.AlreadyInitialized, "sharding already enabled for collection %s", ns)
	}
	s.at = msg.ShardFound{NewEpoch: cluster.NewObjectID()}
	if s.at.Shards, err = r.shardIDs(ctx); err != nil {
		return false, err
	}
	c, err := s.look(r)
	if err != nil || c == nil {
		return false, err
	}
	_, err = s.needsIndex(r, c, key)
	return false, err
}

// look returns the collection on this shard, nil if it has to be created, and refuses one that cannot be sharded.
func (s *shard) look(r *run) (*catalog.Collection, error) {
	ns := s.req.NS
	snap := r.m.Engine.Snapshot()
	defer snap.Release()
	c := snap.Catalog().Lookup(ns)
	if c == nil {
		v, err := namespace.ViewIn(snap, ns)
		switch {
		case err != nil || v == nil:
			return nil, err
		case v.IsTimeseries():
			return nil, mongoerr.New(mongoerr.NotImplemented, "sharding a time-series collection is not implemented")
		}
		return nil, mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", ns)
	}
	if namespace.IsBuckets(ns) {
		return nil, mongoerr.New(mongoerr.NotImplemented, "sharding a time-series collection is not implemented")
	}
	if c.Capped {
		return nil, mongoerr.New(mongoerr.InvalidOptions, "can't shard a capped collection")
	}
	return c, s.checkCollation(c.Options)
}

// checkCollation refuses a collection with a collation of its own, unless the request says that the shard key has none.
func (s *shard) checkCollation(options []byte) error {
	simple := s.req.Collation != nil && value.Lookup(s.req.Collation, "locale").Str() == "simple"
	if own := value.Lookup(options, "collation"); own.T == value.Document && !simple && value.Lookup(own.Doc(), "locale").Str() != "simple" {
		return mongoerr.New(mongoerr.BadValue, "Collection has default collation, must specify collation {locale: \"simple\"} to shard it")
	}
	return nil
}

// needsIndex reports whether an index has to be created for the key, which is only possible on an empty collection.
func (s *shard) needsIndex(r *run, c *catalog.Collection, key *cluster.ShardKeyPattern) (bool, error) {
	for _, x := range c.Indexes {
		if !x.Ready {
			return false, mongoerr.Newf(mongoerr.BackgroundOperationInProgressForNamespace, "cannot perform operation: an index build is currently running for collection '%s'", c.NS)
		}
	}
	serves, err := migration.ServesShardKey(c, key, s.req.Unique, s.req.Enforce)
	if err != nil || serves {
		return false, err
	}
	empty, err := r.m.empty(c)
	if err == nil {
		err = s.mayAddIndex(empty)
	}
	return true, err
}

func (s *shard) mayAddIndex(empty bool) error {
	if empty && s.req.ImplicitIndex {
		return nil
	}
	return mongoerr.New(mongoerr.InvalidOptions, "Please create an index that starts with the proposed shard key before sharding the collection. ")
}

// indexOn returns the createIndexes command for the key's index on a collection with these options.
func (s *shard) indexOn(options []byte, key *cluster.ShardKeyPattern) []value.Field {
	spec := []value.Field{value.F("key", value.NewDocument(key.Doc())), value.F("name", value.NewString(key.IndexName()))}
	if s.req.Unique {
		spec = append(spec, value.F("unique", value.NewBool(true)))
	}
	if value.Lookup(options, "collation").T == value.Document {
		spec = append(spec, value.F("collation", value.NewDocument(namespace.SimpleCollation)))
	}
	return []value.Field{value.F("createIndexes", value.NewString(catalog.CollOf(s.req.NS))), value.F("indexes", value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(spec...)))))}
}

func (m *Coordinators) empty(c *catalog.Collection) (bool, error) {
	snap := m.Engine.Snapshot()
	defer snap.Release()
	cur := snap.Scan(c, storage.ScanOptions{})
	defer cur.Close()
	return !cur.Next(), cur.Err()
}

func (s *shard) phases() []phase {
	return []phase{
		{name: "enterWriteCriticalSection", do: s.holdWrites},
		{name: "createCollection", do: s.makeHere},
		{name: "enterCriticalSection", do: func(ctx context.Context, r *run) error {
			return r.block(ctx, msg.BlockReadsAndWrites, s.at.Shards, s.req.NS)
		}},
		{name: "commit", do: s.commit},
		{name: "exitCriticalSection", final: true, event: s.event, do: func(ctx context.Context, r *run) error {
			return r.block(ctx, msg.Unblock, s.at.Shards, s.req.NS)
		}},
	}
}

// holdWrites blocks writes to the collection where it is, and records whether it exists and which index is missing: undoing has to
// know what there was.
func (s *shard) holdWrites(ctx context.Context, r *run) error {
	ids := []string{r.m.State.ID}
	if s.at.Home != "" && s.at.Home != r.m.State.ID {
		ids = append(ids, s.at.Home)
	}
	if err := r.block(ctx, msg.BlockWrites, ids, s.req.NS); err != nil {
		return err
	}
	key, err := cluster.ParseShardKey(s.req.Key)
	if err != nil {
		return err
	}
	var needed bool
	if s.at.Home != "" {
		needed, err = s.lookThere(ctx, r, key)
	} else {
		var c *catalog.Collection
		if c, err = s.look(r); err == nil && c != nil {
			needed, err = s.needsIndex(r, c, key)
		}
		s.at.Looked, s.at.Existed = true, c != nil
		if c != nil {
			s.at.UUID = c.UUID
		}
	}
	if err == nil && needed {
		s.at.NewIndex = key.IndexName()
	}
	return err
}

// makeHere creates the collection and the index that the key needs, by the commands that clients use for that, and records what
// other shards have to create.
func (s *shard) makeHere(ctx context.Context, r *run) error {
	key, err := cluster.ParseShardKey(s.req.Key)
	if err != nil {
		return err
	}
	if s.at.Home != "" {
		return s.makeThere(ctx, r, key)
	}
	name := value.NewString(catalog.CollOf(s.req.NS))
	c, err := s.look(r)
	if err == nil && c == nil {
		f := []value.Field{value.F("create", name)}
		if s.req.Collation != nil {
			f = append(f, value.F("collation", value.NewDocument(s.req.Collation)))
		}
		if err = r.runAt(ctx, r.m.State.ID, s.req.NS, f); err == nil {
			c, err = s.look(r)
		}
	}
	if err == nil && c == nil {
		err = mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s was dropped while it was sharded", s.req.NS)
	}
	if err != nil {
		return err
	}
	needed, err := s.needsIndex(r, c, key)
	if err != nil {
		return err
	}
	if needed {
		if err := r.runAt(ctx, r.m.State.ID, s.req.NS, s.indexOn(c.Options, key)); err != nil {
			return err
		}
		if c = r.m.Engine.Catalog().Lookup(s.req.NS); c == nil {
			return mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s was dropped while it was sharded", s.req.NS)
		}
	}
	s.at.UUID, s.at.Options, s.at.Indexes = c.UUID, bytes.Clone(c.Options), nil
	for _, x := range c.Indexes {
		if !x.IsID {
			s.at.Indexes = append(s.at.Indexes, bytes.Clone(x.Spec.Raw))
		}
	}
	s.at.Empty, err = r.m.empty(c)
	return err
}

// runAt runs a client's command about a collection on a shard, whose critical section is the run's own.
func (r *run) runAt(ctx context.Context, shard, ns string, f []value.Field) error {
	s, err := r.m.State.Registry.Shard(ctx, shard)
	if err == nil {
		_, err = cluster.RunWrite(ctx, s.Peer, value.Doc(append(f, value.F("$db", value.NewString(catalog.DBOf(ns))))...))
	}
	return err
}

// commit has the config server make the collection sharded. A failed request was not executed, unless the entry shows otherwise.
func (s *shard) commit(ctx context.Context, r *run) error {
	_, err := r.onConfig(ctx, &msg.CommitShardCollection{
		ShardCollection: s.req.ShardCollection, UUID: s.at.UUID, Options: s.at.Options, Indexes: s.at.Indexes, Empty: s.at.Empty, NewEpoch: s.at.NewEpoch, Home: s.at.Home, Run: r.name(),
	})
	if err == nil || cluster.Transient(err) || ctx.Err() != nil {
		return err
	}
	r.m.State.Catalog.InvalidateCollection(s.req.NS)
	info, ierr := r.m.State.Catalog.Collection(ctx, s.req.NS)
	switch {
	case ierr != nil:
		return mongoerr.New(mongoerr.HostUnreachable, ierr.Error())
	case info.Sharded() && info.Map.Version().Epoch == s.at.NewEpoch:
		return nil
	}
	return err
}

func (s *shard) event() event {
	return event{ns: s.req.NS, uuid: s.at.UUID, doc: value.Doc(
		value.F("shardCollection", value.NewString(s.req.NS)), value.F("shardKey", value.NewDocument(s.req.Key)), value.F("unique", value.NewBool(s.req.Unique)),
		value.F("numInitialChunks", value.NewInt64(s.req.Chunks)), value.F("presplitHashedZones", value.NewBool(s.req.Presplit)))}
}

// undo removes what the config server may have created, its entry first, and the collection here if the run has created it.
func (s *shard) undo(ctx context.Context, r *run) error {
	if s.at.Home != "" {
		return s.undoPlaced(ctx, r)
	}
	ns, section := s.req.NS, (*[16]byte)(&r.doc.id)
	if s.at.NewIndex != "" {
		if err := r.dropIndexAt(ctx, r.m.State.ID, ns, s.at.UUID, s.at.NewIndex); err != nil {
			return err
		}
	}
	if s.at.UUID != [16]byte{} {
		if _, err := r.onConfig(ctx, &msg.RemoveCollection{NS: ns, UUID: s.at.UUID}); err != nil {
			return err
		}
		for _, id := range s.at.Shards[:len(s.at.Shards)-1] {
			err := r.onShard(ctx, id, &msg.DropCollectionParticipant{NS: ns, FromMigrate: true, Section: section})
			if err != nil && mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress { // which means that it holds no section there, and has created nothing
				return err
			}
		}
	}
	if c := r.m.Engine.Catalog().Lookup(ns); c != nil && s.at.Looked && !s.at.Existed {
		empty, err := r.m.empty(c)
		if err == nil && empty {
			err = r.onShard(ctx, r.m.State.ID, &msg.DropCollectionParticipant{NS: ns, Section: section})
		}
		if err != nil && mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress {
			return err
		}
	}
	return r.block(ctx, msg.Unblock, s.at.Shards, ns)
}

func (s *shard) reply(dst []byte) []byte {
	return value.Append(dst, "collectionsharded", value.NewString(s.req.NS))
}
