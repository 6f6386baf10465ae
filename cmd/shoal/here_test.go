package main

import (
	"context"
	"sync"
	"testing"
	"time"
)

// here is a deployment in this process.
type here struct {
	*roles
	stop func() // ends it, once
}

// startHere starts what `shoal start` would start, on a free port and in memory unless set says otherwise. It ends with the test, behind
// the clients that `connect` makes.
func startHere(t *testing.T, set func(c *config)) *here {
	t.Helper()
	c := newConfig(isStart)
	c.Listen, c.Memory = []string{"127.0.0.1:0"}, true
	set(c)
	r, err := startCluster(c, newHost(isStart))
	if err != nil {
		t.Fatal(err)
	}
	h := &here{roles: r, stop: sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := r.Stop(ctx); err != nil {
			t.Error(err)
		}
	})}
	t.Cleanup(h.stop)
	return h
}
