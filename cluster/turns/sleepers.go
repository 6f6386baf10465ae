package turns

import (
	"context"
	"sync"
)

// Sleepers manages streams that wait for new events, grouped by keys: the streams of a key are woken together, when it
// is their turn.
type Sleepers struct {
	turns *Turns
	mu    struct {
		sync.Mutex
		keys map[string]*sleepers
	}
}

// sleepers are the streams of one key.
type sleepers struct {
	streams int           // that are open
	asleep  int           // that wait for ch
	ch      chan struct{} // closed when they are to look; nil while none waits
	queued  bool          // they look when it is their turn
}

// NewSleepers returns Sleepers without streams.
func NewSleepers(t *Turns) *Sleepers {
	s := &Sleepers{turns: t}
	s.mu.keys = map[string]*sleepers{}
	return s
}

// Enter counts one more stream of a key.
func (s *Sleepers) Enter(key string) {
	s.mu.Lock()
	s.of(key).streams++
	s.mu.Unlock()
}

// Leave undoes Enter. The last one for a key wakes all that still wait for it.
func (s *Sleepers) Leave(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.of(key); w.streams > 1 {
		w.streams--
		return
	}
	s.wake(key)
	delete(s.mu.keys, key)
}

// of returns the streams of a key. s.mu must be held.
func (s *Sleepers) of(key string) *sleepers {
	w := s.mu.keys[key]
	if w == nil {
		w = &sleepers{}
		s.mu.keys[key] = w
	}
	return w
}

// Soon makes the streams of a key check for new events: now, or when it is their turn.
func (s *Sleepers) Soon(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.soon(key)
}

// SoonWhere is Soon for all keys for which f returns true.
func (s *Sleepers) SoonWhere(f func(key string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.mu.keys {
		if f(key) {
			s.soon(key)
		}
	}
}

func (s *Sleepers) soon(key string) {
	w := s.mu.keys[key]
	if w == nil || w.ch == nil || w.queued {
		return
	}
	cost := w.asleep * (Look + Answer)
	if s.turns.Open(cost) {
		s.wake(key)
		return
	}
	w.queued = true
	s.turns.Queue(cost, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.mu.keys[key] == w && w.queued {
			s.wake(key)
		}
	})
}

// NowWhere makes the streams of all keys for which f returns true check at once, without waiting for a turn. It is for events
// that concern all of them.
func (s *Sleepers) NowWhere(f func(key string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.mu.keys {
		if f(key) {
			s.wake(key)
		}
	}
}

// wake ends the wait of a key's streams, which pay for an answer in advance: otherwise all queued streams would be woken before the
// first has answered. s.mu must be held.
func (s *Sleepers) wake(key string) {
	w := s.mu.keys[key]
	w.queued = false
	if w.ch != nil {
		s.turns.Spend(w.asleep * (Look + Answer))
		close(w.ch)
		w.ch, w.asleep = nil, 0
	}
}

// Wait returns when the key is woken, when asks is ready, or when ctx ends; at once if isNew returns true and it is the caller's
// turn. isNew is called under a lock that Soon takes, so that events that are published before Soon are not missed. paid reports
// that the key was woken and has paid for an answer.
func (s *Sleepers) Wait(ctx context.Context, key string, asks <-chan struct{}, isNew func() bool) (paid bool, err error) {
	s.mu.Lock()
	missed := isNew()
	if missed && s.turns.Open(Look+Answer) {
		s.mu.Unlock()
		return false, nil
	}
	w := s.of(key)
	if w.ch == nil {
		w.ch = make(chan struct{})
	}
	ch := w.ch
	w.asleep++
	if missed {
		s.soon(key)
	}
	s.mu.Unlock()
	select {
	case <-ch:
		return true, nil
	case <-asks:
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	if w.ch == ch {
		w.asleep--
	}
	s.mu.Unlock()
	return false, err
}

// Bill accounts for the looks of one stream. One goroutine uses it at a time.
type Bill struct {
	turns *Turns
	owed  int
	paid  bool // for the next answer, when it was woken
}

// NewBill returns the bill of one more stream.
func (s *Sleepers) NewBill() Bill { return Bill{turns: s.turns} }

// Paid records the result of Wait.
func (b *Bill) Paid(paid bool) { b.paid = paid }

// Looked records a look, with the size of the resulting answer; 0 if there was none.
func (b *Bill) Looked(size int) {
	b.owed += Look
	if size > 0 {
		b.owed += Answer + size/Bytes
	}
	if b.paid {
		b.owed -= Look + Answer
	}
	b.paid = false
}

// Settle charges the outstanding costs.
func (b *Bill) Settle() {
	if b.owed != 0 {
		b.turns.Spend(b.owed)
		b.owed = 0
	}
}

// Turn settles the bill, and reports whether the stream may look now.
func (b *Bill) Turn() bool {
	b.Settle()
	return b.turns.Open(Look + Answer)
}
