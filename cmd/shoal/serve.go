package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/query/js"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// stopTimeout bounds an orderly end (parameter shutdownTimeoutMillisForSignaledShutdown: 15 s).
const stopTimeout = 15 * time.Second

// host is what the roles may ask of the process they run in.
type host struct {
	once     sync.Once
	shutdown chan struct{}
	program  program
	fatal    sync.Once
}

// Shutdown begins an orderly end of the process; it returns at once.
func (h *host) Shutdown() { h.once.Do(func() { close(h.shutdown) }) }

// Fail ends the process at once, because a store can be written or trusted no more: what is acknowledged is on disk, and
// what cannot be written cannot be ended in order.
func (h *host) Fail(err error) {
	h.fatal.Do(func() {
		abort(h.program.logCtx(), err)
		os.Exit(exitAbrupt)
	})
}

// RotateLog starts a new log file.
func (h *host) RotateLog() error { return console.Std.Rotate() }

// roles is a started server or cluster.
type roles struct {
	Addrs    []net.Addr                      // what clients connect to, in the order asked for
	Describe []string                        // lines for the people who typed `shoal start`
	Stop     func(ctx context.Context) error // ends everything in order; past ctx it cuts off what still runs
}

// logCtx is the ctx of the program's own lines.
func (p program) logCtx() string {
	if p == isMongos {
		return "mongosMain"
	}
	return "initandlisten"
}

// serve runs a server or cluster until a signal or a shutdown command ends it.
func serve(c *config, out, errOut io.Writer, start starter) int {
	_, statErr := os.Stat(c.Log.Path)
	if err := configureLog(c); err != nil {
		fmt.Fprintf(errOut, "Failed global initialization: FileNotOpen: Failed to open %s: %v\n", c.Log.Path, err)
		return exitError
	}
	stderrToLog(c.Log.Path)
	if c.Log.Append && c.Log.Path != "" && statErr == nil {
		console.Std.Restarted()
	}
	logStart(c)
	startupWarnings(c, os.Geteuid())
	h := &host{shutdown: make(chan struct{}), program: c.Program}
	signals := catchSignals()
	defer signal.Stop(signals)

	r, release, code := bringUp(c, h, start)
	if r == nil {
		console.Std.Exiting(c.Program.logCtx(), code)
		return code
	}
	defer release()
	announce(c, r, out)
	waitForEnd(h, signals)

	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := r.Stop(ctx); err != nil {
		console.Error(console.Control, 20575, c.Program.logCtx(), "Error shutting down").Err(err).Write()
		code = exitError
	}
	console.Std.Exiting(c.Program.logCtx(), code)
	return code
}

// startupWarnings logs what mongosh shows whoever connects.
func startupWarnings(c *config, euid int) {
	warn := func(id int32, msg string) {
		console.Warning(console.Control, id, c.Program.logCtx(), msg).StartupWarning().Write()
	}
	if !c.Auth && c.KeyFile == "" {
		warn(22120, "Access control is not enabled for the database. Read and write access to data and configuration is unrestricted")
	}
	if euid == 0 {
		warn(22138, "You are running this process as the root user, which is not recommended")
	}
}

func configureLog(c *config) error {
	c.Log.Service = "-"
	switch {
	case c.Program == isMongos:
		c.Log.Service = "R"
	case c.ShardSvr || c.ConfigSvr:
		c.Log.Service = "S"
	}
	return console.Std.Configure(c.Log)
}

// configureScripts is --noscripting; the parameter shows it.
func configureScripts(c *config, params *cluster.Params) {
	if c.NoScripts {
		params.Store("javascriptEnabled", value.NewBool(false))
		js.Disable()
	}
}

func logStart(c *config) {
	ctx := c.Program.logCtx()
	hostname, _ := os.Hostname()
	if c.Program != isMongos {
		console.Std.Starting(os.Getpid(), c.Port, c.DBPath, hostname)
	}
	console.Std.Build(ctx, command.Version, command.GitVersion)
	console.Std.OS(ctx, osName(), osVersion())
	console.Std.OptionsSet(ctx, c.Parsed)
}

// bringUp takes what a server must have to itself (ports, directory, pid file) and starts the roles. When that fails the
// roles are nil and code says why; release gives everything back.
func bringUp(c *config, h *host, start starter) (r *roles, release func(), code int) {
	ctx := c.Program.logCtx()
	if err := probePorts(c); err != nil {
		console.Std.ListenFailed(ctx, err)
		return nil, nil, exitNetError
	}
	lock, err := lockData(c)
	if err == nil {
		if err = writePID(c.PIDFile); err != nil {
			lock.release()
		}
	}
	if err != nil {
		return nil, nil, startFailed(ctx, err)
	}
	release = func() {
		removePID(c.PIDFile)
		lock.release()
	}
	r, err = start(c, h)
	if err != nil {
		release()
		if errors.Is(err, wire.ErrAddressInUse) {
			console.Std.ListenFailed(ctx, err)
			return nil, nil, exitNetError
		}
		return nil, nil, startFailed(ctx, err)
	}
	return r, release, exitClean
}

// abort says why a process ends at once.
func abort(ctx string, err error) {
	console.Fatal(console.Storage, 28595, ctx, "Terminating.").Str("reason", err.Error()).Write()
	console.Fatal(console.Default, 23092, ctx, "\n\n***aborting after fassert() failure\n\n").Write()
}

// startFailed says why the roles did not start, and gives the exit code for that.
func startFailed(ctx string, err error) int {
	if mongoerr.CodeOf(err) == mongoerr.DataCorruptionDetected {
		abort(ctx, err)
		return exitAbrupt
	}
	console.Error(console.Control, 20557, ctx, "DBException in initAndListen, terminating").Err(err).Write()
	return exitUncaught
}

// probePorts finds a taken port before anything is opened. The roles bind for good, and may still find it taken.
func probePorts(c *config) error {
	addrs := c.Listen
	if c.Program != isStart {
		addrs = c.Addrs()
	}
	for _, a := range addrs {
		if strings.HasPrefix(a, "/") {
			continue // a socket file left behind is replaced
		}
		l, err := net.Listen("tcp", a)
		if err != nil {
			return err
		}
		_ = l.Close()
	}
	return nil
}

// announce writes the line that launchers wait for, once, and tells a waiting parent.
func announce(c *config, r *roles, out io.Writer) {
	port := c.Port
	for _, a := range r.Addrs {
		if t, ok := a.(*net.TCPAddr); ok {
			port = t.Port
			break
		}
	}
	for _, a := range r.Addrs {
		console.Info(console.Network, 23015, "listener", "Listening on").Str("address", a.String()).Write()
	}
	ctx := "listener"
	if c.Program == isMongos {
		ctx = "mongosMain"
	}
	for _, line := range r.Describe {
		fmt.Fprintln(out, line)
	}
	console.Std.Waiting(ctx, port)
	tellParent()
}

func catchSignals() chan os.Signal {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1)
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	return ch
}

// waitForEnd returns when the process is to end. A second signal while it ends kills it at once.
func waitForEnd(h *host, signals chan os.Signal) {
	for {
		select {
		case <-h.shutdown:
			return
		case s := <-signals:
			sig, _ := s.(syscall.Signal)
			if sig == syscall.SIGUSR1 {
				if err := h.RotateLog(); err != nil {
					console.Error(console.Control, 23168, "SignalHandler", "Log rotation failed").Err(err).Write()
				}
				continue
			}
			console.Std.Signal(s.String(), int(sig))
			go func() {
				for s := range signals {
					if s != syscall.SIGUSR1 {
						os.Exit(exitError)
					}
				}
			}()
			return
		}
	}
}

func osName() string    { return osRelease("PRETTY_NAME", "Linux") }
func osVersion() string { return osRelease("VERSION_ID", "") }

// osRelease reads a field of the system's own description.
func osRelease(field, otherwise string) string {
	raw, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return otherwise
	}
	for _, line := range strings.Split(string(raw), "\n") {
		if v, ok := strings.CutPrefix(line, field+"="); ok {
			if u, err := strconv.Unquote(v); err == nil {
				return u
			}
			return v
		}
	}
	return otherwise
}
