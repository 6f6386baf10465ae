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

	mu struct {
		sync.Mutex
		streams int
		stop    context.CancelFunc // of the reader; nil while there is none
		asked   map[int64]*asked   // by the cursors' ids
		sorted  map[sortKey]*sortedBy
	}
	sleepers *turns.Sleepers
	failed   atomic.Pointer[error] // why the reader ended
	readers  sync.WaitGroup

	era     atomic.Uint64 // how often the node's data was replaced
	decoded atomic.Int64  // entries that the reader decoded
}

// NewFeed returns the feed of an engine's oplog. Nothing is read while no stream is open.
func NewFeed(e *storage.Engine) *Feed {
	f := &Feed{engine: e, turns: turns.New()}
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

// Close waits for the reader to end; all streams have been closed.
func (f *Feed) Close() { f.readers.Wait() }

// enter registers a stream of a key, and starts the reader if necessary. It returns the key that wakes the stream.
func (f *Feed) enter(key string, s *changestream.Selection) (wait string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.streams++
	if f.mu.stop == nil {
		f.begin()
	}
	wait = key
	if s != nil {
		wait = f.enterSelected(key, s)
	}
	f.sleepers.Enter(wait)
	return wait
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
	f.mu.stop = cancel
	f.failed.Store(nil)
	f.readers.Add(1)
	go func() {
		defer f.readers.Done()
		f.follow(ctx)
	}()
}

// Replaced ends the streams that are open: a snapshot has replaced the node's data, which may now have another history, with
// other events at the times that the streams have seen. Their clients resume them by a token, which is looked up in that
// history.
func (f *Feed) Replaced() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.era.Add(1)
	if f.mu.stop != nil {
		f.mu.stop()
		f.begin()
	}
	f.sleepers.NowWhere(everyone)
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
		f.mu.stop()
		f.mu.stop = nil
	}
}

// follow reads what becomes visible until ctx ends.
func (f *Feed) follow(ctx context.Context) {
	for {
		w := f.now.Load()
		_, err := f.engine.WaitVisible(ctx, w.upTo)
		if err == nil && f.engine.Durable() < f.engine.Visible() {
			err = f.engine.Sync(ctx) // a set of one member: its disk is the majority
		}
		var items []item
		var upTo storage.Timestamp
		if err == nil {
			items, upTo, err = f.read(w.upTo, storage.MaxTimestamp, maxWindow)
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
		f.turns.Wrote(len(items))
	}
	if upTo > w.upTo {
		next := w.add(items, upTo)
		f.now.Store(next)
		f.sort(items, next.from)
	}
	for i := range items {
		if a := f.mu.asked[items[i].note]; a != nil {
			a.at.Store(uint64(items[i].ts))
			select {
			case a.now <- struct{}{}:
			default:
			}
		}
		if items[i].last != nil {
			f.sleepers.SoonWhere(everyone)
			return true
		}
		for _, ev := range items[i].events {
			f.announce(ev)
		}
	}
	return true
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

// read decodes the entries in (after, to], until they take about limit bytes. upTo is the time up to which it has read.
func (f *Feed) read(after, to storage.Timestamp, limit int) (items []item, upTo storage.Timestamp, err error) {
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
		if it := decode(doc); it != nil {
			it.ts = storage.Timestamp(ts)
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
	it := &item{size: 2*len(doc) + 512}
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
	return it
}

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
