package migration

import (
	"bytes"
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// States of a recipient, as reported by _recvChunkStatus.
const (
	recvReady  = "ready"
	recvClone  = "clone"
	recvSteady = "steady"
	// recvEntered is the state in which everything has arrived and the shard waits for the outcome in its critical section.
	recvEntered = "enteredCritSec"
	recvDone    = "done"
	recvFail    = "fail"
	recvAbort   = "abort"
)

// recipient is a migration to this shard.
type recipient struct {
	m    *Manager
	id   [16]byte
	ns   string
	from string
	uuid catalog.UUID
	rng  *KeyRange
	stop context.CancelFunc
	// ended is closed once run has returned; nil for a migration that an earlier primary has received.
	ended chan struct{}

	throttle  replication.WriteConcern // of the clone's writes
	entering  sync.Mutex               // held while the critical section is entered
	tables    tableBatch               // of the clone
	load      command.ClientLoad       // used by store
	fetchLoad command.ClientLoad       // used by fetch

	mu struct {
		sync.Mutex
		state     string
		err       error
		commit    bool
		changed   chan struct{} // closed and replaced at each change
		cloned    int64
		clonedLen int64
		docs      int64     // how many documents have arrived
		entered   time.Time // when the critical section was entered; zero if not, or by an earlier primary
		options   []byte    // of the collection on the donor, when the migration began
	}
}

func (r *recipient) set(state string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.state == recvFail || r.mu.state == recvAbort || r.mu.state == recvDone || r.mu.state == recvEntered && state != recvDone {
		return
	}
	r.mu.state, r.mu.err = state, err
	close(r.mu.changed)
	r.mu.changed = make(chan struct{})
}

func (r *recipient) status() (state string, err error, changed chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.state, r.mu.err, r.mu.changed
}

// awaitEnd waits until the migration, which has been stopped, does nothing more.
func (r *recipient) awaitEnd(op *command.Op) error {
	if r.ended == nil {
		return nil
	}
	select {
	case <-r.ended:
		return nil
	case <-op.Done():
		return op.Err()
	}
}

// beginRecipient handles _recvChunkStart.
func (m *Manager) beginRecipient(op *command.Op, req *msg.RecvChunkStart) error {
	key, err := cluster.ParseShardKey(bytes.Clone(req.ShardKey))
	if err != nil {
		return err
	}
	if err := cluster.CheckRange(req.Min, req.Max); err != nil {
		return err
	}
	r := &recipient{m: m, id: req.ID, ns: req.NS, from: req.From, uuid: req.UUID, rng: NewKeyRange(key, req.Min, req.Max), ended: make(chan struct{})}
	r.mu.state, r.mu.changed = recvReady, make(chan struct{})
	r.load.Begin(m.Counts)
	r.fetchLoad.Begin(m.Counts)
	if r.throttle, err = m.throttle(req.Transfer); err != nil {
		return err
	}
	if err := m.awaitRecovery(op); err != nil {
		return err
	}
	m.mu.Lock()
	ctx, cancel := context.WithCancel(m.mu.ctx)
	refused := m.busy()
	if ctx.Err() != nil {
		refused = mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted")
	}
	if r.stop = cancel; refused == nil {
		m.mu.in = r
		m.wg.Add(1)
	}
	m.mu.Unlock()
	if refused != nil {
		cancel()
		return refused
	}
	m.state.counts.recipient.started.Add(1)
	go func() {
		defer m.wg.Done()
		defer close(r.ended)
		defer cancel()
		if err := r.run(ctx); err != nil {
			r.set(recvFail, err)
			m.wakeDeleter() // which asks the donor whether it still knows the migration
		}
	}()
	return nil
}

// throttle returns the write concern of each batch of documents: with secondaryThrottle, one more member of the
// recipient's set, or the writeConcern of the request.
func (m *Manager) throttle(t msg.Transfer) (replication.WriteConcern, error) {
	if !t.Throttle {
		return replication.Visible, nil
	}
	config := m.node.SetConfig()
	if t.Concern == nil {
		two := replication.WriteConcern{W: 2, Timeout: throttleWait}
		if config == nil || config.CheckWriteConcern(two) != nil {
			return replication.Visible, nil // a set of one has no secondary to wait for
		}
		return two, nil
	}
	wc, err := command.ParseWriteConcern(t.Concern)
	if err == nil && config != nil {
		err = config.CheckWriteConcern(wc.ForSet())
	}
	return wc.ForSet(), err
}

// throttleWait is the time that a batch of a migration with secondaryThrottle waits for a secondary.
const throttleWait = time.Minute

// eagerRounds is the number of catch-up rounds before a recipient accepts that some changes remain for the critical section.
const eagerRounds = 10

// fewLeft reports whether so little has changed since the last round that the donor may block writes for the rest
// (maxCatchUpPercentageBeforeBlockingWrites): otherwise the recipient would never catch up with writers that
// never pause.
func (r *recipient) fewLeft(changed int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int64(changed)*100 <= r.mu.docs*r.m.Params.Int("maxCatchUpPercentageBeforeBlockingWrites")
}

// run clones the range and applies its changes until it is told to commit.
//
// Invariant: when the state is recvEntered, this shard has every write to the range that the donor has acknowledged, durably, and
// none can follow. The donor sends the commit request with its writes blocked, so an empty reply to a request that was sent
// after that one was seen is the end of the changes. An empty reply before it only shows that writers pause: the recipient is
// steady, which is what the donor waits for before it blocks them.
//
// Hazard: the donor deletes its copy on the strength of that state. A kill in the moment after it must not lose the clone, of
// which the batches are visible but not synced.
//
// Rejected: reporting the end as soon as everything is visible, which lost ranges in that way; and syncing each batch of the
// clone, which makes it wait for the disk hundreds of times where one sync at the end does. Rejected, too: a hook in the
// donor's write path that records what changes. Writers would pay for it whether or not anything moves; the oplog has
// the same information.
func (r *recipient) run(ctx context.Context) error {
	if err := r.makeRoom(ctx); err != nil {
		return err
	}
	r.set(recvClone, nil)
	if err := r.clone(ctx); err != nil {
		return err
	}
	if err := r.m.pause(ctx, "migrateThreadHangAtStep4"); err != nil {
		return err
	}
	for round := 0; ; round++ {
		n, err := r.transferMods(ctx)
		if err != nil {
			return err
		}
		statements, more, err := r.transferSessions(ctx)
		if err != nil {
			return err
		}
		if n > 0 || statements > 0 || more {
			if round >= eagerRounds && r.fewLeft(n) && statements <= fewStatements && !more {
				r.set(recvSteady, nil)
			}
			continue
		}
		r.mu.Lock()
		commit, steady := r.mu.commit, r.mu.state == recvSteady
		r.mu.Unlock()
		if commit && steady {
			// The donor accepts no more writes, so an empty reply after the commit request is the end.
			if n, err = r.transferMods(ctx); err != nil {
				return err
			}
			if n == 0 {
				for more := true; more; {
					if _, more, err = r.transferSessions(ctx); err != nil {
						return err
					}
				}
				// The clone was written without waiting for the journal. Once the recipient reports that it has everything the donor
				// may delete the range, so all of it has to be durable first.
				if err := r.m.Engine.Sync(ctx); err != nil {
					return err
				}
				if err := r.enterReceived(); err != nil {
					return err
				}
				r.set(recvEntered, nil)
				return nil
			}
			continue
		}
		if !steady {
			r.set(recvSteady, nil)
		}
		_, _, changed := r.status()
		select {
		case <-changed:
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// makeRoom checks that the migration may begin, stores the range deletion for the case that it fails, and removes what is in the
// range.
func (r *recipient) makeRoom(ctx context.Context) error {
	op := r.m.Service.Background(ctx, command.OwnClient())
	if err := r.m.deleteOverlapping(op, r.ns, r.uuid, r.rng); err != nil {
		return err
	}
	pending := &rangeDeletion{id: value.NewBinary(4, r.id[:]), ns: r.ns, uuid: r.uuid, donor: r.from, rng: r.rng, pending: true}
	if err := r.m.mayReceive(op, pending); err != nil {
		return err
	}
	if err := r.prepareCollection(ctx); err != nil {
		return err
	}
	if err := r.m.rangeDeletions().Put(ctx, pending); err != nil {
		return err
	}
	// This shard owns nothing in the range (mayReceive): all documents there are orphans, which would become visible.
	return r.m.removeRange(op, r.uuid, r.rng, nil)
}

// header returns the header that identifies the migration in messages.
func (r *recipient) header() msg.Migration { return msg.Migration{NS: r.ns, ID: r.id} }

// ask sends a command to the donor and parses its reply, which borrows from body; body may be in buf.
func (r *recipient) ask(ctx context.Context, m, reply msg.Message, buf []byte) (body []byte, err error) {
	p, err := r.m.state.peerOf(ctx, r.from)
	if err != nil {
		return nil, err
	}
	if body, err = cluster.RunInto(ctx, p, msg.Doc(m), buf); err == nil {
		err = msg.Parse(body, reply)
	}
	return body, err
}

// prepareCollection makes the collection and its indexes as the donor has them.
func (r *recipient) prepareCollection(ctx context.Context) error {
	p, err := r.m.state.peerOf(ctx, r.from)
	if err != nil {
		return err
	}
	db, coll := cluster.SplitNS(r.ns)
	filter := value.Doc(value.F("name", value.NewString(coll)))
	infos, err := cluster.FindAll(ctx, p, db, msg.Doc(&msg.ListCollections{DB: db, Filter: filter}))
	if err != nil {
		return err
	}
	if len(infos) != 1 {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "the donor has no collection %s", r.ns)
	}
	indexes, err := cluster.FindAll(ctx, p, db, msg.Doc(&msg.ListIndexes{DB: db, Coll: coll}))
	if err != nil {
		return err
	}
	options := bytes.Clone(value.LookupDoc(infos[0], "options"))
	r.mu.Lock()
	r.mu.options = options
	r.mu.Unlock()
	if r.m.complete(r.uuid, r.ns, options, indexes) {
		return nil // the usual case
	}
	if err := r.m.deleteOrphans(r.m.Service.Background(ctx, command.OwnClient()), r.uuid); err != nil {
		return err
	}
	r.m.state.endLeft(ctx, r.ns)
	unlock, err := r.m.Locks.Collection(ctx, r.ns, lock.X)
	if err != nil {
		return err
	}
	defer unlock()
	if c := r.m.Engine.Catalog().Lookup(r.ns); c != nil && c.UUID != r.uuid {
		return mongoerr.Newf(mongoerr.InvalidUUID, "the UUID of collection %s on this shard differs from the donor's", r.ns)
	}
	return r.m.makeCopy(ctx, r.ns, r.uuid, func(s *storage.Snapshot, u *storage.UnitOfWork, owns bool) error {
		u.SetFromMigrate()
		c := s.Catalog().Lookup(r.ns)
		if c == nil {
			if c, err = u.CreateCollection(storage.CollectionSpec{NS: r.ns, UUID: r.uuid, Options: options}); err != nil {
				return err
			}
		}
		return r.m.matchDefinition(u, c, options, indexes, owns)
	})
}

// collection finds the collection that receives the range.
func (r *recipient) collection(s *storage.Snapshot) (*catalog.Collection, error) {
	return r.collectionIn(s.Catalog())
}

func (r *recipient) collectionIn(cat *catalog.Snapshot) (*catalog.Collection, error) {
	c := cat.Lookup(r.ns)
	if c == nil || c.UUID != r.uuid {
		return nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s was dropped during the migration", r.ns)
	}
	return c, nil
}

// writer returns a partWriter for changes to the range in a unit of work.
func (r *recipient) writer(s *storage.Snapshot, u *storage.UnitOfWork) (*partWriter, error) {
	u.SetFromMigrate()
	c, err := r.collection(s)
	return &partWriter{s: s, u: u, c: c, done: make(map[string]bool), within: r.rng}, err
}

// apply applies changes to the range in a unit of work, and returns by how many documents they have enlarged it.
//
// A document outside of the range with the _id of one inside is usually an orphan: the document left with another range, has got a new key since, and comes back with
// this range. The deletion of that other range is executed first, like the deletion of a range that comes back (deleteOverlapping). If no deletion covers it, it is a
// different document, which clients may create in collections not sharded by _id: the migration fails, as on the real server.
func (r *recipient) apply(ctx context.Context, wc replication.WriteConcern, f func(w *partWriter) error) (added int64, err error) {
	for {
		var stray []byte
		err = r.m.Docs.WriteWith(ctx, wc, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			w, err := r.writer(s, u)
			if err == nil {
				err = f(w)
			}
			added, stray = w.added, w.stray
			return err
		})
		if mongoerr.CodeOf(err) != identityTaken {
			return added, err
		}
		deleted, failed := r.m.deleteAround(r.m.Service.Background(ctx, command.OwnClient()), r.uuid, stray)
		if failed != nil || !deleted {
			return 0, cmp.Or(failed, err)
		}
	}
}

// transferMods fetches and applies what was written to the range since the last call; n is the number of documents.
func (r *recipient) transferMods(ctx context.Context) (n int, err error) {
	var mods msg.TransferModsReply
	if _, err = r.ask(ctx, &msg.TransferMods{Migration: r.header()}, &mods, nil); err != nil {
		return 0, err
	}
	if len(mods.Deleted)+len(mods.Reload) == 0 {
		if mods.More {
			return 1, nil
		}
		return 0, nil
	}
	added, err := r.apply(ctx, replication.Durable, func(w *partWriter) error {
		for _, g := range mods.Deleted {
			if err := w.remove(value.Lookup(g, "_id")); err != nil {
				return err
			}
		}
		for _, d := range mods.Reload {
			if err := w.put(d); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		n := &r.m.state.counts.recipient
		n.caughtUp.Add(int64(len(mods.Reload)))
		for _, d := range mods.Reload {
			n.caughtUpSize.Add(int64(len(d)))
		}
		r.mu.Lock()
		r.mu.docs += added
		r.mu.Unlock()
	}
	return len(mods.Deleted) + len(mods.Reload), err
}

// checkDefinition refuses a migration that would commit with a definition of the collection which is not the donor's: a DDL that ran meanwhile did not concern this shard if it
// owned nothing. Options that have differed since before the migration are an inconsistency of owners, which it does not decide. Donors of earlier versions send only names.
func (r *recipient) checkDefinition(c *catalog.Collection, req *msg.RecvChunkCommit) error {
	here := readyIndexes(c)
	if !bytes.Equal(here.Doc(), req.Indexes) {
		return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "the indexes of %s changed during the migration: the donor has %s, this shard %s",
			r.ns, value.Show(value.NewArray(req.Indexes)), value.Show(here))
	}
	if req.Options == nil || c == nil {
		return nil
	}
	if missing, other := compareIndexes(c, req.Specs); len(missing)+len(other) > 0 {
		return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "the indexes of %s changed during the migration: %d differ from the donor's", r.ns, max(len(missing), len(other)))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !sameOptions(c.Options, req.Options) && !sameOptions(r.mu.options, req.Options) {
		return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "the options of %s changed during the migration: the donor has %s, this shard %s",
			r.ns, value.ShowDoc(req.Options), value.ShowDoc(c.Options))
	}
	return nil
}

// finish handles _recvChunkCommit: it returns once everything has arrived and is durable.
func (r *recipient) finish(ctx context.Context) error {
	r.mu.Lock()
	r.mu.commit = true
	close(r.mu.changed)
	r.mu.changed = make(chan struct{})
	r.mu.Unlock()
	for {
		state, err, changed := r.status()
		switch state {
		case recvEntered, recvDone:
			return nil
		case recvFail, recvAbort:
			if err == nil {
				err = mongoerr.New(mongoerr.CommandFailed, "the migration was aborted")
			}
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
