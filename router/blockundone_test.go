package router_test

import (
	"sync/atomic"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A shard refuses the first phase of setUserWriteBlockMode for good: the command fails, and users may do what they could before, on all shards, also if a message that undoes it is lost, or the config server loses its
// primary before one of the steps that do. DDL used to stay blocked on the shards that had prepared.
func TestBlockIsUndone(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"", "restoreOnConfigServer", "restoreOnShards"} {
		var refuses, lost atomic.Bool
		c := newWatchedCluster(t, 2, func(shard string, m *wire.Message) error {
			if string(m.CommandName()) != "_shardsvrSetUserWriteBlockMode" {
				return nil
			}
			switch blocks := value.Lookup(m.Body, "global").Truthy(); {
			case blocks && shard == "shard1" && refuses.Load():
				return mongoerr.New(mongoerr.Unauthorized, "the shard refuses")
			case !blocks && shard == "shard0" && lost.CompareAndSwap(false, true):
				return mongoerr.New(mongoerr.HostUnreachable, "the message is lost")
			}
			return nil
		})
		c.run("db", `{"insert": "plain", "documents": [{"_id": 1}]}`)
		is := func(want string) {
			t.Helper()
			c.expect(c.blocked(c.confP), want)
			for _, p := range c.shards {
				c.expect(c.blocked(p), want)
			}
		}
		refuses.Store(true)
		if step == "" {
			if m := c.raw("admin", blockWrites); m["code"] != int32(mongoerr.Unauthorized) {
				t.Errorf("the block: %v", m)
			}
		} else {
			reached, release := c.hangOn("config", hangBeforePhase, "phase", step)
			first := c.later("admin", blockWrites)
			reached()
			c.depose()
			<-first
			c.reshardings()
			release()
			c.until("no state document is left", func() bool { return c.coordinators() == "[]" })
		}
		if !lost.Load() {
			t.Errorf("undone at %q without a message to shard0", step)
		}
		is(`""`)
		c.run("db", `{"create": "after"}`)
		refuses.Store(false)
		c.run("admin", blockWrites)
		refuses.Store(true)
		if m := c.raw("admin", blockWrites); m["code"] != int32(mongoerr.Unauthorized) {
			t.Errorf("the block, again: %v", m)
		}
		is(`"writes"`)
	}
}
