package process

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestRestartFindsEverything stops a server in order and compares what it shows before and after.
func TestRestartFindsEverything(t *testing.T) {
	each(t, func(t *testing.T, p *topology) {
		ctx := context.Background()
		s, c := p.start(t)
		db := c.Database("again")
		p.shard(t, c, "again.c", bson.D{{Key: "k", Value: "hashed"}})
		var docs []any
		for i := range 1000 {
			docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i * 7}, {Key: "s", Value: strings.Repeat("x", i%50)}})
		}
		if _, err := db.Collection("c").InsertMany(ctx, docs); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Collection("c").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "s", Value: 1}, {Key: "k", Value: -1}}}); err != nil {
			t.Fatal(err)
		}
		if err := db.CreateCollection(ctx, "capped", options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<16)); err != nil {
			t.Fatal(err)
		}
		if err := db.CreateView(ctx, "view", "c", bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "k", Value: bson.D{{Key: "$lt", Value: 70}}}}}}}); err != nil {
			t.Fatal(err)
		}
		before := describe(t, c, db.Name())
		_ = c.Disconnect(ctx)
		if code := s.end(t, syscall.SIGTERM); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		_, c = p.start(t)
		if after := describe(t, c, db.Name()); after != before {
			t.Fatalf("before:\n%s\nafter:\n%s", before, after)
		}
		if n := count(t, c.Database("again").Collection("view")); n != 10 {
			t.Fatal(n)
		}
	})
}

// describe is a database as text: collections with options, indexes and counts, and what the cluster knows of chunks.
func describe(t *testing.T, c *mongo.Client, name string) string {
	t.Helper()
	ctx := context.Background()
	var out strings.Builder
	list := func(label string, cur *mongo.Cursor, err error) {
		if err != nil {
			t.Fatal(label, err)
		}
		for cur.Next(ctx) {
			out.WriteString(label + " " + cur.Current.String() + "\n")
		}
	}
	db := c.Database(name)
	colls, err := db.ListCollectionSpecifications(ctx, bson.D{{Key: "type", Value: "collection"}})
	if err != nil {
		t.Fatal(err)
	}
	all, err := db.ListCollections(ctx, bson.D{{Key: "name", Value: bson.D{{Key: "$not", Value: bson.D{{Key: "$regex", Value: "^system"}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	var infos []bson.Raw
	if err := all.All(ctx, &infos); err != nil {
		t.Fatal(err)
	}
	lines := map[string]string{}
	for _, i := range infos {
		lines[i.Lookup("name").StringValue()] = i.String()
	}
	for _, k := range []string{"c", "capped", "view"} {
		out.WriteString(lines[k] + "\n")
	}
	for _, coll := range colls {
		if strings.HasPrefix(coll.Name, "system.") {
			continue
		}
		cur, err := db.Collection(coll.Name).Indexes().List(ctx)
		list("index", cur, err)
		out.WriteString(coll.Name + ": " + strconv.FormatInt(count(t, db.Collection(coll.Name)), 10) + "\n")
	}
	cur, err := c.Database("config").Collection("chunks").Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	list("chunk", cur, err)
	return out.String()
}

// TestPortInUse is what init scripts rely on: exit code 48.
func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	for _, args := range [][]string{
		{"start", "--memory", "--listen", "127.0.0.1:" + port},
		{"mongod", "--dbpath", t.TempDir(), "--port", port, "--bind_ip", "127.0.0.1"},
	} {
		if code := launch(t, "shoal", args...).wait(t); code != 48 {
			t.Errorf("%v: exit code %d, want 48", args, code)
		}
	}
}

// TestFork is mongod under an init script: it forks, leaves a pid file, and is shut down by a client.
func TestFork(t *testing.T) {
	dir, port := t.TempDir(), strconv.Itoa(freePorts(t, 1)[0])
	pidFile := filepath.Join(dir, "mongod.pid")
	cmd := exec.Command(binary(t, "mongod"), guarded([]string{"--dbpath", dir, "--port", port, "--bind_ip", "127.0.0.1", "--fork",
		"--logpath", filepath.Join(dir, "log"), "--pidfilepath", pidFile})...)
	out, err := cmd.CombinedOutput()
	if exitCode(err) != 0 || !strings.Contains(string(out), "child process started successfully, parent exiting") {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	c := connect(t, "mongodb://127.0.0.1:"+port+"/?directConnection=true")
	if got, _ := admin(t, c, bson.D{{Key: "serverStatus", Value: 1}})["pid"].(int64); got != int64(pid) {
		t.Errorf("the pid file says %d, the server %d", pid, got)
	}
	_ = c.Database("admin").RunCommand(context.Background(), bson.D{{Key: "shutdown", Value: 1}}).Err() // the connection may end before the reply
	waitFor(t, "the process ends", func() bool { return !running(pid) })
}

// running reports whether a process runs; it is false for one that has ended but that its parent has not reaped yet.
func running(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	rest := string(b[strings.LastIndexByte(string(b), ')')+1:])
	return !strings.HasPrefix(strings.TrimSpace(rest), "Z")
}
