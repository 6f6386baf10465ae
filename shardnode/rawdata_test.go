package shardnode

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// rawSeries has a time series with one bucket of three measurements, a view on it, and a collection.
func rawSeries(t *testing.T) *testNode {
	n := newTestNode(t)
	n.ok("db", `{"create": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	n.ok("db", `{"create": "view", "viewOn": "ts", "pipeline": [{"$match": {"v": {"$gt": 1}}}]}`)
	n.ok("db", `{"insert": "ts", "documents": [
		{"_id": 1, "t": {"$date": "2026-01-01T00:00:00Z"}, "m": "a", "v": 1},
		{"_id": 2, "t": {"$date": "2026-01-01T00:01:00Z"}, "m": "a", "v": 2},
		{"_id": 3, "t": {"$date": "2026-01-01T00:02:00Z"}, "m": "a", "v": 3}]}`)
	n.ok("db", `{"insert": "plain", "documents": [{"_id": 1}, {"_id": 2}]}`)
	return n
}

// in returns a value below a reply's field.
func in(doc any, path ...string) any {
	for _, name := range path {
		raw, err := bson.Marshal(doc)
		if err != nil {
			return nil
		}
		m := bson.M{}
		if err := bson.Unmarshal(raw, &m); err != nil {
			return nil
		}
		doc = m[name]
	}
	return doc
}

func firstBatch(m bson.M) bson.A { return in(m, "cursor", "firstBatch").(bson.A) }

// rawData: true makes each command that supports it read and write the buckets of a time series; it changes nothing on other collections, nor on a
// view on the time series.
func TestRawDataReadsBuckets(t *testing.T) {
	n := rawSeries(t)
	expect := func(got any, want string) {
		t.Helper()
		if s := fmt.Sprint(got); s != want {
			t.Errorf("got %s, want %s", s, want)
		}
	}
	found := n.ok("db", `{"find": "ts", "rawData": true}`)
	expect(len(firstBatch(found)), "1")
	expect(in(firstBatch(found)[0], "meta"), "a")
	expect(in(found, "cursor", "ns"), "db.system.buckets.ts")
	expect(len(firstBatch(n.ok("db", `{"find": "ts", "rawData": false}`))), "3")
	expect(n.ok("db", `{"count": "ts", "rawData": true}`)["n"], "1")
	expect(n.ok("db", `{"count": "ts", "query": {"meta": "a"}, "rawData": true}`)["n"], "1")
	expect(n.ok("db", `{"distinct": "ts", "key": "meta", "rawData": true}`)["values"], "[a]")
	expect(len(firstBatch(n.ok("db", `{"aggregate": "ts", "pipeline": [{"$match": {"control.version": {"$exists": true}}}], "cursor": {}, "rawData": true}`))), "1")
	expect(in(firstBatch(n.ok("db", `{"listIndexes": "ts", "rawData": true}`))[0], "key", "control.min.t"), "1")

	for _, coll := range []string{"plain", "view"} {
		expect(len(firstBatch(n.ok("db", fmt.Sprintf(`{"find": "%s", "rawData": true}`, coll)))), "2")
		expect(n.ok("db", fmt.Sprintf(`{"count": "%s", "rawData": true}`, coll))["n"], "2")
	}
	expect(len(firstBatch(n.ok("db", `{"listCollections": 1, "rawData": true}`))), fmt.Sprint(len(firstBatch(n.ok("db", `{"listCollections": 1}`)))))

	for _, cmd := range []string{
		`{"explain": {"find": "ts", "filter": {"meta": "a"}, "rawData": true}}`, `{"explain": {"find": "ts", "filter": {"meta": "a"}}, "rawData": true}`,
		`{"explain": {"count": "ts", "rawData": true}}`, `{"explain": {"distinct": "ts", "key": "meta", "rawData": true}}`,
		`{"explain": {"aggregate": "ts", "pipeline": [{"$match": {"meta": "a"}}], "cursor": {}, "rawData": true}}`,
		`{"explain": {"delete": "ts", "deletes": [{"q": {}, "limit": 0}], "rawData": true}}`,
		`{"explain": {"update": "ts", "updates": [{"q": {}, "u": {"$set": {"meta": "b"}}}], "rawData": true}}`,
		`{"explain": {"findAndModify": "ts", "remove": true, "rawData": true}}`,
	} {
		plan := n.ok("db", cmd)
		if in(plan, "queryPlanner", "namespace") != "db.system.buckets.ts" || strings.Contains(fmt.Sprint(plan), "$_internalUnpackBucket") {
			t.Errorf("%s: %v", cmd, plan)
		}
	}
}

// A cursor that rawData opened returns the rest of the buckets under the name that its first batch gave.
func TestRawDataGetMore(t *testing.T) {
	n := newTestNode(t)
	n.ok("db", `{"create": "ts", "timeseries": {"timeField": "t", "metaField": "m"}}`)
	for i := range 5 {
		n.ok("db", fmt.Sprintf(`{"insert": "ts", "documents": [{"t": {"$date": "2026-01-01T00:00:00Z"}, "m": %d}]}`, i))
	}
	m := n.ok("db", `{"find": "ts", "rawData": true, "batchSize": 2}`)
	_, coll, _ := strings.Cut(fmt.Sprint(in(m, "cursor", "ns")), ".")
	m = n.ok("db", fmt.Sprintf(`{"getMore": {"$numberLong": "%d"}, "collection": "%s", "rawData": true}`, in(m, "cursor", "id"), coll))
	rest, _ := in(m, "cursor", "nextBatch").(bson.A)
	if len(rest) != 3 || in(rest[0], "control") == nil {
		t.Errorf("the rest: %v", rest)
	}
}

// Writes with rawData: true are those of buckets: any field of one may change, and what is inserted has to be one.
func TestRawDataWritesBuckets(t *testing.T) {
	n := rawSeries(t)
	bucket := firstBatch(n.ok("db", `{"find": "ts", "rawData": true}`))[0]
	doc, err := bson.MarshalExtJSON(bucket, true, false)
	if err != nil {
		t.Fatal(err)
	}
	count := func(want int) {
		t.Helper()
		if m := n.ok("db", `{"count": "ts"}`)["n"]; fmt.Sprint(m) != fmt.Sprint(want) {
			t.Errorf("%v measurements, want %d", m, want)
		}
	}
	series := func(want string) {
		t.Helper()
		if m := firstBatch(n.ok("db", `{"find": "ts"}`))[0]; in(m, "m") != want {
			t.Errorf("not of series %s: %v", want, m)
		}
	}
	modified := func(m bson.M, field string, want int) {
		t.Helper()
		if fmt.Sprint(m[field]) != fmt.Sprint(want) || m["writeErrors"] != nil {
			t.Errorf("%s is not %d: %v", field, want, m)
		}
	}
	modified(n.ok("db", `{"delete": "ts", "deletes": [{"q": {"control.min.v": 1}, "limit": 1}], "rawData": true}`), "n", 1)
	count(0)
	modified(n.ok("db", fmt.Sprintf(`{"insert": "ts", "documents": [%s], "rawData": true}`, doc)), "n", 1)
	count(3)
	if m := n.do("db", `{"insert": "ts", "documents": [{"t": {"$date": "2026-01-01T00:00:00Z"}}], "rawData": true}`); m["writeErrors"] == nil {
		t.Errorf("a measurement is no bucket: %v", m)
	}
	modified(n.ok("db", `{"update": "ts", "updates": [{"q": {}, "u": {"$set": {"control.closed": false, "meta": "b"}}}], "rawData": true}`), "nModified", 1)
	series("b")
	n.ok("db", `{"findAndModify": "ts", "query": {"meta": "b"}, "update": {"$set": {"meta": "c"}}, "rawData": true}`)
	modified(n.ok("admin", `{"bulkWrite": 1, "ops": [{"update": 1, "filter": {"meta": "c"}, "updateMods": {"$set": {"meta": "d"}}}, {"insert": 0, "document": {"_id": 9}}],
		"nsInfo": [{"ns": "db.plain"}, {"ns": "db.ts"}], "rawData": true}`), "nModified", 1)
	count(3)
	series("d")
	if m := n.ok("db", `{"findAndModify": "ts", "remove": true, "rawData": true}`); in(m, "value", "meta") != "d" {
		t.Errorf("removed: %v", m)
	}
	count(0)

	n.ok("db", `{"createIndexes": "ts", "indexes": [{"key": {"control.min.v": 1}, "name": "raw"}], "rawData": true}`)
	if m := firstBatch(n.ok("db", `{"listIndexes": "ts", "rawData": true}`)); len(m) != 2 {
		t.Errorf("indexes: %v", m)
	}
	n.ok("db", `{"dropIndexes": "ts", "index": "raw", "rawData": true}`)
	if m := firstBatch(n.ok("db", `{"listIndexes": "ts", "rawData": true}`)); len(m) != 1 {
		t.Errorf("indexes: %v", m)
	}
}

// Commands that do not support rawData refuse it, and its type is checked everywhere.
func TestRawDataRefused(t *testing.T) {
	n := rawSeries(t)
	for _, cmd := range []string{
		`{"collStats": "ts", "rawData": true}`, `{"ping": 1, "rawData": true}`, `{"drop": "ts", "rawData": true}`, `{"collMod": "ts", "rawData": true}`,
		`{"explain": {"mapReduce": "ts", "map": "1", "reduce": "1", "out": {"inline": 1}, "rawData": true}}`,
	} {
		m := n.do("db", cmd)
		if m["code"] != int32(mongoerr.InvalidOptions) || !strings.Contains(fmt.Sprint(m["errmsg"]), "rawData") {
			t.Errorf("%s: %v", cmd, m)
		}
	}
	for _, cmd := range []string{`{"find": "ts", "rawData": "yes"}`, `{"ping": 1, "rawData": 1}`, `{"explain": {"find": "ts", "rawData": 1}}`} {
		if code := n.code("db", cmd); code != int32(mongoerr.TypeMismatch) {
			t.Errorf("%s: %v", cmd, code)
		}
	}
	if m := n.do("db", `{"aggregate": "ts", "pipeline": [{"$changeStream": {}}], "cursor": {}, "rawData": true}`); !strings.Contains(fmt.Sprint(m["errmsg"]), "rawData") {
		t.Errorf("a change stream: %v", m)
	}
	n.ok("db", `{"ping": 1, "rawData": false}`)
}

// The namespaces of a bulkWrite are found in a document sequence, too, and statements in one are those of buckets.
func TestRawDataInSequences(t *testing.T) {
	n := rawSeries(t)
	raw := func(d any) []byte {
		b, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	change := bson.M{"$set": bson.M{"meta": "b"}}
	for _, m := range []*wire.Message{
		{Body: raw(bson.D{{Key: "bulkWrite", Value: 1}, {Key: "rawData", Value: true}, {Key: "$db", Value: "admin"}}), Seqs: []wire.Sequence{
			{ID: "ops", Docs: raw(bson.D{{Key: "update", Value: 1}, {Key: "filter", Value: bson.M{"meta": "a"}}, {Key: "updateMods", Value: change}})},
			{ID: "nsInfo", Docs: append(raw(bson.M{"ns": "db.plain"}), raw(bson.M{"ns": "db.ts"})...)}}},
		{Body: raw(bson.D{{Key: "update", Value: "ts"}, {Key: "rawData", Value: true}, {Key: "$db", Value: "db"}}), Seqs: []wire.Sequence{
			{ID: "updates", Docs: raw(bson.D{{Key: "q", Value: bson.M{"meta": "b"}}, {Key: "u", Value: change}})}}},
	} {
		reply := bson.M{}
		if err := bson.Unmarshal(n.srv.Service.Run(t.Context(), n.cl, m, nil), &reply); err != nil {
			t.Fatal(err)
		}
		matched := reply["nMatched"]
		if matched == nil {
			matched = reply["n"]
		}
		if matched != int32(1) {
			t.Errorf("matched no bucket: %v", reply)
		}
	}
}
