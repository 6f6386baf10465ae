package main

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A shard in another process knows the roles of the user for whom the router sends a request, and does not accept roles named by any other client.
func TestUserRolesReachOtherProcesses(t *testing.T) {
	t.Parallel()
	key := writeKey(t)
	c := launchCluster(t, clusterOptions{shards: []int{1}, keyFile: key})
	g, root := c.guarded(), c.client
	var docs bson.A
	for _, role := range []string{"nurse", "doctor", "porter"} {
		g.must(root, "shop", "createRole", role, "roles", bson.A{}, "privileges", bson.A{})
		docs = append(docs, bson.D{{Key: "_id", Value: role}})
	}
	g.must(root, "shop", "insert", "c", "documents", docs)
	g.must(root, "admin", "shardCollection", "shop.d", "key", bson.D{{Key: "_id", Value: "hashed"}})
	g.must(root, "shop", "insert", "d", "documents", docs)
	g.must(root, "shop", "create", "v", "viewOn", "c", "pipeline", bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "$expr",
		Value: bson.D{{Key: "$in", Value: bson.A{"$_id", "$$USER_ROLES.role"}}}}}}}})
	in := func(db string) bson.D { return bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: db}} }
	g.must(root, "admin", "createUser", "ann", "pwd", "pw", "roles", bson.A{in("shop"), bson.D{{Key: "role", Value: "doctor"}, {Key: "db", Value: "shop"}}})
	g.must(root, "admin", "createUser", "bob", "pwd", "pw", "roles", bson.A{in("shop")})
	mine := bson.D{{Key: "$expr", Value: bson.D{{Key: "$in", Value: bson.A{"$_id", "$$USER_ROLES.role"}}}}}
	for who, want := range map[string]string{"ann": "doctor", "bob": ""} {
		c := g.client(who, "pw", "").Database("shop")
		for name, got := range map[string]string{"a collection": ids(t, c, "c", mine), "a sharded one": ids(t, c, "d", mine), "a view": ids(t, c, "v", bson.D{})} {
			if got != want {
				t.Errorf("%s sees of %s: %q", who, name, got)
			}
		}
		cur, err := c.Collection("d").Aggregate(context.Background(), bson.A{bson.D{{Key: "$match", Value: mine}}, bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$_id"}}}}})
		if got := names(t, cur, err); got != want {
			t.Errorf("%s aggregates %q", who, got)
		}
	}
	// Only members may name other users.
	g.refused(g.client("ann", "pw", ""), "shop", "find", "c", "$audit", bson.D{{Key: "$impersonatedRoles", Value: bson.A{in("admin")}}})
}

func ids(t *testing.T, db *mongo.Database, coll string, filter bson.D) string {
	t.Helper()
	cur, err := db.Collection(coll).Find(context.Background(), filter)
	return names(t, cur, err)
}

func names(t *testing.T, cur *mongo.Cursor, err error) string {
	t.Helper()
	var docs []struct {
		ID string `bson:"_id"`
	}
	if err == nil {
		err = cur.All(context.Background(), &docs)
	}
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, d := range docs {
		out = append(out, d.ID)
	}
	return strings.Join(out, " ")
}

// Only users that may use UUIDs and read the collection of that name can find a collection by its UUID.
func TestFindByUUID(t *testing.T) {
	g := startGuarded(t, "standalone")
	root := g.root()
	g.must(root, "shop", "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}}})
	g.must(root, "shop", "createIndexes", "c", "indexes", bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "name", Value: "a_1"}}})
	specs, err := root.Database("shop").ListCollectionSpecifications(context.Background(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	id := *specs[0].UUID
	reply := g.must(root, "shop", "find", id)
	cursor := bson.M{}
	for _, e := range reply["cursor"].(bson.D) {
		cursor[e.Key] = e.Value
	}
	if cursor["ns"] != "shop.c" || len(cursor["firstBatch"].(bson.A)) != 1 {
		t.Errorf("%v", reply)
	}
	g.must(root, "shop", "listIndexes", id)
	if _, code, _ := run1(root, "other", "find", id); code != int(mongoerr.NamespaceNotFound) {
		t.Errorf("a UUID of another database: %d", code)
	}
	cluster := bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "cluster", Value: true}}}, {Key: "actions", Value: bson.A{"useUUID"}}}}
	g.must(root, "admin", "createRole", "uuids", "roles", bson.A{}, "privileges", cluster)
	read := bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "shop"}}
	for name, roles := range map[string]bson.A{"reader": {read}, "finder": {"uuids"}, "both": {read, "uuids"}} {
		g.must(root, "admin", "createUser", name, "pwd", "pw", "roles", roles)
	}
	g.refused(g.client("reader", "pw", ""), "shop", "find", id)
	if text := g.refused(g.client("finder", "pw", ""), "shop", "find", id); strings.Contains(text, `"c"`) {
		t.Errorf("the error reveals the collection's name: %s", text)
	}
	g.must(g.client("both", "pw", ""), "shop", "find", id)
}

// The default time limit for reads does not apply to users with bypassDefaultMaxTimeMS, such as root.
func TestBypassOfTheTimeLimitOfReads(t *testing.T) {
	g := startGuarded(t, "standalone")
	root := g.root()
	var docs bson.A
	for i := range 20000 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "s", Value: strconv.Itoa(i * 7919)}})
	}
	g.must(root, "shop", "insert", "c", "documents", docs)
	g.must(root, "admin", "createUser", "ann", "pwd", "pw", "roles", bson.A{"readAnyDatabase"})
	g.must(root, "admin", "setClusterParameter", bson.D{{Key: "defaultMaxTimeMS", Value: bson.D{{Key: "readOperations", Value: 1}}}})
	slow := []any{"find", "c", "filter", bson.D{{Key: "s", Value: bson.D{{Key: "$regex", Value: "(1|2)+.*(3|4)+.*x$"}}}}}
	if _, code, text := run1(g.client("ann", "pw", ""), "shop", slow...); code != int(mongoerr.MaxTimeMSExpired) {
		t.Errorf("ann: %d %s", code, text)
	}
	g.must(root, "shop", slow...)
}

// Clients that declare the stable API in strict mode can log in: the commands of authentication are part of it.
func TestStrictClientsLogIn(t *testing.T) {
	g := startGuarded(t, "standalone")
	g.root()
	for _, mech := range []string{"SCRAM-SHA-1", "SCRAM-SHA-256"} {
		o := options.Client().ApplyURI(g.uri).SetServerAPIOptions(options.ServerAPI(options.ServerAPIVersion1).SetStrict(true)).
			SetAuth(options.Credential{Username: "root", Password: "secret", AuthSource: "admin", AuthMechanism: mech})
		c, err := mongo.Connect(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.Database("shop").RunCommand(ctx, bson.D{{Key: "find", Value: "c"}}).Err(); err != nil {
			t.Errorf("%s: %v", mech, err)
		}
		_ = c.Disconnect(ctx)
	}
}
