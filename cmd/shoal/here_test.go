package main

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// here is a deployment in this process.
type here struct {
	*roles
	stop func() // ends it, once
}

// startHere starts what `shoal start` would start, on a free port and in memory unless set says otherwise. It ends with the test, after
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

// assembleHere assembles a sharded cluster in this process, without a client, for tests that read its tables.
func assembleHere(t *testing.T) *assembly {
	t.Helper()
	c := newConfig(isStart)
	c.Listen, c.Memory = []string{"127.0.0.1:0"}, true
	a, err := newAssembly(c, newHost(isStart))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.stop(context.Background()) })
	if err := a.sharded(); err != nil {
		t.Fatal(err)
	}
	return a
}

// writeKey writes a key file, and returns its path.
func writeKey(t *testing.T) string {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("onekeyonekeyonekey"), 0o600); err != nil {
		t.Fatal(err)
	}
	return key
}
