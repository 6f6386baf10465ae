package resharding

import (
	"bytes"
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
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
	p := &progress{id: r.doc.id, shard: donor, at: storage.Timestamp(0).Value()} // the donor begins with what it has kept (runFetchChanges)
	stored, ok, err := progressDocs(r.m.Docs, appliersNS).Get(p.ID())
	if err != nil {
		return err
	}
	if ok {
		p = stored
	}
	f := &follower{r: r, donor: donor, p: p, ask: func(ctx context.Context, m, reply msg.Message) error { return r.ask(ctx, donor, m, reply) }}
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
		more, err := f.round(ctx, final)
		if err != nil {
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

// follower is a recipient's state for one donor.
type follower struct {
	r     *recipient
	donor string
	ask   func(ctx context.Context, m, reply msg.Message) error // sends the donor a message until it replies
	p     *progress
	noted time.Time // when p was stored

	reading, parts int64     // what has been adopted of the history of sessions
	sessions       time.Time // when it was last fetched
}

// round fetches and applies the available changes, or a part of them.
func (f *follower) round(ctx context.Context, final bool) (more bool, err error) {
	r, began := f.r, f.r.m.Now()
	from := f.p.at.TimestampU64()
	ask := &msg.ReshardFetchChanges{Resharding: r.header(), Recipient: r.m.State.ID, After: from, Final: final}
	var first msg.ReshardFetchChangesReply
	if err := f.ask(ctx, ask, &first); err != nil {
		return false, err
	}
	if err := r.trim(ctx, first.Oldest); err != nil {
		return false, err
	}
	upTo, part := value.NewTimestampU64(first.UpTo), &first
	for len(part.Rest) > 0 {
		if err := f.apply(ctx, part, f.p.at); err != nil {
			return false, err
		}
		ask.IDs = part.Rest
		part = new(msg.ReshardFetchChangesReply)
		if err := f.ask(ctx, ask, part); err != nil {
			return false, err
		}
	}
	if len(part.Deleted)+len(part.Reload) > 0 || first.UpTo > from && r.m.Now().Sub(f.noted) > noteEvery {
		if err := f.apply(ctx, part, upTo); err != nil {
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

// apply stores a donor's changes, together with the position that they reach.
func (f *follower) apply(ctx context.Context, part *msg.ReshardFetchChangesReply, upTo value.Value) error {
	r := f.r
	t, err := r.tables(ctx)
	if err != nil {
		return err
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	return r.m.Docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c, err := r.collection(s)
		if err != nil {
			return err
		}
		u.SetFromMigrate()
		u.KeepCapped()
		a := &applier{r: r, t: t, donor: f.donor, s: s, u: u, c: c, stash: s.Catalog().Lookup(stashNS(r.doc.id, f.donor))}
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
		p := *f.p
		p.at = upTo
		return progressDocs(r.m.Docs, appliersNS).PutIn(s, u, &p)
	})
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
type applier struct {
	r     *recipient
	t     *tables
	donor string
	s     *storage.Snapshot
	u     *storage.UnitOfWork
	c     *catalog.Collection
	stash *catalog.Collection // nil if there is none
}

// put stores a document of the donor: in the donor's stash if that has a document of the same _id, or if the collection has another donor's.
func (a *applier) put(doc []byte) error {
	id := value.Lookup(doc, "_id")
	if a.stash != nil {
		rid, old, ok, err := a.s.FindByID(a.stash, id)
		if err != nil {
			return err
		}
		if ok {
			return a.u.Update(a.stash, rid.Clone(), bytes.Clone(old), doc, storage.NoInfo)
		}
	}
	rid, old, ok, err := a.s.FindByID(a.c, id)
	if err != nil {
		return err
	}
	if !ok {
		_, err = a.u.Insert(a.c, doc, storage.NoInfo)
		return err
	}
	owner, err := a.t.donorOf(old, a.donor)
	if err != nil {
		return err
	}
	if owner == a.donor {
		return a.u.Update(a.c, rid.Clone(), bytes.Clone(old), doc, storage.NoInfo)
	}
	if a.stash == nil {
		if a.stash, err = statedoc.CollectionFor(a.s, a.u, stashNS(a.r.doc.id, a.donor)); err != nil {
			return err
		}
	}
	_, err = a.u.Insert(a.stash, doc, storage.NoInfo)
	return err
}

// remove removes a document that the donor no longer has, or that is another recipient's now. A document of another donor
// that waits for the removal takes its place.
func (a *applier) remove(id value.Value) error {
	if a.stash != nil {
		rid, old, ok, err := a.s.FindByID(a.stash, id)
		if err != nil {
			return err
		}
		if ok {
			return a.u.Delete(a.stash, rid.Clone(), bytes.Clone(old), storage.NoInfo)
		}
	}
	rid, old, ok, err := a.s.FindByID(a.c, id)
	if err != nil || !ok {
		return err
	}
	if owner, err := a.t.donorOf(old, a.donor); err != nil || owner != a.donor {
		return err
	}
	rid, old = rid.Clone(), bytes.Clone(old)
	for _, donor := range a.r.doc.donors {
		stash := a.s.Catalog().Lookup(stashNS(a.r.doc.id, donor))
		if stash == nil || donor == a.donor {
			continue
		}
		srid, waiting, ok, err := a.s.FindByID(stash, id)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		srid, waiting = srid.Clone(), bytes.Clone(waiting)
		if err := a.u.Delete(stash, srid, waiting, storage.NoInfo); err != nil {
			return err
		}
		return a.u.Update(a.c, rid, old, waiting, storage.NoInfo)
	}
	return a.u.Delete(a.c, rid, old, storage.NoInfo)
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
