package main

import (
	"context"
	"errors"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// busy runs clients, some with operations that would take forever, until the server ends.
func busy(t *testing.T, p *process) (wait func()) {
	t.Helper()
	ctx := context.Background()
	db := p.client.Database("busy")
	if _, err := db.Collection("c").InsertMany(ctx, []any{bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}}}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	run := func(f func() error) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for f() == nil {
			}
		}()
	}
	for range 4 {
		run(func() error { _, err := db.Collection("w").InsertOne(ctx, bson.D{{Key: "x", Value: 1}}); return err })
	}
	numbers := bson.D{{Key: "$project", Value: bson.D{{Key: "x", Value: bson.D{{Key: "$range", Value: bson.A{"$_id", 3000000}}}}}}}
	unwind := bson.D{{Key: "$unwind", Value: "$x"}}
	for range 2 {
		run(func() error {
			return db.RunCommand(ctx, bson.D{{Key: "aggregate", Value: "c"}, {Key: "cursor", Value: bson.D{}}, {Key: "pipeline", Value: bson.A{numbers, unwind,
				bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: bson.D{{Key: "$range", Value: bson.A{0, 1000}}}}}}}, unwind, bson.D{{Key: "$count", Value: "n"}}}}}).Err()
		})
	}
	await.State(t, "all are running", func() (n int, done bool) { // how far they get does not matter
		var ops struct{ Inprog []bson.M }
		if err := db.Client().Database("admin").RunCommand(ctx, bson.D{{Key: "currentOp", Value: 1}, {Key: "op", Value: "command"}, {Key: "ns", Value: db.Name() + ".c"}}).Decode(&ops); err != nil {
			t.Fatal(err)
		}
		return len(ops.Inprog), len(ops.Inprog) >= 2
	})
	return wg.Wait
}

// ends waits until the server has ended by itself, and returns its exit code.
func (p *process) ends(t *testing.T, limit time.Duration) int {
	t.Helper()
	begin := time.Now()
	select {
	case <-p.ended:
	case <-time.After(limit):
		t.Fatalf("the server has not ended after %v", limit)
	}
	t.Logf("ended after %v", time.Since(begin).Round(time.Millisecond))
	return p.cmd.ProcessState.ExitCode()
}

// A server shuts down cleanly and soon, whatever its clients are doing, and what it acknowledged is there after a restart.
func TestShutdownUnderLoad(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(p *process){
		"SIGTERM": func(p *process) { _ = p.cmd.Process.Signal(syscall.SIGTERM) },
		"command": func(p *process) {
			_ = p.client.Database("admin").RunCommand(context.Background(), bson.D{{Key: "shutdown", Value: 1}, {Key: "force", Value: true}}).Err()
		},
	} {
		for _, topology := range []string{"sharded", "replset"} {
			t.Run(name+" "+topology, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				p := launch(t, dir, "--topology", topology)
				wait := busy(t, p)
				stop(p)
				if code := p.ends(t, 10*time.Second); code != 0 {
					t.Errorf("exit code %d", code)
				}
				gone, cancel := context.WithCancel(context.Background())
				cancel() // there is no server to end its sessions
				_ = p.client.Disconnect(gone)
				wait()
				raw, err := os.ReadFile(filepath.Join(dir, lockName))
				if err != nil || len(raw) > 0 {
					t.Errorf("the lock file holds %q (%v) after a clean end", raw, err)
				}
				p = launch(t, dir, "--topology", topology)
				if n, err := p.client.Database("busy").Collection("c").CountDocuments(context.Background(), bson.D{}); n != 2 || err != nil {
					t.Errorf("%d documents of 2 (%v)", n, err)
				}
				p.kill(t)
			})
		}
	}
}

// Two servers do not share a directory, and one that may not write to its directory reports that.
func TestDirectoryRefused(t *testing.T) {
	dir := t.TempDir()
	p := launch(t, dir, "--topology", "standalone")
	second := shoal(t, "shoal", "start", "--topology", "standalone", "--listen", "127.0.0.1:0", "--data-dir", dir)
	second.Env = append(os.Environ(), asShoal+"="+asWhole)
	out, err := second.Output()
	if code := exitCode(err); code != exitUncaught || !strings.Contains(string(out), "DBPathInUse") {
		t.Errorf("a second server on the directory: exit code %d, %s", code, out)
	}
	p.kill(t)
}

// A server whose disk is full refuses writes with an error, serves reads, restarts in that state, loses nothing that
// it acknowledged, and accepts writes again once there is room.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// A log file takes 71 MB of the disk at once, and the second is begun soon; below 128 MB of free space writes are refused.
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=420m"); err != nil {
		t.Skipf("no file system of its own for this test: %v", err)
	}
	defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
	p := launch(t, dir, "--topology", "replset")
	f := &fullDisk{t: t, pad: make([]byte, 1<<20)}
	rand.New(rand.NewSource(1)).Read(f.pad) // it does not compress
	if f.fill(p); f.acked < 10 {
		t.Errorf("writes are refused after %d documents", f.acked)
	}
	f.check(p)
	p.kill(t)
	p = launch(t, dir, "--topology", "replset")
	f.check(p)
	f.fill(p) // the previous log is gone, so there may be some room
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=900m"); err != nil {
		t.Fatal(err)
	}
	await.True(t, "writes are accepted again", func() bool { return f.insert(p) == nil })
	p.kill(t)
	p = launch(t, dir, "--topology", "replset")
	defer p.kill(t)
	f.check(p)
}

// fullDisk records what was written to a server until its disk was full.
type fullDisk struct {
	t     *testing.T
	pad   []byte
	acked int
	next  int
}

func (f *fullDisk) insert(p *process) error {
	f.pad[f.next%len(f.pad)]++
	f.next++
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := p.client.Database("full").Collection("c").InsertOne(ctx, bson.D{{Key: "_id", Value: f.next}, {Key: "pad", Value: f.pad}})
	if err == nil {
		f.acked++
	}
	return err
}

// fill writes until it is refused, for the right reason.
func (f *fullDisk) fill(p *process) {
	f.t.Helper()
	var err error
	for err == nil && f.acked < 400 {
		err = f.insert(p)
	}
	f.t.Logf("%d documents of 1 MiB fit; then: %v", f.acked, err)
	var refused mongo.WriteException
	if !errors.As(err, &refused) || !refused.HasErrorCode(int(mongoerr.OutOfDiskSpace)) {
		f.t.Errorf("writes to a full disk end with %v", err)
	}
}

// check reads what was acknowledged.
func (f *fullDisk) check(p *process) {
	f.t.Helper()
	n, err := p.client.Database("full").Collection("c").CountDocuments(context.Background(), bson.D{})
	if int(n) != f.acked || err != nil {
		f.t.Errorf("%d documents of %d acknowledged ones (%v)", n, f.acked, err)
	}
}
