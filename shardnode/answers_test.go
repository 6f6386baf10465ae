package shardnode

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// After setDefaultRWConcern with a write concern every write in a transaction failed with 72: the default was treated
// like one that the client had given. It applies to the transaction's commit or abort alone.
func TestDefaultWriteConcernInTransactions(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "c"}`)
	n.ok("admin", `{"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 1}, "defaultReadConcern": {"level": "majority"}}`)
	runTxn(t, n, []txnStep{
		{1, true, "d", `{"insert": "c", "documents": [{"_id": 1}]}`, 0, ""},
		{1, false, "d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"x": 1}}}]}`, 0, ""},
		{1, false, "d", `{"find": "c"}`, 0, `[ { _id: 1, x: 1 } ]`},
		{1, false, "d", `{"insert": "c", "documents": [{"_id": 2}], "writeConcern": {"w": 1}}`, mongoerr.InvalidOptions, ""},
		{2, true, "d", `{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}`, 0, ""},
		{2, false, "admin", `{"commitTransaction": 1}`, 0, ""},
		{0, false, "d", `{"find": "c"}`, 0, `[ ]`},
	})
}

// distinct on a view treated numbers in a path only as field names.
func TestDistinctOnAViewWithANumericPath(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": [5, 6], "b": [{"x": 1}, {"x": [2, 3]}], "m": [[7, 8], 9]}, {"_id": 2, "a": {"0": 4}}, {"_id": 3, "a": null}]}`)
	n.ok("d", `{"create": "v", "viewOn": "c"}`)
	for _, key := range []string{"a", "a.0", "a.1", "b.x", "b.1.x", "b.1.x.0", "b.x.0", "m", "m.0", "m.0.1", "_id", "none"} {
		want := shown(t, n.ok("d", fmt.Sprintf(`{"distinct": "c", "key": %q}`, key)), "values")
		if got := shown(t, n.do("d", fmt.Sprintf(`{"distinct": "v", "key": %q}`, key)), "values"); got != want {
			t.Errorf("%s: %s on the view, %s on the collection", key, got, want)
		}
	}
	if got := shown(t, n.do("d", `{"distinct": "v", "key": "b.1.x"}`), "values"); got != "{ values: [ 2, 3 ] }" {
		t.Errorf("b.1.x: %s", got)
	}
}

// $bottom and $bottomN kept the last of several documents that sort equal instead of the first.
func TestBottomKeepsTheFirstOfEquals(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "k": 1}, {"_id": 2, "k": 1}, {"_id": 3, "k": 1}, {"_id": 4, "k": 0}]}`)
	for acc, want := range map[string]string{
		`{"$bottom": {"sortBy": {"k": 1}, "output": "$_id"}}`:             "{ r: 1 }",
		`{"$bottomN": {"n": 2, "sortBy": {"k": 1}, "output": "$_id"}}`:    "{ r: [ 1, 2 ] }",
		`{"$top": {"sortBy": {"k": -1}, "output": "$_id"}}`:               "{ r: 1 }",
		`{"$topN": {"n": 2, "sortBy": {"k": -1}, "output": "$_id"}}`:      "{ r: [ 1, 2 ] }",
		`{"$bottomN": {"n": 2, "sortBy": {"k": -1}, "output": "$_id"}}`:   "{ r: [ 2, 4 ] }",
		`{"$bottomN": {"n": 3, "sortBy": {"none": 1}, "output": "$_id"}}`: "{ r: [ 1, 2, 3 ] }",
	} {
		got := n.first("d", `{"aggregate": "c", "pipeline": [{"$group": {"_id": null, "r": `+acc+`}}, {"$project": {"_id": 0}}], "cursor": {}}`)
		if fmt.Sprint(got) != "["+want+"]" {
			t.Errorf("%s: %s, want %s", acc, got, want)
		}
	}
}

// A find without $text could ask for the text score, and got none.
func TestTextScoreNeedsText(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "s": "coffee"}]}`)
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"s": "text"}, "name": "s"}]}`)
	for filter, want := range map[string]int32{`{}`: 40218, `{"s": "coffee"}`: 40218, `{"$text": {"$search": "coffee"}}`: 0} {
		if got := n.code("d", `{"find": "c", "filter": `+filter+`, "projection": {"score": {"$meta": "textScore"}}}`); got != want {
			t.Errorf("%s: %d, want %d", filter, got, want)
		}
	}
}

// validationAction warn logged nothing, errorAndLog neither, and validate did not count what the validator refuses.
func TestValidationIsLoggedAndCounted(t *testing.T) {
	n := newTestNode(t)
	var lines []string
	n.srv.Node.Invalid = func(ns string, doc, errInfo []byte) {
		lines = append(lines, ns+" "+value.ShowDoc(doc)+" "+value.ShowDoc(errInfo))
	}
	for action, code := range map[string]bool{"warn": false, "errorAndLog": true, "error": true} {
		lines = nil
		n.ok("d", fmt.Sprintf(`{"create": %q, "validator": {"a": {"$gt": 1}}, "validationAction": %q}`, action, action))
		r := n.ok("d", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 1, "a": 1}]}`, action))
		if (r["writeErrors"] != nil) != code {
			t.Errorf("%s: %v", action, r)
		}
		n.ok("d", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 2, "a": 2}]}`, action))
		want := `d.` + action + ` { _id: 1, a: 1 } { failingDocumentId: 1, details: { operatorName: "$gt", specifiedAs: { a: { $gt: 1 } }, reason: "comparison failed", consideredValue: 1 } }`
		if action == "error" {
			want = ""
		}
		if got := strings.Join(lines, "\n"); got != want {
			t.Errorf("%s logs %s", action, got)
		}
	}
	r := n.ok("d", `{"validate": "warn"}`)
	if r["nNonCompliantDocuments"] != int32(1) || r["nInvalidDocuments"] != int32(0) || r["valid"] != true || len(r["warnings"].(bson.A)) != 1 {
		t.Errorf("validate: %v", r)
	}
	n.ok("d", `{"validate": "warn", "background": true}`)
}

// A partial index of a time series lost its filter: it became a full one, and its TTL never let a bucket expire.
func TestPartialIndexOfATimeSeries(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	n.ok("d", `{"createIndexes": "ts", "indexes": [{"key": {"t": 1}, "name": "plain"},
		{"key": {"t": 1}, "name": "partial", "partialFilterExpression": {"m.k": {"$eq": 1}}, "expireAfterSeconds": 60}]}`)
	old, now := `{"$date": "2020-01-01T00:00:00Z"}`, fmt.Sprintf(`{"$date": %q}`, time.Now().UTC().Format(time.RFC3339))
	n.ok("d", `{"insert": "ts", "documents": [{"_id": 1, "t": `+old+`, "m": {"k": 1}}, {"_id": 2, "t": `+old+`, "m": {"k": 2}}, {"_id": 3, "t": `+now+`, "m": {"k": 1}}]}`)
	specs := strings.Join(n.first("d", `{"listIndexes": "ts"}`), "\n")
	if !strings.Contains(specs, `partialFilterExpression: { m.k: { $eq: 1 } }`) {
		t.Errorf("the indexes are %s", specs)
	}
	buckets := strings.Join(n.first("d", `{"listIndexes": "system.buckets.ts"}`), "\n")
	if !strings.Contains(buckets, `partialFilterExpression: { meta.k: { $eq: 1 } }`) {
		t.Errorf("the indexes of the buckets are %s", buckets)
	}
	m := &ttlMonitor{n: n.srv.Node, client: command.OwnClient()}
	m.pass(t.Context())
	if got := fmt.Sprint(n.first("d", `{"find": "ts", "projection": {"_id": 1}, "sort": {"_id": 1}}`)); got != "[{ _id: 2 } { _id: 3 }]" {
		t.Errorf("after a pass there are %s", got)
	}
}

// The projection of a wildcard index was shown in another form than it had been specified in.
func TestWildcardProjectionIsShownAsGiven(t *testing.T) {
	n := newTestNode(t)
	for name, given := range map[string]string{"a": `{ b: 1, x.y: true, _id: 0 }`, "b": `{ x: { y: 1, z: 1 } }`, "c": `{ b: false, x.y: 0 }`} {
		spec := strings.NewReplacer("x.y", `"x.y"`, "b:", `"b":`, "_id", `"_id"`, "x:", `"x":`, "y:", `"y":`, "z:", `"z":`).Replace(given)
		n.ok("d", fmt.Sprintf(`{"createIndexes": %q, "indexes": [{"key": {"$**": 1}, "name": "w", "wildcardProjection": %s}]}`, name, spec))
		if specs := strings.Join(n.first("d", fmt.Sprintf(`{"listIndexes": %q}`, name)), " "); !strings.Contains(specs, "wildcardProjection: "+given+" }") {
			t.Errorf("given %s, the indexes are %s", given, specs)
		}
	}
}

// Views could be created on the buckets of a time series, or pointed at them by collMod; a write, an index, or a router of
// the same process could create a collection of such a name that belongs to no series.
func TestViewsOnBucketsAreRefused(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "ts", "timeseries": {"timeField": "t"}}`)
	n.ok("d", `{"create": "v", "viewOn": "c", "pipeline": []}`)
	for _, client := range []*command.Client{n.cl, {InProcess: true, Internal: true, Started: time.Now()}} {
		n.cl = client
		for cmd, want := range map[string]int32{
			`{"create": "w", "viewOn": "system.buckets.ts"}`: 73, `{"create": "system.buckets.v", "viewOn": "c"}`: 20, `{"create": "system.buckets.x"}`: 20,
			`{"collMod": "v", "viewOn": "system.buckets.ts", "pipeline": []}`:                                73,
			`{"createIndexes": "system.buckets.x", "indexes": [{"key": {"a": 1}, "name": "a"}]}`:             20,
			`{"insert": "system.buckets.x", "documents": [{"_id": 1}]}`:                                      20,
			`{"update": "system.buckets.x", "updates": [{"q": {"_id": 1}, "u": {"a": 1}, "upsert": true}]}`:  20,
			`{"findAndModify": "system.buckets.x", "query": {"_id": 1}, "update": {"a": 1}, "upsert": true}`: 20,
		} {
			r := n.do("d", cmd)
			got, _ := r["code"].(int32)
			if errs, ok := r["writeErrors"].(bson.A); ok {
				got = asM(errs[0])["code"].(int32)
			}
			if got != want {
				t.Errorf("%s: %d, want %d", cmd, got, want)
			}
		}
	}
	if got := n.code("d", `{"create": "x", "timeseries": {"timeField": "t"}}`); got != 0 {
		t.Errorf("a series whose buckets' name was asked for before: %d", got)
	}
}

// The explain of an aggregate with a write concern was accepted in one form and refused with another message in the other.
func TestExplainOfAnAggregateWithAWriteConcern(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	const want = "Aggregation explain does not support the'writeConcern' option"
	for _, cmd := range []string{
		`{"explain": {"aggregate": "c", "pipeline": [], "cursor": {}, "writeConcern": {"w": 1}}}`,
		`{"aggregate": "c", "pipeline": [], "explain": true, "writeConcern": {"w": 1}}`,
	} {
		if r := n.do("d", cmd); r["code"] != int32(mongoerr.FailedToParse) || r["errmsg"] != want {
			t.Errorf("%s: %v", cmd, r)
		}
	}
	n.ok("admin", `{"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": 1}}`)
	n.ok("d", `{"aggregate": "c", "pipeline": [], "explain": true}`)
}

// $listSearchIndexes was not refused under the read concerns that it does not support.
func TestListSearchIndexesReadsLocally(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"create": "c"}`)
	for level, want := range map[string]mongoerr.Code{"majority": mongoerr.InvalidOptions, "snapshot": mongoerr.InvalidOptions} {
		if got := n.code("d", `{"aggregate": "c", "pipeline": [{"$listSearchIndexes": {}}], "cursor": {}, "readConcern": {"level": "`+level+`"}}`); got != int32(want) {
			t.Errorf("%s: %d", level, got)
		}
	}
}

// Duplicate key errors showed values of any length.
func TestDuplicateKeysAreShownShort(t *testing.T) {
	n := newTestNode(t)
	for _, tc := range []struct{ id, want string }{
		{`"` + strings.Repeat("x", 160) + `"`, `dup key: { _id: "` + strings.Repeat("x", 160) + `" }`},
		{`"` + strings.Repeat("x", 161) + `"`, `dup key: { _id: "` + strings.Repeat("x", 150) + `..." }`},
		{`"` + strings.Repeat("\u00e4", 81) + `"`, `dup key: { _id: "` + strings.Repeat("\u00e4", 75) + `..." }`},
		{`{"a": ["` + strings.Repeat("x", 170) + `"]}`, `dup key: { _id: { a: [ "` + strings.Repeat("x", 150) + `..." ] } }`},
		{`{"$code": "` + strings.Repeat("x", 81) + `"}`, `dup key: { _id: ` + strings.Repeat("x", 70) + `... }`},
		{`{"$binary": {"base64": "` + strings.Repeat("AAAA", 30) + `", "subType": "00"}}`, `dup key: { _id: BinData(0, ` + strings.Repeat("00", 70) + `...) }`},
	} {
		r := n.ok("d", `{"insert": "c", "documents": [{"_id": `+tc.id+`}, {"_id": `+tc.id+`}]}`)
		e := asM(r["writeErrors"].(bson.A)[0])
		if m := e["errmsg"].(string); !strings.HasSuffix(m, tc.want) {
			t.Errorf("%s: %s", tc.id, m)
		}
	}
}

// The profiler omitted reads of its own collection, and did not mark the operation that exhausted a cursor.
func TestProfilerRecordsItsReadersAndTheEndsOfCursors(t *testing.T) {
	n := newTestNode(t)
	n.load("d", "c", 500)
	n.ok("d", `{"profile": 2}`)
	n.ok("d", `{"find": "c", "batchSize": 1000}`)
	r := n.ok("d", `{"find": "c", "batchSize": 400}`)
	n.ok("d", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "c"}`, cursorID(t, r)))
	n.ok("d", `{"find": "system.profile"}`)
	got := n.first("d", `{"find": "system.profile", "projection": {"_id": 0, "op": 1, "ns": 1, "cursorExhausted": 1}}`)
	want := []string{`{ op: "query", ns: "d.c", cursorExhausted: true }`, `{ op: "query", ns: "d.c" }`,
		`{ op: "getmore", ns: "d.c", cursorExhausted: true }`, `{ op: "query", ns: "d.system.profile", cursorExhausted: true }`}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the profile has %s", strings.Join(got, "\n"))
	}
}

// The error of an index build that fails on a document names the build and the collection, and has the details of the key;
// names that collections cannot have are refused with messages of their own.
func TestRefusedNamesAndFailedBuilds(t *testing.T) {
	n := newTestNode(t)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1}, {"_id": 2, "a": 1}, {"_id": 3, "b": [1], "c": [1]}]}`)
	const id = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
	for cmd, want := range map[string]string{
		`{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "x", "unique": true}]}`: `^Index build failed: ` + id + `: Collection d\.c \( ` + id +
			` \) :: caused by :: E11000 duplicate key error collection: d\.c index: x dup key: \{ a: 1 \}$`,
		`{"createIndexes": "c", "indexes": [{"key": {"b": 1, "c": 1}, "name": "x"}]}`: `^Index build failed: ` + id + `: Collection d\.c \( ` + id + ` \) :: caused by :: cannot index parallel arrays`,
		`{"createIndexes": "c", "indexes": [{"key": {"a": 0}, "name": "x"}]}`:         `^Error in specification \{ key: \{ a: 0 \}, name: "x" \} :: caused by :: Values in the index key pattern cannot be 0\.$`,
		`{"find": ""}`:                        `^Invalid namespace specified: d$`,
		`{"insert": ".a", "documents": [{}]}`: `^Collection names cannot start with '\.': \.a$`,
		`{"create": "a\u0000b"}`:              `^namespaces cannot have embedded null characters$`,
		`{"delete": {}, "deletes": []}`:       `^Collection name has invalid type object$`,
	} {
		m := n.do("d", cmd)
		if got, _ := m["errmsg"].(string); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s: %s, want %s", cmd, got, want)
		}
		if m["code"] == int32(mongoerr.DuplicateKey) && (m["keyPattern"] == nil || m["keyValue"] == nil) {
			t.Errorf("%s: %v", cmd, m)
		}
	}
}
