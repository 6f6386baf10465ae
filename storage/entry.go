package storage

import (
	"bytes"
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// An entry of the replicated log is a group as the primary made it:
//
//	entry = version 1 | flags u8 (0) | timestamp of its newest unit u64 | pebble batch
//
// The batch has everything: versions with their timestamps, oplog blocks, counters as they are afterwards, catalog
// entries, drops. It says what the keys are, not what to add to them, so that applying it twice does no harm.
const (
	entryVersion = 1
	entryHeader  = 1 + 1 + 8
)

// seal builds the group's entry. It copies the batch, because applying the batch changes it.
func (g *Group) seal() {
	repr := g.batch.Repr()
	d := make([]byte, entryHeader, entryHeader+len(repr))
	d[0] = entryVersion
	binary.BigEndian.PutUint64(d[2:], uint64(g.last))
	g.data = append(d, repr...)
}

// Data returns the group's entry of the replicated log. It never changes.
func (g *Group) Data() []byte { return g.data }

// Timestamp returns the timestamp of the group's newest unit.
func (g *Group) Timestamp() Timestamp { return g.last }

// EntryTimestamp returns the timestamp of the newest unit in an entry of the replicated log, or zero if data is
// not an entry.
func EntryTimestamp(data []byte) Timestamp {
	if len(data) < entryHeader || data[0] != entryVersion {
		return 0
	}
	return Timestamp(binary.BigEndian.Uint64(data[2:]))
}

// follower holds the lookup tables that only a member that is not primary needs.
type follower struct {
	byTable map[catalog.Ident]*catalog.Collection // by the ident of the record store
	byEntry map[int64]catalog.UUID                // by catalog id
}

func newFollower(cat *catalog.Snapshot) *follower {
	f := &follower{byTable: map[catalog.Ident]*catalog.Collection{}, byEntry: map[int64]catalog.UUID{}}
	cat.Each(func(c *catalog.Collection) {
		if !isLocal(c.Ident) {
			f.note(c)
		}
	})
	return f
}

func (f *follower) note(c *catalog.Collection) {
	f.byTable[c.Ident] = c
	f.byEntry[c.CatalogID] = c.UUID
}

// effects collects what an entry changes in memory.
type effects struct {
	ts     Timestamp
	edits  []catalogEdit
	late   []lateEdit
	agreed []agreedCommit
	counts []delta
	drops  []pendingDrop
	next   []byte // value of metaNext
	info   ApplyInfo
	// notices holds those of the entry's units, each preceded by its timestamp.
	notices [][]byte
}

// ApplyEntry applies an entry that this member or another one proposed. On the primary it must be that of the
// first group in flight. Entries that the store already holds are skipped.
func (e *Engine) ApplyEntry(data []byte, index, term uint64) error {
	info, err := e.applyEntry(data, applied{index: index, term: term})
	if err == nil && info.Index != 0 {
		e.replica.notify(info)
	}
	return err
}

func (e *Engine) applyEntry(data []byte, at applied) (ApplyInfo, error) {
	r := &e.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	if at.index <= r.applied().index {
		return ApplyInfo{}, nil
	}
	if err := e.failure(); err != nil {
		return ApplyInfo{}, err
	}
	if at.ts = EntryTimestamp(data); at.ts == 0 {
		return ApplyInfo{}, corrupt("entry %d of the replicated log is unreadable", at.index)
	}
	if len(r.mu.inflight) > 0 && bytes.Equal(r.mu.inflight[0].data, data) {
		return ApplyInfo{}, e.applyHead(at)
	}
	if r.mu.mode != modeFollower {
		return ApplyInfo{}, mongoerr.Newf(mongoerr.InternalError, "entry %d of the replicated log is not this primary's", at.index)
	}
	if r.mu.follower == nil {
		r.mu.follower = newFollower(e.Catalog())
	}
	// The store writes into the batch's header, and the log keeps its entries, so the batch is a copy.
	b := e.db.NewBatch()
	defer closeQuietly(b)
	repr := data[entryHeader:]
	if err := b.SetRepr(append(make([]byte, 0, len(repr)+64), repr...)); err != nil {
		return ApplyInfo{}, corrupt("entry %d of the replicated log: %v", at.index, err)
	}
	fx, err := e.readEffects(b.Repr(), at)
	if err != nil {
		return ApplyInfo{}, err
	}
	_ = b.Set(metaKey(metaApplied), at.encode(), nil)
	if err := e.guard(func() error { return e.db.Apply(b, pebble.NoSync) }); err != nil {
		e.fail(err)
		return ApplyInfo{}, err
	}
	e.showEntry(fx)
	r.at.Store(&at)
	return fx.info, nil
}

// readEffects scans an entry for everything that changes state in memory.
func (e *Engine) readEffects(repr []byte, at applied) (*effects, error) {
	f := e.replica.mu.follower
	fx := &effects{ts: at.ts, info: ApplyInfo{Index: at.index, TS: at.ts}}
	made := map[catalog.Ident]*catalog.Collection{}
	counts := map[catalog.Ident][]byte{}
	var order []catalog.Ident
	for r := batchrepr.Read(repr); ; {
		kind, k, v, ok, err := r.Next()
		if err != nil {
			return nil, corrupt("entry %d of the replicated log: %v", at.index, err)
		}
		if !ok {
			break
		}
		if kind == pebble.InternalKeyKindLogData {
			fx.notices = append(fx.notices, append([]byte(nil), k...))
			continue
		}
		id := identOf(k)
		switch {
		case id == 0 || id >= identLocal:
			return nil, corrupt("entry %d of the replicated log writes to table %d", at.index, id)
		case id == identStaging:
			if d, ok := lateEditOf(kind, k, at.ts); ok {
				fx.late = append(fx.late, d)
			}
		case id > identCatalog || kind != pebble.InternalKeyKindSet && kind != pebble.InternalKeyKindSetWithDelete:
		case id == identCatalog:
			if err := e.readCatalogChange(f, fx, made, k, v); err != nil {
				return nil, err
			}
		case len(k) == identLen+1+4+1 && k[identLen] == metaCounters && len(v) == 16:
			table := catalog.Ident(binary.BigEndian.Uint32(k[identLen+1:]))
			if counts[table] == nil {
				order = append(order, table)
			}
			counts[table] = v
		case len(k) == identLen+1+8+4+1 && k[identLen] == metaDrop:
			fx.drops = append(fx.drops, pendingDrop{ts: Timestamp(binary.BigEndian.Uint64(k[identLen+1:])),
				ident: catalog.Ident(binary.BigEndian.Uint32(k[identLen+9:]))})
		case k[identLen] == metaAgreed:
			if c, ok := readAgreed(k, v); ok {
				fx.agreed = append(fx.agreed, c)
			}
		case k[identLen] == metaRefs:
			e.oplog.refs.note(k, v)
		case k[identLen] == metaNext:
			fx.next = append([]byte(nil), v...)
		}
	}
	for _, table := range order {
		c := made[table]
		if c == nil {
			c = f.byTable[table]
		}
		if c == nil {
			continue // dropped by the same entry
		}
		v := counts[table]
		fx.counts = append(fx.counts, delta{ident: table, counters: c.Counters,
			records: int64(binary.BigEndian.Uint64(v)), bytes: int64(binary.BigEndian.Uint64(v[8:]))})
		if !c.Oplog {
			fx.info.Touched = append(fx.info.Touched, c)
		}
	}
	fx.info.Catalog = len(fx.edits) > 0
	return fx, nil
}

// readCatalogChange adds to the effects what a log entry changes in the catalog. One log entry may change a
// collection several times.
func (e *Engine) readCatalogChange(f *follower, fx *effects, made map[catalog.Ident]*catalog.Collection, k, v []byte) error {
	user, at, ok := splitVersion(k)
	if !ok {
		return corrupt("a change of the catalog has no version")
	}
	id, ok := RecordID(user[identLen:]).Int64()
	if !ok {
		return corrupt("a change of the catalog has an unreadable key")
	}
	if len(v) == 0 {
		if uuid, known := f.byEntry[id]; known {
			fx.edits = append(fx.edits, catalogEdit{uuid: uuid, at: Timestamp(at)})
			delete(f.byEntry, id)
		}
		return nil
	}
	c, err := catalog.Decode(id, append([]byte(nil), v...))
	if err != nil {
		return corrupt("catalog entry %d: %v", id, err)
	}
	c.Oplog = c.Ident == identOplog
	old := made[c.Ident]
	if old == nil {
		old = f.byTable[c.Ident]
	}
	e.adopt(old, c)
	made[c.Ident] = c
	f.byEntry[id] = c.UUID
	fx.edits = append(fx.edits, catalogEdit{uuid: c.UUID, next: c, at: Timestamp(at)})
	return nil
}

// adopt passes the in-memory state of a collection's previous version on to one read from the log.
func (e *Engine) adopt(old, c *catalog.Collection) {
	now := e.opts.Clock().UnixMilli()
	for _, idx := range c.Indexes {
		idx.Usage.SinceMS = now
	}
	if old == nil || old.UUID != c.UUID {
		c.Epoch = e.nextEpoch.Add(1)
		return
	}
	c.Counters = old.Counters
	for _, idx := range c.Indexes {
		was := old.Index(idx.Name)
		if was == nil || was.Ident != idx.Ident {
			continue
		}
		idx.Tail = was.Tail
		if was.Ready == idx.Ready {
			idx.Usage = was.Usage
		}
	}
	c.Epoch = old.Epoch
	if !sameShape(old, c) {
		c.Epoch = e.nextEpoch.Add(1)
	}
}

// sameShape reports whether two states of a collection differ only in the multikey paths of their indexes.
func sameShape(a, b *catalog.Collection) bool {
	if a.NS != b.NS || !catalog.SameOptions(a.Options, b.Options) || len(a.Indexes) != len(b.Indexes) {
		return false
	}
	for i, x := range a.Indexes {
		y := b.Indexes[i]
		if x.Name != y.Name || x.Ident != y.Ident || x.Ready != y.Ready || x.Build.Loaded != y.Build.Loaded || x.Enforcing != y.Enforcing || !sameBytes(x.Spec.Raw, y.Spec.Raw) {
			return false
		}
	}
	return true
}

// showEntry brings memory up to date with an entry that the store now holds.
func (e *Engine) showEntry(fx *effects) {
	f := e.replica.mu.follower
	now := e.view.Load()
	var sizes map[catalog.Ident]int64
	if len(fx.drops) > 0 {
		sizes = map[catalog.Ident]int64{}
	}
	for _, d := range fx.edits {
		if old := now.cat.LookupUUID(d.uuid); old != nil {
			delete(f.byTable, old.Ident)
			if sizes != nil {
				sizes[old.Ident] = old.Counters.DataSize.Load()
			}
		}
	}
	for _, d := range fx.edits {
		if d.next != nil {
			f.byTable[d.next.Ident] = d.next
		}
	}
	for _, d := range fx.drops {
		e.lines[lineReplicated].drops.add(d.ts, d.ident, sizes[d.ident])
	}
	e.noteNext(fx.next)
	for _, p := range fx.notices {
		e.notices.deliverStamped(p)
	}
	e.replica.late.edit(fx.late)
	e.replica.agreed.add(fx.agreed)
	e.show(&view{moment{max(fx.ts, now.ts), now.local, now.era}, applyEdits(now.cat, fx.edits), e.replica.late.now()}, fx.counts, fx.edits)
	e.setDurable(fx.ts)
	e.watch.wake()
}

// nextNumbers returns the value of metaNext. It keeps idents from being allocated twice, even by another
// primary: each member deletes the tables of dropped collections in its own time.
func (e *Engine) nextNumbers() []byte {
	b := binary.BigEndian.AppendUint32(nil, e.lines[lineReplicated].nextIdent.Load())
	return binary.BigEndian.AppendUint64(b, uint64(e.nextEntry.Load()))
}

func (e *Engine) noteNext(p []byte) {
	if len(p) != 12 {
		return
	}
	next := &e.lines[lineReplicated].nextIdent
	next.Store(max(next.Load(), binary.BigEndian.Uint32(p)))
	e.nextEntry.Store(max(e.nextEntry.Load(), int64(binary.BigEndian.Uint64(p[4:]))))
}
