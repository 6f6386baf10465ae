package router_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
)

// heldOnConfig asks the config server whether a critical section is held.
func (c *testCluster) heldOnConfig(id any) bool {
	c.t.Helper()
	var section [16]byte
	copy(section[:], id.(bson.Binary).Data)
	reply, err := cluster.Run(c.t.Context(), c.confP, msg.Doc(&msg.HoldsCriticalSection{ID: section}))
	var answer msg.HoldsCriticalSectionReply
	if err == nil {
		err = msg.Parse(reply, &answer)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return answer.Held
}

// A config shard owns critical sections as a shard that coordinates DDL, and as the config server, which coordinates reshardings: asked about one
// it answers for both, and a shard ends a section that has no holder.
func TestConfigShardHoldsSections(t *testing.T) {
	c := newTestCluster(t, 1)
	withConfigShard(c)
	c.reshardings()
	c.run("admin", `{"transitionFromDedicatedConfigServer": 1}`)
	c.run("admin", `{"enableSharding": "db", "primaryShard": "config"}`)
	c.shardedAs("c", 1, 10)
	c.insertKeys("plain", 2, 10)

	reached, release := c.hangAt("config", "dropCollection")
	dropped := make(chan bson.M, 1)
	go func() { dropped <- c.raw("db", `{"drop": "c"}`) }()
	reached()
	run := get(c.all("config", `{"find": "system.sharding_ddl_coordinators"}`)[0], "id")
	if !c.heldOnConfig(run) {
		t.Error("the section of a drop is not held")
	}
	release()
	c.expect((<-dropped)["ok"], `1.0`)
	if c.heldOnConfig(run) {
		t.Error("the section of a drop that has ended is held")
	}

	const point = "reshardingPauseCoordinatorAtState"
	c.config.Points = c.points["config"]
	entered, _ := c.points["config"].Configure(point, value.NewString("alwaysOn"), value.Doc(value.F("state", value.NewString("committing"))))
	moved := make(chan bson.M, 1)
	go func() { moved <- c.raw("admin", `{"moveCollection": "db.plain", "toShard": "shard0"}`) }()
	if err := c.points["config"].Register(point).WaitEntered(t.Context(), entered+1); err != nil {
		t.Fatal(err)
	}
	resharding := get(c.all("config", `{"find": "reshardingOperations"}`)[0], "_id")
	if !c.heldOnConfig(resharding) {
		t.Error("the section of a resharding is not held")
	}
	// An operation that waits for the section has the shard ask for its owner: it goes on waiting.
	if m := c.raw("db", `{"insert": "plain", "documents": [{"_id": 100, "k": 100}], "maxTimeMS": 1500}`); m["ok"] == 1.0 {
		t.Errorf("a write during the section of a resharding: %v", m)
	}
	if _, err := c.points["config"].Configure(point, value.NewString("off"), nil); err != nil {
		t.Fatal(err)
	}
	c.expect((<-moved)["ok"], `1.0`)
	if c.heldOnConfig(bson.Binary{Subtype: 4, Data: make([]byte, 16)}) {
		t.Error("a section of nobody is held")
	}
	c.expect(c.counted("plain", 2), `10`)
	c.expect(c.all("admin", `{"checkMetadataConsistency": 1}`), `[]`)
}
