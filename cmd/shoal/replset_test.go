package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shoaldb/shoal/internal/await"
)

// replicaSet is a set of servers in processes of their own, which reach each other through a network that can be cut.
type replicaSet struct {
	t       testing.TB
	name    string
	net     *network
	members []*server
}

// electionTimeout is short, so that a test sees many elections.
const electionTimeout = 2 * time.Second

// launchSet starts and initiates a set whose network can be cut.
func launchSet(t testing.TB, members int) *replicaSet {
	t.Helper()
	return launchSetAt(t, members, true)
}

// launchSetAt is launchSet with proxies between the members, or without.
func launchSetAt(t testing.TB, members int, proxies bool) *replicaSet {
	t.Helper()
	t.TempDir() // ends last
	rs := newSet(t, newNetwork(), "rs", members, proxies)
	t.Cleanup(rs.net.close)
	t.Cleanup(rs.stop) // before the network ends
	rs.initiate()
	return rs
}

// newSet creates the servers of a set to be initiated; more are their options.
func newSet(t testing.TB, n *network, name string, members int, proxies bool, more ...string) *replicaSet {
	t.Helper()
	rs := &replicaSet{t: t, name: name, net: n}
	dir := t.TempDir()
	for i := range members {
		s := newServer(t, n, fmt.Sprintf("%s-%d", name, i), dir, proxies)
		s.args = append([]string{"mongod", "--replSet", name, "--dbpath", s.dbpath()}, more...)
		rs.members = append(rs.members, s)
	}
	return rs
}

// initiate starts the members and makes them a set.
func (rs *replicaSet) initiate() {
	rs.t.Helper()
	var config bson.A
	for i, m := range rs.members {
		rs.start(i)
		config = append(config, bson.D{{Key: "_id", Value: i}, {Key: "host", Value: m.at}})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	doc := bson.D{
		{Key: "_id", Value: rs.name}, {Key: "members", Value: config},
		{Key: "settings", Value: bson.D{{Key: "electionTimeoutMillis", Value: electionTimeout.Milliseconds()}}},
	}
	if slices.Contains(rs.members[0].args, "--configsvr") {
		doc = append(doc, bson.E{Key: "configsvr", Value: true})
	}
	if err := rs.members[0].direct.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetInitiate", Value: doc}}).Err(); err != nil {
		rs.t.Fatal(err)
	}
	rs.waitReady(30 * time.Second)
}

func connect(t testing.TB, uri string) *mongo.Client {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(10 * time.Second).SetConnectTimeout(2 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Disconnect(ctx)
	})
	return c
}

// hosts are the addresses of the members, as configurations have them.
func (rs *replicaSet) hosts() string {
	var at []string
	for _, m := range rs.members {
		at = append(at, m.at)
	}
	return strings.Join(at, ",")
}

// uri is what an application connects to.
func (rs *replicaSet) uri() string { return "mongodb://" + rs.hosts() + "/?replicaSet=" + rs.name }

// start starts a member and waits until it listens.
func (rs *replicaSet) start(i int) {
	rs.t.Helper()
	rs.members[i].start()
}

func (rs *replicaSet) dbpath(i int) string { return rs.members[i].dbpath() }

// kill ends a member without warning.
func (rs *replicaSet) kill(i int) { rs.members[i].end(syscall.SIGKILL) }

func (rs *replicaSet) stop() {
	for _, m := range rs.members {
		m.stop()
	}
}

// state asks a member for its state; "" if it does not reply.
func (rs *replicaSet) state(i int) (role string, term int64) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var r struct {
		MyState int   `bson:"myState"`
		Term    int64 `bson:"term"`
	}
	if !rs.members[i].running() || rs.members[i].direct.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetGetStatus", Value: 1}},
		options.RunCmd().SetReadPreference(readpref.Nearest())).Decode(&r) != nil {
		return "", 0
	}
	switch r.MyState {
	case 1:
		return "primary", r.Term
	case 2:
		return "secondary", r.Term
	}
	return strconv.Itoa(r.MyState), r.Term
}

// primary returns the member that reports itself as primary, of the newest term; -1 if there is none.
func (rs *replicaSet) primary() int {
	at, best := -1, int64(-1)
	for i := range rs.members {
		if role, term := rs.state(i); role == "primary" && term > best {
			at, best = i, term
		}
	}
	return at
}

// watchPrimary checks continuously whether the set has a primary, until stop, which returns the longest time without one.
// It logs times that are longer than elections take.
func (rs *replicaSet) watchPrimary(began time.Time) (stop func() time.Duration) {
	done, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		most, since := time.Duration(0), time.Now()
		for {
			now := time.Now()
			gap := now.Sub(since)
			most = max(most, gap)
			if rs.primary() >= 0 {
				if gap > 3*electionTimeout {
					rs.t.Logf("%v: %s had no primary for %v", now.Sub(began).Round(time.Millisecond), rs.name, gap.Round(time.Millisecond))
				}
				since = now
			}
			select {
			case <-done:
				longest <- most
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() time.Duration { close(done); return <-longest }
}

// awaitPrimaryBut waits for a primary other than a member that was.
func (rs *replicaSet) awaitPrimaryBut(old int) {
	rs.t.Helper()
	await.State(rs.t, fmt.Sprintf("a primary of %s other than %d", rs.name, old), func() (int, bool) {
		now := rs.primary()
		return now, now >= 0 && now != old
	})
}

// waitReady waits until every member is primary or secondary, and one of them primary.
func (rs *replicaSet) waitReady(limit time.Duration) {
	rs.t.Helper()
	var roles []string
	p := patience{looks: int(limit / lookPace)}
	for p.left() {
		roles = roles[:0]
		var terms []int64
		primaries, ready := 0, 0
		for i := range rs.members {
			role, term := rs.state(i)
			roles, terms = append(roles, role), append(terms, term)
			switch role {
			case "primary":
				primaries++
				ready++
			case "secondary":
				ready++
			}
		}
		if primaries == 1 && ready == len(rs.members) {
			return
		}
		p.saw(fmt.Sprint(roles, terms))
	}
	rs.t.Fatalf("after %v the members are %q", p, roles)
}

// lookPace is the pause between two checks of a wait.
const lookPace = 50 * time.Millisecond

// patience is a wait that ends when nothing has changed for the given number of checks, and after ten times as many in
// any case. On a busy machine a check takes longer.
type patience struct {
	looks, same, all int
	last             string
}

func (p *patience) left() bool { return p.same < p.looks && p.all < 10*p.looks }

// saw records the result of a check, and pauses.
func (p *patience) saw(what string) {
	if p.same++; what != p.last {
		p.same, p.last = 0, what
	}
	p.all++
	time.Sleep(lookPace) // the pause between two looks of the waits of this file
}

func (p patience) String() string {
	return fmt.Sprintf("%d looks, %d of them at the same", p.all, p.same)
}

// dbHash asks a member for the sums of a database.
func (rs *replicaSet) dbHash(ctx context.Context, i int, db string) (string, error) {
	var r struct {
		MD5         string            `bson:"md5"`
		Collections map[string]string `bson:"collections"`
	}
	err := rs.members[i].direct.Database(db).RunCommand(ctx, bson.D{{Key: "dbHash", Value: 1}}, options.RunCmd().SetReadPreference(readpref.Nearest())).Decode(&r)
	return fmt.Sprint(r.MD5, " ", r.Collections), err
}

// sameEverywhere waits until all members have the same content, and reports what differs if they do not.
func (rs *replicaSet) sameEverywhere(limit time.Duration, dbs ...string) {
	rs.t.Helper()
	for _, db := range dbs {
		var sums []string
		p := patience{looks: int(limit / lookPace)}
		for same := false; !same; {
			sums, same = sums[:0], true
			for i := range rs.members {
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				s, err := rs.dbHash(ctx, i, db)
				cancel()
				if err != nil {
					s = err.Error()
				}
				sums = append(sums, s)
				same = same && err == nil && s == sums[0]
			}
			if !same && !p.left() {
				rs.t.Errorf("after %v database %s differs:\n%s", p, db, strings.Join(sums, "\n"))
				break
			}
			if !same {
				p.saw(fmt.Sprint(sums))
			}
		}
	}
}
