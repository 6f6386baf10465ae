package compat

import (
	"context"
	"os"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// adminDo runs a command on admin, which has to succeed.
func adminDo(ctx context.Context, t *testing.T, c *mongo.Client, cmd bson.D) bson.M {
	t.Helper()
	return runOn(ctx, t, c.Database("admin"), cmd)
}

func runOn(ctx context.Context, t *testing.T, db *mongo.Database, cmd bson.D) (reply bson.M) {
	t.Helper()
	if err := db.RunCommand(ctx, cmd).Decode(&reply); err != nil {
		t.Fatalf("%s: %v", cmd[0].Key, err)
	}
	return reply
}

// What mongodump --dumpDbUsersAndRoles reads of a database's users and roles, written back as mongorestore --restoreDbUsersAndRoles does it, lets the
// users log in with their passwords and do what they could; those that came later are gone, and other databases' stay.
func TestDumpUsersAndRoles(t *testing.T) {
	ctx := context.Background()
	client := connect(t)
	admin := client.Database("admin")
	db, other := client.Database("compat_users"), client.Database("compat_users_other")
	for _, d := range []*mongo.Database{db, other} {
		runOn(ctx, t, d, bson.D{{Key: "dropAllUsersFromDatabase", Value: 1}})
		runOn(ctx, t, d, bson.D{{Key: "dropAllRolesFromDatabase", Value: 1}})
	}
	privileges := bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: db.Name()}, {Key: "collection", Value: "c"}}}, {Key: "actions", Value: bson.A{"find", "insert"}}}}
	runOn(ctx, t, db, bson.D{{Key: "createRole", Value: "teller"}, {Key: "privileges", Value: privileges}, {Key: "roles", Value: bson.A{}}})
	runOn(ctx, t, db, bson.D{{Key: "createUser", Value: "ann"}, {Key: "pwd", Value: "ann's"}, {Key: "roles", Value: bson.A{"teller"}}, {Key: "customData", Value: bson.D{{Key: "n", Value: 1}}}})
	runOn(ctx, t, other, bson.D{{Key: "createUser", Value: "bob"}, {Key: "pwd", Value: "bob's"}, {Key: "roles", Value: bson.A{}}})

	// mongodump
	if v := adminDo(ctx, t, client, bson.D{{Key: "getParameter", Value: 1}, {Key: "authSchemaVersion", Value: 1}})["authSchemaVersion"]; v != int32(5) {
		t.Fatalf("authSchemaVersion %v", v)
	}
	var version bson.Raw
	if err := admin.Collection("system.version").FindOne(ctx, bson.D{{Key: "_id", Value: "authSchema"}}).Decode(&version); err != nil {
		t.Fatal(err)
	}
	read := func(coll string) (out []bson.Raw) {
		t.Helper()
		cur, err := admin.Collection(coll).Find(ctx, bson.D{{Key: "db", Value: db.Name()}})
		if err == nil {
			err = cur.All(ctx, &out)
		}
		if err != nil || len(out) != 1 {
			t.Fatalf("%d documents of %s, %v", len(out), coll, err)
		}
		return out
	}
	users, roles := read("system.users"), read("system.roles")

	runOn(ctx, t, db, bson.D{{Key: "dropUser", Value: "ann"}})
	runOn(ctx, t, db, bson.D{{Key: "dropRole", Value: "teller"}})
	runOn(ctx, t, db, bson.D{{Key: "createUser", Value: "late"}, {Key: "pwd", Value: "x"}, {Key: "roles", Value: bson.A{}}})

	// mongorestore
	for coll, docs := range map[string][]bson.Raw{"tempusers": users, "temproles": roles} {
		_ = admin.Collection(coll).Drop(ctx)
		if _, err := admin.Collection(coll).InsertMany(ctx, anyOf(docs)); err != nil {
			t.Fatal(err)
		}
	}
	adminDo(ctx, t, client, bson.D{{Key: "_mergeAuthzCollections", Value: 1}, {Key: "tempUsersCollection", Value: "admin.tempusers"}, {Key: "tempRolesCollection", Value: "admin.temproles"},
		{Key: "drop", Value: true}, {Key: "db", Value: db.Name()}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
	for _, coll := range []string{"tempusers", "temproles"} {
		if err := admin.Collection(coll).Drop(ctx); err != nil {
			t.Error(err)
		}
	}

	list := runOn(ctx, t, db, bson.D{{Key: "usersInfo", Value: 1}})["users"].(bson.A)
	if len(list) != 1 || !strings.Contains(bsonText(t, list[0]), `"user":"ann"`) || !strings.Contains(bsonText(t, list[0]), `"n":`) {
		t.Errorf("users: %v", list)
	}
	if list := runOn(ctx, t, other, bson.D{{Key: "usersInfo", Value: 1}})["users"].(bson.A); len(list) != 1 {
		t.Errorf("another database's users: %v", list)
	}
	ann, err := mongo.Connect(options.Client().ApplyURI(os.Getenv("MONGODB_URI")).SetAuth(options.Credential{Username: "ann", Password: "ann's", AuthSource: db.Name()}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ann.Disconnect(ctx) }()
	if _, err := ann.Database(db.Name()).Collection("c").InsertOne(ctx, bson.D{{Key: "x", Value: 1}}); err != nil {
		t.Errorf("ann, once restored: %v", err)
	}
	status := runOn(ctx, t, ann.Database("admin"), bson.D{{Key: "connectionStatus", Value: 1}, {Key: "showPrivileges", Value: true}})
	if text := bsonText(t, status); !strings.Contains(text, `"role":"teller"`) || !strings.Contains(text, `"actions":["find","insert"]`) {
		t.Errorf("ann is %s", text)
	}
	_ = db.Drop(ctx)
	for _, d := range []*mongo.Database{db, other} {
		runOn(ctx, t, d, bson.D{{Key: "dropAllUsersFromDatabase", Value: 1}})
		runOn(ctx, t, d, bson.D{{Key: "dropAllRolesFromDatabase", Value: 1}})
	}
}

func bsonText(t *testing.T, v any) string {
	t.Helper()
	raw, err := bson.MarshalExtJSON(bson.M{"v": v}, false, false)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
