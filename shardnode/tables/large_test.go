package tables

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/storage"
)

// What a refresh writes to a large table on disk goes with what has changed, and a start reads the table from disk instead of the config
// server. SHOAL_TABLE_CHUNKS="1000 100000 1000000" asks for the figures of these sizes.
func TestRefreshesOfALargeTable(t *testing.T) {
	sizes := []int{2000}
	if list := strings.Fields(os.Getenv("SHOAL_TABLE_CHUNKS")); len(list) > 0 {
		sizes = make([]int, len(list))
		for i, s := range list {
			if _, err := fmt.Sscan(s, &sizes[i]); err != nil || sizes[i] < 100 {
				t.Fatalf("%s is no number of chunks", s)
			}
		}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			dir := t.TempDir()
			eng, err := storage.Open(storage.Options{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = eng.Close() }()
			s := newConfigServer(n)
			s.indexed = true
			m := newMember(t, eng, s)
			began := time.Now()
			m.flush(t)
			first := time.Since(began)
			var each time.Duration
			const rounds = 10
			s.read = 0
			disk := &readDisk{Disk: m.Tables}
			m.Catalog.SetDisk(disk)
			before := eng.Visible()
			for i := range rounds {
				s.put(n/2+i, n, "b", uint64(i+2)<<32)
				s.put(n/2+i+20, n, "a", uint64(i+2)<<32|1)
				began = time.Now()
				m.flush(t)
				each += time.Since(began)
			}
			written := m.written(t, before)
			read := s.read
			if written != 2*rounds || read > 3*rounds {
				t.Errorf("%d moves wrote %d documents and read %d, want two for each", rounds, written, read)
			}
			if disk.whole > 0 {
				t.Errorf("%d moves read the whole table from the disk %d times", rounds, disk.whole)
			}
			s.read = 0
			next := newMember(t, eng, s) // has started again
			began = time.Now()
			if _, err := next.Catalog.Collection(t.Context(), "db.c"); err != nil {
				t.Fatal(err)
			}
			if s.read > 2 {
				t.Errorf("a start read %d chunks from the config server", s.read)
			}
			t.Logf("%d chunks: first written in %v; a move writes %d documents in %v; read from disk after a start in %v", n, first.Round(time.Millisecond), written/rounds,
				(each / rounds).Round(10*time.Microsecond), time.Since(began).Round(time.Millisecond))
			next.sameAsStored(t)
		})
	}
}

// readDisk counts how often the whole table is read.
type readDisk struct {
	cluster.Disk
	whole int
}

func (d *readDisk) Base(ns string) (cluster.Placement, bool) {
	d.whole++
	return d.Disk.Base(ns)
}
