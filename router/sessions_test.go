package router_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire"
)

const ownLSID = `"lsid": {"id": {"$binary": {"base64": "AAAAAAAAQACAAAAAAAAABQ==", "subType": "04"}}}`

// endSessions on one router ended no other node's cursors: shards did not read the sessions collection.
func TestEndedSessionEndsOnEveryNode(t *testing.T) {
	c := newTestCluster(t, 2)
	c.fill(20)
	c.run("config", `{"find": "system.sessions"}`)
	other := c.through()
	find := `{"find": "c", "batchSize": 2, "noCursorTimeout": true, ` + ownLSID + `}`
	here := get(c.run("db", find)["cursor"], "id").(int64)
	there := get(other.run("db", find)["cursor"], "id").(int64)
	sync := func() {
		t.Helper()
		for _, x := range []*testCluster{c, other} {
			x.run("admin", `{"refreshLogicalSessionCacheNow": 1}`)
		}
		for id, s := range c.server {
			m := decode(t, s.Service.Run(context.Background(), c.client, &wire.Message{OpCode: wire.OpMsg, Body: mustBSON(t, bson.D{{Key: "refreshLogicalSessionCacheNow", Value: 1}, {Key: "$db", Value: "admin"}})}, nil))
			if m["ok"] != 1.0 {
				t.Fatalf("%s: %v", id, m)
			}
		}
	}
	onShards := func() (n int) {
		for _, id := range []string{"shard0", "shard1"} {
			m := c.admin(c.shards[id], bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}})
			n += int(get(get(get(m["metrics"], "cursor"), "open"), "total").(int64))
		}
		return n
	}
	open := onShards()
	if open == 0 {
		t.Fatal("the shards have no cursors")
	}
	sync()
	time.Sleep(2 * time.Millisecond) // the next refresh writes only what is used from here on
	sync()
	if n := onShards(); n != open {
		t.Fatalf("%d cursors on the shards, want %d", n, open)
	}
	if got := len(c.all("config", `{"find": "system.sessions", "filter": {"_id.id": {"$binary": {"base64": "AAAAAAAAQACAAAAAAAAABQ==", "subType": "04"}}}}`)); got != 1 {
		t.Fatalf("%d records of the session", got)
	}
	c.run("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c", "batchSize": 2, %s}`, here, ownLSID))
	sync()
	c.run("admin", `{"endSessions": [`+ownLSID[len(`"lsid": `):]+`]}`)
	sync()
	if n := onShards(); n != 0 {
		t.Errorf("%d cursors on the shards after the end of their session", n)
	}
	if m := other.raw("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c", %s}`, there, ownLSID)); m["code"] != int32(43) {
		t.Errorf("the other router's cursor: %v", m)
	}
}

func mustBSON(t *testing.T, d bson.D) []byte {
	t.Helper()
	b, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
