package router_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// maxFindAllocations is a few above what a find by _id makes on router and shard together. It made 38 when shards planned it like any query: 4 to
// 7 % of a server's time.
const maxFindAllocations = 12

// maxIndexFindAllocations is a few above what a find by an index makes on a router and the two shards that it asks. It made 167 when every index was given bounds, and targeting ranges of keys.
const maxIndexFindAllocations = 145

// The allocations of a find by _id and of one by an index through a router are counted, from the request's bytes to those of the reply: an upper bound of time would
// depend on the machine.
func TestFindByIDAllocatesLittle(t *testing.T) {
	if raceDetector {
		t.Skip("pools forget at random under the race detector")
	}
	c := newTestCluster(t, 2)
	defer func(f func(command, field string)) { command.Misread = f }(command.Misread)
	command.Misread = nil // servers have no such check
	c.run("admin", `{"shardCollection": "db.hashed", "key": {"_id": "hashed"}}`)
	for i := range 100 {
		for _, coll := range []string{"hashed", "single"} {
			c.run("db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": {"$oid": "%024x"}, "a": %d}]}`, coll, i, i))
		}
	}
	c.run("db", `{"createIndexes": "hashed", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}`)
	messages := func(coll, field string) (list []*wire.Message) {
		for i := range 100 {
			var id [12]byte
			binary.BigEndian.PutUint64(id[4:], uint64(i))
			equals := value.NewObjectID(id)
			if field != "_id" {
				equals = value.NewInt32(int32(i))
			}
			list = append(list, &wire.Message{OpCode: wire.OpMsg, Body: value.Doc(value.F("find", value.NewString(coll)),
				value.F("filter", value.NewDocument(value.Doc(value.F(field, equals)))), value.F("limit", value.NewInt64(1)), value.F("singleBatch", value.NewBool(true)),
				value.F("lsid", value.NewDocument(value.Doc(value.F("id", value.NewBinary(4, make([]byte, 16)))))), value.F("$db", value.NewString("db")))})
		}
		return list
	}
	for _, x := range []struct {
		coll, field string
		max         float64
	}{{"hashed", "_id", maxFindAllocations}, {"single", "_id", maxFindAllocations}, {"hashed", "a", maxIndexFindAllocations}} {
		list, i := messages(x.coll, x.field), 0
		var reply []byte
		run := func() {
			reply = c.router.Run(t.Context(), c.client, list[i%len(list)], reply[:0])
			i++
		}
		run()
		if docs := value.Lookup(value.Lookup(reply, "cursor").Doc(), "firstBatch"); value.Count(docs.Doc()) != 1 {
			t.Fatalf("%s by %s: %x", x.coll, x.field, reply)
		}
		least := testing.AllocsPerRun(2000, run) // the cluster's own work allocates, too
		for range 4 {
			least = min(least, testing.AllocsPerRun(2000, run))
		}
		t.Logf("%s by %s: %v allocations", x.coll, x.field, least)
		if least > x.max {
			t.Errorf("a find by %s in %s makes %v allocations, and may make %v", x.field, x.coll, least, x.max)
		}
	}
}
