package router_test

import (
	"context"
	"sync"
	"testing"
)

// The primary of the coordinator is lost after all shards have dropped an index, and before it has noted that. Its successor finds the index nowhere, and answers as the first
// would have: it answered IndexNotFound.
func TestDropIndexesIsContinuedAfterItIsDone(t *testing.T) {
	for _, coll := range []string{"c", "moved"} {
		c := newTestCluster(t, 2)
		s := c.interposed("shard1")
		c.halved("c")
		c.run("db", `{"create": "moved"}`)
		c.run("admin", `{"moveCollection": "db.moved", "toShard": "shard1"}`)
		c.run("db", `{"createIndexes": "`+coll+`", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"b": 1}, "name": "b"}]}`)
		want := c.run("db", `{"dropIndexes": "`+coll+`", "index": "b"}`)
		came := make(chan struct{})
		var first sync.Once
		s.through(func(ctx context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
			reply, err := call()
			if name == "dropIndexes" {
				first.Do(func() {
					close(came)
					<-ctx.Done() // the reply is lost
					reply, err = nil, ctx.Err()
				})
			}
			return reply, err
		})
		dropped := c.later("db", `{"dropIndexes": "`+coll+`", "index": "a"}`)
		<-came
		c.until("no shard has the index", func() bool { return len(c.hasIndex("db."+coll, "a")) == 0 })
		c.restart("shard0")
		m := <-dropped
		if m["ok"] != 1.0 || m["code"] != nil {
			t.Errorf("%s: %v", coll, m)
		}
		if len(m) != len(want) {
			t.Errorf("%s: %v, want the fields of %v", coll, m, want)
		}
		if got := len(c.hasIndex("db."+coll, "a")); got != 0 {
			t.Errorf("%s: %d shards have the index", coll, got)
		}
	}
}
