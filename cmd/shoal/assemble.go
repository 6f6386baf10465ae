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
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/auth/oidc"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/configsvr"
	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// assembly is a process being assembled: what its roles share, and the functions that stop its parts, the last one first.
type assembly struct {
	c       *config
	h       *host
	params  *cluster.Params
	info    *command.Info
	keyring *keyring // nil without TLS
	roles   *roles
	peers   *directory // nil on a standalone server
	members *command.Members
	chaos   *chaosHost                              // nil without enableTestCommands, and without routers
	audit   *command.Audit                          // nil without an audit log
	initial func(context.Context) ([][]byte, error) // see startedWith
	started sync.Once                               // see auditStart
	public  func(addr string) string                // see publicNames
	// providers are those of oidcIdentityProviders.
	providers *oidc.Registry
	// balanced counts the routers made so far.
	balanced int
	// services are the services of all roles, for those that iterate over them.
	services []*command.Service

	mu   sync.Mutex // a config server's manager may be started while the process is ending
	down []func(ctx context.Context) error
}

func newAssembly(c *config, h *host) (*assembly, error) {
	a := &assembly{c: c, h: h, params: cluster.NewParams(), roles: &roles{}, public: publicNames(c, thisMachine)}
	a.params.Checked("tlsX509ClusterAuthDNOverride", c.TLS.checkDN)
	a.params.Checked("oidcIdentityProviders", checkProviders)
	a.checkRuntimeAudit()
	for _, p := range c.Parameters {
		if err := a.params.SetStartup(p.Name, p.Value); err != nil {
			return nil, err
		}
	}
	if err := c.Chaos.check(c.Topology, a.params.TestCommands()); err != nil {
		return nil, err
	}
	configureScripts(c, a.params)
	if c.NoTabScan {
		a.params.Store("notablescan", value.NewBool(true))
	}
	if err := a.secure(); err != nil {
		return nil, err
	}
	a.watchProviders()
	a.warnOfPlain()
	a.configureLog()
	hostname, _ := os.Hostname()
	a.info = &command.Info{
		Host: hostname, Argv: c.Argv, Options: c.Parsed, Shutdown: h.ShutdownAfter, RotateLog: h.RotateLog,
		Log: func(name string) ([]string, int64, bool) {
			total, lines, ok := a.h.log.Ring(name)
			return lines, int64(total), ok
		},
		LogNames: []string{"global", "startupWarnings"},
		AppMessage: func(text string) {
			a.h.log.Info(console.Control, 5060500, "-", "logApplicationMessage").Str("message", text).Write()
		},
	}
	a.roles.Stop, a.roles.Quiesce = a.stop, a.quiesce
	if err := a.encrypt(); err != nil {
		return nil, err
	}
	return a, a.openAudit()
}

// secure reads the key file by which members authenticate to each other; encrypt reads certificates.
func (a *assembly) secure() error {
	s := &a.c.Security
	a.members = &command.Members{}
	if s.KeyFile != "" {
		var err error
		if a.members.Key, err = auth.ReadKeyFile(s.KeyFile); err != nil {
			return fmt.Errorf("Location5579201: Unable to acquire security key[s]: %w", err)
		}
	}
	if s.ClusterAuth == "" && s.KeyFile != "" {
		s.ClusterAuth = "keyFile"
	}
	if s.ClusterAuth != "" {
		a.members.SetMode(command.MemberModes[s.ClusterAuth])
		a.params.Store("clusterAuthMode", value.NewString(s.ClusterAuth))
		a.params.OnChange("clusterAuthMode", func(v value.Value) { a.members.SetMode(command.MemberModes[v.Str()]) })
	}
	return nil
}

// onStop registers a function that stops a part.
func (a *assembly) onStop(f func(ctx context.Context) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = append(a.down, f)
}

// quiesce returns the time for which running operations may continue when the process ends. If a whole cluster is in one
// process there is no other node that clients could use: it ends at once.
func (a *assembly) quiesce() time.Duration {
	asked := a.h.quiesce.Load()
	switch {
	case a.c.Program == isStart:
		return 0
	case asked >= 0:
		return time.Duration(asked)
	case a.c.Program == isMongos:
		return time.Duration(a.params.Int("mongosShutdownTimeoutMillisForSignaledShutdown")) * time.Millisecond
	default:
		return time.Duration(a.params.Int("shutdownTimeoutMillisForSignaledShutdown")) * time.Millisecond
	}
}

func (a *assembly) stop(ctx context.Context) error {
	a.mu.Lock()
	down := a.down
	a.mu.Unlock()
	var errs []error
	for i := len(down) - 1; i >= 0; i-- {
		errs = append(errs, down[i](ctx))
	}
	return errors.Join(errs...)
}

// fail stops what has been started already.
func (a *assembly) fail(err error) (*roles, error) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	_ = a.stop(ctx)
	return nil, err
}

// listen makes a service reachable at addresses, and to load balancers at those of balanced.
func (a *assembly) listen(s *command.Service, addrs []string, balanced ...string) ([]net.Addr, error) {
	log := a.h.log
	s.Audit = a.audit
	a.auditStart()
	front := &command.Front{Service: s, Compressors: a.c.Compressors}
	var srv *wire.Server
	var open atomic.Int64
	front.Connected = func(c *command.Client) { log.Accepted(addrOf(c.Remote), c.Via != "", c.ID, open.Add(1)) }
	front.Disconnected = func(c *command.Client) { log.Ended(addrOf(c.Remote), c.Via != "", c.ID, open.Add(-1)) }
	s.Hooks.Metadata = func(c *command.Client, compressors []string, doc []byte) {
		log.ClientMetadata(addrOf(c.Remote), c.ID, compressors, doc)
	}
	if s.Access != nil {
		s.Access.OnLogin = func(c *command.Client, user auth.UserName, mech string, err error) {
			var claims []byte
			if id := c.LoggedIn(); id != nil {
				claims = id.Claims
			}
			log.Authenticated(c.Remote, c.ID, user.User, user.DB, mech, claims, err)
		}
	}
	s.Hooks.Starting = func(op *command.Op) {
		if log.On(console.Command, 2) {
			log.Running(op.Client.ID, op.Client.Remote, op.Req.DB, command.Shown(command.WithoutSecrets(op.Req.Body)))
		}
	}
	s.Hooks.Panic = func(op *command.Op, what any, stack []byte) {
		a.h.log.Error(console.Command, 4757800, console.ConnCtx(op.Client.ID), "Command failed inside the server").
			Str("command", op.Req.Name).Str("error", fmt.Sprint(what)).Str("stack", string(stack)).Write()
	}
	srv, err := wire.Listen(wire.Options{
		Addrs: slices.Concat(addrs, balanced), Balanced: balanced, MaxConnections: a.c.MaxConns, Exempt: exemptAddrs(a.c.MaxConnsOverride), TLS: a.incoming(),
		Untrusted: a.untrustedLimits(), SocketMode: a.c.Unix.Mode, Refused: log.Refused,
		BadFrame: func(c *wire.Conn, err error) {
			var foreign *wire.ForeignError
			if errors.As(err, &foreign) {
				e := foreign.Err
				log.NotOurs(c.RemoteAddr(), c.ID(), int32(e.Code), e.Code.Name(), e.Message)
				return
			}
			a.h.log.Info(console.Network, 4615638, console.ConnCtx(c.ID()), "Connection ended: malformed message").Err(err).Write()
		},
	}, front)
	if err != nil {
		return nil, err
	}
	s.Status.SetNetwork(srv.Stats)
	if a.keyring != nil {
		s.Status.SetSecurity(a.keyring.fields)
	}
	limitConnections(a.params, srv)
	if a.peers != nil {
		s.Peers = a.peers.monitors
	}
	a.onStop(func(ctx context.Context) error {
		limit := stopTimeout
		if d, ok := ctx.Deadline(); ok {
			limit = time.Until(d)
		}
		s.Stop()
		srv.Stop(limit)
		return nil
	})
	return srv.Addrs()[:len(addrs)], nil
}

// untrustedLimits returns the limits of connections before authentication, if access control is enabled.
func (a *assembly) untrustedLimits() wire.UntrustedLimits {
	if !a.c.Security.enforced() {
		return wire.UntrustedLimits{}
	}
	size, _ := a.params.Lookup("preAuthMaximumMessageSizeBytes")
	return wire.UntrustedLimits{MaxMessage: func() int { return int(size.Int()) }}
}

// addrOf is a client's address as a net.Addr for the log.
type addrOf string

func (a addrOf) Network() string { return "tcp" }
func (a addrOf) String() string  { return string(a) }

// openData opens a data-bearing server of the process.
func (a *assembly) openData(cfg shardnode.Config) (*shardnode.Server, error) {
	cfg.Params, cfg.Info, cfg.Store.Stores, cfg.Store.Change = a.params, a.info, a.c.stores(), a.h.store
	cfg.Security = shardnode.Security{Enforced: a.c.Security.enforced(), Members: a.members, OneProcess: a.c.oneProcess(), Providers: a.providers, Audit: a.audit}
	cfg.OnPrimary = a.h.log.PrimaryReady
	component := func(write bool) console.Component {
		if write {
			return console.Write
		}
		return console.Command
	}
	cfg.Operations.Slow = func(conn int64, write bool, attrs []byte) { a.h.log.Slow(conn, component(write), attrs) }
	cfg.Operations.All = func(write bool) bool { return a.h.log.On(component(write), 1) }
	cfg.Invalid, cfg.Operations.BuildWaits = a.h.log.Invalid, a.h.log.BuildWaits
	cfg.Warn = func(msg string, err error) {
		a.h.log.Warning(console.Replication, 21413, "ReplCoord", msg).Err(err).Write()
	}
	cfg.Fatal = a.h.Fail
	repl := a.h.log.Zero(console.Replication, 21392, "ReplCoord").With().Str("member", cfg.Host).Logger()
	store := a.h.log.Zero(console.Storage, 22430, "store").With().Str("member", cfg.Host).Logger()
	cfg.Logger, cfg.Store.Logger = &repl, &store
	s, err := shardnode.Open(cfg)
	if err != nil {
		return nil, err
	}
	s.SetProfiling(a.c.SlowMS, a.c.SlowRate, a.c.Profile)
	if a.c.OplogMB > 0 {
		s.Engine.SetOplogSize(a.c.OplogMB << 20)
	}
	a.onStop(func(context.Context) error { return s.Close() })
	s.Service.Audit = a.audit
	a.startedWith(func(context.Context) ([][]byte, error) { return s.ClusterParameters(), nil })
	a.services = append(a.services, s.Service)
	return s, nil
}

// startServer makes one server: a data-bearing node (standalone, member of a set, shard, config server), or a router.
func startServer(c *config, h *host) (*roles, error) {
	a, err := newAssembly(c, h)
	if err != nil {
		return nil, err
	}
	if c.Program == isMongos {
		err = a.mongos()
	} else {
		err = a.mongod()
	}
	if err != nil {
		return a.fail(err)
	}
	return a.roles, nil
}

// mongod makes one data-bearing server. It becomes part of a cluster when its set has a primary (the config server's
// manager) or when it is added to a cluster (a shard).
func (a *assembly) mongod() error {
	c := a.c
	var clock *cluster.VectorClock
	if c.ReplSet != "" {
		clock = cluster.NewVectorClock(time.Now)
	}
	d := a.connect(clock)
	free, err := c.choosePort()
	if err != nil {
		return err
	}
	defer free()
	addrs := c.Addrs()
	repl := d.members(addrs, c.Memory)
	repl.FirstHost = c.firstHost(a.info.Host)
	s, err := a.openData(shardnode.Config{
		Dir: c.DBPath, Memory: c.Memory, SetName: c.ReplSet, Host: advertised(a.info.Host, c.Port), Config: c.ConfigSvr, Clock: clock,
		Repl: repl,
	})
	if err != nil {
		return err
	}
	switch {
	case c.ShardSvr:
		err = a.joinable(s, nil, d, clock)
	case clock != nil:
		err = s.KeepKeys()
	}
	if err == nil && c.ConfigSvr {
		err = errors.Join(a.manage(s, d, cluster.NewRegistry(s.OwnPeer(), clock, d.dial), clock), a.joinable(s, nil, d, clock))
	}
	if err != nil {
		return err
	}
	if a.roles.Addrs, err = a.listen(s.Service, addrs); err == nil {
		a.info.MayShutDown = s.Repl.MayShutDown
		// Another member has to take over, and clients have to find it, while this one can still be reached.
		a.onStop(func(ctx context.Context) error {
			until := time.Now().Add(a.quiesce())
			s.Repl.HandOver(ctx, until)
			if s.Repl.HasOthers() {
				s.Service.Drain(until)
			}
			return nil
		})
	}
	return err
}

// manage runs the sharding catalog on a member of the config server's set, as long as it is primary.
func (a *assembly) manage(s *shardnode.Server, d *directory, registry *cluster.Registry, clock *cluster.VectorClock) error {
	manager := configsvr.New(s.OwnPeer(), registry, clock, s.Repl.ConnString)
	manager.Params, manager.Points = s.Node.Params, s.Node.Points
	manager.OnRefusal(a.h.log.RefusedSetting)
	manager.Register(s.Service)
	s.CoordinateSettings(manager.Coordinate)
	s.KeepSessionsIn(manager.Sessions(s.Base.Sessions.Timeout(), s.RefreshOnPrimary))
	clock.FromConfigServer(s.MajorityTime)
	d.monitors.OnMove(manager.SetMoved)
	err := s.Node.Services.Add(replication.Service{
		Name: "ShardMembership",
		Run:  func(ctx context.Context, _ int64) { manager.RunMembership(ctx) },
	})
	if err != nil {
		return err
	}
	err = s.Node.Services.Add(replication.Service{
		Name: "ClusterSettings",
		Run:  func(ctx context.Context, _ int64) { manager.RunSettings(ctx) },
	})
	if err != nil {
		return err
	}
	err = s.Node.Services.Add(replication.Service{
		Name: "ReshardingCoordinatorService", Vital: true, StepUp: manager.LoadReshardings,
		Run: func(ctx context.Context, _ int64) { manager.RunReshardings(ctx) },
	})
	if err != nil {
		return err
	}
	err = s.Node.Services.Add(replication.Service{
		Name: "ConfigsvrCoordinatorService", Vital: true, StepUp: manager.LoadCoordinators,
		Run: func(ctx context.Context, _ int64) { manager.RunCoordinators(ctx) },
	})
	if err != nil {
		return err
	}
	return s.Node.Services.Add(a.catalogService(manager, registry))
}

// catalogService keeps the sharding catalog, and balances, while the node is the config server's primary.
func (a *assembly) catalogService(manager *configsvr.Manager, registry *cluster.Registry) replication.Service {
	var unready error
	return replication.Service{
		Name: "ShardingCatalogManager", Vital: true,
		StepUp: func(ctx context.Context, _ int64) (err error) {
			if unready, err = manager.StepUp(storage.WithReserve(ctx)); unready != nil {
				a.h.log.Warning(console.Sharding, 9990022, "ShardingCatalogManager", "The sharding catalog is not initialized yet, sleeping and retrying").Err(unready).Write()
			}
			return err
		},
		Run: func(ctx context.Context, _ int64) {
			if manager.Initialize(storage.WithReserve(ctx), unready) != nil {
				return
			}
			var follower sync.WaitGroup
			follower.Go(func() { registry.Follow(ctx) })
			follower.Go(func() { manager.RunAutoMerger(ctx) })
			follower.Go(func() { manager.RunDefragmenter(ctx) })
			follower.Go(func() { manager.RunHistoryCleaner(ctx) })
			manager.RunBalancer(ctx)
			follower.Wait()
		},
	}
}

// mongos makes one router over the config server named by --configdb.
func (a *assembly) mongos() error {
	clock := cluster.NewVectorClock(time.Now)
	d := a.connect(clock)
	config, err := d.dialConfig(a.c.ConfigDB, clock, false)
	if err != nil {
		return err
	}
	// Like the real router, this one waits for the config server before it accepts clients.
	keys := cluster.NewKeyRing(cluster.PeerKeys{Peer: config})
	life, end := a.h.context()
	defer end()
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		ctx, cancel := context.WithTimeout(life, 10*time.Second)
		err := keys.Load(ctx)
		cancel()
		if err == nil {
			break
		}
		if !a.h.ending() {
			a.h.log.Warning(console.Sharding, 23834, "mongosMain", "Error initializing sharding state, sleeping and retrying").Err(err).Write()
		}
		select {
		case <-time.After(wait):
		case <-life.Done():
			return mongoerr.New(mongoerr.ShutdownInProgress, "shut down before the config server answered")
		}
	}
	clock.UseKeys(keys)
	a.background(func(ctx context.Context) { keys.Follow(ctx, clock) })
	a.roles.Addrs, err = a.router(config, d, clock, a.c.Addrs())
	return err
}

func advertised(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// startCluster makes the topology that `shoal start` asks for, from the same parts.
func startCluster(c *config, h *host) (*roles, error) {
	a, err := newAssembly(c, h)
	if err != nil {
		return nil, err
	}
	switch c.Topology {
	case "standalone", "replset":
		err = a.single(c.Topology == "replset")
	default:
		err = a.sharded()
	}
	if err != nil {
		return a.fail(err)
	}
	return a.roles, nil
}

// single makes a standalone server, or a replica set named rs0.
func (a *assembly) single(replset bool) error {
	if replset {
		return a.replset("rs0")
	}
	addr, free, err := reserve(a.c.Listen[0])
	if err != nil {
		return err
	}
	defer free()
	s, err := a.openData(shardnode.Config{Dir: filepath.Join(a.c.DBPath, "node"), Memory: a.c.Memory, Host: a.public(addr)})
	if err != nil {
		return err
	}
	if a.roles.Addrs, err = a.listen(s.Service, append([]string{addr}, a.c.Listen[1:]...)); err != nil {
		return err
	}
	a.roles.What, a.roles.URI = "Standalone server", "mongodb://"+a.public(a.roles.Addrs[0].String())+"/"
	return nil
}

// replset makes a replica set without sharding. Its members listen on consecutive ports, beginning with the given one.
func (a *assembly) replset(name string) error {
	clock := cluster.NewVectorClock(time.Now)
	d := a.connect(clock)
	set := memberSet{name: name, dir: "node"}
	var held []func()
	defer func() {
		for _, free := range held {
			free()
		}
	}()
	for i := 0; i < a.c.Replicas || a.hasMember(&set, i); i++ {
		m := memberPlace{}
		for _, l := range a.c.Listen {
			addr, err := portAfter(l, i)
			var free func()
			if err == nil {
				addr, free, err = reserve(addr)
			}
			if err != nil {
				return err
			}
			held = append(held, free)
			m.listen = append(m.listen, addr)
		}
		m.host = a.public(m.listen[0])
		set.places = append(set.places, m)
	}
	ctx, end := a.h.context()
	defer end()
	servers, err := a.openSet(ctx, &set, d, clock, openedAsIs)
	if err != nil {
		return err
	}
	var hosts []string
	for i, s := range servers {
		if err := s.KeepKeys(); err != nil {
			return err
		}
		bound := set.places[i].bound
		a.roles.Addrs = append(a.roles.Addrs, bound...)
		hosts = append(hosts, set.places[i].host)
	}
	a.roles.What = fmt.Sprintf("Replica set %s: %d member(s)", name, len(servers))
	a.roles.URI = "mongodb://" + strings.Join(hosts, ",") + "/?replicaSet=" + name
	return nil
}
