package analyzer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The index that supports a key determines whether the key is reported as unique, and whether its monotonicity is known.
func TestSupportingIndex(t *testing.T) {
	const id = `{"name": "_id_", "key": {"_id": 1}}`
	clustered := strings.Replace(plain, `"options": {}`, `"options": {"clusteredIndex": {"key": {"_id": 1}, "unique": true}}`, 1)
	for _, c := range []struct {
		name, key string
		indexes   []string
		multikey  string
		want      string // isUnique and the type of the monotonicity, "none" without an index
		coll      string
	}{
		{"the key's own", `{"a": 1}`, []string{id, `{"name": "a_1", "key": {"a": 1}}`}, "", "false monotonic", ""},
		{"one that begins with the key", `{"a": 1}`, []string{id, `{"name": "a_1_b_1", "key": {"a": 1, "b": 1}}`}, "", "false monotonic", ""},
		{"a unique one that begins with the key says nothing of it alone", `{"a": 1}`, []string{id, `{"name": "u", "key": {"a": 1, "b": 1}, "unique": true}`}, "", "false monotonic", ""},
		{"a unique one", `{"a": 1}`, []string{id, `{"name": "u", "key": {"a": 1}, "unique": true}`}, "", "true monotonic", ""},
		{"a unique one is preferred, wherever it is listed", `{"a": 1}`, []string{`{"name": "a_1_b_1", "key": {"a": 1, "b": 1}}`, `{"name": "u", "key": {"a": 1}, "unique": true}`}, "", "true monotonic", ""},
		{"and stays preferred", `{"a": 1}`, []string{`{"name": "u", "key": {"a": 1}, "unique": true}`, `{"name": "a_1_b_1", "key": {"a": 1, "b": 1}}`}, "", "true monotonic", ""},
		{"the index on _id", `{"_id": 1}`, []string{id}, "", "true monotonic", ""},
		{"a descending one", `{"a": 1}`, []string{id, `{"name": "a_-1", "key": {"a": -1}}`}, "", "false unknown", ""},
		{"a hashed one for a ranged key", `{"a": 1}`, []string{id, `{"name": "a_hashed", "key": {"a": "hashed"}}`}, "", "false unknown", ""},
		{"an exact one is preferred to a hashed one", `{"a": 1}`, []string{`{"name": "a_hashed", "key": {"a": "hashed"}}`, `{"name": "a_1", "key": {"a": 1}}`}, "", "false monotonic", ""},
		{"a hashed key", `{"a": "hashed"}`, []string{id, `{"name": "a_hashed", "key": {"a": "hashed"}}`}, "", "false not monotonic", ""},
		{"a key that is hashed behind its first field", `{"a": 1, "b": "hashed"}`, []string{`{"name": "h", "key": {"a": 1, "b": "hashed"}}`}, "", "false unknown", ""},
		{"too short", `{"a": 1, "b": 1}`, []string{id, `{"name": "a_1", "key": {"a": 1}}`}, "", "none", ""},
		{"in another order", `{"a": 1, "b": 1}`, []string{`{"name": "b_1_a_1", "key": {"b": 1, "a": 1}}`}, "", "none", ""},
		{"a sparse one", `{"a": 1}`, []string{`{"name": "a_1", "key": {"a": 1}, "sparse": true}`}, "", "none", ""},
		{"a partial one", `{"a": 1}`, []string{`{"name": "a_1", "key": {"a": 1}, "partialFilterExpression": {}}`}, "", "none", ""},
		{"a hidden one", `{"a": 1}`, []string{`{"name": "a_1", "key": {"a": 1}, "hidden": true}`}, "", "none", ""},
		{"one with a collation", `{"a": 1}`, []string{`{"name": "a_1", "key": {"a": 1}, "collation": {"locale": "fr"}}`}, "", "none", ""},
		{"one with the simple collation", `{"a": 1}`, []string{`{"name": "a_1", "key": {"a": 1}, "collation": {"locale": "simple"}}`}, "", "false monotonic", ""},
		{"a text index", `{"a": 1}`, []string{`{"name": "a_text", "key": {"a": "text"}}`}, "", "none", ""},
		{"a multikey one", `{"a": 1}`, []string{`{"name": "a_1", "key": {"a": 1}}`}, "a_1", "none", ""},
		{"the one beside a multikey one", `{"a": 1}`, []string{`{"name": "m", "key": {"a": 1, "b": 1}}`, `{"name": "a_1", "key": {"a": 1}}`}, "m", "false monotonic", ""},
		{"a clustered collection", `{"_id": 1}`, nil, "", "true unknown", clustered},
	} {
		b := newBench(t)
		b.indexes, b.multikey = c.indexes, c.multikey
		if c.coll != "" {
			b.collection = c.coll
		}
		for i := range 10 {
			b.inserted = append(b.inserted, fmt.Sprintf(`{"_id": %d, "a": %d, "$recordId": %d}`, i, i, i))
		}
		reply := b.run(`{"analyzeShardKey": "db.c", "key": ` + c.key + `, "readWriteDistribution": false}`)
		got := at(t, reply, "keyCharacteristics.isUnique") + " " + strings.Trim(at(t, reply, "keyCharacteristics.monotonicity.type"), `"`)
		if err := cluster.ReplyError(reply); mongoerr.CodeOf(err) == mongoerr.IllegalOperation {
			got = "none"
		} else if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
	// Without an index there is still the distribution.
	b := newBench(t)
	b.indexes = nil
	b.expect(b.run(`{"analyzeShardKey": "db.c", "key": {"a": 1}}`), map[string]string{"ok": "1.0", "keyCharacteristics": "", "readDistribution.sampleSize.total": "0"})
}

func TestMonotonicity(t *testing.T) {
	insert := func(n int, record func(i int) int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf(`{"a": %d, "$recordId": %d}`, i, record(i)))
		}
		return out
	}
	shuffled := rand.New(rand.NewPCG(1, 2)).Perm(400)
	// Each value three times, inserted in order, except that the repetitions all come at the end: only one of each is counted.
	var repeated []string
	for i := range 100 {
		repeated = append(repeated, fmt.Sprintf(`{"a": %d, "$recordId": %d}`, i, i), fmt.Sprintf(`{"a": %d, "$recordId": %d}`, i, 1000-i), fmt.Sprintf(`{"a": %d, "$recordId": %d}`, i, 2000-i))
	}
	for _, c := range []struct {
		name      string
		inserted  []string
		distinct  int
		low, high float64
		want      string
	}{
		{"increasing", insert(100, func(i int) int { return i }), 100, 1, 1, "monotonic"},
		{"increasing, in large steps", insert(100, func(i int) int { return 1000 * i }), 100, 1, 1, "monotonic"},
		{"decreasing", insert(100, func(i int) int { return 100 - i }), 100, -1, -1, "monotonic"},
		{"at random", insert(400, func(i int) int { return shuffled[i] }), 400, -0.2, 0.2, "not monotonic"},
		{"inserted from both ends", insert(100, func(i int) int { return min(i, 100-i) }), 100, -0.1, 0.1, "not monotonic"},
		{"repeated values", repeated, 100, 1, 1, "monotonic"},
		{"one value", insert(100, func(i int) int { return i }), 1, 0, 0, "not monotonic"},
		{"two values", insert(2, func(i int) int { return i }), 2, 1, 1, "monotonic"},
		{"nothing", nil, 2, 0, 0, "not monotonic"},
	} {
		b := newBench(t)
		b.inserted, b.counted = c.inserted, fmt.Sprintf(`{"docs": %d, "distinct": %d, "most": []}`, max(1, len(c.inserted)), c.distinct)
		reply := b.run(`{"analyzeShardKey": "db.c", "key": {"a": 1}, "readWriteDistribution": false}`)
		m := value.Lookup(value.Lookup(reply, "keyCharacteristics").Doc(), "monotonicity").Doc()
		r := value.Lookup(m, "recordIdCorrelationCoefficient").AsFloat64()
		if r < c.low-1e-9 || r > c.high+1e-9 || value.Lookup(m, "type").Str() != c.want {
			t.Errorf("%s: %s, want %s and %v to %v", c.name, value.ShowDoc(m), c.want, c.low, c.high)
		}
		if asked := len(b.sent("find")) > 0; asked != (c.distinct > 1) {
			t.Errorf("%s: the index was read: %v", c.name, asked)
		}
	}
	// The parameter is the limit.
	b := newBench(t)
	b.inserted = insert(100, func(i int) int { return i ^ 32 })
	for limit, want := range map[float64]string{0.3: `"monotonic"`, 0.99: `"not monotonic"`} {
		b.params.Store("analyzeShardKeyMonotonicityCorrelationCoefficientThreshold", value.NewDouble(limit))
		b.expect(b.run(`{"analyzeShardKey": "db.c", "key": {"a": 1}, "readWriteDistribution": false}`), map[string]string{"keyCharacteristics.monotonicity.type": want})
	}
}

// pearson adds up in one pass; it must agree with the definition, even if the numbers are large and close to each other.
func TestCorrelationAgreesWithItsDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, base := range []float64{0, 1e6, 1e12} {
		ys := make([]float64, 500)
		var p pearson
		for i := range ys {
			ys[i] = base + float64(r.IntN(1000)) + float64(i)
			p.add(ys[i])
		}
		n, mx, my := float64(len(ys)), float64(len(ys)-1)/2, 0.0
		for _, y := range ys {
			my += (y - base) / n
		}
		var xx, yy, xy float64
		for i, y := range ys {
			dx, dy := float64(i)-mx, y-base-my
			xx, yy, xy = xx+dx*dx, yy+dy*dy, xy+dx*dy
		}
		if want := xy / math.Sqrt(xx*yy); math.Abs(p.coefficient()-want) > 1e-4 || want < 0.2 || want > 0.9 {
			t.Errorf("from %v on: %v, want %v", base, p.coefficient(), want)
		}
	}
	var flat pearson
	for range 10 {
		flat.add(5)
	}
	if flat.coefficient() != 0 || new(pearson).coefficient() != 0 {
		t.Error("constant numbers correlate")
	}
}

func TestFrequencies(t *testing.T) {
	b := newBench(t)
	b.counted = `{"docs": 400, "distinct": 3, "most": [{"v": {"k0": 1}, "n": 300}, {"v": {"k0": null}, "n": 99}, {"v": {"k0": "` + strings.Repeat("x", 100) + `"}, "n": 1}]}`
	reply := b.run(`{"analyzeShardKey": "db.c", "key": {"a": 1}, "readWriteDistribution": false}`)
	b.expect(reply, map[string]string{"keyCharacteristics.numDocsTotal": "1000", "keyCharacteristics.numDocsSampled": "400", "keyCharacteristics.numDistinctValues": "3",
		"keyCharacteristics.avgDocSizeBytes": "50", "keyCharacteristics.numOrphanDocs": "",
		"keyCharacteristics.mostCommonValues": `[{"value":{"a":1},"frequency":300},{"value":{"a":null},"frequency":99},{"value":{"a":"` + strings.Repeat("x", 100) + `"},"frequency":1}]`})
	// The share of the documents that are read, and the number of values that are listed.
	b.stats = `{"count": 1000, "avgObjSize": 50, "numOrphanDocs": 7, "ok": 1}`
	b.params.Store("analyzeShardKeyNumMostCommonValues", value.NewInt32(2))
	for args, want := range map[string]string{
		``:                     ``,
		`, "sampleRate": 0.25`: `{"$match":{"$sampleRate":0.25}}`,
		`, "sampleRate": 1`:    ``,
		`, "sampleSize": 100`:  `{"$match":{"$sampleRate":0.1}}`,
		`, "sampleSize": 5000`: ``,
	} {
		b.calls = nil
		b.expect(b.run(`{"analyzeShardKey": "db.c", "key": {"a": 1}, "readWriteDistribution": false`+args+`}`), map[string]string{"keyCharacteristics.numOrphanDocs": "7"})
		sent := b.sent("aggregate")
		if len(sent) != 1 || strings.Contains(sent[0], "$sampleRate") != (want != "") || !strings.Contains(sent[0], want) || !strings.Contains(sent[0], `"$topN":{"n":2`) {
			t.Errorf("%s: %s", args, sent)
		}
	}
	// A sample of nothing, and an empty collection.
	b.counted = `{"docs": 0}`
	b.stats = `{"count": 0, "avgObjSize": 0, "ok": 1}`
	if err := cluster.ReplyError(b.run(`{"analyzeShardKey": "db.c", "key": {"a": 1}}`)); mongoerr.CodeOf(err) != mongoerr.IllegalOperation {
		t.Errorf("an empty collection: %v", err)
	}
}

// A reply has room for every value: those that are too long for their share of it are truncated.
func TestLongValuesAreTruncated(t *testing.T) {
	b := newBench(t)
	b.params.Store("analyzeShardKeyNumMostCommonValues", value.NewInt32(1000))
	long := strings.Repeat("x", mostBytes/1000)
	b.counted = `{"docs": 4, "distinct": 2, "most": [{"v": {"k0": "` + long + `", "k1": 1}, "n": 3}, {"v": {"k0": "` + long[:1000] + `", "k1": 1}, "n": 1}]}`
	b.indexes = []string{`{"name": "i", "key": {"a": 1, "b": 1}}`}
	reply := b.run(`{"analyzeShardKey": "db.c", "key": {"a": 1, "b": 1}, "readWriteDistribution": false}`)
	b.expect(reply, map[string]string{"keyCharacteristics.mostCommonValues": `[{"value":"truncated","frequency":3},{"value":{"a":"` + long[:1000] + `","b":1},"frequency":1}]`})
}
