package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/cluster/sdam"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/router"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/shardnode/migration"
	"github.com/shoaldb/shoal/wire"
)

// directory reaches the nodes that this process talks to: its own by a call, others over TCP, and the right member of
// each replica set.
type directory struct {
	*sdam.Nodes
	monitors *sdam.Monitors
	config   atomic.Pointer[sdam.Set] // nil before it is dialled
}

func newDirectory(clock *cluster.VectorClock, opts wire.PoolOptions) *directory {
	d := &directory{}
	opts.Check, opts.Urgent = cluster.CheckConn, cluster.Urgent
	opts.Follow = func(load map[string]wire.HostLoad) map[string]int { return d.monitors.Follow(load) }
	d.Nodes = sdam.NewNodes(wire.NewPool(opts), clock)
	d.monitors = sdam.NewMonitors(d.Nodes, sdam.DefaultTiming)
	return d
}

// isConfig reports whether a host is a member of the config server.
func (d *directory) isConfig(host string) bool {
	set := d.config.Load()
	return set != nil && slices.ContainsFunc(set.Topology().Servers, func(m *sdam.Server) bool { return m.Host == host })
}

// connect creates the directory of the process.
func (a *assembly) connect(clock *cluster.VectorClock) *directory {
	if clock != nil {
		clock.SetMaxDrift(a.params.Int("maxAcceptableLogicalClockDriftSecs"))
	}
	opts := wire.PoolOptions{
		Handshake: command.Handshake(a.members, a.c.Security.Transition),
		Limits:    poolLimits(a.params, func(host string) bool { return a.peers.isConfig(host) }),
	}
	if a.keyring != nil {
		opts.Dial = wire.DialTLS(a.keyring.outgoing)
	}
	a.peers = newDirectory(clock, opts)
	a.peers.timed(a.params)
	a.peers.monitors.Match(matching(a.params, a.c.Program))
	a.onStop(a.peers.close)
	return a.peers
}

// timed makes the monitors follow their server parameters.
func (d *directory) timed(p *cluster.Params) {
	for name, of := range map[string]func(t *sdam.Timing) *time.Duration{
		"heartBeatFrequencyMs":               func(t *sdam.Timing) *time.Duration { return &t.Heartbeat },
		"connectTimeoutMs":                   func(t *sdam.Timing) *time.Duration { return &t.Timeout },
		"defaultFindReplicaSetHostTimeoutMS": func(t *sdam.Timing) *time.Duration { return &t.Select },
		"localThresholdMs":                   func(t *sdam.Timing) *time.Duration { return &t.Window },
	} {
		p.OnChange(name, func(v value.Value) {
			d.monitors.Retime(func(t *sdam.Timing) { *of(t) = time.Duration(v.AsFloat64()) * time.Millisecond })
		})
	}
	p.OnChange("replicaSetMonitorProtocol", func(v value.Value) {
		d.monitors.Retime(func(t *sdam.Timing) { t.Poll = v.Str() == "sdam" })
	})
}

// dialConfig connects to the config server. With first, the first read of the catalog goes to its primary.
func (d *directory) dialConfig(conn string, clock *cluster.VectorClock, first bool) (*cluster.ConfigServer, error) {
	set, hosts := cluster.SplitHosts(conn)
	h, err := d.monitors.Dial(set, hosts)
	if err != nil {
		return nil, err
	}
	d.config.Store(h.Set)
	return cluster.NewConfigServer(h, clock, first), nil
}

// dial connects to a shard, for a registry.
func (d *directory) dial(set string, hosts []string) (cluster.Peer, error) {
	return d.monitors.Dial(set, hosts)
}

// close ends the monitoring and the connections.
func (d *directory) close(context.Context) error {
	d.monitors.Close()
	d.Pool.Close()
	return nil
}

// sharded makes a whole cluster: a config server, shards, and routers that clients connect to.
func (a *assembly) sharded() error {
	c := a.c
	ctx, end := a.h.context()
	defer end()
	clock := cluster.NewVectorClock(time.Now)
	d := a.connect(clock)
	ports := newPorts(c)
	configs, err := a.openSet(ctx, a.places("configRepl", "config", true, ports), d, clock, openedAsIs)
	if err != nil {
		return err
	}
	config, err := d.dialConfig(configs[0].Repl.ConnString(), clock, false) // the clock has the config server's own times
	if err != nil {
		return err
	}
	for _, s := range configs {
		if err := errors.Join(s.KeepKeys(), a.manage(s, d, cluster.NewRegistry(s.OwnPeer(), clock, d.dial), clock), a.joinable(s, config, d, clock)); err != nil {
			return err
		}
	}
	// The address of a config shard is updated, too. If the config server is not a shard, there is no such entry.
	if _, err := cluster.RunWrite(ctx, config, rehostCommand(configs[0].Repl.ConnString(), cluster.ConfigShardID)); err != nil {
		return err
	}
	for i := 0; i < c.Shards || a.hasShard(i); i++ {
		name := shardName(i)
		servers, err := a.openSet(ctx, a.places(name, name, false, ports), d, clock, func(s *shardnode.Server) error { return a.joinable(s, config, d, clock) })
		if err != nil {
			return err
		}
		if err := addToCluster(ctx, servers[0], config, name); err != nil {
			return err
		}
	}
	if c.ConfigShard {
		if _, err := cluster.RunWrite(ctx, config, msg.Doc(&msg.TransitionFromDedicated{})); err != nil {
			return err
		}
	}
	// Monitoring ends before the members do, and after the routers that use it.
	a.onStop(d.close)
	if err := a.routers(config, d, clock); err != nil {
		return err
	}
	return a.beginChaos()
}

func shardName(i int) string { return fmt.Sprintf("shard%02d", i) }

// hasShard reports whether there is a shard from an earlier start that still belongs to the cluster.
func (a *assembly) hasShard(i int) bool {
	if a.c.Memory {
		return false
	}
	_, err := os.Stat(filepath.Join(a.c.DBPath, shardName(i)))
	return err == nil
}

// addToCluster adds a shard to the cluster, or updates its address there.
func addToCluster(ctx context.Context, s *shardnode.Server, config cluster.Peer, name string) error {
	conn := s.Repl.ConnString()
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

// inProcess is the suffix of names of members that are reached only within the process: config.shards and hello show
// them, and they must not look like an address that can be dialled.
const inProcess = "(in-process):0"

// places returns the addresses of a set's members.
func (a *assembly) places(name, dir string, config bool, p *ports) *memberSet {
	set := &memberSet{name: name, dir: dir, config: config}
	for i := 0; i < a.c.Replicas || a.hasMember(set, i); i++ {
		var m memberPlace
		if p.next > 0 {
			addr := net.JoinHostPort(p.host, strconv.Itoa(p.next))
			m.host, m.listen = a.public(addr), []string{addr}
			p.next++
		} else {
			m.host = set.memberDir(i) + inProcess
		}
		set.places = append(set.places, m)
	}
	return set
}

// ports assigns ports to members that listen.
type ports struct {
	host string // that the first router listens on
	next int
}

func newPorts(c *config) *ports {
	host, _, err := net.SplitHostPort(c.Listen[0])
	if err != nil {
		host = "127.0.0.1"
	}
	return &ports{host: host, next: c.NodePort}
}

// joinable makes a data-bearing server a shard: at once if it belongs to a cluster already, else when it is added to one. A config server
// has its own keys, and registers its commands (manage) before those of a shard.
func (a *assembly) joinable(s *shardnode.Server, config *cluster.ConfigServer, d *directory, clock *cluster.VectorClock) error {
	join := func(id migration.Identity) (*migration.ShardState, error) {
		p := config
		if p == nil { // a shard in a process of its own: it signs with the cluster's keys from now on
			var err error
			if p, err = d.dialConfig(id.ConfigDB, clock, true); err != nil {
				return nil, err
			}
			if !s.Node.ConfigServer {
				s.FollowKeys(cluster.PeerKeys{Peer: p})
			}
		}
		state := migration.NewShardState(id.Shard, cluster.NewCatalog(p), cluster.NewRegistry(p, clock, d.dial), clock)
		state.ConfigDB, state.ClusterID = id.ConfigDB, id.ClusterID
		s.Background(state.Registry.Follow)
		d.monitors.OnMove(func(set, _ string, _ int64) {
			if set == id.ConfigSet() {
				state.ConfigMoved()
			}
		})
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

// routers starts the routers on consecutive ports, beginning with the given one.
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
		hosts = append(hosts, a.public(bound[0].String()))
	}
	what := "config server"
	if a.c.ConfigShard {
		what = "config shard"
	}
	a.roles.What = fmt.Sprintf("Sharded cluster: %d router(s), 1 %s, %d shard(s)", a.c.Routers, what, a.c.Shards)
	if a.c.Replicas > 1 {
		a.roles.What += fmt.Sprintf(" of %d members each", a.c.Replicas)
	}
	a.roles.URI = "mongodb://" + strings.Join(hosts, ",") + "/"
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

// router creates one router and its listener.
func (a *assembly) router(config cluster.Peer, d *directory, clock *cluster.VectorClock, addrs []string) ([]net.Addr, error) {
	r, base := a.newRouter(config, d, clock)
	svc := r.Service
	a.services = append(a.services, svc)
	topo := command.NewTopology(cluster.NewObjectID(), 0)
	topo.Describe = func(op *command.Op, hello bool, dst []byte) []byte { return describeRouter(topo, hello, dst) }
	svc.Table.Add(command.HelloSpec(topo))
	svc.AddRest(nil)
	if a.params.TestCommands() {
		engine, err := a.chaosEngine(config, d, clock)
		if err != nil {
			return nil, err
		}
		base.Disturb = a.chaos.disturb
		svc.Table.Add(engine.Spec())
	}
	topo.ServiceID = cluster.NewObjectID()
	if a.c.Program == isMongos {
		warmUp(r, d)
	}
	a.startedWith(r.ClusterParameters)
	balanced, err := a.balancedFor(addrs)
	if err != nil {
		return nil, err
	}
	bound, err := a.listen(svc, addrs, balanced...)
	if err != nil {
		return nil, err
	}
	r.Service.Host = advertised(a.info.Host, bound[0].(*net.TCPAddr).Port)
	a.background(r.Run)
	a.onStop(func(context.Context) error {
		until := time.Now().Add(a.quiesce())
		topo.Quiesce(until)
		svc.Drain(until)
		return nil
	})
	return bound, nil
}

// newRouter makes a router, which the caller makes run and listen.
func (a *assembly) newRouter(config cluster.Peer, d *directory, clock *cluster.VectorClock) (*router.Router, *command.Base) {
	svc := command.NewService(command.Router)
	svc.Clock = clock
	points := cluster.NewRouterFailPoints() // a test sets one on the router it speaks to, and on no other
	base := &command.Base{Service: svc, Params: a.params, FailPoints: points}
	registry := cluster.NewRegistry(config, clock, d.dial)
	base.Sessions = cluster.NewSessionCache(cluster.NewShardedSessions(cluster.NewCatalog(config), registry, nil), time.Now, func(id cluster.LogicalSessionID) {
		base.Sessions.ClosedCursors(base.KillCursors(func(other cluster.LogicalSessionID) bool { return other == id }))
	})
	base.Install()
	svc.AddGeneric(a.info) // before the router, whose own rows replace the general ones
	r := router.New(svc, registry, clock, a.params, points)
	r.Serve(base)
	r.UseAccess(&command.Access{Enforced: a.c.Security.enforced(), Members: a.members, OneProcess: a.c.oneProcess(), Params: a.params, Providers: a.providers})
	return r, base
}

// background runs f until the process ends; it is stopped before the parts that were made earlier.
func (a *assembly) background(f func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f(ctx) }()
	a.onStop(func(context.Context) error { stop(); <-done; return nil })
}
