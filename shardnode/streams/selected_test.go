package streams

import (
	"testing"

	"github.com/shoaldb/shoal/cluster/turns"
	"github.com/shoaldb/shoal/query/changestream"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
)

// insertOf returns the item of an insert.
func insertOf(t *testing.T, ts storage.Timestamp, to int32) item {
	t.Helper()
	id := value.F("_id", value.NewInt64(int64(ts)))
	it := decode(value.Doc(value.F("op", value.NewString("i")), value.F("ns", value.NewString("d.c")), value.F("ts", ts.Value()),
		value.F("o", value.NewDocument(value.Doc(id, value.F("to", value.NewInt32(to))))), value.F("o2", value.NewDocument(value.Doc(id)))))
	if it == nil {
		t.Fatal("an insert has no event")
	}
	it.ts = ts
	return *it
}

// A selection remains complete from the same time on, however much is written to others: streams that had waited meanwhile read the oplog, a
// thousand of them for minutes. It becomes incomplete when its own items, or items that every stream has to check, are dropped.
func TestSelectionsOutlastTheWindow(t *testing.T) {
	f := &Feed{turns: turns.New()}
	f.sleepers = turns.NewSleepers(f.turns)
	f.mu.sorted = map[sortKey]*sortedBy{}
	f.now.Store(&window{from: 10, upTo: 10})
	pipeline := value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(value.F("$changeStream", value.NewDocument(value.Doc())))),
		value.NewDocument(value.Doc(value.F("$match", value.NewDocument(value.Doc(value.F("fullDocument.to", value.NewInt32(1)))))))))
	s := changestream.SelectionOf(pipeline, false)
	if s == nil {
		t.Fatal("the pipeline selects nothing")
	}
	f.enterSelected("d.c", s)
	read := func(upTo, cut storage.Timestamp, items ...item) {
		f.now.Store(&window{from: cut, upTo: upTo})
		f.sort(items, cut)
	}
	expect := func(what string, after storage.Timestamp, ok bool, want ...storage.Timestamp) {
		t.Helper()
		items, upTo, complete := f.selectedAfter("d.c", s, after)
		if complete != ok || ok && (len(items) != len(want) || upTo != f.now.Load().upTo) {
			t.Errorf("%s: %d items up to %d, %v", what, len(items), upTo, complete)
		}
		for i := range items {
			if ok && items[i].ts != want[i] {
				t.Errorf("%s: item %d is of %d, want %d", what, i, items[i].ts, want[i])
			}
		}
	}
	expect("before the stream", 9, false)
	read(100, 80, insertOf(t, 20, 2), insertOf(t, 30, 3), insertOf(t, 90, 2))
	expect("others' items are dropped", 10, true)
	read(200, 110, insertOf(t, 120, 1))
	expect("one of its own", 10, true, 120)
	read(300, 210, insertOf(t, 250, 2))
	expect("its own is dropped", 119, false)
	expect("behind its own", 120, true)
	note := insertOf(t, 310, 2)
	note.last = &changestream.Entry{}
	read(400, 290, note)
	expect("one for all", 120, true, 310)
	read(500, 410)
	expect("one for all is dropped", 309, false)
	expect("behind it", 310, true)
}

// A batch of inserts is one item, of which each selection has its own events: streams do not look at those of others.
func TestSelectionsOfABatch(t *testing.T) {
	o := newOplog(t, decode)
	pipeline := func(to int32) value.Value {
		return value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(value.F("$changeStream", value.NewDocument(value.Doc())))),
			value.NewDocument(value.Doc(value.F("$match", value.NewDocument(value.Doc(value.F("fullDocument.to", value.NewInt32(to)))))))))
	}
	streams := make([]*Stream, 3)
	for i := range streams {
		streams[i] = o.open(Start{At: o.engine.Visible(), Selection: changestream.SelectionOf(pipeline(int32(i)), false)})
	}
	var ops []value.Value
	for i := range int32(7) {
		doc := value.NewDocument(value.Doc(value.F("_id", value.NewInt32(i)), value.F("to", value.NewInt32(i%3))))
		ops = append(ops, value.NewDocument(value.Doc(value.F("op", value.NewString("i")), value.F("ns", value.NewString("d.c")), value.F("o", doc))))
	}
	u := o.engine.NewUnitOfWork(nil)
	defer u.Rollback()
	u.Oplog(storage.OplogEntry{Op: 'c', NS: "admin.$cmd", O: value.Doc(value.F("applyOps", value.NewArray(value.ArrayOf(ops...)))), StmtID: -1})
	if _, err := o.engine.Commit(t.Context(), u, true); err != nil {
		t.Fatal(err)
	}
	for i, s := range streams {
		for id := int32(i); id < 7; id += 3 {
			o.expect("an event of the selection", s, id, 0)
		}
		o.expect("behind it", s, -1, 0)
	}
}
