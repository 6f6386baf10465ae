package storage

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoaldb/shoal/internal/await"
)

// Snapshots that are taken while copies are changed, removed and dropped have all that the oplog refers to, whatever the collector is doing.
func TestSnapshotsHaveWhatTheOplogRefersTo(t *testing.T) {
	base := time.Now()
	o := Options{CollectInterval: 2 * time.Millisecond, HistoryWindow: time.Nanosecond, Clock: func() time.Time { return base.Add(100 * time.Since(base)) }}
	l := newTestLog(t, 2, o)
	defer l.close()
	l.keepCommitting()
	l.elect(l.members[0], 0)
	p, m := l.members[0], l.members[1]
	create(t, p.e, "db.c0", nil, spec("n_1", D("n", 1)))
	l.settle()
	m.halt()
	var stop atomic.Bool
	var steps atomic.Int64
	var wg sync.WaitGroup
	for w, ns := range []string{"db.c0", "db.c1"} {
		wg.Go(func() {
			r := newRand(uint64(w))
			for i := 0; !stop.Load(); i++ {
				if err := copiesStep(p.e, ns, i, r.IntN(10), r.IntN(1000)); err != nil {
					t.Errorf("%s: %v", ns, err)
					return
				}
				steps.Add(1)
				time.Sleep(time.Millisecond)
			}
		})
	}
	refs := 0
	for range 5 {
		from := steps.Load()
		await.True(t, "the copies are changed ten times", func() bool { return steps.Load() >= from+10 || t.Failed() })
		man := copySnapshot(t, p.e, m.e, "x")
		if at, _ := m.e.AppliedIndex(); at == man.Index {
			continue
		}
		if err := m.e.InstallSnapshot(context.Background(), "x", man); err != nil {
			t.Error(err)
		}
		n, _ := refBlocks(t, m.e)
		refs += n
		got := oplogFrom(t, m.e, 0)
		if want := oplogFrom(t, p.e, 0); !slices.Equal(got, want[:len(got)]) {
			t.Error("the oplogs differ")
		}
		if err := m.e.collect(context.Background()); err != nil {
			t.Error(err)
		}
		if again := oplogFrom(t, m.e, 0); !slices.Equal(got, again) {
			t.Error("the oplog reads differently")
		}
	}
	stop.Store(true)
	wg.Wait()
	m.start()
	l.settle()
	l.same()
	t.Logf("%d steps, %d blocks of references in snapshots", steps.Load(), refs)
}
