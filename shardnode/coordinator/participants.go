package coordinator

import (
	"context"
	"slices"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// onConfig sends a message to the config server.
func (r *run) onConfig(ctx context.Context, m msg.Message) ([]byte, error) {
	config := r.m.State.Registry.Config()
	defer r.asks(config)()
	return cluster.RunWrite(ctx, config, r.message(m))
}

// name identifies the run to other nodes.
func (r *run) name() msg.RunOf { return msg.RunOf{Coordinator: r.m.State.ID, ID: r.doc.id} }

// phase identifies the run to other nodes for what it must not do once it has left its present phase: the message may be late, of a primary that was paused, or of this one.
func (r *run) phase() msg.RunOf {
	of := r.name()
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	of.Phase = r.at
	return of
}

// sends returns the field that identifies the run in a client's command that it sends to a shard.
func (r *run) sends(m msg.RunMessage) value.Field {
	m.RunOf = r.name()
	return value.F(msg.RunArgument, value.NewDocument(fieldsOf(&m)))
}

// onShard sends a message to a shard. Shards removed from the cluster are skipped.
func (r *run) onShard(ctx context.Context, id string, m msg.Message) error {
	s, err := r.m.State.Registry.Shard(ctx, id)
	if mongoerr.CodeOf(err) == mongoerr.ShardNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.asks(s.Peer)()
	_, err = cluster.RunWrite(ctx, s.Peer, r.message(m))
	if err != nil && ctx.Err() == nil && cluster.Retryable(err) && r.hasLeft(ctx, id) {
		return nil
	}
	return err
}

// hasLeft reports whether a shard that does not answer is no longer in the cluster. A removed shard had no documents left, so the run need not wait for it.
func (r *run) hasLeft(ctx context.Context, id string) bool {
	if err := r.m.State.Registry.Reload(ctx); err != nil {
		return false
	}
	_, err := r.m.State.Registry.Shard(ctx, id)
	return mongoerr.CodeOf(err) == mongoerr.ShardNotFound
}

// onEach sends a message to each of several shards, concurrently.
func (r *run) onEach(ctx context.Context, ids []string, m func(id string) msg.Message) error {
	return r.toEach(ids, func(id string) error { return r.onShard(ctx, id, m(id)) })
}

// toEach calls do for each of several shards, concurrently.
func (r *run) toEach(ids []string, do func(id string) error) error {
	errs := make(chan error, len(ids))
	for _, id := range ids {
		go func() { errs <- do(id) }()
	}
	var all []error
	for range ids {
		if err := <-errs; err != nil {
			all = append(all, err)
		}
	}
	if len(all) == 0 {
		return nil
	}
	for _, err := range all { // permanent errors first
		if !cluster.Transient(err) {
			return err
		}
	}
	return all[0]
}

// onEachThenHere sends a message to each of several shards; to this one, the last of them, after the others have replied.
func (r *run) onEachThenHere(ctx context.Context, ids []string, m func(id string) msg.Message) error {
	here := ids[len(ids)-1]
	if err := r.onEach(ctx, ids[:len(ids)-1], m); err != nil {
		return err
	}
	return r.onShard(ctx, here, m(here))
}

// commit changes the catalog and, meanwhile, what each shard has under names that they all block. The decision has been made before, by the phase that has entered the sections: a primary that continues the run
// there goes forward, too. Until the sections end, no reader sees a part of the change.
//
// Sets that have joined the cluster meanwhile do their parts after the others, which are asked once more and find theirs done: a set may have joined under the name of one that has left.
func (r *run) commit(ctx context.Context, entry msg.Message, alone bool, shards *[]string, names []string, part func(id string) msg.Message) error {
	catalog := make(chan error, 1)
	go func() {
		_, err := r.onConfig(ctx, entry)
		catalog <- err
	}()
	err := r.onEach(ctx, *shards, part)
	if cerr := <-catalog; err == nil {
		err = cerr
	}
	if err != nil || alone {
		return err
	}
	entered := r.entered
	if err := r.blockJoined(ctx, shards, names...); err != nil || r.entered == entered {
		return err
	}
	return r.onEach(ctx, *shards, part)
}

// release ends the run's critical sections: those of the other shards now, once all shards have done their parts, and this shard's in the unit of work that removes the state document (run.remove). Until
// then the name is blocked on this shard, to which nodes send what has no entry.
//
// Neither need be durable when the client is answered, but for zones (rezoning). If the removal is lost, the phases are repeated and find everything done: whatever has happened to the names since
// comes after the removal in this shard's log, and is lost with it. If the end of another shard's section is lost, the section belongs to no run (ShardState.endLeftOver).
func (r *run) release(ctx context.Context, shards []string, names ...string) error {
	err := r.block(ctx, msg.Unblock, shards[:len(shards)-1], names...) // this one is the last
	if err == nil {
		r.releases = names
	}
	return err
}

// block begins or ends the run's critical section of names on shards. It also ends the sections of shards that joined and may have entered them before another one
// refused.
func (r *run) block(ctx context.Context, kind string, ids []string, names ...string) error {
	if kind == msg.Unblock {
		ids = slices.Compact(slices.Sorted(slices.Values(slices.Concat(ids, r.joining))))
	}
	return r.onEach(ctx, ids, func(string) msg.Message { return r.participantBlock(kind, names...) })
}

// blockListed has all sets in the list of shards enter the run's critical section of names, if the list has changed since that was known of them, and adds the shards that have joined to those that
// the operation has listed. With its section on every shard, an operation has the collection to itself, without forbidding migrations:
//
// Invariant: when it returns, and until the section ends, no migration of the collection is committed. A donor sends its commit within its own critical
// section, and the two sections exclude each other on the donor (Sections.enter, ShardState.EnterCritical), even while a new primary of the donor has yet to
// learn the outcome of a commit (holdUndecided). All owners of chunks are among the sets that have entered: each of them had joined before it received its first
// chunk, at the latest from a shard that is blocked now. And a recipient does not create a collection that would outlive the operation (admitsCopy).
//
// Hazard: a shard's name does not identify its set. One that is removed may be followed by another under its name, which receives chunks before the message reaches the former one. r.entered is therefore a
// topology time that was read before the messages were sent: they have gone to the sets of then, or to later ones. Rejected: comparing the names; and the time at which all have replied, which may be that of a set that
// was not asked.
func (r *run) blockListed(ctx context.Context, shards *[]string, kind string, names ...string) error {
	for {
		now, err := r.shardIDs(ctx)
		if err != nil {
			return err
		}
		listed := r.m.State.Registry.Topology()
		joined := slices.DeleteFunc(now, func(id string) bool { return slices.Contains(*shards, id) })
		if listed == r.entered && len(joined) == 0 {
			return nil
		}
		others := (*shards)[:len(*shards)-1] // this one is the last
		if err := r.block(ctx, kind, slices.Concat(joined, others), names...); err != nil {
			r.joining = slices.Compact(slices.Sorted(slices.Values(slices.Concat(r.joining, joined))))
			return err
		}
		*shards, r.entered = append(joined, *shards...), listed
	}
}

// blockJoined has shards that have joined since they were listed enter the run's critical section of names, too, and adds them to those that the operation has listed. It follows the change of the
// catalog: before it, a shard that has joined may have been given an empty copy of the collection for a migration, which cannot commit any more, and which would keep the former name.
//
// Invariant: a shard with such a copy is added. None is created after the change of the catalog (admitsCopy), and the config server's reply to the change has brought the topology time of
// each shard for which it has had one created before.
func (r *run) blockJoined(ctx context.Context, shards *[]string, names ...string) error {
	if r.m.State.Clock.Topology() <= r.entered {
		return nil
	}
	return r.blockListed(ctx, shards, msg.BlockReadsAndWrites, names...)
}

// participantBlock is the message that begins or ends the run's critical section of names. An operation that is not executed beside index builds is refused by the
// shard that has one, under the locks by which a section waits for writers and for the beginning of builds: while the section lasts, none begins.
//
// A run that another primary has begun may be beyond the point of no return, and is not refused: a build that has begun before the section goes on under the new
// name, or ends with the collection that is dropped.
func (r *run) participantBlock(kind string, names ...string) *msg.ParticipantBlock {
	_, whole := r.doc.op.(*dropDatabase) // with the sharded collections of the database
	return &msg.ParticipantBlock{NS: names[0], Also: names[1:], Type: kind, Command: r.doc.op.name(), Owner: r.m.State.ID, ID: r.doc.id, Term: r.doc.term, AllCollections: whole,
		NoBuilds: kind != msg.Unblock && !r.continued && len(refusedFor(r.doc.op)) > 0}
}

// shardIDs returns the ids of all shards, this one last. If one of them cannot be reached because its entry is invalid, it returns an error: it may have some of what the run is about to change.
func (r *run) shardIDs(ctx context.Context) ([]string, error) {
	err := r.m.State.Registry.Reload(ctx)
	if err == nil {
		err = r.m.State.Registry.Complete()
	}
	if err != nil {
		return nil, err
	}
	all, err := r.m.State.Registry.All(ctx)
	var ids []string
	for _, s := range all {
		if s.ID != r.m.State.ID {
			ids = append(ids, s.ID)
		}
	}
	slices.Sort(ids)
	return append(ids, r.m.State.ID), err
}

// concerned returns the ids of the shards that an operation blocks, this one last: with alone, of a collection without an entry in the catalog, this one. Requests for such a
// collection are refused by all others, by the version of the database, and movePrimary waits for the operation's DDL locks.
func (r *run) concerned(ctx context.Context, alone bool) ([]string, error) {
	if alone {
		return []string{r.m.State.ID}, nil
	}
	return r.shardIDs(ctx)
}

// readCatalog reads documents of the sharding catalog that include the changes of all earlier operations, which this
// shard has coordinated or, if it was not yet the primary shard, learned of with its request. A plain read could be answered by a deposed primary of the
// config server that does not know it yet: a drop would then find no entry, and leave the documents of the other shards.
func (m *Coordinators) readCatalog(ctx context.Context, coll string, filter []byte) ([][]byte, error) {
	return cluster.FindConfig(ctx, m.State.Registry.Config(), cluster.Find{NS: "config." + coll, Filter: filter}.Doc())
}

// entry reads a collection's catalog entry from the config server; nil if there is none.
func (m *Coordinators) entry(ctx context.Context, ns string) ([]byte, *cluster.CollectionEntry, error) {
	docs, err := m.readCatalog(ctx, "collections", value.Doc(value.F("_id", value.NewString(ns))))
	if err != nil || len(docs) == 0 {
		return nil, nil, err
	}
	e, err := cluster.ParseCollectionEntry(docs[0])
	return docs[0], e, err
}

// entriesOf reads the catalog's entries of a database's collections.
func (m *Coordinators) entriesOf(ctx context.Context, db string) (out []*cluster.CollectionEntry, err error) {
	within := value.NewDocument(value.Doc(value.F("$gt", value.NewString(db+".")), value.F("$lt", value.NewString(db+"/"))))
	docs, err := m.readCatalog(ctx, "collections", value.Doc(value.F("_id", within)))
	if err != nil {
		return nil, err
	}
	for _, doc := range docs {
		e, err := cluster.ParseCollectionEntry(doc)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// checkUUID compares a collection's UUID with the one that a client expects, if any. This shard has the definitions of all collections of the database.
func (m *Coordinators) checkUUID(ns string, have [16]byte, want *[16]byte) error {
	if want == nil || have == *want {
		return nil
	}
	return namespace.UUIDMismatch(m.Engine.Catalog(), ns, catalog.UUID(*want))
}
