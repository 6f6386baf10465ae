package streams

import (
	"fmt"

	"github.com/shoaldb/shoal/query/changestream"
	"github.com/shoaldb/shoal/storage"
)

// Many streams of one namespace differ in one value that they match: a user's documents, one document. The feed sorts events
// by that value, so that an event costs nothing for the streams that it does not concern.

// sortedBy has the items for the streams of one namespace that select by one path.
type sortedBy struct {
	sortKey
	streams int
	values  map[string]*selected
	maybe   []item            // items that all of them have to check
	from    storage.Timestamp // it has all of maybe after this time
	window  storage.Timestamp // where the window begins
}

// selected are the items for the streams that select one value.
type selected struct {
	streams int
	wait    string // the key that wakes them
	items   []item
	from    storage.Timestamp // it has all items after this time
}

type sortKey struct {
	key, path string
	updates   bool
}

func sortKeyOf(key string, s *changestream.Selection) sortKey { return sortKey{key, s.Path, s.Updates} }

// enterSelected registers a stream with a selection, and returns the key that wakes it. f.mu must be held.
func (f *Feed) enterSelected(key string, s *changestream.Selection) (wait string) {
	at := f.now.Load().upTo
	by := f.mu.sorted[sortKeyOf(key, s)]
	if by == nil {
		by = &sortedBy{sortKey: sortKeyOf(key, s), values: map[string]*selected{}, from: at, window: at}
		f.mu.sorted[by.sortKey] = by
	}
	by.streams++
	sel := by.values[s.Key]
	if sel == nil {
		sel = &selected{wait: fmt.Sprint(by.sortKey, "\x00", s.Key), from: at}
		by.values[s.Key] = sel
	}
	sel.streams++
	return sel.wait
}

// leaveSelected undoes enterSelected.
func (f *Feed) leaveSelected(key string, s *changestream.Selection) {
	by := f.mu.sorted[sortKeyOf(key, s)]
	sel := by.values[s.Key]
	if sel.streams--; sel.streams == 0 {
		delete(by.values, s.Key)
	}
	if by.streams--; by.streams == 0 {
		delete(f.mu.sorted, by.sortKey)
	}
}

// sort distributes the items that were read to the streams that select them, and wakes those. f.mu must be held.
func (f *Feed) sort(items []item, cut storage.Timestamp) {
	for _, by := range f.mu.sorted {
		for i := range items {
			by.add(f, &items[i])
		}
		if cut > by.window {
			by.cut(cut)
		}
	}
}

func (by *sortedBy) add(f *Feed, it *item) {
	maybe := it.forAll()
	for i, e := range it.events {
		if changestream.OfDocument(e.Type) && by.key != "" && by.key != e.DB && by.key != e.DB+"."+e.Coll {
			continue
		}
		key, also := changestream.Selects(e.Type, e.Key, e.FullDocument(), by.path, by.updates)
		maybe = maybe || also
		if sel := by.values[key]; sel != nil && !also {
			sel.add(it, i)
			f.sleepers.Soon(sel.wait)
		}
	}
	if !maybe {
		return
	}
	by.maybe = append(by.maybe, *it)
	for _, sel := range by.values {
		f.sleepers.Soon(sel.wait)
	}
}

// add adds one event of an item. Streams that select others of its events do not look at it: a batch of inserts is one entry.
func (sel *selected) add(it *item, event int) {
	own := it.events[event : event+1 : event+1]
	if n := len(sel.items); n > 0 && sel.items[n-1].ts == it.ts {
		sel.items[n-1].events = append(sel.items[n-1].events, own...)
		return
	}
	part := *it
	part.events = own
	sel.items = append(sel.items, part)
}

// cut drops what has left the window.
//
// A selection that loses no items remains complete from the same time on, however far the window moves. Otherwise each stream that has
// waited while others received events would read the oplog, only to find none of its own.
func (by *sortedBy) cut(from storage.Timestamp) {
	by.window = from
	by.maybe, by.from = behind(by.maybe, from, by.from)
	for _, sel := range by.values {
		sel.items, sel.from = behind(sel.items, from, sel.from)
	}
}

// restart drops all items: the reader continues at another time.
func (by *sortedBy) restart(at storage.Timestamp) {
	by.maybe, by.from, by.window = nil, at, at
	for _, sel := range by.values {
		sel.items, sel.from = nil, at
	}
}

// behind returns the items after ts, and the time from which on they are complete; complete is that of all items.
func behind(items []item, ts, complete storage.Timestamp) (rest []item, from storage.Timestamp) {
	w := window{items: items}
	rest, _ = w.after(ts)
	if n := len(items) - len(rest); n > 0 {
		complete = max(complete, items[n-1].ts)
	}
	return append([]item(nil), rest...), complete
}

// selectedAfter returns the items of a selection after a time, and the time up to which they are complete; ok is false if
// some may be missing.
func (f *Feed) selectedAfter(key string, s *changestream.Selection, ts storage.Timestamp) (items []item, upTo storage.Timestamp, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	by := f.mu.sorted[sortKeyOf(key, s)]
	sel := by.values[s.Key]
	if ts < sel.from || ts < by.from {
		return nil, 0, false
	}
	own, maybe := window{items: sel.items}, window{items: by.maybe}
	a, _ := own.after(ts)
	b, _ := maybe.after(ts)
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].ts < b[0].ts:
			items, a = append(items, a[0]), a[1:]
		case len(a) > 0 && a[0].ts == b[0].ts: // one entry with several events
			a = a[1:]
		default:
			items, b = append(items, b[0]), b[1:]
		}
	}
	return items, f.now.Load().upTo, true
}
