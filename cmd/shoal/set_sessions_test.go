package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// plainConn is a connection to one member that numbers its transactions itself, as a driver does.
type plainConn struct {
	t *testing.T
	c *wire.ClientConn
}

func dialMember(t *testing.T, rs *replicaSet, i int) *plainConn {
	t.Helper()
	return dialPlain(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(rs.members[i].port)))
}

func dialPlain(t *testing.T, at string) *plainConn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := wire.Dial(ctx, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &plainConn{t, c}
}

func (p *plainConn) run(db, cmd string) bson.M {
	p.t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
		p.t.Fatalf("%s: %v", cmd, err)
	}
	body, err := bson.Marshal(append(d, bson.E{Key: "$db", Value: db}))
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	reply, err := p.c.RoundTrip(ctx, &wire.Message{OpCode: wire.OpMsg, Body: body})
	if err != nil {
		p.t.Fatalf("%s: %v", cmd, err)
	}
	var m bson.M
	if err := bson.Unmarshal(reply.Body, &m); err != nil {
		p.t.Fatal(err)
	}
	return m
}

// numbered adds a session and a transaction number to a command.
func numbered(cmd string, number int, more string) string {
	return fmt.Sprintf(`%s, "lsid": {"id": {"$binary": {"base64": "AAAAAAAAQACAAAAAAAAAAQ==", "subType": "04"}}}, "txnNumber": {"$numberLong": "%d"}%s}`, cmd[:len(cmd)-1], number, more)
}

// writable waits for a writable primary other than old, and dials it.
func (rs *replicaSet) writable(t *testing.T, old int) (int, *plainConn) {
	t.Helper()
	var p *plainConn
	i := await.State(t, "another member takes writes", func() (int, bool) {
		i := rs.primary()
		if i < 0 || i == old {
			return i, false
		}
		p = dialMember(t, rs, i)
		return i, p.run("admin", `{"hello": 1}`)["isWritablePrimary"] == true
	})
	return i, p
}

// handOver makes another member the primary, and dials it.
func (rs *replicaSet) handOver(t *testing.T) *plainConn {
	t.Helper()
	old, p := rs.writable(t, -1)
	for try := 0; try < 20; try++ { // members that have just stepped down do not stand for election yet
		if r := p.run("admin", `{"replSetStepDown": 2, "secondaryCatchUpPeriodSecs": 1}`); r["code"] != int32(mongoerr.ExceededTimeLimit) {
			break
		}
	}
	_, p = rs.writable(t, old)
	return p
}

// What a session has executed is known to the next primary: retries return the recorded result, a committed
// transaction stays committed, an open one is gone, a prepared one is kept and can be committed.
func TestSessionsAcrossElections(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three processes")
	}
	t.Parallel()
	rs := launchSet(t, setOptions{members: 3, net: newNetwork(t)})
	const auto = `, "autocommit": false`
	_, p := rs.writable(t, -1)
	must := func(m bson.M) bson.M {
		t.Helper()
		if m["ok"] != 1.0 || m["writeErrors"] != nil {
			t.Fatal(m)
		}
		return m
	}
	must(p.run("d", `{"insert": "c", "documents": [{"_id": 1, "x": 0}]}`))
	inc := numbered(`{"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"x": 1}}, "new": true}`, 1, "")
	must(p.run("d", inc))
	p = rs.handOver(t)
	if r := must(p.run("d", inc)); r["retriedStmtId"] != int32(0) || fmt.Sprint(r["value"]) != fmt.Sprint(bson.D{{Key: "_id", Value: int32(1)}, {Key: "x", Value: int32(1)}}) {
		t.Errorf("retried after an election: %v", r)
	}
	must(p.run("d", numbered(`{"insert": "c", "documents": [{"_id": 2}]}`, 2, auto+`, "startTransaction": true`)))
	must(p.run("admin", numbered(`{"commitTransaction": 1}`, 2, auto)))
	p = rs.handOver(t)
	must(p.run("admin", numbered(`{"commitTransaction": 1}`, 2, auto)))
	must(p.run("d", numbered(`{"insert": "c", "documents": [{"_id": 3}]}`, 3, auto+`, "startTransaction": true`)))
	p = rs.handOver(t)
	if r := p.run("admin", numbered(`{"commitTransaction": 1}`, 3, auto)); r["code"] != int32(mongoerr.NoSuchTransaction) {
		t.Errorf("commit of a transaction that an election ended: %v", r)
	}
	must(p.run("d", numbered(`{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 1}}}]}`, 4, auto+`, "startTransaction": true`)))
	must(p.run("d", numbered(`{"insert": "c", "documents": [{"_id": 4}]}`, 4, auto)))
	prepared := must(p.run("admin", numbered(`{"prepareTransaction": 1}`, 4, auto)))["prepareTimestamp"].(bson.Timestamp)
	p = rs.handOver(t)
	if r := p.run("d", `{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"x": 10}}}], "maxTimeMS": 50}`); r["code"] != int32(mongoerr.MaxTimeMSExpired) {
		t.Errorf("a write to a prepared document: %v", r)
	}
	must(p.run("admin", numbered(`{"commitTransaction": 1}`, 4, fmt.Sprintf(`%s, "commitTimestamp": {"$timestamp": {"t": %d, "i": %d}}`, auto, prepared.T, prepared.I))))
	got, err := bson.MarshalExtJSON(must(p.run("d", `{"find": "c", "sort": {"_id": 1}}`))["cursor"], false, false)
	if want := `"firstBatch":[{"_id":1,"x":2},{"_id":2},{"_id":4}]`; err != nil || !strings.Contains(string(got), want) {
		t.Errorf("%s, want %s (%v)", got, want, err)
	}
	rs.sameEverywhere("d", "config")
}
