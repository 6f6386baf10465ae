package storage

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// flushPace delays the chunks of large units while memtables wait to be flushed, so that the memory of a transaction does
// not depend on its size. Pebble itself stalls all writes, and only once four memtables are full.
type flushPace struct {
	waiting atomic.Int32 // chunks that wait
	mu      struct {
		sync.Mutex
		ahead   int64         // bytes of chunks admitted since the flush queue was last empty
		flushed chan struct{} // closed by the next flush that ends
	}
}

const (
	// paceShare is the fraction (1/n) of a memtable that chunks may fill while another one is flushed: the disk and
	// the writer then work at the same time.
	paceShare = 2
	// paceLimit is the maximum time that a chunk waits. If the disk takes longer to flush a memtable, one chunk is written each time.
	paceLimit = 2 * time.Second
)

// flushEnd is called by pebble after each flush.
func (p *flushPace) flushEnd(pebble.FlushInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.flushed != nil {
		close(p.mu.flushed)
		p.mu.flushed = nil
	}
}

// next returns a channel that is closed when the next flush has ended.
func (p *flushPace) next() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.flushed == nil {
		p.mu.flushed = make(chan struct{})
	}
	return p.mu.flushed
}

// enter reports whether a chunk of n bytes may be written, and counts it if so. limit is the size of a full memtable,
// memtables the size of all. The first chunk after a flush may always be written, however large its document.
func (p *flushPace) enter(n int, limit, memtables int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if memtables <= limit {
		p.mu.ahead = 0
		return true
	}
	if p.mu.ahead > 0 && p.mu.ahead+int64(n) > limit/paceShare {
		return false
	}
	p.mu.ahead += int64(n)
	return true
}

// await waits for the next flush, and reports whether it has come.
func (p *flushPace) await(ctx context.Context, flushed <-chan struct{}, limit <-chan time.Time, closed <-chan struct{}) bool {
	p.waiting.Add(1)
	defer p.waiting.Add(-1)
	select {
	case <-flushed:
		return true
	case <-limit:
	case <-ctx.Done():
	case <-closed:
	}
	return false
}

// pace waits until a chunk of n bytes may be written. Pebble calls flushEnd with its own mutex held, which Metrics takes
// too: Metrics is therefore called without holding p.mu.
func (e *Engine) pace(ctx context.Context, n int) {
	p := &e.replica.staging.pace
	var limit <-chan time.Time
	for {
		flushed := p.next()
		if p.enter(n, e.opts.memTable, int64(e.db.Metrics().MemTable.Size)) {
			return
		}
		if limit == nil {
			t := time.NewTimer(paceLimit)
			defer t.Stop()
			limit = t.C
		}
		if !p.await(ctx, flushed, limit, e.background.ctx.Done()) {
			return
		}
	}
}
