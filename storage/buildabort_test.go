package storage

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// onFillingDisk has a build that is killed when it is ready to commit, with this much space left.
func onFillingDisk(t *testing.T, free uint64) (*Engine, *fullFS, *IndexBuild) {
	t.Helper()
	disk := &fullFS{FS: vfs.NewMem()}
	disk.free.Store(1 << 40)
	var now atomic.Int64
	clock := func() time.Time { return time.Unix(now.Add(1), 0) } // the space is measured at each commit
	e, err := Open(Options{FS: disk, Dir: "db", MinFreeDisk: 1000, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	c := create(t, e, "db.c", nil)
	insert(t, e, c, D("_id", 1, "a", 1))
	killed := func(context.Context, *IndexBuild) error {
		disk.free.Store(free)
		return mongoerr.New(mongoerr.Interrupted, "killed")
	}
	b := e.NewIndexBuild("db.c", [][]byte{spec("a", D("a", 1))}, NewUUID()).WithQuorum(value.NewString("votingMembers"), killed)
	if err := b.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	_, err = b.Run(context.Background())
	code(t, err, mongoerr.Interrupted)
	return e, disk, b
}

// left describes what there is of a build: its index, its entry, and whether it is taken for running.
func left(t *testing.T, e *Engine, b *IndexBuild) (index, entry, running bool) {
	t.Helper()
	stored, err := e.BuildEntry(b.UUID())
	if err != nil {
		t.Fatal(err)
	}
	return e.Catalog().Lookup("db.c").Index("a") != nil, stored != nil, e.Building(b.UUID()) != nil
}

// A build is removed while the disk is full for writes, as what it takes up is what has to go.
func TestBuildsEndOnAFullDisk(t *testing.T) {
	e, _, b := onFillingDisk(t, 999)
	if index, entry, running := left(t, e, b); index || entry || running {
		t.Errorf("left: the index %v, the entry %v, the build %v", index, entry, running)
	}
}

// A build that cannot be aborted, because the disk is full for everything, is left to the service of unfinished builds, which aborts it once that is possible. It used to stay
// in the catalog, with its names taken and writers maintaining it, until the next election or restart, when it began again.
func TestAbortsOfBuildsAreRepeated(t *testing.T) {
	e, disk, b := onFillingDisk(t, 0)
	if index, entry, running := left(t, e, b); !index || !entry || !running {
		t.Fatalf("on a full disk: the index %v, the entry %v, the build %v", index, entry, running)
	}
	if p := b.Progress(); p.Phase != phaseAbort {
		t.Errorf("its phase: %s", p.Phase)
	}
	select {
	case <-e.LeftBuilds():
	default:
		t.Fatal("it is left to nobody")
	}
	found, err := e.TakeUnfinishedBuilds()
	if err != nil || len(found) != 1 || found[0].Failed() != b {
		t.Fatalf("unfinished: %v, %v", found, err)
	}
	if again, err := e.TakeUnfinishedBuilds(); err != nil || len(again) != 0 {
		t.Errorf("unfinished once more: %v, %v", again, err)
	}
	code(t, b.Abort(context.Background()), mongoerr.OutOfDiskSpace)
	disk.free.Store(1 << 40)
	if err := b.Abort(context.Background()); err != nil {
		t.Fatal(err)
	}
	if index, entry, running := left(t, e, b); index || entry || running {
		t.Errorf("left: the index %v, the entry %v, the build %v", index, entry, running)
	}
	if _, err := e.StartIndexBuild(context.Background(), "db.c", [][]byte{spec("a", D("a", 1))}, NewUUID()); err != nil {
		t.Errorf("the next build: %v", err)
	}
}

// A set's primary that could not abort a build, and has been replaced meanwhile, leaves it alone if another primary has begun it again.
func TestFailedBuildsThatOthersHaveTaken(t *testing.T) {
	x := newCutShort(t, "a")
	old, one := x.members[0], x.members[1]
	old.e.builds.fail(x.first)
	x.elect(one, 0)
	if err := x.take(one).Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	x.elect(old, 0)
	b := x.take(old) // as one that was cut short, with the other's indexes
	if err := b.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if idx := old.e.Catalog().Lookup("db.c").Index("a"); idx == nil || !idx.Ready {
		t.Errorf("the index: %+v", idx)
	}
}

// The end of a build that another primary has taken over leaves its entry alone, which is the other's by now.
func TestEndOfABuildThatWasTakenOver(t *testing.T) {
	x := newCutShort(t, "a")
	old, one := x.members[0], x.members[1]
	x.elect(one, 0)
	if err := x.take(one).Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	x.elect(old, 0)
	code(t, x.first.end(mongoerr.New(mongoerr.Interrupted, "killed")), mongoerr.Interrupted)
	if entry, err := old.e.BuildEntry(x.build); err != nil || entry == nil {
		t.Errorf("the entry: %v, %v", entry, err)
	}
	if idx := old.e.Catalog().Lookup("db.c").Index("a"); idx == nil || idx.Build.UUID != x.build {
		t.Errorf("the index: %+v", idx)
	}
}

// The name of a build's collection, which currentOp shows, is that of now once a build that was cut short has begun again; the race detector sees that it is read
// while it changes.
func TestNamespaceOfABuildThatBeginsAgain(t *testing.T) {
	x := newCutShort(t, "a")
	one := x.members[1]
	x.elect(one, 0)
	b := x.take(one)
	u := one.e.NewUnitOfWork(nil)
	if _, err := u.RenameCollection(one.e.Catalog().Lookup("db.c"), "db.d", nil, false); err != nil {
		t.Fatal(err)
	}
	commit(t, one.e, u)
	shown := make(chan string, 1)
	go func() { shown <- b.Namespace() }()
	if err := b.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	if ns := <-shown; ns != "db.c" && ns != "db.d" {
		t.Errorf("shown: %s", ns)
	}
	if ns := b.Namespace(); ns != "db.d" {
		t.Errorf("in the end: %s", ns)
	}
}
