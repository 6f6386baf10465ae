package shardnode

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
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

// The primary of a set is replaced while a secondary's $out writes to it, which drops the temporary collection: the $out fails, and its target is unchanged. It wrote what was left into another collection
// of the name, and put that in place of its target.
func TestOutOfASecondaryDuringAnElection(t *testing.T) {
	m := newTestMembers(t, steady)
	p := m.primary()
	var second *testNode
	for _, n := range m.nodes {
		if n != p {
			second = n
		}
	}
	var docs []string
	for i := range 2500 {
		docs = append(docs, fmt.Sprintf(`{"_id": %d}`, i))
	}
	p.ok("d", `{"insert": "c", "documents": [`+strings.Join(docs, ",")+`], "writeConcern": {"w": 3}}`)
	for _, x := range []struct {
		step  string
		times int32
	}{{"createIndexes", 1}, {"insert", 1}, {"insert", 2}, {"internalRenameIfOptionsAndIndexesMatch", 1}} {
		p.ok("d", `{"drop": "to"}`)
		p.ok("d", `{"createIndexes": "to", "indexes": [{"key": {"k": 1}, "name": "k_1"}]}`)
		p.ok("d", `{"insert": "to", "documents": [{"_id": 1}], "writeConcern": {"w": 3}}`)
		var seen atomic.Int32
		before := func(command string) {
			if command != x.step || seen.Add(1) != x.times {
				return
			}
			services := p.srv.Node.Services
			services.StepDown()
			if err := services.StepUp(context.Background(), 0); err != nil {
				t.Error(err)
			}
			await.True(t, "the temporary collection is dropped", func() bool {
				return len(p.first("d", `{"listCollections": 1, "filter": {"name": {"$regex": "^tmp"}}}`)) == 0
			})
		}
		m.before.Store(&before)
		r := second.do("d", `{"aggregate": "c", "pipeline": [{"$out": "to"}], "cursor": {}, "$readPreference": {"mode": "secondary"}}`)
		m.before.Store(nil)
		if r["code"] != int32(mongoerr.InterruptedDueToReplStateChange) || seen.Load() < x.times {
			t.Errorf("%s %d: %v", x.step, x.times, r)
		}
		if n := p.ok("d", `{"count": "to"}`)["n"]; n != int32(1) {
			t.Errorf("%s %d: the target has %v documents", x.step, x.times, n)
		}
		if left := p.first("d", `{"listCollections": 1, "filter": {"name": {"$regex": "^tmp"}}}`); len(left) > 0 {
			t.Errorf("%s %d leaves %v", x.step, x.times, left)
		}
	}
}
