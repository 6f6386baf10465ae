package router_test

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Zones that are set after a drop or rename are kept if the shard loses its power at once: the drop or rename is not repeated for them. Its end was not durable, and what was repeated removed or
// moved the new zones, too, which were on the config server.
func TestZonesSetBehindADDLOutliveALossOfPower(t *testing.T) {
	for _, x := range []struct{ db, cmd string }{{"db", `{"drop": "plain"}`}, {"admin", `{"renameCollection": "db.plain", "to": "db.other"}`}} {
		p := newPoweredCluster(t, 1)
		p.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
		p.insertKeys("plain", 1, 10)
		p.run("admin", `{"addShardToZone": "shard0", "zone": "z"}`)
		set := func(ns string) {
			p.run("admin", fmt.Sprintf(`{"updateZoneKeyRange": %q, "min": {"k": 0}, "max": {"k": 10}, "zone": "z"}`, ns))
		}
		set("db.plain")
		p.run(x.db, x.cmd)
		set("db.plain")
		p.lose("shard0")
		p.start("shard0")
		p.leftOver()
		p.expect(len(p.all("config", `{"find": "tags", "filter": {"ns": "db.plain"}}`)), `1`)
	}
}

// A shard that has executed a collMod or dropIndexes counts, whatever it or another shard answers when the command is repeated: it is in an election, or the reply was lost and its disk is full now. The
// command is not undone for that.
func TestIndexesAreChangedOnAllShardsOrNone(t *testing.T) {
	full, election := mongoerr.New(mongoerr.OutOfDiskSpace, "no room"), mongoerr.New(mongoerr.NotWritablePrimary, "not primary")
	lost := mongoerr.New(mongoerr.HostUnreachable, "the reply is lost")
	for cmd, name := range map[string]string{`{"collMod": "c", "index": {"name": "k_1", "hidden": true}}`: "collMod", `{"dropIndexes": "c", "index": "k_1"}`: "dropIndexes"} {
		for _, answers := range [][2][]error{ // of shard0 and shard1; nil is the command's own
			{{full, full}, {nil, election}},
			{{lost, full}, {election, full}},
		} {
			c := newTestCluster(t, 2)
			peers := []*interposedPeer{c.interposed("shard0"), c.interposed("shard1")}
			c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
			c.shardedAs("c", 1, 30)
			c.run("db", `{"createIndexes": "c", "indexes": [{"key": {"k": 1}, "name": "k_1"}]}`)
			for i, w := range peers {
				var n atomic.Int64
				w.through(func(_ context.Context, command string, call func() ([]byte, error)) ([]byte, error) {
					if command != name {
						return call()
					}
					var err error
					if at := int(n.Add(1)) - 1; at < len(answers[i]) {
						err = answers[i][at]
					}
					if err != nil && err != lost {
						return nil, err
					}
					reply, failed := call()
					return reply, cmp.Or(err, failed)
				})
			}
			if m := c.raw("db", cmd); m["ok"] != 1.0 {
				t.Errorf("%s: %v", cmd, m)
			}
			c.leftOver()
			c.expect(c.all("admin", `{"checkMetadataConsistency": 1, "checkIndexes": true}`), `[]`)
		}
	}
}
