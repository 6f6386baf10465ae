package streams

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster/turns"
	"github.com/shoaldb/shoal/query/changestream"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

const caughtUpStep = 10 * time.Millisecond

// Start determines where a stream begins.
type Start struct {
	At    storage.Timestamp   // it begins after this time; ignored with a token
	Token *changestream.Token // the event to resume after; nil for none
	After bool                // the token was given as startAfter
	// Selection is a condition that the stream's events satisfy in addition to the filter; nil for none.
	Selection *changestream.Selection
}

// Stream is a position in the feed, with the events that pass a filter. One goroutine uses it at a time.
type Stream struct {
	feed      *Feed
	era       uint64 // the feed's, when the stream began
	filter    changestream.Filter
	key       string                  // the namespace, the database, or nothing for all
	wait      string                  // the key that wakes it
	selection *changestream.Selection // the condition on its events; nil for none
	asked     *asked                  // requests of a router for the position; nil if there are none
	cursor    int64                   // the id in these requests

	done   storage.Timestamp // everything up to here has been returned or skipped
	items  []item            // the next items, after done
	reach  storage.Timestamp // the value of done once items are used up
	events []*changestream.Event
	txn    *transaction
	resume *changestream.Token // still to be found; nil once it was
	within bool                // the event to be found is returned again: its stream continues within it
	ending *changestream.Event // whose invalidate is next
	ended  bool
	bill   turns.Bill
}

// Event is an element of a stream: an event, or the stream's own invalidate.
type Event struct {
	*changestream.Event
	Token      *changestream.Token
	Invalidate []byte // the document of an invalidate, nil for other events
}

// NewStream opens a stream.
func (f *Feed) NewStream(filter changestream.Filter, start Start) (*Stream, error) {
	s := &Stream{feed: f, filter: filter, done: start.At, bill: f.sleepers.NewBill()}
	switch {
	case filter.Coll != "":
		s.key = filter.DB + "." + filter.Coll
	default:
		s.key = filter.DB
	}
	if t := start.Token; t != nil {
		if t.FromInvalidate && !start.After {
			return nil, mongoerr.New(mongoerr.InvalidResumeToken, "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification.")
		}
		s.done = storage.Timestamp(t.ClusterTime) - 1
		if t.ClusterTime == 0 {
			s.done = 0
		}
		if t.Type == changestream.EventToken {
			s.resume, s.within = t.Before(), t.Fragment >= 0
		}
	}
	s.selection = start.Selection
	s.wait, s.era = f.enter(s.key, s.selection)
	if err := s.checkHistory(); err != nil {
		f.leave(s)
		return nil, err
	}
	return s, nil
}

// checkHistory returns an error if entries after the stream's position are gone.
func (s *Stream) checkHistory() error {
	if w := s.feed.now.Load(); s.done >= w.from {
		return nil
	}
	cut, err := s.feed.engine.OplogCut()
	if err == nil && s.done < cut {
		err = HistoryLost(s.done)
	}
	return err
}

// Close ends the stream.
func (s *Stream) Close() {
	if s.feed != nil {
		s.feed.leave(s)
		s.feed = nil
	}
}

// Ended reports whether the stream has returned its invalidate: nothing follows.
func (s *Stream) Ended() bool { return s.ended }

// Done returns the time up to which the stream has returned everything.
func (s *Stream) Done() storage.Timestamp { return s.done }

var errReplaced = mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted: the member's data was replaced by a snapshot")

// scanLimit limits how much a stream whose position is older than the window decodes by itself at a time.
const scanLimit = 1 << 20

// Next returns the stream's next event; ok is false if there is none yet.
func (s *Stream) Next(ctx context.Context) (ev Event, ok bool, err error) {
	for {
		if s.era != s.feed.era.Load() {
			return ev, false, *s.feed.ended.Load()
		}
		if s.ending != nil {
			t, doc := s.ending.Invalidate()
			ev = Event{s.ending, t, doc}
			s.ending, s.ended = nil, true
			return ev, true, nil
		}
		if s.ended {
			return ev, false, nil
		}
		for len(s.events) > 0 {
			e := s.events[0]
			if s.events = s.events[1:]; len(s.events) == 0 {
				s.events = nil
			}
			if pass, err := s.passes(e); err != nil || pass {
				return Event{e, e.Token, nil}, err == nil, err
			}
			if s.ending != nil {
				break
			}
		}
		if s.ending != nil {
			continue
		}
		if more, err := s.advance(ctx); err != nil || !more {
			return ev, false, err
		}
	}
}

// passes reports whether the stream returns an event: it passes the filter, and comes after the one resumed after.
//
// A stream that is resumed begins before the token's time and reads until it meets the token's own event, since one
// time can have many events (a transaction's). Invariant: no event is returned before the token was met. Hazard: an
// event of the stream after the token shows that the token's event does not occur in it, because the token belongs to
// another stream or another filter. Going on from there by the order of tokens alone was rejected: the client would
// take the stream for a continuation of its previous one, whose events in between would be lost silently. Rejected, too: taking the events of
// other namespaces for a sign. Whether such a stream can be opened would depend on who else writes to the server. A
// high-water mark represents no event: it only says that everything before its time was returned. It is a position by itself,
// and no event is searched for.
func (s *Stream) passes(e *changestream.Event) (bool, error) {
	if !s.filter.Passes(e) {
		return false, nil
	}
	if s.resume == nil {
		if s.filter.Invalidates(e) {
			s.ending = e
		}
		return true, nil
	}
	t := s.resume
	if t.FromInvalidate {
		if inv := e.Token.Invalidate(); inv.Compare(t) == 0 {
			s.resume = nil
			return false, nil
		}
	}
	switch c := e.Token.Compare(t); {
	case c == 0:
		s.resume = nil
		if s.filter.Invalidates(e) {
			s.ending = e
		}
		return s.within, nil
	case c < 0:
		return false, nil
	}
	return false, tokenNotFound(t)
}

func tokenNotFound(t *changestream.Token) error {
	return mongoerr.Newf(mongoerr.ChangeStreamFatalError, "cannot resume stream; the resume token was not found. %s", t.Data()).
		WithLabel(mongoerr.LabelNonResumableStream)
}

// advance gets the events of the next item; false if there is none yet.
func (s *Stream) advance(ctx context.Context) (bool, error) {
	if s.txn != nil {
		events, ok, err := s.feed.more(s.txn)
		if err != nil {
			return false, err
		}
		if s.events = events; !ok {
			s.done, s.txn = storage.Timestamp(s.txn.last.TS), nil
		}
		return true, nil
	}
	if len(s.items) == 0 {
		if more, err := s.fetch(ctx); err != nil || !more {
			return false, err
		}
		if len(s.items) == 0 {
			return true, nil
		}
	}
	it := s.items[0]
	if s.items = s.items[1:]; len(s.items) == 0 {
		s.items = nil // the window may have been replaced long ago
	}
	if it.err != nil {
		return false, it.err
	}
	if it.last != nil {
		var err error
		s.txn, err = s.feed.transaction(it.last)
		return true, err
	}
	s.events, s.done = it.events, it.ts
	return true, nil
}

// fetch gets the items after the stream's position: from the window, or from the oplog if the window begins later.
func (s *Stream) fetch(ctx context.Context) (more bool, err error) {
	if s.reach > s.done {
		s.done = s.reach
	}
	w := s.feed.now.Load()
	if s.done >= w.upTo {
		return false, nil
	}
	if s.selection != nil && s.resume == nil {
		if items, upTo, ok := s.feed.selectedAfter(s.key, s.selection, s.done); ok {
			s.items, s.reach = items, upTo
			return true, nil
		}
	}
	if items, ok := w.after(s.done); ok {
		s.items, s.reach = items, w.upTo
		return true, nil
	}
	items, upTo, err := s.feed.read(ctx, s.done, w.upTo, scanLimit, nil)
	if err == nil {
		err = s.checkHistory()
	}
	if err != nil {
		return false, err
	}
	s.items, s.reach = items, upTo
	return true, nil
}

// Turn reports whether the stream may look at what is new now. If not, Wait returns when it may.
func (s *Stream) Turn() bool { return s.bill.Turn() }

// Looked records the size of the reply that a look led to; 0 if it found nothing.
func (s *Stream) Looked(size int) { s.bill.Looked(size) }

// Wait returns once there may be something new for the stream and it is its turn, a router asks for its position, or ctx ends.
func (s *Stream) Wait(ctx context.Context) error {
	s.bill.Settle()
	var asks <-chan struct{}
	if s.asked != nil {
		asks = s.asked.now
	}
	paid, err := s.feed.wait(ctx, s.wait, s.feedSeen(), asks)
	s.bill.Paid(paid)
	return err
}

// Listen makes the stream learn when a router asks for its position, by the id of its cursor. first is true for the first
// call, before which requests may have been missed.
func (s *Stream) Listen(cursor int64) (first bool) {
	if s.asked != nil {
		return false
	}
	s.cursor, s.asked = cursor, s.feed.listen(cursor)
	return true
}

// AskedSince reports whether a router has asked for the stream's position later than the position that was last reported.
func (s *Stream) AskedSince(reported storage.Timestamp) bool {
	return s.asked != nil && s.asked.at.Load() > uint64(reported)
}

func (s *Stream) feedSeen() storage.Timestamp { return max(s.done, s.reach) }

// CatchUp waits until the feed has what is visible now, so that a stream returns at once what was committed before.
func (s *Stream) CatchUp(ctx context.Context) error {
	snap := s.feed.engine.MajoritySnapshot()
	at := snap.Timestamp()
	snap.Release()
	return s.feed.caughtUp(ctx, at)
}
