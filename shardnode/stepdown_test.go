package shardnode

import (
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A step-down interrupts waiting writes, refuses new ones, and the primary-only services start again after it.
func TestSteppingDownAlone(t *testing.T) {
	n := newTestNode(t)
	n.ok("admin", `{"replSetStepDown": 60, "force": true}`)
	reply := n.do("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	if reply["code"] != int32(mongoerr.NotWritablePrimary) || reply["topologyVersion"] == nil {
		t.Errorf("a write after the step-down: %v", reply)
	}
	n.srv.Node.Services.Each(func(name, state string) {
		if state != "paused" {
			t.Errorf("%s is %s", name, state)
		}
	})
	n.ok("admin", `{"replSetFreeze": 0}`)
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	n.srv.Node.Services.Each(func(name, state string) {
		if state != "running" {
			t.Errorf("%s is %s", name, state)
		}
	})
}
