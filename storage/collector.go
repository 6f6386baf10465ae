package storage

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/shoaldb/shoal/storage/catalog"
)

// collectLoop periodically drops what no reader can need: dead versions, dropped tables, old catalogs, and oplog
// entries beyond the oplog's size. While the disk is low it runs more often, keeps less history, and makes pebble
// return the space to the disk.
func (e *Engine) collectLoop(ctx context.Context) {
	t := time.NewTimer(e.opts.CollectInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-e.space.wake:
		}
		if err := e.collect(ctx); err != nil && ctx.Err() == nil && e.failure() == nil {
			e.log.Error().Err(err).Msg("collecting dead versions")
		}
		if e.DiskLow() {
			t.Reset(min(e.opts.CollectInterval, collectLow))
		} else {
			t.Reset(e.opts.CollectInterval)
		}
	}
}

// wakeCollector makes the next round begin now.
func (e *Engine) wakeCollector() {
	select {
	case e.space.wake <- struct{}{}:
	default:
	}
}

// collect runs one round.
func (e *Engine) collect(ctx context.Context) error {
	if err := e.failure(); err != nil {
		return err
	}
	e.measureSpace() // measure here, since there may be no commits
	if err := e.dropAbandoned(); err != nil {
		return err
	}
	if err := e.TruncateOplog(); err != nil {
		return err
	}
	if err := e.forgetRefs(); err != nil {
		return err
	}
	e.collecting.Lock()
	err := e.collectDead(ctx)
	e.collecting.Unlock()
	if err != nil || !e.DiskLow() {
		return err
	}
	return e.compactDead(ctx)
}

func (e *Engine) collectDead(ctx context.Context) error {
	var oldest Timestamp
	var err error
	var gone []pendingDrop
	for i := len(e.lines) - 1; i >= 0; i-- { // the replicated line comes last
		l := &e.lines[i]
		if oldest, err = e.advanceOldest(i); err != nil {
			return err
		}
		if err := e.dropDead(ctx, l, oldest); err != nil {
			return err
		}
		due := l.drops.due(oldest)
		if err := e.dropTables(ctx, due, true); err != nil {
			return err
		}
		gone = append(gone, due...)
	}
	e.space.gone.forget(e.Oldest())
	early, err := e.discardEarly(ctx)
	if err == nil {
		err = e.giveBack(ctx, append(gone, early...))
	}
	if err != nil {
		return err
	}
	if err := errorsJoin(e.collectLate(ctx, oldest), e.collectAgreed(min(oldest, e.Oldest()))); err != nil {
		return err
	}
	e.history.forget(e.Oldest())
	e.spans.update(e.Catalog())
	return nil
}

// HistoryWindow returns how far back snapshots reach.
func (e *Engine) HistoryWindow() time.Duration { return time.Duration(e.history.window.Load()) }

// SetHistoryWindow changes how far back snapshots reach. A longer window fills up from now on: versions already
// dropped do not come back.
func (e *Engine) SetHistoryWindow(d time.Duration) { e.history.window.Store(int64(d)) }

// lowHistory is the history window while disk space is low.
const (
	lowHistory = time.Second
	collectLow = time.Second // interval between rounds while the disk is low
)

// advanceOldest moves the history window forward and returns the timestamp up to which superseded versions may be
// dropped. A snapshot in use holds it back, and so does an unfinished index: its build, on this member or on the
// primary, inserts keys with the version of its start, and a later deletion must still be there to hide them.
//
// Invariant: the replicated history reaches back to what is durable (MajoritySnapshot). Hazard: the clock jumps forward, or the disk becomes low, while the newest writes
// are not durable: the window alone then ends behind the last durable moment.
func (e *Engine) advanceOldest(line int) (Timestamp, error) {
	window := e.HistoryWindow()
	if e.DiskLow() {
		window = min(window, lowHistory)
	}
	limit := TimestampOf(uint32(e.opts.Clock().Add(-window).Unix()), 0)
	oldest := &e.lines[line].oldest
	v := e.view.Load()
	if unfinishedIndexes(v.cat) {
		return min(Timestamp(oldest.Load()), e.snapshots.min(line)), nil
	}
	// A build missing from this catalog begins later.
	if line == lineLocal {
		limit = min(limit, v.local)
	} else {
		needed, err := e.neededHistory()
		if err != nil {
			return 0, err
		}
		limit = min(limit, v.ts, e.Durable(), needed) // what is stored behind v says that it needs what is behind v
	}
	for {
		old := Timestamp(oldest.Load())
		to := min(limit, e.snapshots.min(line))
		if to <= old {
			return min(old, e.snapshots.min(line)), nil
		}
		if !oldest.CompareAndSwap(uint64(old), uint64(to)) {
			continue
		}
		// A snapshot that registered between the check and the swap, having read oldest before the swap, is seen
		// now. Snapshots that read oldest later see its new value.
		return min(to, e.snapshots.min(line)), nil
	}
}

// neededHistory asks Options.Needs.
func (e *Engine) neededHistory() (Timestamp, error) {
	if e.opts.Needs == nil {
		return MaxTimestamp, nil
	}
	s := e.Snapshot()
	defer s.Release()
	return e.opts.Needs(s)
}

func unfinishedIndexes(cat *catalog.Snapshot) (found bool) {
	cat.Each(func(c *catalog.Collection) {
		for _, idx := range c.Indexes {
			found = found || !idx.Ready && !idx.Build.Loaded
		}
	})
	return found
}

// dropDead deletes the versions superseded before oldest.
func (e *Engine) dropDead(ctx context.Context, l *line, oldest Timestamp) error {
	lower, _ := identRange(l.superseded)
	upper := timeKey(nil, l.superseded, oldest+1)
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return err
	}
	defer closeQuietly(it)
	if !it.First() {
		return it.Error()
	}
	b := e.db.NewBatch()
	defer closeQuietly(b)
	// A reader that finds versions gone, after a crash or in a snapshot of the store, must find this mark too.
	_ = b.Set(metaKeyIn(l.meta, metaOldest), binary.BigEndian.AppendUint64(nil, uint64(oldest)), nil)
	if err := e.applyDead(b); err != nil {
		return err
	}
	for it.Valid() && ctx.Err() == nil {
		var c deadChunk
		if err := c.read(it); err != nil {
			return err
		}
		if err := e.dropChunk(l, &c); err != nil {
			return err
		}
	}
	return errorsJoin(it.Error(), ctx.Err())
}

// deadChunk is a batch of superseded keys. For a key that was written many times only the latest time matters: a
// single walk drops all older versions.
type deadChunk struct {
	last  map[string]Timestamp
	times []Timestamp
}

const deadChunkKeys = 16 << 10

func (c *deadChunk) read(it *pebble.Iterator) error {
	c.last = map[string]Timestamp{}
	for ok := true; ok && len(c.last) < deadChunkKeys && len(c.times) < 4*deadChunkKeys; ok = it.Next() {
		keys, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		at := timeOf(it.Key())
		c.times = append(c.times, at)
		for len(keys) > 0 {
			n, w := binary.Uvarint(keys)
			if w <= 0 || int(n) > len(keys)-w {
				return corrupt("the list of superseded keys at %v is unreadable", at)
			}
			c.last[string(keys[w:w+int(n)])] = at
			keys = keys[w+int(n):]
		}
	}
	return nil
}

func (e *Engine) dropChunk(l *line, c *deadChunk) error {
	data, err := e.db.NewIter(nil)
	if err != nil {
		return err
	}
	defer closeQuietly(data)
	keep := blockKeeper{e: e}
	defer keep.close()
	b := e.db.NewBatch()
	defer func() { closeQuietly(b) }()
	for _, key := range slices.Sorted(maps.Keys(c.last)) {
		bytes, err := dropBefore(data, b, &keep, []byte(key), c.last[key])
		if err != nil {
			return err
		}
		e.space.dead.add(identOf([]byte(key)), bytes)
		if b.Len() < 1<<20 {
			continue
		}
		if err := keep.before(b); err != nil {
			return err
		}
		b.Reset()
	}
	var buf [32]byte
	for _, at := range c.times {
		_ = b.Delete(timeKey(buf[:], l.superseded, at), nil)
	}
	return keep.before(b)
}

func (e *Engine) applyDead(b *pebble.Batch) error {
	// If a crash loses it, the next round does it again.
	return e.guard(func() error { return e.db.Apply(b, pebble.NoSync) })
}

// dropBefore deletes the versions of a key older than at, and the one at `at` itself if it is a deletion. It
// returns their size.
func dropBefore(it *pebble.Iterator, b *pebble.Batch, keep *blockKeeper, user []byte, at Timestamp) (bytes int64, err error) {
	var buf [128]byte
	for ok := it.SeekGE(appendVersion(append(buf[:0], user...), uint64(at))); ok; ok = it.Next() {
		k := it.Key()
		other, ts, versioned := splitVersion(k)
		if !versioned || !sameBytes(other, user) {
			break
		}
		val, err := it.ValueAndErr()
		if err != nil {
			return bytes, err
		}
		if ts == uint64(at) && len(val) > 0 {
			continue
		}
		if err := keep.keep(identOf(user), Timestamp(ts)); err != nil {
			return bytes, err
		}
		_ = b.Delete(k, nil)
		bytes += int64(len(k) + len(val))
	}
	return bytes, it.Error()
}
