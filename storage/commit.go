package storage

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// committer orders units of work. It has no goroutine of its own: the first unit to arrive leads, takes along
// everything that queued up, and passes the lead on before it waits for the disk, so that the next group fills
// while the last one syncs.
//
// Invariant: there is one leader at a time, and groups are applied and published in the order in which it prepares
// them; commits therefore become visible in the order of their timestamps, without holes. The lead ends before the
// sync, so that a slow disk delays only the units that asked for durability. A later group may read what an earlier one
// has not synced yet: both are in the same write-ahead log, in order, so a crash that loses the earlier group loses the
// later one too. Hazard: if a commit became visible before one with an earlier timestamp, a snapshot at the later time
// would miss the earlier writes, and readers of the oplog would pass over them.
//
// Rejected: a goroutine that commits, because a lone writer would pay two context switches for each commit; and
// leaving the order to pebble's own commit pipeline, because the timestamps and counters of a group depend on its
// place in the order and are part of its batch, hence must be known before pebble sees the batch.
type committer struct {
	mu struct {
		sync.Mutex
		queue   []*UnitOfWork
		leading bool
		closed  bool
	}
	// The fields below belong to the leader.
	group []*UnitOfWork
	floor Timestamp // set by AdvanceClock, guarded by mu
	tip   tip

	owners sync.WaitGroup // of detached units; added to under mu
}

// tip is the state that the next group builds on: the newest view, or what the groups in flight will make of it.
type tip struct {
	ts, local Timestamp // timestamps of the newest commits
	next      Timestamp // the newest timestamp allocated, at least ts
	cat       *catalog.Snapshot
	counts    map[catalog.Ident]tipCount // of the groups in flight
	gen       uint64                     // see replicaState
	// refuse is the reason why this member takes no writes, or nil.
	refuse error
}

// restart resets the tip to a view.
func (t *tip) restart(v *view, gen uint64, refuse error) {
	counts := t.counts
	clear(counts)
	if counts == nil {
		counts = map[catalog.Ident]tipCount{}
	}
	*t = tip{ts: v.ts, local: v.local, next: max(t.next, v.ts), cat: v.cat, counts: counts, gen: gen, refuse: refuse}
}

// tipCount is a collection's counters at the tip.
type tipCount struct {
	delta
	group *Group // the last group that changed it
	at    int    // index into that group's counts
}

// groupBytes is the size that closes a group; units that remain wait for the next. A unit larger than this forms a
// group of its own, whose batch is written without being copied.
const groupBytes = 256 << 10

// commitWait is the state of a unit that waits for others to commit it.
type commitWait struct {
	*waiter
	sync bool
	err  error
	ts   Timestamp // result of Commit
	at   Timestamp // timestamp of the unit's versions; differs from ts for local units
}

type wakeUp uint8

const (
	wakeLead wakeUp = iota // the unit is first in the queue and becomes the leader
	wakeDone               // the unit is committed (and durable if it asked for that), or has failed
)

// Commit assigns the unit its timestamp and writes it as part of a group, in order with all other units. With sync
// it returns once the unit is durable, otherwise once it is visible. replication is the only caller. An error with
// a non-zero timestamp concerns durability alone. With a zero timestamp the unit was rolled back, unless the error
// is a *Detached, see MayDetach.
func (e *Engine) Commit(ctx context.Context, u *UnitOfWork, sync bool) (Timestamp, error) {
	if err := ctx.Err(); err != nil && u.state == unitOpen {
		u.Rollback()
		return 0, context.Cause(ctx)
	}
	if err := e.checkSpace(u.needsRoom); err != nil && !u.Empty() && u.state == unitOpen && !mayUseReserve(ctx) {
		u.Rollback()
		return 0, err
	}
	return e.commitUnit(ctx, u, sync)
}

func (e *Engine) commitUnit(ctx context.Context, u *UnitOfWork, sync bool) (Timestamp, error) {
	if u.state != unitOpen {
		return 0, mongoerr.New(mongoerr.InternalError, "the unit of work has ended")
	}
	err := e.failure()
	if err == nil {
		err = u.log.checkSize()
	}
	if err == nil && u.bulk != nil {
		err = u.bulk.err // a chunk of the unit is missing
	}
	if err != nil {
		u.Rollback()
		return 0, err
	}
	if u.line == lineLocal && e.replicated() {
		return e.commitLocal(u, sync)
	}
	if u.copy != nil {
		if err := e.writeTables(ctx, u); err != nil {
			u.Rollback()
			return 0, err
		}
	}
	if e.stages(u) {
		if err := e.stageUnit(ctx, u, true); err != nil {
			u.Rollback()
			return 0, err
		}
	}
	if u.bulk != nil {
		// Not detached: a unit that follows reads the batch, which no longer has the chunks. The log already has
		// most of this unit, so that a wait for the rest ends at the latest when a leader without a majority
		// steps down.
		u.detach.may = false
	}
	return e.queueUnit(ctx, u, sync)
}

// queueUnit commits a unit as part of a group.
func (e *Engine) queueUnit(ctx context.Context, u *UnitOfWork, sync bool) (Timestamp, error) {
	u.closeTransaction(func() {})
	u.log.pack()
	u.releaseLatest()
	u.sealOverlay()
	u.state = unitQueued
	u.wait = commitWait{sync: sync, waiter: e.waiters.Get().(*waiter)}
	c := &e.commit
	c.mu.Lock()
	if c.mu.closed {
		c.mu.Unlock()
		u.undo()
		return 0, mongoerr.New(mongoerr.ShutdownInProgress, "the storage engine is shutting down")
	}
	c.mu.queue = append(c.mu.queue, u)
	lead := !c.mu.leading
	c.mu.leading = true
	c.mu.Unlock()
	switch {
	case lead && e.lead(u):
	case u.detach.may && e.replicated():
		if detached := e.awaitOrDetach(ctx, u); detached != nil {
			return 0, detached
		}
	default:
		e.seeThrough(u)
	}
	e.waiters.Put(u.wait.waiter)
	return u.wait.ts, u.wait.err
}

// commitLocal commits a unit of the local line while others wait for the replicated log, or cannot write at all.
func (e *Engine) commitLocal(u *UnitOfWork, sync bool) (Timestamp, error) {
	u.releaseLatest()
	u.sealOverlay()
	u.state, u.wait = unitQueued, commitWait{sync: sync}
	r := &e.replica
	r.mu.Lock()
	var t tip
	t.restart(e.view.Load(), r.mu.gen, nil)
	g := e.prepareGroup(&t, []*UnitOfWork{u})
	if g.batch != nil {
		if g.err = e.guard(func() error { return g.apply(e.db) }); g.err != nil {
			e.fail(g.err)
		}
	}
	e.publish(g)
	r.mu.Unlock()
	e.finishGroup(g, u)
	return u.wait.ts, u.wait.err
}

// lead commits one group, with own as its first unit. It reports whether own has ended; in a replicated log own is
// woken when the log has decided, or to lead again.
func (e *Engine) lead(own *UnitOfWork) (ended bool) {
	r := &e.replica
	r.mu.Lock()
	if r.mu.mode != modeSingle {
		e.leadReplicated(own) // unlocks
		return false
	}
	e.takeGroup()
	e.commit.tip.restart(e.view.Load(), r.mu.gen, nil)
	g := e.prepareGroup(&e.commit.tip, e.commit.group)
	if g.batch != nil {
		g.err = e.guard(func() error { return g.apply(e.db) })
		if g.err != nil {
			e.fail(g.err)
		}
	}
	e.publish(g)
	r.mu.Unlock()
	e.handLead()
	e.finishGroup(g, own)
	return true
}

// takeGroup moves the queued units into the leader's group.
func (e *Engine) takeGroup() {
	c := &e.commit
	c.mu.Lock()
	size, n := 0, 0
	for n < len(c.mu.queue) && size < groupBytes {
		size += c.mu.queue[n].Size()
		n++
	}
	c.group = append(c.group[:0], c.mu.queue[:n]...)
	rest := copy(c.mu.queue, c.mu.queue[n:])
	clear(c.mu.queue[rest:])
	c.mu.queue = c.mu.queue[:rest]
	c.tip.next = max(c.tip.next, c.floor)
	c.mu.Unlock()
}

// handLead makes the first unit of the queue the leader.
func (e *Engine) handLead() {
	c := &e.commit
	c.mu.Lock()
	if len(c.mu.queue) > 0 {
		c.mu.queue[0].wait.wake <- wakeLead
	} else {
		c.mu.leading = false
	}
	c.mu.Unlock()
}

// finishGroup waits for the disk if any unit asked for it, and wakes the other units of the group.
func (e *Engine) finishGroup(g *Group, own *UnitOfWork) {
	for _, u := range g.units {
		if u != own && !(g.sync && u.wait.sync) {
			u.wait.wake <- wakeDone
		}
	}
	if !g.sync {
		g.close()
		return
	}
	var err error
	if g.err == nil && g.batch != nil {
		began := noteDurable()
		err = g.batch.SyncWait()
		e.journal.waited(time.Since(began))
		if err != nil {
			e.fail(err)
			err = e.failure()
		} else {
			e.setDurable(g.last)
		}
	}
	for _, u := range g.units {
		if u.wait.sync {
			if err != nil && u.wait.err == nil {
				u.wait.err = err
			}
			if u != own {
				u.wait.wake <- wakeDone
			}
		}
	}
	g.close()
}

// Group is a set of units of work that are written at once, in one batch.
type Group struct {
	units  []*UnitOfWork
	first  [1]*UnitOfWork // backs units if there is only one
	batch  *pebble.Batch  // nil when there is nothing to write
	shared bool           // batch belongs to a unit
	sync   bool           // some unit waits for the disk
	// unmarked is set if no oplog entry shows the timestamp of the newest unit.
	unmarked bool
	last     Timestamp // of the newest replicated unit
	local    Timestamp // of the newest local one
	cat      *catalog.Snapshot
	old      *catalog.Snapshot
	edits    []catalogEdit // the changes that lead from old to cat
	counts   []delta       // the counters after the group
	late     []lateEdit
	agreed   []agreedCommit
	err      error
	data     []byte // the entry of the replicated log, see entry.go
}

// apply writes the batch to the log and the memtable; it does not wait for the disk.
func (g *Group) apply(db *pebble.DB) error {
	if g.sync {
		return db.ApplyNoSyncWait(g.batch, pebble.Sync)
	}
	return db.Apply(g.batch, pebble.NoSync)
}

func (g *Group) close() {
	if g.batch != nil {
		closeQuietly(g.batch)
	}
}

// prepareGroup assigns every unit its timestamps and merges all of them into one batch. Units whose view of the
// catalog is outdated fail here, before anything is written.
func (e *Engine) prepareGroup(t *tip, units []*UnitOfWork) *Group {
	g := &Group{last: t.ts, local: t.local, cat: t.cat, old: t.cat}
	// The group owns its units from here on; the next in the queue takes the lead.
	g.units = append(g.first[:0], units...)
	seconds := TimestampOf(uint32(e.opts.Clock().Unix()), 0)
	live := 0
	for _, u := range g.units {
		edits := len(g.edits)
		if u.wait.err = t.admit(u); u.wait.err == nil {
			u.wait.err = e.stageCatalog(u, g, t)
		}
		if u.wait.err != nil {
			u.refused = true
			continue
		}
		if u.Empty() {
			u.wait.ts = g.last
			continue
		}
		if u.line == lineLocal {
			g.local = max(g.local+1, seconds)
			u.wait.at, u.wait.ts = g.local, g.last
		} else {
			t.next = max(t.next, seconds) + Timestamp(max(1, u.log.count()))
			g.last = t.next
			u.wait.at, u.wait.ts = g.last, g.last
			g.unmarked = u.log.count() == 0
		}
		for i := edits; i < len(g.edits); i++ {
			g.edits[i].at = g.last
		}
		e.stamp(u, g)
		t.count(u, g)
		g.sync = g.sync || u.wait.sync && !e.opts.Memory
		live++
	}
	if live == 0 {
		return g
	}
	g.shared = live == 1
	for _, u := range g.units {
		switch {
		case u.wait.err != nil || u.batch == nil:
		case g.shared && !u.batch.Indexed():
			g.batch, u.batch = u.batch, nil
		default:
			if g.batch == nil {
				g.batch = e.db.NewBatch()
			}
			if err := g.batch.Apply(u.batch, nil); err != nil {
				u.wait.err, u.refused = err, true
			}
		}
	}
	if g.batch != nil {
		e.writeMarks(g, t)
		e.space.written.Add(int64(g.batch.Len()))
	}
	t.ts, t.local, t.cat = g.last, g.local, g.cat
	return g
}

// stamp replaces the unit's pending timestamps by its own, and adds its oplog blocks.
func (e *Engine) stamp(u *UnitOfWork, g *Group) {
	b := u.stage()
	ts := u.wait.at
	for r := batchrepr.Read(b.Repr()); ; {
		kind, k, v, ok, err := r.Next()
		if !ok || err != nil {
			break
		}
		n := len(k)
		if n > suffixLen && k[n-1] == suffixLen && binary.BigEndian.Uint64(k[n-suffixLen:]) == pending {
			if m := u.log.images; m.holds(kind, k, v) {
				setImageTime(k, v, m.time(u.log.txn != nil, imageTime(v), ts, u.log.count()))
			}
			if p := &u.log.prepared; p.holds(kind, k) {
				p.setTimes(v, ts, u.log.count())
			}
			binary.BigEndian.PutUint64(k[n-suffixLen:], uint64(ts))
		}
		if d, ok := lateEditOf(kind, k, ts); ok {
			g.late = append(g.late, d)
		}
	}
	last := ts - Timestamp(max(1, u.log.count()))
	var buf [32]byte
	for i := range u.log.refs {
		r := &u.log.refs[i]
		last += Timestamp(r.count)
		end := i == len(u.log.refs)-1 || u.log.refs[i+1].id != r.id
		_ = b.Set(timeKey(buf[:], identOplog, last), r.value(end), nil)
		if end {
			_ = b.Set(r.id.key(stagedLogged, 0), nil, nil)
		}
		u.addDelta(identOplog, e.oplog.counters.Load(), int64(r.count), int64(r.size))
	}
	u.log.prepared.stamp(b, ts, u.log.count())
	if s := u.bulk; s != nil {
		g.late = append(g.late, s.mark(b, ts))
	}
	for _, blk := range u.log.blocks {
		first := last
		last += Timestamp(blk.count)
		if blk.table != 0 {
			blk.stampRefs(e.placeCopy(u, b, ts))
			e.oplog.refs.stamp(b, blk.table, first, ts)
		}
		_ = b.Set(timeKey(buf[:], identOplog, last), blk.stored(), nil)
		u.addDelta(identOplog, e.oplog.counters.Load(), int64(blk.count), int64(blk.size()))
	}
	for _, id := range u.drops {
		_ = b.Set(dropKey(ts, id), nil, nil)
	}
	u.stampNotices(b)
	u.stampAgreed(b, g)
	if len(u.superseded) > 0 {
		_ = b.Set(timeKey(buf[:], e.lines[u.line].superseded, ts), u.superseded, nil)
	}
}

// count adds the unit to the counters as they will be once the group is visible.
func (t *tip) count(u *UnitOfWork, g *Group) {
	for i := range u.deltas {
		d := &u.deltas[i]
		sum, known := t.counts[d.ident]
		if !known {
			sum.delta = delta{ident: d.ident, counters: d.counters, records: d.counters.Records.Load(), bytes: d.counters.DataSize.Load()}
		}
		sum.records += d.records
		sum.bytes += d.bytes
		if sum.group == g {
			g.counts[sum.at] = sum.delta
		} else {
			if g.counts == nil {
				g.counts = make([]delta, 0, len(u.deltas))
			}
			sum.group, sum.at = g, len(g.counts)
			g.counts = append(g.counts, sum.delta)
		}
		t.counts[d.ident] = sum
	}
}

// writeMarks adds to the group's batch the new counters of each of its collections, so that they are exact after
// any crash, and the other keys that recovery needs.
func (e *Engine) writeMarks(g *Group, t *tip) {
	if g.unmarked {
		_ = g.batch.Set(metaKey(metaTop), binary.BigEndian.AppendUint64(nil, uint64(g.last)), nil)
	}
	if g.local > t.local {
		_ = g.batch.Set(metaKeyIn(identLocalMeta, metaTop), binary.BigEndian.AppendUint64(nil, uint64(g.local)), nil)
	}
	if len(g.edits) > 0 && g.last > t.ts {
		_ = g.batch.Set(metaKey(metaNext), e.nextNumbers(), nil)
	}
	var key [32]byte
	var val [16]byte
	for i := range g.counts {
		d := &g.counts[i]
		binary.BigEndian.PutUint64(val[:], uint64(d.records))
		binary.BigEndian.PutUint64(val[8:], uint64(d.bytes))
		_ = g.batch.Set(countersKey(key[:], d.ident), val[:], nil)
	}
}

// publish makes the group visible: first counters, catalog and timestamp at once for new readers, then the hooks
// in order; then it releases the claims. replica.mu must be held.
//
// The order within publish matters. Late units and notices precede the view, because a reader that sees the
// timestamp relies on them. The hooks of a unit precede the release of its claims, because the next writer of a
// record relies on what they recorded, such as the statements of a retryable write. And a unit's state changes
// before its claims are released: CommitChain.dropCommitted concludes from a unit that has not ended that nobody else has
// written its records.
func (e *Engine) publish(g *Group) {
	if g.err == nil {
		e.replica.late.edit(g.late)
		e.replica.agreed.add(g.agreed)
		e.deliverNotices(g)
	}
	if now := e.view.Load(); g.err == nil && (g.last > now.ts || g.local > now.local) {
		cat := g.cat
		if now.cat != g.old {
			cat = applyEdits(now.cat, g.edits)
		}
		e.show(&view{moment{max(g.last, now.ts), max(g.local, now.local), now.era}, cat, e.replica.late.now()}, g.counts, g.edits)
	}
	for _, u := range g.units {
		if u.wait.err == nil && g.err != nil {
			u.wait.err = mapDiskError(g.err)
		}
		if u.wait.err != nil {
			u.wait.ts = 0
			u.undo()
			continue
		}
		u.state = unitCommitted
		for _, f := range u.hooks.commit {
			f(u.wait.at)
		}
		u.releaseClaims(u.wait.at, max(g.last, g.local))
		u.free()
	}
	if g.err == nil {
		if e.opts.Memory || g.data != nil {
			e.setDurable(g.last)
		}
		e.watch.wake()
	}
}

// show publishes the view to new readers, with the counters that belong to it. edits lead from the previous view's catalog to its own.
func (e *Engine) show(v *view, counts []delta, edits []catalogEdit) {
	grown := false
	for i := range counts {
		d := &counts[i]
		d.counters.Records.Store(d.records)
		before := d.counters.DataSize.Swap(d.bytes)
		grown = grown || d.ident != identOplog && before < largeTable && d.bytes >= largeTable
	}
	if grown {
		e.spans.update(v.cat)
	}
	e.history.add(e.view.Load(), edits, v)
	e.view.Store(v)
}

// AdvanceClock makes later commits get timestamps above ts (a $clusterTime received from elsewhere).
func (e *Engine) AdvanceClock(ts Timestamp) {
	e.commit.mu.Lock()
	e.commit.floor = max(e.commit.floor, ts)
	e.commit.mu.Unlock()
}

// close admits no more units, and waits for the detached ones: by now the log has been instructed to abandon them.
func (c *committer) close() {
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	c.owners.Wait()
}

// visibleWatch wakes waiters for commits. It costs nothing while there are none.
type visibleWatch struct {
	sync.Mutex
	ch chan struct{}
}

func (w *visibleWatch) wake() {
	w.Lock()
	if w.ch != nil {
		close(w.ch)
		w.ch = nil
	}
	w.Unlock()
}

func (w *visibleWatch) wait() <-chan struct{} {
	w.Lock()
	defer w.Unlock()
	if w.ch == nil {
		w.ch = make(chan struct{})
	}
	return w.ch
}

// WaitVisible returns once a commit later than after is visible, with its timestamp, or an error when ctx ends.
// Tailing reads of the oplog and reads with afterClusterTime wait here.
func (e *Engine) WaitVisible(ctx context.Context, after Timestamp) (Timestamp, error) {
	return e.waitFor(ctx, after, e.Visible)
}

// WaitDurable is WaitVisible for commits that are synced to disk.
func (e *Engine) WaitDurable(ctx context.Context, after Timestamp) (Timestamp, error) {
	return e.waitFor(ctx, after, e.Durable)
}

func (e *Engine) waitFor(ctx context.Context, after Timestamp, now func() Timestamp) (Timestamp, error) {
	for {
		if ts := now(); ts > after {
			return ts, nil
		}
		ch := e.watch.wait()
		if ts := now(); ts > after {
			return ts, nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return now(), context.Cause(ctx)
		}
	}
}
