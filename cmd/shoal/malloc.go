//go:build cgo && linux

package main

// #include <malloc.h>
//
// static void keepLittle(int arenas, int mapped) {
// #ifdef __GLIBC__
// 	mallopt(M_ARENA_MAX, arenas);
// 	mallopt(M_MMAP_THRESHOLD, mapped);
// #endif
// }
//
// static void returnFree(void) {
// #ifdef __GLIBC__
// 	malloc_trim(0);
// #endif
// }
import "C"

import (
	"os"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The block cache allocates with C's malloc, from many threads and in sizes from a few kilobytes to many megabytes, as documents and
// entries of the raft log have. By default glibc gives each thread one of many arenas, and after the first large block that is freed
// no longer maps blocks of that size on their own: what is freed stays with its arena. A full cache then took twice its size.
// Smaller blocks leave gaps between those in use, 18 KB on average, which amounted to 100 MB beside a cache of as much; their
// pages are returned now and then.

const (
	mallocArenas = 1
	mallocMapped = 128 << 10 // blocks of this size or larger are mapped on their own, and returned when freed
)

// boundMalloc makes the allocator return what is freed, until stop is called. glibc's own settings in the environment turn this off.
func boundMalloc() (stop func()) {
	for _, name := range []string{"MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"} {
		if os.Getenv(name) != "" {
			return func() {}
		}
	}
	C.keepLittle(mallocArenas, mallocMapped)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(trimEvery)
		defer tick.Stop()
		t := trimmer{kept: outsideGo(), measure: outsideGo, trim: func() { C.returnFree() }}
		for {
			select {
			case <-tick.C:
				t.step()
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// A trim visits every gap, which takes some milliseconds with ten thousand of them, and blocks allocations meanwhile. It is done only
// when the memory has grown, through gaps or a cache that fills: an idle server and one whose memory is stable do none.
const (
	trimEvery  = time.Second
	trimGrowth = 16 << 20
)

// trimmer returns the pages of gaps when memory has grown.
type trimmer struct {
	kept    int64 // resident bytes after the last trim, or the minimum since
	measure func() int64
	trim    func()
}

func (t *trimmer) step() {
	now := t.measure()
	if now < t.kept+trimGrowth {
		t.kept = min(t.kept, now)
		return
	}
	t.trim()
	t.kept = t.measure()
}

// outsideGo returns the process's resident anonymous memory without that of Go, 0 if it is not known.
func outsideGo() int64 {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var pages [3]int64 // size, resident, shared
	fields := strings.Fields(string(statm))
	if len(fields) < len(pages) {
		return 0
	}
	for i := range pages {
		if pages[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
			return 0
		}
	}
	m := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(m)
	return max(0, (pages[1]-pages[2])*int64(os.Getpagesize())-int64(m[0].Value.Uint64()-m[1].Value.Uint64()))
}
