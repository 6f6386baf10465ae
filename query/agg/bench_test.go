package agg

import (
	"context"
	"fmt"
	"testing"

	"github.com/shoaldb/shoal/query/value"
)

// benchDocs are documents of about 300 bytes, like those of the read workloads.
func benchDocs(n int) [][]byte {
	docs := make([][]byte, n)
	for i := range docs {
		docs[i] = value.Doc(
			value.F("_id", value.NewInt32(int32(i))), value.F("group", value.NewInt32(int32(i%100))),
			value.F("name", value.NewString(fmt.Sprintf("user%08d", i))), value.F("score", value.NewDouble(float64(i*7919%100003))),
			value.F("n", value.NewInt32(int32(i*31%1000))), value.F("pad", value.NewString(fmt.Sprintf("%0200d", i))))
	}
	return docs
}

// loopSource returns the same documents over and over without allocating.
type loopSource struct {
	docs [][]byte
	at   int
}

func (s *loopSource) Next(context.Context) (Doc, bool, error) {
	if s.at == len(s.docs) {
		return Doc{}, false, nil
	}
	s.at++
	return Doc{Raw: s.docs[s.at-1]}, true, nil
}
func (s *loopSource) Close() {}

func parseJSONStages(tb testing.TB, stages ...value.Value) *Pipeline {
	tb.Helper()
	p, err := Parse(array(stages...), &Options{NS: Namespace{"db", "c"}})
	if err != nil {
		tb.Fatal(err)
	}
	p.Optimize()
	return p
}

func benchPipeline(b *testing.B, stages ...value.Value) {
	docs := benchDocs(100_000)
	p := parseJSONStages(b, stages...)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		src, err := p.Run(&loopSource{docs: docs})
		if err != nil {
			b.Fatal(err)
		}
		for {
			_, ok, err := src.Next(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			if !ok {
				break
			}
		}
		src.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(docs)), "ns/doc")
}

func BenchmarkGroupAvgSum(b *testing.B) {
	benchPipeline(b, doc(f("$group", doc(f("_id", str("$group")), f("avg", doc(f("$avg", str("$score")))), f("sum", doc(f("$sum", str("$n"))))))))
}

func BenchmarkGroupByString(b *testing.B) {
	benchPipeline(b, doc(f("$group", doc(f("_id", str("$name")), f("sum", doc(f("$sum", str("$n"))))))))
}

func BenchmarkSortTop10(b *testing.B) {
	benchPipeline(b, doc(f("$sort", doc(f("score", value.NewInt32(-1))))), doc(f("$limit", value.NewInt32(10))))
}

func BenchmarkSortAll(b *testing.B) {
	benchPipeline(b, doc(f("$sort", doc(f("score", value.NewInt32(-1))))))
}

func BenchmarkMatchProject(b *testing.B) {
	benchPipeline(b, doc(f("$match", doc(f("n", doc(f("$lt", value.NewInt32(500))))))), doc(f("$project", doc(f("name", value.NewInt32(1)), f("n", value.NewInt32(1))))))
}
