//go:build cgo && linux

package main

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/shoaldb/shoal/internal/await"
)

// A block cache of blocks of many sizes, read by many threads, takes little more memory than its size. It took twice as much with
// glibc's own settings: see malloc.go.
func TestBlockCacheTakesItsSize(t *testing.T) {
	const size = 96 << 20
	if os.Getenv("SHOAL_CACHE_CHILD") != "" {
		defer boundMalloc()()
		churnCache(t, size)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestBlockCacheTakesItsSize$", "-test.v")
	cmd.Env = append(os.Environ(), "SHOAL_CACHE_CHILD=1", "GOMAXPROCS=4")
	out, err := cmd.CombinedOutput()
	m := regexp.MustCompile(`the cache has taken (\d+) bytes, and (\d+) `).FindSubmatch(out)
	if err != nil || m == nil {
		t.Fatalf("%v: %s", err, out)
	}
	for i, limit := range []int{size + size/2, size + size/4} {
		grown, err := strconv.Atoi(string(m[i+1]))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d MB for a cache of %d MB", grown>>20, size>>20)
		if grown > limit {
			t.Errorf("a cache of %d MB has taken %d MB, more than %d", size>>20, grown>>20, limit>>20)
		}
	}
}

// Gaps are returned when memory has grown, and not otherwise.
func TestTrimsWhatHasGrown(t *testing.T) {
	resident, trims := int64(50<<20), 0
	m := trimmer{kept: resident, measure: func() int64 { return resident }, trim: func() { trims++; resident -= 6 << 20 }}
	for i, c := range []struct {
		grown int64 // megabytes
		trims int
	}{{0, 0}, {15, 0}, {1, 1}, {15, 1}, {-30, 1}, {15, 1}, {1, 2}, {0, 2}} {
		resident += c.grown << 20
		if m.step(); trims != c.trims {
			t.Errorf("step %d: %d trims, not %d", i, trims, c.trims)
		}
	}
}

// churnCache reads a store several times as large as its block cache, and prints by how much that has grown the process's own memory
// outside of Go's heap: then, and once large blocks have taken the place of small ones.
func churnCache(t *testing.T, size int64) {
	cache := pebble.NewCache(size)
	defer cache.Unref()
	db, err := pebble.Open(t.TempDir(), &pebble.Options{FS: vfs.Default, Cache: cache, DisableWAL: true, MemTableSize: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const keys, largeEvery = 800, 10
	noise := make([]byte, 4<<20)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	key := func(i int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(i)) }
	for i := range keys {
		n := 4<<10 + r.IntN(120<<10) // as documents have
		if i%largeEvery == 0 {
			n = 1<<20 + r.IntN(2<<20) // as entries of the raft log have
		}
		if err := db.Set(key(i), noise[r.IntN(len(noise)-n):][:n], pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	before := residentOutsideGo(t)
	var readers sync.WaitGroup
	for seed := range uint64(8) {
		readers.Go(func() {
			r := rand.New(rand.NewPCG(seed, 3))
			for range 2 * keys {
				_, c, err := db.Get(key(r.IntN(keys)))
				if err != nil {
					t.Error(err)
					return
				}
				_ = c.Close()
			}
		})
	}
	readers.Wait()
	mixed := residentOutsideGo(t) - before
	for i := 0; i < 3*keys; i += largeEvery {
		_, c, err := db.Get(key(i % keys))
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	after := await.State(t, "the gaps are given back", func() (int64, bool) { // every trimEvery
		now := residentOutsideGo(t) - before
		return now, now <= size+size/4
	})
	t.Logf("the cache has taken %d bytes, and %d bytes with large blocks", mixed, after)
}

// residentOutsideGo returns the process's anonymous memory without that of Go.
func residentOutsideGo(t *testing.T) int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	kb := int64(0)
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err = strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		}
	}
	if err != nil || kb == 0 {
		t.Fatalf("no RssAnon: %v", err)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return kb<<10 - int64(m.Sys-m.HeapReleased)
}
