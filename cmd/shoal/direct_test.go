package main

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// On a shard of a cluster of several, users without the role directShardOperations may run the commands that the manual lists, and read what each
// shard has for itself (manual: Sharded Node Direct Commands); as long as there is one shard they may do what their roles give.
func TestDirectOperations(t *testing.T) {
	t.Parallel()
	key := writeKey(t)
	c := launchCluster(t, clusterOptions{shards: []int{1}, keyFile: key})
	g, root := c.guarded(), c.client
	g.must(root, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})
	own := &guarded{t: t, uri: "mongodb://" + c.shards[0].members[0].at() + "/?directConnection=true"}
	own.must(own.client("", "", ""), "admin", "createUser", "keeper", "pwd", "keeper", "roles", bson.A{"root"})
	keeper := own.client("keeper", "keeper", "")
	own.must(keeper, "admin", "createUser", "low", "pwd", "low", "roles", bson.A{})
	own.must(keeper, "admin", "createUser", "mender", "pwd", "mender", "roles", bson.A{"root", "directShardOperations"})
	own.must(keeper, "shop", "find", "c")
	own.must(keeper, "shop", "dbStats", 1)

	if _, code, text := run1(root, "admin", "addShard", c.config.conn()); code != int(mongoerr.OperationFailed) || !strings.Contains(text, "since it is a config server") {
		t.Errorf("the cluster's own config server becomes a shard under another name: %d %s", code, text)
	}
	second := launchSet(t, setOptions{name: "second", role: "--shardsvr", members: 1, args: []string{"--keyFile", key}})
	c.admin(bson.D{{Key: "addShard", Value: second.conn()}, {Key: "name", Value: "second"}})
	const improper = "You are connecting to a sharded cluster improperly by connecting directly to a shard. Please connect to the cluster via a router (mongos)."
	eventually(t, "direct operations refused", func() bool {
		_, code, text := run1(keeper, "shop", "dbStats", 1)
		return code == int(mongoerr.Unauthorized) && strings.HasPrefix(text, improper) && strings.HasSuffix(text, " Command: dbStats, Namespace: shop")
	})
	for _, cmd := range [][]any{
		{"shop", "find", "c"}, {"shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 2}}}}, {"shop", "drop", "c"}, {"shop", "dropDatabase", 1},
		{"shop", "update", "c", "updates", bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}}}}}},
		{"shop", "delete", "c", "deletes", bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}},
		{"shop", "aggregate", "c", "pipeline", bson.A{}, "cursor", bson.D{}}, {"shop", "count", "c"}, {"shop", "listCollections", 1}, {"admin", "listDatabases", 1},
		{"shop", "create", "d"}, {"shop", "explain", bson.D{{Key: "find", Value: "c"}}}, {"shop", "collStats", "c"}, {"shop", "validate", "c"},
		{"shop", "getMore", int64(7), "collection", "c"}, {"config", "find", "shards"}, {"config", "find", "chunks"},
		{"admin", "insert", "mine", "documents", bson.A{bson.D{}}}, {"local", "insert", "mine", "documents", bson.A{bson.D{}}},
		{"admin", "aggregate", "system.users", "pipeline", bson.A{bson.D{{Key: "$out", Value: bson.D{{Key: "db", Value: "shop"}, {Key: "coll", Value: "x"}}}}}, "cursor", bson.D{}},
		{"admin", "aggregate", 1, "pipeline", bson.A{bson.D{{Key: "$currentOp", Value: bson.D{}}}, bson.D{{Key: "$merge", Value: bson.D{{Key: "into", Value: bson.D{{Key: "db", Value: "shop"}, {Key: "coll", Value: "x"}}}}}}}, "cursor", bson.D{}},
	} {
		if _, code, text := run1(keeper, cmd[0].(string), cmd[1:]...); code != int(mongoerr.Unauthorized) || !strings.HasPrefix(text, improper) {
			t.Errorf("%v: %d %s", cmd, code, text)
		}
	}
	for _, cmd := range [][]any{
		{"admin", "serverStatus", 1}, {"admin", "replSetGetStatus", 1}, {"admin", "top", 1}, {"admin", "currentOp", 1}, {"admin", "hello", 1}, {"admin", "isMaster", 1},
		{"admin", "usersInfo", 1}, {"admin", "createUser", "later", "pwd", "later", "roles", bson.A{}}, {"shop", "dbHash", 1}, {"admin", "getParameter", "*"},
		{"local", "find", "oplog.rs", "limit", 1}, {"admin", "find", "system.version"}, {"config", "find", "transactions"}, {"config", "count", "rangeDeletions"},
		{"admin", "aggregate", 1, "pipeline", bson.A{bson.D{{Key: "$currentOp", Value: bson.D{}}}}, "cursor", bson.D{}}, {"local", "listCollections", 1},
	} {
		own.must(keeper, cmd[0].(string), cmd[1:]...)
	}
	if _, _, text := run1(own.client("low", "low", ""), "shop", "find", "c"); !strings.HasPrefix(text, "not authorized on shop") {
		t.Errorf("a user without rights: %s", text)
	}
	own.must(own.client("mender", "mender", ""), "shop", "find", "c")
	for _, cmd := range [][]any{{"shop", "find", "c"}, {"shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 3}}}}, {"admin", "listDatabases", 1}, {"shop", "dbStats", 1}} {
		g.must(root, cmd[0].(string), cmd[1:]...)
	}
}
