package resharding

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Config has what resharding depends on.
type Config struct {
	Engine   *storage.Engine
	Docs     *statedoc.Docs
	State    *migration.ShardState
	Points   *cluster.FailPoints         // nil for none
	Warn     func(msg string, err error) // logs errors that no client receives
	Locks    *lock.Manager               // writers of a collection hold it in IX
	Sessions migration.Sessions          // the history of the node's sessions, which moves with the collection
	// Forget drops a collection's compiled form once the unit that drops the collection has committed.
	Forget func(u *storage.UnitOfWork, c *catalog.Collection)
	// SnapshotAt returns a snapshot at a time at which other shards are read, too.
	SnapshotAt func(op *command.Op, ts storage.Timestamp) (*storage.Snapshot, error)
	Now        func() time.Time
	Counts     *command.Opcounters // what the node does for clients, to whom a clone gives way
}

// Manager is a shard's part in reshardings.
type Manager struct {
	Config
	counts counts
	wg     sync.WaitGroup // recipients at work

	mu struct {
		sync.Mutex
		ctx        context.Context // ends when the node steps down
		donors     map[catalog.UUID]*donor
		recipients map[catalog.UUID]*recipient
	}
}

// New returns a manager that takes part in nothing before the node steps up.
func New(c Config) *Manager {
	m := &Manager{Config: c}
	ended, end := context.WithCancel(context.Background())
	end()
	m.mu.ctx = ended
	return m
}

// Service returns resharding as a primary-only service: donors keep their oplogs, and recipients continue from the state that the
// previous primary stored.
func (m *Manager) Service() replication.Service {
	return replication.Service{
		Name: "ReshardingParticipantService", Vital: true, StepUp: m.stepUp,
		Run: func(ctx context.Context, _ int64) {
			m.mu.Lock()
			for _, r := range m.mu.recipients {
				m.start(ctx, r)
			}
			m.mu.Unlock()
			for t := time.NewTicker(sweepEvery); ctx.Err() == nil; {
				select {
				case <-t.C:
					m.sweep(ctx)
				case <-ctx.Done():
					t.Stop()
				}
			}
			m.stepDown()
			m.wg.Wait() // no further one begins
		},
	}
}

func (m *Manager) stepUp(ctx context.Context, _ int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.ctx, m.mu.donors, m.mu.recipients = ctx, make(map[catalog.UUID]*donor), make(map[catalog.UUID]*recipient)
	err := donorDocs(m.Docs).Each(func(d *donorDoc) error {
		m.mu.donors[d.id] = newDonor(m, d)
		return nil
	})
	if err != nil {
		return err
	}
	return recipientDocs(m.Docs).Each(func(d *recipientDoc) error {
		m.mu.recipients[d.id] = newRecipient(m, d)
		return nil
	})
}

func (m *Manager) stepDown() {
	m.mu.Lock()
	donors := m.mu.donors
	m.mu.donors = nil
	m.mu.Unlock()
	for _, d := range donors {
		d.release()
	}
}

// start runs a recipient's work in the background. m.mu must be held.
func (m *Manager) start(ctx context.Context, r *recipient) {
	if r.stop != nil || ctx.Err() != nil {
		return
	}
	ctx, r.stop = context.WithCancel(ctx)
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		defer close(r.ended)
		r.work(ctx)
	}()
}

// Specs returns the rows of the commands that participants carry out.
func (m *Manager) Specs() []command.Spec {
	specs := []command.Spec{
		command.Internal(m.runDonate), command.Internal(m.runReceive), command.Internal(m.runProgress), command.Internal(m.runFinish), command.Internal(m.runEnd),
		command.Internal(m.runFetchDocuments), command.Internal(m.runFetchChanges), command.Internal(m.runFetchSessions),
	}
	for i := range specs {
		specs[i].Roles, specs[i].PrimaryOnly, specs[i].WriteConcern = command.Shard|command.Config, true, true
	}
	return specs
}

var errSteppedDown = mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted")

// known asks the config server whether it still runs a resharding: a message that begins a shard's part may arrive late.
func (m *Manager) known(ctx context.Context, id catalog.UUID) error {
	reply, err := cluster.Run(ctx, m.State.Registry.Config(), msg.Doc(&msg.HoldsCriticalSection{ID: id}))
	var answer msg.HoldsCriticalSectionReply
	if err == nil {
		err = msg.Parse(reply, &answer)
	}
	if err == nil && !answer.Held {
		err = noSuch(id)
	}
	return err
}

// confirm asks again once the shard's part has begun, and ends it if the resharding has ended meanwhile: the message may have waited for long, and the one
// that ends the part may have come before there was anything to end. As long as the config server runs the resharding, that message is still to come.
func (m *Manager) confirm(ctx context.Context, a *about) error {
	err := m.known(ctx, a.id)
	if mongoerr.CodeOf(err) != mongoerr.NoSuchReshardCollection {
		return err
	}
	return cmp.Or(m.end(ctx, a.id, a.temp, false), err)
}

// sweepEvery is the interval at which the shard asks whether the reshardings that it takes part in are still run.
const sweepEvery = time.Minute

// sweep ends the parts of reshardings that have ended: one could not be confirmed, as when the config server had no primary just then.
func (m *Manager) sweep(ctx context.Context) {
	m.mu.Lock()
	parts := make(map[catalog.UUID]*about)
	for id, d := range m.mu.donors {
		parts[id] = &d.doc.about
	}
	for id, r := range m.mu.recipients {
		parts[id] = &r.doc.about
	}
	m.mu.Unlock()
	for _, a := range parts {
		if err := m.confirm(ctx, a); err != nil && mongoerr.CodeOf(err) != mongoerr.NoSuchReshardCollection && ctx.Err() == nil && !transient(err) {
			m.Warn("asking whether a resharding has ended", err)
		}
	}
}

func noSuch(id catalog.UUID) error {
	return mongoerr.Newf(mongoerr.NoSuchReshardCollection, "this shard does not participate in resharding %s", value.Show(id.Value()))
}

// runEnd ends the shard's part. It may be repeated.
func (m *Manager) runEnd(op *command.Op, req *msg.ReshardEnd, dst []byte) ([]byte, error) {
	return dst, m.end(op, catalog.UUID(req.ID), req.Temp, req.Committed)
}

// end ends the shard's part in an operation. The temporary collection has no entry in the catalog any more.
func (m *Manager) end(ctx context.Context, id catalog.UUID, temp string, committed bool) error {
	m.mu.Lock()
	d, r := m.mu.donors[id], m.mu.recipients[id]
	if m.mu.ctx.Err() != nil {
		m.mu.Unlock()
		return errSteppedDown
	}
	delete(m.mu.donors, id)
	var stop context.CancelFunc
	if r != nil {
		stop = r.stop
	}
	m.mu.Unlock()
	if d != nil {
		d.release()
	}
	if stop != nil {
		stop()
		select {
		case <-r.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := m.clean(ctx, id, temp, committed, r); err != nil {
		return err
	}
	m.State.Removed(temp)
	m.mu.Lock()
	delete(m.mu.recipients, id)
	m.mu.Unlock()
	if d != nil || r != nil {
		m.counts.ended(committed)
	}
	return nil
}

// clean removes what the shard has stored for an operation and, if the operation was aborted, what it has received.
func (m *Manager) clean(ctx context.Context, id catalog.UUID, temp string, committed bool, r *recipient) error {
	if !committed {
		if err := m.drop(ctx, temp, id); err != nil {
			return err
		}
	}
	if r != nil {
		for _, shard := range r.doc.donors {
			for _, ns := range []string{stashNS(id, shard), bufferNS(id, shard)} {
				if err := m.drop(ctx, ns, catalog.UUID{}); err != nil {
					return err
				}
			}
		}
	}
	return m.Docs.Write(ctx, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		if r != nil {
			for _, ns := range []string{clonesNS, appliersNS, sessionsNS} {
				for _, shard := range r.doc.donors {
					if err := progressDocs(m.Docs, ns).RemoveIn(s, u, (&progress{id: id, shard: shard}).ID()); err != nil {
						return err
					}
				}
			}
		}
		if err := recipientDocs(m.Docs).RemoveIn(s, u, id.Value()); err != nil {
			return err
		}
		return donorDocs(m.Docs).RemoveIn(s, u, id.Value())
	})
}

// drop drops a collection of this shard if it has the UUID; a zero UUID matches any.
func (m *Manager) drop(ctx context.Context, ns string, uuid catalog.UUID) error {
	unlock, err := m.Locks.Collection(ctx, ns, lock.X)
	if err != nil {
		return err
	}
	defer unlock()
	return m.Docs.Write(ctx, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		c := s.Catalog().Lookup(ns)
		if c == nil || !uuid.IsZero() && c.UUID != uuid {
			return nil
		}
		u.SetFromMigrate()
		m.Forget(u, c)
		return u.DropCollection(c)
	})
}

// peer returns the peer of another shard.
func (m *Manager) peer(ctx context.Context, shard string) (cluster.Peer, error) {
	s, err := m.State.Registry.Shard(ctx, shard)
	if err != nil {
		return nil, err
	}
	return s.Peer, nil
}

// tables holds the placement before and after the operation.
type tables struct {
	old, next *cluster.ChunkMap // old is nil for a collection without a routing table
	vals      []value.Value
}

func (m *Manager) tables(ctx context.Context, a *about) (*tables, error) {
	now, err := m.State.Catalog.Collection(ctx, a.ns)
	if err != nil {
		return nil, err
	}
	next, err := m.State.Catalog.Collection(ctx, a.temp)
	if err != nil {
		return nil, err
	}
	if next.Map == nil || catalog.UUID(next.Map.UUID) != a.id {
		m.State.Catalog.InvalidateCollection(a.temp)
		return nil, mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "the catalog does not have the chunks of %s yet", a.temp)
	}
	if now.Map != nil && catalog.UUID(now.Map.UUID) != a.uuid {
		return nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s is not the one to be resharded: its UUID differs", a.ns)
	}
	return &tables{old: now.Map, next: next.Map}, nil
}

// donorOf returns the shard that a document is on now.
func (t *tables) donorOf(doc []byte, only string) (string, error) {
	if t.old == nil {
		return only, nil
	}
	var err error
	if t.vals, err = t.old.Key.FromDocument(doc, t.vals[:0]); err != nil {
		return "", err
	}
	return t.old.ShardOf(t.vals), nil
}

// recipientOf returns the shard that a document will be on.
func (t *tables) recipientOf(doc []byte) (string, error) {
	var err error
	if t.vals, err = t.next.Key.FromDocument(doc, t.vals[:0]); err != nil {
		return "", err
	}
	return t.next.ShardOf(t.vals), nil
}

// goesTo reports whether a document is this shard's now and will be the recipient's.
func (t *tables) goesTo(doc []byte, here, recipient string) (bool, error) {
	if from, err := t.donorOf(doc, here); err != nil || from != here {
		return false, nil // an orphan, perhaps one without an intact key
	}
	to, err := t.recipientOf(doc)
	return to == recipient, err
}

// stashNS names the collection of documents that wait for those of other donors.
func stashNS(id catalog.UUID, donor string) string {
	return stashPrefix + hexOf(id) + "." + donor
}

// bufferNS names the collection of the _ids of what was written on a donor and has not been applied yet.
func bufferNS(id catalog.UUID, donor string) string {
	return bufferPrefix + hexOf(id) + "." + donor
}

func hexOf(id catalog.UUID) string {
	const digits = "0123456789abcdef"
	out := make([]byte, 0, 2*len(id))
	for _, b := range id {
		out = append(out, digits[b>>4], digits[b&15])
	}
	return string(out)
}

// transient reports whether a step that failed with a remote error may succeed when it is repeated. A server that has just started does not know yet that it is a
// shard, or which operations it takes part in.
func transient(err error) bool {
	return cluster.Transient(err, mongoerr.CommandNotFound, mongoerr.NotImplemented, mongoerr.NoSuchReshardCollection)
}
