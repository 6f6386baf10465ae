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
	c.fill(4)
	began := time.Now()
	sent := 0
	c.interposed("shard0").through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if name == "_shardsvrDropCollection" {
			if sent++; sent < 10 || time.Since(began) < time.Second {
				return nil, mongoerr.New(mongoerr.InterruptedDueToReplStateChange, "operation was interrupted")
			}
		}
		return call()
	})
	c.run("db", `{"drop": "c"}`)
	c.leftOver()
}
