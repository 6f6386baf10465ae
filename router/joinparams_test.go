package router_test

import (
	"context"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/shardnode"
)

// A shard that joins has the cluster's parameters from then on, and none of its own: it kept those that it had, and what the cluster had
// set before did not reach it.
func TestShardThatJoinsTakesOverClusterParameters(t *testing.T) {
	c := newTestCluster(t, 2)
	set := func(name string, v bson.D) {
		c.cmd("admin", bson.D{{Key: "setClusterParameter", Value: bson.D{{Key: name, Value: v}}}})
	}
	set("defaultMaxTimeMS", bson.D{{Key: "readOperations", Value: 12345}})
	c.run("admin", `{"setQuerySettings": {"find": "c", "filter": {"x": 1}, "$db": "db"}, "settings": {"reject": true}}`)
	third := c.opened(shardnode.Config{SetName: "shard2", Host: "shard2:27018"})
	if err := third.Initiate(context.Background()); err != nil {
		t.Fatal(err)
	}
	own := func(name string, v bson.D) {
		c.admin(third.Peer(), bson.D{{Key: "setClusterParameter", Value: bson.D{{Key: name, Value: v}}}, {Key: "$db", Value: "admin"}})
	}
	own("defaultMaxTimeMS", bson.D{{Key: "readOperations", Value: 999}})
	own("changeStreamOptions", bson.D{{Key: "preAndPostImages", Value: bson.D{{Key: "expireAfterSeconds", Value: 7}}}})
	c.join("shard2", "shard2:27018", third)
	get := func(name string) any {
		t.Helper()
		return c.admin(third.Peer(), bson.D{{Key: "getClusterParameter", Value: name}, {Key: "$db", Value: "admin"}})["clusterParameters"].(bson.A)[0]
	}
	if got := field(get("defaultMaxTimeMS"), "readOperations"); fmt.Sprint(got) != "12345" {
		t.Errorf("defaultMaxTimeMS: %v", got)
	}
	if got := field(field(get("changeStreamOptions"), "preAndPostImages"), "expireAfterSeconds"); got != "off" {
		t.Errorf("changeStreamOptions, which the cluster has not set: %v", got)
	}
	if got := field(get("querySettings"), "settingsArray").(bson.A); len(got) != 1 {
		t.Errorf("querySettings: %v", got)
	}
	set("defaultMaxTimeMS", bson.D{{Key: "readOperations", Value: 54321}})
	if got := field(get("defaultMaxTimeMS"), "readOperations"); fmt.Sprint(got) != "54321" {
		t.Errorf("defaultMaxTimeMS when it is set again: %v", got)
	}
}
