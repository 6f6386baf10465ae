package storage

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// iterPool keeps pebble iterators between operations. All reads are at a timestamp, so an iterator that was made when
// everything up to T was applied serves any snapshot up to T, however many commits ago it was made; while nothing is
// written, reads make no iterators at all.
//
// An era ends when a snapshot replaces everything replicated. Views of the previous era get no new iterators,
// because those would show the new state; the era changes before the state does.
type iterPool struct {
	db  *pebble.DB
	era atomic.Uint32
	mu  struct {
		sync.Mutex
		idle   []*pooledIter
		old    []*pooledIter // waiting for closeLoop
		closed bool
	}
	wake chan struct{} // has a value if there may be old iterators
}

// pooledIter is an iterator over everything applied up to asOf, with the buffers its users need, so that a point
// read allocates next to nothing.
type pooledIter struct {
	*pebble.Iterator
	asOf    moment
	bounded bool
	lastUse int64

	v       versions
	key, tb []byte
	rid     RecordID
	// own is the number of its unit's writes that an iterator over a unit's own view has seen; -1 for pooled iterators.
	own int
}

const (
	maxIdleIters = 32
	idleIterLife = time.Second
)

// errReplaced is the error for readers whose view belongs to an era that has ended.
var errReplaced = mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted: the member's data was replaced by a snapshot")

// nextEra ends the era.
func (p *iterPool) nextEra() uint32 {
	p.mu.Lock()
	idle := p.mu.idle
	p.mu.idle = nil
	era := p.era.Add(1)
	p.mu.Unlock()
	p.closeOld()
	for _, it := range idle {
		closeQuietly(it)
	}
	return era
}

// get returns an iterator that sees everything up to at. newest must be the moment of the view, loaded before the
// call.
//
// The era is compared again after pebble has made the iterator: if a snapshot was installed meanwhile, the
// iterator would show the new state under a timestamp of the old one. newest was loaded before the iterator was
// made, so the iterator sees at least that much, and asOf never promises more than it shows.
func (p *iterPool) get(at, newest *moment, lower, upper []byte) (*pooledIter, error) {
	p.mu.Lock()
	if p.era.Load() != at.era {
		p.mu.Unlock()
		return nil, errReplaced
	}
	for n := len(p.mu.idle); n > 0; n = len(p.mu.idle) {
		it := p.mu.idle[n-1]
		p.mu.idle = p.mu.idle[:n-1]
		if !it.asOf.covers(at) {
			// The iterators below this one are older: a commit has superseded them all.
			p.retire(it)
			continue
		}
		p.mu.Unlock()
		if it.bounded || lower != nil {
			it.SetBounds(lower, upper)
		}
		it.bounded = lower != nil
		return it, nil
	}
	p.mu.Unlock()
	it, err := p.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, err
	}
	if p.era.Load() != at.era {
		closeQuietly(it)
		return nil, errReplaced
	}
	return &pooledIter{Iterator: it, asOf: *newest, bounded: lower != nil, own: -1}, nil
}

// put returns an iterator to the pool. newest is the moment of the view: an older iterator is unlikely to serve
// again.
func (p *iterPool) put(it *pooledIter, newest *moment, now int64) {
	if it.own < 0 && it.asOf.covers(newest) && it.Error() == nil {
		it.lastUse = now
		p.mu.Lock()
		if !p.mu.closed && it.asOf.era == p.era.Load() && len(p.mu.idle) < maxIdleIters {
			p.mu.idle = append(p.mu.idle, it)
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
	if it.own >= 0 {
		closeQuietly(it)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retire(it)
}

// retire has closeLoop close an iterator; p.mu must be held. Whoever closes the last iterator of an old state of the store evicts all blocks of
// the tables that only that state had from the cache, yielding after each few: it took seconds while many goroutines ran, and a client's write waited for it.
func (p *iterPool) retire(it *pooledIter) {
	if p.mu.closed {
		closeQuietly(it)
		return
	}
	if p.mu.old = append(p.mu.old, it); len(p.mu.old)%maxIdleIters == 0 {
		p.wakeLoop() // the rest is left to trim
	}
}

func (p *iterPool) wakeLoop() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// closeLoop closes retired iterators.
func (p *iterPool) closeLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
			p.closeOld()
		}
	}
}

func (p *iterPool) closeOld() {
	p.mu.Lock()
	old := p.mu.old
	p.mu.old = nil
	p.mu.Unlock()
	for _, it := range old {
		closeQuietly(it)
	}
}

// trim has iterators closed that have been idle for long: they pin memtables and files.
func (p *iterPool) trim(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.mu.idle[:0]
	for _, it := range p.mu.idle {
		if now.UnixNano()-it.lastUse > int64(idleIterLife) {
			p.mu.old = append(p.mu.old, it)
		} else {
			kept = append(kept, it)
		}
	}
	clear(p.mu.idle[len(kept):])
	p.mu.idle = kept
	if len(p.mu.old) > 0 {
		p.wakeLoop()
	}
}

func (p *iterPool) close() {
	p.mu.Lock()
	idle := p.mu.idle
	p.mu.idle, p.mu.closed = nil, true
	p.mu.Unlock()
	p.closeOld()
	for _, it := range idle {
		closeQuietly(it)
	}
}

// iterator returns an iterator for the snapshot's view, prepared to read versions.
func (s *Snapshot) iterator(lower, upper []byte) (it *pooledIter, err error) {
	if err := s.e.space.gone.check(s.ts, identOf(lower)); err != nil {
		return nil, err
	}
	if s.unit == nil {
		at := s.moment
		if n := len(s.shown); n > 0 {
			at.ts = Timestamp(s.shown[n-1])
		}
		it, err = s.e.iters.get(&at, &s.e.view.Load().moment, lower, upper)
	} else {
		var own *pebble.Iterator
		own, err = s.unit.batch.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
		it = &pooledIter{Iterator: own, own: s.unit.writes()}
		if err == nil && s.e.iters.era.Load() != s.era {
			closeQuietly(own)
			err = errReplaced
		}
	}
	if err != nil {
		return nil, err
	}
	it.v.reset(it.Iterator, 0, s.unit != nil)
	it.v.hidden = s.hidden
	s.aim(&it.v, identOf(lower))
	if s.unit != nil {
		it.v.sent = s.unit.bulk.times()
	}
	return it, nil
}

// aim sets what a walk over a table shows.
func (s *Snapshot) aim(v *versions, id catalog.Ident) {
	v.ts, v.shown = uint64(s.of(id)), s.shown
	if isLocal(id) {
		v.shown = nil
	}
}

// current reports whether the iterator has seen all writes of the snapshot's unit.
func (s *Snapshot) current(it *pooledIter) bool { return s.unit == nil || it.own == s.unit.writes() }

// giveBack returns an iterator to the pool.
func (s *Snapshot) giveBack(it *pooledIter) {
	s.e.iters.put(it, &s.e.view.Load().moment, s.e.opts.Clock().UnixNano())
}
