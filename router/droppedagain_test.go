package router_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
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

// A createIndexes or collMod that a shard has executed, and whose reply is lost, is answered as if it had been executed once. The numbers of indexes were those after it, with a note that all existed, and
// nothing was reported as changed.
func TestReplyOfShardsThatHaveExecutedItBefore(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ sent, cmd string }{
		{"createIndexes", `{"createIndexes": "COLL", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"k": 1}, "name": "k_1"}, {"key": {"b": 1}, "name": "b"}]}`},
		{"createIndexes", `{"createIndexes": "COLL", "indexes": [{"key": {"a": 1}, "name": "a"}], "commitQuorum": 1}`},
		{"collMod", `{"collMod": "COLL", "index": {"name": "x", "hidden": true, "expireAfterSeconds": 10}}`},
		{"collMod", `{"collMod": "COLL", "validationLevel": "off"}`},
	} {
		var want []bson.M
		for _, lost := range []bool{false, true} {
			c := newTestCluster(t, 2)
			s := c.interposed("shard1")
			c.halved("c")
			c.insertKeys("moved", 1, 10)
			c.run("admin", `{"moveCollection": "db.moved", "toShard": "shard1"}`)
			colls := []string{"c", "moved"}
			if x.sent == "createIndexes" {
				colls = colls[:1] // that of a collection on one shard is the router's
			}
			for i, coll := range colls {
				c.run("db", `{"createIndexes": "`+coll+`", "indexes": [{"key": {"x": 1}, "name": "x", "expireAfterSeconds": 5}]}`)
				var n atomic.Int64
				s.through(func(_ context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
					out, err := call()
					if name == x.sent && n.Add(1) == 1 && lost {
						return nil, mongoerr.New(mongoerr.HostUnreachable, "the reply is lost")
					}
					return out, err
				})
				m := c.run("db", strings.ReplaceAll(x.cmd, "COLL", coll))
				s.by.Store(nil)
				delete(m, "operationTime")
				delete(m, "$clusterTime")
				switch {
				case !lost:
					want = append(want, m)
				case !reflect.DeepEqual(m, want[i]) || n.Load() != 2:
					t.Errorf("%s, sent %d times: %v, want %v", x.cmd, n.Load(), m, want[i])
				}
			}
			c.leftOver()
		}
	}
}
