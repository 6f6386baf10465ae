package migration

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Start makes a node that has become a shard take part in migrations, and registers the commands.
func Start(c Config, node Node, sessions Sessions, shard *Shard, state *ShardState) error {
	m := newManager(c, node, sessions, state)
	state.Catalog.Limit(c.Params.Int("catalogCacheCollectionMaxEntries"), c.Params.Int("catalogCacheDatabaseMaxEntries"))
	state.tables = m.newTables(shard)
	state.Catalog.SetDisk(state.tables)
	state.splitter, state.params = newSplitter(m), c.Params
	end := func(ctx context.Context, d *sectionDoc) error { return m.sections().leave(ctx, d) }
	state.onLeftOver.Store(&end)
	shard.Become(state)
	if err := shard.loadSections(); err != nil {
		return err
	}
	for _, specs := range [][]command.Spec{m.specs(), m.shardSpecs(), m.infoSpecs(), {m.splitChunkSpec()}, m.flushSpecs()} {
		c.Service.Table.Add(specs...)
	}
	c.Service.DescribeTasks(m.describe)
	state.readers.onEnd(m.wakeDeleter)
	for _, name := range []string{"orphanCleanupDelaySecs", "disableResumableRangeDeleter"} {
		c.Params.OnChange(name, func(value.Value) {
			m.rangesChanged()
			m.wakeDeleter()
		})
	}
	return errors.Join(c.Services.Add(m.service()), c.Services.Add(state.tables.Service()), c.Services.Add(state.splitter.service()), c.Services.Add(state.identityService(c.Docs)))
}

// newManager returns a manager that takes part in no migration before the node steps up.
func newManager(c Config, node Node, sessions Sessions, state *ShardState) *Manager {
	m := &Manager{Config: c, node: node, sessions: sessions, state: state, wake: make(chan struct{}, 1), deleting: make(chan struct{}, 1)}
	ended, end := context.WithCancel(context.Background())
	end()
	m.mu.ctx = ended
	return m
}

// service returns migrations as a primary-only service: it decides what an earlier primary left unfinished,
// deletes ranges that are no longer owned, and ends migrations in progress when the node steps down.
func (m *Manager) service() replication.Service {
	return replication.Service{
		Name: "MigrationCoordinator", Vital: true, // it closes ranges that may have left
		StepUp: func(ctx context.Context, _ int64) error {
			// The placement may have changed while another member was primary, and only that member was informed.
			if c, ok := m.state.Registry.Config().(*cluster.ConfigServer); ok {
				c.Recheck()
			}
			m.state.Catalog.Clear()
			m.mu.Lock()
			defer m.mu.Unlock()
			m.mu.ctx, m.mu.in, m.mu.out = ctx, nil, nil
			m.mu.recovered, m.mu.held = make(chan struct{}), map[string]section{}
			err := errors.Join(m.holdUndecided(), m.restoreReceived())
			m.state.counts.unfinished.Store(int64(len(m.mu.held)))
			return err
		},
		Run: func(ctx context.Context, _ int64) {
			var sweeper sync.WaitGroup
			sweeper.Go(func() { m.sweepSections(ctx) })
			sweeper.Go(func() { m.sweepLeftCopies(ctx) })
			m.background(ctx)
			sweeper.Wait()
			m.releaseAll()
			m.wg.Wait() // no further recipient is started
		},
	}
}

// life returns the context of this term as primary: it is canceled when the node steps down.
func (m *Manager) life() context.Context {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.ctx
}

// asked completes the row of a command that comes from the config server, or from the other shard of a migration.
func asked(s command.Spec) command.Spec {
	s.Roles, s.PrimaryOnly, s.WriteConcern = command.Shard|command.Config, true, true
	return s
}

func (m *Manager) specs() []command.Spec {
	// Like the real server, cleanupOrphaned reads only its namespace: startingFromKey, secondaryThrottle and writeConcern are from earlier versions, and
	// unknown fields are ignored, as in all commands of its age.
	cleanup := asked(command.Spec{Name: "cleanupOrphaned", AdminOnly: true, Internal: true, ArgTypes: command.TString, Lenient: true, Run: m.runCleanupOrphaned})
	return []command.Spec{
		asked(command.Internal(m.runMoveRange)), asked(command.Internal(m.runBalancingStats)), asked(command.Internal(m.runDecision)), asked(command.Internal(m.runRecreateTasks)), cleanup,
		asked(command.Internal(m.runRecvStart)), asked(command.Internal(m.runRecvStatus)), asked(command.Internal(m.runRecvCommit)), asked(command.Internal(m.runRecvAbort)), asked(command.Internal(m.runRecvRelease)),
		asked(command.Internal(m.runMigrateClone)), asked(command.Internal(m.runTransferMods)), asked(command.Internal(m.runSessionMods)),
	}
}

func (m *Manager) runMoveRange(op *command.Op, req *msg.ShardMoveRange, dst []byte) ([]byte, error) {
	m.state.Catalog.InvalidateCollection(req.NS)
	info, err := m.state.Catalog.Collection(op, req.NS)
	if err != nil {
		return dst, err
	}
	if info.Map == nil {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotSharded, "collection %s is not sharded", req.NS)
	}
	if info.Map.Version().Epoch != cluster.Epoch(req.Epoch) { // the bounds may be those of another shard key
		return dst, mongoerr.Newf(mongoerr.StaleEpoch, "the collection %s changed before the migration began", req.NS)
	}
	if req.Min == nil && req.Max == nil {
		return dst, mongoerr.New(mongoerr.InvalidOptions, "moveRange needs min, max or both")
	}
	if d := m.underWay(&req.Move); d != nil { // sent again: by now another bound might be found
		req.Min, req.Max = d.rng.min, d.rng.max
	}
	if err := m.closeRange(op, info.Map, &req.Move); err != nil {
		return dst, err
	}
	if err := cluster.CheckBounds(req.Min, req.Max); err != nil { // before a document is written that the next primary could not read
		return dst, err
	}
	m.state.endLeft(op, req.NS)
	d, err := m.moveRange(op, &req.Move)
	if err != nil {
		return dst, err
	}
	reply := &msg.ShardMoveRangeReply{Range: msg.Range{Min: req.Min, Max: req.Max}}
	if d != nil {
		reply.Docs, reply.Bytes, reply.Steps = d.report()
	}
	return msg.AppendFields(dst, reply), nil
}

// closeRange finds the bound of a range that was left out: the range is within one chunk and holds as much as a chunk may hold.
func (m *Manager) closeRange(op *command.Op, table *cluster.ChunkMap, mv *msg.Move) (err error) {
	if mv.Min != nil && mv.Max != nil {
		return nil
	}
	if mv.Max == nil {
		within := NewKeyRange(table.Key, mv.Min, table.Find(value.Values(mv.Min)).Max)
		mv.Max, err = m.openEnd(op, mv.NS, within, true, mv.MaxBytes)
	} else {
		within := NewKeyRange(table.Key, table.FindBelow(value.Values(mv.Max)).Min, mv.Max)
		mv.Min, err = m.openEnd(op, mv.NS, within, false, mv.MaxBytes)
	}
	return err
}

// checkSize refuses a range with over a third more documents than fit in a chunk.
func (m *Manager) checkSize(op *command.Op, d *donor, mv *msg.Move) error {
	if mv.MaxBytes <= 0 || mv.ForceJumbo {
		return nil
	}
	s := m.Engine.Snapshot()
	defer s.Release()
	c := s.Catalog().Lookup(d.ns)
	if c == nil {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s does not exist on shard %s", d.ns, m.state.ID)
	}
	limit := perChunk(c, mv.MaxBytes) * 13 / 10
	n, err := countKeys(op, s, c, d.rng, limit)
	if err == nil && n > limit {
		err = mongoerr.Newf(mongoerr.ChunkTooBig, "Cannot move chunk: the maximum number of documents for a chunk is %d, the maximum chunk size is %d, average document size is %d. Found more documents in the range [%s, %s) of %s",
			limit, mv.MaxBytes, c.Counters.DataSize.Load()/max(1, c.Counters.Records.Load()), value.ShowDoc(d.rng.min), value.ShowDoc(d.rng.max), d.ns)
	}
	return err
}

func (m *Manager) runRecvStart(op *command.Op, req *msg.RecvChunkStart, dst []byte) ([]byte, error) {
	return value.Append(dst, "started", value.NewBool(true)), m.beginRecipient(op, req)
}

// incoming finds the migration that a request of its donor is about.
func (m *Manager) incoming(id [16]byte) (*recipient, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.in == nil || m.mu.in.id != id {
		return nil, mongoerr.New(mongoerr.NoSuchKey, "no such migration enters this shard")
	}
	return m.mu.in, nil
}

func (m *Manager) outgoing(id [16]byte) (*donor, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.out == nil || m.mu.out.id != id {
		return nil, mongoerr.New(mongoerr.NoSuchKey, "no such migration leaves this shard")
	}
	return m.mu.out, nil
}

func (m *Manager) runRecvStatus(_ *command.Op, req *msg.RecvChunkStatus, dst []byte) ([]byte, error) {
	r, err := m.incoming(req.ID)
	if err != nil {
		return dst, err
	}
	state, rerr, _ := r.status()
	reply := &msg.RecvChunkStatusReply{
		Active: state != recvEntered && state != recvDone && state != recvFail && state != recvAbort, NS: r.ns, From: r.from, Range: r.rng.bounds(), ShardKey: r.rng.key.Doc(), State: state,
	}
	if rerr != nil {
		reply.Error = rerr.Error()
	}
	r.mu.Lock()
	reply.Cloned, reply.ClonedBytes = r.mu.cloned, r.mu.clonedLen
	r.mu.Unlock()
	return msg.AppendFields(dst, reply), nil
}

func (m *Manager) runRecvCommit(op *command.Op, req *msg.RecvChunkCommit, dst []byte) ([]byte, error) {
	r, err := m.incoming(req.ID)
	if err != nil {
		return dst, err
	}
	if err := r.checkDefinition(m.Engine.Catalog().Lookup(r.ns), req); err != nil {
		return dst, err
	}
	if err := r.finish(op); err != nil {
		return dst, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return msg.AppendFields(dst, &msg.RecvChunkCommitReply{Docs: r.mu.docs}), nil
}

func (m *Manager) runRecvAbort(_ *command.Op, req *msg.RecvChunkAbort, dst []byte) ([]byte, error) {
	r, err := m.incoming(req.ID)
	if err != nil {
		return dst, err
	}
	r.set(recvAbort, nil)
	r.stop()
	return dst, nil
}

// maxTransfer is the maximum size of one reply to the recipient; a larger document is sent alone. A reply is itself a
// document, which must stay below 16 MB: small documents followed by a large one do not always fit.
const maxTransfer = 4 << 20

// cloneTransfer is the maximum size of a reply to _migrateClone: as much as is stored in one unit of work. With 4 MB at a time each megabyte took 3 % more
// processor time, and less was cloned in a second: shards wait for each other for as long as a reply takes.
const cloneTransfer = cloneUnitBytes

// busyTransfer is cloneTransfer while clients are served, which wait for a processor while a reply is assembled.
const busyTransfer = 128 << 10

// runMigrateClone returns the next documents of the range, as of the beginning of the migration.
func (m *Manager) runMigrateClone(op *command.Op, req *msg.MigrateClone, dst []byte) ([]byte, error) {
	d, err := m.outgoing(req.ID)
	if err != nil {
		return dst, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.snap == nil {
		return dst, mongoerr.New(mongoerr.IllegalOperation, "the migration has ended")
	}
	if d.mu.scan == nil {
		c := d.mu.snap.Catalog().Lookup(d.ns)
		if c == nil {
			return dst, mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s was dropped", d.ns)
		}
		d.mu.scan = scanRecords(scanRange(d.mu.snap, c, d.rng, false), op.Check)
	}
	d.mu.scan.check = op.Check
	limit, busy := cloneTransfer, d.mu.load.Busy(m.Counts, m.Now())
	if busy || req.Busy {
		limit = busyTransfer
	}
	reply := &msg.MigrateCloneReply{Busy: busy, Build: func(dst []byte) []byte {
		dst, err = d.appendNext(dst, limit)
		return dst
	}}
	dst = msg.AppendFields(dst, reply)
	return dst, err
}

// replyRoom is how much of a reply to _migrateClone is not documents: with it, its buffer is not grown.
const replyRoom = 1 << 10

// appendNext appends the next documents of the clone as elements of an array. This is the only time that they are copied: from the store's blocks to the buffer
// that is sent, or from which a recipient of the same process stores them. d.mu must be held.
func (d *donor) appendNext(dst []byte, limit int) ([]byte, error) {
	from, i := len(dst), 0
	for d.mu.held != nil || d.mu.scan.Next() {
		doc := d.mu.held
		if doc == nil {
			doc = d.mu.scan.Doc()
		}
		if i > 0 && len(dst)-from+len(doc) > limit {
			d.mu.held = append([]byte(nil), doc...)
			break
		}
		if i == 0 {
			dst = slices.Grow(dst, max(limit, len(doc))+replyRoom)
		}
		dst = value.AppendIndex(dst, i, value.NewDocument(doc))
		i++
		d.mu.held = nil
		if err := d.mu.scan.check(); err != nil {
			return dst, err
		}
	}
	d.mu.scan.Save()
	n := int64(len(dst) - from)
	d.mu.bytes += n
	d.m.state.counts.donor.docs.Add(int64(i))
	d.m.state.counts.donor.bytes.Add(n)
	return dst, d.mu.scan.Err()
}

// runTransferMods returns what was written to the range since the last reply, read from the oplog.
func (m *Manager) runTransferMods(op *command.Op, req *msg.TransferMods, dst []byte) ([]byte, error) {
	d, err := m.outgoing(req.ID)
	if err != nil {
		return dst, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := m.Engine.Snapshot()
	defer s.Release()
	ids, more := d.mu.unsent, true
	if len(ids) == 0 {
		if ids, more, err = d.changedIDs(op, s); err != nil {
			return dst, err
		}
	}
	d.mu.unsent = nil
	c := s.Catalog().Lookup(d.ns)
	if c == nil || c.UUID != d.uuid {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotFound, "collection %s was dropped", d.ns)
	}
	var reply msg.TransferModsReply
	size := 0
	for i, id := range ids {
		_, doc, ok, err := s.FindByID(c, id)
		if err != nil {
			d.mu.unsent = ids // they have been read from the oplog and are not read again
			return dst, err
		}
		if size += len(doc); i > 0 && size > maxTransfer {
			d.mu.unsent, more = ids[i:], true
			break
		}
		if ok && d.rng.Contains(doc) {
			reply.Reload = append(reply.Reload, bytes.Clone(doc))
		} else {
			reply.Deleted = append(reply.Deleted, value.Doc(value.F("_id", id)))
		}
	}
	reply.More = more
	return msg.AppendFields(dst, &reply), nil
}

// changedIDs continues reading the oplog and returns the _ids of the collection's documents that were written. If
// an entry was deleted before it was read, its write would be lost with the range.
func (d *donor) changedIDs(op *command.Op, s *storage.Snapshot) (ids []value.Value, more bool, err error) {
	if d.mu.pin == nil {
		return nil, false, mongoerr.New(mongoerr.IllegalOperation, "the migration has ended")
	}
	if ids, more, err = d.readOplog(op, s); err == nil {
		err = d.mu.pin.Check()
	}
	d.mu.pin.Advance(d.mu.from)
	return ids, more, err
}

// readOplog continues reading the oplog and returns the _ids of the collection's documents that were written.
func (d *donor) readOplog(op *command.Op, s *storage.Snapshot) (ids []value.Value, more bool, err error) {
	w := Written{NS: d.ns, After: d.mu.from, Limit: maxTransfer / perID}
	if c := s.Catalog().Lookup(d.ns); c != nil {
		w.By = c.Collator
	}
	err = w.Read(op.Check, s)
	d.mu.from = w.After
	return w.IDs, w.More, err
}

// Written are the documents of a collection that were written to, according to the oplog.
type Written struct {
	NS    string
	After storage.Timestamp // entries up to it have been read
	Limit int               // how many documents are enough, or how many times the assumed size of one their _ids have
	By    value.Collator    // how the collection compares _ids
	IDs   []value.Value     // their _ids, each once
	Put   []bool            // for each whether it was inserted or deleted, which changes its position in insertion order
	More  bool              // there may be later entries

	Entries int64          // of the collection
	size    int            // of their _ids
	seen    map[string]int // index of IDs
}

// operationsAtOnce is the number of operations in the oplog that are read for one reply.
const operationsAtOnce = 100_000

// perID is the assumed size of a document in a reply.
const perID = 1024

// Read continues to read the oplog of a snapshot. check returns an error to stop.
func (w *Written) Read(check func() error, s *storage.Snapshot) error {
	oplog := s.Catalog().Lookup("local.oplog.rs")
	if oplog == nil {
		return mongoerr.New(mongoerr.InternalError, "this shard has no oplog")
	}
	w.seen = make(map[string]int)
	cur := s.Scan(oplog, storage.ScanOptions{From: storage.NewRecordID(int64(w.After) + 1), CopiesOf: s.Catalog().Lookup(w.NS)})
	defer cur.Close()
	for read := 0; cur.Next(); {
		e := cur.Doc()
		at := storage.Timestamp(value.Lookup(e, "ts").TimestampU64())
		var err error
		if value.Lookup(e, "op").Str() == "c" {
			err = operations(s, e, func(op []byte) { read++; w.note(op) })
		} else {
			w.note(e)
		}
		if err != nil {
			return err
		}
		w.After = at
		if read++; len(w.IDs) > w.Limit || w.size > w.Limit*perID || read >= operationsAtOnce {
			w.More = true
			return nil
		}
		if err := check(); err != nil {
			return err
		}
	}
	w.After = max(w.After, cur.Skipped())
	return cur.Err()
}

// operations calls f with the operations that take effect with a command entry of the oplog: those nested in an applyOps and,
// for the decision to commit a prepared transaction, those that were prepared. The prepare entry alone changes nothing.
func operations(s *storage.Snapshot, e []byte, f func(op []byte)) error {
	each := func(ops []byte) error {
		for _, op := range value.Values(ops) {
			f(op.Doc())
		}
		return nil
	}
	o := value.LookupDoc(e, "o")
	switch {
	case !value.Lookup(o, "commitTransaction").IsMissing():
		return s.PreparedOps(storage.Timestamp(value.Lookup(value.LookupDoc(e, "prevOpTime"), "ts").TimestampU64()), each)
	case value.Lookup(o, "prepare").Truthy():
		return nil
	}
	return each(value.Lookup(o, "applyOps").Doc())
}

// note records the _id that an operation writes to.
func (w *Written) note(e []byte) {
	put := false
	switch value.Lookup(e, "op").Str() {
	case "i", "d":
		e, put = withKey(e, "o"), true
	case "u":
		e = withKey(e, "o2")
	default:
		return
	}
	if e == nil || value.Lookup(e, "ns").Str() != w.NS {
		return
	}
	w.Entries++
	id := value.Lookup(e, "_id")
	key := string(value.AppendGroupKey(nil, id, w.By))
	at, known := w.seen[key]
	if !known {
		at = len(w.IDs)
		w.size += len(key)
		w.seen[key], w.IDs, w.Put = at, append(w.IDs, id), append(w.Put, false)
	}
	w.Put[at] = w.Put[at] || put
}

// withKey returns {ns, _id} of an entry whose document key is in field; nil if it has no _id.
func withKey(e []byte, field string) []byte {
	id := value.Lookup(value.Lookup(e, field).Doc(), "_id")
	if id.IsMissing() {
		return nil
	}
	return value.Doc(value.F("ns", value.Lookup(e, "ns")), value.F("_id", id))
}

// runDecision receives the donor's decision about a migration and settles this shard's range deletion. It may be
// repeated, also after a restart.
func (m *Manager) runDecision(op *command.Op, req *msg.MigrationDecision, dst []byte) ([]byte, error) {
	m.mu.Lock()
	r := m.mu.in
	if r != nil && r.id == req.ID {
		m.mu.in = nil
	} else {
		r = nil
	}
	m.mu.Unlock()
	if r != nil {
		r.stop()
		r.awaitEntering()
		if err := r.awaitEnd(op); err != nil { // after its end it stores nothing more, and its documents can be counted
			return dst, err
		}
	}
	m.state.Catalog.InvalidateCollection(req.NS)
	if err := m.sections().leave(op, &sectionDoc{name: req.NS, id: req.ID}); err != nil {
		return dst, err
	}
	idv := value.NewBinary(4, req.ID[:])
	defer m.rangesChanged()
	if req.Committed {
		return dst, m.rangeDeletions().Remove(op, idv)
	}
	err := m.clearPending(op, idv)
	m.wakeDeleter()
	return dst, err
}

func (m *Manager) runCleanupOrphaned(op *command.Op, dst []byte) ([]byte, error) {
	ns := op.Req.Cmd.Str()
	if err := command.CheckFullName(ns); err != nil {
		return dst, err
	}
	return dst, m.awaitCleanup(op, ns)
}

// background finishes what an earlier run left unfinished, then deletes ranges as they become ready.
func (m *Manager) background(ctx context.Context) {
	for {
		op := m.Service.Background(ctx, command.OwnClient())
		var again time.Duration
		err := m.recover(op)
		if err == nil {
			m.recoveryDone()
		}
		if err == nil {
			again, err = m.sweep(op)
		}
		if err == nil {
			var undecided time.Duration
			if undecided, err = m.forget(op); undecided > 0 && (again == 0 || undecided < again) {
				again = undecided
			}
		}
		if m.holdsUnread("") && (again == 0 || again > askAgain) {
			again = askAgain
		}
		if err != nil {
			again = time.Second
		}
		var later <-chan time.Time
		if again > 0 {
			later = time.After(again)
		}
		select {
		case <-later:
		case <-m.wake:
		case <-ctx.Done():
			return
		}
	}
}

func (m *Manager) recoveryDone() {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.mu.recovered:
	default:
		close(m.mu.recovered)
	}
}

func (m *Manager) wakeDeleter() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// gone reports whether a collection or its database does not exist or is no longer sharded.
func gone(err error) bool {
	c := mongoerr.CodeOf(err)
	return c == mongoerr.NamespaceNotFound || c == mongoerr.NamespaceNotSharded
}

// recover decides the migrations whose coordinator documents are still there. One that cannot be decided yet does
// not block the others.
func (m *Manager) recover(op *command.Op) error {
	var errs []error
	err := coordinatorDocs(m.Docs).Each(func(d *coordinatorDoc) error {
		errs = append(errs, m.recoverOne(op, d))
		return nil
	})
	if err == nil {
		err = m.releaseConcluded()
	}
	return errors.Join(append(errs, err)...)
}

// releaseConcluded ends the critical sections of migrations that recoverOne did not conclude: the previous primary did,
// and its last write arrived after this node had begun to hold the sections; or this version could not read their documents, which have been removed.
func (m *Manager) releaseConcluded() error {
	m.mu.Lock()
	held := slices.Collect(maps.Values(m.mu.held))
	m.mu.Unlock()
	for _, s := range held {
		doc, err := m.Docs.Get(coordinatorsNS, s.doc)
		if err != nil {
			return err
		}
		if doc == nil {
			m.release(s.doc)
		}
	}
	return nil
}

// recoverOne decides a migration that an earlier primary, or an interrupted run, left undecided. The coordinator
// document says that it may have committed; only the placement reports whether it did. A commit may still be in
// flight to the config server, so it is fenced before the placement is read, and what is read then stays true.
func (m *Manager) recoverOne(op *command.Op, d *coordinatorDoc) error {
	m.mu.Lock()
	running := m.mu.out != nil && m.mu.out.id == d.id
	m.mu.Unlock()
	if running {
		return nil // it is still running and decides for itself
	}
	if _, ok, err := coordinatorDocs(m.Docs).Get(d.ID()); err != nil || !ok {
		return err // it was decided since the list was read
	}
	if err := coordinatorDocs(m.Docs).Update(op, d.ID(), func(d *coordinatorDoc) { d.attempts++ }); err != nil {
		return err
	}
	if d.versioned {
		if err := m.fence(op, d.ns, d.min, d.version); err != nil && !gone(err) {
			return err
		}
	}
	m.state.Catalog.InvalidateCollection(d.ns)
	info, err := m.state.Catalog.Collection(op, d.ns)
	if err != nil && mongoerr.CodeOf(err) != mongoerr.NamespaceNotFound {
		return err
	}
	m.release(d.ID()) // from here on the placement determines the owner of the range
	nothing := &rangeDeletion{id: d.ID(), ns: d.ns, pending: true}
	if err != nil || info.Map == nil || catalog.UUID(info.Map.UUID) != d.uuid {
		return m.conclude(op, nothing) // the collection no longer exists: there is nothing to keep or delete
	}
	key := info.Map.Key // which may have been refined since
	r, err := readKeyRange(key, value.Doc(value.F("min", value.NewDocument(key.ExtendBound(d.min))), value.F("max", value.NewDocument(key.ExtendBound(d.max)))))
	if err != nil {
		m.node.Warn("A document of "+coordinatorsNS+" has no valid range of "+d.ns, err)
		return m.conclude(op, nothing)
	}
	committed := info.Map.ShardOf(r.minV) == d.to
	left, err := m.leftBy(op, d.id, d.ns, d.uuid, r, committed)
	if err != nil {
		return err
	}
	return m.decide(op, left, d.to, committed)
}

// leftBy returns the range deletion that remains of a migration whose donor is no longer primary.
func (m *Manager) leftBy(op *command.Op, id [16]byte, ns string, uuid catalog.UUID, r *KeyRange, committed bool) (*rangeDeletion, error) {
	left := &rangeDeletion{id: value.NewBinary(4, id[:]), ns: ns, uuid: uuid, donor: m.state.ID, rng: r, delayed: true}
	stored, ok, err := m.rangeDeletions().Get(left.id)
	if err != nil || !committed {
		return left, err
	}
	if ok {
		left.delayed = stored.delayed
	}
	left.orphans, err = m.countRange(op, uuid, r)
	return left, err
}
