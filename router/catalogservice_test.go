package router_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A new primary of the config server that cannot initialize its catalog at once tries again: it used to serve without a balancer, and as a cluster without an id, until the next election. It does not serve
// before it knows the cluster's id.
func TestCatalogIsInitializedLater(t *testing.T) {
	var fails atomic.Pointer[string] // the command that fails
	var failed atomic.Int64
	c := newHookedCluster(t, 1, clusterHooks{own: func(to cluster.Peer) cluster.Peer {
		return cluster.LocalPeer(func(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
			if f := fails.Load(); f != nil && strings.HasPrefix(string(m.CommandName()), *f) {
				if failed.Add(1) == 3 {
					fails.Store(nil)
				}
				return nil, mongoerr.New(mongoerr.WriteConcernTimeout, "not now")
			}
			return to.Call(ctx, m, dst)
		})
	}})
	fail := func(command string) {
		failed.Store(0)
		fails.Store(&command)
	}
	fail("createIndexes")
	unready, err := c.config.StepUp(t.Context())
	if err != nil || mongoerr.CodeOf(unready) != mongoerr.WriteConcernTimeout {
		t.Errorf("stepping up without indexes: %v, %v", unready, err)
	}
	if err := c.config.Initialize(t.Context(), unready); err != nil || failed.Load() != 3 {
		t.Errorf("after %d attempts: %v", failed.Load(), err)
	}
	if err := c.config.Initialize(t.Context(), nil); err != nil {
		t.Error(err)
	}
	fail("find")
	if _, err := c.config.StepUp(t.Context()); mongoerr.CodeOf(err) != mongoerr.WriteConcernTimeout {
		t.Errorf("stepping up without the cluster's id: %v", err)
	}
	fails.Store(nil)
	ended, end := context.WithCancel(t.Context())
	end()
	if err := c.config.Initialize(ended, unready); err == nil {
		t.Error("it goes on after its time as primary")
	}
}
