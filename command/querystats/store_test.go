package querystats

import (
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/query/value/valuetest"
)

func key(t testing.TB, i int) []byte {
	return valuetest.Doc(t, fmt.Sprintf(`{"queryShape":{"cmdNs":{"db":"d","coll":"c"},"command":"find","filter":{"f%d":{"$eq":"?number"}}},"hint":"f_1"}`, i))
}

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func read(t *testing.T, s *Store, name func(string) string) (out []bson.M) {
	t.Helper()
	for _, d := range s.Docs(func() time.Time { return now }, name) {
		var m bson.M
		if err := bson.Unmarshal(d, &m); err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

func TestFigures(t *testing.T) {
	s := New()
	s.SetMaxBytes(1 << 20)
	s.Record(key(t, 1), &Metrics{First: 2 * time.Millisecond, Total: 5 * time.Millisecond, Returned: 3, Keys: 4, Docs: 5, SortStage: true}, now)
	s.Record(key(t, 1), &Metrics{First: time.Millisecond, Total: time.Millisecond, Returned: 7, FromPlanner: true}, now.Add(time.Second))
	docs := read(t, s, nil)
	if len(docs) != 1 {
		t.Fatal(docs)
	}
	m := docs[0]["metrics"]
	for path, want := range map[string]string{
		"execCount": "2", "lastExecutionMicros": "1000", "docsReturned.sum": "10", "docsReturned.max": "7", "docsReturned.min": "3",
		"docsReturned.sumOfSquares": "58", "totalExecMicros.sum": "6000", "firstResponseExecMicros.sum": "3000", "keysExamined.max": "4",
		"hasSortStage.true": "1", "hasSortStage.false": "1", "fromPlanCache.true": "1", "usedDisk.true": "0", "workingTimeMillis.sum": "6",
	} {
		raw, err := bson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		v := value.NewDocument(raw)
		for _, p := range splitDots(path) {
			v = value.Lookup(v.Doc(), p)
		}
		if got := value.Show(v); got != want && got != fmt.Sprintf("%s.0", want) {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	if first, last := m.(bson.D), fmt.Sprint(m); len(first) != 14 {
		t.Errorf("metrics: %s", last)
	}
}

func splitDots(path string) (parts []string) {
	for i := range len(path) {
		if path[i] == '.' {
			return []string{path[:i], path[i+1:]}
		}
	}
	return []string{path}
}

// Names are replaced when an entry is read; its hashes stay the same.
func TestTransformed(t *testing.T) {
	s := New()
	s.SetMaxBytes(1 << 20)
	s.Record(key(t, 1), &Metrics{}, now)
	plain, hidden := read(t, s, nil)[0], read(t, s, Hashed([]byte("k")))[0]
	if plain["keyHash"] != hidden["keyHash"] || plain["queryShapeHash"] != hidden["queryShapeHash"] {
		t.Error("hashes differ")
	}
	name := Hashed([]byte("k"))
	want := bson.D{{Key: "queryShape", Value: bson.D{{Key: "cmdNs", Value: bson.D{{Key: "db", Value: name("d")}, {Key: "coll", Value: name("c")}}},
		{Key: "command", Value: "find"}, {Key: "filter", Value: bson.D{{Key: name("f1"), Value: bson.D{{Key: "$eq", Value: "?number"}}}}}}},
		{Key: "hint", Value: name("f_1")}}
	if got := fmt.Sprint(hidden["key"]); got != fmt.Sprint(want) {
		t.Errorf("%s\nwant %s", got, want)
	}
	if name("a") == Hashed([]byte("other"))("a") {
		t.Error("another HMAC key gives the same names")
	}
}

// The size stays below its limit, and the most recently used entries stay.
func TestEviction(t *testing.T) {
	s := New()
	one := (&entry{key: key(t, 1)}).size()
	s.SetMaxBytes(4 * one * int64(len(s.parts)))
	for i := range 500 {
		s.Record(key(t, 1), &Metrics{}, now)
		s.Record(key(t, i), &Metrics{}, now)
	}
	st := status(t, s)
	if st["queryStatsStoreSizeEstimateBytes"] > st["maxSizeBytes"] || st["numEntries"] > int64(4*len(s.parts)) || st["numEvicted"] < 400 {
		t.Error(st)
	}
	kept := false
	for _, d := range read(t, s, nil) {
		kept = kept || fmt.Sprint(d["key"]) == fmt.Sprint(mustDoc(t, key(t, 1)))
	}
	if !kept {
		t.Error("the entry in use is gone")
	}
	s.SetMaxBytes(0)
	s.Record(key(t, 2), &Metrics{}, now)
	if st := status(t, s); st["numEntries"] != 0 || st["queryStatsStoreSizeEstimateBytes"] != 0 || st["numQueryStatsStoreWriteErrors"] != 1 {
		t.Error(st)
	}
}

func mustDoc(t *testing.T, raw []byte) (d bson.D) {
	t.Helper()
	if err := bson.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func status(t *testing.T, s *Store) map[string]int64 {
	t.Helper()
	var out map[string]int64
	if err := bson.Unmarshal(s.Status(), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// No window of one second admits more than the limit, apart from the error in weighting the preceding second.
func TestRateLimit(t *testing.T) {
	s := New()
	if s.On() || s.Admit(now) {
		t.Error("admitted while nothing is to be recorded")
	}
	s.SetLimit(-1)
	if !s.On() || !s.Admit(now) {
		t.Error("not all are admitted")
	}
	s.SetLimit(10)
	var admitted []time.Time
	for at := now; at.Before(now.Add(5 * time.Second)); at = at.Add(7 * time.Millisecond) {
		if s.Admit(at) {
			admitted = append(admitted, at)
		}
	}
	if len(admitted) < 40 || len(admitted) > 50 {
		t.Errorf("%d in five seconds", len(admitted))
	}
	for i, from := range admitted {
		n := 0
		for _, at := range admitted[i:] {
			if at.Sub(from) < time.Second {
				n++
			}
		}
		if n > 12 { // the preceding second is weighted as if its queries had been evenly spread
			t.Errorf("%d in the second from %s", n, from.Sub(now))
		}
	}
	if status(t, s)["numRateLimitedRequests"] == 0 {
		t.Error("none counted")
	}
}

func TestSquares(t *testing.T) {
	var a aggregate
	for range 3 {
		a.add(1 << 62)
	}
	if got := a.squares().DecimalString(); got != "6.380294379767596189938273889345653E+37" {
		t.Error(got) // 3 · 2¹²⁴
	}
}

func BenchmarkRecord(b *testing.B) {
	s := New()
	s.SetMaxBytes(1 << 20)
	k := key(b, 1)
	b.ReportAllocs()
	for b.Loop() {
		s.Record(k, &Metrics{}, now)
	}
}
