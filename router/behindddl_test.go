package router_test

import (
	"fmt"
	"testing"
)

// A transaction that begins right after an operation that has moved ranges between shards succeeds, even on a shard on which no client has written
// since: the end of its critical section is a write after their arrival.
func TestTransactionsBeginRightBehindOperations(t *testing.T) {
	c := newTestCluster(t, 3)
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	id := 0
	for round := range 3 {
		for _, cmd := range []string{
			`{"shardCollection": "d.c%d", "key": {"_id": "hashed"}}`,
			`{"reshardCollection": "d.c%d", "key": {"k": "hashed"}, "numInitialChunks": 6}`,
			`{"unshardCollection": "d.c%d", "toShard": "shard2"}`,
			`{"moveCollection": "d.c%d", "toShard": "shard1"}`,
			`{"shardCollection": "d.c%d", "key": {"_id": 1}}`,
			`{"split": "d.c%d", "middle": {"_id": 0}}`,
			`{"moveChunk": "d.c%d", "find": {"_id": 1}, "to": "shard2"}`,
			`{"moveChunk": "d.c%d", "find": {"_id": 1}, "to": "shard0"}`,
		} {
			c.run("admin", fmt.Sprintf(cmd, round))
			for i, concern := range []string{"", `, "readConcern": {"level": "majority"}`, `, "readConcern": {"level": "snapshot"}`} {
				w := c.txnClient(i)
				id++
				w.number += id
				docs := ""
				for n := range 6 {
					docs += fmt.Sprintf(`,{"_id": %d, "k": %d}`, (id*10+n)*(1-n%2*2), id*10+n)
				}
				if m, code := w.do("d", fmt.Sprintf(`{"insert": "c%d", "documents": [%s], "startTransaction": true%s}`, round, docs[1:], concern), false); code != 0 {
					t.Errorf("after %s with%s: %v", cmd, concern, m)
				}
				if m, code := w.do("admin", `{"commitTransaction": 1}`, false); code != 0 {
					t.Errorf("after %s with%s, commit: %v", cmd, concern, m)
				}
			}
		}
	}
}
