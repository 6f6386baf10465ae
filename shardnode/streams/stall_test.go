package streams

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/changestream"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// oplog is an engine with a feed of its oplog.
type oplog struct {
	t      *testing.T
	engine *storage.Engine
	feed   *Feed
}

// newOplog returns an oplog whose feed decodes with a function.
func newOplog(t *testing.T, decode func(doc []byte) *item) *oplog {
	t.Helper()
	engine, err := storage.Open(storage.Options{Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	o := &oplog{t, engine, NewFeed(engine, nil)}
	o.feed.decode = decode
	t.Cleanup(func() {
		o.feed.Close()
		_ = engine.Close()
	})
	return o
}

// insert logs an insert, and returns its time.
func (o *oplog) insert(id int32) storage.Timestamp {
	o.t.Helper()
	u := o.engine.NewUnitOfWork(nil)
	defer u.Rollback()
	u.Oplog(storage.OplogEntry{Op: 'i', NS: "d.c", O: value.Doc(value.F("_id", value.NewInt32(id))), StmtID: -1})
	ts, err := o.engine.Commit(o.t.Context(), u, true)
	if err != nil {
		o.t.Fatal(err)
	}
	return ts
}

func (o *oplog) open(start Start) *Stream {
	o.t.Helper()
	s, err := o.feed.NewStream(changestream.Filter{DB: "d", Coll: "c"}, start)
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(s.Close)
	return s
}

// expect checks the id of the next event, -1 for none, or the code of the error.
func (o *oplog) expect(what string, s *Stream, id int32, code mongoerr.Code) (token *changestream.Token) {
	o.t.Helper()
	if err := s.CatchUp(o.t.Context()); err != nil {
		o.t.Errorf("%s: %v", what, err)
	}
	ev, ok, err := s.Next(o.t.Context())
	switch {
	case code != 0:
		if err == nil || mongoerr.CodeOf(err) != code {
			o.t.Errorf("%s: %v, want code %d", what, err, code)
		}
	case err != nil:
		o.t.Errorf("%s: %v", what, err)
	case ok != (id >= 0):
		o.t.Errorf("%s: an event %v, want %d", what, ok, id)
	case ok:
		if got := value.Lookup(ev.Key, "_id"); got.Int64() != int64(id) {
			o.t.Errorf("%s: %v, want %d", what, got, id)
		}
		return ev.Token
	}
	return nil
}

func (o *oplog) reader() *reader {
	o.feed.mu.Lock()
	defer o.feed.mu.Unlock()
	return o.feed.mu.reader
}

func idOf(doc []byte) int64 { return value.Lookup(value.LookupDoc(doc, "o"), "_id").Int64() }

// A reader that does not get past an entry ends its streams instead of letting them wait, and another one continues after the entry.
// Streams that are resumed before it end with an error, too. A reader that merely has nothing to do is left alone.
func TestReaderThatStalls(t *testing.T) {
	stuck, free := make(chan struct{}), make(chan struct{})
	var tried atomic.Bool
	o := newOplog(t, func(doc []byte) *item {
		if idOf(doc) == 2 {
			if tried.Swap(true) {
				t.Error("the entry is tried again")
				return nil
			}
			close(stuck)
			<-free
		}
		return decode(doc)
	})
	a := o.open(Start{At: o.engine.Visible()})
	o.insert(1)
	token := o.expect("an entry that can be read", a, 1, 0)
	first := o.reader()
	for range 2 * stallLimit {
		if err := o.feed.check(first); err != nil {
			t.Fatalf("a reader without work: %v", err)
		}
	}
	o.insert(2)
	<-stuck
	o.insert(3)
	for range stallLimit + 1 {
		_ = o.feed.check(first)
	}
	if o.reader() == first {
		t.Fatal("a reader that stalls is not replaced")
	}
	o.expect("an open stream", a, 0, mongoerr.RetryChangeStream)
	b := o.open(Start{At: o.engine.Visible()})
	o.expect("a new stream", b, -1, 0)
	o.insert(4)
	o.expect("a new stream, behind the entry", b, 4, 0)
	o.expect("a stream that is resumed before the entry", o.open(Start{Token: token}), 0, mongoerr.ChangeStreamFatalError)
	close(free)
	o.insert(5)
	o.expect("when the first reader has ended", b, 5, 0)
}

// An entry that cannot be decoded ends the streams that reach it, and nothing else.
func TestEntryThatCannotBeDecoded(t *testing.T) {
	o := newOplog(t, func(doc []byte) *item {
		if idOf(doc) == 2 {
			panic("damaged")
		}
		return decode(doc)
	})
	a := o.open(Start{At: o.engine.Visible()})
	o.insert(1)
	o.insert(2)
	at := o.insert(3)
	o.expect("before the entry", a, 1, 0)
	o.expect("at the entry", a, 0, mongoerr.ChangeStreamFatalError)
	b := o.open(Start{At: at})
	o.insert(4)
	o.expect("behind it", b, 4, 0)
}

// A reader that has failed is replaced when a stream is opened, although others, whose clients do not ask, are still open.
func TestReaderThatFailed(t *testing.T) {
	o := newOplog(t, decode)
	a := o.open(Start{At: o.engine.Visible()})
	failed := mongoerr.New(mongoerr.DataCorruptionDetected, "unreadable")
	ctx := t.Context()
	o.reader().stop()
	o.feed.publish(ctx, o.feed.now.Load(), nil, 0, failed)
	if err := a.Wait(ctx); mongoerr.CodeOf(err) != mongoerr.DataCorruptionDetected {
		t.Errorf("the open stream waits: %v", err)
	}
	b := o.open(Start{At: o.engine.Visible()})
	o.insert(1)
	o.expect("a new stream", b, 1, 0)
	o.expect("the open stream", a, 0, mongoerr.DataCorruptionDetected)
}

// A router's request for a position reaches its stream, although a transaction of several entries was read with it.
func TestPositionIsAskedForBesideATransaction(t *testing.T) {
	o := newOplog(t, decode)
	s := o.open(Start{At: o.engine.Visible()})
	s.Listen(7)
	o.feed.publish(t.Context(), o.feed.now.Load(), []item{{ts: 5, last: &changestream.Entry{}}, {ts: 6, note: 7}}, 0, nil)
	if !s.AskedSince(5) {
		t.Error("the stream does not know that it is asked")
	}
}

// A node's streams have the events of documents that are nested as deep as documents may be.
func TestNestedDocumentsDoNotStall(t *testing.T) {
	o := newOplog(t, decode)
	s := o.open(Start{At: o.engine.Visible()})
	u := o.engine.NewUnitOfWork(nil)
	defer u.Rollback()
	id := value.NewInt32(1)
	for range 90 {
		id = value.NewDocument(value.Doc(value.F("a", value.NewArray(value.ArrayOf(id)))))
	}
	u.Oplog(storage.OplogEntry{Op: 'i', NS: "d.c", O: value.Doc(value.F("_id", id)), StmtID: -1})
	if _, err := o.engine.Commit(t.Context(), u, true); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the reader gets past a nested document", func() bool { return o.feed.now.Load().upTo >= o.engine.Visible() })
	if _, ok, err := s.Next(t.Context()); err != nil || !ok {
		t.Errorf("its event: %v, %v", ok, err)
	}
}

// Catching up waits for a reader that is still decoding what is visible.
func TestCatchUpWaitsForTheReader(t *testing.T) {
	reached, release := make(chan struct{}), make(chan struct{})
	o := newOplog(t, func(doc []byte) *item {
		if idOf(doc) == 2 {
			close(reached)
			<-release
		}
		return decode(doc)
	})
	s := o.open(Start{At: o.engine.Visible()})
	o.insert(1)
	o.expect("the first", s, 1, 0)
	at := o.insert(2)
	<-reached
	caught := make(chan error, 1)
	go func() { caught <- s.CatchUp(t.Context()) }()
	select {
	case err := <-caught:
		t.Errorf("before the entry was decoded: %v", err)
		caught <- err
	case <-time.After(50 * time.Millisecond): // it must not end
	}
	close(release)
	if err := <-caught; err != nil || o.feed.now.Load().upTo < at {
		t.Errorf("at %d of %d: %v", o.feed.now.Load().upTo, at, err)
	}
}
