package resharding

import (
	"bytes"
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// pollPause is the time that a recipient that has caught up waits before it asks again.
const pollPause = 20 * time.Millisecond

// noteEvery is the interval at which the position is stored while nothing is applied.
const noteEvery = 2 * time.Second

// sessionsEvery is the interval at which the history of retryable writes is fetched until the final fetch.
const sessionsEvery = 5 * time.Second

// follow applies a donor's changes until the donor has blocked writes and all of them are applied.
func (r *recipient) follow(ctx context.Context, donor string) error {
	f, err := r.follower(donor)
	if err != nil {
		return err
	}
	for {
		final := false
		select {
		case <-r.finishing:
			final = true
		default:
		}
		if err := f.fetchSessions(ctx, false); err != nil {
			return err
		}
		more, err := f.drain(ctx)
		if err != nil {
			return err
		}
		if more { // the donor does not keep its oplog for as long as this takes
			if _, err := f.gather(ctx); err != nil {
				return err
			}
			continue
		}
		if more, err = f.round(ctx, final); err != nil {
			return err
		}
		switch {
		case more:
		case final:
			return f.fetchSessions(ctx, true)
		default:
			select {
			case <-r.finishing:
			case <-time.After(pollPause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// follower continues from the stored position.
func (r *recipient) follower(donor string) (*follower, error) {
	p := &progress{id: r.doc.id, shard: donor, at: storage.Timestamp(0).Value()} // the donor begins with what it has kept (runFetchChanges)
	stored, ok, err := progressDocs(r.m.Docs, appliersNS).Get(p.ID())
	if err != nil {
		return nil, err
	}
	if ok {
		p = stored
	}
	return &follower{r: r, donor: donor, p: p, ask: func(ctx context.Context, m, reply msg.Message) error { return r.ask(ctx, donor, m, reply) }}, nil
}

// follower is a recipient's state for one donor.
type follower struct {
	r     *recipient
	donor string
	ask   func(ctx context.Context, m, reply msg.Message) error // sends the donor a message until it replies
	p     *progress
	noted time.Time // when p was stored

	drained storage.RecordID // up to which the buffer has been applied

	reading, parts int64     // what has been adopted of the history of sessions
	sessions       time.Time // when it was last fetched
}

// request asks for what follows the position.
//
// Hazard: the donor's oplog was kept from the position in memory on, and a recipient's next primary, which continued from the stored one, could find that what follows it was gone.
func (f *follower) request() *msg.ReshardFetchChanges {
	r := f.r
	req := &msg.ReshardFetchChanges{Resharding: r.header(), Recipient: r.m.State.ID, After: f.p.at.TimestampU64()}
	s := r.m.Engine.MajoritySnapshot()
	defer s.Release()
	if p, ok, err := progressDocs(r.m.Docs, appliersNS).GetIn(s, f.p.ID()); err == nil && ok {
		req.Stored = p.at.TimestampU64()
	}
	return req
}

// round fetches and applies the available changes, or a part of them.
func (f *follower) round(ctx context.Context, final bool) (more bool, err error) {
	r, began := f.r, f.r.m.Now()
	from := f.p.at.TimestampU64()
	ask := f.request()
	ask.Final = final
	var first msg.ReshardFetchChangesReply
	if err := f.ask(ctx, ask, &first); err != nil {
		return false, err
	}
	if err := r.trim(ctx, first.Oldest); err != nil {
		return false, err
	}
	upTo, part := value.NewTimestampU64(first.UpTo), &first
	for len(part.Rest) > 0 {
		if err := f.apply(ctx, part, f.p.at, nil); err != nil {
			return false, err
		}
		ask.IDs = part.Rest
		part = new(msg.ReshardFetchChangesReply)
		if err := f.ask(ctx, ask, part); err != nil {
			return false, err
		}
	}
	if len(part.Deleted)+len(part.Reload) > 0 || first.UpTo > from && r.m.Now().Sub(f.noted) > noteEvery {
		if err := f.apply(ctx, part, upTo, nil); err != nil {
			return false, err
		}
		f.noted = r.m.Now()
	}
	f.p.at = upTo
	r.behind(f.donor, &first, from, r.m.Now().Sub(began))
	return first.More, nil
}

// behind records the recipient's lag behind a donor, after a round that has applied the changes since from.
func (r *recipient) behind(donor string, reply *msg.ReshardFetchChangesReply, from uint64, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.figures.fetched += reply.Entries
	r.mu.figures.applied += reply.Entries
	r.m.counts.applied.Add(reply.Entries)
	left := took
	if reply.More {
		covered := max(1, reply.UpTo>>32-max(from, uint64(r.doc.cloneAt))>>32)
		left += took * time.Duration((reply.Now>>32-min(reply.Now, reply.UpTo)>>32)/covered)
		left = max(left, time.Second)
	}
	r.mu.lag[donor] = left
}

// apply stores a donor's changes, together with the position that they reach, and removes from the buffer those that come from there.
func (f *follower) apply(ctx context.Context, part *msg.ReshardFetchChangesReply, upTo value.Value, buffered []buffered) error {
	r := f.r
	t, err := r.tables(ctx)
	if err != nil {
		return err
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	var did changes
	err = r.m.Docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c, err := r.collection(s)
		if err != nil {
			return err
		}
		u.SetFromMigrate()
		u.KeepCapped()
		did = changes{} // the unit may be built again
		a := &applier{did: &did, r: r, t: t, donor: f.donor, s: s, u: u, c: c, stash: s.Catalog().Lookup(stashNS(r.doc.id, f.donor))}
		for _, d := range part.Deleted {
			if err := a.remove(value.Lookup(d, "_id")); err != nil {
				return err
			}
		}
		for _, d := range part.Reload {
			if err := a.put(d); err != nil {
				return err
			}
		}
		if len(buffered) > 0 {
			buffer := s.Catalog().Lookup(bufferNS(r.doc.id, f.donor))
			for _, b := range buffered {
				if err := u.Delete(buffer, b.rid, b.doc, storage.NoInfo); err != nil {
					return err
				}
			}
		}
		p := *f.p
		p.at = upTo
		return progressDocs(r.m.Docs, appliersNS).PutIn(s, u, &p)
	})
	if err == nil {
		r.mu.Lock()
		r.mu.figures.changes.add(did)
		r.mu.Unlock()
	}
	return err
}

// trim removes what is before the oldest document that a donor's capped collection has: everything, if that document has not arrived yet.
func (r *recipient) trim(ctx context.Context, oldest value.Value) error {
	if oldest.IsMissing() {
		return nil
	}
	return r.m.Docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c, err := r.collection(s)
		if err != nil {
			return err
		}
		u.SetFromMigrate()
		cur := s.Scan(c, storage.ScanOptions{})
		defer cur.Close()
		for cur.Next() && value.Compare(value.Lookup(cur.Doc(), "_id"), oldest) != 0 {
			if err := u.Delete(c, storage.RecordID(cur.RecordID()).Clone(), bytes.Clone(cur.Doc()), storage.NoInfo); err != nil {
				return err
			}
		}
		return cur.Err()
	})
}

// tables is Manager.tables, repeated until the catalog has the chunks: a config server that lags, or cannot be reached, does not undo the operation.
func (r *recipient) tables(ctx context.Context) (*tables, error) {
	for try := 0; ; try++ {
		if err := r.failure(); err != nil {
			return nil, err
		}
		t, err := r.m.tables(ctx, &r.doc.about)
		if err == nil || ctx.Err() != nil || !transient(err) {
			return t, err
		}
		if err := cluster.Backoff(ctx, try); err != nil {
			return nil, err
		}
	}
}

// applier applies changes of a donor in one unit of work.
//
// Invariant: the collection has at most one document with an _id; other donors' documents with the same _id wait, each in its donor's stash. Which donor a
// stored document comes from follows from its old shard key, so no field has to be added to it. Hazard: donors are followed at different
// speeds. A document that an update moved from one donor to another arrives from the second before the first has reported its
// deletion; stored over the other, it would be removed by that late deletion. Rejected: applying the changes of all donors in timestamp order. The
// slowest donor would hold up all, and two documents with the same _id on two donors, neither of which was moved, would still need a stash.
//
// Of one donor's documents, those in the collection and those in its stash, no two have the same key in a unique index: one that arrives removes those that
// have its key (give), which have changed on the donor since they arrived. Two documents of different donors cannot have the same key, since a unique index
// begins with the old shard key.
type applier struct {
	r     *recipient
	t     *tables
	donor string
	s     *storage.Snapshot
	u     *storage.UnitOfWork
	c     *catalog.Collection
	stash *catalog.Collection // nil if there is none
	// done has what the unit has put in place of documents of the snapshot, by their place.
	done map[string]written
	// stashed has the places of the stash's documents, by their keys in the collection's unique indexes; nil before it is needed.
	stashed map[string][]storage.RecordID
	did     *changes
}

// written is a document that a unit has stored; a nil document is none.
type written struct {
	rid storage.RecordID
	doc []byte
}

// place identifies a record of the collection or of a stash.
func place(c *catalog.Collection, rid storage.RecordID) string { return c.NS + "\x00" + string(rid) }

// find looks up a document as the unit leaves it.
func (a *applier) find(c *catalog.Collection, id value.Value) (rid storage.RecordID, doc []byte, ok bool, err error) {
	rid, doc, ok, err = a.s.FindByID(c, id)
	if err != nil || !ok {
		return nil, nil, false, err
	}
	if now, ok := a.done[place(c, rid)]; ok {
		return now.rid, now.doc, now.doc != nil, nil
	}
	return rid.Clone(), bytes.Clone(doc), true, nil
}

func (a *applier) note(c *catalog.Collection, rid storage.RecordID, now written) {
	if a.done == nil {
		a.done = make(map[string]written)
	}
	a.done[place(c, rid)] = now
}

func (a *applier) delete(c *catalog.Collection, rid storage.RecordID, old []byte) error {
	err := a.u.Delete(c, rid, old, storage.NoInfo)
	if err == nil {
		a.note(c, rid, written{})
	}
	return err
}

// replace stores a document in the place of another of an equal _id. If the _ids differ, as 1 and 1.0 do, it is inserted anew: an update keeps the key of _id, and
// reads that the index covers would return the old one.
func (a *applier) replace(c *catalog.Collection, rid storage.RecordID, old, doc []byte) error {
	if bytes.Equal(idOf(old), idOf(doc)) {
		err := a.u.Update(c, rid, old, doc, storage.NoInfo)
		if err == nil {
			a.note(c, rid, written{rid, doc})
		}
		return err
	}
	if err := a.delete(c, rid, old); err != nil {
		return err
	}
	again, err := a.u.Insert(c, doc, storage.NoInfo)
	if err == nil {
		a.note(c, rid, written{again, doc})
	}
	return err
}

func idOf(doc []byte) []byte { return value.Doc(value.F("_id", value.Lookup(doc, "_id"))) }

// put stores a document of the donor: in the donor's stash if that has a document of the same _id, or if the collection has another donor's.
func (a *applier) put(doc []byte) error {
	if err := a.give(doc); err != nil {
		return err
	}
	id := value.Lookup(doc, "_id")
	if a.stash != nil {
		rid, old, ok, err := a.find(a.stash, id)
		if err != nil {
			return err
		}
		if ok {
			a.did.stashed++
			return a.replace(a.stash, rid, old, doc)
		}
	}
	rid, old, ok, err := a.find(a.c, id)
	if err != nil {
		return err
	}
	if !ok {
		a.did.inserts++
		_, err = a.u.Insert(a.c, doc, storage.NoInfo)
		return err
	}
	owner, err := a.t.donorOf(old, a.donor)
	if err != nil {
		return err
	}
	if owner == a.donor {
		a.did.updates++
		return a.replace(a.c, rid, old, doc)
	}
	if a.stash == nil {
		if a.stash, err = beside(a.s, a.u, a.c, stashNS(a.r.doc.id, a.donor)); err != nil {
			return err
		}
	}
	a.did.stashed++
	_, err = a.u.Insert(a.stash, doc, storage.NoInfo)
	return err
}

// give removes the donor's documents that have a unique key of a newer one. Their own changes come in this part or a later one. What the unit has
// written is of the same time as the newer document, and stays.
func (a *applier) give(doc []byte) error {
	id := value.Lookup(doc, "_id")
	err := migration.HoldersOf(a.s, a.c, doc, func(rid storage.RecordID, held []byte) error {
		if _, ok := a.done[place(a.c, rid)]; ok || value.CompareCollated(value.Lookup(held, "_id"), id, a.c.Collator) == 0 {
			return nil
		}
		return a.removeStored(rid, held)
	})
	if err != nil || a.stash == nil {
		return err
	}
	if a.stashed == nil {
		if err := a.readStash(); err != nil {
			return err
		}
	}
	return migration.UniqueKeys(a.c, doc, func(idx *catalog.Index, key []byte) error {
		for _, rid := range a.stashed[idx.Name+"\x00"+string(key)] {
			if _, ok := a.done[place(a.stash, rid)]; ok {
				continue
			}
			held, ok, err := a.s.Get(a.stash, rid)
			if err == nil && ok && value.CompareCollated(value.Lookup(held, "_id"), id, a.c.Collator) != 0 {
				a.did.stashed++
				err = a.delete(a.stash, rid, bytes.Clone(held))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// readStash finds the unique keys of what is in the stash, which has no such indexes.
func (a *applier) readStash() error {
	a.stashed = make(map[string][]storage.RecordID)
	cur := a.s.Scan(a.stash, storage.ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		rid := cur.RecordID().Clone()
		err := migration.UniqueKeys(a.c, cur.Doc(), func(idx *catalog.Index, key []byte) error {
			at := idx.Name + "\x00" + string(key)
			a.stashed[at] = append(a.stashed[at], rid)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return cur.Err()
}

// remove removes a document that the donor no longer has, or that is another recipient's now.
func (a *applier) remove(id value.Value) error {
	if a.stash != nil {
		rid, old, ok, err := a.find(a.stash, id)
		if err != nil {
			return err
		}
		if ok {
			a.did.stashed++
			return a.delete(a.stash, rid, old)
		}
	}
	rid, old, ok, err := a.find(a.c, id)
	if err != nil || !ok {
		return err
	}
	return a.removeStored(rid, old)
}

// removeStored removes a document of the collection if it is the donor's. A document of another donor that waits for that takes its place.
func (a *applier) removeStored(rid storage.RecordID, old []byte) error {
	if owner, err := a.t.donorOf(old, a.donor); err != nil || owner != a.donor {
		return err
	}
	a.did.deletes++
	for _, donor := range a.r.doc.donors {
		stash := a.s.Catalog().Lookup(stashNS(a.r.doc.id, donor))
		if stash == nil || donor == a.donor {
			continue
		}
		srid, waiting, ok, err := a.find(stash, value.Lookup(old, "_id"))
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		a.did.stashed++
		if err := a.delete(stash, srid, waiting); err != nil {
			return err
		}
		return a.replace(a.c, rid, old, waiting)
	}
	return a.delete(a.c, rid, old)
}

// checkStashes refuses a collection of which two donors have documents of the same _id for one recipient.
func (r *recipient) checkStashes() error {
	s := r.m.Engine.Snapshot()
	defer s.Release()
	for _, donor := range r.doc.donors {
		stash := s.Catalog().Lookup(stashNS(r.doc.id, donor))
		if stash == nil {
			continue
		}
		cur := s.Scan(stash, storage.ScanOptions{})
		there := cur.Next()
		var id value.Value
		if there {
			id = value.Lookup(cur.Doc(), "_id").Clone()
		}
		err := cur.Err()
		cur.Close()
		if err != nil {
			return err
		}
		if there {
			return mongoerr.Newf(mongoerr.DuplicateKey, "several documents of %s that have the _id %s belong to the same shard by the new shard key", r.doc.ns, value.Show(id))
		}
	}
	return nil
}
