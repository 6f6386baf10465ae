package shardnode

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A getMore that merely waits for events, or for records of a capped collection, was logged and profiled as slow, and its waiting
// counted as latency.
func TestWaitingGetMoresAreNotSlow(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "capped", "capped": true, "size": 100000}`)
	n.ok("d", `{"insert": "capped", "documents": [{"_id": 1}]}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	var mu sync.Mutex
	slow := map[string]bool{}
	n.srv.Node.SlowLog = func(_ int64, _ bool, attrs []byte) {
		mu.Lock()
		defer mu.Unlock()
		slow[bson.Raw(attrs).Lookup("command").Document().Index(0).Key()] = true
	}
	n.ok("d", `{"profile": 1, "slowms": 390}`)
	latency := func() int64 {
		return n.ok("admin", `{"serverStatus": 1}`)["opLatencies"].(bson.D)[0].Value.(bson.D)[0].Value.(int64)
	}
	w, _ := n.openWatch("d", "c", `{}`)
	w.more(400)
	cur := plain(n.ok("d", `{"find": "capped", "tailable": true, "awaitData": true}`)["cursor"]).(bson.M)
	tail := &watch{n: n, db: "d", coll: "capped", id: cur["id"].(int64)}
	for _, w := range []*watch{tail, w} {
		before, began := latency(), time.Now()
		c := plain(n.ok("d", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": %q, "maxTimeMS": 400}`, w.id, w.coll))["cursor"]).(bson.M)
		if len(c["nextBatch"].(bson.A)) != 0 {
			t.Errorf("%s: events %v", w.coll, c["nextBatch"])
		}
		if waited := time.Since(began); waited < 390*time.Millisecond {
			t.Errorf("%s: a getMore waited %v", w.coll, waited)
		}
		if took := latency() - before; took > 390_000 {
			t.Errorf("%s: a read took %d us, waiting included", w.coll, took)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if slow["getMore"] {
		t.Error("a getMore that waited is logged as slow")
	}
	if docs := n.first("d", `{"find": "system.profile", "filter": {"op": "getmore"}}`); len(docs) != 0 {
		t.Errorf("the profiler has %v", docs)
	}
}
