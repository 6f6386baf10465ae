package shardnode

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode/ddl"
	"github.com/shoaldb/shoal/shardnode/write"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// manyDocs is an array of documents with _id from 0 on and x: 0.
func manyDocs(n int) string {
	docs := make([]string, n)
	for i := range docs {
		docs[i] = fmt.Sprintf(`{"_id": %d, "x": 0}`, i)
	}
	return "[" + strings.Join(docs, ", ") + "]"
}

// detachedStep is a command of several commits, its reply without a majority, and the documents that exist afterwards.
type detachedStep struct {
	db, cmd string
	fields  []string
	want    string // of the reply
	find    string // "db.collection"
	there   string
}

var detachedSteps = []detachedStep{
	{
		"d", `{"update": "u", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 5}}}, {"q": {"x": 5}, "u": {"$inc": {"x": 1}}}, {"q": {"x": 6}, "u": {"$set": {"y": 1}}}]}`,
		[]string{"n", "nModified", "writeErrors"}, "{ n: 3, nModified: 3 }", "d.u", "{ _id: 1, x: 6, y: 1 }",
	},
	{
		"d", `{"insert": "new", "documents": ` + manyDocs(2500) + `}`, []string{"n", "writeErrors"}, "{ n: 2500 }", "d.new", "2500 documents",
	},
	{
		"d", `{"insert": "dup", "ordered": false, "documents": [{"_id": 1}, {"_id": 2}, {"_id": 1}, {"_id": 3}]}`,
		[]string{"n"}, "{ n: 3 }", "d.dup", "{ _id: 1 } { _id: 2 } { _id: 3 }",
	},
	{
		"d", `{"update": "many", "updates": [{"q": {"x": {"$gte": 0}}, "u": {"$inc": {"x": 1}}, "multi": true}, {"q": {"x": 1}, "u": {"$inc": {"x": 1}}, "multi": true}]}`,
		[]string{"n", "nModified"}, "{ n: 2400, nModified: 2400 }", "d.many", "1200 documents",
	},
	{
		"admin", `{"bulkWrite": 1, "ops": [{"insert": 0, "document": {"_id": 1}}, {"update": 0, "filter": {"_id": 1}, "updateMods": {"$set": {"x": 1}}},
			{"insert": 1, "document": {"_id": 1}}, {"delete": 0, "filter": {"x": 1}}, {"insert": 0, "document": {"_id": 1, "y": 2}}],
			"nsInfo": [{"ns": "d.bulk"}, {"ns": "d.bulk2"}]}`,
		[]string{"nErrors", "nInserted", "nModified", "nDeleted"}, "{ nErrors: 0, nInserted: 3, nModified: 1, nDeleted: 1 }", "d.bulk", "{ _id: 1, y: 2 }",
	},
	{"d", `{"aggregate": "src", "pipeline": [{"$out": "out"}], "cursor": {}}`, nil, "", "d.out", "{ _id: 1, x: 1 } { _id: 2, x: 2 }"},
	{"d", `{"aggregate": "src", "pipeline": [{"$out": "out2"}], "cursor": {}}`, nil, "", "d.out2", "{ _id: 1, x: 1 } { _id: 2, x: 2 }"},
	{
		"d", `{"aggregate": "events", "pipeline": [{"$out": {"db": "d", "coll": "series", "timeseries": {"timeField": "t"}}}], "cursor": {}}`, nil, "", "d.series", "2 documents",
	},
	{
		"d", `{"aggregate": "src", "pipeline": [{"$merge": {"into": "merged"}}], "cursor": {}}`, nil, "", "d.merged", "{ _id: 1, y: 1, x: 1 } { _id: 2, x: 2 }",
	},
	{"d", `{"convertToCapped": "capped", "size": 100000}`, nil, "", "d.capped", "1200 documents"},
	{"d", `{"cloneCollectionAsCapped": "src", "toCollection": "clone", "size": 10000}`, nil, "", "d.clone", "{ _id: 1, x: 1 } { _id: 2, x: 2 }"},
	{"admin", `{"renameCollection": "d.moving", "to": "e.moved"}`, nil, "", "e.moved", "1200 documents"},
	{"d", `{"collMod": "mod", "validator": {"x": {"$gt": 0}}}`, nil, "", "d.mod", "{ _id: 1 }"},
	{"d", `{"dropIndexes": "indexed", "index": "*"}`, []string{"nIndexesWas"}, "{ nIndexesWas: 2 }", "", ""},
	{
		"admin", `{"applyOps": [{"op": "i", "ns": "d.applied", "o": {"_id": 1}}, {"op": "u", "ns": "d.applied", "o2": {"_id": 1}, "o": {"_id": 1, "x": 1}}]}`,
		[]string{"applied"}, "{ applied: 2 }", "d.applied", "{ _id: 1, x: 1 }",
	},
	{
		"admin", `{"applyOps": [{"op": "i", "ns": "d.single", "o": {"_id": 1}}, {"op": "u", "ns": "d.single", "o2": {"_id": 1}, "o": {"_id": 1, "x": 1}}], "allowAtomic": false}`,
		[]string{"applied"}, "{ applied: 2 }", "d.single", "{ _id: 1, x: 1 }",
	},
	{"gone", `{"dropDatabase": 1}`, nil, "", "gone.c", ""},
}

// beforeSteps creates what detachedSteps work on.
func beforeSteps(n *testNode) {
	for _, c := range []string{"many", "capped", "moving"} {
		n.ok("d", `{"insert": "`+c+`", "documents": `+manyDocs(1200)+`}`)
	}
	n.ok("d", `{"createIndexes": "many", "indexes": [{"key": {"x": 1}, "name": "x_1"}]}`)
	for _, c := range []string{"u", "merged", "out2", "mod", "indexed"} {
		n.ok("d", `{"insert": "`+c+`", "documents": [{"_id": 1}]}`)
	}
	n.ok("d", `{"update": "merged", "updates": [{"q": {}, "u": {"$set": {"y": 1}}}]}`)
	for _, c := range []string{"out2", "indexed"} {
		n.ok("d", `{"createIndexes": "`+c+`", "indexes": [{"key": {"x": 1}, "name": "x_1", "unique": true}]}`)
	}
	for _, c := range []string{"applied", "single"} {
		n.ok("d", `{"create": "`+c+`"}`)
	}
	n.ok("d", `{"insert": "src", "documents": [{"_id": 1, "x": 1}, {"_id": 2, "x": 2}]}`)
	n.ok("d", `{"insert": "events", "documents": [{"_id": 1, "t": {"$date": "2026-01-01T00:00:00Z"}}, {"_id": 2, "t": {"$date": "2026-01-01T00:01:00Z"}}]}`)
	n.ok("gone", `{"insert": "c", "documents": [{"_id": 1}]}`)
}

// there lists the documents of "db.collection" as text, or their number if there are many.
func (n *testNode) there(ns string) string {
	db, coll, _ := strings.Cut(ns, ".")
	docs := n.first(db, `{"find": "`+coll+`", "sort": {"_id": 1}, "batchSize": 5000}`)
	if len(docs) > 10 || coll == "series" {
		return fmt.Sprint(len(docs), " documents")
	}
	return strings.Join(docs, " ")
}

// noTemporary checks that no temporary collection of a command is left.
func (n *testNode) noTemporary() {
	n.t.Helper()
	await.State(n.t, "no temporary collection is left", func() (left []string, done bool) {
		for _, c := range n.srv.Engine.Catalog().All() {
			if c.Temp || strings.Contains(c.NS, ".tmp") {
				left = append(left, c.NS)
			}
		}
		return left, len(left) == 0
	})
}

// Commands of several commits continue on top of undecided ones, and report at their wtimeout that all of it is done. When
// the majority is back it is.
func TestStepsWithoutAMajority(t *testing.T) {
	m := newTestMembers(t, steady)
	n := m.primary()
	beforeSteps(n)
	m.loseMajority()
	for _, s := range detachedSteps {
		if got := timedOut(t, n, s.db, wcTimeout(s.cmd), s.fields...); got != s.want {
			t.Errorf("%.200s:\n got  %s\n want %s", s.cmd, got, s.want)
		}
		if s.find == "d.out" || s.find == "e.moved" {
			if got := n.there(s.find); got != "" {
				t.Errorf("%s before the decision: %s", s.find, got)
			}
		}
	}
	m.heal()
	n.awaitNoneDetached()
	for _, s := range detachedSteps {
		if s.find == "" {
			continue
		}
		if got := n.there(s.find); got != s.there {
			t.Errorf("%.200s: %s holds %s", s.cmd, s.find, got)
		}
	}
	if got := len(n.first("d", `{"find": "many", "filter": {"x": 2}, "batchSize": 5000}`)); got != 1200 {
		t.Errorf("%d of 1200 documents were updated twice", got)
	}
	n.noTemporary()
	if err := n.srv.Node.Set.Await(context.Background(), n.srv.Engine.Visible(), replication.WriteConcern{W: 3}); err != nil {
		t.Fatal(err)
	}
}

// The amount that a command may do after a detached commit is bounded: the rest is refused, and not executed.
func TestStepsAfterADetachedCommitAreBounded(t *testing.T) {
	m := newTestMembers(t, steady)
	n := m.primary()
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}]}`)
	m.loseMajority()
	one := `{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}`
	r := n.do("d", wcTimeout(`{"update": "c", "updates": [`+strings.Repeat(one+", ", 5100)+one+`]}`))
	if got := shown(t, r, "ok", "n", "nModified", "writeErrors"); got != `{ ok: 1.0, n: 5000, nModified: 5000, writeErrors: [ { index: 5000, code: 64, errmsg: `+
		`"waiting for replication timed out, so that this statement was not executed" } ] }` || r["writeConcernError"] == nil {
		t.Errorf("%.500s", got)
	}
	m.heal()
	n.awaitNoneDetached()
	if got := n.there("d.c"); got != "{ _id: 1, x: 5000 }" {
		t.Errorf("in the end: %s", got)
	}
}

// A command that is ended by its maxTimeMS between its steps leaves no temporary collection.
func TestEndedStepsAreCleanedUp(t *testing.T) {
	m := newTestMembers(t, steady)
	n := m.primary()
	beforeSteps(n)
	m.loseMajority()
	for _, s := range []detachedStep{
		{db: "d", cmd: `{"aggregate": "src", "pipeline": [{"$out": "out"}], "cursor": {}, "maxTimeMS": 60}`},
		{db: "d", cmd: `{"convertToCapped": "capped", "size": 100000, "maxTimeMS": 60}`},
		{db: "admin", cmd: `{"renameCollection": "d.moving", "to": "e.moved", "maxTimeMS": 60}`},
	} {
		start := time.Now()
		if code := n.code(s.db, s.cmd); code != int32(mongoerr.MaxTimeMSExpired) || time.Since(start) > steady/2 {
			t.Errorf("%s: code %d after %v", s.cmd, code, time.Since(start))
		}
	}
	m.heal()
	n.awaitNoneDetached()
	n.noTemporary()
	for ns, want := range map[string]string{"d.out": "", "d.capped": "1200 documents", "d.moving": "1200 documents", "e.moved": ""} {
		if got := n.there(ns); got != want {
			t.Errorf("%s: %s", ns, got)
		}
	}
	n.ok("d", `{"aggregate": "src", "pipeline": [{"$out": "out"}], "cursor": {}}`)
}

// The primary steps down before the steps are decided: the next primary has all of them or none.
func TestStepDownBetweenSteps(t *testing.T) {
	m := newTestMembers(t, 400*time.Millisecond)
	n := m.primary()
	beforeSteps(n)
	m.loseMajority()
	for _, s := range []detachedStep{
		{db: "d", cmd: `{"aggregate": "src", "pipeline": [{"$out": "out2"}], "cursor": {}}`},
		{db: "admin", cmd: `{"renameCollection": "d.moving", "to": "e.moved"}`},
	} {
		r := n.do(s.db, wcTimeout(s.cmd))
		code, _ := r["code"].(int32)
		if r["ok"] == 1.0 && r["writeConcernError"] == nil || r["ok"] != 1.0 && !mongoerr.Code(code).IsRetryableWrite() { // the member may have been deposed by now
			t.Errorf("%s: %v", s.cmd, r)
		}
	}
	n.awaitNoneDetached()
	m.heal()
	p := m.primary()
	p.noTemporary()
	if out := p.there("d.out2"); out != "{ _id: 1 }" && out != "{ _id: 1, x: 1 } { _id: 2, x: 2 }" {
		t.Errorf("$out: %s", out)
	}
	if from, to := p.there("d.moving"), p.there("e.moved"); from+to != "1200 documents" {
		t.Errorf("renamed: %q to %q", from, to)
	}
}

// Temporary collections of ended commands are dropped when a member becomes primary.
func TestTemporaryCollectionsGo(t *testing.T) {
	m := newTestMembers(t, 400*time.Millisecond)
	n := m.primary()
	err := n.srv.Node.Docs.WriteWith(context.Background(), replication.Durable, func(_ *storage.Snapshot, u *storage.UnitOfWork) error {
		_, err := u.CreateCollection(storage.CollectionSpec{NS: "d.tmp", Options: value.Doc(value.F("temp", value.NewBool(true)))})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	n.ok("admin", `{"replSetStepDown": 1, "secondaryCatchUpPeriodSecs": 0, "force": true}`)
	m.primary().noTemporary()
}

// An index build on a collection with documents returns at its wtimeout, and continues when the majority is back.
// maxTimeMS aborts it.
func TestIndexBuildsWithoutAMajority(t *testing.T) {
	m := newTestMembers(t, steady)
	n := m.primary()
	beforeSteps(n)
	m.loseMajority()
	create := `{"createIndexes": "many", "indexes": [{"key": {"y": 1}, "name": "y_1"}]}`
	for range 2 { // the second finds that the first is in progress
		start := time.Now()
		r := n.do("d", wcTimeout(create))
		if got := shown(t, r, "ok", "code", "errmsg"); got != `{ ok: 0.0, code: 64, errmsg: "`+ddl.ErrBuildGoesOn.Message+`" }` &&
			got != `{ ok: 0.0, code: 64, errmsg: "`+write.ErrLocked.Message+`" }` || time.Since(start) > steady/2 {
			t.Errorf("after %v: %v", time.Since(start), r)
		}
	}
	start := time.Now()
	if code := n.code("d", `{"createIndexes": "moving", "indexes": [{"key": {"y": 1}, "name": "y_1"}], "maxTimeMS": 60}`); code != int32(mongoerr.MaxTimeMSExpired) ||
		time.Since(start) > steady/2 {
		t.Errorf("maxTimeMS: code %d after %v", code, time.Since(start))
	}
	m.heal()
	n.ok("d", create)
	await.State(t, "one build is ready, the other gone", func() (string, bool) {
		many, moving := n.srv.Engine.Catalog().Lookup("d.many").Index("y_1"), n.srv.Engine.Catalog().Lookup("d.moving").Index("y_1")
		return fmt.Sprint(many, moving), many != nil && many.Ready && moving == nil
	})
	n.ok("d", `{"createIndexes": "moving", "indexes": [{"key": {"y": 1}, "name": "y_1"}]}`)
}

// Commands of several commits while majorities, and with them primaries, change: of each command either nothing or a prefix
// of its statements was executed, and all of them if it was acknowledged.
func TestStepsAreThereInOrder(t *testing.T) {
	m := newTestMembers(t, 300*time.Millisecond)
	const writers, each, steps = 4, 25, 6
	var wg sync.WaitGroup
	acked := make([][each]bool, writers)
	var sent atomic.Int64
	for w := range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range each {
				var list []string
				for s := range steps {
					list = append(list, fmt.Sprintf(`{"q": {"_id": "%d-%d-%d"}, "u": {"$set": {"x": 1}}, "upsert": true}`, w, i, s))
				}
				cmd := wcTimeout(`{"update": "c", "updates": [` + strings.Join(list, ", ") + `]}`)
				for _, n := range m.nodes {
					if n.srv.Repl.Writable() {
						r := n.do("d", cmd)
						acked[w][i] = r["ok"] == 1.0 && r["writeConcernError"] == nil && r["writeErrors"] == nil
						break
					}
				}
				sent.Add(1)
				time.Sleep(15 * time.Millisecond) // the commands are spread over all the cuts
			}
		}()
	}
	for i := range 6 { // some cuts end before the primary is deposed, some after
		before := sent.Load()
		await.True(t, "commands are sent", func() bool { return sent.Load() >= before+4 || sent.Load() == writers*each })
		m.loseMajority()
		time.Sleep([]time.Duration{40, 700, 90}[i%3] * time.Millisecond) // shorter and longer than an election's timeout
		m.heal()
		m.primary()
	}
	wg.Wait()
	p := m.primary()
	if r := p.do("d", `{"insert": "after", "documents": [{"_id": 1}], "writeConcern": {"w": 3}}`); r["ok"] != 1.0 || r["writeConcernError"] != nil { // what was not acknowledged is decided by then
		t.Fatal(r)
	}
	there := map[string]bool{}
	for _, doc := range p.first("d", `{"find": "c", "batchSize": 5000}`) {
		there[strings.Split(doc, `"`)[1]] = true
	}
	for w := range writers {
		for i := range each {
			n, last := 0, -1
			for s := range steps {
				if there[fmt.Sprintf("%d-%d-%d", w, i, s)] {
					n, last = n+1, s
				}
			}
			if n != last+1 || acked[w][i] && n != steps {
				t.Errorf("command %d of writer %d: %d statements, the last is %d, acknowledged: %v", i, w, n, last, acked[w][i])
			}
		}
	}
	if err := p.srv.Node.Set.Await(context.Background(), p.srv.Engine.Visible(), replication.WriteConcern{W: 3}); err != nil {
		t.Fatal(err)
	}
	for _, n := range m.nodes {
		if got := n.srv.Engine.Catalog().Lookup("d.c").Counters.Records.Load(); got != int64(len(there)) {
			t.Errorf("a member has %d documents, the primary %d", got, len(there))
		}
	}
	t.Logf("%d documents", len(there))
}
