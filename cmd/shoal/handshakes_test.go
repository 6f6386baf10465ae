package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"golang.org/x/sys/unix"

	"github.com/shoaldb/shoal/internal/await"
)

// handshakesWanted returns the number of connections that TestHalfOpenHandshakes opens, and the number of those open at a time. SHOAL_HANDSHAKES=100000 asks for the
// long form, with SHOAL_HANDSHAKES_OPEN=100000 for all at once: only root may have so many descriptors.
func handshakesWanted() (all, open int) {
	wanted := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
			return n
		}
		return otherwise
	}
	all = wanted("SHOAL_HANDSHAKES", 6000)
	return all, min(all, wanted("SHOAL_HANDSHAKES_OPEN", 2000))
}

// dialFrom connects as the i-th of many at a time: an address has ports for some 28,000 connections, and this host has more addresses.
func dialFrom(i, atATime int, to string) (net.Conn, error) {
	d := net.Dialer{Timeout: 10 * time.Second}
	if atATime > 20000 {
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i/20000%200))}
	}
	return d.Dial("tcp", to)
}

// allowDescriptors raises the limits of descriptors, this process's and those of the processes that it starts.
func allowDescriptors(t *testing.T, n int) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur >= uint64(n) {
		return
	}
	before := limit
	limit.Cur, limit.Max = uint64(n), max(limit.Max, uint64(n))
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Skipf("%d descriptors are not allowed here: %v", n, err)
	}
	before.Max = limit.Max // raised, it can be lowered, but not raised again
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before) })
}

// residentKB is the memory of a process.
func residentKB(t *testing.T, pid int) (kb int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("no /proc")
	}
	for _, line := range strings.Split(string(status), "\n") {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			_, _ = fmt.Sscan(rest, &kb)
		}
	}
	return kb
}

// Strangers open connection after connection and finish no handshake, neither that of TLS nor that of SCRAM: the server's memory stays
// bounded, and both a client that has logged in and a new one are served.
func TestHalfOpenHandshakes(t *testing.T) {
	if testing.Short() {
		t.Skip("opens many connections")
	}
	a := newAuthority(t)
	a.issue("server", "", time.Now().Add(time.Hour), "127.0.0.1")
	a.issue("client", "", time.Now().Add(time.Hour), "127.0.0.1")
	o := loneServer(t, "mongod", "--memory", "--auth", "--tlsMode", "allowTLS", "--tlsCertificateKeyFile", a.path("server.pem"), "--tlsCAFile", a.path("ca.pem"),
		"--tlsAllowConnectionsWithoutCertificates")
	wanted, atATime := handshakesWanted()
	allowDescriptors(t, atATime*5/4+1000) // four fifths of them are for connections
	o.start()
	ctx := context.Background()
	if err := o.direct.Database("admin").RunCommand(ctx, bson.D{{Key: "createUser", Value: "root"}, {Key: "pwd", Value: "secret"}, {Key: "roles", Value: bson.A{"root"}}}).Err(); err != nil {
		t.Fatal(err)
	}
	uri := "mongodb://root:secret@" + o.at() + "/?directConnection=true"
	client := connect(t, uri)
	ping := func() time.Duration {
		start := time.Now()
		if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err(); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	}
	ping()
	hello := clientHello(t)
	scram, err := bson.Marshal(bson.D{{Key: "saslStart", Value: 1}, {Key: "mechanism", Value: "SCRAM-SHA-256"}, {Key: "payload", Value: []byte("n,,n=root,r=0123456789abcdef")}, {Key: "$db", Value: "admin"}})
	if err != nil {
		t.Fatal(err)
	}
	firsts := [][]byte{nil, hello[:len(hello)/2], hello, framedCommand(scram), framedCommand(scram)[:16]}
	before, most, slowest := residentKB(t, o.cmd.Process.Pid), 0, time.Duration(0)
	var open []net.Conn
	began := time.Now()
	for i := range wanted {
		c, err := dialFrom(i, atATime, o.at())
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if _, err := c.Write(firsts[i%len(firsts)]); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if open = append(open, c); len(open) > atATime {
			_ = open[0].(*net.TCPConn).SetLinger(0) // its port is free at once
			_ = open[0].Close()
			open = open[1:]
		}
		if i%200 == 0 {
			slowest, most = max(slowest, ping()), max(most, residentKB(t, o.cmd.Process.Pid))
		}
	}
	late := connect(t, uri)
	start := time.Now()
	if err := late.Database("admin").RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err(); err != nil {
		t.Errorf("a new client: %v", err)
	}
	secured := connectTLS(t, uri, a)
	if err := secured(); err != nil {
		t.Errorf("a new client with TLS: %v", err)
	}
	t.Logf("%d connections in %v, %d at a time: %d MB before, %d MB at most, %d KB a connection that is open; the slowest of pings %v, two new clients %v",
		wanted, time.Since(began), atATime, before>>10, most>>10, (most-before)/atATime, slowest, time.Since(start))
	if limit := before + 96*atATime; most > limit {
		t.Errorf("%d KB, at most %d may be", most, limit)
	}
	for _, c := range open {
		_ = c.Close()
	}
}

// Strangers open more connections than the server has descriptors for, one after the other and all at once. Its listener ended for good with
// the first one that it could not accept, while the process continued.
func TestMoreConnectionsThanDescriptors(t *testing.T) {
	if testing.Short() {
		t.Skip("opens many connections")
	}
	o := loneServer(t, "mongod", "--memory")
	o.launch(func(name string, args []string) *exec.Cmd {
		return exec.Command("sh", append([]string{"-c", `ulimit -n 300; exec "$0" "$@"`, name}, args...)...)
	})
	o.listens()
	ping := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return o.direct.Database("admin").RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err()
	}
	if err := ping(); err != nil {
		t.Fatal(err)
	}
	var open []net.Conn
	for i := range 600 {
		c, err := net.DialTimeout("tcp", o.at(), 10*time.Second)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		open = append(open, c)
		wait := 5 * time.Millisecond
		if i >= 240 {
			wait = 10 * time.Second // it is closed
		}
		_ = c.SetReadDeadline(time.Now().Add(wait))
		_, _ = c.Read(make([]byte, 1))
	}
	if err := ping(); err != nil {
		t.Errorf("a client that was there: %v", err)
	}
	var status struct {
		Connections struct{ Current, Available, Rejected int64 }
	}
	if err := o.direct.Database("admin").RunCommand(t.Context(), bson.D{{Key: "serverStatus", Value: 1}}).Decode(&status); err != nil {
		t.Fatal(err)
	}
	if c := status.Connections; c.Current+c.Available != 240 || c.Rejected < 300 {
		t.Errorf("%+v, want 240 at most, of 300 descriptors", c)
	}
	for _, c := range open {
		_ = c.Close()
	}
	// All at once, and more than the descriptors that are kept back.
	await.True(t, "those connections are gone", func() bool {
		return o.direct.Database("admin").RunCommand(t.Context(), bson.D{{Key: "serverStatus", Value: 1}}).Decode(&status) == nil && status.Connections.Current < 20
	})
	var burst sync.WaitGroup
	for range 20 {
		burst.Go(func() {
			for range 50 {
				if c, err := net.DialTimeout("tcp", o.at(), 10*time.Second); err == nil {
					defer func() { _ = c.Close() }()
				}
			}
		})
	}
	burst.Wait()
	if err := ping(); err != nil {
		t.Errorf("a client that was there, after the burst: %v", err)
	}
	late := connect(t, "mongodb://"+o.at()+"/?directConnection=true")
	await.True(t, "a client that comes is served", func() bool { return late.Ping(t.Context(), nil) == nil })
}

// clientHello is the beginning of a TLS client's first message.
func clientHello(t *testing.T) []byte {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	go func() { _ = tls.Client(near, &tls.Config{ServerName: "x", MinVersion: tls.VersionTLS12}).Handshake() }()
	b := make([]byte, 4096)
	n, err := far.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

// framedCommand frames a command.
func framedCommand(body []byte) []byte {
	n := 16 + 4 + 1 + len(body)
	out := []byte{byte(n), byte(n >> 8), 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xdd, 0x07, 0, 0, 0, 0, 0, 0, 0}
	return append(out, body...)
}

// connectTLS returns a function that connects with TLS and sends a ping.
func connectTLS(t *testing.T, uri string, a *authority) func() error {
	t.Helper()
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		c, err := mongo.Connect(options.Client().ApplyURI(uri + "&tls=true&tlsCAFile=" + a.path("ca.pem")))
		if err != nil {
			return err
		}
		defer func() { _ = c.Disconnect(ctx) }()
		return c.Database("admin").RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err()
	}
}
