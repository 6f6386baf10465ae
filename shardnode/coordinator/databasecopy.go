package coordinator

import (
	"bytes"
	"context"
	"hash/fnv"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A database is copied to its new primary shard as a clone at one timestamp, then in rounds of the documents that the oplog shows as written since,
// until few remain, and the rest once writes are blocked. The copy is sent in numbered parts, which the recipient stores once each and in order
// (migration's movestore.go); an attempt that another primary of this shard, or a recipient that has lost parts, cannot continue is
// replaced by a new one, from the beginning. Once writes are blocked the copy is not repeated: it continues from the position that the
// recipient reports.
//
// The clone is at one timestamp because of unique indexes: documents read at different times might have the same key.

const (
	partBytes  = 1 << 20                // size of a part: one unit of work of the recipient, for which the writes of its clients wait
	roundLimit = 4096                   // maximum number of documents in a round
	fewLeft    = 512                    // writes are blocked after a round of at most this many documents
	shortRound = 100 * time.Millisecond // that took at most this long,
	manyRounds = 200                    // or after this many rounds: the copy might never catch up with writers that do not pause
	// sessionsBatch is the size of the part of the history of retryable writes in one message.
	sessionsBatch = 4 << 20
)

// copier sends the parts of one attempt.
type copier struct {
	p    *movePrimary
	r    *run
	part int64
	upTo storage.Timestamp // writes up to this time have been sent
	pin  *storage.OplogPin // keeps the oplog after upTo
}

// clone copies the database while clients write to it. The section on the new primary shard fences what is sent there.
func (p *movePrimary) clone(ctx context.Context, r *run) error {
	if err := r.block(ctx, msg.BlockReadsAndWrites, []string{p.req.To}, p.req.DB); err != nil {
		return err
	}
	entries, err := r.m.entriesOf(ctx, p.req.DB)
	if err != nil {
		return err
	}
	if err := p.attempt(ctx, r, entries); err != nil {
		return err
	}
	s := r.m.Engine.Snapshot()
	defer s.Release()
	c, err := p.copier(ctx, r, s.Timestamp())
	if err != nil {
		return err
	}
	defer c.pin.Release()
	for _, coll := range p.at.Collections {
		if err := c.collection(ctx, s, coll); err != nil {
			return err
		}
	}
	s.Release()
	for round := 0; round < manyRounds; round++ {
		if err := c.sessions(ctx, true); err != nil {
			return err
		}
		began := time.Now()
		n, more, err := c.round(ctx)
		if err != nil {
			return err
		}
		if !more && n <= fewLeft && time.Since(began) < shortRound {
			break
		}
	}
	return c.send(ctx, &msg.MovePrimaryStore{Durable: true})
}

// attempt stores what will be copied, so that it can be undone. The write also advances the time, which makes the timestamp that identifies an attempt unique.
func (p *movePrimary) attempt(ctx context.Context, r *run, entries []*cluster.CollectionEntry) error {
	s := r.m.Engine.Snapshot()
	defer s.Release()
	p.at.Collections, p.at.Attempt, p.at.History = p.list(s, entries), uint64(s.Timestamp()), 0
	return r.persist(ctx, func() error { return r.store(ctx, nil) })
}

// blockWrites blocks the writes to what is moved, and sends the rest. A primary other than the one that made the clone first catches up with the sessions' history.
func (p *movePrimary) blockWrites(ctx context.Context, r *run) error {
	c, err := p.copier(ctx, r, 0)
	if err != nil {
		return err
	}
	defer c.pin.Release()
	if c.part == 0 {
		return mongoerr.Newf(mongoerr.OperationFailed, "shard %s does not have the clone of database %s", p.req.To, p.req.DB)
	}
	if p.history == nil {
		if err := p.catchUpHistory(ctx, r, c); err != nil {
			return err
		}
	}
	if err := r.block(ctx, msg.BlockWrites, []string{r.m.State.ID}, p.req.DB); err != nil {
		return err
	}
	if err := c.compare(ctx); err != nil {
		return err
	}
	for more := true; more; {
		if _, more, err = c.round(ctx); err != nil {
			return err
		}
	}
	if err := c.sessions(ctx, false); err != nil {
		return err
	}
	return c.send(ctx, &msg.MovePrimaryStore{Durable: true})
}

// catchUpHistory sends the history of sessions after the stored position, from the oplog. If the oplog no longer has it, or no position is
// stored (by an earlier version), all of it is sent again. The new position is stored, so that another member need not repeat this with writes blocked.
func (p *movePrimary) catchUpHistory(ctx context.Context, r *run, c *copier) error {
	err := r.m.State.HoldsSection(ctx, p.req.DB, r.doc.id)
	if err != nil && mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress {
		return err
	}
	if err := c.sessions(ctx, err != nil || p.at.History == 0); err != nil {
		return err
	}
	return r.persist(ctx, func() error { return r.store(ctx, nil) })
}

// list returns the database's collections on this shard, but for those that are the member's own: they stay.
func (p *movePrimary) list(s *storage.Snapshot, entries []*cluster.CollectionEntry) (out []msg.MovedCollection) {
	for _, c := range s.Catalog().Collections(p.req.DB) {
		if catalog.Unreplicated(c.NS) {
			continue
		}
		i := slices.IndexFunc(entries, func(e *cluster.CollectionEntry) bool { return e.NS == c.NS })
		if i >= 0 && entries[i].UUID != c.UUID {
			continue // left behind by an earlier collection
		}
		out = append(out, msg.MovedCollection{NS: c.NS, UUID: c.UUID, Sharded: i >= 0, Definition: definitionOf(c)})
	}
	return out
}

// copier begins the attempt, or continues it from the position that the recipient reports.
func (p *movePrimary) copier(ctx context.Context, r *run, at storage.Timestamp) (*copier, error) {
	c := &copier{p: p, r: r, part: -1, upTo: at}
	if err := c.send(ctx, &msg.MovePrimaryStore{}); err != nil {
		return nil, err
	}
	var err error
	c.pin, err = r.m.Engine.PinOplog(c.upTo)
	return c, err
}

// send makes the recipient store the next part.
func (c *copier) send(ctx context.Context, m *msg.MovePrimaryStore) error {
	m.DB, m.Section, m.Attempt, m.Part, m.UpTo = c.p.req.DB, c.r.doc.id, c.p.at.Attempt, c.part+1, uint64(c.upTo)
	cmd := c.r.message(m)
	for try := 0; ; try++ {
		reply, err := c.p.askRecipient(ctx, c.r, cmd)
		if err == nil {
			var at msg.MovePrimaryStoreReply
			if err := msg.Parse(reply, &at); err != nil {
				return err
			}
			c.part, c.upTo = at.Part, storage.Timestamp(at.UpTo)
			return nil
		}
		if !cluster.Retryable(err) {
			return err
		}
		if err := cluster.Backoff(ctx, try); err != nil {
			return err
		}
	}
}

// collection sends a collection as of a snapshot: its definition, and its documents if it is not sharded.
func (c *copier) collection(ctx context.Context, s *storage.Snapshot, moved msg.MovedCollection) error {
	here := s.Catalog().Lookup(moved.NS)
	if here == nil || here.UUID != catalog.UUID(moved.UUID) {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s was dropped while its database was moved", moved.NS)
	}
	options, indexes := bytes.Clone(here.Options), definitions(here)
	if moved.Sharded {
		return c.p.onRecipient(ctx, c.r, &msg.CreateCollectionParticipant{NS: moved.NS, UUID: moved.UUID, Options: options, Indexes: indexes, Section: (*[16]byte)(&c.r.doc.id)})
	}
	// What is there under the name was left by an interrupted attempt, or an earlier collection: the catalog has no entry for it there.
	if err := c.send(ctx, &msg.MovePrimaryStore{NS: moved.NS, UUID: moved.UUID, Drop: true}); err != nil {
		return err
	}
	if err := c.send(ctx, &msg.MovePrimaryStore{NS: moved.NS, UUID: moved.UUID, Create: true, Options: options, Indexes: indexes}); err != nil {
		return err
	}
	cur := s.Scan(here, storage.ScanOptions{})
	defer cur.Close()
	var b batch
	flush := func() error {
		began := time.Now()
		err := c.send(ctx, &msg.MovePrimaryStore{NS: moved.NS, UUID: moved.UUID, Stored: b.take(), Fresh: true})
		if err == nil { // yield to clients for as long as the part has used the store
			err = cluster.Sleep(ctx, time.Since(began))
		}
		return err
	}
	for cur.Next() {
		if doc := cur.Doc(); b.full(len(doc)) {
			doc = bytes.Clone(doc)
			cur.Save()
			if err := flush(); err != nil {
				return err
			}
			b.add(doc)
		} else {
			b.add(doc)
		}
	}
	if err := cur.Err(); err != nil || b.n == 0 {
		return err
	}
	return flush()
}

// definitions returns the specifications of a collection's indexes that are built.
func definitions(c *catalog.Collection) (out [][]byte) {
	for _, i := range c.Indexes {
		if i.Ready && !i.IsID {
			out = append(out, bytes.Clone(i.Spec.Raw))
		}
	}
	return out
}

// batch collects documents of a part.
type batch struct {
	list []byte
	mark int
	n    int
}

// full reports whether another document belongs in the next part.
func (b *batch) full(size int) bool { return b.n > 0 && len(b.list)+size > partBytes }

func (b *batch) add(doc []byte) {
	if b.list == nil {
		b.list, b.mark = value.Begin(nil)
	}
	b.list = value.AppendIndex(b.list, b.n, value.NewDocument(doc))
	b.n++
}

// take returns the array, and begins another.
func (b *batch) take() []byte {
	if b.list == nil {
		return nil
	}
	out := value.End(b.list, b.mark)
	*b = batch{}
	return out
}

// round sends the current state of the documents that were written to since the last round; n is their number, and more reports that others may
// have been written to.
func (c *copier) round(ctx context.Context) (n int, more bool, err error) {
	s := c.r.m.Engine.Snapshot()
	defer s.Release()
	w := &migration.Changes{DB: c.p.req.DB, After: c.upTo, Limit: roundLimit}
	if err := w.Read(ctx.Err, s); err != nil {
		return 0, false, err
	}
	if err := c.pin.Check(); err != nil { // truncated entries may not have been read
		return 0, false, err
	}
	if w.Len() > 0 {
		for _, coll := range c.p.at.Collections {
			here := s.Catalog().Lookup(coll.NS)
			if coll.Sharded || here == nil || here.UUID != catalog.UUID(coll.UUID) {
				continue // of another collection, which compare sends as a whole
			}
			if err := c.changes(ctx, s, here, w.Of(coll.NS)); err != nil {
				return 0, false, err
			}
		}
	}
	if w.After > c.upTo {
		c.upTo = w.After
		if err := c.send(ctx, &msg.MovePrimaryStore{}); err != nil {
			return 0, false, err
		}
		c.pin.Advance(c.upTo)
	}
	return w.Len(), w.More, nil
}

// changes sends documents of a collection that were written to.
func (c *copier) changes(ctx context.Context, s *storage.Snapshot, here *catalog.Collection, list []migration.Changed) error {
	if len(list) == 0 {
		return nil
	}
	var stored, deleted batch
	oldest, err := oldestOf(s, here)
	if err != nil {
		return err
	}
	flush := func() error {
		return c.send(ctx, &msg.MovePrimaryStore{NS: here.NS, UUID: here.UUID, Oldest: oldest, Deleted: deleted.take(), Stored: stored.take()})
	}
	for _, d := range list {
		_, doc, ok, err := s.FindByID(here, d.ID)
		if err != nil {
			return err
		}
		// With a collation the document may be another one, whose _id compares as equal; that has its own entry.
		ok = ok && bytes.Equal(value.Doc(value.F("_id", value.Lookup(doc, "_id"))), value.Doc(value.F("_id", d.ID)))
		id := value.Doc(value.F("_id", d.ID))
		if stored.full(len(doc)) || deleted.full(len(id)) {
			doc = bytes.Clone(doc)
			if err := flush(); err != nil {
				return err
			}
		}
		if d.Deleted || !ok {
			deleted.add(id)
		}
		if ok {
			stored.add(doc)
		}
	}
	return flush()
}

// oldestOf returns the _id of the first document of a capped collection; a missing value for others, and for an empty one.
func oldestOf(s *storage.Snapshot, c *catalog.Collection) (id value.Value, err error) {
	if !c.Capped {
		return id, nil
	}
	cur := s.Scan(c, storage.ScanOptions{})
	defer cur.Close()
	if cur.Next() {
		id = value.Lookup(cur.Doc(), "_id").Clone()
	}
	return id, cur.Err()
}

// compare sends again, now that writes are blocked, the collections whose definition has changed since they were cloned, and those that
// are new. No DDL of the cluster can have changed any, since this run has the database's lock; a client of the shard itself may have.
func (c *copier) compare(ctx context.Context) error {
	p, r := c.p, c.r
	entries, err := r.m.entriesOf(ctx, p.req.DB)
	if err != nil {
		return err
	}
	s := r.m.Engine.Snapshot()
	defer s.Release()
	now, changed := p.list(s, entries), false
	for _, was := range p.at.Collections {
		if was.Sharded || slices.ContainsFunc(now, func(x msg.MovedCollection) bool { return x.NS == was.NS }) {
			continue
		}
		if err := c.send(ctx, &msg.MovePrimaryStore{NS: was.NS, UUID: was.UUID, Drop: true}); err != nil {
			return err
		}
	}
	for i := range now {
		if !slices.Contains(p.at.Collections, now[i]) {
			now[i].Definition, changed = changedDefinition, true // if the phase is repeated, it is sent again
		}
	}
	if !changed {
		return nil
	}
	p.at.Collections = now
	if err := r.persist(ctx, func() error { return r.store(ctx, nil) }); err != nil {
		return err
	}
	for _, coll := range now {
		if coll.Definition == changedDefinition {
			if err := c.collection(ctx, s, coll); err != nil {
				return err
			}
		}
	}
	return nil
}

// changedDefinition marks a collection that is sent again once writes are blocked.
const changedDefinition = -1

// definitionOf returns a number that changes with a collection's options and indexes.
func definitionOf(c *catalog.Collection) int64 {
	h := fnv.New64a()
	_, _ = h.Write(c.Options)
	for _, spec := range definitions(c) {
		_, _ = h.Write(spec)
	}
	return int64(h.Sum64() >> 1)
}

// sentHistory is the position up to which the recipient has the history of retryable writes, with the reader of what follows.
type sentHistory struct {
	next func(size int) (part [][]byte, upTo storage.Timestamp, more bool, err error)
	upTo storage.Timestamp // the oplog is needed from here on
}

// concerns reports whether an oplog entry may be about a document that is moved, and returns the document's key. Writes to collections that
// were dropped since are included: a client retries its statement by name, and the new primary shard receives it.
func (p *movePrimary) concerns(e *storage.OplogEntry) (key []byte, ok bool) {
	if catalog.DBOf(e.NS) != p.req.DB {
		return nil, false
	}
	stays := slices.ContainsFunc(p.at.Collections, func(c msg.MovedCollection) bool { return c.Sharded && (c.NS == e.NS || c.UUID == e.UUID) })
	return migration.KeyOf(e), !stays
}

// sessions sends the history of retryable writes as oplog entries: all of it, or what was executed since it was last
// sent. The position is stored with the run, so that another primary continues from there.
//
// Invariant: with writes blocked, what is sent is what the oplog has after that position. all permits sending everything again if the oplog has been truncated
// there; without it the move fails, and is undone.
func (c *copier) sessions(ctx context.Context, all bool) error {
	p, e := c.p, c.r.m.Engine
	h := p.history
	p.history = nil // if this fails, its reader cannot go back to the part that was lost
	if h == nil && p.at.History != 0 {
		h = &sentHistory{upTo: storage.Timestamp(p.at.History)}
		h.next = c.r.m.Sessions.HistoryAfter(p.concerns, h.upTo)
	}
	var pin *storage.OplogPin
	var err error
	if h != nil {
		pin, err = e.PinOplog(h.upTo)
	}
	if err != nil && !all {
		return err
	}
	if h == nil || err != nil {
		h = &sentHistory{upTo: e.Published()}
		if pin, err = e.PinOplog(h.upTo); err != nil {
			return err
		}
		h.next = c.r.m.Sessions.HistoryOf(p.concerns, h.upTo)
	}
	defer pin.Release()
	for more := true; more; {
		var part [][]byte
		if part, h.upTo, more, err = h.next(sessionsBatch); err == nil {
			err = pin.Check() // truncated entries may not have been read
		}
		if err != nil {
			return err
		}
		pin.Advance(h.upTo)
		if len(part) == 0 {
			continue
		}
		list, mark := value.Begin(nil)
		for i, e := range part {
			list = value.AppendIndex(list, i, value.NewDocument(e))
		}
		if err := p.onRecipient(ctx, c.r, &msg.AdoptSessions{Sessions: value.End(list, mark)}); err != nil {
			return err
		}
	}
	p.history, p.at.History = h, uint64(h.upTo)
	return nil
}
