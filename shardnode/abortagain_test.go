package shardnode

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/shoaldb/shoal/internal/await"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// filledDisk is a file system that may be full.
type filledDisk struct {
	vfs.FS
	full atomic.Bool
}

func (d *filledDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	if d.full.Load() {
		return vfs.DiskUsage{}, nil
	}
	return vfs.DiskUsage{AvailBytes: 1 << 40}, nil
}

// An index build that could not be aborted on a full disk is shown in currentOp, and aborted once there is room. It used to keep its index's name until the next election.
func TestBuildsAreAbortedOnceThereIsRoom(t *testing.T) {
	disk := &filledDisk{FS: vfs.NewMem()}
	n := openTestNode(t, Config{Store: StoreConfig{Change: func(o *storage.Options) { o.FS, o.Dir, o.MinFreeDisk = disk, "db", 1000 }}})
	n.ok("d", `{"insert": "c", "documents": [{"_id": 1, "a": 1}]}`)
	spec := value.Doc(value.F("v", value.NewInt32(2)), value.F("key", value.NewDocument(value.Doc(value.F("a", value.NewInt32(1))))), value.F("name", value.NewString("a")))
	e := n.srv.Engine
	b := e.NewIndexBuild("d.c", [][]byte{spec}, storage.NewUUID()).WithQuorum(value.NewString("majority"), func(context.Context, *storage.IndexBuild) error {
		disk.full.Store(true)
		await.True(t, "the engine has noticed it", func() bool { return n.code("d", `{"insert": "c", "documents": [{"a": 2}]}`) != 0 || e.DiskLow() })
		return mongoerr.New(mongoerr.Interrupted, "killed")
	})
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Run(t.Context()); mongoerr.CodeOf(err) != mongoerr.Interrupted {
		t.Errorf("the build: %v", err)
	}
	if ops := strings.Join(n.first("admin", `{"aggregate": 1, "pipeline": [{"$currentOp": {}}, {"$match": {"op": "none"}}], "cursor": {}}`), ""); !strings.Contains(ops, "Index Build: aborting") {
		t.Errorf("currentOp: %s", ops)
	}
	if e.Catalog().Lookup("d.c").Index("a") == nil {
		t.Error("the index is removed on a full disk")
	}
	disk.full.Store(false)
	await.True(t, "the build is aborted", func() bool { return e.Catalog().Lookup("d.c").Index("a") == nil && len(e.Builds()) == 0 })
	if left := n.waitingBuilds(); len(left) != 0 {
		t.Errorf("entries: %v", left)
	}
	n.ok("d", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}`)
}
