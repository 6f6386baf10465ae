package usage

import (
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

// counted lists the counters that are not zero.
func (c *Counters) counted() string {
	var out []string
	for prefix, t := range map[string]*Table{"": &c.Stages, "e": &c.Expressions, "m": &c.Match, "g": &c.Group, "w": &c.Window} {
		for name, n := range t.n {
			if n.Load() > 0 {
				out = append(out, prefix+name+":"+strconv.FormatInt(n.Load(), 10))
			}
		}
	}
	sort.Strings(out)
	return strings.Join(out, " ")
}

func TestCount(t *testing.T) {
	for _, c := range []struct{ cmd, want string }{
		{`{"find":"c","filter":{"_id":1,"a":{"b":{"$gt":1}}}}`, ""},
		{`{"find":"c","filter":{"a":{"$gt":1,"$not":{"$in":[1]}},"$or":[{"b":{"$gt":2}},{"$expr":{"$eq":["$a",{"$literal":{"$add":1}}]}}]}}`,
			"e$eq:1 e$literal:1 m$expr:1 m$gt:2 m$in:1 m$not:1 m$or:1"},
		{`{"find":"c","filter":{"l":{"$elemMatch":{"x":{"$lt":1}}},"m":{"$elemMatch":{"$gte":1}},"n":{"$all":[{"$elemMatch":{"x":1}}]}},"projection":{"p":{"$concat":["$a","$b"]}}}`,
			"e$concat:1 m$all:1 m$elemMatch:3 m$gte:1 m$lt:1"},
		{`{"aggregate":"c","pipeline":[{"$match":{"a":{"$gt":1}}},{"$group":{"_id":{"$year":"$t"},"n":{"$sum":{"$add":["$a",1]}}}},{"$facet":{"f":[{"$limit":1}],"g":[{"$limit":2},{"$unknown":1}]}},{"$lookup":{"from":"o","as":"j","pipeline":[{"$match":{"$expr":{"$gt":[1,2]}}}]}}]}`,
			"$facet:1 $group:1 $limit:2 $lookup:1 $match:2 e$add:1 e$gt:1 e$year:1 g$sum:1 m$expr:1 m$gt:1"},
		{`{"aggregate":"c","pipeline":[{"$setWindowFields":{"sortBy":{"a":1},"output":{"r":{"$rank":{}},"s":{"$sum":"$x","window":{"documents":[0,1]}}}}},{"$merge":{"into":"o","whenMatched":[{"$set":{"a":{"$abs":1}}}]}}]}`,
			"$merge:1 $set:1 $setWindowFields:1 e$abs:1 w$rank:1 w$sum:1"},
		{`{"update":"c","updates":[{"q":{"a":{"$gt":1}},"u":{"$set":{"$gt":1}}},{"q":{},"u":[{"$set":{"a":{"$add":[1,2]}}}]}]}`, "$set:1 e$add:1 m$gt:1"},
	} {
		counters := New()
		body := valuetest.Doc(t, c.cmd)
		counters.Count(body)
		for _, u := range value.Values(value.Lookup(body, "updates").Doc()) {
			counters.Count(u.Doc())
		}
		if got := counters.counted(); got != c.want {
			t.Errorf("%s:\n%s\nwant %s", c.cmd, got, c.want)
		}
		if n := testing.AllocsPerRun(10, func() { counters.Count(body) }); n > 0 {
			t.Errorf("%s: %v allocations", c.cmd, n)
		}
	}
	if doc := New().Operators(); value.Lookup(value.Lookup(doc, "windowAccumulators").Doc(), "$rank").IsMissing() {
		t.Error("no $rank")
	}
}

// FuzzCount: whatever a command is, counting it ends.
func FuzzCount(f *testing.F) {
	c := New()
	words := append(append(append([]string{"q", "u", "pipeline", "output", "input", "pipelines"}, c.Stages.names...), c.Match.names...), c.Expressions.names[:20]...)
	f.Add([]byte("aggregate"))
	f.Fuzz(func(_ *testing.T, in []byte) {
		g := valuetest.NewGenerator(in, words)
		body := value.Doc(value.F("pipeline", g.Array()), value.F("filter", g.Value()), value.F("projection", g.Value()), value.F("updates", g.Array()))
		c.Count(body)
	})
}

func BenchmarkFindByID(b *testing.B) {
	c, body := New(), valuetest.Doc(b, `{"find":"c","filter":{"_id":5},"limit":1,"lsid":{"id":1},"$db":"d"}`)
	b.ReportAllocs()
	for b.Loop() {
		c.Count(body)
	}
}
