package agg

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
)

// The cost of the query language is measured against loops that know their fields and types at compile time, as
// one would write them for a single query over raw documents.

// smallDocs are documents of 200 bytes, like the load generator's.
func smallDocs(n int) [][]byte {
	r := rand.New(rand.NewPCG(1, 2))
	docs := make([][]byte, n)
	for i := range docs {
		var id [12]byte
		binary.BigEndian.PutUint64(id[4:], uint64(i))
		pad := make([]byte, 65)
		for k := range pad {
			pad[k] = "abcdefghijklmnopqrstuvwxyz0123456789"[r.IntN(36)]
		}
		docs[i] = value.Doc(
			f("_id", value.NewObjectID(id)), f("k", value.NewInt32(int32(i))), f("grp", value.NewInt32(int32(i*7919%100))),
			f("n", value.NewInt32(r.Int32N(1000))), f("val", value.NewDouble(r.Float64()*1e6)),
			f("ts", value.NewDateTime(1767225600000+int64(i)*1000)), f("name", str(fmt.Sprintf("name-%010d", i))),
			f("act", value.NewBool(i%2 == 0)), f("pad", str(string(pad))))
	}
	return docs
}

// handSize is the length of an element's value.
func handSize(t byte, p []byte) int {
	switch t {
	case 0x01, 0x09, 0x11, 0x12:
		return 8
	case 0x02, 0x0D, 0x0E:
		return 4 + int(binary.LittleEndian.Uint32(p))
	case 0x03, 0x04:
		return int(binary.LittleEndian.Uint32(p))
	case 0x05:
		return 5 + int(binary.LittleEndian.Uint32(p))
	case 0x07:
		return 12
	case 0x08:
		return 1
	case 0x10:
		return 4
	case 0x13:
		return 16
	}
	return 0
}

// handMatch is {n: {$lt: limit}}.
func handMatch(doc []byte, limit int32) bool {
	for at := 4; at < len(doc)-1; {
		t := doc[at]
		end := at + 1 + bytes.IndexByte(doc[at+1:], 0)
		p := doc[end+1:]
		if end-at == 2 && doc[at+1] == 'n' {
			switch t {
			case 0x10:
				return int32(binary.LittleEndian.Uint32(p)) < limit
			case 0x12:
				return int64(binary.LittleEndian.Uint64(p)) < int64(limit)
			case 0x01:
				return math.Float64frombits(binary.LittleEndian.Uint64(p)) < float64(limit)
			}
			return false
		}
		at = end + 1 + handSize(t, p)
	}
	return false
}

// handGroup is {_id: "$grp", sum: {$sum: "$n"}, avg: {$avg: "$val"}}.
type handGroup struct {
	sum   int64
	total float64
	count int64
}

func handAdd(groups map[int32]*handGroup, doc []byte) {
	var grp, n int32
	var val float64
	numbers := 0
	for at, left := 4, 3; left > 0 && at < len(doc)-1; {
		t := doc[at]
		end := at + 1 + bytes.IndexByte(doc[at+1:], 0)
		p := doc[end+1:]
		switch string(doc[at+1 : end]) {
		case "grp":
			grp, left = int32(binary.LittleEndian.Uint32(p)), left-1
		case "n":
			n, left = int32(binary.LittleEndian.Uint32(p)), left-1
		case "val":
			if left--; t == 0x01 {
				val = math.Float64frombits(binary.LittleEndian.Uint64(p))
				numbers = 1
			}
		}
		at = end + 1 + handSize(t, p)
	}
	g := groups[grp]
	if g == nil {
		g = &handGroup{}
		groups[grp] = g
	}
	g.sum += int64(n)
	g.total += val
	g.count += int64(numbers)
}

// perDoc runs f over all documents, over and over.
func perDoc(b *testing.B, docs [][]byte, f func()) {
	b.ReportAllocs()
	for b.Loop() {
		f()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(docs)), "ns/doc")
}

func runAll(b *testing.B, p *Pipeline, docs [][]byte) (n int) {
	src, err := p.Run(&loopSource{docs: docs})
	if err != nil {
		b.Fatal(err)
	}
	defer src.Close()
	for {
		_, ok, err := src.Next(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		if !ok {
			return n
		}
		n++
	}
}

var handSink int

func BenchmarkMatchOneField(b *testing.B) {
	docs := smallDocs(10_000)
	filter := doc(f("n", doc(f("$lt", value.NewInt32(500)))))
	b.Run("by=hand", func(b *testing.B) {
		perDoc(b, docs, func() {
			for _, d := range docs {
				if handMatch(d, 500) {
					handSink++
				}
			}
		})
	})
	b.Run("by=matcher", func(b *testing.B) {
		m, err := match.Compile(filter.Doc(), nil)
		if err != nil {
			b.Fatal(err)
		}
		perDoc(b, docs, func() {
			for _, d := range docs {
				if ok, _ := m.Match(d); ok {
					handSink++
				}
			}
		})
	})
	b.Run("by=stage", func(b *testing.B) {
		p := parseJSONStages(b, doc(f("$match", filter)))
		perDoc(b, docs, func() { handSink += runAll(b, p, docs) })
	})
}

func BenchmarkGroupOneField(b *testing.B) {
	docs := smallDocs(10_000)
	b.Run("by=hand", func(b *testing.B) {
		perDoc(b, docs, func() {
			groups := map[int32]*handGroup{}
			for _, d := range docs {
				handAdd(groups, d)
			}
			handSink += len(groups)
		})
	})
	b.Run("by=stage", func(b *testing.B) {
		p := parseJSONStages(b, doc(f("$group", doc(f("_id", str("$grp")), f("sum", doc(f("$sum", str("$n")))), f("avg", doc(f("$avg", str("$val"))))))))
		perDoc(b, docs, func() { handSink += runAll(b, p, docs) })
	})
}
