package coordinator

import (
	"bytes"
	"cmp"
	"context"
	"slices"

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

// shard makes a collection sharded: with writes blocked, it creates the collection and its index here, if they are missing, and makes the
// config server lay out the chunks, create the collection on the shards that get any, and write its entry last.
type shard struct {
	req *msg.ShardShardCollection
	at  msg.ShardFound
}

func (m *Coordinators) shard(op *command.Op, req *msg.ShardShardCollection, dst []byte) ([]byte, error) {
	return m.run(op, req, "", dst)
}

func (s *shard) name() string { return "shardCollection" }
func (s *shard) locks() (string, []string) {
	return catalog.DBOf(s.req.NS), lockedWithBuckets(s.req.NS)
}
func (s *shard) found() msg.Message { return &s.at }

// ns returns the namespace that is sharded: that of the buckets for a time series collection.
func (s *shard) ns() string {
	if s.at.Buckets != "" {
		return s.at.Buckets
	}
	return s.req.NS
}

// names returns the namespaces of the critical sections.
func (s *shard) names() []string {
	if s.at.Buckets != "" {
		return []string{s.at.Buckets, s.req.NS}
	}
	return []string{s.req.NS}
}

// keyDoc returns the shard key in terms of the documents that are stored.
func (s *shard) keyDoc() []byte {
	if s.at.Buckets != "" {
		return s.at.BucketKey
	}
	return s.req.Key
}

func (s *shard) check(ctx context.Context, r *run) (local bool, err error) {
	if catalog.CollOf(s.req.NS) == "" {
		return false, mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified '%s'", s.req.NS)
	}
	if err := command.CheckShardedNamespace(s.req.NS); err != nil && !s.req.Unsplittable {
		return false, err
	}
	if err := s.resolveSeries(r); err != nil {
		return false, err
	}
	ns := s.ns()
	key, err := cluster.ParseShardKey(s.keyDoc())
	if err != nil {
		return false, err
	}
	if key.IsHashed() && s.req.Unique {
		return false, mongoerr.New(mongoerr.InvalidOptions, "Hashed shard keys cannot be declared unique. It's possible to ensure uniqueness on the hashed field by declaring an additional (non-hashed) unique index on the field.")
	}
	if err := s.checkKeyCollation(); err != nil {
		return false, err
	}
	raw, e, err := r.m.entry(ctx, ns)
	if err != nil {
		return false, err
	}
	if e != nil {
		if err := s.checkSeries(value.LookupDoc(raw, "timeseriesFields")); err != nil {
			return false, err
		}
		if s.req.Unsplittable {
			return false, s.checkTracked(ctx, r, e)
		}
		if e.Unsplittable {
			return false, s.checkPlaced(ctx, r, key, e.UUID)
		}
		if value.CompareDocs(e.Key.Doc(), key.Doc(), nil) == 0 && e.Unique == s.req.Unique {
			return false, errAlreadyDone
		}
		return false, mongoerr.Newf(mongoerr.AlreadyInitialized, "sharding already enabled for collection %s", s.req.NS)
	}
	s.at.NewEpoch = cluster.NewObjectID()
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

// checkTracked compares the entry of a collection that is to be tracked with the request.
func (s *shard) checkTracked(ctx context.Context, r *run, e *cluster.CollectionEntry) error {
	r.m.State.Catalog.InvalidateCollection(s.ns())
	info, err := r.m.State.Catalog.Collection(ctx, s.ns())
	if err != nil {
		return err
	}
	if e.Unsplittable && !info.Sharded() && info.Home() == cmp.Or(s.req.DataShard, r.m.State.ID) {
		if r.m.Engine.Catalog().Lookup(s.ns()) == nil {
			return errAlreadyDone
		}
		if err := r.runAt(ctx, r.m.State.ID, s.create()); err != nil { // this shard has the definition: it compares the options, and creates nothing
			return err
		}
		return errAlreadyDone
	}
	return mongoerr.Newf(mongoerr.AlreadyInitialized, "collection %s is already tracked with other options, or on another shard", s.req.NS)
}

// look returns the collection on this shard, nil if it has to be created, and refuses one that cannot be sharded.
func (s *shard) look(r *run) (*catalog.Collection, error) {
	ns := s.ns()
	snap := r.m.Engine.Snapshot()
	defer snap.Release()
	c := snap.Catalog().Lookup(ns)
	if c == nil {
		v, err := namespace.ViewIn(snap, s.req.NS)
		if err != nil || v == nil {
			return nil, err
		}
		return nil, mongoerr.Newf(mongoerr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", ns)
	}
	if namespace.IsBuckets(ns) {
		return c, s.checkSeries(namespace.SeriesIn(c).Options.Doc())
	}
	if s.req.Unsplittable {
		return c, nil
	}
	if c.Capped {
		return nil, mongoerr.New(mongoerr.InvalidOptions, "can't shard a capped collection")
	}
	return c, s.checkCollation(c.Options)
}

// checkKeyCollation refuses a collation other than the simple one: chunks are compared by it alone, so that a shard key has no other, whatever the collection has. The collation
// of what is tracked and not sharded is that of the collection.
func (s *shard) checkKeyCollation() error {
	if s.req.Unsplittable || s.req.Collation == nil || value.Lookup(s.req.Collation, "locale").Str() == "simple" {
		return nil
	}
	return mongoerr.Newf(mongoerr.BadValue, "The collation for shardCollection must be {locale: 'simple'}, but found: %s", value.ShowDoc(s.req.Collation))
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
	if s.req.Unsplittable { // it has no shard key
		return false, nil
	}
	if err := storage.CheckNoBuild(c); err != nil {
		return false, err
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
func (s *shard) indexOn(r *run, options []byte, key *cluster.ShardKeyPattern) []byte {
	spec := []value.Field{value.F("key", value.NewDocument(s.indexKey(key).Doc())), value.F("name", value.NewString(s.indexName(key)))}
	if s.req.Unique {
		spec = append(spec, value.F("unique", value.NewBool(true)))
	}
	if value.Lookup(options, "collation").T == value.Document {
		spec = append(spec, value.F("collation", value.NewDocument(namespace.SimpleCollation)))
	}
	return msg.Doc(&msg.CreateIndexes{DB: catalog.DBOf(s.ns()), Coll: catalog.CollOf(s.ns()), Indexes: [][]byte{value.Doc(spec...)}, Measurements: s.at.Buckets != ""}, r.sends(msg.RunMessage{}))
}

func (m *Coordinators) empty(c *catalog.Collection) (bool, error) {
	snap := m.Engine.Snapshot()
	defer snap.Release()
	cur := snap.Scan(c, storage.ScanOptions{})
	defer cur.Close()
	return !cur.Next(), cur.Err()
}

func (s *shard) phases() []phase {
	ev := s.event
	if s.req.Unsplittable {
		ev = nil
	}
	return []phase{
		{name: "enterWriteCriticalSection", do: s.holdWrites},
		{name: "createCollection", do: s.makeHere},
		{name: "enterCriticalSection", section: s.names(), shards: &s.at.Shards},
		{name: "commit", do: s.commit},
		{name: "exitCriticalSection", final: true, harmless: true, event: ev, do: func(ctx context.Context, r *run) error {
			return r.block(ctx, msg.Unblock, s.at.Shards, s.names()...)
		}},
	}
}

// holdWrites blocks writes to the collection where it is, and records whether it exists and which index is missing: undo has to
// know what existed before.
func (s *shard) holdWrites(ctx context.Context, r *run) error {
	ids := []string{r.m.State.ID}
	if s.at.Home != "" && s.at.Home != r.m.State.ID {
		ids = append(ids, s.at.Home)
	}
	if err := r.block(ctx, msg.BlockWrites, ids, s.names()...); err != nil {
		return err
	}
	key, err := cluster.ParseShardKey(s.keyDoc())
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
			s.at.UUID, s.at.Indexes = c.UUID, indexSpecs(c)
		}
	}
	if name := s.indexName(key); err == nil && needed && !slices.ContainsFunc(s.at.Indexes, func(spec []byte) bool { return value.Lookup(spec, "name").Str() == name }) {
		s.at.NewIndex = name // one of that name that does not serve the key is the user's: it makes the run fail, and stays
	}
	return err
}

// indexSpecs returns the specifications of a collection's indexes but that of _id.
func indexSpecs(c *catalog.Collection) (specs [][]byte) {
	for _, x := range c.Indexes {
		if !x.IsID {
			specs = append(specs, bytes.Clone(x.Spec.Raw))
		}
	}
	return specs
}

// indexName returns the name of the index that is created for the key.
func (s *shard) indexName(key *cluster.ShardKeyPattern) string { return s.indexKey(key).IndexName() }

// indexKey returns the key of that index, in terms of measurements for a time series collection.
func (s *shard) indexKey(key *cluster.ShardKeyPattern) *cluster.ShardKeyPattern {
	if s.at.Buckets != "" {
		if user, err := cluster.ParseShardKey(s.req.Key); err == nil {
			return user
		}
	}
	return key
}

// makeHere creates the collection and the index that the key needs, by the commands that clients use for that, and records what
// other shards have to create.
func (s *shard) makeHere(ctx context.Context, r *run) error {
	key, err := cluster.ParseShardKey(s.keyDoc())
	if err != nil {
		return err
	}
	if s.at.Home != "" {
		return s.makeThere(ctx, r, key)
	}
	c, err := s.look(r)
	if err == nil && (c == nil || s.req.Create != nil) { // create refuses options that differ from the existing ones
		if err = r.runAt(ctx, r.m.State.ID, s.create()); err == nil {
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
		if err := r.runAt(ctx, r.m.State.ID, s.indexOn(r, c.Options, key)); err != nil {
			return err
		}
		if c = r.m.Engine.Catalog().Lookup(s.ns()); c == nil {
			return mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s was dropped while it was sharded", s.req.NS)
		}
	}
	s.at.UUID, s.at.Options, s.at.Indexes = c.UUID, bytes.Clone(c.Options), indexSpecs(c)
	s.at.Empty, err = r.m.empty(c)
	return err
}

// create returns the command that creates the collection.
func (s *shard) create() []byte {
	m := &msg.Create{DB: catalog.DBOf(s.req.NS), Coll: catalog.CollOf(s.req.NS)}
	if s.req.Create == nil {
		m.Collation, m.TimeSeries = s.req.Collation, s.req.TimeSeries
		return msg.Doc(m)
	}
	var options [][]byte
	for it := value.Walk(s.req.Create); ; {
		raw, _, _, ok := it.NextRaw()
		if !ok {
			return msg.With(m, options...)
		}
		options = append(options, raw)
	}
}

// runAt runs a client's command about a collection on a shard, whose critical section is the run's own.
func (r *run) runAt(ctx context.Context, shard string, cmd []byte) error {
	s, err := r.m.State.Registry.Shard(ctx, shard)
	if err == nil {
		defer r.asks(s.Peer)()
		_, err = cluster.RunWrite(ctx, s.Peer, cmd)
	}
	return err
}

// commit has the config server make the collection sharded. A failed request was not executed, unless the entry shows otherwise.
//
// The config server may give chunks to shards that have joined since the others were blocked, and creates the collection only where it is blocked.
func (s *shard) commit(ctx context.Context, r *run) error {
	if err := r.blockListed(ctx, &s.at.Shards, msg.BlockReadsAndWrites, s.names()...); err != nil {
		return err
	}
	args := s.req.ShardCollection
	args.NS, args.Key, args.Create = s.ns(), s.keyDoc(), nil
	_, err := r.onConfig(ctx, &msg.CommitShardCollection{
		ShardCollection: args, UUID: s.at.UUID, Options: s.at.Options, Indexes: s.at.Indexes, Empty: s.at.Empty, NewEpoch: s.at.NewEpoch, Home: s.at.Home, Run: r.name(),
	})
	if err == nil || cluster.Transient(err) || ctx.Err() != nil {
		return err
	}
	r.m.State.Catalog.InvalidateCollection(s.ns())
	info, ierr := r.m.State.Catalog.Collection(ctx, s.ns())
	switch {
	case mongoerr.CodeOf(ierr) == mongoerr.NamespaceNotFound: // its database does not exist either
		return err
	case ierr != nil:
		return mongoerr.New(mongoerr.HostUnreachable, ierr.Error())
	case info.Map != nil && info.Map.Version().Epoch == s.at.NewEpoch:
		return nil
	}
	return err
}

func (s *shard) event() event {
	return event{ns: s.ns(), uuid: s.at.UUID, doc: value.Doc(
		value.F("shardCollection", value.NewString(s.ns())), value.F("shardKey", value.NewDocument(s.keyDoc())), value.F("unique", value.NewBool(s.req.Unique)),
		value.F("numInitialChunks", value.NewInt64(s.req.Chunks)), value.F("presplitHashedZones", value.NewBool(s.req.Presplit)))}
}

// undo removes what the config server may have created, its entry first, and the collection here if the run has created it.
func (s *shard) undo(ctx context.Context, r *run) error {
	if s.at.Home != "" {
		return s.undoPlaced(ctx, r)
	}
	ns, section := s.ns(), (*[16]byte)(&r.doc.id)
	if s.at.NewIndex != "" {
		if err := r.dropIndexAt(ctx, r.m.State.ID, ns, s.at.UUID, s.at.NewIndex); err != nil {
			return err
		}
	}
	if s.at.UUID != [16]byte{} {
		run := r.name()
		if _, err := r.onConfig(ctx, &msg.RemoveCollection{NS: ns, UUID: s.at.UUID, Untrack: s.at.Existed, Run: &run, Undo: true}); err != nil { // one that existed stays sampled
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
			err = r.onShard(ctx, r.m.State.ID, &msg.DropCollectionParticipant{NS: s.req.NS, Section: section}) // a time series with its view
		}
		if err != nil && mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress {
			return err
		}
	}
	return r.block(ctx, msg.Unblock, s.at.Shards, s.names()...)
}

func (s *shard) reply(dst []byte) []byte {
	if s.req.Unsplittable {
		return dst
	}
	return value.Append(dst, "collectionsharded", value.NewString(s.req.NS))
}
