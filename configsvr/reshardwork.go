package configsvr

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// This file has the work of each state of a resharding.

// initialize stops migrations, and writes the table of the temporary collection.
func (r *resharding) initialize(ctx context.Context) error {
	m, d := r.m, r.doc
	if err := r.freeze(ctx, true); err != nil {
		return err
	}
	p, _, err := m.planReshard(ctx, d.ns, &d.want)
	if err != nil {
		return err
	}
	if p.uuid != d.uuid {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s is not the one to be resharded: its UUID differs", d.ns)
	}
	chunks, err := p.layout(ctx)
	if err != nil {
		return err
	}
	// The primary shard of the database has each of its collections, at least their definitions.
	d.donors, d.recipients, d.idle = slices.Clone(p.info.Shards()), []string{p.db.Primary}, nil
	for _, c := range chunks {
		d.recipients = append(d.recipients, c.shard)
	}
	slices.Sort(d.recipients)
	d.recipients = slices.Compact(d.recipients)
	d.idle = r.copies(ctx, p.db.Name)
	return r.writeTable(ctx, p, chunks)
}

// copiesWait limits the wait for shards without chunks.
const copiesWait = time.Second

// copies lists the shards that are neither donors nor recipients and have the collection, which the commit drops there. One that does not reply keeps it: a
// shard that has nothing of the collection's documents must not prevent the operation. Migrations must be forbidden already: a recipient that creates its copy
// after this drops it itself.
func (r *resharding) copies(ctx context.Context, db string) (ids []string) {
	ctx, cancel := context.WithTimeout(ctx, copiesWait)
	defer cancel()
	all, err := r.m.registry.All(ctx)
	if err != nil {
		return nil
	}
	taking := r.participants()
	_, coll := cluster.SplitNS(r.doc.ns)
	list := msg.Doc(&msg.ListCollections{DB: db, Filter: value.Doc(fld("name", str(coll)))})
	found := make(chan string, len(all))
	for _, s := range all {
		go func() {
			if !slices.Contains(taking, s.ID) {
				if docs, err := cluster.FindAll(ctx, s.Peer, db, list); err == nil && len(docs) > 0 {
					found <- s.ID
					return
				}
			}
			found <- ""
		}()
	}
	for range all {
		if id := <-found; id != "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// freeze forbids migrations of the collection, or allows them again. It waits for a change of the collection's zones that has begun before (keepsZones).
func (r *resharding) freeze(ctx context.Context, on bool) error {
	if !r.doc.tracked {
		return nil
	}
	return r.m.permitMigrations(ctx, r.doc.ns, r.doc.uuid, !on)
}

// writeTable writes the chunks of the temporary collection, and its entry.
func (r *resharding) writeTable(ctx context.Context, p *reshardPlan, chunks []placed) error {
	m := r.m
	unlock, err := m.lockTables(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return m.place(ctx, chunkShards(chunks), func([]*cluster.Shard) error { return r.putTable(ctx, chunks) })
}

func (r *resharding) putTable(ctx context.Context, chunks []placed) error {
	m, d := r.m, r.doc
	if err := m.removeChunks(ctx, d.id); err != nil {
		return err
	}
	gen := cluster.ChunkVersion{Major: 1, Epoch: cluster.NewObjectID(), Timestamp: m.tick()}
	docs := make([]value.Value, len(chunks))
	v := gen
	for i, c := range chunks {
		docs[i] = chunkDoc(cluster.NewObjectID(), d.id, c, v, []cluster.Owner{{ValidAfter: gen.Timestamp, Shard: c.shard}})
		v = v.IncMinor()
	}
	for len(docs) > 0 {
		n := min(len(docs), 1000)
		if err := m.insert(ctx, "chunks", docs[:n]...); err != nil {
			return err
		}
		docs = docs[n:]
	}
	entry := r.entryOf(d.temp, gen, nil)
	entry = append(entry, fld("permitMigrations", value.NewBool(false)), fld("noBalance", value.NewBool(true)), fld("enableAutoMerge", value.NewBool(false)))
	_, err := m.update(ctx, "collections", doc(fld("_id", str(d.temp))), doc(entry...), true)
	return err
}

// entryOf returns the collection's new entry, with the fields of the old one that remain.
func (r *resharding) entryOf(ns string, gen cluster.ChunkVersion, old []byte) []value.Field {
	d := r.doc
	f := []value.Field{
		fld("_id", str(ns)), fld("lastmodEpoch", value.NewObjectID(gen.Epoch)), fld("lastmod", value.NewTime(r.m.now())),
		fld("timestamp", value.NewTimestampU64(gen.Timestamp)), fld("uuid", value.NewBinary(4, d.id[:])), fld("key", value.NewDocument(d.key)), fld("unique", value.NewBool(false)),
	}
	if len(d.collation) > 0 {
		f = append(f, fld("defaultCollation", value.NewDocument(d.collation)))
	}
	if len(d.series) > 0 {
		f = append(f, fld("timeseriesFields", value.NewDocument(d.series)))
	}
	for _, name := range []string{"noBalance", "allowMigrations", "maxChunkSizeBytes", "enableAutoMerge"} {
		if v := value.Lookup(old, name); !v.IsMissing() {
			f = append(f, fld(name, v))
		}
	}
	if d.want.Provenance != msg.ReshardCollection {
		f = append(f, fld("unsplittable", value.NewBool(true)))
	}
	return f
}

// participants lists the shards that take part.
func (r *resharding) participants() []string {
	all := slices.Concat(r.doc.donors, r.doc.recipients, r.doc.idle)
	slices.Sort(all)
	return slices.Compact(all)
}

// send sends a message to a shard that takes part. One that has left the cluster is passed over if the operation can do without it.
func (r *resharding) send(ctx context.Context, id string, cmd []byte) error {
	_, err := r.m.runOn(ctx, id, cmd)
	if err != nil && ctx.Err() == nil && r.dispensable(id) && r.m.hasLeft(ctx, id) {
		return nil
	}
	return err
}

// dispensable reports whether the operation can do without a shard: at any time without one that has an empty copy at most, and without any once it has to end
// in one way alone. Donors and recipients cannot leave while they are needed (holds), but an undo or an end may be repeated when they no longer are.
//
// Rejected: idle shards that cannot be removed while a resharding lists them. None of its documents depends on them, and a clone may take days.
func (r *resharding) dispensable(id string) bool {
	switch r.doc.state {
	case reshardCommitting, reshardDone, reshardAborting:
		return true
	}
	return !slices.Contains(r.doc.donors, id) && !slices.Contains(r.doc.recipients, id)
}

// hasLeft reports whether a shard that cannot do its part is no longer in the cluster.
func (m *Manager) hasLeft(ctx context.Context, id string) bool {
	if err := m.registry.Reload(ctx); err != nil {
		return false
	}
	_, err := m.registry.Listed(ctx, id)
	return mongoerr.CodeOf(err) == mongoerr.ShardNotFound
}

// sendEach sends one message to each shard concurrently. If any fails permanently, it returns that error in preference to transient ones.
func (r *resharding) sendEach(ctx context.Context, ids []string, m func(id string) msg.Message, more ...value.Field) error {
	errs := make([]error, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() {
			errs[i] = r.send(ctx, id, msg.Doc(m(id), more...))
		})
	}
	wg.Wait()
	var first error
	for _, err := range errs {
		if err != nil && (first == nil || !transient(err)) {
			first = err
		}
	}
	return first
}

func (r *resharding) header() msg.Resharding { return msg.Resharding{NS: r.doc.ns, ID: r.doc.id} }

// prepare makes donors keep their oplogs, and creates the temporary collection on recipients with the collection's current definition, which DDL
// cannot change from then on.
func (r *resharding) prepare(ctx context.Context) error {
	m, d := r.m, r.doc
	d.docs, d.bytes, d.cloneAt = 0, 0, 0
	for _, id := range d.donors {
		body, err := m.onShard(ctx, id, &msg.ReshardDonate{Resharding: r.header(), UUID: d.uuid, Temp: d.temp, Command: d.command(), Recipients: d.recipients})
		if err != nil {
			return err
		}
		var reply msg.ReshardDonateReply
		if err := msg.Parse(body, &reply); err != nil {
			return err
		}
		d.docs, d.bytes, d.cloneAt = d.docs+reply.Docs, d.bytes+reply.Bytes, max(d.cloneAt, reply.MinFetch)
	}
	p, _, err := m.planReshard(ctx, d.ns, &d.want)
	if err != nil {
		return err
	}
	return r.sendEach(ctx, d.recipients, func(string) msg.Message {
		return &msg.CreateCollectionParticipant{NS: d.temp, UUID: d.id, Options: withoutUUID(p.options), Indexes: p.indexes}
	})
}

func withoutUUID(options []byte) []byte {
	var f []value.Field
	for k, v := range value.Elements(options) {
		if k != "uuid" {
			f = append(f, fld(k, v))
		}
	}
	return value.Doc(f...)
}

// pollRecipients is the interval at which recipients are asked for their progress.
const pollRecipients = 50 * time.Millisecond

// clone starts the recipients, and waits until all have cloned their documents.
func (r *resharding) clone(ctx context.Context) error {
	d := r.doc
	share := int64(len(d.recipients))
	err := r.sendEach(ctx, d.recipients, func(string) msg.Message {
		return &msg.ReshardReceive{Resharding: r.header(), UUID: d.uuid, Temp: d.temp, Command: d.command(), Donors: d.donors, CloneAt: d.cloneAt, Docs: d.docs / share, Bytes: d.bytes / share}
	})
	if err != nil {
		return err
	}
	return r.poll(ctx, func(far []msg.ReshardProgressReply) bool {
		return !slices.ContainsFunc(far, func(p msg.ReshardProgressReply) bool { return p.State == reshardCloning })
	})
}

// poll asks recipients for their progress until enough accepts it, or one has failed.
func (r *resharding) poll(ctx context.Context, enough func([]msg.ReshardProgressReply) bool) error {
	for {
		far := make([]msg.ReshardProgressReply, len(r.doc.recipients))
		for i, id := range r.doc.recipients {
			body, err := r.m.onShard(ctx, id, &msg.ReshardProgress{Resharding: r.header()})
			if err == nil {
				err = msg.Parse(body, &far[i])
			}
			if err != nil {
				return err
			}
			if far[i].Code != 0 {
				return permanent{mongoerr.New(mongoerr.Code(far[i].Code), far[i].Error)}
			}
		}
		left := make([]int64, len(far))
		for i := range far {
			left[i] = far[i].Remaining
		}
		r.mu.Lock()
		r.mu.left = left
		r.mu.Unlock()
		if enough(far) {
			return nil
		}
		if err := r.aborted(); err != nil {
			return err
		}
		select {
		case <-time.After(pollRecipients):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// catchUp waits until recipients need little time to apply what remains.
func (r *resharding) catchUp(ctx context.Context) error {
	return r.poll(ctx, func(far []msg.ReshardProgressReply) bool {
		r.mu.Lock()
		force := r.mu.force
		r.mu.Unlock()
		limit := r.m.Params.Int("remainingReshardingOperationTimeThresholdMillis")
		return force || !slices.ContainsFunc(far, func(p msg.ReshardProgressReply) bool { return p.Remaining < 0 || p.Remaining > limit })
	})
}

// section begins or ends the operation's critical section of a name on shards. Within a limit, it waits twice as long for the replies.
//
// Hazard: a shard that is frozen when the others have begun the section does not reply. Without a limit here, writers would wait on all of them for as long as it is frozen.
func (r *resharding) section(ctx context.Context, kind, ns string, ids []string, within time.Duration) error {
	at := r.m.tick()
	var more []value.Field
	bounded := ctx
	if within > 0 {
		more = append(more, fld("maxTimeMS", value.NewInt64(max(1, within.Milliseconds()))))
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, 2*within)
		defer cancel()
	}
	err := r.sendEach(bounded, ids, func(string) msg.Message {
		return &msg.ParticipantBlock{NS: ns, Type: kind, Command: r.doc.want.Provenance, Owner: cluster.ConfigShardID, ID: r.doc.id, Term: r.doc.term, At: at}
	}, more...)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return mongoerr.Newf(mongoerr.MaxTimeMSExpired, "a shard does not answer: %s", err)
	}
	return err
}

// sectionWait limits one attempt to begin the critical section: writers queue behind it while it waits for transactions.
const sectionWait = 500 * time.Millisecond

// block ends writes, and waits until recipients have all of them; then it ends reads, too.
//
// Invariant: from the first ReshardFinish on, writes stay blocked until the operation has been committed or undone. A recipient that
// has finished does not ask its donors again. That recipients are about to be sent it is stored before, by a majority: a deposed primary that sends it late has stored it.
//
// Hazard: the step may be repeated, after a transient error or by the next primary, when some recipients have finished. It must not let
// writers through between attempts then, unlike before; if writes cannot be blocked on all shards again, the section's time limit ends it.
//
// The time limit is for one primary of the config server, from when it has blocked writes or, if recipients may have finished, from when it begins to do so again: writes are blocked for no longer than
// the limit for each, and the time without one. Rejected: the first primary's limit for all. An election takes longer than the default limit, and would end the operation, though what remains takes as
// long as its undo.
func (r *resharding) block(ctx context.Context) error {
	d := r.doc
	if d.finishing {
		r.beginBlocked()
	}
	if err := r.blockWrites(ctx); err != nil {
		return err
	}
	limit := r.criticalLimit()
	bounded, cancel := context.WithDeadline(ctx, r.beginBlocked().Add(limit))
	defer cancel()
	err := r.tellsToFinish(bounded)
	if err == nil {
		err = r.sendEach(bounded, d.recipients, func(string) msg.Message { return &msg.ReshardFinish{Resharding: r.header()} })
	}
	if err == nil {
		err = r.blockAll(bounded, limit)
	}
	if bounded.Err() != nil && ctx.Err() == nil {
		return permanent{mongoerr.Newf(mongoerr.ReshardingCriticalSectionTimeout, "Resharding critical section timed out: %s was blocked for %s", d.ns, limit)}
	}
	if err != nil {
		if !transient(err) {
			return permanent{err}
		}
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.abort {
		return permanent{mongoerr.New(mongoerr.ReshardCollectionAborted, "aborted")}
	}
	r.mu.decided = true
	return nil
}

// tellsToFinish stores that recipients are about to be told that they have all writes.
func (r *resharding) tellsToFinish(ctx context.Context) error {
	if r.doc.finishing {
		return nil
	}
	r.doc.finishing = true // also if the store fails: its outcome is unknown
	return r.store(ctx)
}

// criticalLimit is the time limit of the critical section.
func (r *resharding) criticalLimit() time.Duration {
	return time.Duration(r.m.Params.Int("reshardingCriticalSectionTimeoutMillis")) * time.Millisecond
}

// blockAll blocks reads and writes of the collection and the temporary one.
func (r *resharding) blockAll(ctx context.Context, limit time.Duration) error {
	if err := r.section(ctx, msg.BlockReadsAndWrites, r.doc.ns, r.participants(), limit); err != nil {
		return err
	}
	return r.section(ctx, msg.BlockReadsAndWrites, r.doc.temp, r.participants(), limit)
}

// beginBlocked returns the time at which writes were first blocked; the first call records the current time.
func (r *resharding) beginBlocked() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.blocked.IsZero() {
		r.mu.blocked = r.m.now()
	}
	return r.mu.blocked
}

// blockWrites begins the critical section on all donors. It waits for transactions that have written, no longer than a transaction may
// live, and lets writers through between two attempts; once recipients may have finished it does not, and waits for the limit of the section.
func (r *resharding) blockWrites(ctx context.Context) error {
	m, d := r.m, r.doc
	end := m.now().Add(time.Duration(m.Params.Int("transactionLifetimeLimitSeconds"))*time.Second + time.Second)
	if d.finishing {
		end = r.beginBlocked().Add(r.criticalLimit())
	}
	for pause := sectionWait / 16; ; pause = min(2*pause, 2*sectionWait) {
		err := r.section(ctx, msg.BlockWrites, d.ns, r.participants(), sectionWait)
		if err == nil {
			return nil
		}
		if !d.finishing {
			if uerr := r.section(ctx, msg.Unblock, d.ns, r.participants(), 0); uerr != nil {
				return uerr
			}
		}
		if !transient(err) {
			return permanent{err}
		}
		if m.now().After(end) {
			return permanent{mongoerr.Newf(mongoerr.ReshardingCriticalSectionTimeout, "writes to %s could not be blocked: %s", d.ns, err)}
		}
		if err := r.aborted(); err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// commit replaces the old collection by the temporary one on each shard, and then in the catalog.
func (r *resharding) commit(ctx context.Context) error {
	m, d := r.m, r.doc
	if err := r.rename(ctx); err != nil {
		return err
	}
	unlock, err := m.lockTables(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	// Before this time the documents are not yet where the new table places them.
	gen := cluster.ChunkVersion{Major: 1, Epoch: cluster.NewObjectID(), Timestamp: m.tick()}
	since := doc(fld("$set", doc(fld("onCurrentShardSince", value.NewTimestampU64(gen.Timestamp)),
		fld("history", arr(doc(fld("validAfter", value.NewTimestampU64(gen.Timestamp)), fld("shard", str("$shard"))))))))
	_, err = m.write(ctx, &msg.Update{DB: "config", Coll: "chunks", Updates: []msg.UpdateStatement{
		{Query: value.Doc(fld("uuid", value.NewBinary(4, d.id[:]))), Change: arr(since), Multi: true},
	}})
	if err != nil {
		return err
	}
	if err := r.commitZones(ctx); err != nil {
		return err
	}
	old, e, err := m.entry(ctx, d.ns)
	if err != nil {
		return err
	}
	if e != nil && e.UUID != d.uuid && e.UUID != d.id {
		return mongoerr.Newf(mongoerr.InternalError, "collection %s in the catalog is not the one that was resharded", d.ns)
	}
	owned := d.temp
	if e != nil && e.UUID == d.id {
		owned = d.ns // what follows was written before, without this run's learning of it
	}
	on, err := m.ownersOf(ctx, owned)
	if err != nil {
		return err
	}
	sampled, err := m.analyzers(ctx, d.ns, d.uuid) // its UUID changes here
	if err != nil {
		return err
	}
	d.state = reshardDone
	unit := &msg.WriteTogether{
		Analyzers: sampled,
		NS:        "config.collections", Changes: msg.Changes{Delete: []value.Value{str(d.temp)}, Put: [][]byte{value.Doc(r.entryOf(d.ns, gen, old)...)}},
		AlsoNS: "config." + reshardingOps, Also: msg.Changes{Put: [][]byte{d.doc()}},
	}
	if err := m.writePlaced(ctx, unit, placing{nss: d.ns, uuid: d.id, shards: on}); err != nil {
		d.state = reshardCommitting
		return err
	}
	r.mu.Lock()
	r.reached(d.state)
	r.mu.Unlock()
	m.log(ctx, d.want.Provenance+".commit", d.ns, doc(fld("reshardingUUID", value.NewBinary(4, d.id[:]))))
	return nil
}

// rename replaces the old collection on each shard. A shard whose section has ended all the same enters it once more: the operation can only be completed, and
// the shard renames nothing without it.
func (r *resharding) rename(ctx context.Context) error {
	d := r.doc
	each := func() error {
		return r.sendEach(ctx, r.participants(), func(string) msg.Message {
			return &msg.RenameCollectionParticipant{NS: d.temp, To: d.ns, UUID: d.id, FromMigrate: true, Section: d.id}
		})
	}
	err := each()
	if mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress {
		return err
	}
	if err := r.blockAll(ctx, r.criticalLimit()); err != nil {
		return err
	}
	return each()
}

// commitZones replaces the collection's zones. No chunk moves because of them before the collection has its new entry. A moveCollection leaves them as they are: the
// collection is not sharded, before or after, and they were set for the time when it is. An unshardCollection removes those of the former key.
func (r *resharding) commitZones(ctx context.Context) error {
	m, d := r.m, r.doc
	if d.want.Provenance == msg.MoveCollection || d.want.Provenance == msg.ReshardCollection && d.want.Zones == nil {
		return nil
	}
	if err := m.remove(ctx, "tags", doc(fld("ns", str(d.ns)))); err != nil {
		return err
	}
	if d.want.Provenance != msg.ReshardCollection {
		return nil
	}
	key, err := cluster.ParseShardKey(d.key)
	if err != nil {
		return err
	}
	p := &reshardPlan{m: m, ns: d.ns, want: &d.want, key: key}
	if err := p.checkZones(ctx); err != nil {
		return err
	}
	for _, z := range p.zones {
		err := m.insert(ctx, "tags", doc(fld("_id", value.NewObjectID(cluster.NewObjectID())), fld("ns", str(d.ns)), fld("min", value.NewDocument(z.min)),
			fld("max", value.NewDocument(z.max)), fld("tag", str(z.zone))))
		if err != nil {
			return err
		}
	}
	return nil
}

// conclude ends the critical section and removes temporary state.
func (r *resharding) conclude(ctx context.Context) error {
	m, d := r.m, r.doc
	if !d.notified {
		if err := r.notify(ctx); err != nil {
			return err
		}
		d.notified = true
		if err := r.store(ctx); err != nil {
			return err
		}
	}
	if err := r.unblock(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	blocked := r.mu.blocked
	r.mu.Unlock()
	if !blocked.IsZero() {
		m.log(ctx, d.want.Provenance+".critical", d.ns, doc(fld("millis", value.NewInt64(m.now().Sub(blocked).Milliseconds()))))
	}
	if err := r.endAll(ctx, true); err != nil {
		return err
	}
	if err := r.tellOthers(ctx); err != nil {
		return err
	}
	if !d.tracked {
		return nil
	}
	return m.removeChunks(ctx, d.uuid)
}

func (r *resharding) notify(ctx context.Context) error {
	d := r.doc
	if d.want.Provenance != msg.ReshardCollection {
		return nil
	}
	return r.send(ctx, d.primary, msg.Doc(&msg.NotifyShardingEvent{NS: d.ns, UUID: d.id, Event: value.Doc(
		fld("reshardCollection", str(d.ns)), fld("reshardUUID", value.NewBinary(4, d.id[:])), fld("shardKey", value.NewDocument(d.key)),
		fld("oldShardKey", value.NewDocument(d.oldKey)), fld("unique", value.NewBool(false)), fld("numInitialChunks", value.NewInt64(d.want.Chunks)), fld("provenance", str(d.want.Provenance)))}))
}

func (r *resharding) unblock(ctx context.Context) error {
	for _, ns := range []string{r.doc.ns, r.doc.temp} {
		if err := r.section(ctx, msg.Unblock, ns, r.participants(), 0); err != nil {
			return err
		}
	}
	return nil
}

func (r *resharding) endAll(ctx context.Context, committed bool) error {
	return r.sendEach(ctx, r.participants(), func(string) msg.Message {
		return &msg.ReshardEnd{Resharding: r.header(), Temp: r.doc.temp, Committed: committed}
	})
}

// undo reverts the operation.
//
// Hazard: the message that creates the temporary collection may arrive late at a shard that was frozen or slow, after the one that drops it.
//
// Invariant: the temporary collection has no entry any more when recipients are told to drop it. One that is created before that was visible is dropped by that message, and one that is created
// later is refused, or dropped where it was created (Manager.makeCopy).
func (r *resharding) undo(ctx context.Context) error {
	m, d := r.m, r.doc
	if err := r.unblock(ctx); err != nil {
		return err
	}
	if err := m.remove(ctx, "collections", doc(fld("_id", str(d.temp)), fld("uuid", value.NewBinary(4, d.id[:])))); err != nil {
		return err
	}
	if err := r.endAll(ctx, false); err != nil {
		return err
	}
	if err := m.removeChunks(ctx, d.id); err != nil {
		return err
	}
	return r.freeze(ctx, false)
}

func (r *resharding) logEnd(ctx context.Context) {
	d := r.doc
	details := []value.Field{
		fld("reshardingUUID", value.NewBinary(4, d.id[:])), fld("provenance", str(d.want.Provenance)),
		fld("millis", value.NewInt64(r.m.now().UnixMilli()-d.started)),
	}
	if d.failed != nil {
		details = append(details, fld("note", str("aborted")), fld("errmsg", str(d.failed.Message)))
	} else {
		details = append(details, fld("note", str("success")))
	}
	r.m.log(ctx, d.want.Provenance+".end", d.ns, doc(details...))
}
