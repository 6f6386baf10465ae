package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// assembly is a process being put together: what its roles share, and how each is taken down, last first.
type assembly struct {
	c      *config
	h      *host
	params *cluster.Params
	points *cluster.FailPoints
	info   *command.Info
	roles  *roles
	down   []func(ctx context.Context) error
}

func newAssembly(c *config, h *host) (*assembly, error) {
	a := &assembly{c: c, h: h, params: cluster.NewParams(), points: cluster.NewFailPoints(), roles: &roles{}}
	for _, p := range c.Parameters {
		if err := a.params.SetStartup(p.Name, p.Value); err != nil {
			return nil, err
		}
	}
	hostname, _ := os.Hostname()
	a.info = &command.Info{
		Host: hostname, Argv: c.Argv, Options: c.Parsed, Shutdown: h.Shutdown, RotateLog: h.RotateLog,
		Log: func(name string) ([]string, int64, bool) {
			total, lines, ok := console.Std.Ring(name)
			return lines, int64(total), ok
		},
		LogNames: []string{"global", "startupWarnings"},
	}
	a.roles.Stop = a.stop
	return a, nil
}

func (a *assembly) stop(ctx context.Context) error {
	var errs []error
	for i := len(a.down) - 1; i >= 0; i-- {
		errs = append(errs, a.down[i](ctx))
	}
	return errors.Join(errs...)
}

// fail takes down what already stands.
func (a *assembly) fail(err error) (*roles, error) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	_ = a.stop(ctx)
	return nil, err
}

// listen makes a service reachable at addresses.
func (a *assembly) listen(s *command.Service, addrs []string) ([]net.Addr, error) {
	log := console.Std
	front := &command.Front{Service: s}
	var srv *wire.Server
	front.Connected = func(c *command.Client) {
		log.Accepted(addrOf(c.Remote), c.ID, 0)
	}
	front.Disconnected = func(c *command.Client) { log.Ended(addrOf(c.Remote), c.ID, 0) }
	s.Hooks.Panic = func(op *command.Op, what any, stack []byte) {
		console.Error(console.Command, 4757800, console.ConnCtx(op.Client.ID), "Command failed inside the server").
			Str("command", op.Req.Name).Str("error", fmt.Sprint(what)).Str("stack", string(stack)).Write()
	}
	srv, err := wire.Listen(wire.Options{
		Addrs: addrs, MaxConnections: a.c.MaxConns,
		BadFrame: func(c *wire.Conn, err error) {
			console.Info(console.Network, 4615638, console.ConnCtx(c.ID()), "Connection ended: malformed message").Err(err).Write()
		},
	}, front)
	if err != nil {
		return nil, err
	}
	a.down = append(a.down, func(ctx context.Context) error {
		limit := stopTimeout
		if d, ok := ctx.Deadline(); ok {
			limit = time.Until(d)
		}
		s.Stop()
		srv.Stop(limit)
		return nil
	})
	return srv.Addrs(), nil
}

// addrOf is a client's address as the log wants it.
type addrOf string

func (a addrOf) Network() string { return "tcp" }
func (a addrOf) String() string  { return string(a) }

// openData opens a data-bearing server of the process.
func (a *assembly) openData(cfg shardnode.Config) (*shardnode.Server, error) {
	cfg.Params, cfg.Points, cfg.Info = a.params, a.points, a.info
	cfg.OnPrimary = console.Std.PrimaryReady
	s, err := shardnode.Open(cfg)
	if err != nil {
		return nil, err
	}
	a.down = append(a.down, func(context.Context) error { return s.Close() })
	return s, nil
}

// startServer makes one server: a data-bearing node (standalone, member of a set, shard, config server), or a router.
func startServer(c *config, h *host) (*roles, error) {
	if c.Program == isMongos {
		return nil, mongoerr.New(mongoerr.NotImplemented, "mongos")
	}
	a, err := newAssembly(c, h)
	if err != nil {
		return nil, err
	}
	addrs := c.Addrs()
	s, err := a.openData(shardnode.Config{
		Dir: c.DBPath, Memory: c.Memory, SetName: c.ReplSet, Host: advertised(a.info.Host, c.Port), Config: c.ConfigSvr,
	})
	if err != nil {
		return a.fail(err)
	}
	if err := a.signTimes(s); err != nil {
		return a.fail(err)
	}
	if a.roles.Addrs, err = a.listen(s.Service, addrs); err != nil {
		return a.fail(err)
	}
	return a.roles, nil
}

// signTimes makes a member of a set sign its cluster times with keys of its own.
func (a *assembly) signTimes(s *shardnode.Server) error {
	if s.Clock == nil || !s.Repl.Initiated() {
		return nil
	}
	return s.UseKeys(context.Background(), cluster.PeerKeys{Peer: s.Peer()}, true)
}

func advertised(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// startCluster makes what `shoal start` asks for, of the same parts.
func startCluster(c *config, h *host) (*roles, error) {
	a, err := newAssembly(c, h)
	if err != nil {
		return nil, err
	}
	if c.Replicas > 1 {
		return nil, mongoerr.Newf(mongoerr.NotImplemented, "--replicas %d: replica sets of several members", c.Replicas)
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

// single is a lone server, or a replica set of one member named rs0.
func (a *assembly) single(replset bool) error {
	cfg := shardnode.Config{Dir: filepath.Join(a.c.DBPath, "node"), Memory: a.c.Memory, Host: a.c.Listen[0]}
	uri := "mongodb://" + a.c.Listen[0] + "/"
	if replset {
		cfg.SetName = "rs0"
		uri += "?replicaSet=rs0"
	}
	s, err := a.openData(cfg)
	if err != nil {
		return err
	}
	if replset {
		if err := s.Initiate(context.Background()); err != nil {
			return err
		}
		if err := a.signTimes(s); err != nil {
			return err
		}
	}
	if a.roles.Addrs, err = a.listen(s.Service, a.c.Listen); err != nil {
		return err
	}
	a.roles.Describe = []string{"Connection string: " + uri}
	return nil
}
