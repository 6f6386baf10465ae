package router_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// While the table of a collection cannot be refreshed, because the config server does not reply, operations that target shards whose part
// has not changed continue, and those that have to wait for the refresh end with their time limit. All used to wait, without limit.
func TestOperationsDuringARefresh(t *testing.T) {
	c, _ := staleCluster(t)
	hold := &heldTables{Peer: c.confP}
	c.confP = hold
	stale := c.through()
	stale.expect(stale.run("d", `{"count": "c", "query": {}}`)["n"], `300`)
	c.moved(200, "shard2")
	hold.on(true)
	began := time.Now()
	for _, cmd := range []string{
		`{"find": "c", "filter": {"_id": 250}, "maxTimeMS": 200}`,
		`{"aggregate": "c", "pipeline": [{"$match": {"_id": 250}}], "cursor": {}, "maxTimeMS": 200}`,
		`{"update": "c", "updates": [{"q": {"_id": 250}, "u": {"$inc": {"x": 1}}}], "maxTimeMS": 200}`,
		`{"find": "c", "maxTimeMS": 200}`,
	} {
		if m := stale.raw("d", cmd); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	waiting := make(chan any)
	go func() { waiting <- stale.raw("d", `{"find": "c", "filter": {"_id": 250}}`)["ok"] }()
	hold.await(t)
	stale.expect(stale.run("d", `{"find": "c", "filter": {"_id": 50}}`)["ok"], `1.0`)
	stale.expect(stale.run("d", `{"update": "c", "updates": [{"q": {"_id": 50}, "u": {"$inc": {"x": 1}}}]}`)["n"], `1`)
	if m := stale.raw("d", `{"findAndModify": "c", "query": {"_id": 250}, "update": {"$inc": {"x": 1}}, "maxTimeMS": 200}`); m["code"] != int32(mongoerr.MaxTimeMSExpired) {
		t.Errorf("waiting for another operation's refresh: %v", m)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("all took %s", took)
	}
	hold.on(false)
	if ok := <-waiting; ok != 1.0 {
		t.Errorf("the operation that waited: %v", ok)
	}
	stale.expect(stale.run("d", `{"count": "c", "query": {}}`)["n"], `300`)
}

// heldTables is a peer whose reads of config.chunks wait while it is on.
type heldTables struct {
	cluster.Peer
	mu      sync.Mutex
	held    chan struct{}
	waiting int
}

func (p *heldTables) on(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on {
		p.held = make(chan struct{})
		return
	}
	close(p.held)
	p.held = nil
}

// await waits until a read waits.
func (p *heldTables) await(t *testing.T) {
	t.Helper()
	await.True(t, "config.chunks is read", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.waiting > 0
	})
}

func (p *heldTables) Call(ctx context.Context, m *wire.Message, dst []byte) ([]byte, error) {
	p.mu.Lock()
	held := p.held
	if held == nil || value.Lookup(m.Body, "find").Str() != "chunks" {
		p.mu.Unlock()
		return p.Peer.Call(ctx, m, dst)
	}
	p.waiting++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.waiting--
		p.mu.Unlock()
	}()
	select {
	case <-held:
		return p.Peer.Call(ctx, m, dst)
	case <-ctx.Done():
		return dst, ctx.Err()
	}
}

// A collection is resharded between the parts of an update of many documents: the update continues without the
// documents that it has updated already.
func TestUpdateOfManyMeetsAResharding(t *testing.T) {
	c := newTestCluster(t, 2)
	s := c.interposed("shard1")
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.shardedAs("c", 1, 40)
	var first atomic.Bool
	s.through(func(ctx context.Context, name string, call func() ([]byte, error)) ([]byte, error) {
		if name == "update" && first.CompareAndSwap(false, true) {
			c.until("the other shard has updated its part", func() bool { return len(c.all("db", `{"find": "c", "filter": {"n": 1}}`)) > 0 })
			c.run("admin", `{"reshardCollection": "db.c", "key": {"k": 1}}`)
		}
		return call()
	})
	m := c.raw("db", `{"update": "c", "updates": [{"q": {}, "u": {"$inc": {"n": 1}}, "multi": true}]}`)
	once, twice := len(c.all("db", `{"find": "c", "filter": {"n": 1}}`)), len(c.all("db", `{"find": "c", "filter": {"n": {"$gt": 1}}}`))
	if once != 40 || twice > 0 || m["writeErrors"] != nil || fmt.Sprint(m["n"]) != fmt.Sprint(once) {
		t.Errorf("%d documents are updated once, %d more often; the reply: %v", once, twice, m)
	}
}
