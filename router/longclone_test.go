package router_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/storage"
)

// The clone of a resharding outlasts the donors' oplogs by far: recipients fetch what is written meanwhile while they clone, and continue where their predecessors stopped. Such a
// resharding used to fail, as donors keep a multiple of the size of their oplog at most.
func TestCloneOutlastsTheOplogs(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	c, came, free := heldCloneIn(t, clusterHooks{store: func(set string, o *storage.Options) {
		if set != "config" {
			o.OplogSize = size
		}
	}}, func(context.Context, string) {})
	shards := []string{"shard0", "shard1"}
	c.fill(120)
	resharded := c.later("admin", `{"reshardCollection": "db.c", "key": {"g": 1, "_id": 1}, "numInitialChunks": 2}`)
	for range shards { // a shard asks itself directly
		<-came
	}
	began := make(map[string]storage.Timestamp)
	for _, id := range shards {
		began[id] = c.server[id].Node.Engine.Visible()
	}
	last := began
	for round := range 8 { // about a megabyte on each shard
		pad := strings.Repeat(string(rune('a'+round)), 100_000)
		at := make(map[string]storage.Timestamp)
		for _, id := range shards {
			at[id] = c.server[id].Node.Engine.Visible()
		}
		for half := range 2 {
			set := func(k int) {
				c.run("db", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"k": %d}, "u": {"$set": {"n": %d, "pad": %q}}}]}`, 60*half+k, round, pad))
			}
			for k := range 11 {
				set(k)
			}
			set(20 + round)
			c.run("db", fmt.Sprintf(`{"delete": "c", "deletes": [{"q": {"k": %d}, "limit": 1}]}`, 60*half+20+round))
			c.run("db", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"k": %d}, "u": {"$inc": {"g": 1}}}]}`, 60*half+40+round)) // may go to another recipient
			c.run("db", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": "new%d,%d", "k": %d, "g": %d}]}`, half, round, 60*half+50, round%3))
		}
		for _, id := range shards {
			e := c.server[id].Node.Engine
			await.State(t, fmt.Sprintf("the oplog of %s is truncated to what was written last, round %d", id, round), func() (storage.Timestamp, bool) {
				if err := e.TruncateOplog(); err != nil {
					t.Fatal(err)
				}
				cut, err := e.OplogCut()
				if err != nil {
					t.Fatal(err)
				}
				return cut, cut >= last[id] || round < 2
			})
		}
		last = at
		if round == 5 {
			c.restart("shard1")
		}
	}
	for _, id := range shards {
		if cut, err := c.server[id].Node.Engine.OplogCut(); err != nil || cut <= began[id] {
			t.Fatalf("%s has its oplog since the clone began, %v: cut at %v, %v", id, began[id], cut, err)
		}
	}
	const all = `{"find": "c", "sort": {"_id": 1}}`
	want := show(c.all("db", all))
	free()
	if m := <-resharded; m["ok"] != 1.0 {
		t.Fatal(m)
	}
	if got := show(c.all("db", all)); got != want {
		t.Errorf("after the resharding\n%.2000s\nbefore\n%.2000s", got, want)
	}
	c.leftOver()
	for _, id := range shards {
		for _, coll := range get(c.admin(c.shards[id], bson.D{{Key: "listCollections", Value: 1}, {Key: "$db", Value: "config"}})["cursor"], "firstBatch").(bson.A) {
			if name := get(coll, "name").(string); strings.HasPrefix(name, "localReshardingOplogBuffer") {
				t.Errorf("%s has %s", id, name)
			}
		}
	}
}
