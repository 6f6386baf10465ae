package shardnode

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// sampling has a node of a set sample the queries of a collection at the highest rate, and store them soon.
func (n *testNode) sampling(ns string) {
	n.t.Helper()
	for _, p := range []string{"queryAnalysisSamplerConfigurationRefreshSecs", "queryAnalysisWriterIntervalSecs"} {
		n.srv.Node.Params.Store(p, value.NewInt32(1))
	}
	n.ok("admin", `{"configureQueryAnalyzer": "`+ns+`", "mode": "full", "samplesPerSecond": 50}`)
	await.True(n.t, "the sampler's configuration", n.srv.Service.Sampler.On)
}

// stored awaits a number of documents of a collection of the database config.
func (n *testNode) stored(coll string, count int32) {
	n.t.Helper()
	await.True(n.t, fmt.Sprint(count, " documents of ", coll), func() bool { return n.ok("config", `{"count": "`+coll+`"}`)["n"] == count })
}

func TestSamplingOfASet(t *testing.T) {
	n := newTestNode(t)
	n.ok("db", `{"insert": "c", "documents": [{"_id": 1, "a": 1, "d": {"x": 1}}, {"_id": 2, "a": 2}]}`)
	n.sampling("db.c")
	n.ok("db", `{"find": "c", "filter": {"a": 1}, "let": {"v": 1}, "collation": {"locale": "fr"}}`)
	n.ok("db", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"d.x": 2, "n": 1}, "$unset": {"a": 1}}}]}`)
	n.ok("db", `{"findAndModify": "c", "query": {"_id": 2}, "update": {"$set": {"a": 3}}}`)
	n.ok("admin", `{"bulkWrite": 1, "ops": [{"update": 0, "filter": {"_id": 2}, "updateMods": {"$set": {"a": 4}}}], "nsInfo": [{"ns": "db.c"}]}`)
	n.ok("db", `{"insert": "c", "documents": [{"_id": 3}]}`)
	n.ok("db", `{"find": "other"}`)
	n.stored("sampledQueries", 4)
	n.stored("sampledQueriesDiff", 3)

	docs := n.first("admin", `{"aggregate": 1, "pipeline": [{"$listSampledQueries": {"namespace": "db.c"}}, {"$match": {"cmdName": "find"}}, {"$project": {"_id": 0, "cmd": 1}}], "cursor": {}}`)
	if want := `{ cmd: { filter: { a: 1 }, collation: { locale: "fr" }, let: { v: 1 } } }`; len(docs) != 1 || docs[0] != want {
		t.Errorf("got  %v\nwant %s", docs, want)
	}
	docs = n.first("config", `{"find": "sampledQueriesDiff", "filter": {"diff.d": {"$exists": true}}, "projection": {"_id": 0, "diff": 1}}`)
	if want := `{ diff: { a: "d", d: { x: "u" }, n: "i" } }`; len(docs) != 1 || docs[0] != want {
		t.Errorf("got  %v\nwant %s", docs, want)
	}
	if s := n.ok("admin", `{"serverStatus": 1}`)["queryAnalyzers"].(bson.D); fmt.Sprint(s[0].Value, s[2].Value, s[3].Value) != "1 1 3" {
		t.Errorf("serverStatus: %v", s)
	}
	ops := n.first("admin", `{"aggregate": 1, "pipeline": [{"$currentOp": {}}, {"$match": {"desc": "query analyzer"}}, {"$project": {"_id": 0, "ns": 1, "samplesPerSecond": 1, "sampledReadsCount": 1}}], "cursor": {}}`)
	if want := `{ ns: "db.c", samplesPerSecond: 50.0, sampledReadsCount: 1 }`; len(ops) != 1 || ops[0] != want {
		t.Errorf("got  %v\nwant %s", ops, want)
	}
	n.ok("db", `{"drop": "c"}`)
	n.stored("queryAnalyzers", 0)
	await.True(t, "the end of sampling", func() bool { return !n.srv.Service.Sampler.On() })
}

// A client cannot have a diff stored by marking an update as sampled.
func TestForeignSampleIDs(t *testing.T) {
	n := newTestNode(t)
	n.ok("db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	n.srv.Node.Params.Store("queryAnalysisWriterIntervalSecs", value.NewInt32(1))
	id := `{"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAQ==", "subType": "04"}}`
	n.ok("db", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 1}}, "sampleId": `+id+`}]}`)
	n.ok("db", `{"findAndModify": "c", "query": {"_id": 1}, "update": {"$set": {"a": 2}}, "sampleId": `+id+`}`)
	if err := n.srv.Service.Sampler.Flush(t.Context(), n.srv.Node.analysis); err != nil {
		t.Fatal(err)
	}
	n.stored("sampledQueriesDiff", 0)
}

func TestWhatTheAnalyzerRefuses(t *testing.T) {
	n := newTestNode(t)
	n.ok("db", `{"create": "c"}`)
	n.ok("db", `{"create": "v", "viewOn": "c", "pipeline": []}`)
	n.ok("db", `{"create": "ts", "timeseries": {"timeField": "t"}}`)
	n.ok("db", `{"insert": "full", "documents": [{"a": 1}]}`)
	for cmd, want := range map[string]mongoerr.Code{
		`{"configureQueryAnalyzer": "db.none", "mode": "full", "samplesPerSecond": 1}`:                                   mongoerr.NamespaceNotFound,
		`{"configureQueryAnalyzer": "db.v", "mode": "full", "samplesPerSecond": 1}`:                                      mongoerr.CommandNotSupportedOnView,
		`{"configureQueryAnalyzer": "db.ts", "mode": "full", "samplesPerSecond": 1}`:                                     mongoerr.IllegalOperation,
		`{"configureQueryAnalyzer": "db", "mode": "off"}`:                                                                mongoerr.InvalidNamespace,
		`{"configureQueryAnalyzer": "config.c", "mode": "off"}`:                                                          mongoerr.IllegalOperation,
		`{"configureQueryAnalyzer": "db.c", "mode": "half"}`:                                                             mongoerr.BadValue,
		`{"configureQueryAnalyzer": "db.c", "mode": "full"}`:                                                             mongoerr.InvalidOptions,
		`{"configureQueryAnalyzer": "db.c", "mode": "full", "samplesPerSecond": 50.1}`:                                   mongoerr.InvalidOptions,
		`{"configureQueryAnalyzer": "db.c", "mode": "full", "samplesPerSecond": -1}`:                                     mongoerr.InvalidOptions,
		`{"configureQueryAnalyzer": "db.c", "mode": "full", "samplesPerSecond": 0}`:                                      0,
		`{"configureQueryAnalyzer": "db.c", "mode": "off", "samplesPerSecond": 99}`:                                      0,
		`{"analyzeShardKey": "db.c", "key": {"a": 1}}`:                                                                   mongoerr.IllegalOperation,
		`{"analyzeShardKey": "db.full", "key": {"a": 1}, "readWriteDistribution": false}`:                                mongoerr.IllegalOperation,
		`{"analyzeShardKey": "db.full", "key": {"a": 1}}`:                                                                0,
		`{"analyzeShardKey": "db.full", "key": {"a": 3}}`:                                                                mongoerr.BadValue,
		`{"analyzeShardKey": "db.full", "key": {}}`:                                                                      mongoerr.BadValue,
		`{"analyzeShardKey": "db.v", "key": {"a": 1}}`:                                                                   mongoerr.CommandNotSupportedOnView,
		`{"analyzeShardKey": "db.full", "key": {"_id": 1}, "sampleRate": 0}`:                                             mongoerr.BadValue,
		`{"analyzeShardKey": "db.full", "key": {"_id": 1}, "sampleRate": 0.5, "sampleSize": 5}`:                          mongoerr.InvalidOptions,
		`{"analyzeShardKey": "db.full", "key": {"_id": 1}, "sampleSize": 0}`:                                             mongoerr.BadValue,
		`{"analyzeShardKey": "db.full", "key": {"_id": 1}, "keyCharacteristics": false, "readWriteDistribution": false}`: mongoerr.InvalidOptions,
		`{"aggregate": 1, "pipeline": [{"$listSampledQueries": {"namespace": 1}}], "cursor": {}}`:                        mongoerr.TypeMismatch,
		`{"aggregate": 1, "pipeline": [{"$listSampledQueries": {"x": 1}}], "cursor": {}}`:                                mongoerr.IDLUnknownField,
	} {
		if got := n.code("admin", cmd); got != int32(want) {
			t.Errorf("%s: code %d, want %d: %v", cmd, got, want, n.do("admin", cmd)["errmsg"])
		}
	}
	if got := n.code("db", `{"aggregate": 1, "pipeline": [{"$listSampledQueries": {}}], "cursor": {}}`); got != int32(mongoerr.InvalidNamespace) {
		t.Errorf("on another database: code %d", got)
	}
}
