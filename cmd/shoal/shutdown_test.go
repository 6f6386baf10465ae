package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// busy has clients work, some in operations that would take for ever, until the server ends.
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
	time.Sleep(200 * time.Millisecond) // all are at work; how far they get does not matter
	return wg.Wait
}

// ends waits for a server's own end.
func (p *process) ends(t *testing.T, limit time.Duration) int {
	t.Helper()
	begin := time.Now()
	select {
	case <-p.ended:
	case <-time.After(limit):
		t.Fatalf("the server has not ended after %v", limit)
	}
	err := p.cmd.Wait()
	t.Logf("ended after %v", time.Since(begin).Round(time.Millisecond))
	if n := p.panics.Load(); n > 0 {
		t.Errorf("%d commands ended in a panic", n)
	}
	return exitCode(err)
}

// A server ends cleanly and soon, whatever its clients are at, and what it acknowledged is there when it is back.
func TestShutdownUnderLoad(t *testing.T) {
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
				cancel() // nobody is there to end its sessions
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

// Two servers do not share a directory, and one that may not write to its directory says so.
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

// A server whose disk is full refuses writes with an error, loses nothing that it acknowledged, and works again on a
// disk with room.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=160m"); err != nil {
		t.Skipf("no file system of its own for this test: %v", err)
	}
	defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
	p := launch(t, dir, "--topology", "replset")
	ctx := context.Background()
	coll := p.client.Database("full").Collection("c")
	acked := 0
	var refused error
	pad := make([]byte, 1<<20)
	for i := range pad {
		pad[i] = byte(i * i >> 3)
	}
	for i := range 400 {
		pad[i%len(pad)]++
		wctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := coll.InsertOne(wctx, bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: pad}})
		cancel()
		if err != nil {
			refused = err
			break
		}
		acked++
	}
	t.Logf("%d documents of 1 MiB fit; then: %v", acked, refused)
	if refused == nil {
		t.Error("no write was refused")
	}
	p.kill(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=600m"); err != nil {
		t.Fatal(err)
	}
	p = launch(t, dir, "--topology", "replset")
	defer p.kill(t)
	coll = p.client.Database("full").Collection("c")
	n, err := coll.CountDocuments(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: acked}}}})
	if int(n) != acked || err != nil {
		t.Errorf("%d documents of %d acknowledged ones (%v)", n, acked, err)
	}
	if _, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: "later"}}); err != nil {
		t.Error(err)
	}
}
