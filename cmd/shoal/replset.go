package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// memberSet is a replica set whose members all run in this process.
type memberSet struct {
	name   string
	dir    string // the first member's data directory; the others' have a number appended
	config bool
	places []memberPlace
}

// memberPlace is a member's address in the set's configuration, and what it listens on, if anything.
type memberPlace struct {
	host   string
	listen []string
	bound  []net.Addr // set by openSet
}

func (m *memberSet) memberDir(i int) string {
	if i == 0 {
		return m.dir
	}
	return m.dir + "-" + strconv.Itoa(i)
}

// hasMember reports whether there is a member from an earlier start that still belongs to the set.
func (a *assembly) hasMember(set *memberSet, i int) bool {
	if a.c.Memory {
		return false
	}
	_, err := os.Stat(filepath.Join(a.c.DBPath, set.memberDir(i)))
	return err == nil
}

// openedAsIs is for sets whose members can be reached as they are opened.
func openedAsIs(*shardnode.Server) error { return nil }

// setReady limits how long a set in one process may take until it has a primary.
const setReady = 30 * time.Second

// openSet opens the members of a set and returns once it has a primary: if it is new, it is initiated; if not, an
// election is held at once, and the configuration is changed if there are new members or other addresses. ready is called for each member before it can be
// reached.
//
// Hazard: a member that is not yet a shard replies that it was not started as one (NoShardingEnabled), which is final for the operations that other shards
// continue after a crash.
func (a *assembly) openSet(ctx context.Context, set *memberSet, d *directory, clock *cluster.VectorClock, ready func(*shardnode.Server) error) ([]*shardnode.Server, error) {
	var servers []*shardnode.Server
	for i, p := range set.places {
		s, err := a.openData(shardnode.Config{
			Dir: filepath.Join(a.c.DBPath, set.memberDir(i)), Memory: a.c.Memory, SetName: set.name, Host: p.host, Config: set.config,
			Clock: clock, Repl: together(d.members(p.listen, a.c.Memory)),
		})
		if err != nil {
			return nil, err
		}
		if err := ready(s); err != nil {
			return nil, err
		}
		servers = append(servers, s)
		d.Add(p.host, s.Peer())
		if c := s.Repl.Config(); c != nil && i < len(c.Members) {
			d.Add(c.Members[i].Host, s.Peer())
		}
	}
	for i, s := range servers {
		if len(set.places[i].listen) == 0 {
			continue
		}
		bound, err := a.listen(s.Service, set.places[i].listen)
		if err != nil {
			return nil, err
		}
		set.places[i].bound = bound
	}
	a.onStop(func(context.Context) error {
		for _, s := range servers {
			s.Repl.EndWithSet()
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(ctx, setReady)
	defer cancel()
	want := replication.NewConfig(set.name)
	want.ConfigServer = set.config
	primary, err := electOne(ctx, servers)
	if err == nil && primary == nil {
		want.Members = membersAt(want, set.places)
		err = servers[0].Repl.Initiate(ctx, want)
	} else if err == nil {
		next := primary.Repl.Config().Clone()
		if next.Members = membersAt(next, set.places); !sameHosts(next, primary.Repl.Config()) {
			next.Version++
			err = primary.Repl.Reconfigure(ctx, next)
		}
	}
	if err != nil {
		return nil, err
	}
	return servers, awaitPrimary(ctx, servers)
}

// electOne makes one of the members primary; nil if the set was never initiated.
func electOne(ctx context.Context, servers []*shardnode.Server) (*shardnode.Server, error) {
	initiated := false
	for _, s := range servers {
		initiated = initiated || s.Repl.Initiated()
	}
	for initiated {
		for _, s := range servers {
			// A member that is behind the others does not get their votes; then the next one stands.
			try, cancel := context.WithTimeout(ctx, 2*time.Second)
			won := s.Repl.StepUp(try) == nil
			for won && try.Err() == nil && !s.Repl.Writable() {
				time.Sleep(time.Millisecond)
			}
			cancel()
			if s.Repl.Writable() {
				return s, nil
			}
		}
		if ctx.Err() != nil {
			return nil, mongoerr.Newf(mongoerr.ExceededTimeLimit, "replica set %s elected no primary", servers[0].Repl.Name)
		}
	}
	return nil, nil
}

// membersAt returns a configuration's members with their current addresses, and adds new ones.
func membersAt(c *replication.SetConfig, places []memberPlace) []replication.MemberConfig {
	members := append([]replication.MemberConfig(nil), c.Members...)
	id := 0
	for i := range members {
		id = max(id, members[i].ID+1)
	}
	for i, p := range places {
		if i < len(members) {
			members[i].Host = p.host
			continue
		}
		members = append(members, replication.MemberConfig{ID: id, Host: p.host, Priority: 1, Votes: 1, BuildIndexes: true})
		id++
	}
	return members
}

func sameHosts(a, b *replication.SetConfig) bool {
	if len(a.Members) != len(b.Members) {
		return false
	}
	for i := range a.Members {
		if a.Members[i].Host != b.Members[i].Host {
			return false
		}
	}
	return true
}

// awaitPrimary waits until one member accepts writes and the others follow it.
func awaitPrimary(ctx context.Context, servers []*shardnode.Server) error {
	for {
		var primaries, secondaries int
		for _, s := range servers {
			switch {
			case s.Repl.Writable():
				primaries++
			case s.Repl.Readable():
				secondaries++
			}
		}
		if primaries == 1 && secondaries == len(servers)-1 {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("replica set %s: %d of %d members are ready: %w", servers[0].Repl.Name, primaries+secondaries, len(servers), ctx.Err())
		}
	}
}

// members returns the options by which a member reaches the others of its set.
func (d *directory) members(listens []string, memory bool) shardnode.ReplOptions {
	return shardnode.ReplOptions{Transport: raftTransport{d}, Ask: d.ask, Listens: listens, Memory: memory}
}

// together returns the options for members of a set that runs in one process.
func together(o shardnode.ReplOptions) shardnode.ReplOptions {
	o.Together = true
	return o
}

// ask sends a command to a node at an address, whatever its role.
func (d *directory) ask(ctx context.Context, host string, cmd []byte) ([]byte, error) {
	reply, _, err := d.Call(ctx, host, &wire.Message{OpCode: wire.OpMsg, Body: cmd}, nil)
	if err != nil {
		return nil, err
	}
	return reply, cluster.ReplyError(reply)
}

// raftTransport implements replication.Transport.
type raftTransport struct{ d *directory }

// Send implements replication.Transport.
func (t raftTransport) Send(ctx context.Context, host string, payload []byte) ([]byte, error) {
	return shardnode.SendRaft(payload, func(cmd []byte) ([]byte, error) { return t.d.ask(ctx, host, cmd) })
}
