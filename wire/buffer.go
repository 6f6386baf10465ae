package wire

import (
	"math/bits"
	"sync"
)

// Frames are read into pooled buffers of sizes that are powers of two; those larger than the last class are not
// pooled.
const (
	minClass = 9  // 512 bytes
	maxClass = 22 // 4 MiB
)

type buffer struct {
	b     []byte
	class int8
}

var bufferPools [maxClass - minClass + 1]sync.Pool

func getBuffer(n int) *buffer {
	class := max(bits.Len(uint(n-1)), minClass)
	if class > maxClass {
		return &buffer{b: make([]byte, n), class: -1}
	}
	if p, _ := bufferPools[class-minClass].Get().(*buffer); p != nil {
		p.b = p.b[:n]
		return p
	}
	return &buffer{b: make([]byte, n, 1<<class), class: int8(class)}
}

func (p *buffer) free() {
	if p != nil && p.class >= 0 {
		bufferPools[p.class-minClass].Put(p)
	}
}
