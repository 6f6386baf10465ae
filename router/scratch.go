package router

import "sync"

// scratchPool keeps the buffers that rewritten commands are built in.
type scratchPool struct{ pool sync.Pool }

// maxScratch bounds the buffers that are kept.
const maxScratch = 1 << 20

var scratch = scratchPool{sync.Pool{New: func() any { b := make([]byte, 0, 512); return &b }}}

func (p *scratchPool) get() *[]byte { return p.pool.Get().(*[]byte) }

func (p *scratchPool) put(b *[]byte) {
	if cap(*b) <= maxScratch {
		p.pool.Put(b)
	}
}
