package router_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
)

// configReads is the config server as a set, and records what is read of the catalog without a read concern.
type configReads struct {
	cluster.Peer
	mu    sync.Mutex
	plain []string
}

func (s *configReads) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	switch coll := value.Lookup(m.Body, "find").Str(); {
	case !slices.Contains([]string{"collections", "chunks", "tags", "databases", "shards"}, coll):
	case value.LookupDoc(m.Body, "readConcern") == nil:
		s.mu.Lock()
		s.plain = append(s.plain, coll)
		s.mu.Unlock()
	}
	return s.Peer.Call(ctx, m, dst)
}

func (s *configReads) CallOn(ctx context.Context, _ *cluster.ReadPreference, m *wire.Message, dst []byte) ([]byte, cluster.Peer, error) {
	dst, err := s.Call(ctx, m, dst)
	return dst, s, err
}

// A shard that coordinates DDL reads the catalog with majority, in a state not older than what it knows of: a primary of the config server that was deposed
// without knowing it would not have the entry of a collection that was just sharded, and a drop would leave the other shards' documents.
func TestCoordinatorsReadTheCatalogByMajority(t *testing.T) {
	c := newTestCluster(t, 1)
	reads := &configReads{Peer: c.confP}
	c.confP = cluster.NewConfigServer(reads, c.clock, false)
	s := c.opened(shardnode.Config{SetName: "shard1", Host: "shard1:27018"})
	if err := s.Initiate(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.join("shard1", "shard1:27018", s)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard1"}`)
	c.shardedAs("c", 1, 10)
	for _, x := range []struct{ db, cmd string }{
		{"db", `{"collMod": "c", "validator": {}}`}, {"db", `{"create": "plain"}`}, {"admin", `{"renameCollection": "db.c", "to": "db.d"}`}, {"db", `{"checkMetadataConsistency": 1}`},
		{"admin", `{"moveCollection": "db.plain", "toShard": "shard0"}`}, {"admin", `{"moveCollection": "db.plain", "toShard": "shard1"}`}, {"admin", `{"untrackUnshardedCollection": "db.plain"}`},
		{"db", `{"drop": "d"}`}, {"admin", `{"movePrimary": "db", "to": "shard0"}`}, {"admin", `{"movePrimary": "db", "to": "shard1"}`}, {"db", `{"dropDatabase": 1}`},
	} {
		c.run(x.db, x.cmd)
		reads.mu.Lock()
		if len(reads.plain) > 0 {
			t.Errorf("%s reads %v", x.cmd, reads.plain)
			reads.plain = nil
		}
		reads.mu.Unlock()
	}
}

// Databases are created and dropped while the cluster is checked: none of their collections is reported to lack a database because the catalog was read twice.
func TestConsistencyBesideDatabasesThatComeAndGo(t *testing.T) {
	for _, came := range []bool{true, false} {
		c := newTestCluster(t, 1)
		do := func() {
			c.run("admin", `{"shardCollection": "db.c", "key": {"_id": 1}}`)
		}
		if !came {
			do()
			do = func() { c.run("db", `{"dropDatabase": 1}`) }
		}
		between := &secondRead{Peer: c.confP, before: do}
		c.confP = between
		other := c.through()
		c.confP = between.Peer
		other.expect(other.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
		if between.n < 2 {
			t.Error("the catalog was not read twice")
		}
	}
}

// secondRead is a config server at which something happens before the second of the catalog's two collections is read as a whole.
type secondRead struct {
	cluster.Peer
	n      int
	before func()
}

func (s *secondRead) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	if coll := value.Lookup(m.Body, "find").Str(); (coll == "collections" || coll == "databases") && len(value.Values(value.LookupDoc(m.Body, "filter"))) == 0 {
		if s.n++; s.n == 2 {
			s.before()
		}
	}
	return s.Peer.Call(ctx, m, dst)
}

// A shard receives its first chunk of a collection while the database is checked, after the shard was asked for its collections: it is not reported to lack the
// collection.
func TestConsistencyBesideAMigration(t *testing.T) {
	c := newTestCluster(t, 2)
	reads := &chunksRead{Peer: c.confP}
	plain := c.confP
	c.confP = reads
	s := c.opened(shardnode.Config{SetName: "shard2", Host: "shard2:27018"})
	if err := s.Initiate(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.join("shard2", "shard2:27018", s)
	c.confP = plain
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard2"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard0", "_waitForDelete": true}`)
	other := c.through()
	moved := false
	reads.before = func() {
		if !moved {
			moved = true
			other.run("admin", `{"moveChunk": "db.c", "find": {"k": 0}, "to": "shard1", "_waitForDelete": true}`)
		}
	}
	c.expect(c.all("db", `{"checkMetadataConsistency": 1}`), `[]`)
	if !moved {
		t.Error("the chunks were not read")
	}
}

// chunksRead is a config server at which something may happen before chunks are read.
type chunksRead struct {
	cluster.Peer
	before func()
}

func (s *chunksRead) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	if s.before != nil && value.Lookup(m.Body, "find").Str() == "chunks" {
		s.before()
	}
	return s.Peer.Call(ctx, m, dst)
}
