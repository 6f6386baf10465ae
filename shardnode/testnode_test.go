package shardnode

import (
	"context"
	"encoding/base64"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// testNode is a primary in memory, which tests send commands to.
type testNode struct {
	t   testing.TB
	srv *Server
	cl  *command.Client
}

func newTestNode(t testing.TB) *testNode {
	t.Helper()
	return openTestNode(t, Config{Memory: true})
}

// openTestNode is newTestNode with a configuration, whose Dir an earlier node may have used.
func openTestNode(t testing.TB, c Config) *testNode {
	t.Helper()
	c.SetName, c.Host, c.Info = "rs", "test:27017", &command.Info{Host: "test"}
	srv, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	n := &testNode{t: t, srv: srv, cl: command.NewClient(1, "test:1", "test:27017", nil)}
	t.Cleanup(n.close)
	if err := srv.Initiate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return n
}

// close closes the node, unless a test has closed it before its end.
func (n *testNode) close() {
	if n.srv == nil {
		return
	}
	if err := n.srv.Close(); err != nil {
		n.t.Error(err)
	}
	n.srv = nil
}

// fromRouter returns the node as a router sees it, on a connection of its own, and the id of the router's process.
func (n *testNode) fromRouter() (router *testNode, process [16]byte) {
	n.t.Helper()
	process = cluster.NewUUID()
	router = &testNode{t: n.t, srv: n.srv, cl: command.NewClient(2, "router:1", "test:27017", nil)}
	router.ok("admin", `{"hello": 1, "internalClient": {"minWireVersion": 27, "maxWireVersion": 27, "process":
		{"$binary": {"base64": "`+base64.StdEncoding.EncodeToString(process[:])+`", "subType": "04"}}}}`)
	return router, process
}

// do runs a command on a database, given as extended JSON, and returns the reply.
func (n *testNode) do(db, cmd string) bson.M {
	n.t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
		n.t.Fatalf("%s: %v", cmd, err)
	}
	body, err := bson.Marshal(append(d, bson.E{Key: "$db", Value: db}))
	if err != nil {
		n.t.Fatal(err)
	}
	reply := n.srv.Service.Run(n.t.Context(), n.cl, &wire.Message{Body: body}, nil)
	out := bson.M{}
	if err := bson.Unmarshal(reply, &out); err != nil {
		n.t.Fatal(err)
	}
	return out
}

// ok is do for a command that has to succeed.
func (n *testNode) ok(db, cmd string) bson.M {
	n.t.Helper()
	r := n.do(db, cmd)
	if r["ok"] != 1.0 {
		n.t.Fatalf("%s: %v", cmd, r)
	}
	return r
}

// code returns the error code of a command, 0 if it succeeds.
func (n *testNode) code(db, cmd string) int32 {
	n.t.Helper()
	c, _ := n.do(db, cmd)["code"].(int32)
	return c
}

// first returns the first batch of a command's cursor as text, one document per line.
func (n *testNode) first(db, cmd string) (lines []string) {
	n.t.Helper()
	r := n.ok(db, cmd)
	raw, err := bson.Marshal(r["cursor"])
	if err != nil {
		n.t.Fatal(err)
	}
	for _, v := range value.Values(value.Lookup(raw, "firstBatch").Doc()) {
		lines = append(lines, value.Show(v))
	}
	return lines
}
