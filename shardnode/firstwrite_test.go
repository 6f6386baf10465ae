package shardnode

import (
	"fmt"
	"sync"
	"testing"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
)

// A write that found no collection, and whose unit of work then began with a catalog that has it, failed with 48: another
// write had created it in between. It is a conflict, after which the write is retried and finds the collection.
func TestFirstWriteRacingWithTheCollectionsCreation(t *testing.T) {
	n := newTestNode(t)
	node := n.srv.Node
	before := node.Engine.Catalog()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	u := node.Engine.NewUnitOfWork(nil)
	_, err := node.writes.With(&command.Op{}, replication.WriteConcern{}).Target(u, before, "d.c", true)
	u.Rollback()
	if !storage.ErrConflict(err) {
		t.Errorf("%v, want a conflict", err)
	}
	var wg sync.WaitGroup
	first := []string{
		`{"insert": "c%d", "documents": [{"_id": %d}]}`, `{"update": "c%d", "updates": [{"q": {"_id": %d}, "u": {"$set": {"x": 1}}, "upsert": true}]}`,
		`{"createIndexes": "c%d", "indexes": [{"name": "a%d", "key": {"a": 1}}]}`, `{"findAndModify": "c%d", "query": {"_id": %d}, "update": {"$set": {"x": 1}}, "upsert": true}`,
	}
	for k := range 100 {
		for i, cmd := range first {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if m := n.do("d", fmt.Sprintf(cmd, k, i)); m["ok"] != 1.0 || m["writeErrors"] != nil {
					t.Errorf("%s: %v", cmd, m)
				}
			}()
		}
		wg.Wait()
	}
}
