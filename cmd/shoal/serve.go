package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/console"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// stopTimeout limits an orderly shutdown, from when operations may no longer continue.
const stopTimeout = 15 * time.Second

// host has what the process provides to its roles.
type host struct {
	once     sync.Once
	shutdown chan struct{}
	quiesce  atomic.Int64 // the time for which running operations may continue, in nanoseconds; negative: that of the server parameter
	program  program
	fatal    sync.Once
	auditLog atomic.Pointer[console.AuditLog] // nil without one
	log      *console.Log                     // of all nodes in the process
	store    func(o *storage.Options)         // changes the options of nodes' stores; nil but in tests
}

// newHost returns a host for a program.
func newHost(p program) *host {
	h := &host{shutdown: make(chan struct{}), program: p, log: console.Std}
	h.quiesce.Store(-1)
	return h
}

// Shutdown begins an orderly shutdown after a signal; it returns at once.
func (h *host) Shutdown() { h.once.Do(func() { close(h.shutdown) }) }

// ShutdownAfter is Shutdown by a command, with the time for which running operations may continue.
func (h *host) ShutdownAfter(quiesce time.Duration) {
	h.quiesce.Store(int64(quiesce))
	h.Shutdown()
}

// Fail ends the process at once, because a store can no longer be written or trusted: what is acknowledged is on disk,
// and an orderly shutdown is not possible.
func (h *host) Fail(err error) {
	h.fatal.Do(func() {
		abort(h.program.logCtx(), err)
		os.Exit(exitAbrupt)
	})
}

// ending reports whether an orderly shutdown has begun.
func (h *host) ending() bool {
	select {
	case <-h.shutdown:
		return true
	default:
		return false
	}
}

// context returns a context that ends when an orderly shutdown begins, for waits during startup.
func (h *host) context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-h.shutdown:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// RotateLog starts a new file of a log: "server", "audit", or both for an empty name.
func (h *host) RotateLog(name string) error {
	var errs []error
	if name != "audit" {
		errs = append(errs, h.log.Rotate())
	}
	if name != "server" {
		errs = append(errs, h.rotateAudit())
	}
	return errors.Join(errs...)
}

// roles is a started server or cluster.
type roles struct {
	Addrs []net.Addr                      // the addresses that clients connect to, in the order given
	What  string                          // a description of what runs, for users of `shoal start`
	URI   string                          // the connection string for it
	Stop  func(ctx context.Context) error // stops everything in order; when ctx ends it interrupts what still runs
	// Quiesce returns the time for which running operations may continue if clients can use other processes; nil for none.
	Quiesce func() time.Duration
}

// logCtx returns the ctx of the program's own lines.
func (p program) logCtx() string {
	if p == isMongos {
		return "mongosMain"
	}
	return "initandlisten"
}

// serve runs a server or cluster until a signal or a shutdown command ends it.
func serve(c *config, out, errOut io.Writer, start starter) int {
	// On a terminal the user wants to know what runs and how to connect; the log is written if a format or a file is given.
	c.Log.Brief = c.Program == isStart && !c.has("systemLog.format") && onTerminal(out)
	c.maskFiles()
	_, statErr := os.Stat(c.Log.Path)
	if err := configureLog(c); err != nil {
		fmt.Fprintf(errOut, "Failed global initialization: FileNotOpen: Failed to open %s: %v\n", c.Log.Path, err)
		return exitError
	}
	stderrToLog(c.Log.Path)
	if c.Log.Append && c.Log.Path != "" && statErr == nil {
		console.Std.Restarted()
	}
	defer boundMalloc()()
	paceCollections()
	h := newHost(c.Program)
	signals := catchSignals()
	defer signal.Stop(signals)
	go h.obey(signals)
	logStart(c)
	startupWarnings(c, os.Geteuid())
	if c.Repair {
		code := repairData(c, h)
		console.Std.Exiting(c.Program.logCtx(), code)
		return code
	}

	r, release, code := bringUp(c, h, start)
	if r == nil {
		console.Std.Exiting(c.Program.logCtx(), code)
		return code
	}
	defer release()
	announce(c, r, out)
	<-h.shutdown

	limit := stopTimeout
	if r.Quiesce != nil {
		limit += r.Quiesce()
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := r.Stop(ctx); err != nil {
		console.Error(console.Control, 20575, c.Program.logCtx(), "Error shutting down").Err(err).Write()
		code = exitError
	}
	console.Std.Exiting(c.Program.logCtx(), code)
	return code
}

// startupWarnings logs the warnings that mongosh shows on connecting.
func startupWarnings(c *config, euid int) {
	warn := func(id int32, msg string) {
		console.Warning(console.Control, id, c.Program.logCtx(), msg).StartupWarning().Write()
	}
	if !c.Security.enforced() {
		warn(22120, "Access control is not enabled for the database. Read and write access to data and configuration is unrestricted")
	}
	if euid == 0 {
		warn(22138, "You are running this process as the root user, which is not recommended")
	}
	if option := c.listensByDefault(); option != "" {
		here := "127.0.0.1"
		if c.Program == isStart {
			here = net.JoinHostPort(here, strconv.Itoa(c.Port))
		}
		warn(22140, "This server is bound to localhost. Remote systems will be unable to connect to this server. Start the server with "+option+
			". If this behavior is desired, start the server with "+strings.Fields(option)[0]+" "+here+" to disable this warning")
	}
}

// listensByDefault returns the options that set where the server listens, if none of them is given, so that it listens on the loopback address
// alone; otherwise "".
func (c *config) listensByDefault() string {
	switch {
	case c.has("net.bindIp"), c.has("net.bindIpAll"), c.has("net.listen"):
		return ""
	case c.Program == isStart:
		return "--listen <address:port> to specify where it should serve responses from"
	}
	return "--bind_ip <address> to specify which IP addresses it should serve responses from, or with --bind_ip_all to bind to all interfaces"
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

// configureScripts implements --noscripting, which sets the parameter.
func configureScripts(c *config, params *cluster.Params) {
	if c.NoScripts {
		params.Store("javascriptEnabled", value.NewBool(false))
	}
}

func logStart(c *config) {
	ctx := c.Program.logCtx()
	hostname, _ := os.Hostname()
	if c.Program != isMongos {
		console.Std.Starting(os.Getpid(), c.firstPort(), c.DBPath, hostname)
	}
	console.Std.Build(ctx, command.ThisBuild().Info())
	console.Std.OS(ctx, osName(), osVersion())
	console.Std.OptionsSet(ctx, c.Parsed)
}

// bringUp acquires what a server needs exclusively (ports, directory, pid file) and starts the roles. If that fails, the
// roles are nil and code is the exit code; release releases everything.
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
		if h.ending() {
			return nil, nil, exitClean // ended by a signal; the roles had no clients yet
		}
		if errors.Is(err, wire.ErrAddressInUse) {
			console.Std.ListenFailed(ctx, err)
			return nil, nil, exitNetError
		}
		return nil, nil, startFailed(ctx, err)
	}
	return r, release, exitClean
}

// abort logs why a process ends at once.
func abort(ctx string, err error) {
	console.Fatal(console.Storage, 28595, ctx, "Terminating.").Str("reason", err.Error()).Write()
	console.Fatal(console.Default, 23092, ctx, "\n\n***aborting after fassert() failure\n\n").Write()
}

// startFailed logs why the roles did not start, and returns the exit code for that.
func startFailed(ctx string, err error) int {
	if mongoerr.CodeOf(err) == mongoerr.DataCorruptionDetected {
		abort(ctx, err)
		return exitAbrupt
	}
	code := exitUncaught
	if mongoerr.CodeOf(err) == mongoerr.MustUpgrade {
		code = exitNewerData
	}
	console.Error(console.Control, 20557, ctx, "DBException in initAndListen, terminating").Err(err).Write()
	return code
}

// probePorts detects a port in use before anything is opened. The roles bind the ports later, and may still fail.
func probePorts(c *config) error {
	addrs := c.Listen
	if c.Program != isStart {
		addrs = c.Addrs()
	}
	for _, a := range addrs {
		if strings.HasPrefix(a, "/") {
			continue // a socket file left behind is replaced
		}
		_, free, err := bindPort(a)
		if err != nil {
			return err
		}
		free()
	}
	return nil
}

// announce writes the line that launchers wait for, once, and notifies a waiting parent.
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
	describe(c, r, out)
	console.Std.Waiting(ctx, port, c.TLS.Mode != tlsDisabled)
	notifyParent()
}

// describe tells the user of `shoal start` what runs and where.
func describe(c *config, r *roles, out io.Writer) {
	if r.URI == "" {
		return
	}
	fmt.Fprintln(out, r.What)
	if !c.Log.Brief {
		fmt.Fprintln(out, "Connection string: "+r.URI)
		return
	}
	data := "in memory, nothing on disk"
	if !c.Memory {
		data = c.DBPath
		if abs, err := filepath.Abs(data); err == nil {
			data = abs
		}
	}
	fmt.Fprintf(out, "Data: %s\n", data)
	if c.Log.Path != "" {
		fmt.Fprintf(out, "Log: %s\n", c.Log.Path)
	}
	uri := r.URI
	if strings.ContainsAny(uri, "?&") {
		uri = "'" + uri + "'" // quoted for the shell
	}
	fmt.Fprintf(out, "Connect with: mongosh %s\nCtrl-C stops it.\n", uri)
}

// onTerminal reports whether w is a terminal.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

func catchSignals() chan os.Signal {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1)
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	return ch
}

// obey handles signals, from before the roles start until the process ends. A second signal does not shorten a
// shutdown: it is limited by stopTimeout, and the files that it removes last must not be left behind.
func (h *host) obey(signals <-chan os.Signal) {
	for s := range signals {
		sig, _ := s.(syscall.Signal)
		if sig == syscall.SIGUSR1 {
			if err := h.RotateLog(""); err != nil {
				console.Error(console.Control, 23168, "SignalHandler", "Log rotation failed").Err(err).Write()
			}
			continue
		}
		console.Std.Signal(s.String(), int(sig))
		if log := h.auditLog.Load(); log != nil {
			log.Record(command.SystemEvent("shutdown"))
		}
		h.Shutdown()
	}
}

func osName() string    { return osRelease("PRETTY_NAME", "Linux") }
func osVersion() string { return osRelease("VERSION_ID", "") }

// osRelease reads a field of /etc/os-release.
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
