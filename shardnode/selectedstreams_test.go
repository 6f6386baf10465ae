package shardnode

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
)

// Streams that select one value get the same events as a stream with the same condition in another form, whatever the
// documents contain, and are not woken for other values.
func TestStreamsThatSelectOneValue(t *testing.T) {
	n := newTestNode(t)
	g := rand.New(rand.NewPCG(5, 6))
	values := []string{"1", "2", `{"$numberDouble": "1.0"}`, `{"$numberLong": "2"}`, `"a"`, `"b"`, "null", `[1, "a"]`, `[[2]]`, `{"x": 1}`, `[{"x": 1}]`, "true",
		`{"$oid": "65a000000000000000000001"}`, `{"$date": {"$numberLong": "1"}}`, `{"$numberDecimal": "1"}`, `{"$timestamp": {"t": 1, "i": 1}}`}
	conditions := []struct{ path, value string }{
		{"fullDocument.to", "1"}, {"fullDocument.to", `"a"`}, {"fullDocument.to.x", "1"}, {"fullDocument.to", "true"}, {"documentKey._id", "3"},
		{"fullDocument.to", `{"$oid": "65a000000000000000000001"}`}, {"fullDocument.sub.to", "2"},
	}
	n.ok("d", `{"create": "c", "changeStreamPreAndPostImages": {"enabled": true}}`)
	type pair struct {
		what string
		a, b *watch
	}
	var pairs []pair
	open := func() {
		c := conditions[g.IntN(len(conditions))]
		spec := []string{`{}`, `{"fullDocument": "updateLookup"}`, `{"fullDocument": "whenAvailable"}`}[g.IntN(3)]
		coll := []string{"c", "c", ""}[g.IntN(3)]
		one := fmt.Sprintf(`{"$match": {%q: %s}}`, c.path, c.value)
		if g.IntN(2) == 0 { // as a router sends it
			one = fmt.Sprintf(`{"$match": {"$or": [{"$and": [{"x": {"$exists": false}}, {%q: {"$eq": %s}}]}, {"operationType": {"$in": ["drop", "rename", "invalidate"]}}]}}`, c.path, c.value)
		}
		other := fmt.Sprintf(`{"$match": {"$nor": [{%q: {"$ne": %s}}]}}`, c.path, c.value)
		if one[11] == '$' || len(one) > 120 {
			other = fmt.Sprintf(`{"$match": {"$or": [{"$nor": [{%q: {"$ne": %s}}]}, {"operationType": {"$in": ["drop", "rename", "invalidate"]}}]}}`, c.path, c.value)
		}
		a, _ := n.openWatch("d", coll, spec, one)
		b, _ := n.openWatch("d", coll, spec, other)
		pairs = append(pairs, pair{coll + " " + spec + " " + one, a, b})
	}
	for range 10 {
		open()
	}
	compare := func(p pair) {
		t.Helper()
		rest := func(w *watch, out bson.A) bson.A {
			for w.id != 0 {
				b := w.more(1)
				if len(b) == 0 {
					break
				}
				out = append(out, b...)
			}
			return out
		}
		// An empty batch does not mean that the stream has come to the end: its time is up, which on a busy machine is before that.
		var a, b bson.A
		await.True(t, p.what+": both streams have as many events", func() bool {
			b, a = rest(p.b, b), rest(p.a, a)
			return len(a) == len(b)
		})
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("%s: %s, want %s\n%v\n%v", p.what, types(a), types(b), a, b)
		}
	}
	next := 0
	for step := range 300 {
		doc := func() string {
			v := values[g.IntN(len(values))]
			if g.IntN(3) == 0 {
				return fmt.Sprintf(`"sub": {"to": %s}`, v)
			}
			return fmt.Sprintf(`"to": %s`, v)
		}
		id := g.IntN(8)
		switch g.IntN(7) {
		case 0, 1:
			n.code("d", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, %s}]}`, id, doc()))
		case 2:
			n.code("d", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d}, "u": {"$set": {%s}}}]}`, id, doc()))
		case 3:
			n.code("d", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"_id": %d}, "u": {%s}}]}`, id, doc()))
		case 4:
			n.code("d", fmt.Sprintf(`{"delete": "c", "deletes": [{"q": {"_id": %d}, "limit": 1}]}`, id))
		case 5:
			next++
			n.ok("d", inTxn(fmt.Sprintf(`{"insert": "c", "documents": [{"_id": "%da", %s}, {"_id": "%db", %s}]}`, step, doc(), step, doc()), next, true))
			n.ok("admin", inTxn(`{"commitTransaction": 1}`, next, false))
		default:
			n.code("d", fmt.Sprintf(`{"insert": "other", "documents": [{%s}]}`, doc()))
		}
		if step%40 == 20 {
			i := g.IntN(len(pairs))
			compare(pairs[i])
			open()
		}
	}
	for _, p := range pairs {
		compare(p)
	}
	n.ok("d", `{"drop": "c"}`)
	for _, p := range pairs {
		if p.a.coll == "c" {
			compare(p)
		}
	}
	start := time.Now()
	w, _ := n.openWatch("d", "e", `{}`, `{"$match": {"fullDocument.to": 1}}`)
	got := make(chan int, 1)
	go func() { got <- len(w.more(120_000)) }()
	n.ok("d", `{"insert": "e", "documents": [{"to": 2}, {"to": 1}]}`)
	if k := <-got; k != 1 || time.Since(start) > time.Minute {
		t.Errorf("%d events after %v", k, time.Since(start))
	}
}
