package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/cockroachkvs"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// What is deleted is gone for readers at once, and for the disk when pebble has merged the files that it lies in, which may
// be never while nothing is written. The collector has the disk given back what it dropped where that is much, and all of it
// while the disk is low: tables that were dropped are cut out of their files (giveBack), with the beginnings of the logs that
// were truncated; tables with many dead versions are merged (compactDead); and journals that pebble keeps for later are
// emptied.

const (
	// discardFrom is the size from which dropped tables are deleted as soon as nobody reads them, however far back history
	// reaches: a reader of the past is told that they are gone (goneTables).
	discardFrom = largeTable
	// lowGarbage is what is worth a flush and a merge while the disk is low.
	lowGarbage = 1 << 20
	// mergeStep is about how much is merged at once: that much room it takes until the old files are gone.
	mergeStep = 32 << 20
	// nudges is how many rounds of the collector look for files that a cut has left in use.
	nudges = 10
	// flushPatience is how long the collector waits for a flush, which does not end while the disk has no room for it.
	flushPatience = 10 * time.Second
)

// goneTables are dropped tables whose keys have been deleted while history still reaches behind their drop. It is noted
// before they are deleted: whoever takes a snapshot of a time before the drop either is seen by discardEarly, or sees this.
type goneTables struct {
	last  atomic.Uint64 // the newest of the drops
	mu    sync.Mutex
	drops map[catalog.Ident]Timestamp
}

// newest is the time of the newest drop of such a table.
func (g *goneTables) newest() Timestamp { return Timestamp(g.last.Load()) }

func (g *goneTables) add(drops []pendingDrop) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.drops == nil {
		g.drops = map[catalog.Ident]Timestamp{}
	}
	last := g.newest()
	for _, d := range drops {
		g.drops[d.ident] = d.ts
		last = max(last, d.ts)
	}
	g.last.Store(uint64(last))
}

// forget drops what lies before all history.
func (g *goneTables) forget(oldest Timestamp) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, ts := range g.drops {
		if ts <= oldest {
			delete(g.drops, id)
		}
	}
}

// check is an error for a reader at ts of a table that is gone.
func (g *goneTables) check(ts Timestamp, id catalog.Ident) error {
	if ts >= g.newest() {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if at, ok := g.drops[id]; ok && ts < at {
		return mongoerr.Newf(mongoerr.SnapshotTooOld, "Read timestamp %v is older than the oldest available timestamp of a collection that was dropped at %v.", ts, at)
	}
	return nil
}

// deadBytes is what the collector has deleted and pebble may still have, by table.
type deadBytes struct {
	mu     sync.Mutex
	tables map[catalog.Ident]int64
	owed   []pebble.KeyRange                 // to be cut out
	logs   map[catalog.Ident]pebble.KeyRange // what was cut out of each log's beginning last
	nudge  int                               // how many rounds may yet look for what is left of a cut
}

func (d *deadBytes) add(id catalog.Ident, bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tables == nil {
		d.tables = map[catalog.Ident]int64{}
	}
	d.tables[id] += bytes
}

// large gives the tables with much that is dead, those with the most first.
func (d *deadBytes) large() (out []catalog.Ident) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, n := range d.tables {
		if n >= lowGarbage {
			out = append(out, id)
		}
	}
	slices.SortFunc(out, func(a, b catalog.Ident) int { return cmp.Compare(d.tables[b], d.tables[a]) })
	return out
}

func (d *deadBytes) take(id catalog.Ident) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.tables[id]
	delete(d.tables, id)
	return n
}

// discardEarly deletes dropped tables before history has passed their drops, where they are large and no snapshot needs
// them. Their drops stay in the queue until history has passed.
func (e *Engine) discardEarly() ([]pendingDrop, error) {
	l := &e.lines[lineReplicated]
	v := e.view.Load()
	limit := min(v.ts, e.Durable(), e.snapshots.min(lineReplicated))
	drops := e.largeDrops(slices.DeleteFunc(l.drops.upTo(limit), func(d pendingDrop) bool { return d.early }))
	if len(drops) == 0 || unfinishedIndexes(v.cat) {
		return nil, nil
	}
	e.space.gone.add(drops)
	if e.snapshots.min(lineReplicated) < drops[len(drops)-1].ts {
		return nil, nil
	}
	l.drops.discarded(drops)
	return drops, e.dropTables(drops, false)
}

// largeDrops gives the drops of large tables, and all others too where those are much together.
func (e *Engine) largeDrops(drops []pendingDrop) (large []pendingDrop) {
	if len(drops) == 0 || e.sizeOf(drops) < discardFrom {
		return nil
	}
	var small []pendingDrop
	for n := 0; len(drops) > 0; drops = drops[n:] {
		for n = 1; n < len(drops) && drops[n].ts == drops[0].ts; n++ { // what one unit of work dropped
		}
		if e.sizeOf(drops[:n]) >= discardFrom {
			large = append(large, drops[:n]...)
		} else {
			small = append(small, drops[:n]...)
		}
	}
	if len(small) > 0 && e.sizeOf(small) >= discardFrom {
		large = append(large, small...)
		slices.SortFunc(large, func(a, b pendingDrop) int { return cmp.Compare(a.ts, b.ts) })
	}
	return large
}

// findDiscarded looks which of the tables that are to be dropped have no keys any more: they were discarded before the store
// was closed, or on the member that a snapshot is from.
func (e *Engine) findDiscarded(l *line) error {
	it, err := e.db.NewIter(nil)
	if err != nil {
		return err
	}
	defer closeQuietly(it)
	var gone []pendingDrop
	for _, d := range l.drops.upTo(MaxTimestamp) {
		lower, _ := identRange(d.ident)
		if !it.SeekGE(lower) || identOf(it.Key()) != d.ident {
			gone = append(gone, d)
		}
	}
	if len(gone) > 0 && l.meta == identMeta {
		e.space.gone.add(gone)
		l.drops.discarded(gone)
	}
	return it.Error()
}

// dropTables deletes the keys of dropped tables, and for good ones what is known of their drops.
func (e *Engine) dropTables(drops []pendingDrop, forGood bool) error {
	if len(drops) == 0 {
		return nil
	}
	b := e.db.NewBatch()
	defer closeQuietly(b)
	for _, d := range drops {
		deleteTable(b, d.ident)
		if forGood {
			_ = b.Delete(dropKey(d.ts, d.ident), nil)
		}
		e.space.dead.take(d.ident)
	}
	return e.guard(func() error { return e.db.Apply(b, pebble.NoSync) })
}

// spansOf are the spans of dropped tables; tables with numbers that follow each other have one.
func spansOf(drops []pendingDrop) (spans []pebble.KeyRange) {
	ids := make([]catalog.Ident, len(drops))
	for i, d := range drops {
		ids[i] = d.ident
	}
	slices.Sort(ids)
	for i, id := range ids {
		lower, upper := identRange(id)
		if i > 0 && ids[i-1]+1 == id {
			spans[len(spans)-1].End = upper
			continue
		}
		spans = append(spans, pebble.KeyRange{Start: lower, End: upper})
	}
	return spans
}

// sizeOf is about how much room dropped tables take: what was in their documents, or what they have on disk.
func (e *Engine) sizeOf(drops []pendingDrop) int64 {
	data := int64(0)
	for _, d := range drops {
		data += d.bytes
	}
	return max(data, e.onDisk(spansOf(drops)))
}

// onDisk is about how much the tables of pebble have of spans.
func (e *Engine) onDisk(spans []pebble.KeyRange) (bytes int64) {
	for _, s := range spans {
		if n, err := e.db.EstimateDiskUsage(s.Start, s.End); err == nil {
			bytes += int64(n)
		}
	}
	return bytes
}

// giveBack has the disk given back what was dropped, if that is much. While the disk is low it is also what was truncated of
// the logs, and the journals of before. Whoever calls it holds collecting.
func (e *Engine) giveBack(ctx context.Context, drops []pendingDrop) error {
	d, low := &e.space.dead, e.DiskLow()
	spans := spansOf(drops)
	size := e.sizeOf(slices.DeleteFunc(drops, func(d pendingDrop) bool { return d.early }))
	if low {
		logs, err := e.logBeginnings()
		if err != nil {
			return err
		}
		spans = append(spans, logs...)
	}
	if size >= discardFrom || low && len(spans) > 0 {
		d.owed = append(d.owed, spans...)
	}
	if len(d.owed) == 0 {
		err := e.nudgeRemoval(ctx)
		if low && err == nil {
			err = e.trimJournals()
		}
		return err
	}
	// What is cut out is gone at once, a crash or not. So must be the drop, and what readers of the past are told.
	switch ok, err := e.flush(ctx); {
	case err != nil:
		return err
	case !ok:
		return e.trimJournals()
	}
	for _, span := range d.owed {
		if err := e.guard(func() error { return e.db.Excise(ctx, span) }); err != nil {
			return err
		}
	}
	d.owed, d.nudge = nil, nudges
	return errorsJoin(e.mergeRests(ctx), e.trimJournals())
}

// nudgeRemoval has pebble remove files that were in use when something was cut out of them, by a merge or an iterator: it
// looks for those when a flush ends, which may be never while nothing is written.
func (e *Engine) nudgeRemoval(ctx context.Context) error {
	d := &e.space.dead
	if d.nudge == 0 {
		return nil
	}
	d.nudge--
	if m := e.db.Metrics(); m.Table.ZombieSize+m.Table.ObsoleteSize < lowGarbage {
		d.nudge = 0
		return nil
	}
	_, err := e.flush(ctx)
	return err
}

// flush writes the memory table out, and tells whether that is done.
func (e *Engine) flush(ctx context.Context) (ok bool, err error) {
	var done <-chan struct{}
	err = e.guard(func() (err error) {
		done, err = e.db.AsyncFlush()
		return err
	})
	if err != nil {
		return false, err
	}
	limit := time.NewTimer(flushPatience)
	defer limit.Stop()
	select {
	case <-done:
		return true, nil
	case <-limit.C:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// logBeginnings are the spans before the first entries of the logs, where they have grown. Nothing is written there again:
// entries come behind those that there are.
func (e *Engine) logBeginnings() (spans []pebble.KeyRange, err error) {
	d := &e.space.dead
	if d.logs == nil {
		d.logs = map[catalog.Ident]pebble.KeyRange{}
	}
	for _, id := range []catalog.Ident{identOplog, identStaging, TableRaftLog.ident()} {
		lower, upper := identRange(id)
		it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
		if err != nil {
			return nil, err
		}
		span := pebble.KeyRange{Start: lower}
		if it.First() {
			key := it.Key()
			span.End = slices.Clone(key[:cockroachkvs.Comparer.Split(key)])
		}
		if err := errorsJoin(it.Error(), it.Close()); err != nil {
			return nil, err
		}
		if len(span.End) == 0 || slices.Equal(span.End, d.logs[id].End) {
			continue
		}
		d.logs[id] = span
		spans = append(spans, span)
	}
	return spans, nil
}

// trimJournals empties the journals that pebble keeps for later.
func (e *Engine) trimJournals() error {
	if e.space.journals == nil {
		return nil
	}
	return e.guard(func() error {
		return e.space.journals.trim(func() int { return int(e.db.Metrics().WAL.ObsoleteFiles) })
	})
}

// mergeRests merges what is left in files from which most was cut out: pebble keeps such a file as long as it needs a part.
func (e *Engine) mergeRests(ctx context.Context) error {
	levels, err := e.db.SSTables()
	if err != nil {
		return err
	}
	type rest struct {
		bytes uint64
		spans []pebble.KeyRange
	}
	rests := map[uint64]*rest{}
	for _, l := range levels {
		for _, t := range l {
			if !t.Virtual {
				continue
			}
			n := uint64(t.BackingSSTNum)
			if rests[n] == nil {
				rests[n] = &rest{}
			}
			rests[n].bytes += t.Size
			rests[n].spans = append(rests[n].spans, pebble.KeyRange{Start: t.Smallest.UserKey, End: t.Largest.UserKey})
		}
	}
	for n, r := range rests {
		st, err := e.opts.FS.Stat(e.opts.FS.PathJoin(e.opts.Dir, fmt.Sprintf("%06d.sst", n)))
		if err != nil || uint64(st.Size()) < 2*r.bytes || st.Size()-int64(r.bytes) < lowGarbage {
			continue
		}
		for _, s := range r.spans {
			if err := e.merge(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// compactDead merges the tables of which much is dead.
func (e *Engine) compactDead(ctx context.Context) error {
	merged := false
	for _, id := range e.space.dead.large() {
		lower, upper := identRange(id)
		steps, err := e.mergeSteps(lower, upper)
		if err != nil {
			return err
		}
		e.space.dead.take(id)
		for _, s := range steps {
			if err := e.merge(ctx, s); err != nil {
				return err
			}
		}
		merged = true
	}
	if !merged {
		return nil
	}
	return e.trimJournals()
}

// merge merges all levels of a span.
func (e *Engine) merge(ctx context.Context, span pebble.KeyRange) error {
	if e.failure() != nil || cockroachkvs.Comparer.Compare(span.Start, span.End) >= 0 {
		return nil
	}
	err := e.guard(func() error { return e.db.Compact(ctx, span.Start, span.End, false) })
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// mergeSteps cuts a span into parts with about mergeStep bytes of files each.
func (e *Engine) mergeSteps(lower, upper []byte) (steps []pebble.KeyRange, err error) {
	levels, err := e.db.SSTables(pebble.WithKeyRangeFilter(lower, upper))
	if err != nil {
		return nil, err
	}
	type file struct {
		end  []byte
		size uint64
	}
	var files []file
	for _, l := range levels {
		for _, t := range l {
			files = append(files, file{t.Largest.UserKey, t.Size})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cockroachkvs.Comparer.Compare(a.end, b.end) })
	size := uint64(0)
	for _, f := range files {
		if size += f.size; size < mergeStep || cockroachkvs.Comparer.Compare(f.end, lower) <= 0 || cockroachkvs.Comparer.Compare(f.end, upper) >= 0 {
			continue
		}
		steps = append(steps, pebble.KeyRange{Start: lower, End: f.end})
		lower, size = f.end, 0
	}
	return append(steps, pebble.KeyRange{Start: lower, End: upper}), nil
}
