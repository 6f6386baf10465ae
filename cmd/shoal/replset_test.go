package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// replicaSet is a set of servers in processes of their own, which reach each other through a network that can be cut.
type replicaSet struct {
	t       testing.TB
	dir     string
	ports   []int
	net     *network
	members []*setMember
}

// setMember is one server of a set: running, or not.
type setMember struct {
	at     string // where it is reached
	cmd    *exec.Cmd
	ended  chan struct{}
	direct *mongo.Client // to it and nobody else, past the network
	panics atomic.Int32
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
	rs := &replicaSet{t: t, dir: t.TempDir(), net: newNetwork(members)}
	t.Cleanup(rs.stop)
	var config bson.A
	for i := range members {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
		rs.ports = append(rs.ports, port)
		m := &setMember{at: fmt.Sprintf("127.0.0.1:%d", port)}
		if proxies {
			rs.net.serve(t, i, port)
			m.at = proxied(i, port)
		}
		rs.members = append(rs.members, m)
		m.direct = connect(t, fmt.Sprintf("mongodb://127.0.0.1:%d/?directConnection=true", port))
		config = append(config, bson.D{{Key: "_id", Value: i}, {Key: "host", Value: m.at}})
	}
	for i := range members {
		rs.start(i)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := rs.members[0].direct.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetInitiate", Value: bson.D{
		{Key: "_id", Value: "rs"}, {Key: "members", Value: config},
		{Key: "settings", Value: bson.D{{Key: "electionTimeoutMillis", Value: electionTimeout.Milliseconds()}}},
	}}}).Err()
	if err != nil {
		t.Fatal(err)
	}
	rs.waitReady(30 * time.Second)
	return rs
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

// uri is what an application connects to.
func (rs *replicaSet) uri() string {
	var at []string
	for _, m := range rs.members {
		at = append(at, m.at)
	}
	return "mongodb://" + strings.Join(at, ",") + "/?replicaSet=rs"
}

func (rs *replicaSet) dbpath(i int) string { return filepath.Join(rs.dir, strconv.Itoa(i)) }

// start starts a member and waits until it listens.
func (rs *replicaSet) start(i int) {
	rs.t.Helper()
	if err := rs.tryStart(i); err != nil {
		rs.t.Fatalf("member %d: %v", i, err)
	}
}

func (rs *replicaSet) tryStart(i int) error {
	m := rs.members[i]
	if err := os.MkdirAll(rs.dbpath(i), 0o700); err != nil {
		return err
	}
	m.cmd = exec.Command(os.Args[0], "mongod", "--replSet", "rs", "--dbpath", rs.dbpath(i), "--bind_ip", "127.0.0.1",
		"--port", strconv.Itoa(rs.ports[i]), "--setParameter", "enableTestCommands=1")
	m.cmd.Env = append(os.Environ(), asShoal+"="+asWhole)
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(rs.dir, fmt.Sprintf("%d.log", i)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	m.cmd.Stderr = log
	if err := m.cmd.Start(); err != nil {
		return err
	}
	rs.net.setPID(i, m.cmd.Process.Pid)
	m.ended = make(chan struct{})
	listens := make(chan struct{}, 1)
	go func() {
		defer close(m.ended)
		defer log.Close()
		in := bufio.NewReader(out)
		for {
			line, err := in.ReadString('\n')
			_, _ = log.WriteString(line)
			if listening.MatchString(line) {
				listens <- struct{}{}
			}
			if strings.Contains(line, `"id":4757800`) {
				m.panics.Add(1)
				fmt.Fprintf(os.Stderr, "member %d: %s", i, line)
			}
			if err != nil {
				return
			}
		}
	}()
	select {
	case <-listens:
		return nil
	case <-m.ended:
		return fmt.Errorf("it ended before it listened: %v", m.cmd.Wait())
	case <-time.After(30 * time.Second):
		return fmt.Errorf("it does not come up")
	}
}

// kill ends a member without warning.
func (rs *replicaSet) kill(i int) { rs.end(i, syscall.SIGKILL) }

func (rs *replicaSet) end(i int, sig syscall.Signal) {
	m := rs.members[i]
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Signal(sig)
	if sig != syscall.SIGKILL {
		_ = m.cmd.Process.Signal(syscall.SIGCONT)
	}
	<-m.ended
	_ = m.cmd.Wait()
	m.cmd = nil
	rs.net.setPID(i, 0)
}

func (rs *replicaSet) pause(i int)  { _ = rs.members[i].cmd.Process.Signal(syscall.SIGSTOP) }
func (rs *replicaSet) resume(i int) { _ = rs.members[i].cmd.Process.Signal(syscall.SIGCONT) }

func (rs *replicaSet) stop() {
	for i, m := range rs.members {
		rs.kill(i)
		if n := m.panics.Load(); n > 0 {
			rs.t.Errorf("member %d: %d commands ended in a panic", i, n)
		}
	}
	rs.net.close()
	if rs.t.Failed() {
		rs.keepLogs()
	}
}

// keepLogs shows the end of each member's log.
func (rs *replicaSet) keepLogs() {
	for i := range rs.members {
		raw, _ := os.ReadFile(filepath.Join(rs.dir, fmt.Sprintf("%d.log", i)))
		if dir := os.Getenv("SHOAL_KEEP_LOGS"); dir != "" {
			_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("member%d.log", i)), raw, 0o600)
		}
		rs.t.Logf("member %d, the end of its log:\n%s", i, raw[max(0, len(raw)-2000):])
	}
}

// state asks a member what it is; "" where it does not answer.
func (rs *replicaSet) state(i int) (role string, term int64) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var r struct {
		MyState int   `bson:"myState"`
		Term    int64 `bson:"term"`
	}
	if rs.members[i].cmd == nil || rs.members[i].direct.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetGetStatus", Value: 1}},
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

// primary is the member that says it is primary, of the newest term; -1 where none is.
func (rs *replicaSet) primary() int {
	at, best := -1, int64(-1)
	for i := range rs.members {
		if role, term := rs.state(i); role == "primary" && term > best {
			at, best = i, term
		}
	}
	return at
}

// waitReady waits until every member is primary or secondary, and one of them primary.
func (rs *replicaSet) waitReady(limit time.Duration) {
	rs.t.Helper()
	var roles []string
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		roles = roles[:0]
		primaries, ready := 0, 0
		for i := range rs.members {
			role, _ := rs.state(i)
			roles = append(roles, role)
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
	}
	rs.t.Fatalf("after %v the members are %q", limit, roles)
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

// sameEverywhere waits until all members hold the same, and says what differs where they do not come to.
func (rs *replicaSet) sameEverywhere(limit time.Duration, dbs ...string) {
	rs.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit+10*time.Second)
	defer cancel()
	for _, db := range dbs {
		var sums []string
		for end := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
			sums = sums[:0]
			same := true
			for i := range rs.members {
				s, err := rs.dbHash(ctx, i, db)
				if err != nil {
					s = err.Error()
				}
				sums = append(sums, s)
				same = same && err == nil && s == sums[0]
			}
			if same {
				break
			}
			if time.Now().After(end) {
				rs.t.Errorf("database %s differs:\n%s", db, strings.Join(sums, "\n"))
				break
			}
		}
	}
}
