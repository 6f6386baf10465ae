package shardnode

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
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

// overtaken is a set whose next commit is overtaken by what by does.
type overtaken struct {
	replication.Set
	by *atomic.Pointer[func()]
}

func (s overtaken) Commit(ctx context.Context, u *storage.UnitOfWork, wc replication.WriteConcern) (storage.Timestamp, error) {
	if by := s.by.Swap(nil); by != nil {
		(*by)()
	}
	return s.Set.Commit(ctx, u, wc)
}

// Of the first views and time series of a database, created at the same time under different names, one failed with 48 "Collection d.system.views already
// exists.": that collection is created with the first of them.
func TestFirstViewsOfADatabase(t *testing.T) {
	var by atomic.Pointer[func()]
	n := openTestNode(t, Config{Memory: true, Repl: ReplOptions{Commits: func(s replication.Set) replication.Set { return overtaken{s, &by} }}})
	const view, series = `{"create": "%s", "viewOn": "x", "pipeline": []}`, `{"create": "%s", "timeseries": {"timeField": "t"}}`
	for i, cmds := range [][2]string{{view, view}, {view, series}, {series, view}, {series, series}} {
		db := fmt.Sprint("d", i)
		faster := func() { n.ok(db, fmt.Sprintf(cmds[1], "faster")) }
		by.Store(&faster)
		n.ok(db, fmt.Sprintf(cmds[0], "slower"))
		if by.Load() != nil {
			t.Fatal("the first commit was not overtaken")
		}
		if got := n.first(db, `{"listCollections": 1, "nameOnly": true, "filter": {"name": {"$not": {"$regex": "^system"}}}}`); len(got) != 2 {
			t.Errorf("%s: %v", cmds, got)
		}
	}
}
