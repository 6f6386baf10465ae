package migration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Namespaces of a migration's durable state.
const (
	coordinatorsNS   = "config.migrationCoordinators"
	rangeDeletionsNS = "config.rangeDeletions"
)

// Config has what migrations depend on.
type Config struct {
	Engine   *storage.Engine
	Docs     *statedoc.Docs
	Params   *cluster.Params
	Points   *cluster.FailPoints // nil for none
	Service  *command.Service
	Services *replication.Services
	Locks    *lock.Manager // writers hold their collection in IX
	Now      func() time.Time
	Counts   *command.Opcounters // of what the node has done for clients
	// Linearize makes sure that the node is still the primary, by asking a majority.
	Linearize func(ctx context.Context) error
}

// Node has the methods that migrations use of the node that they run on.
type Node interface {
	// SetConfig returns the configuration of the node's replica set; nil for none.
	SetConfig() *replication.SetConfig
	// Warn logs errors that no client receives.
	Warn(msg string, err error)
	// Forget drops a collection's compiled form once the unit that drops the collection has committed.
	Forget(u *storage.UnitOfWork, c *catalog.Collection)
	// LockDDL takes the DDL locks of a collection for a migration that begins.
	LockDDL(ctx context.Context, ns string) (unlock func(), err error)
}

// Sessions is the history of the node's sessions, which is transferred with a chunk.
type Sessions interface {
	// HistoryOf begins to read the history of the statements that wrote to documents that of accepts, as oplog entries. next returns
	// its next part, of about the given size, and the time up to which the oplog has been read; more is false if that was everything at that moment.
	HistoryOf(of func(e *storage.OplogEntry) (key []byte, ok bool), after storage.Timestamp) (next func(size int) (part [][]byte, upTo storage.Timestamp, more bool, err error))
	// HistoryAfter continues reading from the time that an earlier reader has reached, perhaps on another member.
	HistoryAfter(of func(e *storage.OplogEntry) (key []byte, ok bool), after storage.Timestamp) (next func(size int) (part [][]byte, upTo storage.Timestamp, more bool, err error))
	// Adopt merges in the entries of another shard, durably. It does not wait for operations that use the sessions.
	Adopt(ctx context.Context, records []value.Value) error
}

// Manager is a shard's part in live migrations: a shard is donor of at most one at a time, and recipient of at most one.
type Manager struct {
	Config
	node     Node
	sessions Sessions
	state    *ShardState
	wg       sync.WaitGroup // running recipients
	wake     chan struct{}

	deleting chan struct{} // full while a range is being deleted

	mu struct {
		sync.Mutex
		ctx context.Context // canceled when the node steps down
		out *donor
		in  *recipient

		recreating bool // range deletions are being made: no migration begins

		ranges    chan struct{}      // closed when config.rangeDeletions has changed; nil if there are no waiters
		recovered chan struct{}      // closed when what an earlier primary left undecided is decided
		held      map[string]section // of migrations whose outcome is not known: no operation passes; by heldKey
	}
}

// section is the critical section of a collection that a migration is in.
type section struct {
	ns     string
	c      *criticalSection
	doc    value.Value // the _id of the migration's document
	unread bool        // this version cannot read it
}

// heldKey is the key of a migration among those whose outcome is not known.
func heldKey(doc value.Value) string { return string(value.AppendGroupKey(nil, doc, nil)) }

// KeyRange is a range of the shard key space, as cluster.InRange understands it.
type KeyRange struct {
	key      *cluster.ShardKeyPattern
	min, max []byte
	minV     []value.Value
	maxV     []value.Value
}

// NewKeyRange copies the bounds of a range.
func NewKeyRange(key *cluster.ShardKeyPattern, min, max []byte) *KeyRange {
	r := &KeyRange{key: key, min: append([]byte(nil), min...), max: append([]byte(nil), max...)}
	r.minV, r.maxV = value.Values(r.min), value.Values(r.max)
	return r
}

// readKeyRange reads a range as it is stored, {min, max}, which both have the key's fields.
func readKeyRange(key *cluster.ShardKeyPattern, doc []byte) (*KeyRange, error) {
	r := NewKeyRange(key, value.LookupDoc(doc, "min"), value.LookupDoc(doc, "max"))
	for _, bound := range [][]byte{r.min, r.max} {
		i := 0
		for name := range value.Elements(bound) {
			if i == len(key.Parts) || key.Parts[i].Path != name {
				return nil, mongoerr.Newf(mongoerr.BadValue, "the bound %s does not match the shard key %s", value.ShowDoc(bound), value.ShowDoc(key.Doc()))
			}
			i++
		}
		if i < len(key.Parts) {
			return nil, mongoerr.Newf(mongoerr.BadValue, "bound does not contain all fields of the shard key %s", value.ShowDoc(key.Doc()))
		}
	}
	if cluster.CompareKeys(r.minV, r.maxV) >= 0 {
		return nil, mongoerr.New(mongoerr.BadValue, "the range is empty")
	}
	return r, nil
}

// Contains reports whether a document's shard key is in the range.
func (r *KeyRange) Contains(doc []byte) bool {
	vals, err := r.key.FromDocument(doc, nil)
	return err == nil && cluster.InRange(vals, r.minV, r.maxV)
}

func (r *KeyRange) bounds() msg.Range { return msg.Range{Min: r.min, Max: r.max} }

func (r *KeyRange) doc() value.Value {
	return value.NewDocument(value.Doc(value.F("min", value.NewDocument(r.min)), value.F("max", value.NewDocument(r.max))))
}

// donor is a migration from this shard.
type donor struct {
	m    *Manager
	id   [16]byte
	ns   string
	uuid catalog.UUID
	to   string
	rng  *KeyRange
	// version is the chunk's version when the migration began, and topology the time of the list of shards in which the recipient was found: the commit is refused if the chunk has changed by
	// then, or if the recipient may be another set.
	version  cluster.ChunkVersion
	topology uint64

	began   storage.Timestamp
	life    context.Context // canceled when the node steps down
	started time.Time       // when the migration began
	since   time.Time       // when the current step began
	steps   []value.Value   // how long the earlier steps took

	waitForDelete bool
	transfer      msg.Transfer

	done    chan struct{} // closed at the end
	outcome error         // of the whole migration, once done is closed

	mu struct {
		sync.Mutex
		snap   *storage.Snapshot // of the data that is cloned
		scan   *recordScan
		held   []byte            // a document read by scan and not sent yet
		pin    *storage.OplogPin // keeps the oplog after from; nil before the clone has begun
		from   storage.Timestamp // the oplog is read after this time
		unsent []value.Value     // _ids read from the oplog whose documents are not sent yet
		docs   int64             // how many documents the range had at the commit
		bytes  int64             // how much was cloned
		load   command.ClientLoad

		history    func(size int) (part [][]byte, upTo storage.Timestamp, more bool, err error)
		historyPin *storage.OplogPin // keeps the oplog for history
	}
}

// moveRange runs a migration from beginning to end, or waits for the end of one for the same request. It returns nil if there is nothing to move.
func (m *Manager) moveRange(op *command.Op, mv *msg.Move) (d *donor, err error) {
	if d := m.underWay(mv); d != nil {
		select {
		case <-d.done:
			return d, d.outcome
		case <-op.Done():
			return nil, op.Err()
		}
	}
	unlock, err := m.node.LockDDL(op, mv.NS)
	if err != nil {
		return nil, err
	}
	d, err = m.beginDonor(op, mv)
	unlock()
	if err != nil || d == nil {
		return nil, err
	}
	m.state.counts.donor.started.Add(1)
	defer func(d *donor) {
		d.outcome = err
		d.noteOutcome(err)
		m.endDonor(d)
	}(d)
	if err := m.checkSize(op, d, mv); err != nil {
		return nil, err
	}
	if err := m.hang(op, 1); err != nil {
		return nil, err
	}
	d.step() // 1: it is registered
	if err := m.writeDonorState(op, d); err != nil {
		return nil, err
	}
	d.step() // 2: its beginning is durable
	committed, err := d.run(op)
	if errors.Is(err, errOutcomeUnknown) {
		return nil, err // recover asks until the config server answers; nothing is deleted before
	}
	left := d.deletion()
	// Not under op's context, which may be interrupted, but under that of this term as primary: once another term has begun,
	// even on this node, recover decides the outcome.
	if derr := m.decide(d.life, left, d.to, committed); derr != nil && err == nil {
		err = derr
	}
	_ = m.hang(m.life(), 7)
	if err == nil && d.waitForDelete {
		if err = m.paused(); err == nil {
			err = m.deleteNow(op, left.id)
		}
	}
	d.step() // 6: its outcome is carried out
	return d, err
}

// underWay returns the migration from this shard that a request asks for, nil for none. A bound that the request leaves out matches any.
func (m *Manager) underWay(mv *msg.Move) *donor {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.mu.out
	is := func(bound, asked []byte) bool { return asked == nil || bytes.Equal(bound, asked) }
	if d == nil || d.ns != mv.NS || d.to != mv.To || d.waitForDelete != mv.WaitForDelete || !is(d.rng.min, mv.Min) || !is(d.rng.max, mv.Max) {
		return nil
	}
	return d
}

// busy returns the error for a migration that cannot begin because of another one of this shard; nil if there is none. m.mu must be held.
func (m *Manager) busy() error {
	what, ns, other := "", "", ""
	var r *KeyRange
	switch {
	case m.mu.out != nil:
		what, r, ns, other = "donating", m.mu.out.rng, m.mu.out.ns, "to "+m.mu.out.to
	case m.mu.in != nil:
		what, r, ns, other = "receiving", m.mu.in.rng, m.mu.in.ns, "from "+m.mu.in.from
	case m.mu.recreating:
		return mongoerr.New(mongoerr.ConflictingOperationInProgress, "Unable to start new balancer operation because the range deletions of a collection on this shard are being recreated")
	default:
		return nil
	}
	return mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "Unable to start new balancer operation because this shard is currently %s range '[%s, %s)' for namespace %s %s",
		what, value.ShowDoc(r.min), value.ShowDoc(r.max), ns, other)
}

// step notes how long a step of the migration took.
func (d *donor) step() {
	now := d.m.Now()
	d.steps = append(d.steps, value.NewInt64(now.Sub(d.since).Milliseconds()))
	d.since = now
}

// report returns what the config server logs about a migration that succeeded.
func (d *donor) report() (docs, bytes int64, steps []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.docs, d.mu.bytes, value.ArrayOf(d.steps...)
}

func (m *Manager) beginDonor(op *command.Op, mv *msg.Move) (*donor, error) {
	ns, to, min, max := mv.NS, mv.To, mv.Min, mv.Max
	if err := m.awaitRecovery(op); err != nil {
		return nil, err
	}
	if m.holdsUnread(ns) {
		return nil, mongoerr.Newf(mongoerr.ManualInterventionRequired, "the outcome of a migration of %s from this shard, which a server of another version has begun, cannot be found out by this version", ns)
	}
	m.state.Catalog.InvalidateCollection(ns)
	info, err := m.state.Catalog.Collection(op, ns)
	if err != nil {
		return nil, err
	}
	if info.Map == nil {
		return nil, mongoerr.Newf(mongoerr.NamespaceNotSharded, "collection %s is not sharded", ns)
	}
	if to == m.state.ID {
		return nil, nil
	}
	if err := cluster.CheckRange(min, max); err != nil {
		return nil, err
	}
	if !info.Map.Key.HasBounds(min, max) { // the config server has computed them before the collection was resharded, or its key refined
		return nil, mongoerr.Newf(mongoerr.StaleEpoch, "the bounds [%s, %s) are not those of the shard key of %s, %s", value.ShowDoc(min), value.ShowDoc(max), ns, value.ShowDoc(info.Map.Key.Doc()))
	}
	if err := m.state.Registry.Reload(op); err != nil {
		return nil, err
	}
	listed := m.state.Registry.Topology() // before the recipient: what is found may be newer
	if _, err := m.state.Registry.Listed(op, to); err != nil {
		return nil, err
	}
	rng := NewKeyRange(info.Map.Key, min, max)
	chunk := info.Map.Find(rng.minV)
	low, high := chunk.Bounds()
	if chunk.Shard != m.state.ID || cluster.CompareKeys(low, rng.minV) > 0 || cluster.CompareKeys(high, rng.maxV) < 0 {
		return nil, mongoerr.Newf(mongoerr.ConflictingOperationInProgress, "Unable to move range with bounds [%s, %s) of %s: it is not within one chunk of shard %s",
			value.ShowDoc(rng.min), value.ShowDoc(rng.max), ns, m.state.ID)
	}
	c := m.Engine.Catalog().Lookup(ns)
	if c == nil {
		return nil, mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s does not exist on shard %s", ns, m.state.ID)
	}
	d := &donor{m: m, id: cluster.NewUUID(), ns: ns, uuid: c.UUID, to: to, rng: rng, version: chunk.Version, topology: listed, began: m.Engine.Visible(), started: m.Now(), since: m.Now(), done: make(chan struct{}), waitForDelete: mv.WaitForDelete, transfer: mv.Transfer}
	d.mu.load.Begin(m.Counts)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.busy(); err != nil {
		return nil, err
	}
	if d.life = m.mu.ctx; d.life.Err() != nil {
		return nil, mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted")
	}
	m.mu.out = d
	return d, nil
}

func (m *Manager) endDonor(d *donor) {
	d.mu.Lock()
	if d.mu.scan != nil {
		d.mu.scan.Close()
		d.mu.scan = nil
	}
	if d.mu.snap != nil {
		d.mu.snap.Release()
		d.mu.snap = nil
	}
	if d.mu.pin != nil {
		d.mu.pin.Release()
		d.mu.pin = nil
	}
	if d.mu.historyPin != nil {
		d.mu.historyPin.Release()
		d.mu.history, d.mu.historyPin = nil, nil
	}
	d.mu.Unlock()
	m.mu.Lock()
	if m.mu.out == d {
		m.mu.out = nil
	}
	m.mu.Unlock()
	close(d.done)
	m.wakeDeleter()
}

// writeDonorState makes the migration durable: the coordinator document, and the range deletion that waits for its
// outcome.
func (m *Manager) writeDonorState(ctx context.Context, d *donor) error {
	doc := &coordinatorDoc{id: d.id, ns: d.ns, uuid: d.uuid, from: m.state.ID, to: d.to, min: d.rng.min, max: d.rng.max, version: d.version, versioned: true, lsid: cluster.NewUUID()}
	if err := coordinatorDocs(m.Docs).Put(ctx, doc); err != nil {
		return err
	}
	left := d.deletion()
	left.pending = true
	return m.rangeDeletions().Put(ctx, left)
}

// deletion returns the range deletion that this shard has to execute if the migration commits.
func (d *donor) deletion() *rangeDeletion {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &rangeDeletion{id: value.NewBinary(4, d.id[:]), ns: d.ns, uuid: d.uuid, donor: d.m.state.ID, rng: d.rng, delayed: !d.waitForDelete, orphans: d.mu.docs}
}

// peerOf returns the peer of another shard.
func (s *ShardState) peerOf(ctx context.Context, shard string) (cluster.Peer, error) {
	other, err := s.Registry.Shard(ctx, shard)
	if err != nil {
		return nil, err
	}
	return other.Peer, nil
}

// header returns the header that identifies the migration in messages.
func (d *donor) header() msg.Migration { return msg.Migration{NS: d.ns, ID: d.id} }

// send sends a command to the recipient and parses its reply if reply is not nil.
func (d *donor) send(ctx context.Context, m, reply msg.Message) error {
	p, err := d.m.state.peerOf(ctx, d.to)
	if err != nil {
		return err
	}
	body, err := cluster.Run(ctx, p, msg.Doc(m))
	if err == nil && reply != nil {
		err = msg.Parse(body, reply)
	}
	return err
}

// errOutcomeUnknown is part of the error of a migration whose commit was sent and has an unknown outcome.
var errOutcomeUnknown = errors.New("the migration's outcome is not known yet")

// hang stops a migration at one of its steps while the fail point of that step is on: 1 begun, 2 state written, 3 cloning,
// 4 caught up, 5 the recipient has everything and writes are blocked, 6 placement changed, 7 outcome carried out.
func (m *Manager) hang(ctx context.Context, step int) error {
	if m.Points == nil {
		return nil
	}
	return m.Points.Register("moveChunkHangAtStep" + strconv.Itoa(step)).Pause(ctx)
}

// pause stops a migration while a fail point of that name is on.
func (m *Manager) pause(ctx context.Context, name string) error {
	if m.Points == nil {
		return nil
	}
	return m.Points.Register(name).Pause(ctx)
}

// run clones, catches up, and commits. committed reports whether the config server accepted the new placement.
func (d *donor) run(op *command.Op) (committed bool, err error) {
	if err := d.m.hang(op, 2); err != nil {
		return false, err
	}
	d.mu.Lock()
	d.mu.snap = d.m.Engine.Snapshot()
	d.mu.from = d.mu.snap.Timestamp()
	if d.mu.pin, err = d.m.Engine.PinOplog(d.mu.from); err == nil {
		err = d.openHistory()
	}
	d.mu.Unlock()
	if err != nil {
		return false, err
	}
	err = d.send(op, &msg.RecvChunkStart{
		Migration: d.header(), From: d.m.state.ID, To: d.to, Range: d.rng.bounds(), ShardKey: d.rng.key.Doc(), UUID: d.uuid, Transfer: d.transfer,
	}, nil)
	if err != nil {
		return false, err
	}
	d.step() // 3: the recipient clones
	cloning := d.since
	if err = d.m.hang(op, 3); err == nil {
		err = d.waitSteady(op)
	}
	d.m.noteSince(&d.m.state.counts.donor.clone, cloning)
	d.step() // 4: the recipient has caught up
	if err == nil {
		err = d.m.hang(op, 4)
	}
	if err == nil {
		err = d.announce(op)
	}
	if err == nil {
		committed, err = d.commit(op)
	}
	if err != nil && !committed && !errors.Is(err, errOutcomeUnknown) {
		_ = d.send(context.WithoutCancel(op), &msg.RecvChunkAbort{Migration: d.header()}, nil)
	}
	return committed, err
}

// steadyWait is the time limit for a recipient to clone a range and catch up.
const steadyWait = 6 * time.Hour

// waitSteady waits until the recipient has cloned the range and caught up.
func (d *donor) waitSteady(ctx context.Context) error {
	for end := d.m.Now().Add(steadyWait); ; {
		var far msg.RecvChunkStatusReply
		if err := d.send(ctx, &msg.RecvChunkStatus{Migration: d.header()}, &far); err != nil {
			return err
		}
		switch far.State {
		case recvSteady:
			return nil
		case recvFail, recvAbort:
			return mongoerr.Newf(mongoerr.OperationFailed, "Data transfer error: migrate failed: %s", far.Error)
		}
		if d.m.Now().After(end) {
			return mongoerr.Newf(mongoerr.ExceededTimeLimit, "Failed to wait for the recipient shard %s to clone the range of %s and catch up within %s", d.to, d.ns, steadyWait)
		}
		if err := cluster.Sleep(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
}

// lockForCommit locks the collection exclusively: once it holds the lock, every write in flight has committed. It gives up when it has
// waited for longer than a transaction lives.
func (d *donor) lockForCommit(op *command.Op) (unlock func(), err error) {
	return d.m.state.patiently(op, func(wait time.Duration) (func(), error) {
		return d.m.Locks.CollectionWithin(op, d.ns, lock.X, wait)
	})
}

// announce informs the shard's secondaries that the placement is about to change.
func (d *donor) announce(ctx context.Context) error {
	id := value.NewBinary(4, d.id[:])
	return d.m.Docs.WriteWith(ctx, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		u.Notice(placingNotice("announced", id, d.ns))
		u.Oplog(storage.OplogEntry{Op: 'n', StmtID: -1, O: value.Doc(value.F("msg", value.NewString("a migration of "+d.ns+" is about to be committed")))})
		return nil
	})
}

// criticalWait is the longest time that writers of a collection wait for a recipient to fetch the last changes.
const criticalWait = 30 * time.Second

// transferRest makes the recipient fetch what it does not have yet, and make all of it durable.
func (d *donor) transferRest(ctx context.Context, c *catalog.Collection) error {
	bounded, cancel := context.WithTimeout(ctx, criticalWait)
	defer cancel()
	m := &msg.RecvChunkCommit{Migration: d.header(), Indexes: readyIndexes(c).Doc(), Options: value.Doc()}
	if c != nil {
		if c.Options != nil {
			m.Options = c.Options
		}
		for _, i := range c.Indexes {
			if i.Ready {
				m.Specs = append(m.Specs, i.Spec.Raw)
			}
		}
	}
	var there msg.RecvChunkCommitReply
	if err := d.send(bounded, m, &there); err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			err = mongoerr.Newf(mongoerr.ExceededTimeLimit, "the recipient shard %s did not have all of the range of %s within %s, during which writes were blocked", d.to, d.ns, criticalWait)
		}
		return err
	}
	d.step() // 5: it has everything
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.docs = there.Docs
	return nil
}

// commit runs the critical section: no write may begin until the placement has changed, or is known not to.
//
// Invariant: at any time at most one shard accepts writes to the range. The exclusive lock waits for the writes in
// flight; every later write compares versions under its own lock and finds the section, so what the recipient
// fetches last is everything. Reads are blocked only for the commit at the config server: until then this shard's
// data is current.
//
// Hazard: the reply to the commit can be lost. Neither outcome may then be assumed, because the request may still
// be in flight and take effect later. moved first fences it: it raises the chunk's version, which makes a late
// commit fail, and only then reads who owns the range. If the config server cannot be reached, the section stays
// (hold) until recovery knows. Rejected: ending the section after a time limit and trusting the versions. This
// shard's own table would still call it the owner, and it would acknowledge writes that the recipient never sees.
func (d *donor) commit(op *command.Op) (committed bool, err error) {
	s := d.m.state
	unlock, err := d.lockForCommit(op)
	if err != nil {
		return false, err
	}
	critical, err := s.EnterCritical(d.ns, "moveChunk")
	c := d.m.Engine.Catalog().Lookup(d.ns)
	unlock()
	if err != nil {
		return false, err
	}
	entered, counts := d.m.Now(), &s.counts.donor
	defer func() {
		d.m.noteSince(&counts.section, entered)
		if !errors.Is(err, errOutcomeUnknown) || !d.m.hold(d, critical) {
			s.LeaveCritical(d.ns, critical)
		}
	}()
	if err := d.transferRest(op, c); err != nil {
		return false, err
	}
	if err := d.m.hang(op, 5); err != nil {
		return false, err
	}
	s.BlockReads(critical)
	info, err := s.Catalog.Collection(op, d.ns)
	if err == nil && info.Map == nil {
		err = mongoerr.Newf(mongoerr.NamespaceNotSharded, "collection %s is no longer sharded", d.ns)
	}
	if err != nil {
		return false, err
	}
	// Before the commit: a stream that watches for this event has to read from the new shard before anything can be written there.
	if !slices.Contains(info.Map.Shards(), d.to) {
		event := value.Doc(value.F("migrateChunkToNewShard", value.NewString(d.ns)), value.F("fromShardId", value.NewString(s.ID)), value.F("toShardId", value.NewString(d.to)))
		if err := d.m.noteEvent(op, d.ns, d.uuid, event); err != nil {
			return false, err
		}
	}
	sent := d.m.Now()
	_, err = cluster.RunWrite(context.WithoutCancel(op), s.Registry.Config(), msg.Doc(&msg.CommitChunkMigration{
		NS: d.ns, From: s.ID, To: d.to, Range: d.rng.bounds(), Version: d.version.Combined(), Epoch: d.version.Epoch, Topology: d.topology,
	}))
	d.m.noteSince(&counts.commit, sent)
	_ = d.m.hang(d.m.life(), 6)
	s.Catalog.InvalidateCollection(d.ns)
	if err == nil {
		d.releaseRecipient()
		info, err = s.Catalog.Collection(context.WithoutCancel(op), d.ns)
		if err == nil && info.Map != nil && !slices.Contains(info.Map.Shards(), s.ID) {
			event := value.Doc(value.F("migrateLastChunkFromShard", value.NewString(d.ns)), value.F("shardId", value.NewString(s.ID)))
			err = d.m.noteEvent(context.WithoutCancel(op), d.ns, d.uuid, event)
		}
		return true, err
	}
	moved, rerr := d.m.moved(context.WithoutCancel(op), d.ns, d.to, d.rng, d.version)
	if rerr != nil {
		return false, fmt.Errorf("%w: %w", errOutcomeUnknown, rerr)
	}
	if moved {
		return true, nil
	}
	return false, err
}

// readyIndexes lists a collection's indexes by name.
func readyIndexes(c *catalog.Collection) value.Value {
	var names []string
	if c != nil {
		for _, i := range c.Indexes {
			if i.Ready {
				names = append(names, i.Name)
			}
		}
	}
	slices.Sort(names)
	out := make([]value.Value, len(names))
	for i, n := range names {
		out[i] = value.NewString(n)
	}
	return value.NewArray(value.ArrayOf(out...))
}

// fence makes a commit that may still be in flight to the config server fail.
func (m *Manager) fence(ctx context.Context, ns string, min []byte, version cluster.ChunkVersion) error {
	_, err := cluster.RunWrite(ctx, m.state.Registry.Config(), msg.Doc(&msg.EnsureChunkVersion{NS: ns, Min: min, Version: version}))
	return err
}

// moved asks the config server whether a range belongs to the recipient now. The answer is final.
func (m *Manager) moved(ctx context.Context, ns, to string, r *KeyRange, version cluster.ChunkVersion) (bool, error) {
	if err := m.fence(ctx, ns, r.min, version); err != nil && !gone(err) {
		return false, err
	}
	m.state.Catalog.InvalidateCollection(ns)
	info, err := m.state.Catalog.Collection(ctx, ns)
	if err != nil || info.Map == nil {
		return false, err
	}
	return info.Map.ShardOf(info.Map.Key.ExtendValues(r.minV)) == to, nil
}

// decide carries out a migration's outcome: on success the recipient keeps the range and this shard deletes it, on
// failure the other way round. left is this shard's range deletion. Every step may be repeated.
//
// The decision is stored before the recipient learns of it, and the coordinator document is removed last. A crash
// in between repeats the steps; all of them are idempotent. A shard deletes the range only once the decision is
// stored, so that no document is deleted on one shard while the other may still have to delete it, too.
func (m *Manager) decide(ctx context.Context, left *rangeDeletion, to string, committed bool) error {
	if ctx.Err() != nil {
		return mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted")
	}
	decision := "aborted"
	if committed {
		decision = "committed"
	}
	if err := coordinatorDocs(m.Docs).Update(ctx, left.id, func(d *coordinatorDoc) { d.decision = decision }); err != nil {
		return err
	}
	shard, err := m.state.Registry.Shard(ctx, to)
	if err == nil {
		about := msg.Migration{NS: left.ns}
		copy(about.ID[:], left.id.Bytes())
		_, err = cluster.Run(ctx, shard.Peer, msg.Doc(&msg.MigrationDecision{Migration: about, Committed: committed}))
	}
	if err != nil && mongoerr.CodeOf(err) != mongoerr.ShardNotFound { // a shard that was removed no longer needs to know
		return err // the coordinator document remains, so this is repeated
	}
	if !committed {
		left = &rangeDeletion{id: left.id, ns: left.ns, pending: true}
	}
	if err := m.conclude(ctx, left); err != nil {
		return err
	}
	m.rangesChanged()
	m.wakeDeleter()
	return nil
}

// conclude ends a migration here: it removes the coordinator document, and activates the range deletion or, if
// left is pending, removes it. Both happen in one unit: if the conclusion were repeated after the range had been
// deleted and had come back, it would delete live documents.
func (m *Manager) conclude(ctx context.Context, left *rangeDeletion) error {
	return m.Docs.WriteWith(ctx, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
		u.Notice(placingNotice("concluded", left.id, left.ns))
		coordinators := s.Catalog().Lookup(coordinatorsNS)
		if coordinators == nil {
			return nil
		}
		if _, ok, err := s.LookupID(coordinators, left.id); err != nil || !ok {
			return err
		}
		var err error
		if left.pending {
			err = m.rangeDeletions().RemoveIn(s, u, left.id)
		} else {
			left.since = m.today()
			err = m.rangeDeletions().PutIn(s, u, left)
		}
		if err == nil {
			err = coordinatorDocs(m.Docs).RemoveIn(s, u, left.id)
		}
		return err
	})
}

// hold keeps a critical section until the outcome of its migration is known. It returns false if the node is no
// longer primary.
func (m *Manager) hold(d *donor, c *criticalSection) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.ctx.Err() != nil || m.mu.out != d {
		return false
	}
	doc := value.NewBinary(4, d.id[:])
	m.mu.held[heldKey(doc)] = section{ns: d.ns, c: c, doc: doc}
	return true
}

// release ends the critical section of a migration whose outcome is known.
func (m *Manager) release(doc value.Value) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.mu.held[heldKey(doc)]
	delete(m.mu.held, heldKey(doc))
	for _, other := range m.mu.held {
		ok = ok && other.c != s.c
	}
	if ok {
		m.state.LeaveCritical(s.ns, s.c)
	}
}

// releaseAll ends the critical sections of migrations because the node is no longer primary.
func (m *Manager) releaseAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.held = nil
	m.state.EndMigrations()
}

// holdUndecided closes the collections of migrations that an earlier primary left undecided: the commit may still
// be in flight to the config server, or have succeeded, and writes accepted here before that is known would be
// lost with the range. m.mu must be held.
//
// The document may be one that this version cannot read, of a member of another version that was the primary. Then nobody here decides, and the collection remains closed until a primary that can
// read it does, or the document is removed (releaseConcluded).
func (m *Manager) holdUndecided() error {
	hold := func(s section) {
		for _, other := range m.mu.held {
			if other.ns == s.ns {
				s.c = other.c
			}
		}
		if s.c == nil {
			s.c = m.state.TakeCritical(s.ns, "recovery of a migration")
		}
		m.mu.held[heldKey(s.doc)] = s
	}
	return coordinatorDocs(m.Docs).EachOr(func(d *coordinatorDoc) error {
		if d.decision == "" {
			hold(section{ns: d.ns, doc: d.ID()})
		}
		return nil
	}, func(doc []byte, why error) bool {
		ns, from, decision := unreadMigration(doc)
		if from != m.state.ID {
			return false
		}
		if decision == "" {
			id := value.Lookup(doc, "_id").Clone()
			m.node.Warn("The outcome of a migration from this shard cannot be found out by this version, and "+ns+" is closed until its document is removed from "+coordinatorsNS, mongoerr.From(why).Prefix(value.Show(id)+": "))
			hold(section{ns: ns, doc: id, unread: true})
		}
		return true
	})
}

// holdsUnread reports whether a collection, or any if ns is empty, is closed for a migration that this version cannot read.
func (m *Manager) holdsUnread(ns string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.mu.held {
		if s.unread && (ns == "" || s.ns == ns) {
			return true
		}
	}
	return false
}

// awaitRecovery waits until the migrations that an earlier primary left undecided are decided: the next migration may
// concern the same ranges.
func (m *Manager) awaitRecovery(ctx context.Context) error {
	m.mu.Lock()
	recovered := m.mu.recovered
	m.mu.Unlock()
	if recovered == nil {
		return mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted")
	}
	select {
	case <-recovered:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
