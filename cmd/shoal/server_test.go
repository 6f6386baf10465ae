package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// server is one process, running or not: a server of a set, of a cluster or by itself, or `shoal start`. All helpers that start processes and
// need no output of theirs start one.
type server struct {
	t      testing.TB
	name   string   // of its log and data
	dir    string   // where they are
	net    *network // nil if others reach it directly
	id     int      // its number in the network
	port   int
	proxy  string // its address in the network
	as     string // what the test binary is to behave as (asWhole)
	args   []string
	cmd    *exec.Cmd
	ended  chan struct{}
	direct *mongo.Client // a direct client, bypassing the network
}

// testCommands is the option by which servers have fail points.
var testCommands = []string{"--setParameter", "enableTestCommands=1"}

// unstarted finds a port for a server, whose arguments the caller sets, and ends the server with the test. Others reach it through n, or
// directly if n is nil.
func unstarted(t testing.TB, n *network, name string) *server {
	t.Helper()
	s := &server{t: t, name: name, dir: t.TempDir(), net: n, port: freePorts(t, 1), as: asWhole}
	if n != nil {
		s.id = n.join()
		s.proxy = n.serve(t, s.id, s.port)
	}
	t.Cleanup(s.stop)
	return s
}

// newServer is unstarted for a mongod or mongos with these arguments, and makes its direct client.
func newServer(t testing.TB, n *network, name string, args ...string) *server {
	t.Helper()
	s := unstarted(t, n, name)
	s.args = append(args, "--bind_ip", "127.0.0.1", "--port", strconv.Itoa(s.port))
	s.direct = connect(t, fmt.Sprintf("mongodb://%s/?directConnection=true%s", s.listensAt(), encryption(args)))
	return s
}

// loneServer is a server outside of any network.
func loneServer(t testing.TB, args ...string) *server {
	t.Helper()
	return newServer(t, nil, "server", args...)
}

// at is the address at which other servers and applications reach it.
func (s *server) at() string {
	if s.proxy != "" {
		return s.proxy
	}
	return s.listensAt()
}

func (s *server) listensAt() string { return "127.0.0.1:" + strconv.Itoa(s.port) }
func (s *server) dbpath() string    { return filepath.Join(s.dir, s.name) }
func (s *server) logFile() string   { return filepath.Join(s.dir, s.name+".log") }
func (s *server) running() bool     { return s.cmd != nil }

// start starts the server and waits until it listens.
func (s *server) start() {
	s.t.Helper()
	if err := s.tryStart(); err != nil {
		s.t.Fatalf("%s: %v", s.name, err)
	}
}

// tryStart is start for a server that may refuse to start.
func (s *server) tryStart() error {
	if err := s.begin(); err != nil {
		return err
	}
	return s.untilItListens()
}

// listens waits until a server that was launched takes connections.
func (s *server) listens() {
	s.t.Helper()
	if err := s.untilItListens(); err != nil {
		s.t.Fatalf("%s: %v", s.name, err)
	}
}

func (s *server) untilItListens() error {
	for began := time.Now(); time.Since(began) < time.Minute; {
		if c, err := net.Dial("tcp", s.listensAt()); err == nil {
			_ = c.Close()
			return nil
		}
		select {
		case <-s.ended:
			return fmt.Errorf("%v ended before it listened: %v", s.args, s.cmd.ProcessState)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return fmt.Errorf("%v does not listen", s.args)
}

// launch starts the server without waiting for it, by another command than its own if as makes one.
func (s *server) launch(as ...func(name string, args []string) *exec.Cmd) {
	s.t.Helper()
	if err := s.begin(as...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) begin(as ...func(name string, args []string) *exec.Cmd) error {
	if err := os.MkdirAll(s.dbpath(), 0o700); err != nil {
		return err
	}
	cmd := exec.Command(os.Args[0], s.args...)
	for _, f := range as {
		cmd = f(os.Args[0], s.args)
	}
	cmd.Env = append(os.Environ(), asShoal+"="+s.as)
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	reaped, err := s.spawn(cmd)
	if err != nil {
		return err
	}
	s.cmd, s.ended = cmd, make(chan struct{})
	go func(ended chan struct{}) {
		_ = cmd.Wait()
		reaped()
		_ = log.Close()
		close(ended)
	}(s.ended)
	return nil
}

// spawn starts the server's process. The network knows it before it looks where a connection comes from: one of a process that it does not know is a client's, which no cut
// concerns.
func (s *server) spawn(cmd *exec.Cmd) (reaped func(), err error) {
	if s.net == nil {
		return reaps(cmd)
	}
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	if reaped, err = reaps(cmd); err == nil {
		s.net.pids[s.id] = cmd.Process.Pid
	}
	return reaped, err
}

// isProcess sets the process of the server in the network, 0 for none.
func (s *server) isProcess(pid int) {
	if s.net != nil {
		s.net.setPID(s.id, pid)
	}
}

func (s *server) signal(sig syscall.Signal) { _ = s.cmd.Process.Signal(sig) }

// end ends the server by a signal and waits for its end.
func (s *server) end(sig syscall.Signal) {
	if s.cmd == nil {
		return
	}
	s.signal(sig)
	if sig != syscall.SIGKILL {
		s.signal(syscall.SIGCONT)
	}
	<-s.ended
	s.cmd = nil
	s.isProcess(0)
}

func (s *server) admin(ctx context.Context, cmd bson.D) error {
	return s.direct.Database("admin").RunCommand(ctx, cmd).Err()
}

// hello returns the server's reply to hello, nil if there is none.
func (s *server) hello() bson.M {
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	var r bson.M
	if !s.running() || s.direct.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&r) != nil {
		return nil
	}
	return r
}

func (s *server) resume() { s.signal(syscall.SIGCONT) }

// kill ends the process without warning; with it goes the power of a disk that is volatile.
func (s *server) kill() {
	if s.as == asVolatile {
		s.end(cutPower)
		return
	}
	s.end(syscall.SIGKILL)
}

// pause freezes the process, and returns when all of its threads have stopped: on a busy machine the signal takes effect late, and the process may still answer what is sent next.
func (s *server) pause() {
	s.signal(syscall.SIGSTOP)
	awaitStopped(s.cmd.Process.Pid)
}

func (s *server) log() []byte {
	raw, _ := os.ReadFile(s.logFile())
	return raw
}

func (s *server) logHas(text string, times int) bool {
	return strings.Count(string(s.log()), text) >= times
}

// stop ends the server for good. It fails the test if a command ended in a panic, and keeps the log if the test has failed.
func (s *server) stop() {
	s.kill()
	raw := s.log()
	if n := bytes.Count(raw, []byte(`"id":4757800`)); n > 0 {
		s.t.Errorf("%s %v: %d commands ended in a panic", s.name, s.args, n)
	}
	if !s.t.Failed() {
		return
	}
	if dir := keepDir(); dir != "" {
		_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d.log", s.name, s.port)), raw, 0o600)
	}
	s.t.Logf("%s, the end of its log:\n%s", s.name, raw[max(0, len(raw)-2000):])
}
