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
import "C"

import "os"

// The block cache allocates with C's malloc, from many threads and in sizes from a few kilobytes to many megabytes, as documents and
// entries of the raft log have. By default glibc gives each thread one of many arenas, and after the first large block that is freed
// no longer maps blocks of that size on their own: what is freed stays with its arena. A full cache then took twice its size.

const (
	mallocArenas = 1
	mallocMapped = 128 << 10 // blocks of this size or larger are mapped on their own, and returned when freed
)

// boundMalloc makes the allocator return what is freed. glibc's own settings in the environment turn this off.
func boundMalloc() {
	for _, name := range []string{"MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"} {
		if os.Getenv(name) != "" {
			return
		}
	}
	C.keepLittle(mallocArenas, mallocMapped)
}
