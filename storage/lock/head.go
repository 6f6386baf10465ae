package lock

import (
	"sync"
	"sync/atomic"
)

// A stripe counts holders of intent locks: bits 0–30 IS, 31–61 IX. closed makes all lockers use the head's mutex.
const (
	oneIS   = uint64(1)
	oneIX   = uint64(1) << 31
	maskIS  = oneIX - 1
	closed  = uint64(1) << 63
	stripes = 8 // of heads that every operation passes
)

// stripe fills a cache line of its own, so that cores do not contend for it.
type stripe struct {
	state atomic.Uint64
	_     [56]byte
}

// head is the lock of one resource.
type head struct {
	res     Resource
	stripes []stripe
	mu      struct {
		sync.Mutex
		full   [modes]int // holders of S and X
		queue  []*waiter
		closed bool
		// retired means that the manager has another head for the resource, or none. The gate stays closed.
		retired bool
	}
}

// waiter is a request in the queue. ready is closed when it is granted.
type waiter struct {
	want, held Mode // held: what the same locker holds already
	stripe     uint32
	ready      chan struct{}
	granted    bool
}

func newHead(res Resource) *head {
	n := 1
	if res.Kind < Database {
		n = stripes
	}
	return &head{res: res, stripes: make([]stripe, n)}
}

func (h *head) stripe(i uint32) *stripe { return &h.stripes[int(i)%len(h.stripes)] }

func unit(m Mode) uint64 {
	if m == IX {
		return oneIX
	}
	return oneIS
}

// close stops the fast path. The counts of the stripes do not change until open. h.mu must be held.
func (h *head) close() {
	if !h.mu.closed {
		h.mu.closed = true
		for i := range h.stripes {
			h.stripes[i].state.Or(closed)
		}
	}
}

// openIfIdle re-enables the fast path if no locker holds or waits for a full lock. h.mu must be held.
func (h *head) openIfIdle() {
	if h.mu.closed && len(h.mu.queue) == 0 && h.mu.full[S] == 0 && h.mu.full[X] == 0 {
		h.mu.closed = false
		for i := range h.stripes {
			h.stripes[i].state.And(^closed)
		}
	}
}

// heldByOthers returns the set of modes that lockers other than the holder of `own` hold. h.mu must be held, with the gate closed.
func (h *head) heldByOthers(own Mode) (set uint8) {
	var n [modes]int
	n[S], n[X] = h.mu.full[S], h.mu.full[X]
	for i := range h.stripes {
		s := h.stripes[i].state.Load()
		n[IS] += int(s & maskIS)
		n[IX] += int(s &^ closed >> 31)
	}
	if own != None {
		n[own]--
	}
	for m := IS; m <= X; m++ {
		if n[m] > 0 {
			set |= 1 << m
		}
	}
	return set
}

// count adds n holders of a mode. h.mu must be held, with the gate closed.
func (h *head) count(m Mode, i uint32, n int) {
	switch m {
	case S, X:
		h.mu.full[m] += n
	case IS, IX:
		h.stripe(i).state.Add(uint64(n) * unit(m))
	}
}

// retire takes the head out of use if it has no holders and no waiters.
func (h *head) retire() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.close()
	h.mu.retired = len(h.mu.queue) == 0 && h.heldByOthers(None) == 0
	if !h.mu.retired {
		h.openIfIdle()
	}
	return h.mu.retired
}

// acquire grants the request at once, or returns the waiter that was queued; ok is false if the head is retired.
func (h *head) acquire(want, held Mode, i uint32) (queued *waiter, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.retired {
		return nil, false
	}
	h.close()
	w := &waiter{want: want, held: held, stripe: i}
	if (held != None || len(h.mu.queue) == 0) && h.grant(w) {
		h.openIfIdle()
		return nil, true
	}
	w.ready = make(chan struct{})
	at := len(h.mu.queue)
	if held != None {
		for at = 0; at < len(h.mu.queue) && h.mu.queue[at].held != None; at++ {
		}
	}
	h.mu.queue = append(h.mu.queue, nil)
	copy(h.mu.queue[at+1:], h.mu.queue[at:])
	h.mu.queue[at] = w
	return w, true
}

// grant grants w its mode unless it conflicts with other holders. h.mu must be held, with the gate closed.
func (h *head) grant(w *waiter) bool {
	if h.heldByOthers(w.held)&conflicts[w.want] != 0 {
		return false
	}
	h.count(w.held, w.stripe, -1)
	h.count(w.want, w.stripe, 1)
	w.granted = true
	return true
}

// release gives up one hold and wakes the waiters that can proceed.
func (h *head) release(m Mode, i uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.close()
	h.count(m, i, -1)
	h.wake()
}

// wake grants requests from the front of the queue as long as that is possible. h.mu must be held, with the gate
// closed.
func (h *head) wake() {
	n := 0
	for n < len(h.mu.queue) && h.grant(h.mu.queue[n]) {
		close(h.mu.queue[n].ready)
		h.mu.queue[n] = nil
		n++
	}
	h.mu.queue = h.mu.queue[n:]
	h.openIfIdle()
}

// abandon removes a waiter from the queue; granted reports that the lock was granted first.
func (h *head) abandon(w *waiter) (granted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.granted {
		return true
	}
	for i, q := range h.mu.queue {
		if q == w {
			h.mu.queue = append(h.mu.queue[:i], h.mu.queue[i+1:]...)
			break
		}
	}
	h.wake() // later waiters may have waited only for this one
	return false
}
