package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster/turns"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/agg"
	"github.com/shoaldb/shoal/query/changestream"
	"github.com/shoaldb/shoal/query/value"
)

// A hub is one merge of the shards' streams for the streams of many clients.
//
//	shardMerge ──► watchHub.run (one goroutine while a stream is open) ──► window: the newest events, bounded
//	                                                                          │
//	getMore ──► clientStream ──► hubReader.next ── position within the window ┘
//	                             hubReader.wait sleeps until an event arrives that may concern it, and it is its turn
//
// Streams of one namespace that match one value of a document's field receive only the events with that value.

const (
	// maxHubWindow is the maximum size of a hub's events; beyond it the older half is dropped.
	maxHubWindow = 16 << 20
	// maxNarrowHubs is the number of hubs of one shape whose own $match may run on the shards. Beyond that, one hub has all events
	// of the shape: a cursor on each shard costs more than events that no stream returns.
	maxNarrowHubs = 8
	// hubLag is the number of seconds by which a stream may lag when it joins a hub.
	hubLag = 10
	// hubPause is the pause of a hub before its next round if events arrive continuously, hubLongPause that if processors are scarce: a
	// round then reads more events.
	hubPause     = 2 * time.Millisecond
	hubLongPause = 10 * time.Millisecond
	// hubBusy is the number of events per hubPeriod above which a hub counts as busy.
	hubBusy   = 50
	hubPeriod = 100 * time.Millisecond
)

// errBehindHub is returned if a reader's next event has left the window.
var errBehindHub = errors.New("the stream is behind its hub's window")

// streamShape has the common properties of the streams of a hub: the commands that open the shards' streams.
type streamShape struct {
	of           watched
	wide, narrow string                    // the commands, without their time: for all events, and for those of the first $match
	all          func(start uint64) []byte // the command for all events
	own          func(start uint64) []byte // that with the first $match
	selection    *changestream.Selection   // of the first $match; nil for none
}

// shapeOf returns the shape of a stream. It keeps nothing of the request.
func shapeOf(a *aggCommand, spec *agg.ChangeStream, simple bool) *streamShape {
	a = a.stream()
	fresh := *spec
	fresh.ResumeAfter, fresh.StartAfter = nil, nil
	filter := watchFilter(a.pipeline, &fresh, simple)
	s := &streamShape{
		of:  watchedBy(a, &fresh),
		all: func(start uint64) []byte { return shardStream(a, &fresh, nil, start) },
		own: func(start uint64) []byte { return shardStream(a, &fresh, filter, start) },
	}
	s.wide, s.narrow = string(s.all(0)), string(s.own(0))
	if simple {
		s.selection = changestream.SelectionOf(a.pipeline, spec.FullDocument != "default")
	}
	return s
}

// watchHubs are the hubs of a router.
type watchHubs struct {
	r           *Router
	sleepers    *turns.Sleepers
	turns       *turns.Turns
	window      int           // maxHubWindow, except in tests
	lostTimeout time.Duration // lostShardTimeout, except in tests
	opening     time.Duration // hubOpening, except in tests
	number      atomic.Uint64
	mu          struct {
		sync.Mutex
		byKey  map[string]*watchHub
		narrow map[string]int // hubs with a $match of their own, by the shape without it
	}
}

func newWatchHubs(r *Router) *watchHubs {
	t := turns.New()
	h := &watchHubs{r: r, turns: t, window: maxHubWindow, lostTimeout: lostShardTimeout, opening: hubOpening, sleepers: turns.NewSleepers(t)}
	h.mu.byKey, h.mu.narrow = map[string]*watchHub{}, map[string]int{}
	return h
}

// watchHub is one hub.
type watchHub struct {
	hubs      *watchHubs
	key, base string // the commands for the shards, and the same without a $match
	name      string // the key on which its streams wait
	ready     chan struct{}
	failed    error // the reason why it was not opened, once ready is closed
	done      chan struct{}
	merge     *shardMerge

	since          time.Time // the beginning of the current period, its events and those of the previous one
	events, before int

	mu struct {
		sync.Mutex
		events  []shardEvent
		first   uint64 // the number of the first of them
		started *changestream.Token
		from    *changestream.Token // everything after it is or was in the window
		pos     *changestream.Token // everything up to it is or was in the window
		size    int
		over    bool // nothing more arrives; err is the reason if it is set
		err     error
		readers int
		empty   time.Time     // since when it has no reader, before the first one
		moved   chan struct{} // closed when pos advances; nil if there are no waiters
		sorted  map[selectKey]*sortedEvents
	}
}

type selectKey struct {
	path    string
	updates bool
}

// sortedEvents are the numbers of a hub's events by the value that they have at a path.
type sortedEvents struct {
	selectKey
	readers int
	values  map[string]*valueEvents
	maybe   []uint64 // the events that all readers have to check
	from    uint64   // from when on maybe has them all
}

type valueEvents struct {
	readers int
	from    uint64 // from when on numbers has them all
	sleep   string
	numbers []uint64
}

// join returns a reader positioned after a time or an event on a hub of this shape; nil if no hub's window reaches back that far. If there is no hub, one is
// made: of own, if that has the same commands for the shards, or of a new merge. own is nil if the stream has none; it is closed or kept by the
// hub if a reader is returned.
func (h *watchHubs) join(op *command.Op, shape *streamShape, at *changestream.Token, own *shardMerge) (*hubReader, error) {
	hub, made := h.hubOf(shape)
	kept := false
	if made {
		kept = own != nil && hub.key == shape.narrow
		go hub.open(shape, at, own, kept)
	}
	if kept {
		<-hub.ready // at once. The merge is the hub's from now on, even if op has ended: one goroutine reads it
	} else {
		select {
		case <-hub.ready:
		case <-op.Done():
			return nil, op.CheckNow()
		}
	}
	if hub.failed != nil {
		return nil, hub.failed
	}
	r := hub.reader(shape, at, kept)
	if r != nil && own != nil && !kept {
		own.close()
	}
	return r, nil
}

// hubOf finds the hub of a shape, or registers one that is to be opened.
func (h *watchHubs) hubOf(shape *streamShape) (hub *watchHub, made bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := shape.narrow
	if h.mu.byKey[key] == nil && key != shape.wide && (h.mu.byKey[shape.wide] != nil || h.mu.narrow[shape.wide] >= maxNarrowHubs) {
		key = shape.wide
	}
	if hub = h.mu.byKey[key]; hub != nil {
		return hub, false
	}
	hub = &watchHub{hubs: h, key: key, base: shape.wide, name: fmt.Sprint("hub ", h.number.Add(1)), ready: make(chan struct{}), done: make(chan struct{})}
	hub.mu.sorted, hub.mu.empty = map[selectKey]*sortedEvents{}, time.Now()
	h.mu.byKey[key] = hub
	if key != shape.wide {
		h.mu.narrow[shape.wide]++
	}
	return hub, true
}

// forget stops further streams from joining the hub.
func (h *watchHub) forget() {
	h.hubs.mu.Lock()
	defer h.hubs.mu.Unlock()
	if h.hubs.mu.byKey[h.key] == h {
		delete(h.hubs.mu.byKey, h.key)
		if h.key != h.base {
			if h.hubs.mu.narrow[h.base]--; h.hubs.mu.narrow[h.base] == 0 {
				delete(h.hubs.mu.narrow, h.base)
			}
		}
	}
}

// hubOpening is the time limit for opening the streams of a hub, or once more that of one shard.
const hubOpening = 30 * time.Second

// open makes the hub's merge, unless it is given one, and runs the hub.
func (h *watchHub) open(shape *streamShape, at *changestream.Token, own *shardMerge, kept bool) {
	defer close(h.done)
	h.merge = own
	if !kept {
		command := shape.own
		if h.key == shape.wide {
			command = shape.all
		}
		ctx, cancel := context.WithTimeout(context.Background(), hubOpening)
		defer cancel()
		h.merge, h.failed = newShardMerge(ctx, h.hubs.r, shape.of, command, nil, max(at.ClusterTime, 1))
		if h.failed != nil {
			h.forget()
			close(h.ready)
			return
		}
		at = changestream.MarkAt(max(at.ClusterTime, 1))
	}
	h.mu.started, h.mu.from, h.mu.pos = at, at, at
	close(h.ready)
	err := h.run()
	h.forget()
	h.mu.Lock()
	h.mu.over, h.mu.err = true, err
	h.moveTo(h.mu.pos)
	h.mu.Unlock()
	h.hubs.sleepers.NowWhere(h.sleeps)
	h.merge.close()
}

// sleeps reports whether a key belongs to one of the hub's streams.
func (h *watchHub) sleeps(key string) bool {
	return len(key) >= len(h.name) && key[:len(h.name)] == h.name && (len(key) == len(h.name) || key[len(h.name)] == 0)
}

// run reads the shards' streams until the last reader has left, the stream has ended, or a shard's stream fails.
func (h *watchHub) run() error {
	for {
		var events []shardEvent
		ended := false
		for !ended {
			ev, ok, err := h.merge.next()
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			events = append(events, ev)
			ended = ev.token.FromInvalidate
		}
		h.publish(events, h.merge.position())
		if ended {
			return nil
		}
		h.rest(len(events))
		ctx, cancel := context.WithTimeout(h.merge.life, time.Second)
		err := h.merge.step(ctx)
		cancel()
		if h.merge.life.Err() != nil || h.abandoned() {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// rest waits before the next round if many events arrive.
func (h *watchHub) rest(events int) {
	if events == 0 {
		return
	}
	now := time.Now()
	if now.Sub(h.since) > hubPeriod {
		h.before, h.since = h.events, now
		h.events = 0
	}
	h.events += events
	switch {
	case max(h.events, h.before) < hubBusy:
	case h.hubs.turns.Scarce():
		time.Sleep(hubLongPause)
	default:
		time.Sleep(hubPause)
	}
}

// abandoned reports whether every stream that was waiting for the hub to open has gone.
func (h *watchHub) abandoned() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.readers > 0 || time.Since(h.mu.empty) < hubOpening {
		return false
	}
	h.mu.over = true
	return true
}

// publish makes new events available to the readers.
func (h *watchHub) publish(events []shardEvent, pos *changestream.Token) {
	if len(events) == 0 {
		h.mu.Lock()
		h.moveTo(pos)
		h.mu.Unlock()
		return
	}
	h.hubs.turns.Wrote(len(events))
	wake := map[string]bool{h.name: true}
	h.mu.Lock()
	for _, ev := range events {
		n := h.mu.first + uint64(len(h.mu.events))
		h.mu.events = append(h.mu.events, ev)
		h.mu.size += len(ev.doc) + 256
		for _, by := range h.mu.sorted {
			by.add(n, ev.doc, wake)
		}
	}
	if last := events[len(events)-1].token; last.Compare(pos) > 0 {
		pos = last
	}
	h.moveTo(pos)
	if h.mu.size > h.hubs.window {
		h.cut()
	}
	h.mu.Unlock()
	for key := range wake {
		h.hubs.sleepers.Soon(key)
	}
}

// moveTo records the position up to which everything is in the window. h.mu must be held.
func (h *watchHub) moveTo(pos *changestream.Token) {
	h.mu.pos = pos
	if h.mu.moved != nil {
		close(h.mu.moved)
		h.mu.moved = nil
	}
}

// cut drops the older half of the window. h.mu must be held.
func (h *watchHub) cut() {
	n := 0
	for ; n < len(h.mu.events)-1 && h.mu.size > h.hubs.window/2; n++ {
		h.mu.size -= len(h.mu.events[n].doc) + 256
	}
	if n == 0 {
		return
	}
	h.mu.from = h.mu.events[n-1].token
	h.mu.events = append([]shardEvent(nil), h.mu.events[n:]...)
	h.mu.first += uint64(n)
	for _, by := range h.mu.sorted {
		by.maybe, by.from = from(by.maybe, h.mu.first, by.from)
		for _, v := range by.values {
			v.numbers, v.from = from(v.numbers, h.mu.first, v.from)
		}
	}
}

// from returns a copy of the numbers from n on, and the number from which on the copy is complete; complete is the number from which on numbers is. It
// does not count events that have left the window without being in numbers.
func from(numbers []uint64, n, complete uint64) (rest []uint64, since uint64) {
	i := search(numbers, n)
	if i > 0 {
		complete = max(complete, numbers[i-1]+1)
	}
	return append([]uint64(nil), numbers[i:]...), complete
}

// sorted reports whether the reader's next events are among those of its value.
func (r *hubReader) sorted() bool { return r.by != nil && r.at >= max(r.value.from, r.by.from) }

// search returns the index of the first number that is at least n.
func search(numbers []uint64, n uint64) int {
	lo, hi := 0, len(numbers)
	for lo < hi {
		if mid := (lo + hi) / 2; numbers[mid] >= n {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// add sorts an event, and records the streams that it wakes.
func (by *sortedEvents) add(n uint64, doc []byte, wake map[string]bool) {
	key, maybe := changestream.Selects(value.Lookup(doc, "operationType").Str(), value.Lookup(doc, "documentKey").Doc(), value.Lookup(doc, "fullDocument").Doc(), by.path, by.updates)
	if maybe {
		by.maybe = append(by.maybe, n)
		for _, v := range by.values {
			wake[v.sleep] = true
		}
		return
	}
	if v := by.values[key]; v != nil {
		v.numbers = append(v.numbers, n)
		wake[v.sleep] = true
	}
}

// reader returns a reader positioned after a time or an event; nil if the window begins later, or nothing more arrives. The stream whose merge
// the hub has taken over gets one in any case: it has no other source.
func (h *watchHub) reader(shape *streamShape, at *changestream.Token, its bool) *hubReader {
	h.mu.Lock()
	defer h.mu.Unlock()
	if its {
		at = h.mu.started
	} else if h.mu.over || h.mu.from.Compare(at) > 0 {
		return nil
	}
	h.mu.readers++
	h.mu.empty = time.Time{}
	r := &hubReader{h: h, sleep: h.name, bill: h.hubs.sleepers.NewBill()}
	lo, hi := 0, len(h.mu.events)
	for lo < hi {
		if mid := (lo + hi) / 2; h.mu.events[mid].token.Compare(at) > 0 {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	if r.at = h.mu.first + uint64(lo); h.mu.from.Compare(at) > 0 {
		r.at = 0 // the following events have left the window: next returns the error
	}
	if s := shape.selection; s != nil && h.key == h.base {
		r.enterSelected(s)
	}
	h.hubs.sleepers.Enter(r.sleep)
	return r
}

// enterSelected restricts the reader to the events of one value. h.mu must be held.
func (r *hubReader) enterSelected(s *changestream.Selection) {
	h, key := r.h, selectKey{s.Path, s.Updates}
	r.by = h.mu.sorted[key]
	if r.by == nil {
		r.by = &sortedEvents{selectKey: key, values: map[string]*valueEvents{}}
		h.mu.sorted[key] = r.by
	}
	r.by.readers++
	r.key = s.Key
	r.value = r.by.values[s.Key]
	if r.value == nil {
		r.value = &valueEvents{from: h.mu.first + uint64(len(h.mu.events)), sleep: fmt.Sprint(h.name, "\x00", key, "\x00", s.Key)}
		r.by.values[s.Key] = r.value
	}
	r.value.readers++
	r.sleep = r.value.sleep
}

// hubReader is one stream's position in a hub's window. One goroutine uses it at a time.
type hubReader struct {
	h       *watchHub
	at      uint64 // the number of the event that it checks next
	reached *changestream.Token
	sleep   string
	bill    turns.Bill
	closed  bool

	by    *sortedEvents // of the selection; nil without
	value *valueEvents
	key   string
}

// next implements upstream.
func (r *hubReader) next() (ev shardEvent, ok bool, err error) {
	h := r.h
	h.mu.Lock()
	defer h.mu.Unlock()
	sorted := r.sorted()
	if r.at < h.mu.first && !sorted {
		return ev, false, errBehindHub
	}
	end := h.mu.first + uint64(len(h.mu.events))
	n := r.at
	if sorted {
		n = end
		for _, numbers := range [][]uint64{r.value.numbers, r.by.maybe} {
			if i := search(numbers, r.at); i < len(numbers) {
				n = min(n, numbers[i])
			}
		}
	}
	if n < end {
		r.at = n + 1
		return h.mu.events[n-h.mu.first], true, nil
	}
	r.at, r.reached = end, h.mu.pos
	if h.mu.over {
		err = h.mu.err
		if err == nil {
			err = errBehindHub
		}
	}
	return ev, false, err
}

// position implements upstream.
func (r *hubReader) position() *changestream.Token { return r.reached }

// buffered implements upstream.
func (r *hubReader) buffered() bool { return false }

// turn implements upstream.
func (r *hubReader) turn() bool { return r.bill.Turn() }

// looked implements upstream.
func (r *hubReader) looked(size int) { r.bill.Looked(size) }

// wait implements upstream.
func (r *hubReader) wait(ctx context.Context) error {
	r.bill.Settle()
	paid, _ := r.h.hubs.sleepers.Wait(ctx, r.sleep, nil, r.isNew)
	r.bill.Paid(paid)
	return nil
}

// isNew reports whether there may be events that the reader has not checked.
func (r *hubReader) isNew() bool {
	h := r.h
	h.mu.Lock()
	defer h.mu.Unlock()
	end := h.mu.first + uint64(len(h.mu.events))
	if h.mu.over || !r.sorted() {
		return h.mu.over || r.at < end
	}
	return search(r.value.numbers, r.at) < len(r.value.numbers) || search(r.by.maybe, r.at) < len(r.by.maybe)
}

// catchUp implements upstream.
func (r *hubReader) catchUp(ctx context.Context, at uint64) {
	ctx, cancel := context.WithTimeout(ctx, streamPause)
	defer cancel()
	past := changestream.MarkAt(at + 1)
	for h := r.h; ; {
		h.mu.Lock()
		if h.mu.over || h.mu.pos.Compare(past) >= 0 {
			h.mu.Unlock()
			return
		}
		if h.mu.moved == nil {
			h.mu.moved = make(chan struct{})
		}
		moved := h.mu.moved
		h.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// close implements upstream. The last reader ends the hub.
func (r *hubReader) close() {
	if r.closed {
		return
	}
	r.closed = true
	h := r.h
	h.mu.Lock()
	if r.by != nil {
		if r.value.readers--; r.value.readers == 0 {
			delete(r.by.values, r.key)
		}
		if r.by.readers--; r.by.readers == 0 {
			delete(h.mu.sorted, r.by.selectKey)
		}
	}
	h.mu.readers--
	last := h.mu.readers == 0 && !h.mu.over
	if last {
		h.mu.over = true
	}
	h.mu.Unlock()
	h.hubs.sleepers.Leave(r.sleep)
	if last {
		h.forget()
		h.merge.cancel()
		<-h.done
	}
}
