package analyzer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

// keysOf returns the documents that the sampling of documents yields for keys of one field.
func keysOf(texts ...string) (out []string) {
	for _, k := range texts {
		out = append(out, `{"k0": `+k+`}`)
	}
	return out
}

// upTo returns the keys 0 to n-1, not in their order.
func upTo(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint(i*7%n))
	}
	return out
}

// Split points divide the sampled keys into ranges of about equal numbers; each is a key, greater than the previous ones, and no range is empty.
func TestSplitPoints(t *testing.T) {
	for _, c := range []struct {
		name string
		n    int // the requested number of ranges
		keys []string
		want string
	}{
		{"as many as asked for", 4, upTo(100), "25 50 75"},
		{"fewer values than ranges", 10, upTo(3), "1 2"},
		{"one value", 10, []string{"5", "5", "5"}, ""},
		{"nothing", 10, nil, ""},
		{"a value that is more than a range", 4, append(upTo(10), strings.Split(strings.Repeat("5 ", 90)+"5", " ")...), "5"},
		{"the first value is more than two ranges", 4, append(upTo(10), strings.Split(strings.Repeat("0 ", 19)+"0", " ")...), "2"},
		{"of all types", 4, []string{`"x"`, `{"$maxKey": 1}`, "null", "1"}, `1 "x" MaxKey`},
		{"arrays are no keys", 2, []string{"1", "[2]", "3", "[4]"}, "3"},
	} {
		b := newBench(t)
		b.params.Store("analyzeShardKeyNumRanges", value.NewInt32(int32(c.n)))
		b.keys = keysOf(c.keys...)
		x := &analysis{Analyzer: New(b, b.params), op: b.service.Background(t.Context(), nil), coll: collection{ns: "db.c", db: "db", name: "c"}}
		var err error
		if x.key, err = cluster.ParseShardKey(value.Doc(value.F("a", value.NewInt32(1)))); err != nil {
			t.Fatal(err)
		}
		splits, err := x.splitPoints()
		var got []string
		for _, s := range splits {
			got = append(got, value.Show(s[0]))
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %s, %v, want %s", c.name, got, err, c.want)
		}
		if splits == nil {
			t.Errorf("%s: nil: the documents would be sampled again for each query", c.name)
		}
	}
}

// Each sampled query is counted once, by the ranges that it targets. The ranges are those below 25, 50 and 75, and the rest.
func TestQueriesByRange(t *testing.T) {
	for _, c := range []struct {
		key, query, want string // want: single, multi or scatter, and the numbers of the ranges
		collated         bool
	}{
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {"a": 3}}}`, "single 1 0 0 0", false},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {"a": 25}}}`, "single 0 1 0 0", false},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {"a": {"$minKey": 1}}}}`, "single 1 0 0 0", false},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {"a": {"$maxKey": 1}}}}`, "single 0 0 0 1", false},
		{`{"a": 1}`, `{"cmdName": "count", "cmd": {"filter": {"a": null}}}`, "single 1 0 0 0", false},
		{`{"a": 1}`, `{"cmdName": "distinct", "cmd": {"filter": {"a": {"$lt": 25}}}}`, "multi 1 0 0 0", false},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {"a": {"$lte": 25}}}}`, "multi 1 1 0 0", false},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {"a": {"$gte": 25, "$lt": 75}}}}`, "multi 0 1 1 0", false},
		{`{"a": 1}`, `{"cmdName": "aggregate", "cmd": {"filter": {"a": {"$in": [1, 30, 99]}}}}`, "multi 1 1 0 1", false},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {"a": {"$in": [1, 2, 3]}}}}`, "multi 1 0 0 0", false},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {"$or": [{"a": 1}, {"a": {"$gt": 80}}]}}}`, "multi 1 0 0 1", false},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {"$or": [{"a": 1}, {"b": 1}]}}}`, "scatter 1 1 1 1", false},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {}}}`, "scatter 1 1 1 1", false},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {}}`, "scatter 1 1 1 1", false},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {"b": 3}}}`, "scatter 1 1 1 1", false},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {"a": "x"}}}`, "single 0 0 0 1", false},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {"a": "x"}, "collation": {"locale": "fr"}}}`, "scatter 1 1 1 1", false},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {"a": "x"}, "collation": {"locale": "simple"}}}`, "single 0 0 0 1", true},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {"a": "x"}}}`, "scatter 1 1 1 1", true},
		{`{"a": 1}`, `{"cmdName": "find", "cmd": {"filter": {"a": 3}}}`, "single 1 0 0 0", true},
		{`{"a": "hashed"}`, `{"cmdName": "find", "cmd": {"filter": {"a": {"$gt": 3}}}}`, "scatter 1 1 1 1", false},
		{`{"a": "hashed"}`, `{"cmdName": "find", "cmd": {"filter": {"a": 5}}}`, "single 0 0 0 1", false}, // the hash of 5 is 4470791281878691347
		{`{"a": "hashed"}`, `{"cmdName": "find", "cmd": {"filter": {"a": 6}}}`, "single 1 0 0 0", false}, // and that of 6 negative
		{`{"a": "hashed"}`, `{"cmdName": "find", "cmd": {"filter": {"a": {"$in": [5, 6]}}}}`, "multi 1 0 0 1", false},
		{`{"a": 1, "b": 1}`, `{"cmdName": "find", "cmd": {"filter": {"a": 30}}}`, "multi 0 1 0 0", false},
		{`{"a": 1, "b": 1}`, `{"cmdName": "find", "cmd": {"filter": {"a": 30, "b": {"$gt": 5}}}}`, "multi 0 1 0 0", false},
		{`{"a": 1, "b": 1}`, `{"cmdName": "find", "cmd": {"filter": {"a": 30, "b": 5}}}`, "single 0 1 0 0", false},
		{`{"a": 1, "b": 1}`, `{"cmdName": "find", "cmd": {"filter": {"b": 5}}}`, "scatter 1 1 1 1", false},
		{`{"a": 1}`, `{"cmdName": "update", "cmd": {"updates": [{"q": {"a": 30}, "u": {}}]}}`, "single 0 1 0 0", false},
		{`{"a": 1}`, `{"cmdName": "update", "cmd": {"updates": [{"q": {"b": 30}, "u": {}}]}}`, "scatter 1 1 1 1 one", false},
		{`{"a": 1}`, `{"cmdName": "update", "cmd": {"updates": [{"q": {"a": {"$lt": 5}}, "u": {}, "multi": true}]}}`, "multi 1 0 0 0 many", false},
		{`{"a": 1}`, `{"cmdName": "update", "cmd": {"updates": [{"q": {"a": "x"}, "u": {}, "collation": {"locale": "fr"}}]}}`, "scatter 1 1 1 1 one", false},
		{`{"a": 1}`, `{"cmdName": "delete", "cmd": {"deletes": [{"q": {"b": 30}, "limit": 1}]}}`, "scatter 1 1 1 1 one", false},
		{`{"a": 1}`, `{"cmdName": "delete", "cmd": {"deletes": [{"q": {"b": 30}, "limit": 0}]}}`, "scatter 1 1 1 1 many", false},
		{`{"a": 1}`, `{"cmdName": "delete", "cmd": {"deletes": [{"q": {"a": 30}, "limit": 0}]}}`, "single 0 1 0 0", false},
		{`{"a": 1}`, `{"cmdName": "findAndModify", "cmd": {"query": {"a": 80}}}`, "single 0 0 0 1", false},
		{`{"a": 1}`, `{"cmdName": "findAndModify", "cmd": {}}`, "scatter 1 1 1 1 one", false},
	} {
		b := newBench(t)
		b.indexes = nil
		if c.collated {
			b.collection = strings.Replace(plain, `"options": {}`, `"options": {"collation": {"locale": "fr"}}`, 1)
		}
		b.params.Store("analyzeShardKeyNumRanges", value.NewInt32(4))
		for _, k := range upTo(100) {
			b.keys = append(b.keys, `{"k0": `+k+`, "k1": {"$minKey": 1}}`)
		}
		b.samples["sampledQueries"] = `[` + c.query + `]`
		reply := b.run(`{"analyzeShardKey": "db.c", "key": ` + c.key + `}`)
		what, d := "Writes", "writeDistribution."
		if at(t, reply, d+"sampleSize.total") == "0" {
			what, d = "Reads", "readDistribution."
		}
		var got []string
		for _, kind := range []string{"SingleShard", "MultiShard", "ScatterGather"} {
			if at(t, reply, d+"percentageOf"+kind+what) == "100.0" {
				got = append(got, map[string]string{"SingleShard": "single", "MultiShard": "multi", "ScatterGather": "scatter"}[kind])
			}
		}
		got = append(got, strings.ReplaceAll(strings.Trim(at(t, reply, d+"num"+what+"ByRange"), "[]"), ",", " "))
		for field, s := range map[string]string{"percentageOfSingleWritesWithoutShardKey": "one", "percentageOfMultiWritesWithoutShardKey": "many"} {
			if at(t, reply, d+field) == "100.0" {
				got = append(got, s)
			}
		}
		if g := strings.Join(got, " "); g != c.want || at(t, reply, d+"sampleSize.total") != "1" {
			t.Errorf("key %s, %s: got %s, want %s", c.key, c.query, g, c.want)
		}
	}
}

// The counts of several keepers, batches and commands are added up; updates are counted by their changes to the key.
func TestTallies(t *testing.T) {
	b := newBench(t)
	b.indexes, b.keys = nil, keysOf(upTo(100)...)
	b.params.Store("analyzeShardKeyNumRanges", value.NewInt32(4))
	b.samples["sampledQueries"] = `[{"cmdName": "find", "cmd": {"filter": {"a": 1}}}, {"cmdName": "find", "cmd": {}}, {"cmdName": "aggregate", "cmd": {"filter": {"a": 99}}},
		{"cmdName": "count", "cmd": {"filter": {"a": {"$lt": 3}}}}, {"cmdName": "update", "cmd": {"updates": [{"q": {"a": 1}}]}}, {"cmdName": "update", "cmd": {"updates": []}},
		{"cmdName": "delete", "cmd": {"deletes": [{"q": {}, "limit": 0}]}}, {"cmdName": "findAndModify", "cmd": {"query": {"a": 26}}}, {"cmdName": "update", "cmd": {"updates": [{"q": {"a": 1}}]}}]`
	b.samples["sampledQueriesDiff"] = `[{"diff": {"a": "u"}}, {"diff": {"b": "u"}}, {"diff": {"ab": "d"}}]`
	reply := b.run(`{"analyzeShardKey": "db.c", "key": {"a": 1}}`)
	b.expect(reply, map[string]string{
		"readDistribution.sampleSize":                              `{"total":4,"find":2,"aggregate":1,"count":1,"distinct":0}`,
		"readDistribution.percentageOfSingleShardReads":            "50.0",
		"readDistribution.percentageOfMultiShardReads":             "25.0",
		"readDistribution.percentageOfScatterGatherReads":          "25.0",
		"readDistribution.numReadsByRange":                         "[3,1,1,2]",
		"readDistribution.percentageOfShardKeyUpdates":             "",
		"writeDistribution.sampleSize":                             `{"total":4,"update":2,"delete":1,"findAndModify":1}`,
		"writeDistribution.percentageOfSingleShardWrites":          "75.0",
		"writeDistribution.numWritesByRange":                       "[3,2,1,1]",
		"writeDistribution.percentageOfShardKeyUpdates":            "25.0",
		"writeDistribution.percentageOfMultiWritesWithoutShardKey": "25.0",
	})
	// Documents are drawn once, and not at all if no query was sampled.
	drawn := func() (n int) {
		for _, c := range b.sent("aggregate") {
			if strings.Contains(c, `"$sample"`) {
				n++
			}
		}
		return n
	}
	if n := drawn(); n != 1 {
		t.Errorf("documents were drawn %d times", n)
	}
	b.calls, b.samples = nil, map[string]string{}
	b.expect(b.run(`{"analyzeShardKey": "db.c", "key": {"a": 1}}`), map[string]string{"readDistribution": `{"sampleSize":{"total":0,"find":0,"aggregate":0,"count":0,"distinct":0}}`})
	if n := drawn(); n != 0 {
		t.Errorf("documents were drawn %d times for no queries", n)
	}
}
