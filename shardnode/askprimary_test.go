package shardnode

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
)

// Writes of a secondary through its primary, as $out with a secondary read preference makes them, wait until an election is over.
func TestWritesThroughThePrimaryWaitOutAnElection(t *testing.T) {
	m := newTestMembers(t, time.Second)
	p := m.primary()
	p.ok("d", `{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}], "writeConcern": {"w": 3}}`)
	var second *testNode
	for _, n := range m.nodes {
		if n != p {
			second = n
		}
	}
	m.loseMajority()
	await.State(t, "no primary is known", func() (any, bool) {
		p := second.ok("admin", `{"hello": 1}`)["primary"]
		return p, p == nil
	})
	reply := make(chan bson.M, 1)
	go func() {
		reply <- second.do("d", `{"aggregate": "c", "pipeline": [{"$out": "copy"}], "cursor": {}, "$readPreference": {"mode": "secondary"}}`)
	}()
	select {
	case r := <-reply:
		t.Fatalf("without a primary: %v", r)
	case <-time.After(50 * time.Millisecond):
	}
	m.heal()
	if r := <-reply; r["ok"] != 1.0 {
		t.Fatal(r)
	}
	if got := m.primary().ok("d", `{"count": "copy"}`)["n"]; got != int32(2) {
		t.Errorf("%v documents", got)
	}
}
