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
)

// A block cache of blocks of many sizes, read by many threads, takes little more memory than its size. It took twice as much with
// glibc's own settings: see malloc.go.
func TestBlockCacheTakesItsSize(t *testing.T) {
	const size = 96 << 20
	if os.Getenv("SHOAL_CACHE_CHILD") != "" {
		boundMalloc()
		churnCache(t, size)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestBlockCacheTakesItsSize$", "-test.v")
	cmd.Env = append(os.Environ(), "SHOAL_CACHE_CHILD=1", "GOMAXPROCS=4")
	out, err := cmd.CombinedOutput()
	m := regexp.MustCompile(`the cache has taken (\d+) bytes`).FindSubmatch(out)
	if err != nil || m == nil {
		t.Fatalf("%v: %s", err, out)
	}
	grown, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MB for a cache of %d MB", grown>>20, size>>20)
	if grown > size+size/2 {
		t.Errorf("a cache of %d MB has taken %d MB", size>>20, grown>>20)
	}
}

// churnCache reads a store several times as large as its block cache, and prints by how much that has grown the process's own memory
// outside of Go's heap.
func churnCache(t *testing.T, size int64) {
	cache := pebble.NewCache(size)
	defer cache.Unref()
	db, err := pebble.Open(t.TempDir(), &pebble.Options{FS: vfs.Default, Cache: cache, DisableWAL: true, MemTableSize: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const keys = 800
	noise := make([]byte, 4<<20)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	key := func(i int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(i)) }
	for i := range keys {
		n := 4<<10 + r.IntN(120<<10) // as documents have
		if i%12 == 0 {
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
	t.Logf("the cache has taken %d bytes", residentOutsideGo(t)-before)
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
