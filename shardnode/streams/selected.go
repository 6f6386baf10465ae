package streams

import (
	"fmt"
	"strings"

	"github.com/shoaldb/shoal/query/changestream"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
)

// Many streams of one namespace differ in one value that they match: a user's documents, one document. The feed sorts events
// by that value, so that an event costs nothing for the streams that it does not concern.

// Selection is a condition of a stream: of the events of documents it has only those with a certain value at a path.
type Selection struct {
	Path    string // begins with fullDocument or documentKey
	key     string // of the value
	updates bool   // updates may have a fullDocument, which is not part of their entry
}

// SelectionOf returns the condition that a stream's pipeline sets in its first $match; nil if there is none that the feed
// supports. updates means that the stream has the documents of updates.
func SelectionOf(pipeline value.Value, updates bool) *Selection {
	stages := value.Values(pipeline.Doc())
	if len(stages) < 2 {
		return nil
	}
	s := selectionIn(value.Lookup(stages[1].Doc(), "$match"))
	if s != nil {
		s.updates = updates
	}
	return s
}

func selectionIn(filter value.Value) *Selection {
	if filter.T != value.Document {
		return nil
	}
	for k, v := range value.Elements(filter.Doc()) {
		switch {
		case k == "$and" && v.T == value.Array:
			for _, part := range value.Values(v.Doc()) {
				if s := selectionIn(part); s != nil {
					return s
				}
			}
		case k == "$or" && v.T == value.Array:
			if s := selectionBeside(value.Values(v.Doc())); s != nil {
				return s
			}
		case strings.HasPrefix(k, "fullDocument.") || strings.HasPrefix(k, "documentKey."):
			if v.T == value.Document {
				it := value.Walk(v.Doc())
				if op, arg, ok := it.Next(); ok && string(op) == "$eq" {
					v = arg
				}
			}
			if key, ok := selectKey(v); ok {
				return &Selection{Path: k, key: key}
			}
		}
	}
	return nil
}

// selectionBeside returns the condition in a list of alternatives whose others only match events that do not concern a
// document: those that a router admits in addition to the client's own condition.
func selectionBeside(parts []value.Value) (found *Selection) {
	for _, part := range parts {
		if ofNoDocument(part) {
			continue
		}
		s := selectionIn(part)
		if s == nil || found != nil {
			return nil
		}
		found = s
	}
	return found
}

func ofNoDocument(filter value.Value) bool {
	kinds := value.Lookup(value.Lookup(filter.Doc(), "operationType").Doc(), "$in")
	if kinds.T != value.Array {
		return false
	}
	for _, v := range value.Values(kinds.Doc()) {
		if v.T != value.String || ofDocument(v.Str()) {
			return false
		}
	}
	return true
}

func ofDocument(kind string) bool {
	return kind == "insert" || kind == "update" || kind == "replace" || kind == "delete"
}

// selectKey returns a key for a value such that values with different keys are never equal; ok is false if there is no such key.
func selectKey(v value.Value) (key string, ok bool) {
	switch v.T {
	case value.Int32, value.Int64, value.Double, value.Decimal128, value.String, value.ObjectID, value.Boolean, value.DateTime, value.Binary:
		return string(value.AppendGroupKey(nil, v, nil)), true
	}
	return "", false
}

// selects returns the key that an event has at a path; maybe is true if streams with other keys may have the event, too.
func selects(e *changestream.Event, path string, updates bool) (key string, maybe bool) {
	if !ofDocument(e.Type) {
		return "", true
	}
	root, rest, _ := strings.Cut(path, ".")
	doc := e.Key
	if root == "fullDocument" {
		if e.Type == "update" {
			return "", updates // it is looked up, or stored as an image
		}
		doc = e.FullDocument()
	}
	v := value.NewDocument(doc)
	for more := true; more; {
		var name string
		switch name, rest, more = strings.Cut(rest, "."); v.T {
		case value.Document:
			v = value.Lookup(v.Doc(), name)
		case value.Array:
			return "", true
		default:
			return "", false
		}
	}
	key, ok := selectKey(v)
	return key, !ok && !v.IsMissing() && v.T != value.Null && v.T != value.Document
}

// sortedBy has the items for the streams of one namespace that select by one path.
type sortedBy struct {
	sortKey
	streams int
	values  map[string]*selected
	maybe   []item // items that all of them have to check
	from    storage.Timestamp
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

func (s *Selection) sortKey(key string) sortKey { return sortKey{key, s.Path, s.updates} }

// enterSelected registers a stream with a selection, and returns the key that wakes it. f.mu must be held.
func (f *Feed) enterSelected(key string, s *Selection) (wait string) {
	at := f.now.Load().upTo
	by := f.mu.sorted[s.sortKey(key)]
	if by == nil {
		by = &sortedBy{sortKey: s.sortKey(key), values: map[string]*selected{}, from: at}
		f.mu.sorted[by.sortKey] = by
	}
	by.streams++
	sel := by.values[s.key]
	if sel == nil {
		sel = &selected{wait: fmt.Sprint(by.sortKey, "\x00", s.key), from: at}
		by.values[s.key] = sel
	}
	sel.streams++
	return sel.wait
}

// leaveSelected undoes enterSelected.
func (f *Feed) leaveSelected(key string, s *Selection) {
	by := f.mu.sorted[s.sortKey(key)]
	sel := by.values[s.key]
	if sel.streams--; sel.streams == 0 {
		delete(by.values, s.key)
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
		if cut > by.from {
			by.cut(cut)
		}
	}
}

func (by *sortedBy) add(f *Feed, it *item) {
	maybe := it.last != nil
	var last *selected
	for _, e := range it.events {
		if ofDocument(e.Type) && by.key != "" && by.key != e.DB && by.key != e.DB+"."+e.Coll {
			continue
		}
		key, also := selects(e, by.path, by.updates)
		maybe = maybe || also
		if sel := by.values[key]; sel != nil && !also && sel != last {
			if n := len(sel.items); n == 0 || sel.items[n-1].ts != it.ts {
				sel.items = append(sel.items, *it)
				f.wakeSoon(sel.wait)
			}
			last = sel
		}
	}
	if !maybe {
		return
	}
	by.maybe = append(by.maybe, *it)
	for _, sel := range by.values {
		f.wakeSoon(sel.wait)
	}
}

// cut drops what the window does not have any more.
func (by *sortedBy) cut(from storage.Timestamp) {
	by.from = from
	by.maybe = behind(by.maybe, from)
	for _, sel := range by.values {
		sel.items, sel.from = behind(sel.items, from), max(sel.from, from)
	}
}

func behind(items []item, ts storage.Timestamp) []item {
	w := window{items: items}
	rest, _ := w.after(ts)
	return append([]item(nil), rest...)
}

// selectedAfter returns the items of a selection after a time, and the time up to which they are complete; ok is false if
// some may be missing.
func (f *Feed) selectedAfter(key string, s *Selection, ts storage.Timestamp) (items []item, upTo storage.Timestamp, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	by := f.mu.sorted[s.sortKey(key)]
	sel := by.values[s.key]
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
