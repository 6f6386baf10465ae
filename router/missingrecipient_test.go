package router_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The name of a shard that does not exist is refused at once: the coordinator is not asked, whose answer would be taken for that of a shard that has not heard of a new one.
func TestMissingRecipientsAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	var asked atomic.Int32
	w := c.interposed("shard0")
	w.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		switch name {
		case "_shardsvrReshardCollection", "_shardsvrMovePrimary":
			asked.Add(1)
		}
		return call()
	})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.insertKeys("u", 1, 2)
	c.shardedAs("c", 1, 10)
	for _, cmd := range []string{
		`{"moveCollection": "db.u", "toShard": "none"}`, `{"unshardCollection": "db.c", "toShard": "none"}`, `{"movePrimary": "db", "to": "none"}`,
		`{"reshardCollection": "db.c", "key": {"_id": 1}, "shardDistribution": [{"shard": "shard0"}, {"shard": "none"}]}`,
	} {
		if m := c.raw("admin", cmd); m["code"] != int32(mongoerr.ShardNotFound) {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the coordinator was asked %d times", n)
	}
	c.run("admin", `{"moveCollection": "db.u", "toShard": "shard1"}`)
	if asked.Load() == 0 {
		t.Error("moveCollection has another name")
	}
}
