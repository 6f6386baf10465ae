package migration

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
)

// As many workers as chunkMigrationConcurrency says clone at the same time, each until nothing is left, and the error of one ends all.
func TestCloneWorkers(t *testing.T) {
	for _, workers := range []int64{1, 4} {
		var together sync.WaitGroup
		together.Add(int(workers))
		var left, arrived atomic.Int64
		left.Store(100)
		err := inParallel(t.Context(), workers, func(context.Context) (bool, error) {
			if arrived.Add(1) <= workers {
				together.Done()
				together.Wait() // for a step of each worker
			}
			return left.Add(-1) > 0, nil
		})
		if n := arrived.Load(); err != nil || n < 100 || n > 100+workers {
			t.Errorf("%d workers: %d steps, %v", workers, n, err)
		}
	}
	lost := errors.New("lost")
	var began atomic.Int64
	err := inParallel(t.Context(), 3, func(ctx context.Context) (bool, error) {
		if began.Add(1) == 3 {
			return false, lost
		}
		<-ctx.Done()
		return false, ctx.Err()
	})
	if !errors.Is(err, lost) {
		t.Errorf("ended with %v", err)
	}
}
