package main

import (
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
)

// forward returns an address that forwards to another, like the published port of a container.
func forward(t *testing.T, to string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
			go func() { _, _ = io.Copy(in, out); _ = in.Close() }()
		}
	}()
	return l.Addr().String()
}

func configOf(version int, hosts ...string) bson.D {
	var members bson.A
	for i, h := range hosts {
		members = append(members, bson.D{{Key: "_id", Value: i}, {Key: "host", Value: h}})
	}
	return bson.D{{Key: "_id", Value: "rs"}, {Key: "version", Value: version}, {Key: "members", Value: members}}
}

// One member of a configuration, even the only one, must be the server that is asked: either the host is the machine's and the
// port the server's, or a connection to it reaches the server.
func TestConfigurationHasToNameTheServer(t *testing.T) {
	t.Parallel()
	start := func() (*server, string) {
		port := freePort(t)
		return asWritten(t, port, "mongod", "--replSet", "rs", "--bind_ip_all", "--dbpath", t.TempDir(), "--port", port), port
	}
	other, otherPort := start()
	_ = other
	s, port := start()
	free := []string{freePort(t), freePort(t)}
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	try := func(s *server, cmd string, config bson.D) error {
		return s.direct.Database("admin").RunCommand(t.Context(), bson.D{{Key: cmd, Value: config}}).Err()
	}
	const stranger = "maps to this node"
	for _, hosts := range [][]string{{"127.0.0.1:" + free[0]}, {"localhost:" + otherPort}, {"nowhere.invalid:" + port}, {"192.0.2.1:" + port},
		{"127.0.0.1:" + otherPort, "127.0.0.1:" + free[0]}} {
		err := try(s, "replSetInitiate", configOf(1, hosts...))
		if err == nil || !strings.Contains(err.Error(), "(InvalidReplicaSetConfig) No host described in new configuration with {version: 1, term: 0} for replica set rs "+stranger) {
			t.Errorf("initiated with %v: %v", hosts, err)
		}
	}
	published := forward(t, "127.0.0.1:"+port)
	if err := try(s, "replSetInitiate", configOf(1, published, "127.0.0.1:"+port)); err == nil || !strings.Contains(err.Error(), "all map to this node") {
		t.Errorf("initiated with two names of one server: %v", err)
	}
	if err := try(s, "replSetInitiate", configOf(1, published)); err != nil {
		t.Fatalf("initiated by a published port: %v", err)
	}
	await.True(t, "a primary", func() bool { return s.hello()["isWritablePrimary"] == true })
	if err := try(s, "replSetReconfig", configOf(2, "localhost:"+free[1])); err == nil || !strings.Contains(err.Error(), stranger) {
		t.Errorf("reconfigured to an address of nobody: %v", err)
	}
	if h := s.hello(); h["me"] != published { // as the other members know it
		t.Errorf("hello has %v, want %s", h["me"], published)
	}
	for i, host := range []string{"localhost", "127.0.0.1", hostname} {
		if _, err := net.LookupHost(host); err != nil {
			continue
		}
		s, port := start()
		if err := try(s, "replSetInitiate", configOf(1, net.JoinHostPort(host, port))); err != nil {
			t.Errorf("%d: initiated with %s: %v", i, host, err)
		}
	}
}
