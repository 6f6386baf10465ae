package streams

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// All streams depend on one reader, and a stream that waits for a stalled reader looks like one without events. So the
// reader is supervised: if it works on one entry of the oplog for stallLimit checks, though a majority has later ones, the streams end
// with an error, and another reader begins after that entry. An entry that cannot be decoded ends only the streams that reach it.

// reader is the state of one run of the feed's reader.
type reader struct {
	stop    context.CancelFunc
	release func() // the feed no longer waits for it

	at   atomic.Uint64 // the entry that it last began to decode
	seen uint64        // at the last check, with the number of checks since it changed
	idle int
}

// reads records which entry is decoded next.
func (r *reader) reads(ts storage.Timestamp) {
	if r != nil {
		r.at.Store(uint64(ts))
	}
}

const (
	stallCheck = time.Second
	// stallLimit is far above what the largest entry takes on a busy machine. Checks are counted, not seconds, so that a process
	// that was suspended is not taken for one that stalls.
	stallLimit = 30
)

// supervise checks a reader until ctx ends.
func (f *Feed) supervise(ctx context.Context, r *reader) {
	t := time.NewTicker(stallCheck)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if err := f.check(r); err != nil {
				f.report("The reader of the oplog for change streams makes no progress", err)
			}
		}
	}
}

// check replaces a reader that has been at one entry for stallLimit checks, and returns the error with which the streams end then.
func (f *Feed) check(r *reader) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := r.at.Load()
	behind := f.now.Load().upTo < min(f.engine.Durable(), f.engine.Visible())
	if f.mu.reader != r || at != r.seen || !behind || f.failure() != nil {
		r.seen, r.idle = at, 0
		return nil
	}
	if r.idle++; r.idle < stallLimit {
		return nil
	}
	ts := storage.Timestamp(at)
	err := mongoerr.Newf(mongoerr.RetryChangeStream, "change streams were ended: their reader does not get past the oplog entry at %v", ts)
	f.skipped.add(ts)
	r.release()
	f.renew(err)
	return err
}

func (f *Feed) report(msg string, err error) {
	if f.warn != nil {
		f.warn(msg, err)
	}
}

// skippedEntries are the times of the entries at which a reader has stalled. Streams that are resumed before one of them do not try it again.
type skippedEntries struct {
	times atomic.Pointer[map[storage.Timestamp]bool]
}

func (s *skippedEntries) has(ts storage.Timestamp) bool {
	m := s.times.Load()
	return m != nil && (*m)[ts]
}

// add is called by one goroutine at a time.
func (s *skippedEntries) add(ts storage.Timestamp) {
	next := map[storage.Timestamp]bool{ts: true}
	if m := s.times.Load(); m != nil {
		maps.Copy(next, *m)
	}
	s.times.Store(&next)
}

// item decodes an entry; nil if it has no events. What cannot be decoded is an item with an error: the streams that reach it end,
// and the others continue.
func (f *Feed) item(ts storage.Timestamp, doc []byte) (it *item) {
	if f.skipped.has(ts) {
		return &item{ts: ts, err: undecodable(ts, "it takes too long")}
	}
	defer func() {
		if r := recover(); r != nil {
			it = &item{ts: ts, err: undecodable(ts, fmt.Sprint(r))}
			f.report("An oplog entry could not be decoded for change streams", it.err)
		}
	}()
	if it = f.decode(doc); it != nil {
		it.ts = ts
	}
	return it
}

// undecodable returns the error of the streams that reach an entry that cannot be decoded.
func undecodable(ts storage.Timestamp, why string) error {
	return mongoerr.Newf(mongoerr.ChangeStreamFatalError, "the oplog entry at %v cannot be decoded: %s", ts, why).WithLabel(mongoerr.LabelNonResumableStream)
}
