package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/sdam"
	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// testSet is a replica set in this process, and a client that monitors it.
type testSet struct {
	t      *testing.T
	hosts  []string
	client *mongo.Client
	others []*mongo.Client // of one member each
	stop   func()
}

func startTestSet(t *testing.T, replicas int, dir string, params ...pair) *testSet {
	t.Helper()
	h := startHere(t, func(c *config) {
		c.Topology, c.Replicas = "replset", replicas
		c.DBPath, c.Memory, c.Parameters = dir, dir == "", params
	})
	s := &testSet{t: t}
	for _, a := range h.Addrs {
		s.hosts = append(s.hosts, a.String())
	}
	var err error
	s.client, err = mongo.Connect(options.Client().ApplyURI("mongodb://" + strings.Join(s.hosts, ",") + "/?replicaSet=rs0"))
	if err != nil {
		t.Fatal(err)
	}
	s.stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for _, c := range append(s.others, s.client) {
			if err := c.Disconnect(ctx); err != nil {
				t.Error(err)
			}
		}
		h.stop()
	})
	t.Cleanup(s.stop)
	return s
}

// admin runs a command on the primary.
func (s *testSet) admin(ctx context.Context, cmd bson.D) bson.M {
	s.t.Helper()
	var out bson.M
	if err := s.client.Database("admin").RunCommand(ctx, cmd).Decode(&out); err != nil {
		s.t.Fatalf("%v: %v", cmd, err)
	}
	return out
}

// direct returns a client of one member alone.
func (s *testSet) direct(host string) *mongo.Client {
	c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + host + "/?directConnection=true"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.others = append(s.others, c)
	return c
}

// primary waits for a primary other than not and returns its address.
func (s *testSet) primary(ctx context.Context, not string) string {
	s.t.Helper()
	clients := map[string]*mongo.Client{}
	for _, h := range s.hosts {
		clients[h] = s.direct(h)
	}
	return await.State(s.t, "a primary other than "+not, func() (string, bool) {
		for _, h := range s.hosts {
			var hello bson.M
			err := clients[h].Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello)
			if err == nil && hello["isWritablePrimary"] == true && h != not {
				return h, true
			}
		}
		if ctx.Err() != nil {
			s.t.Fatal("no primary")
		}
		return "", false
	})
}

// What a set of three reports, and what each member does and refuses.
func TestReplicaSet(t *testing.T) {
	s := startTestSet(t, 3, "")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	everywhere := options.Collection().SetWriteConcern(&writeconcern.WriteConcern{W: 3})
	coll := s.client.Database("d").Collection("c", everywhere)
	if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	status := s.admin(ctx, bson.D{{Key: "replSetGetStatus", Value: 1}})
	if n := len(status["members"].(bson.A)); n != 3 {
		t.Errorf("%d members", n)
	}
	primary := s.primary(ctx, "")
	wire := plainDirectory(nil)
	defer wire.close(ctx)
	for _, h := range s.hosts {
		c := s.direct(h)
		var hello bson.M
		if err := c.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
			t.Fatal(err)
		}
		if hello["primary"] != primary || hello["me"] != h || hello["secondary"] != (h != primary) || len(hello["hosts"].(bson.A)) != 3 {
			t.Errorf("hello of %s: %v", h, hello)
		}
		if h == primary {
			continue
		}
		secondary := c.Database("d", options.Database().SetReadPreference(readpref.Secondary())).Collection("c")
		if n, err := secondary.CountDocuments(ctx, bson.D{}); err != nil || n != 1 {
			t.Errorf("a secondary counts %d, %v", n, err)
		}
		for code, cmd := range map[mongoerr.Code]bson.D{
			mongoerr.NotWritablePrimary:      {{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{}}}, {Key: "$db", Value: "d"}},
			mongoerr.NotPrimaryNoSecondaryOk: {{Key: "find", Value: "c"}, {Key: "$db", Value: "d"}},
		} {
			raw, err := bson.Marshal(cmd)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := wire.ask(ctx, h, raw); mongoerr.CodeOf(err) != code { // without the read preference that a driver adds
				t.Errorf("%v on a secondary: %v, want code %d", cmd, err, code)
			}
		}
	}
	strict := s.client.Database("d").RunCommand(ctx, bson.D{
		{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 4}}},
	})
	if raw, err := strict.Raw(); err == nil || raw.Lookup("writeConcernError", "code").AsInt64() != int64(mongoerr.UnsatisfiableWriteConcern) {
		t.Errorf("w: 4: %v, %v", raw, err)
	}
}

// A secondary in maintenance mode serves no reads and does not become primary, keeps replicating, and returns after as
// many calls as it was entered with.
func TestMaintenanceMode(t *testing.T) {
	s := startTestSet(t, 3, "")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	primary := s.primary(ctx, "")
	at := s.hosts[0]
	if at == primary {
		at = s.hosts[1]
	}
	d := plainDirectory(nil)
	defer d.close(ctx)
	ask := func(host, cmd string) (bson.M, mongoerr.Code) {
		t.Helper()
		var doc bson.D
		if err := bson.UnmarshalExtJSON([]byte(cmd), false, &doc); err != nil {
			t.Fatal(err)
		}
		raw, _ := bson.Marshal(doc)
		reply, err := d.ask(ctx, host, raw)
		var r bson.M
		if err == nil {
			err = bson.Unmarshal(reply, &r)
		}
		return r, mongoerr.CodeOf(err)
	}
	const find, far = `{"find": "c", "$db": "d"}`, `{"find": "c", "$db": "d", "$readPreference": {"mode": "secondaryPreferred"}}`
	mode := func(host, on string) mongoerr.Code {
		_, code := ask(host, `{"replSetMaintenance": `+on+`, "$db": "admin"}`)
		return code
	}
	state := func(recovering bool) {
		t.Helper()
		hello, _ := ask(at, `{"hello": 1, "$db": "admin"}`)
		status, _ := ask(at, `{"replSetGetStatus": 1, "$db": "admin"}`)
		_, code := ask(at, far)
		want, role := mongoerr.Code(0), int32(2)
		if recovering {
			want, role = mongoerr.NotPrimaryOrSecondary, 3
		}
		if hello["secondary"] != !recovering || hello["isWritablePrimary"] != false || status["myState"] != role || code != want {
			t.Errorf("recovering %v: secondary %v, state %v, a read answers %d", recovering, hello["secondary"], status["myState"], code)
		}
	}
	if code := mode(primary, "true"); code != mongoerr.NotSecondary {
		t.Errorf("on the primary: code %d", code)
	}
	if code := mode(at, "false"); code != mongoerr.OperationFailed {
		t.Errorf("nothing to end: code %d", code)
	}
	for range 2 {
		if code := mode(at, "true"); code != 0 {
			t.Fatalf("code %d", code)
		}
		state(true)
	}
	if _, code := ask(at, find); code != mongoerr.NotPrimaryNoSecondaryOk {
		t.Errorf("a read for the primary: code %d", code)
	}
	everywhere := options.Collection().SetWriteConcern(&writeconcern.WriteConcern{W: 3})
	if _, err := s.client.Database("d").Collection("c", everywhere).InsertOne(ctx, bson.D{{Key: "_id", Value: 1}}); err != nil {
		t.Errorf("it does not follow: %v", err)
	}
	seen := func() bool { // by another member
		status, _ := ask(primary, `{"replSetGetStatus": 1, "$db": "admin"}`)
		raw, _ := bson.Marshal(status)
		return strings.Contains(bson.Raw(raw).String(), `"RECOVERING"`)
	}
	await.True(t, "the primary shows it as RECOVERING", seen)
	if _, code := ask(primary, `{"replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 5, "$db": "admin"}`); code != 0 {
		t.Errorf("stepping down: code %d", code)
	}
	next := s.primary(ctx, primary)
	if next == at {
		t.Error("a member in maintenance became primary")
	}
	metrics, _ := ask(next, `{"serverStatus": 1, "$db": "admin"}`)
	raw, _ := bson.Marshal(metrics)
	if n, ok := bson.Raw(raw).Lookup("electionMetrics", "numCatchUpsAlreadyCaughtUp").AsInt64OK(); !ok || n != 1 {
		t.Errorf("the new primary was elected caught up %d times", n)
	}
	mode(at, "false")
	state(true)
	if code := mode(at, "false"); code != 0 {
		t.Errorf("code %d", code)
	}
	state(false)
	if code := mode(at, "false"); code != mongoerr.OperationFailed {
		t.Errorf("out of it already: code %d", code)
	}
}

// The monitors of sets apply their parameters, both those set at start and those changed at run time.
func TestMonitorParameters(t *testing.T) {
	p := cluster.NewParams()
	for name, text := range map[string]string{"replicaSetMonitorProtocol": "sdam", "connectTimeoutMs": "2000", "localThresholdMs": "30"} {
		if err := p.SetStartup(name, text); err != nil {
			t.Fatal(err)
		}
	}
	d := plainDirectory(nil)
	defer d.close(t.Context())
	d.timed(p)
	if _, err := p.SetRuntime([]value.Field{value.F("defaultFindReplicaSetHostTimeoutMS", value.NewInt32(700))}); err != nil {
		t.Fatal(err)
	}
	want := sdam.DefaultTiming
	want.Poll, want.Timeout, want.Window, want.Select = true, 2*time.Second, 30*time.Millisecond, 700*time.Millisecond
	if got := d.monitors.Timing(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := p.SetStartup("replicaSetMonitorProtocol", "scan"); mongoerr.CodeOf(err) != mongoerr.BadValue {
		t.Errorf("an unknown protocol: %v", err)
	}
}

// A monitor asks each member once, and then reads what the member streams.
func TestMonitorReadsStreamedHellos(t *testing.T) {
	s := startTestSet(t, 3, "")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	old := s.primary(ctx, "")
	member := s.direct(old)
	streams := func() int32 {
		var r struct {
			Connections struct {
				ExhaustHello int32 `bson:"exhaustHello"`
			}
		}
		if err := member.Database("admin").RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Decode(&r); err != nil {
			t.Fatal(err)
		}
		return r.Connections.ExhaustHello
	}
	steady := func() (n int32) {
		same := 0
		await.State(t, "the number of streams stays the same", func() (int32, bool) {
			was := n
			if n = streams(); n != was || n == 0 {
				same = 0
			}
			same++
			return n, same >= 20
		})
		return n
	}
	before := steady() // of clients
	d := plainDirectory(cluster.NewVectorClock(nil))
	defer d.close(ctx)
	p, err := d.dial("rs0", s.hosts[:1])
	if err != nil {
		t.Fatal(err)
	}
	await.State(t, fmt.Sprintf("there are more streams than the %d before", before), func() (int32, bool) { n := streams(); return n, n > before })
	if err := member.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetStepDown", Value: 10}, {Key: "secondaryCatchUpPeriodSecs", Value: 5}}).Err(); err != nil {
		t.Fatal(err)
	}
	next := s.primary(ctx, old)
	late, began := measureLag(), time.Now()
	await.State(t, "the monitor knows of "+next, func() (string, bool) {
		set := p.(*sdam.Handle).Topology()
		now := set.Primary()
		return fmt.Sprintf("%+v", set), now != nil && now.Host == next
	})
	// A member's streamed hello reports it at once; polling would take up to a heartbeat.
	if took, lag := time.Since(began), late(); took > time.Second+lag {
		t.Errorf("the monitor knows of %s after %v (the machine was late by %v)", next, took, lag)
	}
	with := steady()
	cluster.Release(p)
	await.State(t, "the stream that nobody reads ends", func() (int32, bool) { n := streams(); return n, n < with })
}

// A client with retryable writes sees no error during handovers of the primary, and nothing acknowledged is lost.
func TestStepDownsAreNotSeen(t *testing.T) {
	s := startTestSet(t, 3, "")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	coll := s.client.Database("d").Collection("c")
	writing, done := context.WithCancel(ctx)
	var wg sync.WaitGroup
	written := make([]int, 4)
	for w := range written {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for writing.Err() == nil {
				if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: fmt.Sprint(w, "-", written[w])}}); err != nil {
					t.Errorf("write %d of %d: %v", written[w], w, err)
					return
				}
				written[w]++
			}
		}()
	}
	primary := s.primary(ctx, "")
	for range 4 {
		began := time.Now()
		err := s.direct(primary).Database("admin").RunCommand(ctx, bson.D{{Key: "replSetStepDown", Value: 1}, {Key: "secondaryCatchUpPeriodSecs", Value: 1}}).Err()
		if err != nil {
			t.Errorf("stepping %s down: %v", primary, err)
		}
		old := primary
		primary = s.primary(ctx, old)
		t.Logf("%s took over after %v", primary, time.Since(began))
		if err := s.direct(old).Database("admin").RunCommand(ctx, bson.D{{Key: "replSetFreeze", Value: 0}}).Err(); err != nil {
			t.Errorf("ending the freeze of %s: %v", old, err)
		}
	}
	done()
	wg.Wait()
	total := 0
	for _, n := range written {
		total += n
	}
	if n, err := coll.CountDocuments(ctx, bson.D{}); err != nil || int(n) != total || total == 0 {
		t.Errorf("%d documents of %d, %v", n, total, err)
	}
}

// A set of one grows to three when it is started with more members, and keeps what it had.
func TestSetGrows(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for i, replicas := range []int{1, 3, 3} {
		s := startTestSet(t, replicas, dir)
		coll := s.client.Database("d").Collection("c", options.Collection().SetWriteConcern(&writeconcern.WriteConcern{W: replicas}))
		if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: i}}); err != nil {
			t.Fatal(err)
		}
		for _, h := range s.hosts {
			own := s.direct(h).Database("d", options.Database().SetReadPreference(readpref.Nearest())).Collection("c")
			if n, err := own.CountDocuments(ctx, bson.D{}); err != nil || int(n) != i+1 {
				t.Errorf("start %d: %s has %d documents, %v", i, h, n, err)
			}
		}
		s.stop()
	}
}

// Shards and config server of a cluster change their primary under writes through the router, which sees no error.
func TestShardedClusterOfSets(t *testing.T) {
	c := newConfig(isStart)
	c.Listen, c.Memory, c.Shards, c.Replicas = []string{"127.0.0.1:0"}, true, 1, 3
	a, err := newAssembly(c, newHost(isStart))
	if err == nil {
		err = a.sharded()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + a.roles.Addrs[0].String() + "/"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(client.Disconnect(ctx), a.stop(ctx)); err != nil {
			t.Error(err)
		}
	}()
	var shards struct{ Shards []struct{ Host string } }
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "listShards", Value: 1}}).Decode(&shards); err != nil {
		t.Fatal(err)
	}
	if len(shards.Shards) != 1 || strings.Count(shards.Shards[0].Host, ",") != 2 {
		t.Fatalf("shards %v", shards)
	}
	coll := client.Database("d").Collection("c")
	write := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: i}}); err != nil {
				t.Fatalf("write %d: %v", i, err)
			}
		}
	}
	write(0, 20)
	_, hosts, _ := strings.Cut(shards.Shards[0].Host, "/")
	for i, set := range [][]string{strings.Split(hosts, ","), {"config" + inProcess, "config-1" + inProcess, "config-2" + inProcess}} {
		stepDown(t, ctx, a.peers, set)
		write(20*(i+1), 20*(i+2))
	}
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "shardCollection", Value: "d.s"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}}).Err(); err != nil {
		t.Errorf("sharding a collection with another config server primary: %v", err)
	}
	secondary := client.Database("d", options.Database().SetReadPreference(readpref.Secondary())).Collection("c")
	if n, err := secondary.CountDocuments(ctx, bson.D{}); err != nil || n != 60 {
		t.Errorf("secondaries count %d, %v", n, err)
	}
}

// stepDown makes the primary among some nodes hand over.
func stepDown(t *testing.T, ctx context.Context, d *directory, hosts []string) {
	t.Helper()
	cmd, err := bson.Marshal(bson.D{{Key: "replSetStepDown", Value: 10}, {Key: "secondaryCatchUpPeriodSecs", Value: 5}, {Key: "$db", Value: "admin"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		_, err := d.ask(ctx, h, cmd)
		if err == nil {
			return
		}
		if mongoerr.CodeOf(err) != mongoerr.NotWritablePrimary {
			t.Errorf("stepping %s down: %v", h, err)
		}
	}
	t.Errorf("none of %v was primary", hosts)
}

// plainDirectory is the directory of a process without key file and TLS.
func plainDirectory(clock *cluster.VectorClock) *directory {
	return newDirectory(clock, wire.PoolOptions{Handshake: cluster.Handshake})
}
