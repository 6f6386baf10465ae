package router_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/wire"
)

// TestProtocols runs the scripts of testdata/protocols: what routers, shards and the config server do in an order that a script
// fixes, by fail points. Each has a cluster of its own. The commands:
//
//	cluster shards=2              make it; the first command of a script
//	run [db=d] [router=2] [shard=shard0] [txn=A [start]] [begin=NAME]
//	                              run the input, a command a line, through a router (each number is one, which knows nothing
//	                              before its first command) or on a shard, in a transaction of session A. begin runs it beside
//	                              the script
//	await NAME [any]              wait for what begin began, and print its replies unless they differ from run to run
//	point shard0 NAME on|off      set a fail point
//	entered shard0 NAME           wait until a fail point was reached
//	stepdown shard0               make the shard's primary step down, and wait until it has been elected again
//	placement d.c                 the collection's chunks, as the config server has them
//	left shard0                   how many documents of unfinished work a shard holds
//	drained shard0                wait until there are none
//
// A reply is printed without its times, an error by its name and labels. -rewrite prints them again.
func TestProtocols(t *testing.T) {
	datadriven.Walk(t, "testdata/protocols", func(t *testing.T, path string) {
		x := &protocolScript{routers: map[string]*testCluster{}, begun: map[string]chan string{}, points: map[string]func(){}}
		datadriven.RunTest(t, path, x.step)
		for name := range x.begun {
			t.Errorf("the script does not await %s", name)
		}
	})
}

type protocolScript struct {
	c          *testCluster
	routers    map[string]*testCluster
	txnClients map[string]*txnClient
	begun      map[string]chan string
	points     map[string]func()
}

func (x *protocolScript) step(t *testing.T, d *datadriven.TestData) string {
	arg := func(i int) string {
		if i >= len(d.CmdArgs) {
			d.Fatalf(t, "%s needs %d arguments", d.Cmd, i+1)
		}
		return d.CmdArgs[i].Key
	}
	switch d.Cmd {
	case "cluster":
		n := 2
		d.MaybeScanArgs(t, "shards", &n)
		x.c = newTestCluster(t, n)
		x.routers["1"] = x.c
		x.txnClients = map[string]*txnClient{}
	case "run":
		return x.run(t, d)
	case "await":
		replies := x.begun[arg(0)]
		if replies == nil {
			d.Fatalf(t, "%s was not begun", arg(0))
		}
		delete(x.begun, arg(0))
		if got := <-replies; !d.HasArg("any") {
			return got
		}
	case "point":
		x.points[arg(0)+arg(1)] = x.c.point(arg(0), arg(1), arg(2) == "on")
	case "entered":
		x.points[arg(0)+arg(1)]()
	case "stepdown":
		x.stepDown(t, arg(0))
	case "placement":
		return x.placement(arg(0))
	case "left":
		return x.left(arg(0))
	case "drained":
		x.c.until(arg(0)+" has nothing left to do", func() bool { return x.left(arg(0)) == "nothing\n" })
	default:
		d.Fatalf(t, "unknown command")
	}
	return ""
}

// run runs the lines of the input one after the other.
func (x *protocolScript) run(t *testing.T, d *datadriven.TestData) string {
	db, router, shard, txn, begin := "d", "1", "", "", ""
	for name, to := range map[string]*string{"db": &db, "router": &router, "shard": &shard, "txn": &txn, "begin": &begin} {
		d.MaybeScanArgs(t, name, to)
	}
	if x.routers[router] == nil {
		x.routers[router] = x.c.through()
	}
	c := x.routers[router]
	send := func(line string) bson.M { return c.asNew(db, line) }
	switch {
	case shard != "":
		send = func(line string) bson.M { return c.onPeer(c.shards[shard], db, line) }
	case txn != "":
		w := x.txnClients[txn]
		if w == nil {
			w = c.txnClient(int(txn[0] - 'A'))
			x.txnClients[txn] = w
		}
		w.c = c
		start := d.HasArg("start")
		send = func(line string) bson.M {
			m, _ := w.do(db, line, start)
			start = false
			return m
		}
	}
	lines := strings.Split(strings.TrimSpace(d.Input), "\n")
	all := func() string {
		var out strings.Builder
		for _, line := range lines {
			out.WriteString(showReply(send(line)) + "\n")
		}
		return out.String()
	}
	if begin == "" {
		return all()
	}
	replies := make(chan string, 1)
	x.begun[begin] = replies
	go func() { replies <- all() }()
	return ""
}

// stepDown replaces a primary by itself, of the next term: its operations are interrupted, what it held in memory is gone, and it
// recovers from its documents.
func (x *protocolScript) stepDown(t *testing.T, shard string) {
	at := x.c.shards[shard]
	for _, cmd := range []string{`{"replSetStepDown": 1, "secondaryCatchUpPeriodSecs": 0, "force": true}`, `{"replSetFreeze": 0}`} {
		if m := x.c.onPeer(at, "admin", cmd); m["ok"] != 1.0 {
			t.Fatalf("%s: %v", cmd, m)
		}
	}
	x.c.until(shard+" has a primary", func() bool { return x.c.onPeer(at, "admin", `{"hello": 1}`)["isWritablePrimary"] == true })
}

// asNew sends a command through the router as a client without a history.
func (c *testCluster) asNew(db, cmd string) bson.M {
	return c.as(command.NewClient(50, "test", "test", nil), db, cmd)
}

// onPeer sends a command to a node itself.
func (c *testCluster) onPeer(p cluster.Peer, db, cmd string) bson.M {
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
		c.t.Error(err)
		return nil
	}
	body, err := bson.Marshal(append(d, bson.E{Key: "$db", Value: db}))
	if err != nil {
		c.t.Error(err)
		return nil
	}
	reply, err := p.Call(context.Background(), &wire.Message{OpCode: wire.OpMsg, Body: body}, nil)
	if err != nil {
		return bson.M{"ok": 0.0, "codeName": err.Error()}
	}
	return decode(c.t, reply)
}

// showReply prints what a reply says that is the same in every run.
func showReply(m bson.M) string {
	if m["ok"] != 1.0 {
		out := fmt.Sprint(m["codeName"])
		if labels, ok := m["errorLabels"].(bson.A); ok {
			out += fmt.Sprint(" ", labels)
		}
		return out
	}
	if cur, ok := m["cursor"].(bson.D); ok {
		batch, _ := get(cur, "firstBatch").(bson.A)
		return strings.Trim(show(batch), "[]")
	}
	var fields []string
	for k, v := range m {
		switch k {
		case "ok", "operationTime", "$clusterTime", "$topologyTime", "$configTime", "millis", "electionId", "opTime", "recoveryToken", "readOnly":
		case "writeErrors":
			for _, e := range v.(bson.A) {
				fields = append(fields, fmt.Sprintf("writeError %v", get(e, "code")))
			}
		default:
			fields = append(fields, fmt.Sprintf("%s %s", k, show(v)))
		}
	}
	if len(fields) == 0 {
		return "ok"
	}
	slices.Sort(fields)
	return strings.Join(fields, ", ")
}

func (x *protocolScript) placement(ns string) string {
	coll := x.c.all("config", fmt.Sprintf(`{"find": "collections", "filter": {"_id": %q}}`, ns))
	if len(coll) == 0 {
		return "not sharded\n"
	}
	id, err := bson.MarshalExtJSON(bson.M{"uuid": get(coll[0], "uuid")}, false, false)
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, ch := range x.c.all("config", fmt.Sprintf(`{"find": "chunks", "filter": %s, "sort": {"min": 1}}`, id)) {
		at := get(ch, "lastmod").(bson.Timestamp)
		fmt.Fprintf(&out, "%s %s %s %d|%d\n", show(get(ch, "min")), show(get(ch, "max")), get(ch, "shard"), at.T, at.I)
	}
	return out.String()
}

// left counts the documents of a shard's unfinished work.
func (x *protocolScript) left(shard string) string {
	var out strings.Builder
	for _, coll := range []string{"migrationCoordinators", "rangeDeletions", "transaction_coordinators", "collection_critical_sections", "migrationRecipients"} {
		m := x.c.admin(x.c.shards[shard], bson.D{{Key: "count", Value: coll}, {Key: "query", Value: bson.D{}}, {Key: "$db", Value: "config"}})
		if n := m["n"].(int32); n > 0 {
			fmt.Fprintf(&out, "%s %d\n", coll, n)
		}
	}
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}
