package main

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Users with the privilege bypassWriteBlockingMode, which the role restore has, write and do DDL while users are blocked, on a set and through a router; others do neither. Nobody used to be exempt.
func TestBypassOfWriteBlocks(t *testing.T) {
	for _, topology := range []string{"replset", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			g := startGuarded(t, topology)
			bypasses(g, g.root(), topology == "sharded")
		})
	}
}

// So they do in a cluster of several processes, in which the router tells the shards, and where a shard that executes DDL for such a user tells the others.
func TestBypassOfWriteBlocksAcrossProcesses(t *testing.T) {
	t.Parallel()
	c := launchCluster(t, clusterOptions{shards: []int{1, 1}, keyFile: writeKey(t)})
	bypasses(c.guarded(), c.client, true)

	// A user of a shard who reaches it directly is blocked there as by a router, and does not exempt himself either.
	own := &guarded{t: t, uri: "mongodb://" + c.shards[0].members[0].at() + "/?directConnection=true"}
	own.must(own.client("", "", ""), "admin", "createUser", "keeper", "pwd", "keeper", "roles", bson.A{"root", "directShardOperations"})
	own.must(own.client("keeper", "keeper", ""), "admin", "createUser", "plain", "pwd", "secret", "roles", bson.A{"readWriteAnyDatabase", "dbAdminAnyDatabase", "directShardOperations"})
	plain := own.client("plain", "secret", "")
	own.must(plain, "shop", "insert", "direct", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})
	c.admin(bson.D{{Key: "setUserWriteBlockMode", Value: 1}, {Key: "global", Value: true}})
	for _, x := range [][]any{
		{"shop", "insert", "direct", "documents", bson.A{bson.D{{Key: "_id", Value: 2}}}},
		{"shop", "create", "made"},
		{"shop", "drop", "direct"},
	} {
		blockedEvenIfHeSaysNot(own, plain, x)
	}
	c.admin(bson.D{{Key: "setUserWriteBlockMode", Value: 1}, {Key: "global", Value: false}})
}

// blockedEvenIfHeSaysNot sends a command of a user who is blocked: it is refused as a member's if it has the element in which members say that a client is exempt.
func blockedEvenIfHeSaysNot(g *guarded, user *mongo.Client, x []any) {
	g.t.Helper()
	if _, code, text := run1(user, x[0].(string), x[1:]...); code != int(mongoerr.UserWritesBlocked) {
		g.t.Errorf("%v of a user who is blocked: %d %s", x, code, text)
	}
	exempt := append(slices.Clone(x), "mayBypassWriteBlocking", true)
	if _, code, text := run1(user, x[0].(string), exempt[1:]...); code != int(mongoerr.Unauthorized) || !strings.HasPrefix(text, "not authorized on "+x[0].(string)) {
		g.t.Errorf("%v of a user who is blocked: %d %s", exempt, code, text)
	}
	if _, code, text := run1(user, x[0].(string), append(exempt[1:len(exempt)-1:len(exempt)-1], false)...); code != int(mongoerr.UserWritesBlocked) {
		g.t.Errorf("%v of a user who is blocked, with the element set to false: %d %s", x, code, text)
	}
}

func bypasses(g *guarded, root *mongo.Client, sharded bool) {
	g.t.Helper()
	writers := bson.A{"readWriteAnyDatabase", "dbAdminAnyDatabase", "clusterManager"}
	g.must(root, "admin", "createUser", "plain", "pwd", "secret", "roles", writers)
	g.must(root, "admin", "createUser", "exempt", "pwd", "secret", "roles", append(bson.A{"restore"}, writers...))
	plain, exempt := g.client("plain", "secret", ""), g.client("exempt", "secret", "")
	g.must(plain, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})
	if sharded {
		g.must(root, "admin", "shardCollection", "shop.s", "key", bson.D{{Key: "_id", Value: "hashed"}})
	}
	g.must(root, "admin", "setUserWriteBlockMode", 1, "global", true)
	commands := [][]any{
		{"shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 2}}}},
		{"shop", "create", "made"},
		{"shop", "createIndexes", "c", "indexes", bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "name", Value: "a"}}}},
		{"shop", "collMod", "c", "validator", bson.D{{Key: "x", Value: bson.D{{Key: "$ne", Value: 1}}}}},
		{"other", "create", "made"},
		{"shop", "aggregate", "c", "pipeline", bson.A{bson.D{{Key: "$out", Value: "copied"}}}, "cursor", bson.D{}},
		{"shop", "drop", "made"},
		{"shop", "insert", "s", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}}, bson.D{{Key: "_id", Value: 3}}}},
		{"shop", "createIndexes", "s", "indexes", bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "name", Value: "a"}}}},
		{"shop", "collMod", "s", "validator", bson.D{{Key: "x", Value: bson.D{{Key: "$ne", Value: 1}}}}},
		{"shop", "dropIndexes", "s", "index", "a"},
		{"shop", "drop", "s"},
		{"shop", "dropDatabase", 1},
	}
	for _, x := range commands {
		blockedEvenIfHeSaysNot(g, plain, x)
		reply, code, text := run1(exempt, x[0].(string), x[1:]...)
		if code != 0 || reply["writeErrors"] != nil {
			g.t.Errorf("%v of a user who is exempt: %d %s %v", x, code, text, reply)
		}
	}
	g.must(root, "admin", "setUserWriteBlockMode", 1, "global", false)
}
