package router_test

import (
	"context"
	"testing"
	"time"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A DDL operation is sent again while the coordinator's shard elects a primary: it used to end in an error after 0.4 s, while the operation went on.
func TestDDLWaitsForElections(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	w := c.interposed("shard0")
	c.fill(4)
	began := time.Now()
	sent := 0
	w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if name == "_shardsvrDropCollection" {
			if sent++; sent < 10 || time.Since(began) < time.Second {
				return nil, mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted")
			}
		}
		return call()
	})
	c.run("db", `{"drop": "c"}`)
	if sent < 10 {
		t.Errorf("sent %d times", sent)
	}
	c.leftOver()
}

// A client's time limit ends while the coordinator's shard has no primary: that is its error, not the shard's.
func TestDDLReportsItsTimeLimitDuringAnElection(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	w := c.interposed("shard0")
	c.fill(4)
	w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if name == "_shardsvrDropCollection" {
			return nil, mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted")
		}
		return call()
	})
	if m := c.raw("db", `{"drop": "c", "maxTimeMS": 200}`); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
		t.Error(m)
	}
}
