package configsvr

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// The balancer begins soon after its config server has become primary, and goes on at once when a shard joins or is to be removed. It used to wait for ten seconds.
func TestBalancerIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := managerOf(&catalogStore{}, frozen)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began, rounds := time.Now(), int64(0)
		go m.RunBalancer(ctx)
		next := func(what string, within time.Duration) {
			t.Helper()
			time.Sleep(within)
			synctest.Wait()
			_, now := m.balancer.status()
			if now != rounds+1 {
				t.Errorf("%s, after %s: %d rounds", what, time.Since(began), now-rounds)
			}
			began, rounds = time.Now(), now
		}
		next("as primary", 2*time.Second)
		next("after a round", balancerPause)
		if err := m.insertShard(t.Context(), &newShard{id: "x", conn: "x/x:1"}, nil, nil); err != nil {
			t.Fatal(err)
		}
		next("a shard joins", time.Millisecond)
		if err := m.startDraining(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		next("a shard is to be removed", time.Millisecond)
	})
}
