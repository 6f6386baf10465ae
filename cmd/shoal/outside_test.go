package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// outsider is a server in a process of its own, as an operator starts it.
type outsider struct {
	t      *testing.T
	as     string // what it stands in for: the real server (asWhole)
	args   []string
	port   int
	log    string
	cmd    *exec.Cmd
	ended  chan struct{}
	direct *mongo.Client
}

func newOutsider(t *testing.T, args ...string) *outsider {
	t.Helper()
	port := freePorts(t, 1)
	o := &outsider{t: t, as: asWhole, args: append(args, "--bind_ip", "127.0.0.1", "--port", strconv.Itoa(port)), port: port}
	o.log = filepath.Join(t.TempDir(), "log")
	t.Cleanup(o.kill)
	o.direct = connect(t, fmt.Sprintf("mongodb://%s/?directConnection=true%s", o.at(), encryption(args)))
	return o
}

func (o *outsider) at() string { return "127.0.0.1:" + strconv.Itoa(o.port) }

// start starts the server without waiting for it, by another command than its own if as makes one.
func (o *outsider) start(as ...func(name string, args []string) *exec.Cmd) {
	o.t.Helper()
	o.cmd = exec.Command(os.Args[0], o.args...)
	for _, f := range as {
		o.cmd = f(os.Args[0], o.args)
	}
	o.cmd.Env = append(os.Environ(), asShoal+"="+o.as)
	log, err := os.OpenFile(o.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		o.t.Fatal(err)
	}
	o.cmd.Stdout, o.cmd.Stderr = log, log
	if err := o.cmd.Start(); err != nil {
		o.t.Fatal(err)
	}
	o.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait()
		_ = log.Close()
		close(ended)
	}(o.cmd, o.ended)
}

// listens waits until the server takes connections.
func (o *outsider) listens() {
	o.t.Helper()
	await.True(o.t, fmt.Sprint(o.args), func() bool {
		c, err := net.Dial("tcp", o.at())
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

func (o *outsider) signal(s syscall.Signal) { _ = o.cmd.Process.Signal(s) }

func (o *outsider) kill() {
	if o.cmd == nil {
		return
	}
	o.signal(syscall.SIGKILL)
	<-o.ended
	o.cmd = nil
	raw, _ := os.ReadFile(o.log)
	if n := bytes.Count(raw, []byte(`"id":4757800`)); n > 0 {
		o.t.Errorf("%v: %d commands ended in a panic", o.args, n)
	}
	if dir := keepDir(); dir != "" && o.t.Failed() {
		_ = os.WriteFile(filepath.Join(dir, strconv.Itoa(o.port)+".log"), raw, 0o600)
	}
}

// hello asks the server for its state; nil if it does not reply.
func (o *outsider) hello() bson.M { return helloOf(o.direct, o.cmd != nil) }

func helloOf(direct *mongo.Client, running bool) bson.M {
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	var r bson.M
	if !running || direct.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&r) != nil {
		return nil
	}
	return r
}

// outsideSet is a replica set of such servers.
type outsideSet struct {
	t       *testing.T
	name    string
	role    string
	args    []string
	members []*outsider
}

func launchOutside(t *testing.T, name, role string, members int, args ...string) *outsideSet {
	t.Helper()
	s := &outsideSet{t: t, name: name, role: role, args: args}
	for range members {
		s.launch()
	}
	for _, m := range s.members {
		m.listens()
	}
	list := bson.A{}
	for i, m := range s.members {
		list = append(list, bson.D{{Key: "_id", Value: i}, {Key: "host", Value: m.at()}})
	}
	config := bson.D{{Key: "_id", Value: name}, {Key: "members", Value: list}, {Key: "settings", Value: bson.D{{Key: "electionTimeoutMillis", Value: 2000}}}}
	if role == "--configsvr" {
		config = append(config, bson.E{Key: "configsvr", Value: true})
	}
	s.command(s.members[0], bson.D{{Key: "replSetInitiate", Value: config}})
	s.ready()
	return s
}

// launch starts one more server, which is no member yet.
func (s *outsideSet) launch() *outsider {
	s.t.Helper()
	m := newOutsider(s.t, append([]string{"mongod", s.role, "--replSet", s.name, "--dbpath", s.t.TempDir()}, s.args...)...)
	s.members = append(s.members, m)
	m.start()
	return m
}

func (s *outsideSet) conn() string {
	var at []string
	for _, m := range s.members {
		at = append(at, m.at())
	}
	return s.name + "/" + strings.Join(at, ",")
}

func (s *outsideSet) eventually(what string, yes func() bool) {
	s.t.Helper()
	eventually(s.t, s.name+": "+what, yes)
}

func eventually(t *testing.T, what string, yes func() bool) {
	t.Helper()
	await.True(t, what, yes)
}

// ready waits until one member is primary and the other running ones follow it.
func (s *outsideSet) ready() *outsider {
	s.t.Helper()
	var primary *outsider
	s.eventually("one primary, all others secondaries", func() bool {
		primary = nil
		for _, m := range s.members {
			if h := m.hello(); h["isWritablePrimary"] == true {
				primary = m
			} else if m.cmd != nil && h["secondary"] != true {
				return false
			}
		}
		return primary != nil
	})
	return primary
}

func (s *outsideSet) primary() *outsider {
	s.t.Helper()
	var found *outsider
	s.eventually("it has a primary", func() bool {
		i := slices.IndexFunc(s.members, func(m *outsider) bool { return m.hello()["isWritablePrimary"] == true })
		if i >= 0 {
			found = s.members[i]
		}
		return i >= 0
	})
	return found
}

// command runs a command on a member until it succeeds.
func (s *outsideSet) command(m *outsider, cmd bson.D) (reply bson.M) {
	s.t.Helper()
	var err error
	s.eventually(fmt.Sprint(cmd), func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		reply = nil
		if err = m.direct.Database("admin").RunCommand(ctx, cmd).Decode(&reply); err != nil {
			s.t.Logf("%s: %v", s.name, err)
		}
		return err == nil
	})
	return reply
}

// reconfigure changes the set's members, as rs.add and rs.remove do.
func (s *outsideSet) reconfigure(change func(members bson.A) bson.A) {
	s.t.Helper()
	p := s.primary()
	config := s.command(p, bson.D{{Key: "replSetGetConfig", Value: 1}})["config"].(bson.D)
	for i := range config {
		switch config[i].Key {
		case "members":
			config[i].Value = change(config[i].Value.(bson.A))
		case "version":
			config[i].Value = config[i].Value.(int32) + 1
		}
	}
	s.command(p, bson.D{{Key: "replSetReconfig", Value: config}})
}

func (s *outsideSet) add() {
	s.t.Helper()
	m := s.launch()
	m.listens()
	s.reconfigure(func(members bson.A) bson.A {
		return append(members, bson.D{{Key: "_id", Value: len(s.members) + 10}, {Key: "host", Value: m.at()}})
	})
	s.ready()
}

// remove removes a member from the set, after a handover if it is the primary, and ends it for good.
func (s *outsideSet) remove(m *outsider) {
	s.t.Helper()
	for m.hello()["isWritablePrimary"] == true {
		s.stepDown()
		s.primary()
	}
	s.reconfigure(func(members bson.A) bson.A {
		return slices.DeleteFunc(members, func(e any) bool {
			raw, _ := bson.Marshal(e)
			return bson.Raw(raw).Lookup("host").StringValue() == m.at()
		})
	})
	s.members = slices.DeleteFunc(s.members, func(o *outsider) bool { return o == m })
	m.kill()
	s.ready()
}

// stepDown has the primary step down, unless it loses an election before the command arrives.
func (s *outsideSet) stepDown() {
	s.t.Helper()
	p := s.primary()
	s.eventually(p.at()+" steps down", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err := p.direct.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetStepDown", Value: 5}, {Key: "secondaryCatchUpPeriodSecs", Value: 3}}).Err()
		if err != nil {
			s.t.Logf("%s: %v", s.name, err)
		}
		return err == nil || codeOf(err) == int32(mongoerr.NotWritablePrimary)
	})
}

// killPrimary ends the primary without warning; the caller starts it again.
func (s *outsideSet) killPrimary() *outsider {
	s.t.Helper()
	p := s.primary()
	p.kill()
	return p
}

func launchRouter(t *testing.T, config string) *outsider {
	t.Helper()
	r := newOutsider(t, "mongos", "--configdb", config)
	r.start()
	r.listens()
	return r
}

// steadyClient uses routers as an application does, and fails the test at the first error.
type steadyClient struct {
	t       *testing.T
	coll    *mongo.Collection
	wg      sync.WaitGroup
	stop    atomic.Bool
	written atomic.Int64
	slowest atomic.Int64
}

func (c *steadyClient) run(workers int) {
	for w := range workers {
		c.wg.Go(func() {
			for i := 0; !c.stop.Load(); i++ {
				began := time.Now()
				if err := c.once(fmt.Sprint(w, "-", i)); err != nil {
					c.t.Errorf("a client sees after %v: %v", time.Since(began), err)
					return
				}
				if took := int64(time.Since(began)); took > c.slowest.Load() {
					c.slowest.Store(took)
				}
			}
		})
	}
}

// once inserts a document, increments its number, and reads it and another one by their values, on all shards.
func (c *steadyClient) once(id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	defer cancel()
	if _, err := c.coll.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "n", Value: 0}}); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	c.written.Add(1)
	key := bson.D{{Key: "_id", Value: id}}
	if r, err := c.coll.UpdateOne(ctx, key, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil || r.ModifiedCount != 1 {
		return fmt.Errorf("update: %+v %w", r, err)
	}
	var d struct{ N int }
	if err := c.coll.FindOne(ctx, key).Decode(&d); err != nil || d.N != 1 {
		return fmt.Errorf("find: %v %w", d, err)
	}
	if err := c.coll.FindOne(ctx, bson.D{{Key: "n", Value: 7}}).Err(); err != mongo.ErrNoDocuments {
		return fmt.Errorf("find on all shards: %w", err)
	}
	return nil
}

// check stops the client and compares the documents with what was acknowledged.
func (c *steadyClient) check() {
	c.t.Helper()
	c.stop.Store(true)
	c.wg.Wait()
	cur, err := c.coll.Aggregate(context.Background(), bson.A{bson.D{{Key: "$group", Value: bson.D{
		{Key: "_id", Value: nil}, {Key: "docs", Value: bson.D{{Key: "$sum", Value: 1}}}, {Key: "sum", Value: bson.D{{Key: "$sum", Value: "$n"}}}}}}})
	var got []struct{ Docs, Sum int64 }
	if err == nil {
		err = cur.All(context.Background(), &got)
	}
	if n := c.written.Load(); err != nil || len(got) != 1 || got[0].Docs != n || got[0].Sum != n {
		c.t.Errorf("%+v (%v), %d documents were written", got, err, n)
	}
	c.t.Logf("%d documents, the slowest round took %v", c.written.Load(), time.Duration(c.slowest.Load()))
}

// refresh has routers reread their routing tables, and returns how long the slowest read took.
func refresh(t *testing.T, routers ...*outsider) (slowest time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, r := range routers {
		if err := r.direct.Database("admin").RunCommand(ctx, bson.D{{Key: "flushRouterConfig", Value: 1}}).Err(); err != nil {
			t.Error(err)
		}
		began := time.Now()
		if _, err := r.direct.Database("d").Collection("c").CountDocuments(ctx, bson.D{{Key: "_id", Value: "0-0"}}); err != nil {
			t.Errorf("a read that refreshes: %v after %v", err, time.Since(began))
		}
		slowest = max(slowest, time.Since(began))
	}
	return slowest
}

// A cluster of processes whose members come and go, step down, are killed and paused: clients of its routers see no error,
// and a routing table can be read whatever the config server's primary does.
func TestClusterOfSetsFromOutside(t *testing.T) {
	t.Parallel()
	config := launchOutside(t, "cfg", "--configsvr", 3)
	routers := []*outsider{launchRouter(t, config.conn()), launchRouter(t, config.conn())}
	client := connect(t, fmt.Sprintf("mongodb://%s,%s/", routers[0].at(), routers[1].at()))
	admin := func(cmd bson.D) {
		t.Helper()
		if err := client.Database("admin").RunCommand(t.Context(), cmd).Err(); err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
	}
	a, b := launchOutside(t, "a", "--shardsvr", 3), launchOutside(t, "b", "--shardsvr", 3)
	admin(bson.D{{Key: "addShard", Value: a.conn()}})
	admin(bson.D{{Key: "addShard", Value: b.conn()}})
	admin(bson.D{{Key: "shardCollection", Value: "d.c"}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}})
	work := &steadyClient{t: t, coll: client.Database("d").Collection("c")}
	work.run(3)

	a.stepDown()
	config.stepDown()
	a.add()
	a.remove(a.members[0])
	killed := config.killPrimary()
	// The config server has no primary: its secondaries have the tables.
	if took := refresh(t, routers...); took > 1500*time.Millisecond {
		t.Errorf("a refresh took %v while the config server elects", took)
	}
	killed.start()
	killed = b.killPrimary()
	paused := config.ready()
	killed.start()
	b.ready()
	paused.signal(syscall.SIGSTOP)
	if took := refresh(t, routers...); took > 5*time.Second {
		t.Errorf("a refresh took %v with the config server's primary paused", took)
	}
	paused.signal(syscall.SIGCONT)
	work.check()
	var shard struct{ Host string }
	await.True(t, "config.shards follows the members of a", func() bool {
		err := client.Database("config").Collection("shards").FindOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}).Decode(&shard)
		return err == nil && sameMembers(shard.Host, a.conn())
	})
}

// sameMembers compares connection strings whatever the order of their hosts.
func sameMembers(x, y string) bool {
	sorted := func(conn string) []string {
		set, hosts, _ := strings.Cut(conn, "/")
		all := strings.Split(hosts, ",")
		slices.Sort(all)
		return append(all, set)
	}
	return slices.Equal(sorted(x), sorted(y))
}

// All addresses that config server and shard had when the cluster was created may vanish: restarted nodes find them at
// their current ones.
func TestFirstAddressesVanish(t *testing.T) {
	t.Parallel()
	config, shard := launchOutside(t, "cfg", "--configsvr", 1), launchOutside(t, "a", "--shardsvr", 1)
	router := launchRouter(t, config.conn())
	ctx := t.Context()
	if err := router.direct.Database("admin").RunCommand(ctx, bson.D{{Key: "addShard", Value: shard.conn()}}).Err(); err != nil {
		t.Fatal(err)
	}
	coll := router.direct.Database("d").Collection("c")
	if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*outsideSet{config, shard} {
		first := s.members[0]
		s.add()
		s.add()
		s.remove(first)
	}
	stored := func() string {
		var id struct {
			ConfigDB string `bson:"configsvrConnectionString"`
		}
		version := shard.primary().direct.Database("admin", options.Database().SetReadPreference(readpref.Nearest())).Collection("system.version")
		_ = version.FindOne(ctx, bson.D{{Key: "_id", Value: "shardIdentity"}}).Decode(&id)
		return id.ConfigDB
	}
	await.True(t, "the shard's identity has the config server's members", func() bool { return sameMembers(stored(), config.conn()) })
	if r := shard.command(shard.primary(), bson.D{{Key: "shardingState", Value: 1}}); !sameMembers(r["configServer"].(string), config.conn()) {
		t.Errorf("shardingState: %v", r["configServer"])
	}
	await.True(t, "config.shards has the shard's members", func() bool {
		var d struct{ Host string }
		err := router.direct.Database("config").Collection("shards").FindOne(ctx, bson.D{}).Decode(&d)
		return err == nil && sameMembers(d.Host, shard.conn())
	})
	var places struct{ Map struct{ Config, A string } }
	if err := router.direct.Database("admin").RunCommand(ctx, bson.D{{Key: "getShardMap", Value: 1}}).Decode(&places); err != nil ||
		!sameMembers(places.Map.Config, config.conn()) || !sameMembers(places.Map.A, shard.conn()) {
		t.Errorf("getShardMap: %+v, %v", places, err)
	}
	router.kill()
	for _, m := range append(shard.members, config.members...) {
		m.kill()
	}
	for _, m := range append(shard.members, config.members...) {
		m.start() // shards first: their config server is not running yet
	}
	config.ready()
	shard.ready()
	router = launchRouter(t, config.conn())
	coll = router.direct.Database("d").Collection("c")
	if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 2}}); err != nil {
		t.Error(err)
	}
	if n, err := coll.CountDocuments(ctx, bson.D{}); err != nil || n != 2 {
		t.Errorf("%d documents, %v", n, err)
	}
}
