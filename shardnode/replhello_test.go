package shardnode

import (
	"testing"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/replication"
)

// Under which address a client is told the members, by the address it dialled.
func TestHostView(t *testing.T) {
	horizons := func(c *replication.SetConfig) *replication.SetConfig {
		for i, port := range []string{"1", "2"} {
			c.Members[i].Horizons = []replication.Tag{{Name: "outside", Value: "db.example:" + port}, {Name: "lan", Value: "10.0.0.9:" + port}}
		}
		return c
	}
	for _, x := range []struct {
		name, local, sni string
		config           *replication.SetConfig
		want             string
	}{
		{"told, same address", "127.0.0.1:1", "", replication.NewConfig("rs", "127.0.0.1:1", "127.0.0.1:2"), "127.0.0.1:2"},
		{"told, another address", "10.0.0.5:1", "", replication.NewConfig("rs", "a:1", "b:2"), "b:2"},
		{"loopback from another machine", "10.0.0.5:1", "", replication.NewConfig("rs", "127.0.0.1:1", "127.0.0.1:2"), "10.0.0.5:2"},
		{"loopback by another name", "127.0.0.1:1", "", replication.NewConfig("rs", "localhost:1", "localhost:2"), "localhost:2"},
		{"a set of one by the machine's name", "127.0.0.1:1", "", replication.NewConfig("rs", "machine:1"), "127.0.0.1:1"},
		{"a set of one by a chosen name", "127.0.0.1:1", "", replication.NewConfig("rs", "chosen:1"), "chosen:1"},
		{"horizon by name", "10.1.1.1:1", "db.example", horizons(replication.NewConfig("rs", "a:1", "b:2")), "db.example:2"},
		{"horizon by address", "10.0.0.9:1", "", horizons(replication.NewConfig("rs", "a:1", "b:2")), "10.0.0.9:2"},
		{"no horizon", "10.1.1.1:1", "", horizons(replication.NewConfig("rs", "a:1", "b:2")), "b:2"},
	} {
		r := &ReplSet{node: &Node{Host: "machine:1"}}
		s := &replState{config: x.config, self: &x.config.Members[0]}
		client := command.NewClient(1, "10.9.9.9:5", x.local, nil)
		client.ServerName = x.sni
		last := &x.config.Members[len(x.config.Members)-1]
		if got := r.view(&command.Op{Client: client}, s).host(last); got != x.want {
			t.Errorf("%s: %s, want %s", x.name, got, x.want)
		}
		client.Internal = true
		if got := r.view(&command.Op{Client: client}, s).host(last); got != last.Host {
			t.Errorf("%s: another node is told %s, want %s", x.name, got, last.Host)
		}
	}
}

// What a member serves in each role: by the kind of command and the client's read preference.
func TestCheckRole(t *testing.T) {
	n := newTestNode(t)
	r := n.srv.Repl
	was := *r.state.Load()
	defer r.state.Store(&was)
	const write, read, anywhere, local = `{"insert": "c", "documents": [{"_id": 1}]}`, `{"find": "c"}`,
		`{"find": "c", "$readPreference": {"mode": "nearest"}}`, `{"find": "c"}`
	for _, x := range []struct {
		role                        replication.Role
		write, read, anywhere, here int32
	}{
		{replication.Primary, 10107, 13435, 0, 0}, // elected, not yet writable
		{replication.Secondary, 10107, 13435, 0, 0},
		{replication.Recovering, 10107, 13435, 13436, 0},
		{replication.Startup2, 10107, 13435, 13436, 0},
		{replication.Removed, 10107, 13435, 13436, 0},
	} {
		s := was
		s.role, s.writable = x.role, false
		r.state.Store(&s)
		for _, c := range []struct {
			db, cmd string
			want    int32
		}{{"d", write, x.write}, {"d", read, x.read}, {"d", anywhere, x.anywhere}, {"local", local, x.here}} {
			if got := n.code(c.db, c.cmd); got != c.want {
				t.Errorf("%s, %s on %s: code %d, want %d", x.role, c.cmd, c.db, got, c.want)
			}
		}
	}
}

// A step-down interrupts writes that wait, lets no new one in, and the primary-only services begin again after it.
func TestSteppingDownAlone(t *testing.T) {
	n := newTestNode(t)
	n.ok("admin", `{"replSetStepDown": 60, "force": true}`)
	reply := n.do("d", `{"insert": "c", "documents": [{"_id": 1}]}`)
	if reply["code"] != int32(10107) || reply["topologyVersion"] == nil {
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
