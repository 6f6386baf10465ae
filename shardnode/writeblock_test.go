package shardnode

import (
	"testing"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// On a set that is no shard, DDL that was admitted before users were blocked, and waits for its collection or database, is refused once it has that. It used to be executed after the reply.
func TestDDLThatWaitsWhenUsersAreBlocked(t *testing.T) {
	for _, x := range []struct{ db, cmd string }{
		{"d", `{"drop": "c"}`}, {"d", `{"create": "c"}`}, {"d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`}, {"d", `{"dropIndexes": "c", "index": "b"}`},
		{"d", `{"collMod": "c", "validator": {"a": 1}}`}, {"d", `{"convertToCapped": "c", "size": 4096}`}, {"admin", `{"renameCollection": "d.c", "to": "d.e"}`}, {"d", `{"dropDatabase": 1}`},
	} {
		n := newTestNode(t)
		n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
		n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}]}`)
		locks, other := n.srv.Node.locks, n.other()
		unlock, err := locks.Collection(t.Context(), "d.c", lock.X)
		if err != nil {
			t.Fatal(err)
		}
		code, blocked := make(chan mongoerr.Code, 1), make(chan int32, 1)
		go func() { code <- mongoerr.Code(n.code(x.db, x.cmd)) }()
		await.True(t, x.cmd+" waits for the lock", func() bool {
			readers, writers := locks.Queued()
			return readers+writers == 1
		})
		go func() { blocked <- other.code("admin", `{"setUserWriteBlockMode": 1, "global": true}`) }()
		await.True(t, "users are blocked", func() bool {
			return len(other.first("config", `{"find": "user_writes_critical_sections"}`)) == 1
		})
		unlock()
		if got := <-code; got != mongoerr.UserWritesBlocked {
			t.Errorf("%s: %v", x.cmd, got)
		}
		if got := <-blocked; got != 0 {
			t.Errorf("the block: %d", got)
		}
		c := n.srv.Engine.Catalog().Lookup("d.c")
		if c == nil || c.Capped || c.Index("a") != nil || c.Index("b") == nil {
			t.Errorf("%s was executed: %+v", x.cmd, c)
		}
	}
}
