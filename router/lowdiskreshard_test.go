package router_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// lowFS is a disk whose free space a test sets.
type lowFS struct {
	vfs.FS
	free atomic.Uint64
}

func (f *lowFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: f.free.Load(), TotalBytes: 1 << 40}, nil
}

// newSmallCluster makes a cluster of two shards whose disks a test can make low.
func newSmallCluster(t *testing.T) (c *testCluster, disks map[string]*lowFS) {
	t.Helper()
	disks = map[string]*lowFS{}
	return newHookedCluster(t, 2, clusterHooks{store: func(set string, o *storage.Options) {
		d := &lowFS{FS: vfs.NewMem()}
		d.free.Store(1 << 35)
		disks[set] = d
		o.Memory, o.Dir, o.FS, o.MinFreeDisk = false, "db", d, 1<<30
		o.CollectInterval = 20 * time.Millisecond // it measures the disk
	}}), disks
}

// lowDisk makes the disk of a set's only member low.
func (c *testCluster) lowDisk(disks map[string]*lowFS, set string) {
	c.t.Helper()
	disks[set].free.Store(1<<30 - 1<<20)
	c.until("the disk is low", c.server[set].Node.Engine.DiskLow)
}

// While the disks of all nodes are low sharded collections can be dropped and renamed, and nothing can be created. They could not even be dropped, as the operation's state could not be stored.
func TestShardedCollectionsAreDroppedOnALowDisk(t *testing.T) {
	t.Parallel()
	c, disks := newSmallCluster(t)
	c.fill(40)
	c.run("admin", `{"shardCollection": "db.other", "key": {"k": "hashed"}}`)
	for set := range disks {
		c.lowDisk(disks, set)
	}
	for _, db := range []string{"db", "newdb"} {
		if m := c.raw(db, `{"create": "more"}`); m["code"] != int32(mongoerr.OutOfDiskSpace) {
			t.Errorf("create in %s: %v", db, m)
		}
	}
	if m := c.raw("admin", `{"shardCollection": "db.more", "key": {"k": "hashed"}}`); m["code"] != int32(mongoerr.OutOfDiskSpace) {
		t.Error(m)
	}
	c.run("admin", `{"renameCollection": "db.c", "to": "db.other", "dropTarget": true}`)
	if n := len(c.all("db", `{"find": "other"}`)); n != 40 {
		t.Errorf("%d documents", n)
	}
	c.run("db", `{"delete": "other", "deletes": [{"q": {"k": 3}, "limit": 1}]}`)
	c.run("db", `{"drop": "other"}`)
	c.run("db", `{"dropDatabase": 1}`)
	for _, d := range disks {
		d.free.Store(1 << 35)
	}
	c.leftOver()
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
}

// The disk of a shard, or of the config server, becomes low at a state of a resharding: it is undone, or if it is decided completed, though the disk stays low, and the collection can be read, and written
// to on the other shard. What ends an operation could not be stored: the operation waited for space, and if it was decided nobody could read or write meanwhile, on any shard.
func TestReshardingEndsWhenTheDiskBecomesLow(t *testing.T) {
	t.Parallel()
	for _, set := range []string{"shard0", "shard1", "config"} {
		for _, state := range []string{"preparing-to-donate", "cloning", "applying", "blocking-writes", "committing"} {
			t.Run(set+" "+state, func(t *testing.T) {
				c, disks := newSmallCluster(t)
				c.config.Points = c.points["config"]
				c.fill(40)
				const point = "reshardingPauseCoordinatorAtState"
				entered, _ := c.points["config"].Configure(point, value.NewString("alwaysOn"), value.Doc(value.F("state", value.NewString(state))))
				resharded := c.later("admin", `{"reshardCollection": "db.c", "key": {"g": 1, "_id": 1}, "numInitialChunks": 2}`)
				if err := c.points["config"].Register(point).WaitEntered(t.Context(), entered+1); err != nil {
					t.Fatal(err)
				}
				c.lowDisk(disks, set)
				_, _ = c.points["config"].Configure(point, value.NewString("off"), nil)
				c.until("it ends, though the disk is low", func() bool { return len(resharded) > 0 })
				m := <-resharded
				if m["ok"] != 1.0 && (m["code"] != int32(mongoerr.OutOfDiskSpace) || state == "committing") {
					t.Error(m)
				}
				if n := len(c.all("db", `{"find": "c"}`)); n != 40 {
					t.Errorf("%d documents", n)
				}
				for _, k := range []int{3, 33} {
					w := c.raw("db", fmt.Sprintf(`{"update": "c", "updates": [{"q": {"k": %d}, "u": {"$set": {"z": 1}}}], "maxTimeMS": 5000}`, k))
					errs, _ := w["writeErrors"].(bson.A)
					for _, e := range errs {
						if get(e, "code") != int32(mongoerr.OutOfDiskSpace) {
							t.Error(w)
						}
					}
					if w["ok"] != 1.0 {
						t.Error(w)
					}
				}
				disks[set].free.Store(1 << 35)
				c.until("the disk has space", func() bool { return !c.server[set].Node.Engine.DiskLow() })
				c.run("db", `{"update": "c", "updates": [{"q": {}, "u": {"$set": {"z": 1}}, "multi": true}]}`)
				c.leftOver()
				if bad := c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`); len(bad) > 0 {
					t.Errorf("%s", show(bad))
				}
			})
		}
	}
}

// A convertToCapped, which copies the collection while it is blocked and can then only be completed, is refused on a low disk.
func TestConvertToCappedOnALowDisk(t *testing.T) {
	t.Parallel()
	c, disks := newSmallCluster(t)
	c.fill(40)
	c.run("db", `{"insert": "u", "documents": [{"_id": 1}]}`)
	c.run("admin", `{"moveCollection": "db.u", "toShard": "shard1"}`)
	for set := range disks {
		c.lowDisk(disks, set)
	}
	if m := c.raw("db", `{"convertToCapped": "u", "size": 100000}`); m["code"] != int32(mongoerr.OutOfDiskSpace) {
		t.Error(m)
	}
	c.expect(c.all("db", `{"find": "u"}`), `[{"_id":1}]`)
	c.run("db", `{"drop": "u"}`)
	c.leftOver()
}

// The disk of a shard becomes low once a convertToCapped has begun: before the copy is made, which is then refused, or before it is put in place, which needs no room. The collection was blocked until
// there was room.
func TestConvertToCappedWhenTheDiskBecomesLow(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		phase string
		code  any
	}{{"copyCollection", int32(mongoerr.OutOfDiskSpace)}, {"convertCollection", nil}} {
		for _, set := range []string{"shard0", "shard1"} {
			t.Run(x.phase+" "+set, func(t *testing.T) {
				c, disks := newSmallCluster(t)
				c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
				c.insertKeys("u", 1, 10)
				c.run("admin", `{"moveCollection": "db.u", "toShard": "shard1"}`)
				reached, release := c.hangAt("shard0", x.phase)
				converted := c.later("db", `{"convertToCapped": "u", "size": 100000}`)
				reached()
				c.lowDisk(disks, set)
				release()
				c.until("it ends, though the disk is low", func() bool { return len(converted) > 0 })
				if m := <-converted; m["code"] != x.code {
					t.Error(m)
				}
				c.leftOver()
				c.expect(c.run("db", `{"collStats": "u"}`)["capped"], fmt.Sprint(x.code == nil))
				c.expect(len(c.all("db", `{"find": "u"}`)), `10`)
				for _, shard := range []string{"shard0", "shard1"} {
					if all := c.server[shard].Node.Engine.Catalog().Collections("db"); len(all) != 1 {
						t.Errorf("%s has %d collections", shard, len(all))
					}
				}
				c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
			})
		}
	}
}

// A collMod of a sharded collection is refused while the disk of a shard is low, before another one has executed it. If the disk becomes low later, the command ends when there is room again: a
// shard kept its former definition beside the others' new one.
func TestCollModOnALowDisk(t *testing.T) {
	t.Parallel()
	for _, low := range []string{"shard0", "shard1"} {
		c, disks := newSmallCluster(t)
		c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		c.shardedAs("c", 1, 10)
		c.lowDisk(disks, low)
		if m := c.raw("db", `{"collMod": "c", "validator": {"k": {"$exists": true}}}`); m["code"] != int32(mongoerr.OutOfDiskSpace) {
			t.Errorf("%s is low: %v", low, m)
		}
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
		disks[low].free.Store(1 << 35)
		c.until("there is room", func() bool { return !c.server[low].Node.Engine.DiskLow() })
		reached, release := c.hangAt("shard0", "updateShards")
		changed := c.later("db", `{"collMod": "c", "validator": {"k": {"$exists": true}}}`)
		reached()
		c.lowDisk(disks, low)
		release()
		other := map[string]string{"shard0": "shard1", "shard1": "shard0"}[low]
		c.until("the other shard has executed it", func() bool {
			return strings.Contains(show(bson.Raw(c.server[other].Node.Engine.Catalog().Lookup("db.c").Options)), "exists")
		})
		disks[low].free.Store(1 << 35)
		if m := <-changed; m["ok"] != 1.0 {
			t.Errorf("%s became low: %v", low, m)
		}
		c.leftOver()
		c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
	}
}

// While the disk of the config server is low, clients do not use the room that is kept for drops by writing to the sharding catalog themselves; what nodes store there for a command is stored. Clients' documents
// were stored.
func TestClientsWritesToTheCatalogOnALowDisk(t *testing.T) {
	t.Parallel()
	c, disks := newSmallCluster(t)
	c.run("config", `{"insert": "settings", "documents": [{"_id": "autosplit", "enabled": true}]}`)
	c.lowDisk(disks, "config")
	direct := func(cmd string) bson.M {
		var d bson.D
		if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
			t.Fatal(err)
		}
		body, err := bson.Marshal(append(d, bson.E{Key: "$db", Value: "config"}))
		if err != nil {
			t.Fatal(err)
		}
		return decode(t, c.conf.Service.Run(t.Context(), c.client, &wire.Message{OpCode: wire.OpMsg, Body: body}, nil))
	}
	for _, cmd := range []string{
		`{"insert": "tags", "documents": [{"_id": 1, "x": 1}]}`,
		`{"update": "settings", "updates": [{"q": {"_id": "autosplit"}, "u": {"$set": {"enabled": false}}}]}`,
		`{"update": "settings", "updates": [{"q": {"_id": "chunksize"}, "u": {"$set": {"value": 64}}, "upsert": true}]}`,
		`{"findAndModify": "settings", "query": {"_id": "autosplit"}, "update": {"$set": {"enabled": false}}}`,
		`{"create": "localReshardingOperations.client"}`,
	} {
		for where, m := range map[string]bson.M{"through the router": c.raw("config", cmd), "directly": direct(cmd)} {
			code := m["code"]
			if errs, ok := m["writeErrors"].(bson.A); ok {
				code = get(errs[0], "code")
			}
			if code != int32(mongoerr.OutOfDiskSpace) {
				t.Errorf("%s %s: %v", cmd, where, m)
			}
		}
	}
	c.run("config", `{"delete": "settings", "deletes": [{"q": {"_id": "autosplit"}, "limit": 1}]}`)
	c.run("admin", `{"balancerStop": 1}`)
	c.run("admin", `{"addShardToZone": "shard0", "zone": "a"}`)
	c.run("admin", `{"updateZoneKeyRange": "db.c", "min": {"k": 1}, "max": {"k": 5}, "zone": "a"}`)
	c.expect(c.all("config", `{"find": "tags", "projection": {"_id": 0, "tag": 1}}`), `[{"tag":"a"}]`)
}
