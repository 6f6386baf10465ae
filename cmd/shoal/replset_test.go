package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// replicaSet is a set of servers in processes of their own.
type replicaSet struct {
	t       testing.TB
	options setOptions
	name    string
	net     *network
	members []*server
}

// setOptions configures a set.
type setOptions struct {
	name    string // "rs" if it is empty
	role    string // --shardsvr, --configsvr or none
	members int
	net     *network // between the members, nil if they reach each other directly
	args    []string // of each member
	as      string   // what members behave as, the real server if it is empty
}

// electionTimeout is short, so that many elections take place during a test.
const electionTimeout = 2 * time.Second

// launchSet starts and initiates a set.
func launchSet(t testing.TB, o setOptions) *replicaSet {
	t.Helper()
	rs := newSet(t, o)
	rs.initiate()
	return rs
}

// newSet creates the servers of a set, which are not running yet.
func newSet(t testing.TB, o setOptions) *replicaSet {
	t.Helper()
	rs := &replicaSet{t: t, options: o, name: cmp.Or(o.name, "rs"), net: o.net}
	for range o.members {
		rs.grow()
	}
	return rs
}

// grow adds a server to those of the set, which is no member yet and not running.
func (rs *replicaSet) grow() *server {
	rs.t.Helper()
	args := []string{"mongod", "--replSet", rs.name}
	if rs.options.role != "" {
		args = append(args, rs.options.role)
	}
	s := newServer(rs.t, rs.net, fmt.Sprintf("%s-%d", rs.name, len(rs.members)), slices.Concat(args, testCommands, rs.options.args)...)
	s.args, s.as = append(s.args, "--dbpath", s.dbpath()), cmp.Or(rs.options.as, s.as)
	rs.members = append(rs.members, s)
	return s
}

// initiate starts the members and makes them a set.
func (rs *replicaSet) initiate() {
	rs.t.Helper()
	var config bson.A
	for _, m := range rs.members {
		m.launch()
	}
	for i, m := range rs.members {
		m.listens()
		config = append(config, bson.D{{Key: "_id", Value: i}, {Key: "host", Value: m.at()}})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	doc := bson.D{
		{Key: "_id", Value: rs.name}, {Key: "members", Value: config},
		{Key: "settings", Value: bson.D{{Key: "electionTimeoutMillis", Value: electionTimeout.Milliseconds()}}},
	}
	if rs.options.role == "--configsvr" {
		doc = append(doc, bson.E{Key: "configsvr", Value: true})
	}
	if err := rs.members[0].direct.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetInitiate", Value: doc}}).Err(); err != nil {
		rs.t.Fatal(err)
	}
	rs.waitReady()
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

// hosts returns the addresses of the members, as in the set's configuration.
func (rs *replicaSet) hosts() string {
	var at []string
	for _, m := range rs.members {
		at = append(at, m.at())
	}
	return strings.Join(at, ",")
}

// conn returns the set's connection string for addShard and --configdb.
func (rs *replicaSet) conn() string { return rs.name + "/" + rs.hosts() }

// uri returns the connection string of an application.
func (rs *replicaSet) uri() string { return "mongodb://" + rs.hosts() + "/?replicaSet=" + rs.name }

// start starts a member and waits until it listens.
func (rs *replicaSet) start(i int) {
	rs.t.Helper()
	rs.members[i].start()
}

func (rs *replicaSet) dbpath(i int) string { return rs.members[i].dbpath() }

// kill ends a member without warning.
func (rs *replicaSet) kill(i int) { rs.members[i].kill() }

// losePower cuts the power of all members.
func (rs *replicaSet) losePower() {
	for _, m := range rs.members {
		m.signal(cutPower)
	}
	for _, m := range rs.members {
		m.end(cutPower)
	}
}

// state returns a member's state and term, "" if it does not reply.
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

// elected waits until the set has a primary, and returns its number. Between two looks it may have lost an election, or not have replied in time.
func (rs *replicaSet) elected() int {
	rs.t.Helper()
	return await.State(rs.t, "a primary of "+rs.name, func() (int, bool) { i := rs.primary(); return i, i >= 0 })
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

func (rs *replicaSet) await(what string, yes func() bool) {
	rs.t.Helper()
	eventually(rs.t, rs.name+": "+what, yes)
}

func eventually(t testing.TB, what string, yes func() bool) {
	t.Helper()
	await.True(t, what, yes)
}

// ready waits until one member is primary and the other running ones follow it.
func (rs *replicaSet) ready() *server {
	rs.t.Helper()
	var primary *server
	rs.await("one primary, all others secondaries", func() bool {
		primary = nil
		for _, m := range rs.members {
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

// awaitPrimary waits until a member is primary, and returns it.
func (rs *replicaSet) awaitPrimary() *server {
	rs.t.Helper()
	var found *server
	rs.await("it has a primary", func() bool {
		i := slices.IndexFunc(rs.members, func(m *server) bool { return m.hello()["isWritablePrimary"] == true })
		if i >= 0 {
			found = rs.members[i]
		}
		return i >= 0
	})
	return found
}

// lead returns the only member, or waits for the primary.
func (rs *replicaSet) lead() *server {
	rs.t.Helper()
	if len(rs.members) == 1 {
		return rs.members[0]
	}
	return rs.awaitPrimary()
}

// command runs a command on a member until it succeeds.
func (rs *replicaSet) command(m *server, cmd bson.D) (reply bson.M) {
	rs.t.Helper()
	var err error
	rs.await(fmt.Sprint(cmd), func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		reply = nil
		if err = m.direct.Database("admin").RunCommand(ctx, cmd).Decode(&reply); err != nil {
			rs.t.Logf("%s: %v", rs.name, err)
		}
		return err == nil
	})
	return reply
}

// reconfigure changes the set's members, as rs.add and rs.remove do.
func (rs *replicaSet) reconfigure(change func(members bson.A) bson.A) {
	rs.t.Helper()
	p := rs.awaitPrimary()
	config := rs.command(p, bson.D{{Key: "replSetGetConfig", Value: 1}})["config"].(bson.D)
	for i := range config {
		switch config[i].Key {
		case "members":
			config[i].Value = change(config[i].Value.(bson.A))
		case "version":
			config[i].Value = config[i].Value.(int32) + 1
		}
	}
	rs.command(p, bson.D{{Key: "replSetReconfig", Value: config}})
}

// add adds a new member.
func (rs *replicaSet) add() {
	rs.t.Helper()
	m := rs.grow()
	m.start()
	rs.reconfigure(func(members bson.A) bson.A {
		return append(members, bson.D{{Key: "_id", Value: len(rs.members) + 10}, {Key: "host", Value: m.at()}})
	})
	rs.ready()
}

// remove removes a member from the set, after a handover if it is the primary, and ends it for good.
func (rs *replicaSet) remove(m *server) {
	rs.t.Helper()
	for m.hello()["isWritablePrimary"] == true {
		rs.stepDown()
		rs.awaitPrimary()
	}
	rs.reconfigure(func(members bson.A) bson.A {
		return slices.DeleteFunc(members, func(e any) bool {
			raw, _ := bson.Marshal(e)
			return bson.Raw(raw).Lookup("host").StringValue() == m.at()
		})
	})
	rs.members = slices.DeleteFunc(rs.members, func(o *server) bool { return o == m })
	m.kill()
	rs.ready()
}

// stepDown has the primary step down, unless it loses an election before the command arrives.
func (rs *replicaSet) stepDown() {
	rs.t.Helper()
	p := rs.awaitPrimary()
	rs.await(p.at()+" steps down", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err := p.direct.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetStepDown", Value: 5}, {Key: "secondaryCatchUpPeriodSecs", Value: 3}}).Err()
		if err != nil {
			rs.t.Logf("%s: %v", rs.name, err)
		}
		return err == nil || codeOf(err) == int32(mongoerr.NotWritablePrimary)
	})
}

// killPrimary ends the primary without warning; the caller starts it again.
func (rs *replicaSet) killPrimary() *server {
	rs.t.Helper()
	p := rs.awaitPrimary()
	p.kill()
	return p
}

// waitReady waits until every member is primary or secondary, and one of them primary.
func (rs *replicaSet) waitReady() {
	rs.t.Helper()
	await.Progress(rs.t, "all members of "+rs.name+" are ready", func() (string, bool) {
		var roles []string
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
		return fmt.Sprint(roles, terms), primaries == 1 && ready == len(rs.members)
	})
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

// sameEverywhere waits until all members have the same content.
func (rs *replicaSet) sameEverywhere(dbs ...string) {
	rs.t.Helper()
	for _, db := range dbs {
		await.Progress(rs.t, "database "+db+" is the same on all members of "+rs.name, func() (string, bool) {
			sums, same := make([]string, len(rs.members)), true
			for i := range rs.members {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				s, err := rs.dbHash(ctx, i, db)
				cancel()
				if err != nil {
					s = "no answer" // the error differs each time, which would pass for progress
				}
				sums[i] = s
				same = same && err == nil && s == sums[0]
			}
			return strings.Join(sums, "\n"), same
		})
	}
}
