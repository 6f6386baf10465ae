package router_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The reply to a DDL is lost, and before its router sends it again another client uses the names, whose database may have another primary shard by then, or be a new one: the DDL is answered as the first
// time, and nothing is done to what has been created since. It used to be executed once more. If it is sent again so late that its outcome is forgotten, it is refused.
func TestDDLSentAgainSparesWhatWasCreatedSince(t *testing.T) {
	const moved = `{"movePrimary": "db", "to": "shard1"}`
	type step struct{ db, cmd string }
	fresh := func(coll string) step {
		return step{"db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 1, "new": 1}, {"_id": 2, "new": 1}]}`, coll)}
	}
	sharded := step{"admin", `{"shardCollection": "db.s", "key": {"_id": "hashed"}}`}
	for _, x := range []struct {
		db, cmd, sent string
		since         []step
	}{
		{"db", `{"drop": "s"}`, "_shardsvrDropCollection", []step{fresh("s")}},
		{"db", `{"drop": "s"}`, "_shardsvrDropCollection", []step{sharded, fresh("s")}},
		{"db", `{"drop": "s"}`, "_shardsvrDropCollection", []step{{"admin", moved}, fresh("s")}},
		{"db", `{"drop": "plain"}`, "_shardsvrDropCollection", []step{fresh("plain")}},
		{"db", `{"drop": "plain"}`, "_shardsvrDropCollection", []step{{"admin", moved}, fresh("plain")}},
		{"db", `{"dropDatabase": 1}`, "_shardsvrDropDatabase", []step{{"admin", `{"enableSharding": "db", "primaryShard": "shard0"}`}, fresh("s")}},
		{"db", `{"dropDatabase": 1}`, "_shardsvrDropDatabase", []step{{"admin", `{"enableSharding": "db", "primaryShard": "shard1"}`}, fresh("s")}},
		{"admin", `{"renameCollection": "db.s", "to": "db.t", "dropTarget": true}`, "_shardsvrRenameCollection", []step{fresh("s")}},
		{"admin", `{"renameCollection": "db.s", "to": "db.t", "dropTarget": true}`, "_shardsvrRenameCollection", []step{{"admin", moved}, fresh("s")}},
		{"admin", `{"renameCollection": "db.plain", "to": "db.t", "dropTarget": true}`, "_shardsvrRenameCollection", []step{{"admin", moved}, fresh("plain")}},
		{"db", `{"convertToCapped": "plain", "size": 4096}`, "_shardsvrConvertToCapped", []step{{"admin", moved}, {"db", `{"drop": "plain"}`}, fresh("plain")}},
		{"db", `{"create": "n", "capped": true, "size": 4096}`, "_shardsvrCreateCollection", []step{{"db", `{"drop": "n"}`}, fresh("n")}},
		{"db", `{"create": "n", "capped": true, "size": 4096}`, "_shardsvrCreateCollection", []step{{"admin", moved}, {"db", `{"drop": "n"}`}, fresh("n")}},
		{"db", `{"create": "n"}`, "_shardsvrCreateCollection", []step{{"db", `{"drop": "n"}`}}},
		{"db", `{"collMod": "plain", "validator": {"old": 1}}`, "_shardsvrCollMod", []step{{"admin", moved}, {"db", `{"drop": "plain"}`}, fresh("plain")}},
		{"db", `{"collMod": "plain", "validator": {"old": 1}}`, "_shardsvrCollMod", []step{{"db", `{"drop": "plain"}`}, fresh("plain")}},
		{"db", `{"dropIndexes": "plain", "index": "k"}`, "_shardsvrDropIndexes", []step{{"db", `{"createIndexes": "plain", "indexes": [{"key": {"k": 1}, "name": "k"}]}`}}},
		{"admin", moved, "_shardsvrMovePrimary", []step{{"admin", `{"movePrimary": "db", "to": "shard0"}`}}},
		{"admin", `{"shardCollection": "db.n", "key": {"k": 1}}`, "_shardsvrShardCollection", []step{{"db", `{"drop": "n"}`}, {"admin", moved}, fresh("n")}},
	} {
		for _, forgotten := range []bool{false, true} {
			c := newTestCluster(t, 2)
			home := c.interposed("shard0")
			c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
			c.shardedAs("s", 1, 10)
			c.shardedAs("t", 1, 10)
			c.insertKeys("plain", 1, 10)
			c.run("db", `{"createIndexes": "plain", "indexes": [{"key": {"k": 1}, "name": "k"}]}`)
			came, free := make(chan struct{}), make(chan struct{})
			var n atomic.Int64
			var first atomic.Value
			home.through(func(_ context.Context, command string, call func() ([]byte, error)) ([]byte, error) {
				reply, err := call()
				if command == x.sent && n.Add(1) == 1 {
					first.Store(fmt.Sprint(err))
					close(came)
					<-free
					return nil, mongoerr.New(mongoerr.HostUnreachable, "connection reset")
				}
				return reply, err
			})
			answer := c.later(x.db, x.cmd)
			<-came
			other := c.through()
			for _, s := range x.since {
				other.run(s.db, s.cmd)
			}
			state := func() string {
				var all []string
				for _, coll := range []string{"s", "t", "plain", "n"} {
					all = append(all, fmt.Sprint(coll, other.all("db", fmt.Sprintf(`{"find": %q, "sort": {"_id": 1}}`, coll))))
				}
				all = append(all, fmt.Sprint(other.all("db", `{"listCollections": 1}`)), fmt.Sprint(other.raw("db", `{"listIndexes": "plain"}`)["cursor"]), fmt.Sprint(other.all("config", `{"find": "databases"}`)))
				return strings.Join(all, "\n")
			}
			before := state()
			if forgotten {
				c.admin(c.shards["shard0"], bson.D{{Key: "delete", Value: "system.sharding_ddl_outcomes"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}, {Key: "$db", Value: "config"}})
				c.clock.AdvanceCluster(c.clock.ClusterTime() + 11*60<<32)
			}
			close(free)
			m := <-answer
			if forgotten {
				if m["code"] != int32(mongoerr.ExceededTimeLimit) {
					t.Errorf("%s, sent again when its outcome is forgotten: %v", x.cmd, m)
				}
			} else if m["ok"] != 1.0 || strings.HasPrefix(x.cmd, `{"drop"`) && strings.Contains(x.cmd, `"drop":`) && m["ns"] == nil {
				t.Errorf("%s, sent again after %v: %v", x.cmd, x.since, m)
			}
			if after := state(); after != before {
				t.Errorf("%s, sent again after %v, has changed\n%.1500s\nto\n%.1500s", x.cmd, x.since, before, after)
			}
			c.leftOver()
		}
	}
}
