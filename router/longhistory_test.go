package router_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoaldb/shoal/storage"
)

// The clone of a resharding outlasts the history window of the donors, whose primaries change meanwhile: each next one still reads the time of the clone. It used to be too old for them: the
// resharding was undone, and began anew. Once all have cloned, the history is given up.
func TestCloneOutlastsTheHistory(t *testing.T) {
	t.Parallel()
	shards := []string{"shard0", "shard1"}
	rounds := map[string]*atomic.Int64{}
	for _, id := range shards {
		rounds[id] = new(atomic.Int64)
	}
	c, _, free := heldCloneIn(t, clusterHooks{store: func(set string, o *storage.Options) {
		if n := rounds[set]; n != nil {
			needs := o.Needs
			o.CollectInterval = 5 * time.Millisecond
			o.Needs = func(s *storage.Snapshot) (storage.Timestamp, error) {
				n.Add(1)
				return needs(s)
			}
		}
	}}, func(context.Context, string) {})
	c.fill(20)
	resharded := c.later("admin", `{"reshardCollection": "db.c", "key": {"g": 1, "_id": 1}, "numInitialChunks": 2}`)
	write := func() {
		c.run("db", `{"update": "c", "updates": [{"q": {"k": 3}, "u": {"$inc": {"n": 1}}}, {"q": {"k": 13}, "u": {"$inc": {"n": 1}}}]}`)
	}
	c.until("recipients have stored writes", func() bool { // the time of the clone is chosen
		write()
		return len(c.buffered("shard0")) >= 2 && len(c.buffered("shard1")) >= 2
	})
	collected := func(id string) {
		c.t.Helper()
		from := rounds[id].Load()
		c.until("dead versions are collected", func() bool { return rounds[id].Load() >= from+3 })
	}
	buffer := c.buffers("shard0")[0] // is named after the resharding
	chosen := map[string]storage.Timestamp{}
	for _, id := range shards {
		e := c.server[id].Node.Engine
		chosen[id] = e.Visible()
		write()
		e.SetHistoryWindow(-time.Minute) // whatever the second
		collected(id)
		c.restart(id)
		write()
		collected(id)
	}
	want := show(c.all("db", `{"find": "c", "sort": {"_id": 1}}`))
	reached, release := c.hangOn("shard0", "reshardingPauseRecipientAtState", "state", "strict-consistency")
	free()
	reached()
	if now := c.buffers("shard0"); !slices.Contains(now, buffer) {
		t.Errorf("another resharding is under way, with %q instead of %q", now, buffer)
	}
	for _, id := range shards {
		e := c.server[id].Node.Engine
		c.until("history is given up before the resharding has ended", func() bool { return e.Oldest() > chosen[id] })
	}
	release()
	if m := <-resharded; m["ok"] != 1.0 {
		t.Fatal(m)
	}
	for _, id := range shards {
		c.server[id].Node.Engine.SetHistoryWindow(5 * time.Minute)
	}
	if got := show(c.all("db", `{"find": "c", "sort": {"_id": 1}}`)); got != want {
		t.Errorf("after the resharding\n%s\nbefore\n%s", got, want)
	}
	c.leftOver()
}
