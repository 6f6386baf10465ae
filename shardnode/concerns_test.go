package shardnode

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// runner returns a function that runs a command repeatedly, from its bytes to its reply's.
func (n *testNode) runner(cmd string) func() {
	n.t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
		n.t.Fatal(err)
	}
	body, err := bson.Marshal(d)
	if err != nil {
		n.t.Fatal(err)
	}
	var reply []byte
	return func() {
		reply = n.srv.Service.Run(n.t.Context(), n.cl, &wire.Message{Body: body}, reply[:0])
		if !value.Lookup(reply, "ok").Truthy() {
			n.t.Fatal(value.Show(value.NewDocument(reply)))
		}
	}
}

// A find parsed its read concern four times, each time with a copy of the level's name.
func TestReadConcernIsParsedOnce(t *testing.T) {
	n := newTestNode(t)
	n.fillSmall(10)
	const find = `{"find": "c", "filter": {"k": 3}, "$db": "d"`
	plain := testing.AllocsPerRun(100, n.runner(find+`}`))
	local := testing.AllocsPerRun(100, n.runner(find+`, "readConcern": {"level": "local"}}`))
	if local > plain+1 {
		t.Errorf("%v allocations with a read concern, %v without", local, plain)
	}
}

func BenchmarkConcerns(b *testing.B) {
	n := newTestNode(b)
	n.fillSmall(1000)
	for _, c := range []struct{ name, cmd string }{
		{"find", `{"find": "c", "filter": {"_id": {"$oid": "000000000000000000000007"}}, "$db": "d"}`},
		{"find_local", `{"find": "c", "filter": {"_id": {"$oid": "000000000000000000000007"}}, "readConcern": {"level": "local"}, "$db": "d"}`},
		{"update_w1", `{"update": "c", "updates": [{"q": {"_id": {"$oid": "000000000000000000000007"}}, "u": {"$inc": {"n": 1}}}], "writeConcern": {"w": 1}, "$db": "d"}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			run := n.runner(c.cmd)
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
	}
}
