package main

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/internal/await"
)

// A client sees the members of a set by the names of the horizon that it asks for in its TLS handshake (SNI), and by those of the
// configuration otherwise.
func TestHorizonsByName(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	server := a.issue("server", "", time.Time{}, "127.0.0.1", "localhost", "ext.example.net", "other.example.net")
	a.issue("client", "", time.Time{})
	set := launchSet(t, setOptions{role: "--shardsvr", members: 1, args: []string{"--tlsMode", "requireTLS", "--tlsCertificateKeyFile", server, "--tlsCAFile", a.path("ca.pem")}})
	at := set.members[0].at()
	set.command(set.members[0], bson.D{{Key: "replSetReconfig", Value: bson.D{{Key: "_id", Value: "rs"}, {Key: "version", Value: 2}, {Key: "members", Value: bson.A{
		bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: at}, {Key: "horizons", Value: bson.D{{Key: "outside", Value: "ext.example.net:443"}}}}}}}}})
	hello := func(name string) (out struct {
		Hosts       []string
		Me, Primary string
	}) {
		t.Helper()
		pair, err := readKeyPair(a.path("client.pem"), "")
		if err != nil {
			t.Fatal(err)
		}
		o := options.Client().ApplyURI("mongodb://" + at + "/?directConnection=true").SetTLSConfig(&tls.Config{ServerName: name, InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}})
		c, err := mongo.Connect(o)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Disconnect(context.Background()) }()
		if err := c.Database("admin").RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	for name, want := range map[string]string{"ext.example.net": "ext.example.net:443", "other.example.net": at, "localhost": at} {
		await.True(t, "the configuration holds", func() bool { return len(hello(name).Hosts) == 1 })
		if h := hello(name); h.Hosts[0] != want || h.Me != want || h.Primary != want {
			t.Errorf("by the name %s: %+v, want %s", name, h, want)
		}
	}
}

// With tlsWithholdClientCertificate members present no certificate to each other: they work together where none is required, and a node that
// requires one refuses them.
func TestMembersWithholdCertificates(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	server := a.issue("server", "", time.Time{}, "127.0.0.1", "localhost")
	a.issue("client", "", time.Time{})
	secure := []string{"--tlsMode", "requireTLS", "--tlsCertificateKeyFile", server, "--tlsCAFile", a.path("ca.pem")}
	withhold := append([]string{"--setParameter", "tlsWithholdClientCertificate=true"}, secure...)
	config := launchSet(t, setOptions{name: "config", role: "--configsvr", members: 1, args: append([]string{"--tlsAllowConnectionsWithoutCertificates"}, secure...)})
	router := loneServer(t, append([]string{"mongos", "--configdb", config.conn()}, withhold...)...)
	router.start()
	if err := router.direct.Database("admin").RunCommand(t.Context(), bson.D{{Key: "listShards", Value: 1}}).Err(); err != nil {
		t.Errorf("without a certificate, where none is needed: %v", err)
	}
	strict := launchSet(t, setOptions{name: "strict", role: "--shardsvr", members: 1, args: secure})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	err := router.direct.Database("admin").RunCommand(ctx, bson.D{{Key: "addShard", Value: strict.conn()}}).Err()
	if err != nil {
		t.Errorf("the config server shows a certificate: %v", err)
	}
	read, cancelRead := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancelRead()
	if err := router.direct.Database("shop").RunCommand(read, bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{}}}}).Err(); err == nil {
		t.Error("a router without a certificate gets into a shard that asks for one")
	}
}
