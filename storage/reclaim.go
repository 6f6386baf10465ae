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

// A deletion is visible to readers at once, but the disk gets the space back only when pebble compacts the files
// that hold it, which may never happen while nothing is written. The collector reclaims what it dropped if that is
// much, and everything while the disk is low: dropped tables and the truncated beginnings of logs are excised from
// their files (giveBack); tables with many dead versions are compacted (compactDead); and obsolete journals that
// pebble keeps are emptied.

const (
	// discardFrom is the size from which dropped tables are deleted as soon as they have no readers, however far back
	// history reaches: a reader of the past gets an error (goneTables).
	discardFrom = largeTable
	// lowGarbage is the amount that justifies a flush and a compaction while the disk is low.
	lowGarbage = 1 << 20
	// mergeStep is roughly how much is compacted at once: it takes that much space until the old files are gone.
	mergeStep = 32 << 20
	// nudges is the number of rounds in which the collector looks for files that an excision has left in use.
	nudges = 10
	// flushTimeout is the time that the collector waits for a flush, which does not finish while the disk has no room
	// for it.
	flushTimeout = 10 * time.Second
)

// goneTables are dropped tables whose keys have been deleted while the history window still reaches back before their
// drop. They are recorded before they are deleted: a reader that takes a snapshot at a time before the drop is either
// seen by discardEarly, or sees the record.
type goneTables struct {
	last  atomic.Uint64 // timestamp of the newest of the drops
	mu    sync.Mutex
	drops map[catalog.Ident]Timestamp
}

// newest returns the time of the newest drop of such a table.
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

// forget removes the drops that are older than all history.
func (g *goneTables) forget(oldest Timestamp) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, ts := range g.drops {
		if ts <= oldest {
			delete(g.drops, id)
		}
	}
}

// check returns an error for a reader at ts of a table that is gone.
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

// deadBytes tracks, by table, what the collector has deleted but pebble may still have on disk.
type deadBytes struct {
	mu     sync.Mutex
	tables map[catalog.Ident]int64
	owed   []pebble.KeyRange                 // still to be excised
	logs   map[catalog.Ident]pebble.KeyRange // what was last excised from the beginning of each log
	nudge  int                               // how many more rounds may look for files left by an excision
}

func (d *deadBytes) add(id catalog.Ident, bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tables == nil {
		d.tables = map[catalog.Ident]int64{}
	}
	d.tables[id] += bytes
}

// large returns the tables with much dead data, largest first.
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

// discardEarly deletes large dropped tables that no snapshot needs before history has passed their drops. The
// drops stay in the queue until history has passed them.
func (e *Engine) discardEarly(ctx context.Context) ([]pendingDrop, error) {
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
	return drops, e.dropTables(ctx, drops, false)
}

// largeDrops returns the drops of large tables, and all others too if they are large together.
func (e *Engine) largeDrops(drops []pendingDrop) (large []pendingDrop) {
	if len(drops) == 0 || e.sizeOf(drops) < discardFrom {
		return nil
	}
	var small []pendingDrop
	for n := 0; len(drops) > 0; drops = drops[n:] {
		for n = 1; n < len(drops) && drops[n].ts == drops[0].ts; n++ { // the drops of one unit of work
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

// findDiscarded determines which of the tables to be dropped no longer have keys: they were discarded before the
// store was closed, or on the member that a snapshot came from.
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

// dropTables deletes the keys of dropped tables and, with forGood, the records of their drops. If ctx ends first, as it does when the store is closed, the next start
// does it again.
func (e *Engine) dropTables(ctx context.Context, drops []pendingDrop, forGood bool) error {
	if len(drops) == 0 {
		return nil
	}
	keep := blockKeeper{e: e}
	defer keep.close()
	for _, d := range drops {
		if err := keep.keepAll(ctx, d.ident); err != nil {
			return err
		}
	}
	b := e.db.NewBatch()
	defer closeQuietly(b)
	for _, d := range drops {
		deleteTable(b, d.ident)
		e.oplog.refs.drop(b, d.ident)
		if forGood {
			_ = b.Delete(dropKey(d.ts, d.ident), nil)
		}
		e.space.dead.take(d.ident)
	}
	return e.guard(func() error { return e.db.Apply(b, pebble.NoSync) })
}

// spansOf returns the key spans of dropped tables, merging those of consecutive idents.
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

// sizeOf estimates the space that dropped tables take: the size of their documents, or of their part of the files.
func (e *Engine) sizeOf(drops []pendingDrop) int64 {
	data := int64(0)
	for _, d := range drops {
		data += d.bytes
	}
	return max(data, e.onDisk(spansOf(drops)))
}

// onDisk estimates how much of pebble's sstables lies in spans.
func (e *Engine) onDisk(spans []pebble.KeyRange) (bytes int64) {
	for _, s := range spans {
		if n, err := e.db.EstimateDiskUsage(s.Start, s.End); err == nil {
			bytes += int64(n)
		}
	}
	return bytes
}

// giveBack returns the space of dropped tables to the disk if it is much. While the disk is low it does the same
// for what was truncated from the logs, and for obsolete journals. The caller must hold collecting.
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
	// An excision takes effect at once and survives a crash. The drop must therefore be durable first, and so must
	// the error that readers of the past get.
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

// nudgeRemoval makes pebble remove files that were in use, by a compaction or an iterator, when something was
// excised from them. Pebble looks for such files when a flush ends, which may never happen while nothing is
// written.
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

// flush flushes the memtable and reports whether that is done.
func (e *Engine) flush(ctx context.Context) (ok bool, err error) {
	var done <-chan struct{}
	err = e.guard(func() (err error) {
		done, err = e.db.AsyncFlush()
		return err
	})
	if err != nil {
		return false, err
	}
	limit := time.NewTimer(flushTimeout)
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

// logBeginnings returns the spans before the first entries of the logs, if they have grown since the last call. Nothing is
// written there again: new entries come after the existing ones.
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

// trimJournals empties the obsolete journals that pebble keeps.
func (e *Engine) trimJournals() error {
	if e.space.journals == nil {
		return nil
	}
	return e.guard(func() error {
		return e.space.journals.trim(func() int { return int(e.db.Metrics().WAL.ObsoleteFiles) })
	})
}

// mergeRests compacts what remains in files from which most was excised: pebble keeps such a file as long as any
// part is needed.
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

// compactDead compacts the tables with much dead data.
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

// merge compacts all levels of a span.
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

// mergeSteps splits a span into parts that hold about mergeStep bytes of files each.
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
