package router_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

const ownLSID = `"lsid": {"id": {"$binary": {"base64": "AAAAAAAAQACAAAAAAAAABQ==", "subType": "04"}}}`

// endSessions on one router used not to end the cursors of other nodes: shards did not read the sessions collection.
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
	now := time.Now().UnixMilli()
	c.until("the clock's next millisecond: the next refresh writes only what is used from here on", func() bool { return time.Now().UnixMilli() > now+1 })
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
	if m := other.raw("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c", %s}`, there, ownLSID)); m["code"] != int32(mongoerr.CursorNotFound) {
		t.Errorf("the other router's cursor: %v", m)
	}
}

// The session records used to be on the config server only.
func TestSessionsCollectionIsSharded(t *testing.T) {
	c := newTestCluster(t, 2)
	c.params["config"].Store("minNumChunksForSessionsCollection", value.NewInt32(64)) // a migration of each of 1,024 takes its time
	lsid := func(i int) string {
		return fmt.Sprintf(`"lsid": {"id": {"$binary": {"base64": "%s", "subType": "04"}}}`, base64.StdEncoding.EncodeToString(append(make([]byte, 0, 16), byte(i*4), 1, 2, 3, 4, 5, 0x40, 7, 0x80, 9, 10, 11, 12, 13, 14, 15)))
	}
	for i := range 64 {
		c.run("db", `{"find": "c", `+lsid(i)+`}`)
	}
	refresh := func(x *testCluster) { t.Helper(); x.run("admin", `{"refreshLogicalSessionCacheNow": 1}`) }
	refresh(c)
	counts := func() (chunks, docs map[string]int) {
		t.Helper()
		chunks, docs = map[string]int{}, map[string]int{}
		entry := c.all("config", `{"find": "collections", "filter": {"_id": "config.system.sessions"}}`)
		if len(entry) != 1 {
			t.Fatalf("the collection's entries: %v", entry)
		}
		for _, d := range c.all("config", `{"find": "chunks"}`) {
			chunks[get(d, "shard").(string)]++
		}
		for id, p := range c.shards {
			docs[id] = int(c.admin(p, bson.D{{Key: "count", Value: "system.sessions"}, {Key: "$db", Value: "config"}})["n"].(int32))
		}
		return chunks, docs
	}
	chunks, docs := counts()
	if fmt.Sprint(chunks) != "map[shard0:32 shard1:32]" || fmt.Sprint(docs) != "map[shard0:32 shard1:32]" {
		t.Errorf("chunks %v, records %v", chunks, docs)
	}
	if n := c.admin(c.confP, bson.D{{Key: "count", Value: "system.sessions"}, {Key: "$db", Value: "config"}})["n"]; n != int32(0) {
		t.Errorf("%v records on the config server", n)
	}
	if n := len(c.all("config", `{"aggregate": "system.sessions", "pipeline": [{"$listSessions": {"allUsers": true}}], "cursor": {}}`)); n != 64 {
		t.Errorf("$listSessions shows %d", n)
	}
	ttl := c.all("config", `{"listIndexes": "system.sessions"}`)
	if len(ttl) != 2 || get(ttl[1], "expireAfterSeconds") != int32(1800) {
		t.Errorf("indexes: %v", ttl)
	}

	// A range moves: a router with the old placement writes and finds the records on their new shard, and no session ends.
	other := c.through()
	other.run("db", `{"find": "c", `+lsid(3)+`}`)
	refresh(other)
	c.run("admin", `{"moveRange": "config.system.sessions", "min": {"_id": {"$minKey": 1}}, "toShard": "shard1"}`)
	other.run("db", `{"find": "c", `+lsid(0)+`}`)
	refresh(other)
	refresh(c)
	if n := len(c.all("config", `{"find": "system.sessions"}`)); n != 64 {
		t.Errorf("%d records after a move", n)
	}

	// Another shard gets its share by the number of chunks.
	third := c.opened(shardnode.Config{SetName: "shard2", Host: "shard2:27018"})
	if err := third.Initiate(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.join("shard2", "shard2:27018", third)
	for i := 0; i < 400; i++ {
		if n, err := c.config.BalancerRound(t.Context()); err == nil && n == 0 {
			break // a round that could not move something is followed by another
		}
	}
	if chunks, _ = counts(); chunks["shard2"] < 16 {
		t.Errorf("chunks with a third shard: %v", chunks)
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
