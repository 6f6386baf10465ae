package router_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The reply to a create, or to a retryable write, is lost, and users are blocked before it is sent again: it is answered as it was, if it was executed, and refused if not. It used to be refused always.
func TestSentAgainWhileUsersAreBlocked(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	w := c.interposed("shard0")
	c.run("admin", `{"enableSharding": "db"}`)
	c.run("db", `{"insert": "plain", "documents": [{"_id": 1}]}`)
	for _, executed := range []bool{true, false} {
		name := map[bool]string{true: "made", false: "missing"}[executed]
		for _, cmd := range []string{
			`{"create": "` + name + `"}`, `{"create": "` + name + `View", "viewOn": "plain"}`, `{"create": "` + name + `Series", "timeseries": {"timeField": "t"}}`,
			`{"create": "` + name + `Capped", "capped": true, "size": 4096}`,
		} {
			var lost atomic.Bool
			w.through(func(_ context.Context, sent string, call func() ([]byte, error)) ([]byte, error) {
				if sent != "_shardsvrCreateCollection" || !lost.CompareAndSwap(false, true) {
					return call()
				}
				if executed {
					if _, err := call(); err != nil {
						t.Errorf("%s: %v", cmd, err)
					}
				}
				c.run("admin", blockWrites)
				return nil, mongoerr.New(mongoerr.HostUnreachable, "the reply is lost")
			})
			m := c.raw("db", cmd)
			if executed && m["ok"] != 1.0 {
				t.Errorf("%s, executed before: %v", cmd, m)
			}
			if !executed {
				c.refusedAsBlocked(cmd, m)
			}
			c.refusedAsBlocked("a new create", c.raw("db", `{"create": "other"}`))
			c.run("admin", allowWrites)
		}
	}
	insert := retryable(`{"insert": "plain", "documents": [{"_id": 2}]}`, 1)
	c.run("db", insert)
	c.run("admin", blockWrites)
	c.expect(c.run("db", insert)["retriedStmtIds"], `[0]`)
	c.refusedAsBlocked("a new insert", c.raw("db", retryable(`{"insert": "plain", "documents": [{"_id": 3}]}`, 2)))
}

// The reply to a movePrimary is lost, and before it is sent again, the database moves back and the recipient is removed from the cluster: it is answered as it was. It used to be told that there is no such shard.
func TestMovePrimarySentAgainWithoutItsRecipient(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	home := c.interposed("shard0")
	other := c.through()
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	var lost atomic.Bool
	home.through(func(_ context.Context, sent string, call func() ([]byte, error)) ([]byte, error) {
		if sent != "_shardsvrMovePrimary" || !lost.CompareAndSwap(false, true) {
			return call()
		}
		if _, err := call(); err != nil {
			t.Error(err)
		}
		other.run("admin", `{"movePrimary": "db", "to": "shard0"}`)
		c.until("shard1 is removed", func() bool { return other.run("admin", `{"removeShard": "shard1"}`)["state"] == "completed" })
		return nil, mongoerr.New(mongoerr.HostUnreachable, "the reply is lost")
	})
	c.run("admin", `{"movePrimary": "db", "to": "shard1"}`)
	if !lost.Load() {
		t.Error("it has been sent once")
	}
	c.expect(c.run("db", `{"count": "c"}`)["n"], "1")
}
