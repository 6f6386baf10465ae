package wire

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// order is a document of 24 fields and about 700 bytes.
func order(tb testing.TB) []byte {
	d := bson.D{{Key: "_id", Value: bson.NewObjectID()}}
	for i := range 15 {
		d = append(d, bson.E{Key: fmt.Sprintf("field%d", i), Value: int64(i)})
	}
	d = append(d, bson.E{Key: "name", Value: "a name of common length"},
		bson.E{Key: "address", Value: bson.D{{Key: "street", Value: "Long Street 7"}, {Key: "zip", Value: "12345"}}},
		bson.E{Key: "tags", Value: bson.A{"red", "green", "blue"}},
		bson.E{Key: "text", Value: string(make([]byte, 300))})
	return marshal(tb, d)
}

func BenchmarkValidate(b *testing.B) {
	for _, tc := range []struct {
		name string
		doc  []byte
	}{{"ping", marshal(b, bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}})}, {"order", order(b)}} {
		b.Run(tc.name, func(b *testing.B) {
			b.SetBytes(int64(len(tc.doc)))
			b.ReportAllocs()
			for b.Loop() {
				if err := Validate(tc.doc); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParseFrame(b *testing.B) {
	one := order(b)
	var many []byte
	for range 100 {
		many = append(many, one...)
	}
	insert := marshal(b, bson.D{{Key: "insert", Value: "c"}, {Key: "ordered", Value: true}, {Key: "$db", Value: "test"}})
	for _, tc := range []struct {
		name string
		msg  Message
	}{
		{"find", Message{Body: marshal(b, bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "$db", Value: "test"}})}},
		{"insert100", Message{Body: insert, Seqs: []Sequence{{ID: "documents", Docs: many}}}},
		{"insert100checksum", Message{Flags: ChecksumPresent, Body: insert, Seqs: []Sequence{{ID: "documents", Docs: many}}}},
	} {
		frame := AppendMessage(nil, &tc.msg)
		b.Run(tc.name, func(b *testing.B) {
			b.SetBytes(int64(len(frame)))
			b.ReportAllocs()
			var m Message
			for b.Loop() {
				if err := parseFrame(&m, frame); err != nil {
					b.Fatal(err)
				}
				m.reset()
			}
		})
	}
}

func BenchmarkAppendMessage(b *testing.B) {
	m := Message{Body: order(b)}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendMessage(buf[:0], &m)
	}
}

// BenchmarkRoundTrip measures client and server together over TCP, 16 connections.
func BenchmarkRoundTrip(b *testing.B) {
	for _, name := range []string{"ping", "find"} { // the one is answered in the event loop, the other by a worker
		b.Run(name, func(b *testing.B) {
			s := startEcho(b, &echo{inline: true})
			p := NewPool(PoolOptions{})
			defer p.Close()
			host := s.Addrs()[0].String()
			b.SetParallelism(max(1, 16/runtime.GOMAXPROCS(0)))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				m := &Message{Body: doc(name, 1)}
				for pb.Next() {
					if _, err := p.RoundTrip(context.Background(), host, m); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// BenchmarkConnect makes connections as fast as eight clients can, each with one request.
func BenchmarkConnect(b *testing.B) {
	s := startEcho(b, &echo{inline: true})
	frame := request(1, doc("ping", 1))
	b.SetParallelism(4)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c, err := net.Dial("tcp", s.Addrs()[0].String())
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = c.Write(frame)
			if _, err := readFrame(c); err != nil {
				b.Error(err)
			}
			_ = c.(*net.TCPConn).SetLinger(0) // its port is free at once
			_ = c.Close()
		}
	})
}
