package shardnode

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// fakeConfig is a config server that knows one database, d, and no sharded collection.
type fakeConfig struct {
	version atomic.Int32  // of the database: from 2 on its primary is another shard
	asked   chan struct{} // receives a value for each request for the database's entry
}

func (c *fakeConfig) dbVersion(n int32) cluster.DatabaseVersion {
	return cluster.DatabaseVersion{UUID: [16]byte{1}, Timestamp: 1 << 32, LastMod: n}
}

// Call implements cluster.Peer.
func (c *fakeConfig) Call(_ context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	var docs []value.Value
	if value.Lookup(m.Body, "find").Str() == "databases" {
		v := c.version.Load()
		docs = append(docs, value.NewDocument(value.Doc(value.F("_id", value.NewString("d")),
			value.F("primary", value.NewString(fmt.Sprintf("shard%d", v))), value.F("version", value.NewDocument(c.dbVersion(v).Doc())))))
		select {
		case c.asked <- struct{}{}:
		default:
		}
	}
	cur := value.Doc(value.F("firstBatch", value.NewArray(value.ArrayOf(docs...))), value.F("id", value.NewInt64(0)), value.F("ns", value.NewString("config.x")))
	return append(dst, value.Doc(value.F("cursor", value.NewDocument(cur)), value.F("ok", value.NewDouble(1)))...), nil
}

// Commands that change the catalog checked versions before they waited for their locks, and not after: one that had waited
// while the database moved to another shard dropped, renamed or created collections where the database no longer was.
func TestDDLComparesVersionsUnderItsLocks(t *testing.T) {
	n := newTestNode(t)
	node := n.srv.Node
	conf := &fakeConfig{asked: make(chan struct{}, 1)}
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1}]}`)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`)
	before := n.first("d", `{"listCollections": 1}`)
	state := migration.NewShardState("shard1", cluster.NewCatalog(conf), nil, n.srv.Clock)
	node.shard.Become(state)
	for _, s := range []struct{ db, cmd string }{
		{"d", `{"drop": "c"}`},
		{"d", `{"create": "new"}`},
		{"d", `{"collMod": "c", "index": {"name": "a", "hidden": true}}`},
		{"d", `{"createIndexes": "c", "indexes": [{"key": {"b": 1}, "name": "b"}]}`},
		{"d", `{"dropIndexes": "c", "index": "a"}`},
		{"d", `{"convertToCapped": "c", "size": 4096}`},
		{"d", `{"cloneCollectionAsCapped": "c", "toCollection": "new", "size": 4096}`},
		{"admin", `{"renameCollection": "d.c", "to": "d.new"}`},
	} {
		conf.version.Store(1)
		state.Catalog.Clear()
		for len(conf.asked) > 0 {
			<-conf.asked
		}
		held := node.locks.NewLocker()
		for _, ns := range []string{"d.c", "d.new"} {
			if err := held.LockCollection(context.Background(), "d", ns, lock.X); err != nil {
				t.Fatal(err)
			}
		}
		var d bson.D
		if err := bson.UnmarshalExtJSON([]byte(s.cmd), false, &d); err != nil {
			t.Fatal(err)
		}
		body, err := bson.Marshal(append(d, bson.E{Key: "$db", Value: s.db}, bson.E{Key: "shardVersion", Value: bson.Raw(cluster.Unsharded.Doc())},
			bson.E{Key: "databaseVersion", Value: bson.Raw(conf.dbVersion(1).Doc())}))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan []byte, 1)
		go func() { done <- n.srv.Service.Run(n.t.Context(), n.cl, &wire.Message{Body: body}, nil) }()
		select {
		case <-conf.asked: // the versions are checked the first time
		case reply := <-done:
			t.Fatalf("%s: %s", s.cmd, value.ShowDoc(reply))
		case <-time.After(20 * time.Second):
			t.Fatalf("%s compares no versions", s.cmd)
		}
		conf.version.Store(2)
		state.Catalog.Clear()
		held.UnlockAll()
		reply := <-done
		if code, _ := value.Lookup(reply, "code").AsInt64(); code != int64(mongoerr.StaleDbVersion) {
			t.Errorf("%s: %s", s.cmd, value.ShowDoc(reply))
		}
		if now := n.first("d", `{"listCollections": 1}`); fmt.Sprint(now) != fmt.Sprint(before) {
			t.Fatalf("%s: %v, was %v", s.cmd, now, before)
		}
	}
}

// No client can change a shard's identity; on a node that does not run as a shard, an administrator can repair it.
func TestIdentityOfAShardStays(t *testing.T) {
	n := newTestNode(t)
	n.ok("admin", `{"insert": "system.version", "documents": [{"_id": "shardIdentity", "shardName": "x"}]}`)
	set := func(name string) string {
		return `{"update": "system.version", "updates": [{"q": {"_id": "shardIdentity"}, "u": {"$set": {"shardName": "` + name + `"}}}]}`
	}
	if m := n.ok("admin", set("y")); m["nModified"] != int32(1) {
		t.Errorf("on a node that is not a shard: %v", m)
	}
	n.srv.Node.shard.Become(migration.NewShardState("shard1", cluster.NewCatalog(&fakeConfig{}), nil, n.srv.Clock))
	for _, cmd := range []string{set("z"), `{"delete": "system.version", "deletes": [{"q": {"_id": "shardIdentity"}, "limit": 1}]}`} {
		if m := n.do("admin", cmd); !strings.Contains(fmt.Sprint(m["writeErrors"]), "40070") {
			t.Errorf("%s: %v", cmd, m)
		}
	}
}
