package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// binary returns the path of the server under test, under the name of the program that it stands in for.
func binary(t *testing.T, program string) string {
	t.Helper()
	shoal := os.Getenv("SHOAL")
	if shoal == "" {
		t.Skip("SHOAL does not name a binary")
	}
	if program == "shoal" {
		return shoal
	}
	link := filepath.Join(t.TempDir(), program)
	if err := os.Symlink(shoal, link); err != nil {
		t.Fatal(err)
	}
	return link
}

// freePorts finds n free ports. Another process may take one before the server does; then the server says so.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	var out []int
	for len(out) < n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		out = append(out, l.Addr().(*net.TCPAddr).Port)
	}
	return out
}

// secrets is the folder with a key file and certificates, if servers are to ask for a user and for TLS; empty if they are not.
func secrets() string { return os.Getenv("COMPAT_SECRETS") }

// guarded adds the options by which a server asks for both.
func guarded(args []string) []string {
	dir := secrets()
	if dir == "" {
		return args
	}
	return append(args, "--keyFile", filepath.Join(dir, "key"), "--tlsMode", "requireTLS", "--tlsCertificateKeyFile", filepath.Join(dir, "server.pem"),
		"--tlsCAFile", filepath.Join(dir, "ca.pem"), "--tlsAllowConnectionsWithoutCertificates")
}

// encrypted adds to a connection string what a client needs for TLS.
func encrypted(uri string) string {
	if secrets() == "" {
		return uri
	}
	return uri + "&tls=true&tlsCAFile=" + filepath.Join(secrets(), "ca.pem")
}

// withUser connects as root. The first connection makes that user, by the localhost exception; a member without a primary cannot, and is
// connected to without a user, for its initiation.
func withUser(t *testing.T, open *mongo.Client, uri string) *mongo.Client {
	t.Helper()
	create := bson.D{{Key: "createUser", Value: "root"}, {Key: "pwd", Value: "a secret"}, {Key: "roles", Value: bson.A{"root"}}}
	err := open.Database("admin").RunCommand(context.Background(), create).Err()
	var refused mongo.CommandError
	if err != nil && !(errors.As(err, &refused) && refused.Code == 13) { // Unauthorized: there are users
		return open
	}
	c, err := mongo.Connect(options.Client().ApplyURI(uri).SetAuth(options.Credential{Username: "root", Password: "a secret"}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hangUp(c) })
	return c
}

// server is one process.
type server struct {
	cmd  *exec.Cmd
	done chan error
	log  string
}

// launch starts a program and ends it with the test.
func launch(t *testing.T, program string, args ...string) *server {
	t.Helper()
	s := &server{cmd: exec.Command(binary(t, program), guarded(args)...), done: make(chan error, 1)}
	out, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	s.cmd.Stdout, s.cmd.Stderr, s.log = out, out, out.Name()
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.done <- s.cmd.Wait() }()
	t.Cleanup(func() {
		s.end(t, syscall.SIGKILL)
		if b, err := os.ReadFile(s.log); err == nil && t.Failed() {
			t.Logf("%s %v:\n%s", program, args, b[max(0, len(b)-2000):])
		}
	})
	return s
}

// end sends a signal and waits for the process; it returns the exit code, -1 for a killed one.
func (s *server) end(t *testing.T, sig os.Signal) int {
	t.Helper()
	_ = s.cmd.Process.Signal(sig)
	return s.wait(t)
}

func (s *server) wait(t *testing.T) int {
	t.Helper()
	select {
	case err := <-s.done:
		s.done <- err
	case <-time.After(60 * time.Second):
		t.Fatal("the server does not end")
	}
	return s.cmd.ProcessState.ExitCode()
}

// connect returns a client once the server answers.
func connect(t *testing.T, uri string) *mongo.Client {
	t.Helper()
	uri = encrypted(uri)
	c, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hangUp(c) })
	waitFor(t, "the server answers", func() bool { return c.Ping(context.Background(), nil) == nil })
	if secrets() != "" {
		return withUser(t, c, uri)
	}
	return c
}

// hangUp disconnects a client even if its server is dead: otherwise it would try to end its sessions there, and wait.
func hangUp(c *mongo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_ = c.Disconnect(ctx)
}

// admin runs a command on the admin database.
func admin(t *testing.T, c *mongo.Client, cmd bson.D) bson.M {
	t.Helper()
	var out bson.M
	if err := c.Database("admin").RunCommand(context.Background(), cmd).Decode(&out); err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	return out
}

// topology is a topology of `shoal start` on a directory that survives restarts.
type topology struct {
	name string
	dir  string
	port int
}

func newTopology(t *testing.T, name string) *topology {
	return &topology{name: name, dir: t.TempDir(), port: freePorts(t, 1)[0]}
}

func (p *topology) start(t *testing.T) (*server, *mongo.Client) {
	t.Helper()
	s := launch(t, "shoal", "start", "--topology", p.name, "--data-dir", p.dir, "--listen", "127.0.0.1:"+strconv.Itoa(p.port))
	return s, connect(t, p.uri())
}

func (p *topology) uri() string { return direct(p.port) }

// each runs f on every topology.
func each(t *testing.T, f func(t *testing.T, p *topology)) {
	for _, name := range []string{"sharded", "replset", "standalone"} {
		t.Run(name, func(t *testing.T) { f(t, newTopology(t, name)) })
	}
}

// shard shards a collection if the topology has shards.
func (p *topology) shard(t *testing.T, c *mongo.Client, ns string, key bson.D) {
	t.Helper()
	if p.name == "sharded" {
		admin(t, c, bson.D{{Key: "shardCollection", Value: ns}, {Key: "key", Value: key}})
	}
}

func exitCode(err error) int {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	if err != nil {
		return -2
	}
	return 0
}

func count(t *testing.T, coll *mongo.Collection) int64 {
	t.Helper()
	n, err := coll.CountDocuments(context.Background(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func waitFor(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !f(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(fmt.Sprintf("waited in vain: %s", what))
		}
	}
}
