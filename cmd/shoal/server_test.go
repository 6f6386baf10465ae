package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// server is one process of a set or a cluster, running or not, with a place of its own in the network.
type server struct {
	t      testing.TB
	name   string
	dir    string // of logs and data
	net    *network
	id     int    // in the network
	port   int    // where it listens
	at     string // where it is reached
	args   []string
	cmd    *exec.Cmd
	ended  chan struct{}
	direct *mongo.Client // a direct client, bypassing the network
	panics atomic.Int32
}

// newServer finds a port for a server, reached through a proxy or directly.
func newServer(t testing.TB, n *network, name, dir string, proxied bool) *server {
	t.Helper()
	port := freePorts(t, 1)
	s := &server{t: t, name: name, dir: dir, net: n, port: port, at: fmt.Sprintf("127.0.0.1:%d", port)}
	s.id = n.join()
	if proxied {
		s.at = n.serve(t, s.id, port)
	}
	s.direct = connect(t, fmt.Sprintf("mongodb://127.0.0.1:%d/?directConnection=true", port))
	return s
}

func (s *server) dbpath() string  { return filepath.Join(s.dir, s.name) }
func (s *server) logFile() string { return filepath.Join(s.dir, s.name+".log") }
func (s *server) running() bool   { return s.cmd != nil }

// start starts the server and waits until it listens.
func (s *server) start() {
	s.t.Helper()
	if err := s.tryStart(); err != nil {
		s.t.Fatalf("%s: %v", s.name, err)
	}
}

func (s *server) tryStart() error {
	if err := os.MkdirAll(s.dbpath(), 0o700); err != nil {
		return err
	}
	s.cmd = exec.Command(os.Args[0], append(s.args, "--bind_ip", "127.0.0.1", "--port", strconv.Itoa(s.port), "--setParameter", "enableTestCommands=1")...)
	s.cmd.Env = append(os.Environ(), asShoal+"="+asWhole)
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	s.cmd.Stderr = log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.net.setPID(s.id, s.cmd.Process.Pid)
	s.ended = make(chan struct{})
	listens := make(chan struct{}, 1)
	go func() {
		defer close(s.ended)
		defer log.Close()
		s.follow(bufio.NewReader(out), log, listens)
	}()
	select {
	case <-listens:
		return nil
	case <-s.ended:
		return fmt.Errorf("it ended before it listened: %v", s.cmd.Wait())
	case <-time.After(30 * time.Second):
		return fmt.Errorf("it does not come up")
	}
}

// follow stores the log, and signals when the server listens.
func (s *server) follow(in *bufio.Reader, log *os.File, listens chan<- struct{}) {
	for {
		line, err := in.ReadString('\n')
		_, _ = log.WriteString(line)
		if listening.MatchString(line) {
			listens <- struct{}{}
		}
		if strings.Contains(line, `"id":4757800`) {
			s.panics.Add(1)
			fmt.Fprintf(os.Stderr, "%s: %s", s.name, line)
		}
		if err != nil {
			return
		}
	}
}

// end ends the server by a signal and waits for its end.
func (s *server) end(sig syscall.Signal) {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(sig)
	if sig != syscall.SIGKILL {
		_ = s.cmd.Process.Signal(syscall.SIGCONT)
	}
	<-s.ended
	_ = s.cmd.Wait()
	s.cmd = nil
	s.net.setPID(s.id, 0)
}

func (s *server) admin(ctx context.Context, cmd bson.D) error {
	return s.direct.Database("admin").RunCommand(ctx, cmd).Err()
}

// hello asks the server for its state; nil if it does not reply.
func (s *server) hello() bson.M { return helloOf(s.direct, s.running()) }

func (s *server) kill()   { s.end(syscall.SIGKILL) }
func (s *server) pause()  { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }
func (s *server) resume() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

// stop ends the server for good, and keeps its log if the test failed.
func (s *server) stop() {
	s.kill()
	if n := s.panics.Load(); n > 0 {
		s.t.Errorf("%s: %d commands ended in a panic", s.name, n)
	}
	if !s.t.Failed() {
		return
	}
	raw, _ := os.ReadFile(s.logFile())
	if dir := keepDir(); dir != "" {
		_ = os.WriteFile(filepath.Join(dir, s.name+".log"), raw, 0o600)
	}
	s.t.Logf("%s, the end of its log:\n%s", s.name, raw[max(0, len(raw)-2000):])
}
