package router_test

import (
	"context"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A dropDatabase whose last steps are repeated does not touch a new database of the name, whose primary is a shard that has joined since: what that shards in it waits on the others until the
// names are free.
func TestDropDatabaseAgainSparesANewOne(t *testing.T) {
	var config *interposedPeer
	c := newHookedCluster(t, 2, clusterHooks{peer: func(set string, s *shardnode.Server) cluster.Peer {
		if set != "config" {
			return s.Peer()
		}
		config = &interposedPeer{Peer: s.Peer()}
		return config
	}})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 30)
	came, free := make(chan struct{}), make(chan struct{})
	var n atomic.Int64
	config.through(func(_ context.Context, command string, call func() ([]byte, error)) ([]byte, error) {
		reply, err := call()
		if command == "_configsvrRemoveDatabase" && n.Add(1) == 1 {
			close(came)
			<-free
			return nil, mongoerr.New(mongoerr.NotWritablePrimary, "not primary")
		}
		return reply, err
	})
	dropped := c.later("db", `{"dropDatabase": 1}`)
	<-came
	c.addSet("shardx")
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shardx"}`)
	c.run("db", `{"insert": "plain", "documents": [{"_id": 1}]}`)
	var asked atomic.Bool
	c.interposed("shard1").through(func(_ context.Context, command string, call func() ([]byte, error)) ([]byte, error) {
		if command == "_shardsvrParticipantBlock" {
			asked.Store(true)
		}
		return call()
	})
	sharded := c.later("admin", `{"shardCollection": "db.n", "key": {"k": "hashed"}}`)
	var m bson.M
	c.until("it waits for a shard", func() bool {
		select {
		case m = <-sharded:
			c.insertKeys("n", 1, 30)
			return true
		default:
			return asked.Load()
		}
	})
	close(free)
	if m := <-dropped; m["ok"] != 1.0 {
		t.Error(m)
	}
	if m == nil {
		m = <-sharded
		c.insertKeys("n", 1, 30)
	}
	if m["ok"] != 1.0 {
		t.Fatal(m)
	}
	c.leftOver()
	c.expect(c.counted("n", 1), `30`)
	c.expect(c.all("db", `{"find": "plain"}`), `[{"_id":1}]`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
}
