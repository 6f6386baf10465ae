package shardnode

import (
	"context"
	"errors"
	"testing"

	"github.com/shoaldb/shoal/replication"
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

// A node may be primary when it becomes a shard: it steps down if a service does not step up without which clients must not write, until that does. It used to go on, with a line in the log.
func TestServicesThatAreAddedToAPrimary(t *testing.T) {
	n := newTestNode(t)
	writable := func(want bool) {
		t.Helper()
		if n.srv.Node.Repl.Writable() != want {
			t.Errorf("writable: %v, want %v", !want, want)
		}
	}
	fails, services := true, n.srv.Node.Services
	add := func(name string, vital bool) {
		n.srv.Node.Repl.Failed(services.Add(replication.Service{Name: name, Vital: vital, StepUp: func(context.Context, int64) error {
			if fails {
				return errors.New("nothing can be read")
			}
			return nil
		}}))
	}
	add("may fail", false)
	writable(true)
	add("vital", true)
	writable(false)
	n.ok("admin", `{"replSetFreeze": 0}`)
	writable(false)
	fails = false
	n.ok("admin", `{"replSetFreeze": 0}`)
	writable(true)
	services.Each(func(name, state string) {
		if state != "running" {
			t.Errorf("%s is %s", name, state)
		}
	})
}
