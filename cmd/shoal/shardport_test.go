package main

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The users of a cluster and those of a shard are different users (manual: Sharded Cluster Users): the cluster's cannot log in on a shard's own port,
// and a shard's own user has on it the rights that were given there, and none through a router.
func TestUsersOfAShard(t *testing.T) {
	t.Parallel()
	key := writeKey(t)
	c := launchCluster(t, clusterOptions{shards: []int{1}, keyFile: key})
	g, root, shard := c.guarded(), c.client, c.shards[0]
	g.must(root, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})
	g.must(root, "bank", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})
	low := bson.A{bson.D{{Key: "role", Value: "readWrite"}, {Key: "db", Value: "shop"}}}
	g.must(root, "admin", "createUser", "low", "pwd", "low", "roles", low)

	own := &guarded{t: t, uri: "mongodb://" + shard.members[0].at() + "/?directConnection=true"}
	for user, password := range map[string]string{"root": "secret", "low": "low"} {
		if _, code, _ := run1(own.client(user, password, ""), "shop", "find", "c"); code != int(mongoerr.AuthenticationFailed) {
			t.Errorf("the cluster's user %s on the shard's port: %d", user, code)
		}
	}
	if _, code, _ := run1(own.client("", "", ""), "shop", "find", "c"); code != int(mongoerr.Unauthorized) {
		t.Errorf("a stranger on the shard's port: %d", code)
	}
	own.must(own.client("", "", ""), "admin", "createUser", "keeper", "pwd", "keeper", "roles", bson.A{"root"}) // the shard's own localhost exception
	keeper := own.client("keeper", "keeper", "")
	own.must(keeper, "admin", "createUser", "local", "pwd", "local", "roles", low)
	local := own.client("local", "local", "")
	own.must(local, "shop", "find", "c")
	for _, cmd := range [][]any{
		{"bank", "find", "c"}, {"admin", "find", "system.users"}, {"config", "find", "system.sessions"}, {"local", "find", "oplog.rs"}, {"admin", "replSetGetStatus", 1},
		{"admin", "_shardsvrDropCollection", "c"}, {"admin", "_flushRoutingTableCacheUpdates", "shop.c"}, {"admin", "setParameter", 1, "logLevel", 1}, {"admin", "shutdown", 1},
		{"shop", "aggregate", "c", "pipeline", bson.A{bson.D{{Key: "$out", Value: bson.D{{Key: "db", Value: "bank"}, {Key: "coll", Value: "x"}}}}}, "cursor", bson.D{}},
	} {
		own.refused(local, cmd[0].(string), cmd[1:]...)
	}
	g.refused(g.client("low", "low", ""), "bank", "find", "c")
	if _, code, _ := run1(g.client("local", "local", ""), "shop", "find", "c"); code != int(mongoerr.AuthenticationFailed) {
		t.Errorf("the shard's user through a router: %d", code)
	}
}

// A recovery token that names the config server leads to an unknown transaction; no internal command is visible.
func TestRecoveryTokenOfTheConfigServer(t *testing.T) {
	g := startGuarded(t, "sharded")
	c := g.root()
	s, err := c.StartSession(options.Session())
	if err != nil {
		t.Fatal(err)
	}
	defer s.EndSession(t.Context())
	_, code, text := run1(c, "admin", "commitTransaction", 1, "lsid", s.ID(), "txnNumber", int64(1), "autocommit", false, "recoveryToken", bson.D{{Key: "recoveryShardId", Value: "config"}})
	if code != int(mongoerr.NoSuchTransaction) || strings.Contains(text, "oordinate") {
		t.Errorf("%d %s", code, text)
	}
}
