package sdam

import (
	"testing"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// A request for a DDL coordinator, which has an id, may have been executed, and what it would find the second time may be another client's: its router sends it again, marked as such.
func TestRequestsForCoordinatorsAreNotRepeated(t *testing.T) {
	for _, name := range []string{"_shardsvrDropCollection", "_shardsvrDropDatabase", "_shardsvrShardCollection", "_shardsvrMovePrimary", "collMod", "createIndexes"} {
		m := &wire.Message{OpCode: wire.OpMsg, Body: value.Doc(value.F(name, value.NewString("c")), value.F(msg.RequestID, value.NewDocument(value.Doc())))}
		if repeatable(m) {
			t.Errorf("%s with an id is repeated", name)
		}
	}
	for name, want := range map[string]bool{"drop": false, "dropDatabase": false, "collMod": true, "find": true} {
		if got := repeatable(&wire.Message{OpCode: wire.OpMsg, Body: value.Doc(value.F(name, value.NewString("c")))}); got != want {
			t.Errorf("%s is repeated: %v, want %v", name, got, want)
		}
	}
}
