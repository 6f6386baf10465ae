package targeting

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/collation"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/querytest"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

func parseKey(t testing.TB, text string) *cluster.ShardKeyPattern {
	t.Helper()
	k, err := cluster.ParseShardKey(valuetest.Doc(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func showKey(vals []value.Value) string {
	var out []string
	for _, v := range vals {
		out = append(out, value.Show(v))
	}
	return "(" + strings.Join(out, ", ") + ")"
}

// showRange prints a range as [low, high] or, without its end, [low, high); a range of one key as that key.
func showRange(r cluster.KeyRange) string {
	if r.HighIncl && cluster.CompareKeys(r.Low, r.High) == 0 {
		return showKey(r.Low)
	}
	end := ")"
	if r.HighIncl {
		end = "]"
	}
	return "[" + showKey(r.Low) + ", " + showKey(r.High) + end
}

// TestRanges runs testdata/ranges: "key" sets the shard key; "ranges" prints the ranges of each filter, and whether it pins the key.
func TestRanges(t *testing.T) {
	var key *cluster.ShardKeyPattern
	datadriven.RunTest(t, "testdata/ranges", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "key":
			key = parseKey(t, d.Input)
			return ""
		case "ranges":
			collated := d.HasArg("collated")
			var out strings.Builder
			for _, line := range strings.Split(d.Input, "\n") {
				f := valuetest.Doc(t, line)
				var list []string
				for _, r := range Ranges(key, f, collated) {
					list = append(list, showRange(r))
				}
				if list == nil {
					list = []string{"none"}
				}
				exact := ""
				if vals, ok := ExactKey(key, f, collated); ok {
					exact = ", exact " + showKey(vals)
				}
				fmt.Fprintf(&out, "%s -> %s%s\n", line, strings.Join(list, " "), exact)
			}
			return out.String()
		}
		return "unknown command\n"
	})
}

// contains reports whether a range contains a key.
func contains(r cluster.KeyRange, key []value.Value) bool {
	end := cluster.CompareKeys(key, r.High)
	return cluster.CompareKeys(r.Low, key) <= 0 && (end < 0 || end == 0 && r.HighIncl)
}

// TestNoMatchLiesOutsideTheRanges compares the ranges of random filters with the keys of documents that the filters match.
func TestNoMatchLiesOutsideTheRanges(t *testing.T) {
	spec, err := collation.Parse(valuetest.Doc(t, `{"locale": "en", "strength": 2}`))
	if err != nil {
		t.Fatal(err)
	}
	keys := []*cluster.ShardKeyPattern{parseKey(t, `{"a": 1}`), parseKey(t, `{"a": "hashed"}`), parseKey(t, `{"a": 1, "b": 1}`), parseKey(t, `{"a": 1, "b": "hashed"}`),
		parseKey(t, `{"a": "hashed", "b": 1}`), parseKey(t, `{"n.x": 1}`), parseKey(t, `{"m.x.y": 1, "n.x": 1, "a": 1}`)}
	matched, bounded := 0, 0
	querytest.Rounds(t, time.Second, func(t *testing.T, seed uint64) {
		g := querytest.New(seed)
		var docs [][]byte
		for i := range 30 {
			raw, err := bson.Marshal(g.Doc(i))
			if err != nil {
				t.Fatal(err)
			}
			docs = append(docs, raw)
		}
		for range 30 {
			raw, err := bson.Marshal(g.Filter())
			if err != nil {
				t.Fatal(err)
			}
			for _, collated := range []bool{false, true} {
				o := &match.Options{}
				if collated {
					o.Collator = spec.Collator()
				}
				m, err := match.Compile(raw, o)
				if err != nil {
					continue
				}
				for _, key := range keys {
					ranges := Ranges(key, raw, collated)
					exact, isExact := ExactKey(key, raw, collated)
					for _, doc := range docs {
						k, err := key.FromDocument(doc, nil)
						if err != nil {
							continue // no document of a sharded collection
						}
						if ok, err := m.Match(doc); err != nil || !ok {
							continue
						}
						found := false
						for _, r := range ranges {
							found = found || contains(r, k)
							if r.Low[0].T != value.MinKey {
								bounded++
							}
						}
						matched++
						if !found || isExact && cluster.CompareKeys(exact, k) != 0 {
							t.Fatalf("key %s, collated %v: %s matches %s, whose key %s is outside of %v (exact: %v, %s)",
								valuetest.JSON(t, key.Doc()), collated, valuetest.JSON(t, raw), valuetest.JSON(t, doc), showKey(k), ranges, isExact, showKey(exact))
						}
					}
				}
			}
		}
	})
	if matched == 0 || bounded == 0 {
		t.Errorf("%d matches, %d in bounded ranges: nothing was compared", matched, bounded)
	}
}

// list returns {a: {$in: [from, from+step, …]}} with n values.
func list(from, step, n int) value.Field {
	vals := make([]value.Value, n)
	for i := range vals {
		vals[i] = value.NewInt32(int32(from + i*step))
	}
	return value.F("$in", value.NewArray(value.ArrayOf(vals...)))
}

// TestListsOverManyChunks looks up $in lists in a table of 200,000 chunks: each value is one range, in order, and each is in its own chunk. Two
// lists are intersected in one pass; comparing each value of one with each of the other would not end.
func TestListsOverManyChunks(t *testing.T) {
	const chunks = 200_000
	key := parseKey(t, `{"a": 1}`)
	gen := cluster.ChunkVersion{Major: 1, Epoch: cluster.Epoch{1}, Timestamp: 1}
	shards := []string{"s0", "s1", "s2", "s3"}
	table := make([]*cluster.Chunk, chunks)
	low := key.GlobalMin()
	for i := range table {
		high := value.Doc(value.F("a", value.NewInt32(int32(i+1))))
		if i == chunks-1 {
			high = key.GlobalMax()
		}
		table[i] = &cluster.Chunk{Min: low, Max: high, Shard: shards[i%4], Version: gen.WithCombined(gen.Combined() + uint64(i))}
		low = high
	}
	m, err := cluster.NewChunkMap([16]byte{1}, key, false, gen, table)
	if err != nil {
		t.Fatal(err)
	}
	// Lower bounds of chunks that all belong to s3: value i begins chunk i.
	filter := value.Doc(value.F("a", value.NewDocument(value.Doc(list(3, 4, 4000)))))
	ranges := Ranges(key, filter, false)
	set := map[string]struct{}{}
	for i, r := range ranges {
		if want := int64(3 + 4*i); !r.HighIncl || r.Low[0].Int64() != want || r.High[0].Int64() != want {
			t.Fatalf("range %d is %s, want %d", i, showRange(r), want)
		}
		if err := m.ShardsFor(r, set); err != nil {
			t.Fatal(err)
		}
	}
	if _, only := set["s3"]; len(ranges) != 4000 || len(set) != 1 || !only {
		t.Errorf("%d ranges on %v, want 4000 on s3", len(ranges), set)
	}
	// Two lists with more values than are looked up one by one.
	a := value.NewDocument(value.Doc(list(0, 2, 500_000)))
	b := value.NewDocument(value.Doc(list(0, 3, 500_000)))
	both := value.Doc(value.F("$and", value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(value.F("a", a))), value.NewDocument(value.Doc(value.F("a", b)))))))
	spans := Spans(both, "a", false)
	if want := 1_000_000/6 + 1; len(spans) != want {
		t.Fatalf("%d spans, want %d", len(spans), want)
	}
	for i, s := range spans {
		if !s.Point() || s.Lo.Int64() != int64(6*i) {
			t.Fatalf("span %d is %s, want %d", i, value.Show(s.Lo), 6*i)
		}
	}
}
