package router_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// What a coordinator asks other shards to change carries the comment of its client's command.
func TestCommentsReachParticipants(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	with, without := map[string]bool{}, map[string]bool{}
	c := newWatchedCluster(t, 2, func(shard string, m *wire.Message) error {
		mu.Lock()
		defer mu.Unlock()
		name := string(m.CommandName())
		if shard == "shard1" && (strings.Contains(name, "Participant") || name == "collMod" || name == "dropIndexes") {
			if value.Lookup(m.Body, "comment").IsMissing() {
				without[name] = true
			} else {
				with[name] = true
			}
		}
		return nil
	})
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	for _, x := range [][2]string{
		{"admin", `{"shardCollection": "db.c", "key": {"k": "hashed"}`}, {"db", `{"createIndexes": "c", "indexes": [{"key": {"k": "hashed", "g": 1}, "name": "kg"}, {"key": {"x": 1}, "name": "x"}]`},
		{"db", `{"collMod": "c", "validationLevel": "moderate"`}, {"db", `{"dropIndexes": "c", "index": "x"`}, {"admin", `{"refineCollectionShardKey": "db.c", "key": {"k": "hashed", "g": 1}`},
		{"admin", `{"renameCollection": "db.c", "to": "db.d"`}, {"db", `{"drop": "d"`}, {"db", `{"dropDatabase": 1`},
	} {
		c.run(x[0], x[1]+`, "comment": "of the client"}`)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, name := range []string{"_shardsvrParticipantBlock", "_shardsvrRenameCollectionParticipant", "_shardsvrDropCollectionParticipant", "_shardsvrDropDatabaseParticipant", "collMod", "dropIndexes"} {
		if !with[name] {
			t.Errorf("%s came without the comment: %v", name, without[name])
		}
		delete(without, name)
	}
	var rest []string
	for name := range without {
		rest = append(rest, name)
	}
	slices.Sort(rest)
	t.Logf("without a comment: %v", rest)
}
