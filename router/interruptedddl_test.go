package router_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// An operation that has been under way for long is sent again after each step-down of its coordinator's primary; a primary that steps down at once, again and again, is an error after some attempts.
func TestLongDDLOutlastsAnyNumberOfStepDowns(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.fill(4)
	var sent atomic.Int32
	wait := time.Duration(0)
	c.interposed("shard0").through(func(ctx context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if name != "_shardsvrDropCollection" || sent.Add(1) > 6 {
			return call()
		}
		if err := cluster.Sleep(ctx, wait); err != nil {
			return nil, err
		}
		return nil, mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted")
	})
	if m := c.raw("db", `{"drop": "c"}`); m["code"] != int32(mongoerr.HostUnreachable) || sent.Load() != 4 {
		t.Errorf("%v, sent %d times", m, sent.Load())
	}
	sent.Store(0)
	wait = 1100 * time.Millisecond
	c.run("db", `{"drop": "c"}`)
	if sent.Load() != 7 {
		t.Errorf("sent %d times", sent.Load())
	}
}
