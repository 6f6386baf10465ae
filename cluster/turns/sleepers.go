package turns

import (
	"context"
	"sync"
)

// Sleepers are streams that wait for something new, by keys: those of a key are woken together, when it is their turn.
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

// NewSleepers returns nobody.
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

// Leave is the reverse of Enter. The last one of a key wakes whoever still waits for it.
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

// Soon has the streams of a key look at what is new: now, or when it is their turn.
func (s *Sleepers) Soon(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.soon(key)
}

// SoonWhere is Soon for all keys that f picks.
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

// NowWhere has the streams of all keys that f picks look at once, whatever their turn: something has happened to all of them.
func (s *Sleepers) NowWhere(f func(key string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.mu.keys {
		if f(key) {
			s.wake(key)
		}
	}
}

// wake ends the wait of a key's streams, which pay for an answer beforehand: else all that queue would be woken before the first has
// answered. s.mu must be held.
func (s *Sleepers) wake(key string) {
	w := s.mu.keys[key]
	w.queued = false
	if w.ch != nil {
		s.turns.Spend(w.asleep * (Look + Answer))
		close(w.ch)
		w.ch, w.asleep = nil, 0
	}
}

// Wait returns when the key is woken, when asks gives something, or ctx ends; without waiting where there is something new and it is
// the caller's turn. isNew is asked under a lock that Soon takes: what is made known before Soon is not missed. paid says that the
// key was woken, and has paid for an answer.
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

// Bill is what one stream owes for its looks. One goroutine uses it at a time.
type Bill struct {
	turns *Turns
	owed  int
	paid  bool // for the next answer, when it was woken
}

// NewBill returns the bill of one more stream.
func (s *Sleepers) NewBill() Bill { return Bill{turns: s.turns} }

// Paid notes what Wait said.
func (b *Bill) Paid(paid bool) { b.paid = paid }

// Looked notes a look: the size of the answer that it led to, 0 where it found nothing.
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

// Settle pays what is owed.
func (b *Bill) Settle() {
	if b.owed != 0 {
		b.turns.Spend(b.owed)
		b.owed = 0
	}
}

// Turn settles, and reports whether the stream may look now.
func (b *Bill) Turn() bool {
	b.Settle()
	return b.turns.Open(Look + Answer)
}
