package router_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
)

// lost loses the reply to the first command of a name that the shard executes, and its sender then waits until it is no longer primary; reached waits for that.
func (w *interposedPeer) lost(c *testCluster, command string) (reached func()) {
	came := make(chan struct{})
	var once atomic.Bool
	w.through(func(ctx context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		out, err := call()
		if name == command && once.CompareAndSwap(false, true) {
			close(came)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return out, err
	})
	return func() {
		c.t.Helper()
		c.until(command+" has been executed", func() bool { return closed(came) })
	}
}

// A dropIndexes that all shards have executed is continued by another primary: its reply is that of the first execution. It used to have the number of indexes on the primary shard of the
// database, also for a collection that is on another one, and the number that "*" had left.
func TestReplyToDropIndexesThatIsContinued(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	s := c.interposed("shard1")
	c.halved("c")
	c.insertKeys("moved", 1, 10)
	c.run("admin", `{"moveCollection": "db.moved", "toShard": "shard1"}`)
	const indexes = `"indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"b": 1}, "name": "b"}, {"key": {"d": 1}, "name": "d"}]}`
	for _, names := range []string{`"a"`, `["a", "b"]`, `{"d": 1}`, `"*"`} {
		for _, coll := range []string{"c", "moved"} {
			c.run("db", `{"createIndexes": "`+coll+`", `+indexes)
			reached := s.lost(c, "dropIndexes")
			dropped := c.later("db", `{"dropIndexes": "`+coll+`", "index": `+names+`}`)
			reached()
			c.restart("shard0")
			m := <-dropped
			s.by.Store(nil)
			var got []any
			if coll == "moved" {
				got = append(got, m["nIndexesWas"])
			} else {
				for _, shard := range []string{"shard0/shard0:27018", "shard1/shard1:27018"} {
					got = append(got, get(get(m["raw"], shard), "nIndexesWas"))
				}
			}
			if want := map[string]string{"c": "[5 5]", "moved": "[4]"}[coll]; m["ok"] != 1.0 || fmt.Sprint(got) != want {
				t.Errorf("%s of %s: %v in %v", names, coll, got, m)
			}
		}
	}
	c.expect(c.all("db", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
	c.leftOver()
}
