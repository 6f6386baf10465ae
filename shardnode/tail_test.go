package shardnode

import (
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// scanned returns the number of documents that the node has examined so far.
func (n *testNode) scanned() int64 {
	return docAt(n.t, n.ok("admin", `{"serverStatus": 1}`), "metrics", "queryExecutor")["scannedObjects"].(int64)
}

// openTail opens a tailing cursor and returns its id and first batch.
func (n *testNode) openTail(db, coll, filter string) (id int64, batch bson.A) {
	n.t.Helper()
	c := docAt(n.t, n.ok(db, fmt.Sprintf(`{"find": %q, "filter": %s, "tailable": true, "awaitData": true}`, coll, filter)), "cursor")
	return c["id"].(int64), c["firstBatch"].(bson.A)
}

func (n *testNode) more(db, coll string, id int64, ms int) bson.A {
	n.t.Helper()
	r := n.ok(db, fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": %q, "maxTimeMS": %d}`, id, coll, ms))
	return docAt(n.t, r, "cursor")["nextBatch"].(bson.A)
}

// The maxTimeMS of a getMore on a tailable awaitData cursor was the deadline of the operation too, so that a scan that
// took longer, or reached its end late, failed with MaxTimeMSExpired and the cursor was closed. It is the time to wait.
func TestTailableGetMoreTimeIsNoDeadline(t *testing.T) {
	n := newTestNode(t)
	n.ok("db", `{"create": "c", "capped": true, "size": 1000000}`)
	n.ok("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	id, _ := n.openTail("db", "c", `{}`)
	// The command is delayed beyond its time before the scan begins.
	data, err := bson.Marshal(bson.M{"failCommands": bson.A{"getMore"}, "blockConnection": true, "blockTimeMS": 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.srv.Node.Points.Configure("failCommand", value.NewString("alwaysOn"), data); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if b := n.more("db", "c", id, 1); len(b) != 0 {
			t.Fatalf("the batch is %v", b)
		}
	}
	n.ok("db", `{"insert": "c", "documents": [{"_id": 2}]}`)
	if b := n.more("db", "c", id, 1); len(b) != 1 {
		t.Fatalf("after an insert the batch is %v", b)
	}
	if code := n.code("db", `{"getMore": {"$numberLong": "1"}, "collection": "c", "maxTimeMS": 1}`); code != int32(mongoerr.CursorNotFound) {
		t.Errorf("a cursor that is not there: %d", code)
	}
}

// A tailing cursor whose filter had matched nothing began at the start of its collection again at every getMore.
func TestTailableGetMoreContinuesAtItsRecord(t *testing.T) {
	n := newTestNode(t)
	n.ok("db", `{"create": "c", "capped": true, "size": 10000000}`)
	const documents = 2000
	n.load("db", "c", documents)
	id, _ := n.openTail("db", "c", `{"x": "wanted"}`)
	before := n.scanned()
	for range 10 {
		n.ok("db", `{"insert": "c", "documents": [{"x": "other"}]}`)
		if b := n.more("db", "c", id, 1); len(b) != 0 {
			t.Fatalf("the batch is %v", b)
		}
	}
	n.ok("db", `{"insert": "c", "documents": [{"x": "wanted"}]}`)
	if b := n.more("db", "c", id, 1000); len(b) != 1 {
		t.Fatalf("the batch is %v", b)
	}
	if got := n.scanned() - before; got > documents/10 {
		t.Errorf("11 new documents took %d examined ones", got)
	}
}

// load inserts the given number of documents.
func (n *testNode) load(db, coll string, count int) {
	n.t.Helper()
	for from := 0; from < count; from += 500 {
		docs := ""
		for i := range 500 {
			docs += fmt.Sprintf(`, {"i": %d}`, from+i)
		}
		n.ok(db, fmt.Sprintf(`{"insert": %q, "documents": [%s]}`, coll, docs[2:]))
	}
}

// A find on the oplog by ts read it from its start, and a tailing one returned its entries again at every getMore.
func TestOplogFindSeeksItsTime(t *testing.T) {
	n := newTestNode(t)
	const documents = 3000
	n.load("db", "c", documents)
	n.ok("db", `{"update": "c", "updates": [{"q": {}, "u": {"$set": {"x": 1}}, "multi": true}]}`) // an entry for each
	var last bson.Timestamp
	for _, d := range docAt(t, n.ok("local", `{"find": "oplog.rs", "sort": {"$natural": -1}, "limit": 1}`), "cursor")["firstBatch"].(bson.A) {
		last = asM(d)["ts"].(bson.Timestamp)
	}
	at := fmt.Sprintf(`{"$timestamp": {"t": %d, "i": %d}}`, last.T, last.I)
	for _, tc := range []struct {
		cmd  string
		want int
	}{
		{`{"find": "oplog.rs", "filter": {"ts": {"$gte": ` + at + `}}}`, 1},
		{`{"find": "oplog.rs", "filter": {"ts": ` + at + `}}`, 1},
		{`{"find": "oplog.rs", "filter": {"ts": {"$gt": ` + at + `}}, "tailable": true}`, 0},
		{`{"find": "oplog.rs", "filter": {"ts": {"$gte": ` + at + `}, "ns": "db.c"}, "tailable": true, "awaitData": true}`, 1},
		{`{"aggregate": "oplog.rs", "pipeline": [{"$match": {"ts": {"$gte": ` + at + `}}}], "cursor": {}}`, 1},
	} {
		before := n.scanned()
		got := docAt(t, n.ok("local", tc.cmd), "cursor")["firstBatch"].(bson.A)
		if len(got) != tc.want {
			t.Errorf("%s: %d entries, want %d", tc.cmd, len(got), tc.want)
		}
		if s := n.scanned() - before; s > documents/10 {
			t.Errorf("%s examined %d entries", tc.cmd, s)
		}
	}
	if got := n.count("local", `{"find": "oplog.rs", "filter": {"ts": {"$lt": `+at+`}, "ns": "db.c"}, "batchSize": 100000}`); got != documents-1 {
		t.Errorf("%d entries before the last, want %d", got, documents-1)
	}
	for filter, want := range map[string]int{
		`{"ts": {"$gt": 5}}`: 0, `{"ts": {"$type": "timestamp"}, "ns": "db.c"}`: documents, `{"ts": {"$ne": null}, "ns": "db.c"}`: documents,
	} {
		if got := n.count("local", `{"find": "oplog.rs", "filter": `+filter+`, "batchSize": 100000}`); got != want {
			t.Errorf("%s: %d entries, want %d", filter, got, want)
		}
	}

	c := docAt(t, n.ok("local", `{"find": "oplog.rs", "batchSize": 1000}`), "cursor")
	more := fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "oplog.rs"}`, c["id"])
	next := docAt(t, n.ok("local", more), "cursor")["nextBatch"].(bson.A)
	if a, b := asM(c["firstBatch"].(bson.A)[999])["ts"].(bson.Timestamp), asM(next[0])["ts"].(bson.Timestamp); !b.After(a) {
		t.Errorf("after %v the next batch begins at %v", a, b)
	}

	id, batch := n.openTail("local", "oplog.rs", `{"ts": {"$gte": `+at+`}, "ns": "db.c"}`)
	if len(batch) != 1 {
		t.Fatalf("the first batch is %v", batch)
	}
	before := n.scanned()
	for i := range 5 {
		n.ok("db", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d}]}`, i))
		b := n.more("local", "oplog.rs", id, 1000)
		if len(b) != 1 || asM(asM(b[0])["o"])["_id"] != int32(i) {
			t.Fatalf("batch %d is %v", i, b)
		}
	}
	if got := n.scanned() - before; got > 100 {
		t.Errorf("5 new entries took %d examined ones", got)
	}
	w := docAt(t, n.ok("local", `{"explain": {"find": "oplog.rs", "filter": {"ts": {"$gt": `+at+`}}}, "verbosity": "queryPlanner"}`), "queryPlanner", "winningPlan")
	if w["stage"] != "COLLSCAN" || w["minRecord"] != int64(last.T)<<32|int64(last.I) || w["maxRecord"] != nil {
		t.Errorf("explain shows %v", w)
	}
}

// count is the number of documents of a command's first batch.
func (n *testNode) count(db, cmd string) int { n.t.Helper(); return len(n.first(db, cmd)) }

// The maxTimeMS of a find was dropped after its first batch: it limits the time of the whole cursor, without the
// pauses between getMores.
func TestCursorTimeIsOfAllItsBatches(t *testing.T) {
	n := newTestNode(t)
	n.load("db", "c", 1000)
	id := docAt(t, n.ok("db", `{"find": "c", "batchSize": 2, "maxTimeMS": 300000}`), "cursor")["id"].(int64)
	c, err := n.srv.Node.cursors.pin(id, "db.c")
	if err != nil {
		t.Fatal(err)
	}
	left := c.left
	if left <= 0 || left > 300*time.Second {
		t.Errorf("%v are left of 5 minutes", left)
	}
	c.left = 1
	n.srv.Node.cursors.unpin(c)
	if code := n.code("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, id)); code != int32(mongoerr.MaxTimeMSExpired) {
		t.Errorf("a getMore after the cursor's time: %d, want 50", code)
	}
}
