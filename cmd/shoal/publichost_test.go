package main

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A server that listens on all interfaces is known by the machine's host name, if that leads to the machine; --host takes precedence everywhere.
func TestPublicNames(t *testing.T) {
	own := func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.IPv4(10, 0, 0, 5), Mask: net.CIDRMask(24, 32)}, &net.UnixAddr{}}, nil
	}
	machine := func(name string, addrs ...string) publicHost {
		return publicHost{
			func() (string, error) { return name, nil },
			func(string) ([]string, error) {
				if addrs == nil {
					return nil, errors.New("no such host")
				}
				return addrs, nil
			}, own,
		}
	}
	for _, tc := range []struct {
		machine          publicHost
		host, addr, want string
	}{
		{machine("box", "10.0.0.5"), "", "0.0.0.0:27017", "box:27017"},
		{machine("box", "fe80::1%eth0", "10.0.0.5"), "", "[::]:27017", "box:27017"},
		{machine("box", "127.0.1.1"), "", ":27017", "box:27017"},
		{machine("box", "10.0.0.9"), "", "0.0.0.0:27017", "127.0.0.1:27017"},
		{machine("box"), "", "0.0.0.0:27017", "127.0.0.1:27017"},
		{machine(""), "", "0.0.0.0:27017", "127.0.0.1:27017"},
		{machine("box", "10.0.0.5"), "", "127.0.0.1:27017", "127.0.0.1:27017"},
		{machine("box", "10.0.0.5"), "", "10.0.0.5:27017", "10.0.0.5:27017"},
		{machine("box"), "db.example.net", "0.0.0.0:27017", "db.example.net:27017"},
		{machine("box"), "db.example.net", "127.0.0.1:27017", "db.example.net:27017"},
		{machine("box"), "::1", "[::]:27017", "[::1]:27017"},
		{machine("box", "10.0.0.5"), "", "/tmp/mongodb-27017.sock", "/tmp/mongodb-27017.sock"},
	} {
		c := newConfig(isStart)
		c.Host = tc.host
		if got := publicNames(c, tc.machine)(tc.addr); got != tc.want {
			t.Errorf("%s with --host %q is %s, want %s", tc.addr, tc.host, got, tc.want)
		}
	}
	for _, host := range []string{"a:27017", "a b", "0.0.0.0", "mongodb://a"} {
		if _, err := parse(isStart, []string{"--host", host}); err == nil || !strings.Contains(err.Error(), "--host takes") {
			t.Errorf("--host %s: %v", host, err)
		}
	}
}

// A cluster that listens on all interfaces used to put the loopback address into the set's configuration and the registry of shards: drivers on other
// machines connected to themselves.
func TestClustersAreKnownByTheirHostName(t *testing.T) {
	set := startHere(t, func(c *config) { c.Listen, c.Host, c.Topology = []string{"0.0.0.0:0"}, "localhost", "replset" })
	_, port, err := net.SplitHostPort(set.roles.Addrs[0].String())
	if err != nil {
		t.Fatal(err)
	}
	var hello struct {
		Me    string
		Hosts []string
	}
	// The driver discovers the set by the names of its configuration.
	if err := connect(t, "mongodb://127.0.0.1:"+port+"/?replicaSet=rs0").Database("admin").RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		t.Fatal(err)
	}
	if want := "localhost:" + port; hello.Me != want || len(hello.Hosts) != 1 || hello.Hosts[0] != want {
		t.Errorf("hello says %+v, want %s", hello, want)
	}
	if want := "mongodb://localhost:" + port + "/?replicaSet=rs0"; set.roles.URI != want {
		t.Errorf("the connection string is %s, want %s", set.roles.URI, want)
	}
	base := freePorts(t, 2)
	cluster := startHere(t, func(c *config) {
		c.Listen, c.Host, c.Shards, c.NodePort = []string{"0.0.0.0:0"}, "localhost", 1, base
	})
	_, port, _ = net.SplitHostPort(cluster.roles.Addrs[0].String())
	var shard struct{ Host string }
	if err := connect(t, "mongodb://127.0.0.1:"+port+"/").Database("config").Collection("shards").FindOne(t.Context(), bson.D{}).Decode(&shard); err != nil {
		t.Fatal(err)
	}
	if want := shardName(0) + "/localhost:" + strconv.Itoa(base+1); shard.Host != want {
		t.Errorf("the shard is %s, want %s", shard.Host, want)
	}
}
