package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// balancer is a load balancer: it forwards connections, preceded by a header with their source.
type balancer struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

// startBalancer starts one before an address; each of its connections is from header's source.
func startBalancer(t *testing.T, to, header string) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{Listener: l}
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", to)
			if err != nil {
				_ = c.Close()
				continue
			}
			b.mu.Lock()
			b.conns = append(b.conns, c, s)
			b.mu.Unlock()
			_, _ = io.WriteString(s, header)
			for _, way := range [][2]net.Conn{{c, s}, {s, c}} {
				passing.Go(func() {
					_, _ = io.Copy(way[0], way[1])
					_ = way[0].Close()
					_ = way[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		b.cut()
		passing.Wait()
	})
	return b
}

// cut ends all connections.
func (b *balancer) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		_ = c.Close()
	}
}

// A driver with loadBalanced=true works through a load balancer; what it leaves when its connections break is ended at once. Other
// drivers receive the reason.
func TestLoadBalanced(t *testing.T) {
	t.Parallel()
	port := freePorts(t, 1)
	a := startAuditedWith(t, "sharded", "{ atype: 'applicationMessage' }", pair{"loadBalancerPort", strconv.Itoa(port)})
	balanced := fmt.Sprintf("127.0.0.1:%d", port)
	lb := startBalancer(t, balanced, "PROXY TCP4 10.1.2.3 10.0.0.1 4660 27017\r\n")

	// The localhost exception is not for those who say that they come from here.
	forged := startBalancer(t, balanced, "PROXY TCP4 127.0.0.1 127.0.0.1 4660 27017\r\n")
	if _, code, _ := run1(balancedClient(t, forged, "", "loadBalanced=true"), "admin", "createUser", "eve", "pwd", "x", "roles", bson.A{"root"}); code != int(mongoerr.Unauthorized) {
		t.Errorf("createUser from a forged address: %d", code)
	}
	root := a.root()
	via := balancedClient(t, lb, "root:secret@", "loadBalanced=true&maxPoolSize=4")
	ctx := context.Background()
	coll := via.Database("shop").Collection("c")
	a.must(root, "admin", "shardCollection", "shop.c", "key", bson.D{{Key: "_id", Value: "hashed"}})
	var docs []any
	for i := range 100 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}})
	}
	if _, err := coll.InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	cur, err := coll.Find(ctx, bson.D{}, options.Find().SetBatchSize(7))
	var all []bson.D
	if err == nil {
		err = cur.All(ctx, &all)
	}
	if err != nil || len(all) != 100 {
		t.Fatalf("%d documents: %v", len(all), err)
	}
	reply := a.must(via, "admin", "hello", 1)
	if _, ok := reply["serviceId"].(bson.ObjectID); !ok {
		t.Errorf("hello: %v", reply)
	}
	if got := a.must(via, "admin", "whatsmyuri", 1)["you"]; got != "10.1.2.3:4660" {
		t.Errorf("the client is %v", got)
	}
	a.must(via, "admin", "logApplicationMessage", "balanced")
	if l := a.last("applicationMessage", "balanced"); l.Remote["ip"] != "10.1.2.3" {
		t.Errorf("recorded from %v", l.Remote)
	}
	if n := connections(a.must(root, "admin", "serverStatus", 1)); n < 1 {
		t.Errorf("%d balanced connections", n)
	}

	session, err := via.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(ctx)
	if err := session.StartTransaction(); err != nil {
		t.Fatal(err)
	}
	in := mongo.NewSessionContext(ctx, session)
	if _, err := coll.UpdateByID(in, 1, bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}}); err != nil {
		t.Fatal(err)
	}
	if cur, err = coll.Find(ctx, bson.D{}, options.Find().SetBatchSize(7)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cur.Close(ctx) }()
	if n := openCursors(a.must(root, "admin", "serverStatus", 1)); n != 1 {
		t.Fatalf("%d cursors are open", n)
	}
	if _, code, _ := run1(root, "shop", "update", "c", "updates", bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 2}}}}}}}, "maxTimeMS", 300); code != int(mongoerr.MaxTimeMSExpired) {
		t.Fatalf("a write beside a transaction: %d", code)
	}
	lb.cut()
	await.True(t, "what was left is ended", func() bool {
		_, code, _ := run1(root, "shop", "update", "c", "updates", bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}},
			{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 2}}}}}}}, "maxTimeMS", 300)
		return code == 0 && openCursors(a.must(root, "admin", "serverStatus", 1)) == 0
	})

	if _, code, text := run1(balancedClient(t, lb, "", "directConnection=true&serverSelectionTimeoutMS=2000"), "admin", "ping", 1); code == 0 || !strings.Contains(text, "load balancing enabled") {
		t.Errorf("without loadBalanced: %d %s", code, text)
	}
	plain := options.Client().ApplyURI("mongodb://" + balanced + "/?directConnection=true&serverSelectionTimeoutMS=1000")
	c, err := mongo.Connect(plain)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Disconnect(ctx) }()
	if err := c.Ping(ctx, nil); err == nil {
		t.Error("the port for load balancers takes a client without header")
	}
}

func balancedClient(t *testing.T, b *balancer, user, args string) *mongo.Client {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + user + b.Addr().String() + "/?" + args))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

func field(v any, path ...string) any {
	for _, p := range path {
		switch d := v.(type) {
		case bson.M:
			v = d[p]
		case bson.D:
			v = nil
			for _, e := range d {
				if e.Key == p {
					v = e.Value
				}
			}
		default:
			return nil
		}
	}
	return v
}

func connections(status bson.M) int32 {
	n, _ := field(status, "connections", "loadBalanced").(int32)
	return n
}

func openCursors(status bson.M) int64 {
	n, _ := field(status, "metrics", "cursor", "open", "total").(int64)
	return n
}

// The size of messages is limited until their client has authenticated, and then as usual.
func TestMessagesBeforeAuthentication(t *testing.T) {
	g := startGuarded(t, "standalone")
	g.root()
	long := strings.Repeat("x", 20000)
	if _, code, _ := run1(g.client("", "", ""), "admin", "ping", 1, "comment", long); code == 0 {
		t.Error("a stranger's long message is accepted")
	}
	root := g.client("root", "secret", "")
	g.must(root, "admin", "ping", 1, "comment", long)
	g.must(root, "admin", "setParameter", 1, "preAuthMaximumMessageSizeBytes", 100000)
	g.must(g.client("", "", ""), "admin", "ping", 1, "comment", long)
}

// A parameter for routers is refused where there is none, and its port has to be another than the server's.
func TestLoadBalancerPortFits(t *testing.T) {
	if _, err := parse(isMongod, []string{"--setParameter", "loadBalancerPort=20100"}); err == nil || !strings.Contains(err.Error(), "routers") {
		t.Errorf("mongod: %v", err)
	}
	if _, err := balancedAddrs([]string{"127.0.0.1:27017"}, 27017); err == nil {
		t.Error("the same port twice is accepted")
	}
	if got, err := balancedAddrs([]string{"127.0.0.1:27017", "[::1]:27017", "/tmp/mongodb-27017.sock"}, 20100); err != nil || strings.Join(got, " ") != "127.0.0.1:20100 [::1]:20100" {
		t.Errorf("%v %v", got, err)
	}
	c := newConfig(isMongod)
	if err := setOverride(c, "127.0.0.1,10.0.0.0/8,/tmp/mongodb-27017.sock"); err != nil {
		t.Fatal(err)
	}
	exempt := exemptAddrs(c.MaxConnsOverride)
	for addr, want := range map[string]bool{"127.0.0.1": true, "10.20.30.40": true, "::ffff:10.1.1.1": true, "192.168.0.1": false, "::1": false} {
		if exempt(&net.TCPAddr{IP: net.ParseIP(addr)}) != want {
			t.Errorf("%s: %v", addr, !want)
		}
	}
	if !exempt(&net.UnixAddr{}) || setOverride(c, "everybody") == nil {
		t.Error("sockets are held up, or anything is taken for an address")
	}
}
