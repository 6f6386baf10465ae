package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// How much the heap may grow between two collections. The default, the size of the live heap, suits a small heap and one full
// of pointers. Much of a server's heap has none: documents of many megabytes on their way to the store and, in a build without
// cgo, block cache and memtables. Marking them costs nothing, so such a heap is collected more often instead of growing to
// twice its size. GOGC and GOMEMLIMIT in the environment turn this off.

// gcRoom is the growth that any heap may have.
const gcRoom = 64 << 20

// gcPercent returns the growth as a percentage of the live heap, of which scan bytes may have pointers.
func gcPercent(live, scan uint64) int {
	if live <= gcRoom {
		return 100
	}
	return int(min(100, max(1, 100*max(gcRoom, scan)/live)))
}

// collection is allocated again after each collection; its finalizer signals the end of the next one.
type collection struct {
	sample  []metrics.Sample
	percent int
}

// paceCollections sets the heap's growth after each collection.
func paceCollections() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	c := &collection{percent: 100, sample: []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/heap:bytes"}}}
	runtime.SetFinalizer(c, (*collection).ended)
}

func (c *collection) ended() {
	metrics.Read(c.sample)
	p := gcPercent(c.sample[0].Value.Uint64(), c.sample[1].Value.Uint64())
	if d := p - c.percent; d > c.percent/8 || -d > c.percent/8 { // a change stops the world for a moment
		debug.SetGCPercent(p)
		c.percent = p
	}
	runtime.SetFinalizer(c, (*collection).ended)
}
