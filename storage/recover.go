package storage

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
)

// recover brings the engine's memory in line with the store, and deletes tables that nothing refers to.
func (e *Engine) recover() error {
	e.salt = randomSalt()
	if err := e.checkFormat(); err != nil {
		return err
	}
	if err := e.load(0); err != nil {
		return err
	}
	e.commit.tip.next = e.Visible()
	if err := e.reconcileIdents(e.Catalog()); err != nil {
		return err
	}
	if err := e.removeBuildFiles(); err != nil {
		return err
	}
	if e.replica.applied().index > 0 {
		// Until this member has a role, only the replicated log writes.
		e.replica.mu.mode, e.replica.mu.refuse = modeFollower, errNoMember
		e.replica.writing.Store(notWriting)
		return nil
	}
	if err := e.ensureOplog(); err != nil {
		return err
	}
	return e.resetBuilds()
}

// newestCommit returns the timestamp of the last unit in the store. Every unit writes an oplog block, or else the
// mark.
func (e *Engine) newestCommit(at *applied) (Timestamp, error) {
	top := at.ts
	for _, id := range []catalog.Ident{identOplog, identSuperseded} {
		lower, upper := identRange(id)
		it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
		if err != nil {
			return 0, err
		}
		if it.Last() {
			top = max(top, timeOf(it.Key()))
		}
		if err := errorsJoin(it.Error(), it.Close()); err != nil {
			return 0, err
		}
	}
	mark, err := e.metaTime(identMeta, metaTop)
	return max(top, mark), err
}

// metaTime reads a timestamp of a meta table; zero if it is absent.
func (e *Engine) metaTime(table catalog.Ident, kind byte) (Timestamp, error) {
	p, err := e.getMeta(metaKeyIn(table, kind))
	if err != nil || len(p) != 8 {
		return 0, err
	}
	return Timestamp(binary.BigEndian.Uint64(p)), nil
}

func (e *Engine) getMeta(key []byte) ([]byte, error) {
	p, closer, err := e.db.Get(key)
	if err == pebble.ErrNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer closeQuietly(closer)
	return append([]byte(nil), p...), nil
}

// loadCatalog reads a line's durable catalog as of ts. With counters, the collections are prepared for writing.
func (e *Engine) loadCatalog(table catalog.Ident, ts Timestamp, counters bool) ([]*catalog.Collection, error) {
	lower, upper := identRange(table)
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, err
	}
	defer closeQuietly(it)
	var v versions
	v.reset(it, ts, false)
	var all []*catalog.Collection
	for ok := v.seekGE(appendIdent(nil, table)); ok; ok = v.next() {
		id, _ := RecordID(v.user[identLen:]).Int64()
		c, err := catalog.Decode(id, append([]byte(nil), v.value...))
		if err != nil {
			return nil, corrupt("catalog entry %d: %v", id, err)
		}
		c.Oplog = c.Ident == identOplog
		c.Epoch = e.nextEpoch.Add(1)
		if counters {
			if err := e.readCounters(c); err != nil {
				return nil, err
			}
			e.nextEntry.Store(max(e.nextEntry.Load(), id))
		}
		all = append(all, c)
	}
	return all, v.err
}

func (e *Engine) readCounters(c *catalog.Collection) error {
	p, err := e.getMeta(countersKey(nil, c.Ident))
	if err != nil || len(p) != 16 {
		return err
	}
	c.Counters.Records.Store(int64(binary.BigEndian.Uint64(p)))
	c.Counters.DataSize.Store(int64(binary.BigEndian.Uint64(p[8:])))
	now := e.opts.Clock().UnixMilli()
	for _, idx := range c.Indexes {
		idx.Usage.SinceMS = now
	}
	return nil
}

// dropQueue holds the tables to be deleted, in order of time.
type dropQueue struct {
	sync.Mutex
	list []pendingDrop
}

type pendingDrop struct {
	ts    Timestamp
	ident catalog.Ident
	bytes int64 // the size of its documents, if known
	early bool  // its keys have already been deleted, see discardEarly
}

func (q *dropQueue) add(ts Timestamp, id catalog.Ident, bytes int64) {
	q.Lock()
	q.list = append(q.list, pendingDrop{ts: ts, ident: id, bytes: bytes})
	q.Unlock()
}

// upTo returns the drops of tables that no reader at oldest or later can read: a reader at the time of a drop does not
// see what it dropped. If such a reader did count, the last drop would wait for a later commit, which a full disk may
// not accept.
func (q *dropQueue) upTo(oldest Timestamp) (out []pendingDrop) {
	q.Lock()
	defer q.Unlock()
	return append(out, q.list[:q.find(oldest)]...)
}

func (q *dropQueue) find(oldest Timestamp) int {
	return sort.Search(len(q.list), func(i int) bool { return q.list[i].ts > oldest })
}

// due removes and returns the drops that upTo returns.
func (q *dropQueue) due(oldest Timestamp) (out []pendingDrop) {
	q.Lock()
	defer q.Unlock()
	n := q.find(oldest)
	out = append(out, q.list[:n]...)
	q.list = append(q.list[:0], q.list[n:]...)
	return out
}

// discarded records that the keys of some drops have been deleted.
func (q *dropQueue) discarded(drops []pendingDrop) {
	q.Lock()
	defer q.Unlock()
	for i := range q.list {
		q.list[i].early = q.list[i].early || slices.ContainsFunc(drops, func(d pendingDrop) bool { return d.ident == q.list[i].ident })
	}
}

func (q *dropQueue) clear() {
	q.Lock()
	q.list = nil
	q.Unlock()
}

func (e *Engine) loadDrops(l *line) error {
	l.drops.clear()
	lower, upper := metaKeyIn(l.meta, metaDrop), metaKeyIn(l.meta, metaDrop+1)
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return err
	}
	defer closeQuietly(it)
	for ok := it.First(); ok; ok = it.Next() {
		k := it.Key()
		if len(k) != identLen+1+8+4+1 {
			continue
		}
		l.drops.add(Timestamp(binary.BigEndian.Uint64(k[identLen+1:])), catalog.Ident(binary.BigEndian.Uint32(k[identLen+9:])), 0)
	}
	return errorsJoin(it.Error(), e.findDiscarded(l))
}

// reconcileIdents compares the tables that hold data with those the catalog names, and deletes the others: they
// were left by an index build that a crash cut short.
func (e *Engine) reconcileIdents(cat *catalog.Snapshot) error {
	known := map[catalog.Ident]bool{}
	note := func(id catalog.Ident) {
		known[id] = true
		next := &e.lines[lineOf(id)].nextIdent
		next.Store(max(next.Load(), uint32(id)+1))
	}
	for _, c := range cat.All() {
		note(c.Ident)
		for _, idx := range c.Indexes {
			note(idx.Ident)
		}
	}
	for i := range e.lines {
		for _, d := range e.lines[i].drops.list {
			note(d.ident)
		}
	}
	if err := e.lateTables(note); err != nil {
		return err
	}
	tables, err := e.tables()
	if err != nil {
		return err
	}
	for _, id := range tables {
		if known[id] {
			continue
		}
		note(id)
		e.log.Warn().Uint32("ident", uint32(id)).Msg("dropping a table that belongs to no collection")
		if err := e.deleteIdent(id); err != nil {
			return err
		}
	}
	return nil
}

// tables lists the tables of collections and indexes that hold data.
func (e *Engine) tables() ([]catalog.Ident, error) {
	it, err := e.db.NewIter(nil)
	if err != nil {
		return nil, err
	}
	defer closeQuietly(it)
	var out []catalog.Ident
	for ok := it.SeekGE(appendUnversioned(appendIdent(nil, identFirst))); ok; {
		id := identOf(it.Key())
		next := id + 1
		switch {
		case id < identLocal || id >= identLocalFirst:
			out = append(out, id)
		default:
			next = identLocalFirst
		}
		ok = it.SeekGE(appendUnversioned(appendIdent(nil, next)))
	}
	return out, it.Error()
}

// deleteIdent deletes a table's keys and its counters.
func (e *Engine) deleteIdent(id catalog.Ident) error {
	b := e.db.NewBatch()
	defer closeQuietly(b)
	deleteTable(b, id)
	return e.guard(func() error { return e.db.Apply(b, pebble.NoSync) })
}

func deleteTable(b *pebble.Batch, id catalog.Ident) {
	lower, upper := identRange(id)
	_ = b.DeleteRange(lower, upper, nil)
	_ = b.Delete(countersKey(nil, id), nil)
}

// ensureOplog creates the oplog's catalog entry in a store that has none. A standalone server uses an existing oplog, and creates none.
func (e *Engine) ensureOplog() error {
	c := e.Catalog().Lookup(OplogNS)
	switch {
	case e.opts.Standalone && (c == nil || !c.Oplog):
		e.oplog.counters.Store(&catalog.Counters{})
		if e.Visible() > 0 {
			return nil
		}
		u := e.NewUnitOfWork(nil) // there is nothing to read before the first commit
		defer u.Rollback()
		u.stageRaw(func(b *pebble.Batch) error { return b.Set(metaKey(metaNext), e.nextNumbers(), nil) })
		_, err := e.commitUnit(context.Background(), u, true)
		return err
	case c != nil && !c.Oplog:
		return fmt.Errorf("%s is a collection that was created while this server was not a member of a set; start it without --replSet and rename or drop it", OplogNS)
	case c == nil:
		u := e.NewUnitOfWork(nil)
		defer u.Rollback()
		_, err := u.CreateCollection(CollectionSpec{NS: OplogNS, NoIDIndex: true, Options: value.Doc(
			value.F("capped", value.NewBool(true)), value.F("size", value.NewInt64(e.opts.OplogSize)),
			value.F("autoIndexId", value.NewBool(false)))})
		if err != nil {
			return err
		}
		if _, err := e.commitUnit(context.Background(), u, true); err != nil {
			return fmt.Errorf("creating the oplog: %w", err)
		}
		c = e.Catalog().Lookup(OplogNS)
	}
	e.oplog.counters.Store(c.Counters)
	return nil
}

// catalogHistory holds the catalogs of the history window, oldest first.
type catalogHistory struct {
	window atomic.Int64 // how far back the history window reaches
	sync.Mutex
	list []*view
}

// add appends the catalogs that lead from one view to the next. There is one for each unit of work that changed the catalog, at its own timestamp: the
// view that shows a group has the timestamp of the group's newest unit, and a snapshot at a time in between would have the documents of
// a unit without its catalog, and after a rename with dropTarget show neither collection under the name.
func (h *catalogHistory) add(from *view, edits []catalogEdit, to *view) {
	if len(edits) == 0 {
		return
	}
	h.Lock()
	defer h.Unlock()
	for cat, n := from.cat, 0; len(edits) > 0; edits = edits[n:] {
		at := edits[0].at
		for n = 1; n < len(edits) && edits[n].at == at; n++ {
		}
		if cat = applyEdits(cat, edits[:n]); n == len(edits) {
			cat = to.cat
		}
		h.list = append(h.list, &view{moment: moment{ts: max(at, from.ts)}, cat: cat})
	}
}

// reset forgets all but one catalog.
func (h *catalogHistory) reset(ts Timestamp, cat *catalog.Snapshot) {
	h.Lock()
	h.list = []*view{{moment: moment{ts: ts}, cat: cat}}
	h.Unlock()
}

// at returns the catalog in force at ts, nil if that is older than the history.
func (h *catalogHistory) at(ts Timestamp) *catalog.Snapshot {
	h.Lock()
	defer h.Unlock()
	n := sort.Search(len(h.list), func(i int) bool { return h.list[i].ts > ts })
	if n == 0 {
		return nil
	}
	return h.list[n-1].cat
}

// forget drops catalogs that no snapshot at oldest or later needs.
func (h *catalogHistory) forget(oldest Timestamp) {
	h.Lock()
	defer h.Unlock()
	n := sort.Search(len(h.list), func(i int) bool { return h.list[i].ts > oldest })
	if n > 1 {
		h.list = append([]*view(nil), h.list[n-1:]...)
	}
}

func (e *Engine) catalogAt(ts Timestamp) (*catalog.Snapshot, error) {
	if cat := e.history.at(ts); cat != nil {
		return cat, nil
	}
	all, err := e.loadCatalog(identCatalog, ts, false)
	if err != nil {
		return nil, err
	}
	e.Catalog().Each(func(c *catalog.Collection) {
		if isLocal(c.Ident) {
			all = append(all, c)
		}
	})
	return catalog.Of(all), nil
}

// lastUserKey returns the highest key of a table without ident and version, deletions included; nil if the table
// is empty.
func (e *Engine) lastUserKey(id catalog.Ident) ([]byte, error) {
	lower, upper := identRange(id)
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, err
	}
	defer closeQuietly(it)
	if !it.Last() {
		return nil, it.Error()
	}
	user, _, ok := splitVersion(it.Key())
	if !ok {
		return nil, corrupt("table %d has a key without version", id)
	}
	return append([]byte(nil), user[identLen:]...), nil
}

func (e *Engine) lastRecordID(id catalog.Ident) (int64, error) {
	key, err := e.lastUserKey(id)
	if err != nil || key == nil {
		return 0, err
	}
	n, ok := RecordID(key).Int64()
	if !ok {
		return 0, corrupt("table %d has an unreadable RecordId", id)
	}
	return n, nil
}
