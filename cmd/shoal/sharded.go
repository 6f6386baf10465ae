package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/sdam"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/router"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
)

// directory finds the nodes that this process talks to: its own by a call, others over TCP, and the right member of each
// replica set.
type directory struct {
	*sdam.Nodes
	monitors *sdam.Monitors
}

func newDirectory(clock *cluster.VectorClock) *directory {
	nodes := sdam.NewNodes(wire.NewPool(wire.PoolOptions{Handshake: cluster.Handshake}), clock)
	return &directory{Nodes: nodes, monitors: sdam.NewMonitors(nodes, sdam.DefaultTiming)}
}

// dial implements what a registry reaches shards by.
func (d *directory) dial(set string, hosts []string) (cluster.Peer, error) {
	return d.monitors.Dial(set, hosts)
}

// close ends the monitoring and the connections.
func (d *directory) close(context.Context) error {
	d.monitors.Close()
	d.Pool.Close()
	return nil
}

// sharded is a whole cluster: a config server, shards, and routers that clients connect to.
func (a *assembly) sharded() error {
	c := a.c
	ctx := context.Background()
	clock := cluster.NewVectorClock(time.Now)
	d := newDirectory(clock)
	a.onStop(d.close)
	ports := newPorts(c)
	cfg, err := a.member(ctx, clock, d, "configRepl", "config", true, ports)
	if err != nil {
		return err
	}
	if err := cfg.UseKeys(ctx, cluster.PeerKeys{Peer: cfg.Peer()}, true); err != nil {
		return err
	}
	config, err := d.dial(cfg.Repl.Name, []string{cfg.Node.Host})
	if err != nil {
		return err
	}
	registry := cluster.NewRegistry(config, d.dial)
	if err := a.manage(ctx, cfg, registry, clock); err != nil {
		return err
	}
	for i := 0; i < c.Shards || a.hasShard(i); i++ {
		name := shardName(i)
		s, err := a.member(ctx, clock, d, name, name, false, ports)
		if err != nil {
			return err
		}
		if err := a.joinable(s, config, d, clock); err != nil {
			return err
		}
		if err := enlist(ctx, s, config, name); err != nil {
			return err
		}
	}
	// What follows the members ends before them, and after the routers that ask it.
	a.onStop(d.close)
	return a.routers(config, d, clock)
}

func shardName(i int) string { return fmt.Sprintf("shard%02d", i) }

// hasShard tells whether an earlier start left a shard behind that the cluster still counts on.
func (a *assembly) hasShard(i int) bool {
	if a.c.Memory {
		return false
	}
	_, err := os.Stat(filepath.Join(a.c.DBPath, shardName(i)))
	return err == nil
}

// enlist adds a shard to the cluster, or tells the cluster the address it has now.
func enlist(ctx context.Context, s *shardnode.Server, config cluster.Peer, name string) error {
	conn := name + "/" + s.Node.Host
	_, member, err := s.Identity()
	if err != nil {
		return err
	}
	cmd := addShardCommand(conn, name)
	if member {
		cmd = rehostCommand(conn, name)
	}
	_, err = cluster.RunWrite(ctx, config, cmd)
	return err
}

// ports hands out the ports of members that listen for themselves.
type ports struct {
	host string
	next int
}

func newPorts(c *config) *ports {
	host, _, err := net.SplitHostPort(c.Listen[0])
	if err != nil || host == "" || host == "0.0.0.0" || host == "::" {
		host = "127.0.0.1"
	}
	return &ports{host: host, next: c.NodePort}
}

// member opens a data-bearing member of the cluster, which is the whole of its replica set.
func (a *assembly) member(ctx context.Context, clock *cluster.VectorClock, d *directory, set, dir string, config bool, p *ports) (*shardnode.Server, error) {
	host := net.JoinHostPort(p.host, strconv.Itoa(27017))
	if p.next > 0 {
		host = net.JoinHostPort(p.host, strconv.Itoa(p.next))
	} else {
		host = strings.ToLower(dir) + ".local:27018" // reached in the process only
	}
	s, err := a.openData(shardnode.Config{
		Dir: filepath.Join(a.c.DBPath, dir), Memory: a.c.Memory, SetName: set, Host: host, Config: config, Clock: clock,
	})
	if err != nil {
		return nil, err
	}
	if err := s.Initiate(ctx); err != nil {
		return nil, err
	}
	d.Add(host, s.Peer())
	if p.next > 0 {
		p.next++
		if _, err := a.listen(s.Service, []string{host}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// joinable makes a data-bearing server a shard: at once where it belongs to a cluster already, else when it is added.
func (a *assembly) joinable(s *shardnode.Server, config cluster.Peer, d *directory, clock *cluster.VectorClock) error {
	join := func(id shardnode.Identity) (*shardnode.ShardState, error) {
		p := config
		if p == nil {
			set, hosts := cluster.SplitHosts(id.ConfigDB)
			var err error
			if p, err = d.dial(set, hosts); err != nil {
				return nil, err
			}
		}
		if config == nil { // the shard's own process: it signs with the cluster's keys from now on
			if err := s.UseKeys(context.Background(), cluster.PeerKeys{Peer: p}, false); err != nil {
				return nil, err
			}
		}
		state := shardnode.NewShardState(id.Shard, cluster.NewCatalog(p), cluster.NewRegistry(p, d.dial), clock)
		state.ConfigDB, state.ClusterID = id.ConfigDB, id.ClusterID
		return state, nil
	}
	s.OnJoin(join)
	id, ok, err := s.Identity()
	if err != nil || !ok {
		return err
	}
	state, err := join(id)
	if err != nil {
		return err
	}
	s.Node.BecomeShard(state)
	return nil
}

// routers starts the routers, each on the next port behind the one asked for.
func (a *assembly) routers(config cluster.Peer, d *directory, clock *cluster.VectorClock) error {
	var hosts []string
	for i := range a.c.Routers {
		addrs := make([]string, len(a.c.Listen))
		for j, l := range a.c.Listen {
			addr, err := portAfter(l, i)
			if err != nil {
				return err
			}
			addrs[j] = addr
		}
		bound, err := a.router(config, d, clock, addrs)
		if err != nil {
			return err
		}
		a.roles.Addrs = append(a.roles.Addrs, bound...)
		hosts = append(hosts, bound[0].String())
	}
	a.roles.Describe = []string{
		fmt.Sprintf("Sharded cluster: %d router(s), 1 config server, %d shard(s)", a.c.Routers, a.c.Shards),
		"Connection string: mongodb://" + strings.Join(hosts, ",") + "/",
	}
	return nil
}

func portAfter(addr string, n int) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || n == 0 {
		return addr, err
	}
	p, err := strconv.Atoi(port)
	if err != nil {
		return "", err
	}
	if p != 0 {
		p += n
	}
	return net.JoinHostPort(host, strconv.Itoa(p)), nil
}

// router makes one router and listens for it.
func (a *assembly) router(config cluster.Peer, d *directory, clock *cluster.VectorClock, addrs []string) ([]net.Addr, error) {
	svc := command.NewService(command.Router)
	a.services = append(a.services, svc)
	svc.Clock = clock
	points := cluster.NewFailPoints() // a test sets one on the router it speaks to, and on no other
	base := &command.Base{Service: svc, Params: a.params, FailPoints: points, Sessions: cluster.NewSessionCache(cluster.PeerSessionStore{Peer: config}, time.Now, nil)}
	base.Install()
	svc.AddGeneric(a.info)
	r := router.New(svc, cluster.NewRegistry(config, d.dial), clock, a.params, points)
	r.Sessions, base.KillCursors = base.Sessions, r.KillSessionCursors
	topo := command.NewTopology(shardnode.NewObjectID(), 0)
	topo.Describe = func(op *command.Op, hello bool, dst []byte) []byte { return describeRouter(topo, hello, dst) }
	svc.Table.Add(command.HelloSpec(topo))
	svc.AddRest()
	bound, err := a.listen(svc, addrs)
	if err != nil {
		return nil, err
	}
	r.Host = advertised(a.info.Host, bound[0].(*net.TCPAddr).Port)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	a.onStop(func(context.Context) error { stop(); <-done; return nil })
	return bound, nil
}
