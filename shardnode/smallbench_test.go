package shardnode

import (
	"encoding/binary"
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// smallCommand is one of the commands that clients send most.
type smallCommand struct {
	name  string
	write bool
	// allocations is the number of allocations that a command may make, including the test's own for its body.
	allocations float64
	body        func(i int) []value.Field
}

// smallDocs is the number of documents that smallNode has.
const smallDocs = 10_000

func smallCommands() []smallCommand {
	key := func(i int) value.Value {
		var id [12]byte
		binary.BigEndian.PutUint64(id[4:], uint64(i%smallDocs))
		return value.NewObjectID(id)
	}
	list := func(v ...value.Value) value.Value { return value.NewArray(value.ArrayOf(v...)) }
	doc := func(f ...value.Field) value.Value { return value.NewDocument(value.Doc(f...)) }
	return []smallCommand{
		{"insert", true, 44, func(i int) []value.Field {
			return []value.Field{value.F("insert", value.NewString("new")), value.F("ordered", value.NewBool(true)),
				value.F("documents", list(doc(value.F("_id", value.NewInt64(int64(i))), value.F("a", value.NewInt32(1)))))}
		}},
		{"update", true, 92, func(i int) []value.Field {
			return []value.Field{value.F("update", value.NewString("c")), value.F("ordered", value.NewBool(true)),
				value.F("updates", list(doc(value.F("q", doc(value.F("_id", key(i)))), value.F("u", doc(value.F("$set", doc(value.F("n", value.NewInt32(int32(i)))))))))),
			}
		}},
		{"find", false, 24, func(i int) []value.Field {
			return []value.Field{value.F("find", value.NewString("c")), value.F("filter", doc(value.F("_id", key(i)))), value.F("limit", value.NewInt64(1)),
				value.F("singleBatch", value.NewBool(true))}
		}},
	}
}

// smallRunner returns a function that runs a command, from its bytes to its reply's, with the session and transaction number that drivers send.
func smallRunner(t testing.TB) func(c *smallCommand, i int) {
	n := newTestNode(t)
	n.fillSmall(smallDocs)
	number := int64(0)
	lsid := value.F("lsid", value.NewDocument(value.Doc(value.F("id", value.NewBinary(4, make([]byte, 16))))))
	return func(c *smallCommand, i int) {
		f := append(c.body(i), lsid)
		if c.write {
			number++
			f = append(f, value.F("txnNumber", value.NewInt64(number)))
		}
		body := value.Doc(append(f, value.F("$db", value.NewString("d")))...)
		reply := n.srv.Service.Run(t.Context(), n.cl, &wire.Message{Body: body}, nil)
		if value.Lookup(reply, "ok").Double() != 1 || value.Lookup(reply, "writeErrors").T != value.Missing {
			t.Fatalf("%x", reply)
		}
	}
}

// BenchmarkSmall runs the commands that clients send most, on one document of 200 bytes each: what a request costs apart from
// the network and the disk.
func BenchmarkSmall(b *testing.B) {
	run := smallRunner(b)
	for _, c := range smallCommands() {
		b.Run("command="+c.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				run(&c, i)
			}
		})
	}
}

// The allocations of small commands are counted: one more in each of them costs a percent of the server's time.
func TestSmallCommandsAllocateLittle(t *testing.T) {
	if raceDetector {
		t.Skip("pools forget at random under the race detector")
	}
	run := smallRunner(t)
	for _, c := range smallCommands() {
		i := 0
		n := testing.AllocsPerRun(5000, func() {
			run(&c, i)
			i++
		})
		t.Logf("%s: %v allocations", c.name, n)
		if n > c.allocations {
			t.Errorf("%s makes %v allocations, and may make %v", c.name, n, c.allocations)
		}
	}
}
