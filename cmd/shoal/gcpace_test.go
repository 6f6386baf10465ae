package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/shoaldb/shoal/internal/await"
)

// A heap of documents grows by a constant beyond its live size; one of pointers grows as usual.
func TestHeapGrowsByAConstant(t *testing.T) {
	for _, c := range []struct{ live, scan, most uint64 }{
		{4 << 20, 4 << 20, 8 << 20},
		{64 << 20, 1 << 20, 128 << 20},
		{256 << 20, 16 << 20, (256 + 64) << 20},
		{1 << 30, 16 << 20, 1<<30 + 64<<20},
		{1 << 30, 512 << 20, 1<<30 + 512<<20},
		{1 << 40, 1 << 20, 1<<40 + 1<<34},
	} {
		if got := c.live + c.live*uint64(gcPercent(c.live, c.scan))/100; got > c.most || got < c.most-c.live/50 {
			t.Errorf("%d MB live, %d MB with pointers: the heap grows to %d MB, want %d", c.live>>20, c.scan>>20, got>>20, c.most>>20)
		}
	}

	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	paceCollections()
	const live = 512 << 20
	var documents [][]byte
	for range live >> 24 {
		documents = append(documents, make([]byte, 1<<24))
	}
	var m runtime.MemStats
	await.State(t, fmt.Sprintf("%d MB live: collected before half as much again", live>>20), func() (string, bool) {
		runtime.GC() // the finalizer runs after a collection
		runtime.ReadMemStats(&m)
		return fmt.Sprintf("collected at %d MB", m.NextGC>>20), m.NextGC < live+live/2
	})
	runtime.KeepAlive(documents)
}
