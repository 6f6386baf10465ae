package streams

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/shoaldb/shoal/cluster/turns"
	"github.com/shoaldb/shoal/query/changestream"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// item has the events of one oplog entry.
type item struct {
	ts     storage.Timestamp
	events []*changestream.Event
	last   *changestream.Entry // of a transaction of several entries: the one that commits it
	note   int64               // the stream whose position a router asks for, 0 for none
	err    error               // the entry cannot be decoded
	size   int
}

// window is a decoded part of the oplog.
type window struct {
	items      []item
	from, upTo storage.Timestamp
	size       int
}

// maxWindow is the maximum size of the decoded entries, before the older half of them is dropped.
const maxWindow = 32 << 20

// after returns the items after a time; ok is false if some of them are not in the window.
func (w *window) after(ts storage.Timestamp) (items []item, ok bool) {
	if ts < w.from {
		return nil, false
	}
	lo, hi := 0, len(w.items)
	for lo < hi {
		if mid := (lo + hi) / 2; w.items[mid].ts > ts {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return w.items[lo:], true
}

// forAll reports whether all streams have to look at the item: only they can tell whether it concerns them.
func (it *item) forAll() bool { return it.last != nil || it.err != nil }

// add returns the window with more items; the old one does not change.
func (w *window) add(items []item, upTo storage.Timestamp) *window {
	next := &window{items: append(w.items, items...), from: w.from, upTo: upTo, size: w.size}
	for i := range items {
		next.size += items[i].size
	}
	if next.size <= maxWindow {
		return next
	}
	cut := 0
	for ; cut < len(next.items) && next.size > maxWindow/2; cut++ {
		next.size -= next.items[cut].size
	}
	next.from = next.items[cut-1].ts
	next.items = append([]item(nil), next.items[cut:]...)
	return next
}

// Feed is a node's reader of the oplog.
type Feed struct {
	engine *storage.Engine
	turns  *turns.Turns // of the streams
	now    atomic.Pointer[window]
	warn   func(msg string, err error) // nil if nothing is logged
	decode func(doc []byte) *item

	mu struct {
		sync.Mutex
		streams int
		reader  *reader          // nil while there is none
		asked   map[int64]*asked // by the cursors' ids
		sorted  map[sortKey]*sortedBy
	}
	sleepers *turns.Sleepers
	failed   atomic.Pointer[error] // why the reader ended
	readers  sync.WaitGroup

	era     atomic.Uint64         // how often the open streams were ended
	ended   atomic.Pointer[error] // why, the last time
	skipped skippedEntries
	decoded atomic.Int64 // entries that the reader decoded
}

// NewFeed returns the feed of an engine's oplog. Nothing is read while no stream is open. warn logs what ends streams without being
// an answer to a client; it may be nil.
func NewFeed(e *storage.Engine, warn func(msg string, err error)) *Feed {
	f := &Feed{engine: e, turns: turns.New(), warn: warn, decode: decode}
	f.sleepers, f.mu.asked = turns.NewSleepers(f.turns), map[int64]*asked{}
	f.mu.sorted = map[sortKey]*sortedBy{}
	return f
}

// Decoded counts the entries of the oplog that were decoded for all streams together.
func (f *Feed) Decoded() int64 { return f.decoded.Load() }

// Open counts the streams that are open.
func (f *Feed) Open() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.streams
}

// Close waits for the reader to end; all streams have been closed. A reader that has stalled is not waited for.
func (f *Feed) Close() { f.readers.Wait() }

// enter registers a stream of a key, and starts the reader if there is none or if it has failed. It returns the key that wakes the
// stream, and the era in which it begins.
func (f *Feed) enter(key string, s *changestream.Selection) (wait string, era uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch err := f.failure(); {
	case f.mu.reader == nil:
		f.begin()
	case err != nil:
		f.renew(err)
	}
	f.mu.streams++
	wait = key
	if s != nil {
		wait = f.enterSelected(key, s)
	}
	f.sleepers.Enter(wait)
	return wait, f.era.Load()
}

// begin starts the reader at the visible timestamp. f.mu must be held.
func (f *Feed) begin() {
	s := f.engine.MajoritySnapshot()
	at := s.Timestamp()
	s.Release()
	f.now.Store(&window{from: at, upTo: at})
	for _, by := range f.mu.sorted {
		by.restart(at)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.failed.Store(nil)
	f.readers.Add(2)
	r := &reader{stop: cancel, release: sync.OnceFunc(f.readers.Done)}
	f.mu.reader = r
	go func() {
		defer r.release()
		f.follow(ctx, r)
	}()
	go func() {
		defer f.readers.Done()
		f.supervise(ctx, r)
	}()
}

// renew ends the streams that are open, with an error, and replaces the reader by one that begins at the visible timestamp. f.mu
// must be held.
func (f *Feed) renew(why error) {
	f.ended.Store(&why)
	f.era.Add(1)
	f.mu.reader.stop()
	f.begin()
	f.sleepers.NowWhere(everyone)
}

// Replaced ends the streams that are open: a snapshot has replaced the node's data, which may now have another history, with
// other events at the times that the streams have seen. Their clients resume them by a token, which is looked up in that
// history.
func (f *Feed) Replaced() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.reader != nil {
		f.renew(errReplaced)
	}
}

func (f *Feed) leave(s *Stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.mu.asked, s.cursor)
	if s.selection != nil {
		f.leaveSelected(s.key, s.selection)
	}
	f.sleepers.Leave(s.wait)
	if f.mu.streams--; f.mu.streams == 0 {
		f.mu.reader.stop()
		f.mu.reader = nil
	}
}

// follow reads what becomes visible until ctx ends.
func (f *Feed) follow(ctx context.Context, r *reader) {
	for {
		w := f.now.Load()
		_, err := f.engine.WaitVisible(ctx, w.upTo)
		if err == nil && f.engine.Durable() < f.engine.Visible() {
			err = f.engine.Sync(ctx) // a set of one member: its disk is the majority
		}
		var items []item
		var upTo storage.Timestamp
		if err == nil {
			items, upTo, err = f.read(ctx, w.upTo, storage.MaxTimestamp, maxWindow, r)
			f.decoded.Add(int64(len(items)))
		}
		if ctx.Err() != nil {
			return
		}
		if !f.publish(ctx, w, items, upTo, err) {
			return
		}
	}
}

// publish makes what was read available to the streams and wakes those that it concerns; false if the reader has
// been replaced or cannot continue.
func (f *Feed) publish(ctx context.Context, w *window, items []item, upTo storage.Timestamp, err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		f.failed.Store(&err)
		f.sleepers.NowWhere(everyone)
		return false
	}
	if len(items) > 0 {
		f.turns.Wrote(changes(items))
	}
	if upTo > w.upTo {
		next := w.add(items, upTo)
		f.now.Store(next)
		f.sort(items, next.from)
	}
	all := false
	for i := range items {
		if a := f.mu.asked[items[i].note]; a != nil {
			a.at.Store(uint64(items[i].ts))
			select {
			case a.now <- struct{}{}:
			default:
			}
		}
		all = all || items[i].forAll()
		f.announceAll(items[i].events)
	}
	if all {
		f.sleepers.SoonWhere(everyone)
	}
	return true
}

// changes counts the changes in items, each of which may wake streams.
func changes(items []item) (n int) {
	for i := range items {
		n += max(1, len(items[i].events))
	}
	return n
}

// announceAll wakes the streams that may have one of the events. Those of one collection follow each other, as a rule.
func (f *Feed) announceAll(events []*changestream.Event) {
	for i, ev := range events {
		if i == 0 || !changestream.OfDocument(ev.Type) || !changestream.OfDocument(events[i-1].Type) || ev.DB != events[i-1].DB || ev.Coll != events[i-1].Coll {
			f.announce(ev)
		}
	}
}

// everyone selects the keys of all sleeping streams.
func everyone(string) bool { return true }

// announce wakes the streams that may have the event.
func (f *Feed) announce(ev *changestream.Event) {
	f.sleepers.Soon("")
	f.sleepers.Soon(ev.DB)
	f.sleepers.Soon(ev.DB + "." + ev.Coll)
	switch ev.Type {
	case "rename":
		f.sleepers.Soon(ev.ToDB)
		f.sleepers.Soon(ev.ToDB + "." + ev.ToColl)
	case "dropDatabase":
		f.sleepers.SoonWhere(func(key string) bool { return strings.HasPrefix(key, ev.DB+".") })
	}
}

// asked records that a router asks for the position of one stream.
type asked struct {
	at  atomic.Uint64 // when it last asked
	now chan struct{} // holds one if it has asked since the stream last waited
}

// listen registers a cursor's stream for the position requests of a router.
func (f *Feed) listen(cursor int64) *asked {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := &asked{now: make(chan struct{}, 1)}
	f.mu.asked[cursor] = a
	return a
}

// wait returns when an entry later than seen may concern the key, when a router asks, or ctx ends.
func (f *Feed) wait(ctx context.Context, key string, seen storage.Timestamp, asks <-chan struct{}) (paid bool, err error) {
	if err := f.failure(); err != nil {
		return false, err
	}
	return f.sleepers.Wait(ctx, key, asks, func() bool { return f.now.Load().upTo > seen || f.failure() != nil })
}

// failure returns the reason why the reader ended; nil while it runs.
func (f *Feed) failure() error {
	if err := f.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// caughtUp waits until the window reaches a time that is visible.
func (f *Feed) caughtUp(ctx context.Context, ts storage.Timestamp) error {
	for f.now.Load().upTo < ts {
		short, cancel := context.WithTimeout(ctx, caughtUpStep)
		_, err := f.wait(short, "", f.now.Load().upTo, nil)
		cancel()
		if err != nil && ctx.Err() != nil {
			return err
		}
		if err := f.failure(); err != nil {
			return err
		}
	}
	return nil
}

// oplogOf returns a cursor on the oplog in a snapshot.
func oplogOf(s *storage.Snapshot) (records *storage.RecordCursor, from func(ts storage.Timestamp)) {
	records = s.Scan(s.Catalog().Lookup(storage.OplogNS), storage.ScanOptions{})
	return records, func(ts storage.Timestamp) { records.SeekTo(storage.NewRecordID(int64(ts))) }
}

// read decodes the entries in (after, to], until they take about limit bytes. upTo is the time up to which it has read. r is the
// reader for which it reads; nil for a stream.
func (f *Feed) read(ctx context.Context, after, to storage.Timestamp, limit int, r *reader) (items []item, upTo storage.Timestamp, err error) {
	s := f.engine.MajoritySnapshot()
	defer s.Release()
	to = min(to, s.Timestamp())
	if after >= to {
		return nil, after, nil
	}
	records, seek := oplogOf(s)
	defer records.Close()
	seek(after + 1)
	for size := 0; records.Next(); {
		doc := records.Doc()
		ts, _ := records.RecordID().Int64()
		if storage.Timestamp(ts) > to {
			return items, to, nil
		}
		if ctx.Err() != nil {
			return nil, 0, context.Cause(ctx)
		}
		r.reads(storage.Timestamp(ts))
		if it := f.item(storage.Timestamp(ts), doc); it != nil {
			items = append(items, *it)
			if size += it.size; size > limit {
				return items, it.ts, nil
			}
		}
	}
	if err := records.Err(); err != nil {
		return nil, 0, err
	}
	return items, to, nil
}

// decode makes the events of an entry; nil if it has none.
func decode(doc []byte) *item {
	e := changestream.ParseEntry(append([]byte(nil), doc...))
	it := &item{size: 2*len(doc) + eventSize}
	if e.Op == 'n' && value.Lookup(e.O, "msg").Str() == changestream.PositionNote {
		if it.note = value.SafeInt64(value.Lookup(e.O, "cursor")); it.note == 0 {
			return nil
		}
		return it
	}
	if e.Continues() {
		it.last = e
		return it
	}
	if it.events = e.Events(); len(it.events) == 0 {
		return nil
	}
	it.size += eventSize * len(it.events)
	return it
}

// eventSize is the approximate size of an event without its document.
const eventSize = 512

// HistoryLost returns the error of a stream whose entries of the oplog are gone.
func HistoryLost(at storage.Timestamp) error {
	return mongoerr.New(mongoerr.ChangeStreamHistoryLost, "Resume of change stream was not possible, as the resume point may no longer be in the oplog.").
		WithLabel(mongoerr.LabelNonResumableStream)
}

// transaction yields the events of a transaction of several entries, one entry at a time.
type transaction struct {
	last  *changestream.Entry
	parts []storage.Timestamp // entries whose operations are still to come, the next one last
	index int
}

func (f *Feed) transaction(last *changestream.Entry) (*transaction, error) {
	t := &transaction{last: last}
	s := f.engine.Snapshot()
	defer s.Release()
	if !last.Commits() {
		t.parts = append(t.parts, storage.Timestamp(last.TS))
	}
	for prev := last.Prev; prev != 0; {
		e, err := entryAt(s, storage.Timestamp(prev))
		if err != nil {
			return nil, err
		}
		if e == nil {
			return nil, HistoryLost(storage.Timestamp(prev))
		}
		if !e.Waits() || e.Number != last.Number {
			break
		}
		t.parts = append(t.parts, storage.Timestamp(prev))
		prev = e.Prev
	}
	return t, nil
}

func entryAt(s *storage.Snapshot, ts storage.Timestamp) (*changestream.Entry, error) {
	doc, ok, err := s.Get(s.Catalog().Lookup(storage.OplogNS), storage.NewRecordID(int64(ts)))
	if err != nil || !ok {
		return nil, err
	}
	return changestream.ParseEntry(append([]byte(nil), doc...)), nil
}

// more returns the events of the next entry; ok is false after the last one.
func (f *Feed) more(t *transaction) (events []*changestream.Event, ok bool, err error) {
	n := len(t.parts)
	if n == 0 {
		return nil, false, nil
	}
	s := f.engine.Snapshot()
	defer s.Release()
	e, err := entryAt(s, t.parts[n-1])
	if err != nil {
		return nil, false, err
	}
	if e == nil {
		return nil, false, HistoryLost(t.parts[n-1])
	}
	t.parts = t.parts[:n-1]
	events, t.index = t.last.Operations(e.ApplyOps(), t.index)
	return events, true, nil
}
