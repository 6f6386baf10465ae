package storage

import (
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// OplogPin keeps the oplog's entries after a given time, for a reader that must see each of them, such as a chunk
// migration. It holds until the oplog is maxPinned times its configured size; a slower reader loses its position,
// and learns of that from Check.
type OplogPin struct {
	e    *Engine
	from Timestamp
	lost bool
}

// maxPinned is the multiple of its configured size that a pinned oplog may grow to.
const maxPinned = 4

// PinOplog keeps the entries after from. It fails if some of them are already gone.
//
// What is gone is what this primary is about to truncate, and what the store says has been truncated: by another primary, or by an earlier process. The
// latter is in the store with the deletion itself, so it is right on every member, however it came by its oplog; a time before the first entry of an
// oplog that was never truncated can be pinned.
func (e *Engine) PinOplog(from Timestamp) (*OplogPin, error) {
	o := &e.oplog
	o.mu.Lock()
	defer o.mu.Unlock()
	if from < o.cut {
		return nil, positionLost(from)
	}
	if err := e.CheckOplog(from); err != nil {
		return nil, err
	}
	if o.pins == nil {
		o.pins = make(map[*OplogPin]struct{})
	}
	p := &OplogPin{e: e, from: from}
	o.pins[p] = struct{}{}
	return p, nil
}

// CheckOplog returns an error if entries after a time have been deleted. A reader that calls it after a read has read all that there were.
func (e *Engine) CheckOplog(after Timestamp) error {
	cut, err := e.OplogCut()
	if err == nil && after < cut {
		err = positionLost(after)
	}
	return err
}

func positionLost(at Timestamp) error {
	return mongoerr.Newf(mongoerr.CappedPositionLost, "oplog entries after %v have been deleted", at)
}

// Check returns an error if entries after the pin's time have been deleted. A reader calls it after each read.
//
// It asks the store, whose cut is written with the deletion. A cut that has only been decided (noteCut) may come to nothing, as its commit fails when the primary steps down; and a member that
// is no longer the primary applies the truncations of another one, which knows nothing of its pins.
func (p *OplogPin) Check() error {
	p.e.oplog.mu.Lock()
	defer p.e.oplog.mu.Unlock()
	return p.check()
}

// check is Check with the oplog's mu held.
func (p *OplogPin) check() error {
	if p.lost {
		return positionLost(p.from)
	}
	return p.e.CheckOplog(p.from)
}

// Advance releases the entries up to a time.
func (p *OplogPin) Advance(to Timestamp) {
	p.e.oplog.mu.Lock()
	defer p.e.oplog.mu.Unlock()
	p.lost = mongoerr.CodeOf(p.check()) == mongoerr.CappedPositionLost // what was lost before stays lost
	p.from = max(p.from, to)
}

// Release ends the pin. Releasing twice is harmless.
func (p *OplogPin) Release() {
	p.e.oplog.mu.Lock()
	defer p.e.oplog.mu.Unlock()
	delete(p.e.oplog.pins, p)
}

// OplogHold keeps the oplog's entries after a given time however large the oplog is. It is for state that is stored
// after the write that its entry describes, and that would be lost with the entry. The oplog's size is then a soft
// limit: a holder that blocks a truncation is asked to store what it has, and to advance.
//
// Invariant: what a holder has not stored is in the oplog. Hazard: the cut is decided before the entries are deleted, so a hold that is
// compared only when it is decided could be passed meanwhile; noteCut compares under the mutex with which the cut is recorded. Rejected: a pin,
// which a truncation ignores when the disk is short; a reader behind a lost pin gets an error, but state that is lost with its entries is lost
// silently. Rejected, too: storing with every write. What is held changes with each retryable write, and would double it.
type OplogHold struct {
	e     *Engine
	asked chan struct{}
	from  Timestamp // guarded by the oplog's mu, like short
	short bool      // a truncation is waiting for it
}

// HoldOplog keeps all entries, until the hold is set to a time. It lasts as long as the engine.
func (e *Engine) HoldOplog() *OplogHold {
	o := &e.oplog
	o.mu.Lock()
	defer o.mu.Unlock()
	h := &OplogHold{e: e, asked: make(chan struct{}, 1)}
	o.holds = append(o.holds, h)
	return h
}

// Asked returns a channel that receives when a truncation has left entries because of the hold.
func (h *OplogHold) Asked() <-chan struct{} { return h.asked }

// Set moves the hold: the entries up to a time may be deleted. A truncation that waits for it continues.
func (h *OplogHold) Set(to Timestamp) {
	o := &h.e.oplog
	o.mu.Lock()
	defer o.mu.Unlock()
	if h.short && to > h.from {
		h.short = false
		h.e.wakeCollector()
	}
	h.from = to
}

// askHolders asks the holders that have not advanced past limit to do so.
func (o *oplogState) askHolders(limit Timestamp) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range o.holds {
		if h.from > limit {
			continue
		}
		h.short = true
		select {
		case h.asked <- struct{}{}:
		default:
		}
	}
}

// mayCut returns the time up to which entries may be deleted; with force, pins are ignored, but not holds.
func (o *oplogState) mayCut(force bool) Timestamp {
	o.mu.Lock()
	defer o.mu.Unlock()
	limit := MaxTimestamp
	for _, h := range o.holds {
		limit = min(limit, h.from)
	}
	for p := range o.pins {
		if !force {
			limit = min(limit, p.from)
		}
	}
	return limit
}

// pinned returns the time up to which no pin keeps entries.
func (o *oplogState) pinned() Timestamp {
	o.mu.Lock()
	defer o.mu.Unlock()
	limit := MaxTimestamp
	for p := range o.pins {
		limit = min(limit, p.from)
	}
	return limit
}

// noteCut records that the entries up to a time will be deleted, so that none of them is pinned any more; undo forgets that if they are not. Without force it refuses
// if there is a pin before it; if there is such a hold it refuses in any case. (Truncations exclude each other.)
//
// Pins before the cut are not lost yet: they are when the deletion is committed, of which they learn from the store. After undo, the deletion may still happen: a unit whose
// commit failed because the primary stepped down may be in the log of its successor. A pin that was taken in between is then lost like any pin on a member that is not the primary.
func (o *oplogState) noteCut(cut Timestamp, force bool) (undo func(), ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range o.holds {
		if h.from < cut {
			return nil, false
		}
	}
	for p := range o.pins {
		if p.from < cut && !force {
			return nil, false
		}
	}
	before := o.cut
	o.cut = max(o.cut, cut)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.cut = before
	}, true
}
