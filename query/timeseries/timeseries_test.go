package timeseries

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

var fields = Fields{Time: "t", Meta: "m"}

func measurement(ms int64, meta value.Value, rest ...value.Field) []byte {
	fs := []value.Field{value.F("t", value.NewDateTime(ms)), value.F("m", meta)}
	return value.Doc(append(fs, rest...)...)
}

// TestRoundTrip packs measurements with varying fields and expects them back in order of time.
func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	meta := value.NewDocument(value.Doc(value.F("s", value.NewInt32(4))))
	for round := 0; round < 200; round++ {
		var docs [][]byte
		for i := r.IntN(40); i >= 0; i-- {
			var rest []value.Field
			for _, name := range []string{"a", "b", "c"} {
				if r.IntN(3) > 0 {
					rest = append(rest, value.F(name, value.NewInt64(int64(r.IntN(100)))))
				}
			}
			docs = append(docs, measurement(int64(r.IntN(60000)), meta, rest...))
		}
		want := append([][]byte(nil), docs...)
		sortByTime(fields, want)
		b := Pack(fields, Bucket{ID: NewID(0, [12]byte{}), Meta: meta}, docs, nil)
		got := Unpack(fields, b)
		if len(got) != len(want) {
			t.Fatalf("%d measurements, want %d", len(got), len(want))
		}
		for i := range got {
			if !sameFields(got[i], want[i]) {
				t.Fatalf("%d: %s, want %s", i, value.Show(value.NewDocument(got[i])), value.Show(value.NewDocument(want[i])))
			}
		}
		if again := Pack(fields, Bucket{ID: NewID(0, [12]byte{}), Meta: meta}, got, nil); len(again) != len(b) {
			t.Fatal("packed again, the bucket has another size")
		}
	}
}

func sameFields(a, b []byte) bool {
	if value.Count(a) != value.Count(b) {
		return false
	}
	for k, v := range value.Elements(a) {
		if !value.Equal(v, value.Lookup(b, k)) {
			return false
		}
	}
	return true
}

func TestControl(t *testing.T) {
	doc := func(a, b int32) value.Value {
		return value.NewDocument(value.Doc(value.F("a", value.NewInt32(a)), value.F("b", value.NewInt32(b))))
	}
	b := Pack(Fields{Time: "t"}, Bucket{ID: NewID(0, [12]byte{})}, [][]byte{
		value.Doc(value.F("t", value.NewDateTime(70)), value.F("o", doc(1, 9))),
		value.Doc(value.F("t", value.NewDateTime(50)), value.F("o", doc(5, 3))),
	}, nil)
	got := value.Show(value.Lookup(b, "control"))
	want := value.Show(value.NewDocument(value.Doc(
		value.F("version", value.NewInt32(1)),
		value.F("min", value.NewDocument(value.Doc(value.F("t", value.NewDateTime(0)), value.F("o", doc(1, 3))))),
		value.F("max", value.NewDocument(value.Doc(value.F("t", value.NewDateTime(70)), value.F("o", doc(5, 9))))))))
	if got != want {
		t.Errorf("control is %s, want %s", got, want)
	}
}

func TestNormalMeta(t *testing.T) {
	one, two := value.NewInt32(1), value.NewInt32(2)
	a := value.NewDocument(value.Doc(value.F("x", one), value.F("a", two)))
	b := value.NewDocument(value.Doc(value.F("a", two), value.F("x", one)))
	if !bytes.Equal(NormalMeta(a).Doc(), NormalMeta(b).Doc()) {
		t.Error("the order of fields makes a difference")
	}
}

// TestBucketFilter checks random filters: a bucket with a measurement that matches has to pass.
func TestBucketFilter(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const span = 3600_000
	ops := []string{"$gt", "$gte", "$lt", "$lte", "$eq"}
	for round := 0; round < 500; round++ {
		base := int64(r.IntN(5)-1) * 3000_000
		meta := value.NewInt32(int32(r.IntN(3)))
		var docs [][]byte
		for i := 0; i < 5; i++ {
			docs = append(docs, measurement(base+int64(r.IntN(span)), meta))
		}
		b := Pack(fields, Bucket{ID: NewID(base, [12]byte{5: byte(r.IntN(256))}), MinTime: base, Meta: meta}, docs, nil)
		at := value.NewDateTime(value.Lookup(docs[r.IntN(5)], "t").DateTime() + int64(r.IntN(3)-1))
		filter := value.Doc(value.F("t", value.NewDocument(value.Doc(value.F(ops[r.IntN(len(ops))], at)))), value.F("m", value.NewInt32(int32(r.IntN(3)))))
		m, f := compile(t, filter), compile(t, BucketFilter(fields, span, filter))
		passes, err := f.Match(b)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range docs {
			if ok, _ := m.Match(d); ok && !passes {
				t.Fatalf("%s matches %s, whose bucket %s fails", value.Show(value.NewDocument(filter)), value.Show(value.NewDocument(d)), value.Show(value.NewDocument(b)))
			}
		}
	}
	if f := BucketFilter(fields, span, value.Doc(value.F("v", value.NewInt32(1)))); f != nil {
		t.Errorf("a filter of another field bounds buckets: %s", value.Show(value.NewDocument(f)))
	}
}

// TestResidual checks which conditions of a filter remain for the measurements: not those on their bucket's meta.
func TestResidual(t *testing.T) {
	for filter, want := range map[string]string{
		`{"m": 1}`: `null`,
		`{"m.a": {"$gt": 1}, "$and": [{"m": 2}]}`:        `null`,
		`{"m": 1, "v": 2, "mm": 3}`:                      `{"v":2,"mm":3}`,
		`{"$and": [{"m": 1, "v": 2}, {"m": 3}]}`:         `{"$and":[{"v":2}]}`,
		`{"$or": [{"m": 1}, {"v": 2}], "m": 1}`:          `{"$or":[{"m":1},{"v":2}]}`,
		`{"$expr": {"$eq": ["$m", 1]}, "m": {"$lt": 5}}`: `{"$expr":{"$eq":["$m",1]}}`,
	} {
		var doc bson.D
		if err := bson.UnmarshalExtJSON([]byte(filter), false, &doc); err != nil {
			t.Fatal(err)
		}
		raw, _ := bson.Marshal(doc)
		got := "null"
		if r := Residual(fields, raw); r != nil {
			j, _ := bson.MarshalExtJSON(bson.Raw(r), false, false)
			got = string(j)
		}
		if got != want {
			t.Errorf("%s leaves %s, want %s", filter, got, want)
		}
	}
	if r := Residual(NewFields("t", ""), value.Doc(value.F("m", value.NewInt32(1)))); r == nil {
		t.Error("without a metaField, m is a field of the measurements")
	}
}

func compile(t *testing.T, filter []byte) *match.Matcher {
	t.Helper()
	m, err := match.Compile(filter, &match.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func BenchmarkUnpack(b *testing.B) {
	var docs [][]byte
	for i := 0; i < 1000; i++ {
		docs = append(docs, measurement(int64(i), value.NewInt32(1), value.F("v", value.NewDouble(float64(i))), value.F("_id", value.NewInt64(int64(i)))))
	}
	bucket := Pack(fields, Bucket{ID: NewID(0, [12]byte{}), Meta: value.NewInt32(1)}, docs, nil)
	b.ReportAllocs()
	var r Reader
	for b.Loop() {
		r.Reset(fields, bucket)
		for _, ok := r.Next(); ok; _, ok = r.Next() {
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/measurement")
}

func BenchmarkPack(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var docs [][]byte
			for i := 0; i < n; i++ {
				docs = append(docs, measurement(int64(i), value.NewInt32(1), value.F("v", value.NewDouble(float64(i)))))
			}
			b.ReportAllocs()
			for b.Loop() {
				Pack(fields, Bucket{ID: NewID(0, [12]byte{}), Meta: value.NewInt32(1)}, docs, nil)
			}
		})
	}
}
