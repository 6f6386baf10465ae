package shardnode

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// step is a command and its error code; 0 for success.
type step struct {
	cmd  string
	code mongoerr.Code
}

func runSteps(t *testing.T, n *testNode, steps []step) {
	t.Helper()
	for _, s := range steps {
		if got := n.code("d", s.cmd); got != int32(s.code) {
			t.Errorf("%s: code %d, want %d", s.cmd, got, int32(s.code))
		}
	}
}

func TestCreateRefuses(t *testing.T) {
	n := newTestNode(t)
	runSteps(t, n, []step{
		{`{"create": "plain"}`, 0},
		{`{"create": "plain"}`, 0}, // repeating it is no error
		{`{"create": "plain", "capped": true, "size": 4096}`, mongoerr.NamespaceExists},
		{`{"create": "a", "capped": true}`, mongoerr.InvalidOptions},
		{`{"create": "` + strings.Repeat("s", 239) + `", "timeseries": {"timeField": "t"}}`, mongoerr.InvalidNamespace}, // of the buckets
		{`{"create": "a", "size": 4096}`, mongoerr.InvalidOptions},
		{`{"create": "a", "capped": true, "size": 0}`, mongoerr.BadValue},
		{`{"create": "a", "capped": "yes", "size": 1}`, mongoerr.TypeMismatch},
		{`{"create": "a$b"}`, mongoerr.InvalidNamespace},
		{`{"create": "system.other"}`, mongoerr.InvalidNamespace},
		{`{"create": "a", "nonsense": 1}`, mongoerr.IDLUnknownField},
		{`{"create": "a", "validator": {"$where": "1"}}`, mongoerr.BadValue},
		{`{"create": "a", "validator": {"a": {"$near": [0, 0]}}}`, 5626500},
		{`{"create": "a", "validationLevel": "never"}`, mongoerr.BadValue},
		{`{"create": "a", "collation": {}}`, mongoerr.IDLFailedToParse},
		{`{"create": "a", "clusteredIndex": true}`, 5979703},
		{`{"create": "a", "clusteredIndex": {"key": {"_id": 1}, "unique": false}}`, 5979700},
		{`{"create": "a", "clusteredIndex": {"key": {"x": 1}, "unique": true}}`, mongoerr.InvalidIndexSpecificationOption},
		{`{"create": "a", "clusteredIndex": {"key": {"_id": 1}, "unique": true}, "capped": true, "size": 9}`, 6049200},
		{`{"create": "a", "expireAfterSeconds": 5}`, mongoerr.InvalidOptions},
		{`{"create": "a", "idIndex": {"key": {"_id": 1}, "name": "_id_", "unique": true}}`, mongoerr.InvalidIndexSpecificationOption},
		{`{"create": "a", "timeseries": {"timeField": "t", "metaField": "t"}}`, mongoerr.InvalidOptions},
		{`{"create": "a", "timeseries": {"timeField": "t", "bucketMaxSpanSeconds": 9}}`, mongoerr.InvalidOptions},
		{`{"create": "a", "encryptedFields": {"fields": [{"path": "", "keyId": {"$uuid": "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"}}]}}`, 6316402},
		{`{"create": "a", "storageEngine": {"other": {}}}`, mongoerr.InvalidOptions},
		{`{"create": "a", "pipeline": []}`, mongoerr.InvalidOptions},
	})
	if got := n.first("d", `{"listCollections": 1, "nameOnly": true}`); len(got) != 1 {
		t.Errorf("collections left behind: %v", got)
	}
}

func TestListCollectionsShowsOptions(t *testing.T) {
	n := newTestNode(t)
	for _, c := range []string{
		`{"create": "capped", "max": 3, "size": 4096, "capped": true}`,
		`{"create": "checked", "validator": {"a": 1}}`,
		`{"create": "clustered", "clusteredIndex": {"key": {"_id": 1}, "unique": true}, "expireAfterSeconds": 9}`,
		`{"create": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`,
		`{"create": "view", "viewOn": "capped", "pipeline": [null, {"$match": {"a": 1}}]}`,
	} {
		n.ok("d", c)
	}
	for name, want := range map[string]string{
		"capped":  `options: { capped: true, size: 4096, max: 3 }`,
		"checked": `options: { validator: { a: 1 }, validationLevel: "strict", validationAction: "error" }`,
		"clustered": `options: { clusteredIndex: { v: 2, key: { _id: 1 }, name: "_id_", unique: true }, ` +
			`expireAfterSeconds: 9 }`,
		"ts": `type: "timeseries", options: { timeseries: { timeField: "t", metaField: "m", granularity: "seconds", ` +
			`bucketMaxSpanSeconds: 3600 } }`,
		"view": `type: "view", options: { viewOn: "capped", pipeline: [ { $match: { a: 1 } } ] }, info: { readOnly: true }`,
	} {
		got := n.first("d", `{"listCollections": 1, "filter": {"name": "`+name+`"}}`)
		if len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("%s: %v lacks %s", name, got, want)
		}
	}
	if got := n.first("d", `{"listCollections": 1, "cursor": {"batchSize": 2}}`); len(got) != 2 {
		t.Errorf("batch of %d", len(got))
	}
}

func TestViewsFormNoCycle(t *testing.T) {
	n := newTestNode(t)
	runSteps(t, n, []step{
		{`{"create": "v1", "viewOn": "base", "pipeline": []}`, 0},
		{`{"create": "v2", "viewOn": "v1", "pipeline": []}`, 0},
		{`{"collMod": "v1", "viewOn": "v2", "pipeline": []}`, mongoerr.GraphContainsCycle},
		{`{"collMod": "v1", "viewOn": "base", "pipeline": [{"$unionWith": "v2"}]}`, mongoerr.GraphContainsCycle},
		{`{"create": "self", "viewOn": "self", "pipeline": []}`, mongoerr.GraphContainsCycle},
		{`{"create": "out", "viewOn": "base", "pipeline": [{"$out": "x"}]}`, mongoerr.OptionNotSupportedOnView},
		{`{"create": "fr", "viewOn": "v1", "pipeline": [], "collation": {"locale": "fr"}}`, mongoerr.OptionNotSupportedOnView},
		{`{"insert": "v1", "documents": [{"a": 1}]}`, 0}, // a write error, not the command's
		{`{"createIndexes": "v1", "indexes": [{"key": {"a": 1}, "name": "a"}]}`, mongoerr.CommandNotSupportedOnView},
		{`{"listIndexes": "v1"}`, mongoerr.CommandNotSupportedOnView},
		{`{"drop": "v1"}`, 0},
	})
	for i := 0; i < namespace.MaxViewDepth+1; i++ {
		on := "base"
		if i > 0 {
			on = fmt.Sprintf("d%d", i-1)
		}
		want := int32(0)
		if i == namespace.MaxViewDepth {
			want = 165
		}
		if got := n.code("d", fmt.Sprintf(`{"create": "d%d", "viewOn": %q, "pipeline": []}`, i, on)); got != want {
			t.Errorf("view %d deep: code %d, want %d", i+1, got, want)
		}
	}
}

func TestIndexes(t *testing.T) {
	n := newTestNode(t)
	r := n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}, {"key": {"b": -1}, "name": "b"}]}`)
	if r["numIndexesBefore"] != int32(1) || r["numIndexesAfter"] != int32(3) || r["createdCollectionAutomatically"] != true {
		t.Errorf("reply %v", r)
	}
	runSteps(t, n, []step{
		{`{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}`, 0},
		{`{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "other"}]}`, mongoerr.IndexOptionsConflict},
		{`{"createIndexes": "c", "indexes": [{"key": {"z": 1}, "name": "a_1"}]}`, mongoerr.IndexKeySpecsConflict},
		{`{"createIndexes": "c", "indexes": []}`, mongoerr.BadValue},
		{`{"createIndexes": "c", "indexes": [{"key": {"u": 1}, "name": "u", "unique": true, "wrong": 1}]}`, mongoerr.InvalidIndexSpecificationOption},
		{`{"insert": "c", "documents": [{"_id": 1, "u": 1}, {"_id": 2, "u": 1}, {"_id": 3, "w": 1}]}`, 0},
		{`{"createIndexes": "c", "indexes": [{"key": {"u": 1}, "name": "u", "unique": true}]}`, mongoerr.DuplicateKey},
		{`{"createIndexes": "c", "indexes": [{"key": {"w": 1}, "name": "w", "unique": true, "sparse": true}]}`, 0},
		{`{"insert": "c", "documents": [{"_id": 4, "w": 2}]}`, 0},
		{`{"dropIndexes": "c", "index": "_id_"}`, mongoerr.InvalidOptions},
		{`{"dropIndexes": "c", "index": "nothing"}`, mongoerr.IndexNotFound},
		{`{"dropIndexes": "c", "index": ["b", "nothing"]}`, mongoerr.IndexNotFound},
		{`{"dropIndexes": "c", "index": {"b": -1}}`, 0},
	})
	got := strings.Join(n.first("d", `{"listIndexes": "c"}`), "\n")
	want := `{ v: 2, key: { _id: 1 }, name: "_id_" }
{ v: 2, key: { a: 1 }, name: "a_1" }
{ v: 2, key: { w: 1 }, name: "w", unique: true, sparse: true }`
	if got != want {
		t.Errorf("indexes\n%s\nwant\n%s", got, want)
	}
	if v := n.ok("d", `{"validate": "c"}`); v["valid"] != true || v["nrecords"] != int32(4) {
		t.Errorf("validate %v", v)
	}
}

// TestIndexBuildUnderWrites builds an index while others insert, and compares it with the documents.
func TestIndexBuildUnderWrites(t *testing.T) {
	n := newTestNode(t)
	insert := func(from, to int) {
		for i := from; i < to; i++ {
			n.ok("d", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "a": %d}], "writeConcern": {"w": 1}}`, i, i%7))
		}
	}
	insert(0, 300)
	var wg sync.WaitGroup
	for g := 0; g < 3; g++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			insert(1000*(g+1), 1000*(g+1)+200)
		}()
	}
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`)
	wg.Wait()
	if v := n.ok("d", `{"validate": "c", "full": true}`); v["valid"] != true || v["nrecords"] != int32(900) {
		t.Errorf("validate %v", v)
	}
}

func TestCollMod(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1}, {"_id": 2, "a": 1}]}`)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"t": 1}, "name": "t", "expireAfterSeconds": 100}]}`)
	r := n.ok("d", `{"collMod": "c", "index": {"keyPattern": {"t": 1}, "expireAfterSeconds": 50, "hidden": true}}`)
	if r["expireAfterSeconds_old"] != int64(100) || r["expireAfterSeconds_new"] != int64(50) || r["hidden_new"] != true {
		t.Errorf("reply %v", r)
	}
	runSteps(t, n, []step{
		{`{"collMod": "c", "index": {"name": "a", "unique": true}}`, mongoerr.InvalidOptions}, // not prepared
		{`{"collMod": "c", "index": {"name": "a", "prepareUnique": true}}`, 0},
		{`{"insert": "c", "documents": [{"_id": 3, "a": 1}]}`, 0},
		{`{"collMod": "c", "index": {"name": "a", "unique": true}}`, mongoerr.CannotConvertIndexToUnique},
		{`{"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}]}`, 0},
		{`{"collMod": "c", "index": {"name": "a", "unique": true}, "dryRun": true}`, 0},
		{`{"collMod": "c", "index": {"name": "a", "unique": true}}`, 0},
		{`{"collMod": "c", "index": {"name": "_id_", "hidden": true}}`, mongoerr.BadValue},
		{`{"collMod": "c", "index": {}}`, mongoerr.InvalidOptions},
		{`{"collMod": "c", "cappedSize": 4096}`, mongoerr.InvalidOptions},
		{`{"collMod": "c", "viewOn": "x"}`, mongoerr.InvalidOptions},
		{`{"collMod": "nothing"}`, mongoerr.NamespaceNotFound},
		{`{"collMod": "c", "validator": {"a": {"$exists": true}}}`, 0},
	})
	if r := n.do("d", `{"insert": "c", "documents": [{"_id": 9}]}`); r["writeErrors"] == nil {
		t.Errorf("the new validator lets everything pass: %v", r)
	}
	if r := n.do("d", `{"insert": "c", "documents": [{"_id": 10, "a": 1}]}`); r["writeErrors"] == nil {
		t.Errorf("the index is not unique: %v", r)
	}
}

func TestRename(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}, {"_id": 2}]}`)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`)
	n.ok("d", `{"insert": "taken", "documents": [{"_id": 9}]}`)
	for _, s := range []step{
		{`{"renameCollection": "d.c", "to": "d.taken"}`, mongoerr.NamespaceExists},
		{`{"renameCollection": "d.none", "to": "d.x"}`, mongoerr.NamespaceNotFound},
		{`{"renameCollection": "d.c", "to": "d.c"}`, mongoerr.IllegalOperation},
		{`{"renameCollection": "d.c", "to": "d.system.js"}`, mongoerr.IllegalOperation},
		{`{"renameCollection": "d.c", "to": "nodot"}`, mongoerr.InvalidNamespace},
		{`{"renameCollection": "d.c", "to": "d.taken", "dropTarget": true}`, 0},
		{`{"renameCollection": "d.taken", "to": "e.moved"}`, 0},
	} {
		if got := n.code("admin", s.cmd); got != int32(s.code) {
			t.Errorf("%s: code %d, want %d", s.cmd, got, int32(s.code))
		}
	}
	if got := n.first("e", `{"find": "moved"}`); len(got) != 2 {
		t.Errorf("moved: %v", got)
	}
	if got := n.first("e", `{"listIndexes": "moved"}`); len(got) != 2 {
		t.Errorf("indexes moved: %v", got)
	}
	if got := n.first("d", `{"listCollections": 1}`); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
	if got := n.first("e", `{"listCollections": 1, "nameOnly": true}`); len(got) != 1 {
		t.Errorf("more than the target: %v", got)
	}
}

func TestConvertToCapped(t *testing.T) {
	n := newTestNode(t)
	for i := 0; i < 20; i++ {
		n.ok("d", fmt.Sprintf(`{"insert": "c", "documents": [{"_id": %d, "pad": %q}]}`, i, strings.Repeat("x", 500)))
	}
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`)
	n.ok("d", `{"cloneCollectionAsCapped": "c", "toCollection": "clone", "size": 1048576}`)
	n.ok("d", `{"convertToCapped": "c", "size": 4096}`)
	if got := n.first("d", `{"find": "clone"}`); len(got) != 20 {
		t.Errorf("clone has %d documents", len(got))
	}
	got := n.first("d", `{"find": "c", "projection": {"_id": 1}}`)
	if len(got) == 0 || len(got) > 8 || got[len(got)-1] != "{ _id: 19 }" {
		t.Errorf("capped: %v", got)
	}
	if s := n.ok("d", `{"collStats": "c"}`); s["capped"] != true || s["nindexes"] != int32(1) {
		t.Errorf("stats %v", s)
	}
}

func TestDropDatabase(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "a"}`)
	n.ok("d", `{"create": "v", "viewOn": "a", "pipeline": []}`)
	n.ok("d", `{"dropDatabase": 1}`)
	n.ok("d", `{"dropDatabase": 1}`)
	if got := n.first("d", `{"listCollections": 1}`); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	dbs := n.ok("admin", `{"listDatabases": 1, "filter": {"name": "d"}}`)["databases"].(bson.A)
	if len(dbs) != 0 {
		t.Errorf("databases %v", dbs)
	}
}

// TestTTL runs passes of the monitor by hand at a time chosen by the test.
func TestTTL(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [
		{"_id": 1, "t": {"$date": "2020-01-01T00:00:00Z"}}, {"_id": 2, "t": {"$date": "2099-01-01T00:00:00Z"}},
		{"_id": 3, "t": "2020"}, {"_id": 4}, {"_id": 5, "t": [{"$date": "2099-01-01T00:00:00Z"}, {"$date": "2020-01-01T00:00:00Z"}]}]}`)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"t": 1}, "name": "t", "expireAfterSeconds": 60}]}`)
	n.ok("d", `{"create": "cl", "clusteredIndex": {"key": {"_id": 1}, "unique": true}, "expireAfterSeconds": 60}`)
	n.ok("d", `{"insert": "cl", "documents": [{"_id": {"$date": "2020-01-01T00:00:00Z"}}, {"_id": {"$date": "2099-01-01T00:00:00Z"}}]}`)
	n.srv.Node.Services.StepDown() // stops the monitor's own passes
	n.srv.Node.now = func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }
	m := ttlMonitor{n: n.srv.Node, client: command.OwnClient()}
	m.pass(context.Background())
	got := strings.Join(n.first("d", `{"find": "c", "projection": {"_id": 1}}`), " ")
	if want := "{ _id: 2 } { _id: 3 } { _id: 4 }"; got != want {
		t.Errorf("left %s, want %s", got, want)
	}
	if got := n.first("d", `{"find": "cl"}`); len(got) != 1 {
		t.Errorf("clustered: %v", got)
	}
}

func TestSafeInt64(t *testing.T) {
	n := newTestNode(t)
	for _, c := range []struct {
		size string
		code mongoerr.Code
	}{
		{`{"$numberDecimal": "0.5"}`, mongoerr.BadValue}, {`{"$numberDecimal": "1.5"}`, 0}, {`{"$numberDouble": "0.9"}`, mongoerr.BadValue}, {`{"$numberDouble": "NaN"}`, mongoerr.BadValue},
		{`{"$numberDouble": "Infinity"}`, mongoerr.BadValue}, {`{"$numberDecimal": "1125899906842624.5"}`, 0}, {`{"$numberDecimal": "1125899906842624.7"}`, mongoerr.BadValue},
	} {
		if got := n.code("d", `{"create": "c", "capped": true, "size": `+c.size+`}`); got != int32(c.code) {
			t.Errorf("size %s: code %d, want %d", c.size, got, int32(c.code))
		}
		n.ok("d", `{"drop": "c"}`)
	}
}

// TestReadView reads through views: find with all of its options, count, distinct, and what a view refuses.
func TestReadView(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": "x", "n": 3}, {"_id": 2, "a": "y", "n": 2}, {"_id": 3, "a": "X", "n": 1}]}`)
	n.ok("d", `{"create": "v", "viewOn": "c", "pipeline": [{"$match": {"n": {"$lt": 3}}}]}`)
	n.ok("d", `{"create": "ci", "viewOn": "c", "pipeline": [], "collation": {"locale": "en", "strength": 2}}`)
	for _, c := range []struct{ cmd, want string }{
		{`{"find": "v", "sort": {"n": 1}, "projection": {"n": 1}, "limit": 1}`, `[{ _id: 3, n: 1 }]`},
		{`{"find": "v", "filter": {"a": "y"}, "skip": 0}`, `[{ _id: 2, a: "y", n: 2 }]`},
		{`{"find": "v", "sort": {"$natural": -1}, "projection": {"_id": 1}}`, `[{ _id: 3 }, { _id: 2 }]`},
		{`{"find": "ci", "filter": {"a": "x"}, "sort": {"_id": 1}, "projection": {"_id": 1}}`, `[{ _id: 1 }, { _id: 3 }]`},
	} {
		if got := "[" + strings.Join(n.first("d", c.cmd), ", ") + "]"; got != c.want {
			t.Errorf("%s: %s, want %s", c.cmd, got, c.want)
		}
	}
	for _, c := range []struct {
		cmd  string
		code mongoerr.Code
	}{
		{`{"find": "v", "showRecordId": true}`, mongoerr.InvalidPipelineOperator},
		{`{"find": "v", "sort": {"$natural": 1}, "hint": {"a": 1}}`, mongoerr.InvalidPipelineOperator},
		{`{"find": "ci", "collation": {"locale": "fr"}}`, mongoerr.OptionNotSupportedOnView},
		{`{"aggregate": "c", "pipeline": [{"$lookup": {"from": "ci", "as": "o", "pipeline": []}}], "cursor": {}}`, mongoerr.OptionNotSupportedOnView},
	} {
		if got := n.code("d", c.cmd); got != int32(c.code) {
			t.Errorf("%s: code %d, want %d", c.cmd, got, int32(c.code))
		}
	}
}

// TestTimeseries writes measurements, reads them in order, changes their meta and deletes some.
func TestTimeseries(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "s", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	at := func(sec int) string { return fmt.Sprintf(`{"$date": {"$numberLong": "%d000"}}`, sec) }
	for i, batch := range []string{
		fmt.Sprintf(`{"_id": 1, "t": %s, "m": {"a": 1, "b": 2}, "v": 1}, {"_id": 2, "t": %s, "m": {"b": 2, "a": 1}, "v": 2}`, at(100), at(70)),
		fmt.Sprintf(`{"_id": 3, "t": %s, "m": {"a": 1, "b": 2}, "v": 3}, {"_id": 4, "t": %s, "v": 4}`, at(80), at(90)),
		fmt.Sprintf(`{"_id": 5, "t": %s, "m": {"a": 1, "b": 2}}`, at(90000)),
	} {
		if r := n.ok("d", `{"insert": "s", "documents": [`+batch+`]}`); r["writeErrors"] != nil {
			t.Fatalf("batch %d: %v", i, r)
		}
	}
	ids := func(filter string) string {
		return strings.Join(n.first("d", `{"find": "s", "projection": {"_id": 1}, "filter": `+filter+`}`), "")
	}
	for _, c := range []struct{ filter, want string }{
		{`{"m.a": 1, "t": {"$lt": ` + at(1000) + `}}`, `{ _id: 2 }{ _id: 3 }{ _id: 1 }`},
		{`{"m": null}`, `{ _id: 4 }`},
		{`{"t": {"$gt": ` + at(100) + `}}`, `{ _id: 5 }`},
		{`{"v": 3}`, `{ _id: 3 }`},
	} {
		if got := ids(c.filter); got != c.want {
			t.Errorf("%s: %s, want %s", c.filter, got, c.want)
		}
	}
	if got := len(n.first("d", `{"find": "system.buckets.s"}`)); got != 3 {
		t.Errorf("%d buckets, want 3", got)
	}
	r := n.ok("d", `{"insert": "s", "documents": [{"t": 5}]}`)
	if !strings.Contains(fmt.Sprint(r["writeErrors"]), "valid BSON UTC datetime") {
		t.Errorf("a measurement without time: %v", r)
	}
	for _, c := range []struct {
		cmd, field string
		want       int32
	}{
		{`{"update": "s", "updates": [{"q": {"m.a": 1}, "u": {"$set": {"m.b": 3}}, "multi": true}]}`, "n", 2},
		{`{"count": "s", "query": {"m.b": 3}}`, "n", 4},
		{`{"delete": "s", "deletes": [{"q": {"v": {"$in": [1, 3]}}, "limit": 0}]}`, "n", 2},
		{`{"delete": "s", "deletes": [{"q": {"m.b": 3}, "limit": 1}]}`, "n", 1},
		{`{"count": "s"}`, "n", 2},
	} {
		if got, _ := n.ok("d", c.cmd)[c.field].(int32); got != c.want {
			t.Errorf("%s: %d, want %d", c.cmd, got, c.want)
		}
	}
}

// TestTimeseriesRetry retries inserts of measurements with their statement numbers; they exist once, also if the only record of them is in the oplog.
func TestTimeseriesRetry(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "s", "timeseries": {"timeField": "t"}}`)
	cmd := `{"insert": "s", "documents": [{"t": {"$date": "2024-01-01T00:00:00Z"}, "v": 1}, {"t": {"$date": "2024-03-01T00:00:00Z"}, "v": 2}],
		"lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}}, "txnNumber": {"$numberLong": "7"}}`
	for i := 0; i < 2; i++ {
		if r := n.ok("d", cmd); r["n"] != int32(2) {
			t.Fatalf("try %d: %v", i, r)
		}
	}
	if got, _ := n.ok("d", `{"count": "s"}`)["n"].(int32); got != 2 {
		t.Errorf("%d measurements, want 2", got)
	}
	entries := n.first("local", `{"find": "oplog.rs", "filter": {"stmtId": {"$exists": true}}, "projection": {"_id": 0, "stmtId": 1}}`)
	if len(entries) != 1 || entries[0] != "{ stmtId: [ 0, 1 ] }" {
		t.Errorf("statements in the oplog: %v", entries)
	}
	n.forgetSessions()
	if r := n.ok("d", cmd); r["n"] != int32(2) {
		t.Fatal(r)
	}
	if got, _ := n.ok("d", `{"count": "s"}`)["n"].(int32); got != 2 {
		t.Errorf("%d measurements after the oplog was read, want 2", got)
	}
}
