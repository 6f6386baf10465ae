package main

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The roles backup and restore suffice for what mongodump and mongorestore do with users and roles (manual: backup, restore).
func TestRestoreRoleRestoresUsers(t *testing.T) {
	for _, topology := range []string{"standalone", "sharded"} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			g := startGuarded(t, topology)
			root := g.root()
			g.must(root, "admin", "createUser", "restorer", "pwd", "restorer", "roles", bson.A{"restore"})
			g.must(root, "shop", "createUser", "ann", "pwd", "ann", "roles", bson.A{"read"})
			var ann bson.D
			if err := root.Database("admin").Collection("system.users").FindOne(t.Context(), bson.D{{Key: "db", Value: "shop"}}).Decode(&ann); err != nil {
				t.Fatal(err)
			}
			g.must(root, "shop", "dropUser", "ann")
			restorer := g.client("restorer", "restorer", "")
			g.must(restorer, "admin", "insert", "tempusers", "documents", bson.A{ann})
			g.must(restorer, "admin", "_mergeAuthzCollections", 1, "tempUsersCollection", "admin.tempusers", "tempRolesCollection", "", "db", "shop", "drop", true)
			g.must(restorer, "admin", "drop", "tempusers")
			g.must(g.clientOf("shop", "ann", "ann"), "shop", "find", "c")
		})
	}
}

// A user who has credentials of SCRAM-SHA-1 alone logs in with a driver that tries SCRAM-SHA-256 with its hello: the server does not begin that.
func TestSpeculationFollowsTheUser(t *testing.T) {
	g := startGuarded(t, "standalone")
	root := g.root()
	g.must(root, "shop", "createUser", "old", "pwd", "old", "roles", bson.A{}, "mechanisms", bson.A{"SCRAM-SHA-1"})
	start := bson.D{{Key: "saslStart", Value: 1}, {Key: "mechanism", Value: "SCRAM-SHA-256"}, {Key: "payload", Value: []byte("n,,n=old,r=abcdefghijklmnop")}, {Key: "db", Value: "shop"}}
	reply := g.must(g.client("", "", ""), "admin", "hello", 1, "saslSupportedMechs", "shop.old", "speculativeAuthenticate", start)
	if reply["speculativeAuthenticate"] != nil {
		t.Errorf("begun: %v", reply)
	}
	start[1].Value = "SCRAM-SHA-1"
	reply = g.must(g.client("", "", ""), "admin", "hello", 1, "saslSupportedMechs", "shop.old", "speculativeAuthenticate", start)
	if reply["speculativeAuthenticate"] == nil {
		t.Errorf("not begun: %v", reply)
	}
}
