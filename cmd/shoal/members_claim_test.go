package main

import (
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ask sends a command and returns its outcome.
func (c *rawConn) ask(cmd ...bson.E) string {
	c.t.Helper()
	if _, err := c.Write(opMsg(0, body(append(bson.D(cmd), bson.E{Key: "$db", Value: "admin"})))); err != nil {
		c.t.Fatal(err)
	}
	return c.outcome()
}

// claim says hello as a member of the cluster does.
func (c *rawConn) claim() {
	c.t.Helper()
	member := bson.D{{Key: "minWireVersion", Value: 27}, {Key: "maxWireVersion", Value: 27}, {Key: "process", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}
	if got := c.ask(bson.E{Key: "hello", Value: 1}, bson.E{Key: "internalClient", Value: member}); got != "ok" {
		c.t.Fatalf("hello: %s", got)
	}
}

// membersOnly are commands that change a cluster's own state, with sufficient arguments.
var membersOnly = []bson.D{
	{{Key: "_configsvrRemoveShard", Value: "shard00"}},
	{{Key: "_configsvrCreateDatabase", Value: "x"}},
	{{Key: "_configsvrDropDatabase", Value: "x"}},
	{{Key: "_configsvrBalancerStop", Value: 1}},
	{{Key: "_addShard", Value: 1}},
	{{Key: "_shardsvrDropDatabaseParticipant", Value: 1}},
	{{Key: "_shardsvrSetClusterParameter", Value: 1}},
	{{Key: "_recvChunkAbort", Value: 1}},
	{{Key: "_writeTogether", Value: 1}},
	{{Key: "_replSetRaft", Value: bson.Binary{Data: []byte{1}}}},
}

// In a single-process cluster no connection becomes a member by claiming to be one: commands of members are refused by
// routers and by listening members, and the cluster keeps working.
func TestNoConnectionIsAMemberOfOneProcess(t *testing.T) {
	base := freePorts(t, 3)
	p := launch(t, t.TempDir(), "--node-port", strconv.Itoa(base))
	for _, at := range []string{p.at, "127.0.0.1:" + strconv.Itoa(base), "127.0.0.1:" + strconv.Itoa(base+1)} {
		c := dialRaw(t, at)
		c.claim()
		for _, cmd := range membersOnly {
			if got := c.ask(cmd...); got != "13" && got != "59" && got != "238" {
				t.Errorf("%s at %s: %s", cmd[0].Key, at, got)
			}
		}
	}
	for _, cmd := range []bson.D{{{Key: "shardCollection", Value: "d.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}},
		{{Key: "moveChunk", Value: "d.c"}, {Key: "find", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "to", Value: "shard01"}}} {
		if err := p.client.Database("admin").RunCommand(t.Context(), cmd).Err(); err != nil && !strings.Contains(err.Error(), "already") {
			t.Error(err)
		}
	}
}

// With several processes and no key file, a connection whose hello is a member's counts as one. From any other, commands of
// members are refused.
func TestPlainClientsSendNothingOfMembers(t *testing.T) {
	port := freePort(t)
	s := asWritten(t, port, "mongod", "--configsvr", "--replSet", "c", "--dbpath", t.TempDir(), "--port", port)
	initiateBare(t, s)
	plain, member := dialRaw(t, s.at()), dialRaw(t, s.at())
	member.claim()
	for _, cmd := range membersOnly {
		if got := plain.ask(cmd...); got != "13" && got != "59" && got != "238" {
			t.Errorf("%s from a client: %s", cmd[0].Key, got)
		}
		if got := member.ask(cmd...); got == "13" {
			t.Errorf("%s from a member is refused", cmd[0].Key)
		}
	}
	if got := plain.ask(bson.E{Key: "_flushRoutingTableCacheUpdates", Value: "d.c"}); got == "13" {
		t.Error("an administrator may not refresh what a node knows")
	}
}
