package main

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/cluster/sdam"
	"github.com/shoaldb/shoal/internal/await"
)

// A shard's primary is paused, not ended: its connections stay, and it answers nothing. Writes that a router has sent it go to
// the next primary soon after there is one, however long the old one is paused.
func TestPausedPrimaryHoldsUpNoRouter(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five servers")
	}
	t.TempDir() // ends last
	c := launchCluster(t, clusterOptions{shards: []int{3}, net: newNetwork(t)})
	rs := c.shards[0]
	w := startPausedWriters(t.Context(), 8, c.client.Database("paused").Collection("c"))
	await.True(t, "the writers write", func() bool { return w.count() > 100 })
	late := measureLag()
	old := rs.elected()
	paused := time.Now()
	rs.members[old].pause()
	defer rs.members[old].resume()
	await.True(t, "another member is primary", func() bool {
		return rs.members[(old+1)%3].hello()["isWritablePrimary"] == true || rs.members[(old+2)%3].hello()["isWritablePrimary"] == true
	})
	led := time.Since(paused)
	await.True(t, "all writes that were under way have ended", func() bool { return w.since(paused) == 8 })
	took, lag := time.Since(paused), late()
	w.end()
	t.Logf("another led after %v, all writes had ended after %v", led, took)
	// The old primary is asked after a fifth of that time, and considered unreachable after the whole of it.
	if after, most := took-led, 3*sdam.DefaultTiming.MinBetween; after > most+lag {
		t.Errorf("the last write ended %v after another led, want %v (the machine was late by %v)", after, most, lag)
	}
	for _, err := range w.errs {
		t.Error(err)
	}
}

// pausedWriters are clients that each write one document after the other.
type pausedWriters struct {
	mu   sync.Mutex
	last []time.Time // when each ended its last write
	done int
	errs []error
	stop context.CancelFunc
	wg   sync.WaitGroup
}

func startPausedWriters(ctx context.Context, n int, coll *mongo.Collection) *pausedWriters {
	w := &pausedWriters{last: make([]time.Time, n)}
	writing, stop := context.WithCancel(ctx)
	w.stop = stop
	for i := range n {
		w.wg.Go(func() {
			for k := 0; writing.Err() == nil; k++ {
				_, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: fmt.Sprint(i, " ", k)}})
				w.mu.Lock()
				w.last[i] = time.Now()
				w.done++
				if err != nil {
					w.errs = append(w.errs, err)
				}
				w.mu.Unlock()
				pause(5 * time.Millisecond)
			}
		})
	}
	return w
}

func (w *pausedWriters) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done
}

// since counts the writers that have completed a write well after a moment: earlier ones may have been acknowledged before it.
func (w *pausedWriters) since(at time.Time) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.last {
		if l.Sub(at) > electionTimeout/4 {
			n++
		}
	}
	return n
}

func (w *pausedWriters) end() {
	w.stop()
	w.wg.Wait()
}
