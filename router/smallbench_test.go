package router_test

import (
	"encoding/binary"
	"syscall"
	"testing"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// BenchmarkSmallRouted runs the commands that clients send most through a router, on a collection that is not sharded: the cost of
// a request without the network and the disk.
func BenchmarkSmallRouted(b *testing.B) {
	const docs = 10_000
	c := newTestCluster(b, 2)
	defer func(f func(command, field string)) { command.Misread = f }(command.Misread)
	command.Misread = nil // servers have no such check
	key := func(i int) value.Value {
		var id [12]byte
		binary.BigEndian.PutUint64(id[4:], uint64(i%docs))
		return value.NewObjectID(id)
	}
	list := func(v ...value.Value) value.Value { return value.NewArray(value.ArrayOf(v...)) }
	doc := func(f ...value.Field) value.Value { return value.NewDocument(value.Doc(f...)) }
	lsid := value.F("lsid", value.NewDocument(value.Doc(value.F("id", value.NewBinary(4, make([]byte, 16))))))
	pad := value.NewString(string(make([]byte, 150)))
	number := int64(0)
	var reply []byte
	run := func(write bool, f ...value.Field) {
		f = append(f, lsid)
		if write {
			number++
			f = append(f, value.F("txnNumber", value.NewInt64(number)))
		}
		body := value.Doc(append(f, value.F("$db", value.NewString("d")))...)
		reply = c.router.Run(b.Context(), c.client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil)
		if value.Lookup(reply, "ok").Double() != 1 || value.Lookup(reply, "writeErrors").T != value.Missing {
			b.Fatalf("%x", reply)
		}
	}
	for i := 0; i < docs; i += 1000 {
		var all []value.Value
		for j := range 1000 {
			all = append(all, doc(value.F("_id", key(i+j)), value.F("n", value.NewInt32(1)), value.F("pad", pad)))
		}
		run(false, value.F("insert", value.NewString("c")), value.F("documents", list(all...)))
	}
	admin := func(f ...value.Field) {
		body := value.Doc(append(f, lsid, value.F("$db", value.NewString("admin")))...)
		if r := c.router.Run(b.Context(), c.client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil); value.Lookup(r, "ok").Double() != 1 {
			b.Fatalf("%x", r)
		}
	}
	admin(value.F("enableSharding", value.NewString("d")))
	for _, n := range []string{"hashed", "new_hashed", "many_hashed"} {
		admin(value.F("shardCollection", value.NewString("d."+n)), value.F("key", doc(value.F("_id", value.NewString("hashed")))))
	}
	run(false, value.F("createIndexes", value.NewString("hashed")), value.F("indexes", list(doc(value.F("key", doc(value.F("k", value.NewInt32(1)))), value.F("name", value.NewString("k_1"))))))
	long := func(i int) value.Value {
		var id [12]byte
		binary.BigEndian.PutUint64(id[4:], uint64(i))
		return doc(value.F("_id", value.NewObjectID(id)), value.F("k", value.NewInt32(int32(i))), value.F("pad", pad))
	}
	longs := func(from int) value.Value {
		var all []value.Value
		for j := range 1000 {
			all = append(all, long(from+j))
		}
		return list(all...)
	}
	for i := 0; i < docs; i += 1000 {
		run(false, value.F("insert", value.NewString("hashed")), value.F("documents", longs(i)))
	}
	next := 0
	for _, x := range []struct {
		name string
		op   func(i int)
	}{
		{"find", func(i int) {
			run(false, value.F("find", value.NewString("c")), value.F("filter", doc(value.F("_id", key(i)))), value.F("limit", value.NewInt64(1)),
				value.F("singleBatch", value.NewBool(true)))
		}},
		{"insert", func(int) {
			next++
			run(true, value.F("insert", value.NewString("new")), value.F("ordered", value.NewBool(true)),
				value.F("documents", list(doc(value.F("_id", value.NewInt64(int64(next))), value.F("a", value.NewInt32(1))))))
		}},
		{"update", func(i int) {
			run(true, value.F("update", value.NewString("c")), value.F("ordered", value.NewBool(true)),
				value.F("updates", list(doc(value.F("q", doc(value.F("_id", key(i)))), value.F("u", doc(value.F("$set", doc(value.F("n", value.NewInt32(int32(i)))))))))))
		}},
		{"replace", func(i int) {
			run(true, value.F("update", value.NewString("c")), value.F("ordered", value.NewBool(true)),
				value.F("updates", list(doc(value.F("q", doc(value.F("_id", key(i)))), value.F("u", doc(value.F("n", value.NewInt32(int32(i))), value.F("pad", pad)))))))
		}},
		{"insert_hashed", func(int) {
			next++
			run(true, value.F("insert", value.NewString("new_hashed")), value.F("ordered", value.NewBool(true)), value.F("documents", list(long(next))))
		}},
		{"update_hashed", func(i int) {
			run(true, value.F("update", value.NewString("hashed")), value.F("ordered", value.NewBool(true)),
				value.F("updates", list(doc(value.F("q", doc(value.F("_id", key(i)))), value.F("u", doc(value.F("$set", doc(value.F("n", value.NewInt32(int32(i)))))))))))
		}},
		{"find_hashed", func(i int) {
			run(false, value.F("find", value.NewString("hashed")), value.F("filter", doc(value.F("_id", key(i)))), value.F("limit", value.NewInt64(1)),
				value.F("singleBatch", value.NewBool(true)))
		}},
		{"find_index", func(i int) {
			run(false, value.F("find", value.NewString("hashed")), value.F("filter", doc(value.F("k", value.NewInt32(int32(i%docs))))))
		}},
		{"range_scan", func(i int) {
			from := int32(i * 37 % 9000)
			run(false, value.F("find", value.NewString("hashed")), value.F("filter", doc(value.F("k", doc(value.F("$gte", value.NewInt32(from)), value.F("$lt", value.NewInt32(from+1000)))))),
				value.F("sort", doc(value.F("k", value.NewInt32(1)))), value.F("limit", value.NewInt64(100)))
		}},
		{"find_all", func(int) {
			run(false, value.F("find", value.NewString("hashed")), value.F("filter", doc()))
			for {
				id := value.Lookup(value.Lookup(reply, "cursor").Doc(), "id")
				if id.Int64() == 0 {
					break
				}
				run(false, value.F("getMore", value.NewInt64(id.Int64())), value.F("collection", value.NewString("hashed")))
			}
		}},
		{"insert_many", func(int) {
			next += 1000
			run(true, value.F("insert", value.NewString("many_hashed")), value.F("ordered", value.NewBool(true)), value.F("documents", longs(next-1000)))
		}},
	} {
		b.Run("command="+x.name, func(b *testing.B) {
			b.ReportAllocs()
			start := cpuTime()
			for i := 0; b.Loop(); i++ {
				x.op(i)
			}
			b.ReportMetric(float64(cpuTime()-start)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpuTime returns the CPU time that the process has used: on a shared machine it says more than the clock.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
