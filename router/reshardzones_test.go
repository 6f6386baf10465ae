package router_test

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// zone sets a zone for a range of a field.
func (c *testCluster) zone(ns, field string, from int, zone string) {
	c.t.Helper()
	c.run("admin", fmt.Sprintf(`{"updateZoneKeyRange": %q, "min": {%q: %d}, "max": {%q: %d}, "zone": %q}`, ns, field, from, field, from+1, zone))
}

// zones lists the ranges of a zone as namespaces and lower bounds.
func (c *testCluster) zones(zone string) (out string) {
	c.t.Helper()
	for _, d := range c.all("config", `{"find": "tags", "filter": {"tag": "`+zone+`"}, "sort": {"ns": 1, "min": 1}}`) {
		out += fmt.Sprintf("%v %v; ", get(d, "ns"), get(d, "min").(bson.D)[0].Value)
	}
	return out
}

// Zones cannot be changed while their collection is resharded, moved or unsharded, up to the end: the commit has chosen them before. A range that was set meanwhile
// kept the bounds of the former key, and could not be removed. One that an earlier version has left is removed by its bounds.
func TestZonesDuringResharding(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.config.Points = c.points["config"]
	c.run("admin", `{"addShardToZone": "shard0", "zone": "z"}`)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.insertKeys("c", 1, 10)
	c.insertKeys("plain", 2, 10)
	c.zone("db.plain", "_id", 7, "z")
	other := c.through()
	for _, x := range []struct{ cmd, ns, field string }{
		{`{"reshardCollection": "db.c", "key": {"from": 1}, "numInitialChunks": 1, "zones": [{"min": {"from": 3}, "max": {"from": 4}, "zone": "z"}]}`, "db.c", "k"},
		{`{"unshardCollection": "db.c", "toShard": "shard1"}`, "db.c", "from"},
		{`{"moveCollection": "db.plain", "toShard": "shard1"}`, "db.plain", "_id"},
	} {
		for _, state := range []string{"cloning", "committing", "done"} {
			if state != "cloning" && x.ns == "db.c" && x.field == "from" { // it is not sharded any more
				c.run("admin", `{"shardCollection": "db.c", "key": {"from": 1}}`)
			}
			reached, release := c.hangOn("config", "reshardingPauseCoordinatorAtState", "state", state)
			answer := make(chan bson.M, 1)
			go func() { answer <- c.raw("admin", x.cmd) }()
			reached()
			for _, zone := range []string{`"z"`, "null"} {
				m := other.raw("admin", fmt.Sprintf(`{"updateZoneKeyRange": %q, "min": {%q: 7}, "max": {%q: 8}, "zone": %s}`, x.ns, x.field, x.field, zone))
				if m["code"] != int32(mongoerr.ReshardCollectionInProgress) {
					t.Errorf("%s: %s: %v", x.cmd, state, m)
				}
			}
			other.zone("db.another", "k", 1, "z")
			release()
			if m := <-answer; m["ok"] != 1.0 {
				t.Errorf("%s: %s: %v", x.cmd, state, m)
			}
			c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
			switch x.cmd[:5] {
			case `{"res`:
				if got := c.zones("z"); got != "db.another 1; db.c 3; db.plain 7; " {
					t.Errorf("%s: %s", state, got)
				}
				if state != "done" {
					c.run("admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "zones": []}`)
				}
			case `{"mov`:
				c.run("admin", `{"moveCollection": "db.plain", "toShard": "shard0"}`)
			}
		}
	}
	c.run("admin", `{"shardCollection": "db.c", "key": {"from": 1}}`)
	tag := bson.D{{Key: "_id", Value: "left"}, {Key: "ns", Value: "db.c"}, {Key: "min", Value: bson.D{{Key: "k", Value: 0}}}, {Key: "max", Value: bson.D{{Key: "k", Value: 5}}}, {Key: "tag", Value: "z"}}
	c.admin(c.confP, bson.D{{Key: "insert", Value: "tags"}, {Key: "documents", Value: bson.A{tag}}, {Key: "$db", Value: "config"}})
	c.expect(len(c.all("admin", `{"checkMetadataConsistency": 1}`)), `1`)
	c.run("admin", `{"updateZoneKeyRange": "db.c", "min": {"k": 0}, "max": {"k": 5}, "zone": null}`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
	if m := c.raw("admin", `{"updateZoneKeyRange": "db.c", "min": {"k": 0}, "max": {"k": 5}, "zone": null}`); m["ok"] == 1.0 {
		t.Errorf("bounds of another key, and no such zone: %v", m)
	}
	c.run("admin", `{"updateZoneKeyRange": "db.c", "min": {"from": 0}, "max": {"from": 5}, "zone": null}`)
}

// The last shard of a zone stays in it while a resharding is about to assign ranges to the zone, as when the zone has ranges: the collection used to get ranges of a zone that no shard
// was in. The zones of another resharding, or of one that has been undone, do not matter.
func TestLastShardOfAZoneDuringResharding(t *testing.T) {
	t.Parallel()
	c := newTestCluster(t, 2)
	c.config.Points = c.points["config"]
	c.run("admin", `{"enableSharding": "db", "primaryShard": "shard0"}`)
	c.run("admin", `{"shardCollection": "db.c", "key": {"k": 1}}`)
	c.insertKeys("c", 1, 10)
	other := c.through()
	remove := func(zone, shard string) bson.M {
		return other.raw("admin", fmt.Sprintf(`{"removeShardFromZone": %q, "zone": %q}`, shard, zone))
	}
	for _, state := range []string{"initializing", "cloning", "committing", "done", "aborted"} {
		for _, zone := range []string{"z", "unused"} {
			c.run("admin", `{"addShardToZone": "shard1", "zone": "`+zone+`"}`)
		}
		c.run("admin", `{"addShardToZone": "shard0", "zone": "z"}`)
		at := state
		if state == "aborted" {
			at = "cloning"
		}
		reached, release := c.hangOn("config", "reshardingPauseCoordinatorAtState", "state", at)
		answer := make(chan bson.M, 1)
		go func() {
			answer <- c.raw("admin", `{"reshardCollection": "db.c", "key": {"from": 1}, "numInitialChunks": 1, "zones": [{"min": {"from": 3}, "max": {"from": 4}, "zone": "z"}]}`)
		}()
		reached()
		if m := remove("z", "shard0"); m["ok"] != 1.0 {
			t.Errorf("%s: another shard is in the zone: %v", state, m)
		}
		if m := remove("z", "shard1"); m["code"] != int32(mongoerr.ZoneStillInUse) {
			t.Errorf("%s: the last shard leaves the zone: %v", state, m)
		}
		if m := remove("unused", "shard1"); m["ok"] != 1.0 {
			t.Errorf("%s: a zone that is not used: %v", state, m)
		}
		if state == "aborted" {
			aborted := make(chan bson.M, 1)
			go func() { aborted <- c.through().raw("admin", `{"abortReshardCollection": "db.c"}`) }()
			release()
			<-answer
			if m := <-aborted; m["ok"] != 1.0 {
				t.Errorf("%v", m)
			}
			if m := remove("z", "shard1"); m["ok"] != 1.0 {
				t.Errorf("the resharding was aborted: %v", m)
			}
			continue
		}
		release()
		if m := <-answer; m["ok"] != 1.0 {
			t.Errorf("%s: %v", state, m)
		}
		c.expect(c.zones("z"), `"db.c 3; "`)
		if m := remove("z", "shard1"); m["code"] != int32(mongoerr.ZoneStillInUse) {
			t.Errorf("after %s: %v", state, m)
		}
		c.run("admin", `{"reshardCollection": "db.c", "key": {"k": 1}, "zones": []}`)
		if m := remove("z", "shard1"); m["ok"] != 1.0 {
			t.Errorf("the zone has no ranges any more: %v", m)
		}
	}
}
