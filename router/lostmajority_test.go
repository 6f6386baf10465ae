package router_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/shardnode"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// testSet is a shard of three members in this process, whose calls to each other can be cut.
type testSet struct {
	servers map[string]*shardnode.Server
	client  *command.Client
	cut     atomic.Bool
	lost    sync.Map // hosts that reach nobody and that nobody reaches
}

// testLink makes the calls of one member of a set.
type testLink struct {
	*testSet
	from string
}

// lose cuts a member off, in both directions, until the test ends: a response to its own calls brings entries, too.
func (x *testSet) lose(host string) { x.lost.Store(host, true) }

var errCut = errors.New("the network is cut")

func (x testLink) Send(ctx context.Context, host string, payload []byte) ([]byte, error) {
	return shardnode.SendRaft(payload, func(cmd []byte) ([]byte, error) { return x.ask(ctx, host, cmd) })
}

func (x testLink) ask(ctx context.Context, host string, cmd []byte) ([]byte, error) {
	if s := x.servers[host]; s != nil && x.up(host) {
		reply := s.Service.Run(ctx, x.client, &wire.Message{OpCode: wire.OpMsg, Body: cmd}, nil)
		if x.up(host) {
			return reply, cluster.ReplyError(reply)
		}
	}
	time.Sleep(time.Millisecond) // about as long as a refused connection takes, since callers try again at once
	return nil, errCut
}

// up reports whether the connection to another member is whole.
func (x testLink) up(host string) bool {
	_, lost := x.lost.Load(host)
	_, lone := x.lost.Load(x.from)
	return !lost && !lone && !x.cut.Load()
}

// steady is the election timeout of these sets: long enough that a primary without a majority does not step down during a test, however busy the machine is. What ends
// within half of it has not waited for that.
const steady = time.Minute

// addSet adds a shard of three members, of which the first is primary.
func (c *testCluster) addSet(id string) *testSet {
	c.t.Helper()
	x := &testSet{servers: map[string]*shardnode.Server{}, client: command.NewClient(1, "member", "member", nil)}
	x.client.Internal = true
	var hosts []string
	var list []*shardnode.Server
	for i := range 3 {
		host := fmt.Sprintf("%s:%d", id, 27018+i)
		hosts = append(hosts, host)
		l := testLink{x, host}
		s := c.opened(shardnode.Config{SetName: id, Host: host, Repl: shardnode.ReplOptions{Transport: l, Ask: l.ask, Memory: true, Together: true}})
		list = append(list, s)
	}
	for i, s := range list {
		x.servers[hosts[i]] = s
	}
	conf := replication.NewConfig(id, hosts...)
	conf.Settings.ElectionTimeout, conf.Settings.HeartbeatInterval = steady, time.Second
	conf.Members[1].Priority, conf.Members[2].Priority = 0, 0
	if err := list[0].Repl.Initiate(context.Background(), conf); err != nil {
		c.t.Fatal(err)
	}
	c.join(id, hosts[0], list...)
	c.until("the set has three voters", func() bool { // a new one does once it has caught up
		n := 0
		for _, m := range list[0].Repl.Status().Members {
			if m.Voting {
				n++
			}
		}
		return n == 3 && list[0].Repl.Writable()
	})
	return x
}

// timedOut runs a command, which must soon report that its wtimeout has passed.
func (c *testCluster) timedOut(db, cmd string) bson.M {
	c.t.Helper()
	start := time.Now()
	m := c.raw(db, cmd[:len(cmd)-1]+`, "writeConcern": {"w": "majority", "wtimeout": 20}}`)
	code := m["code"]
	if e := m["writeConcernError"]; m["ok"] == 1.0 && e != nil {
		code = get(e, "code")
	}
	if code != int32(mongoerr.WriteConcernTimeout) || time.Since(start) > steady/2 {
		c.t.Errorf("%s: after %v %v", cmd, time.Since(start), m)
	}
	return m
}

// A shard has lost its majority: commands through the router return at their wtimeout. Once it is back, the operations that
// were executed have taken effect, and the others have left no trace.
func TestShardWithoutAMajority(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	x := c.addSet("shardx")
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shardx"}`)
	c.run("d", `{"insert": "src", "documents": [{"_id": 1}, {"_id": 2}]}`)
	c.run("d", `{"insert": "merged", "documents": [{"_id": 1, "x": 1}]}`)
	c.run("admin", `{"shardCollection": "d.both", "key": {"_id": 1}}`)
	c.run("admin", `{"split": "d.both", "middle": {"_id": 0}}`)
	c.run("admin", `{"moveChunk": "d.both", "find": {"_id": 1}, "to": "shard0", "_waitForDelete": true}`)
	session := func(n int, cmd, more string) string {
		return cmd[:len(cmd)-1] + fmt.Sprintf(`, "lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAA%c==", "subType": "04"}}}, "txnNumber": {"$numberLong": "1"}, "autocommit": false%s}`, "Qg"[n], more)
	}
	// The first participant coordinates the commit: once the shard without a majority, once the other.
	for n, docs := range []string{`{"_id": -5}, {"_id": 5}`, `{"_id": 6}`} {
		c.run("d", session(n, `{"insert": "both", "documents": [`+docs+`]}`, `, "startTransaction": true`))
	}
	c.run("d", session(1, `{"insert": "both", "documents": [{"_id": -6}]}`, ""))
	x.cut.Store(true)
	for n := range 2 {
		for range 2 {
			if m := c.timedOut("admin", session(n, `{"commitTransaction": 1}`, "")); m["ok"] != 1.0 {
				t.Errorf("commitTransaction: %v", m)
			}
		}
	}
	if m := c.timedOut("d", `{"aggregate": "src", "pipeline": [{"$merge": "merged"}], "cursor": {}}`); m["ok"] != 1.0 {
		t.Errorf("$merge: %v", m)
	}
	c.timedOut("d", `{"aggregate": "src", "pipeline": [{"$out": "out"}], "cursor": {}}`)
	c.timedOut("d", `{"insert": "both", "ordered": false, "documents": [{"_id": -7}, {"_id": 7}]}`)
	c.timedOut("d", `{"drop": "src"}`)
	for db, cmd := range map[string]string{
		"d": `{"collMod": "both", "validationLevel": "off"}`, "new": `{"create": "c"}`,
		"admin": `{"moveChunk": "d.both", "find": {"_id": -1}, "to": "shard0"}`,
	} {
		start := time.Now()
		m := c.raw(db, cmd[:len(cmd)-1]+`, "maxTimeMS": 100}`)
		if db != "new" && m["ok"] == 1.0 && m["writeConcernError"] == nil || time.Since(start) > steady/2 {
			t.Errorf("%s: after %v %v", cmd, time.Since(start), m)
		}
	}
	x.cut.Store(false)
	for n := range 2 {
		c.run("admin", session(n, `{"commitTransaction": 1}`, ""))
	}
	if got := len(c.all("d", `{"find": "both"}`)); got != 6 {
		t.Errorf("%d documents in both shards", got)
	}
	if got := len(c.all("d", `{"find": "merged"}`)); got != 2 {
		t.Errorf("%d documents merged", got)
	}
	await.State(t, "no temporary collection is left", func() (left []string, none bool) {
		c.r.DropTemps(context.Background()) // as at intervals; it does not wait long
		for _, coll := range c.all("d", `{"listCollections": 1, "nameOnly": true}`) {
			if name := get(coll, "name").(string); strings.HasPrefix(name, "tmp") {
				left = append(left, name)
			}
		}
		return left, len(left) == 0
	})
}

// The wtimeout of a DDL passes because another shard has no majority. Past its point of no return, when it will be completed whatever happens, the client is answered as by a set:
// the command has succeeded, and its write concern has not been met. Before it, it is an error of the command.
func TestWtimeoutPastThePointOfNoReturn(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	x := c.addSet("shardx")
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shard0"}`)
	for _, coll := range []string{"a", "b"} {
		c.run("admin", `{"shardCollection": "d.`+coll+`", "key": {"_id": 1}}`)
		c.run("admin", `{"split": "d.`+coll+`", "middle": {"_id": 0}}`)
		c.run("admin", `{"moveChunk": "d.`+coll+`", "find": {"_id": 1}, "to": "shardx", "_waitForDelete": true}`)
	}
	reached, release := c.hangAt("shard0", "dropCollection")
	dropped := c.later("d", `{"drop": "a", "writeConcern": {"w": "majority", "wtimeout": 300}}`)
	reached()
	x.cut.Store(true)
	release()
	m := <-dropped
	if e := m["writeConcernError"]; m["ok"] != 1.0 || e == nil || get(e, "code") != int32(mongoerr.WriteConcernTimeout) || m["ns"] != "d.a" {
		t.Errorf("past it: %v", m)
	}
	if m := c.timedOut("d", `{"drop": "b"}`); m["ok"] == 1.0 {
		t.Errorf("before it: %v", m)
	}
	x.cut.Store(false)
	for _, coll := range []string{"a", "b"} {
		c.run("d", `{"drop": "`+coll+`"}`)
	}
	c.leftOver()
	c.expect(c.all("config", `{"find": "collections", "filter": {"_id": {"$regex": "^d[.]"}}}`), `[]`)
}

// A primary without a majority closes at once, although one of its services waits for the log: it waited until it had stepped down.
func TestCloseWithoutAMajority(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	x := c.addSet("shardx")
	p := x.servers["shardx:27018"]
	x.cut.Store(true)
	var writes atomic.Bool
	ended := make(chan error, 1)
	if err := p.Node.Services.Add(replication.Service{Name: "writer", Run: func(ctx context.Context, _ int64) {
		ended <- p.Node.Docs.WriteWith(ctx, replication.Durable, func(s *storage.Snapshot, u *storage.UnitOfWork) error {
			_, err := u.CreateCollection(storage.CollectionSpec{NS: "d.written"})
			writes.Store(true)
			return err
		})
	}}); err != nil {
		t.Fatal(err)
	}
	c.until("the service writes", writes.Load)
	start := time.Now()
	c.ends[p]()
	if took := time.Since(start); took > steady/2 {
		t.Errorf("closed after %v", took)
	}
	if err := <-ended; err == nil {
		t.Error("the service has written without a majority")
	}
}

// A primary that has lost its majority does not say that a DDL that it coordinates goes on: its successor may have ended it, and a late message of the two would count.
func TestCoordinatorWithoutAMajorityAffirmsNothing(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 1)
	x := c.addSet("shardx")
	c.run("admin", `{"enableSharding": "d", "primaryShard": "shardx"}`)
	c.run("admin", `{"shardCollection": "d.c", "key": {"_id": 1}}`)
	reached, release := c.hangAt("shardx", "dropCollection")
	dropped := c.later("d", `{"drop": "c"}`)
	reached()
	list := c.admin(c.shards["shardx"], bson.D{{Key: "find", Value: "system.sharding_ddl_coordinators"}, {Key: "$db", Value: "config"}})
	ask := &msg.HoldsCriticalSection{Forward: true}
	copy(ask.ID[:], get(get(list["cursor"], "firstBatch").(bson.A)[0], "id").(bson.Binary).Data)
	affirmed := func(more ...value.Field) bool {
		reply, err := cluster.Run(t.Context(), c.shards["shardx"], msg.Doc(ask, more...))
		return err == nil && value.Lookup(reply, "held").Truthy()
	}
	if !affirmed() {
		t.Error("the run goes on")
	}
	x.cut.Store(true)
	if affirmed(value.F("maxTimeMS", value.NewInt64(100))) {
		t.Error("it affirms that without a majority")
	}
	x.cut.Store(false)
	if !affirmed() {
		t.Error("the run goes on after all")
	}
	release()
	if m := <-dropped; m["ok"] != 1.0 {
		t.Error(m)
	}
}
