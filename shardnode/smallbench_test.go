package shardnode

import (
	"encoding/binary"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// BenchmarkSmall runs the commands that clients send most, on one document of 200 bytes each, from the command's bytes to its
// reply's, with the session and transaction number that drivers send: what a request costs beside the network and the disk.
func BenchmarkSmall(b *testing.B) {
	const docs = 10_000
	n := newTestNode(b)
	n.fillSmall(docs)
	number := int64(0)
	lsid := value.F("lsid", value.NewDocument(value.Doc(value.F("id", value.NewBinary(4, make([]byte, 16))))))
	key := func(i int) value.Value {
		var id [12]byte
		binary.BigEndian.PutUint64(id[4:], uint64(i%docs))
		return value.NewObjectID(id)
	}
	list := func(v ...value.Value) value.Value { return value.NewArray(value.ArrayOf(v...)) }
	doc := func(f ...value.Field) value.Value { return value.NewDocument(value.Doc(f...)) }
	for _, c := range []struct {
		name  string
		write bool
		body  func(i int) []value.Field
	}{
		{"insert", true, func(i int) []value.Field {
			return []value.Field{value.F("insert", value.NewString("new")), value.F("ordered", value.NewBool(true)),
				value.F("documents", list(doc(value.F("_id", value.NewInt64(int64(i))), value.F("a", value.NewInt32(1)))))}
		}},
		{"update", true, func(i int) []value.Field {
			return []value.Field{value.F("update", value.NewString("c")), value.F("ordered", value.NewBool(true)),
				value.F("updates", list(doc(value.F("q", doc(value.F("_id", key(i)))), value.F("u", doc(value.F("$set", doc(value.F("n", value.NewInt32(int32(i)))))))))),
			}
		}},
		{"find", false, func(i int) []value.Field {
			return []value.Field{value.F("find", value.NewString("c")), value.F("filter", doc(value.F("_id", key(i)))), value.F("limit", value.NewInt64(1)),
				value.F("singleBatch", value.NewBool(true))}
		}},
	} {
		b.Run("command="+c.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				f := append(c.body(i), lsid)
				if c.write {
					number++
					f = append(f, value.F("txnNumber", value.NewInt64(number)))
				}
				body := value.Doc(append(f, value.F("$db", value.NewString("d")))...)
				reply := n.srv.Service.Run(b.Context(), n.cl, &wire.Message{Body: body}, nil)
				if value.Lookup(reply, "ok").Double() != 1 || value.Lookup(reply, "writeErrors").T != value.Missing {
					b.Fatalf("%x", reply)
				}
			}
		})
	}
}
