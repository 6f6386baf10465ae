package sampling

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

// clocked returns a sampler of db.c, and a function that advances its time.
func clocked(rate float64) (s *Sampler, move func(time.Duration)) {
	now := time.Unix(1000, 0)
	s = New(cluster.NewParams(), func() time.Time { return now })
	s.Install([]Configuration{{NS: "db.c", UUID: value.NewBinary(4, make([]byte, 16)), Rate: rate, Started: now}})
	return s, func(d time.Duration) { now = now.Add(d) }
}

var find = &Query{Name: "find", DB: "db", Body: value.Doc(value.F("find", value.NewString("c")), value.F("filter", value.NewDocument(value.Doc())))}

func TestRateOfSamples(t *testing.T) {
	s, move := clocked(5)
	for range 100 * 20 { // 20 seconds of 100 queries
		s.Sample(find)
		move(10 * time.Millisecond)
	}
	if n := len(s.take()); n < 100 || n > 106 {
		t.Errorf("%d samples in 20 s, want 5 per second", n)
	}
	move(time.Hour)
	for range 100 {
		s.Sample(find)
	}
	if n := len(s.take()); n != 10 {
		t.Errorf("%d samples at once after a pause, want those of two seconds", n)
	}
	s, move = clocked(0)
	for range 100 {
		s.Sample(find)
		move(time.Minute)
	}
	if n := len(s.take()); n != 0 {
		t.Errorf("%d samples at rate 0", n)
	}
	s, move = clocked(0.1)
	for range 1000 {
		s.Sample(find)
		move(100 * time.Millisecond)
	}
	if n := len(s.take()); n < 9 || n > 10 {
		t.Errorf("%d samples in 100 s, want one per ten seconds", n)
	}
}

func TestBufferIsBounded(t *testing.T) {
	s, _ := clocked(50)
	s.params.Store("queryAnalysisWriterMaxMemoryUsageBytes", value.NewInt32(1000))
	for range 50 {
		s.Sample(find)
	}
	if n := len(s.take()); n == 0 || n > 8 {
		t.Errorf("%d samples in 1000 bytes", n)
	}
	if s.totals.reads.Load() > 8 {
		t.Errorf("%d samples are counted", s.totals.reads.Load())
	}
}

func TestShares(t *testing.T) {
	var r Rates
	now := time.Unix(1000, 0)
	share := func(name string, q float64) string { return fmt.Sprintf("%.2f", r.Share(name, q, now, 30*time.Second)) }
	if got := share("a", 0); got != "1.00" {
		t.Errorf("the only sampler, without queries: %s", got)
	}
	share("a", 30)
	if got := share("b", 10); got != "0.25" {
		t.Errorf("a quarter of the queries: %s", got)
	}
	now = now.Add(31 * time.Second)
	if got := share("b", 10); got != "1.00" {
		t.Errorf("after the other has gone: %s", got)
	}
}

func TestDiffOfVersions(t *testing.T) {
	doc := func(f ...value.Field) value.Value { return value.NewDocument(value.Doc(f...)) }
	one, two := value.NewInt32(1), value.NewInt32(2)
	old := value.Doc(value.F("a", one), value.F("b", doc(value.F("x", one), value.F("y", one))), value.F("c", one), value.F("e", one))
	next := value.Doc(value.F("a", one), value.F("b", doc(value.F("x", two), value.F("y", one))), value.F("d", one), value.F("e", value.NewInt64(1)))
	d := Diff(old, next)
	if got := value.ShowDoc(d); got != `{ b: { x: "u" }, c: "d", e: "u", d: "i" }` {
		t.Error(got)
	}
	for path, want := range map[string]bool{"a": false, "b": true, "b.x": true, "b.y": false, "b.x.z": true, "c": true, "d": true, "z": false} {
		if Touches(d, path) != want {
			t.Errorf("Touches(%s) is %v", path, !want)
		}
	}
}

// A sampled update carries the sample's id, whether its statements are in the body or in a document sequence.
func TestStatementsCarryTheID(t *testing.T) {
	s, _ := clocked(50)
	st := value.Doc(value.F("q", value.NewDocument(value.Doc())), value.F("u", value.NewDocument(value.Doc())))
	got := s.Sample(&Query{Name: "update", DB: "db", Body: value.Doc(value.F("update", value.NewString("c")), value.F("updates", value.NewArray(value.ArrayOf(value.NewDocument(st)))))})
	id := value.Lookup(s.take()[0].doc, "_id")
	if got == nil || len(got.Seqs) != 1 || !value.Lookup(got.Body, "updates").IsMissing() {
		t.Fatalf("%+v", got)
	}
	if value.Compare(value.Lookup(got.Seqs[0].Docs, "sampleId"), id) != 0 {
		t.Error("the statement has another id than the sample")
	}
	many := value.Doc(value.F("q", value.NewDocument(value.Doc())), value.F("u", value.NewDocument(value.Doc())), value.F("multi", value.NewBool(true)))
	if got = s.Sample(&Query{Name: "update", DB: "db", Body: value.Doc(value.F("update", value.NewString("c")), value.F("updates", value.NewArray(value.ArrayOf(value.NewDocument(many)))))}); got != nil {
		t.Error("the changes of a multi-document update are not recorded")
	}
	if len(s.take()) != 1 {
		t.Error("but it is sampled")
	}
	bad := value.Doc(value.F("bulkWrite", value.NewInt32(1)), value.F("ops", value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(value.F("update", value.NewInt32(7))))))))
	if s.Sample(&Query{Name: "bulkWrite", DB: "admin", Body: bad}) != nil || len(s.take()) != 0 {
		t.Error("an operation on no namespace")
	}
}

func BenchmarkSamplingOff(b *testing.B) {
	s := New(cluster.NewParams(), time.Now)
	b.ReportAllocs()
	for b.Loop() {
		if s.On() {
			b.Fatal("on")
		}
	}
}

func BenchmarkSamplingOfAnother(b *testing.B) {
	s, _ := clocked(50)
	q := &Query{Name: "find", DB: "db", Body: value.Doc(value.F("find", value.NewString("other")))}
	b.ReportAllocs()
	for b.Loop() {
		s.Sample(q)
	}
}
