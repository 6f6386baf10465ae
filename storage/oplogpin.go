package storage

import (
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// OplogPin keeps the entries of the oplog behind a time, for a reader who has to see each of them: a chunk migration. It
// holds as long as the oplog is not maxPinned times as large as it may be; who is slower than that has lost its place, and
// learns of it from Check.
type OplogPin struct {
	e    *Engine
	from Timestamp
	lost bool
}

// maxPinned is how many times its size the oplog may grow to because somebody has pinned it.
const maxPinned = 4

// PinOplog keeps the entries behind from. It is an error where some of them are gone.
func (e *Engine) PinOplog(from Timestamp) (*OplogPin, error) {
	o := &e.oplog
	o.mu.Lock()
	defer o.mu.Unlock()
	if from < o.cut {
		return nil, positionLost(from)
	}
	if o.pins == nil {
		o.pins = make(map[*OplogPin]struct{})
	}
	p := &OplogPin{e: e, from: from}
	o.pins[p] = struct{}{}
	return p, nil
}

func positionLost(at Timestamp) error {
	return mongoerr.Newf(mongoerr.CappedPositionLost, "the entries of the oplog behind %v have been deleted", at)
}

// Check is an error where entries behind the pin's time have been deleted. Who has read some asks behind the read.
func (p *OplogPin) Check() error {
	p.e.oplog.mu.Lock()
	defer p.e.oplog.mu.Unlock()
	if p.lost {
		return positionLost(p.from)
	}
	return nil
}

// Advance lets go of the entries up to a time.
func (p *OplogPin) Advance(to Timestamp) {
	p.e.oplog.mu.Lock()
	defer p.e.oplog.mu.Unlock()
	p.from = max(p.from, to)
}

// Release lets go of all. Releasing twice is harmless.
func (p *OplogPin) Release() {
	p.e.oplog.mu.Lock()
	defer p.e.oplog.mu.Unlock()
	delete(p.e.oplog.pins, p)
}

// mayCut is the time up to which entries may be deleted; force passes the pins over.
func (o *oplogState) mayCut(force bool) Timestamp {
	o.mu.Lock()
	defer o.mu.Unlock()
	limit := MaxTimestamp
	for p := range o.pins {
		if !force {
			limit = min(limit, p.from)
		}
	}
	return limit
}

// noteCut notes that the entries up to a time will be deleted: pins behind them are lost. Without force it is refused where
// there is such a pin.
func (o *oplogState) noteCut(cut Timestamp, force bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for p := range o.pins {
		if p.from < cut && !force {
			return false
		}
	}
	for p := range o.pins {
		p.lost = p.lost || p.from < cut
	}
	o.cut = max(o.cut, cut)
	return true
}
