package router_test

import (
	"encoding/base64"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A drop of the sessions collection that one of the shards refuses leaves nothing that is in the way of sessions: they are stored on all shards when they are written the next time. It used to leave an entry
// of a collection that the other shards did not have any more.
func TestInterruptedDropOfSessions(t *testing.T) {
	var refuses atomic.Pointer[string]
	c := newWatchedCluster(t, 3, func(shard string, m *wire.Message) error {
		if at := refuses.Load(); at != nil && *at == shard && string(m.CommandName()) == "_shardsvrDropCollectionParticipant" {
			return mongoerr.New(mongoerr.Unauthorized, "refused")
		}
		return nil
	})
	stored := c.storesSessions(t)
	stored()
	for _, at := range []string{"shard0", "shard1", "shard2"} {
		refuses.Store(&at)
		if m := c.raw("config", `{"drop": "system.sessions"}`); m["code"] != int32(mongoerr.Unauthorized) {
			t.Errorf("the drop beside %s: %v", at, m)
		}
		refuses.Store(nil)
		stored()
	}
	c.run("config", `{"drop": "system.sessions"}`)
	stored()
}

// A message of a drop of the sessions collection arrives at a shard when its client has given up, and the collection has been created again: it is refused. It used to drop the shard's part of the new collection,
// whose entry stayed, and no session of its ranges could be stored any more.
func TestLateDropOfSessions(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	w := c.late("shard1", "_shardsvrDropCollectionParticipant")
	stored := c.storesSessions(t)
	stored()
	if m := c.raw("config", `{"drop": "system.sessions", "maxTimeMS": 500}`); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
		t.Fatal(m)
	}
	stored()
	if err := w.release(); mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress {
		t.Error(err)
	}
	for range 2 {
		stored()
	}
}

// A message by which the config server drops what an attempt to create the sessions collection has left on a shard arrives when another attempt has created it: it is refused.
func TestLateDropOfLeftSessions(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 3)
	w := c.late("shard1", "_shardsvrDropCollectionParticipant")
	for _, shard := range []string{"shard0", "shard1"} {
		left := &msg.CreateCollectionParticipant{NS: cluster.SessionsNS, UUID: cluster.NewUUID()}
		if _, err := cluster.Run(t.Context(), c.shards[shard], msg.Doc(left)); err != nil {
			t.Fatal(err)
		}
	}
	if m := c.raw("admin", `{"refreshLogicalSessionCacheNow": 1, "maxTimeMS": 500}`); m["ok"] == 1.0 {
		t.Fatal(m)
	}
	stored := c.storesSessions(t)
	stored()
	if err := w.release(); mongoerr.CodeOf(err) != mongoerr.ConflictingOperationInProgress {
		t.Error(err)
	}
	for range 2 {
		stored()
	}
}

// storesSessions returns a function that uses 64 new sessions, of all ranges of the sessions collection, and expects them to be stored. The collection gets 16 chunks.
func (c *testCluster) storesSessions(t *testing.T) func() {
	c.params["config"].Store("minNumChunksForSessionsCollection", value.NewInt32(16))
	round := byte(0)
	return func() {
		t.Helper()
		round++
		for i := range 64 {
			id := base64.StdEncoding.EncodeToString([]byte{byte(i * 4), round, 2, 3, 4, 5, 0x40, 7, 0x80, 9, 10, 11, 12, 13, 14, 15})
			c.run("db", fmt.Sprintf(`{"find": "c", "lsid": {"id": {"$binary": {"base64": "%s", "subType": "04"}}}}`, id))
		}
		c.run("admin", `{"refreshLogicalSessionCacheNow": 1}`)
		if n := len(c.all("config", `{"find": "system.sessions"}`)); n < 64 {
			t.Errorf("%d sessions are stored", n)
		}
	}
}
